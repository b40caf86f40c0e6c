"""A script as they were written for TensorFlow 1: it reads `TF_CONFIG`, and knows nothing of Shoal."""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--gate", type=Path, required=True)
options = parser.parse_args()
config = json.loads(os.environ["TF_CONFIG"])
cluster, kind, index = tf.train.ClusterSpec(config["cluster"]), config["task"]["type"], config["task"]["index"]
filters = tf.ConfigProto(device_filters=["/job:ps", f"/job:{kind}/task:{index}"])
server = tf.distribute.Server(cluster, job_name=kind, task_index=index, config=filters)
if kind == "ps":
    server.join()

with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:{kind}/task:{index}")):
    step = tf.train.get_or_create_global_step()
    x = tf.placeholder(tf.float32, [None, 4])
    weights, bias = tf.get_variable("weights", [4, 1]), tf.get_variable("bias", [1])
    loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) + bias - 1.0))
    train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)

hooks = [tf.train.StopAtStepHook(last_step=options.steps)]
with tf.train.MonitoredTrainingSession(
    server.target,
    is_chief=index == 0,
    checkpoint_dir=os.environ["SHOAL_CHECKPOINT_DIR"],
    save_checkpoint_secs=1,
    hooks=hooks,
    config=filters,
) as session:
    first = True
    while not session.should_stop():
        at, value = session.run([step, loss, train], {x: np.ones([8, 4], dtype=np.float32)})[:2]
        if first:
            print(f"worker {index} begins at step {at} with {len(config['cluster']['ps'])} ps", flush=True)
            first = False
        time.sleep(0.2 if options.gate.exists() else 0.0)
print(f"worker {index} ends at step {at}, loss {value:.4f}", flush=True)
