"""TensorFlow servers that are started once and never again.

`tf.distribute.Server` knows its cluster for life, and a second one in the same process leaks its threads. So each
process boots one server in a throw-away cluster that has nobody else in it, and every *session* brings the real cluster
along (`sessions`). For this, sessions have to share variables, which TensorFlow does only where
`share_session_state_in_clusterspec_propagation` is understood: `boot` tries it, for without it each worker would train
a model of its own and nothing would say so.

A parameter server has nothing to do but to wait for its end (`serve`). It does not wait in `Server.join`: there, Python
never gets to see a signal.
"""

import os
import signal
import threading
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf

from shoal.core.errors import BadInput

BOOT_JOB = "boot"
"""No session may use this name for a job of its cluster."""
_PROBE = "shoal-probe"


class Server:
    """This process's server. `address` is what others reach it by."""

    def __init__(self, server: Any, host: str) -> None:
        self._server = server  # it ends when nothing refers to it
        self.target: str = server.target
        """For sessions of this process."""
        self.address = f"{host}:{self.target.rpartition(':')[2]}"


def boot(host: str = "localhost", port: int = 0) -> Server:
    """Start this process's server; `port` 0: any that is free. Raises `BadInput` when it cannot be.

    To be called before anything else of TensorFlow opens a connection: a client that is to fail at once when a server
    is gone has to be told so before the first one exists.
    """
    os.environ["GRPC_FAIL_FAST"] = "true"
    try:
        server = tf.distribute.Server({BOOT_JOB: [f"{host}:{port}"]}, job_name=BOOT_JOB, task_index=0)
    except tf.errors.OpError as exc:
        raise BadInput(f"a TensorFlow server cannot listen on {host}:{port}: {exc.message}") from exc
    booted = Server(server, host)
    if not shares_state(booted):
        raise BadInput(
            f"sessions of TensorFlow {tf.__version__} do not share variables when they bring their cluster along "
            "(share_session_state_in_clusterspec_propagation), so parameter servers cannot be elastic with it; "
            "install shoal[tensorflow], which names the versions that do"
        )
    return booted


def session_config(jobs: dict[str, dict[int, str]], *, shared: bool = True) -> Any:
    """What a session needs to bring its cluster along: tasks by job and number, with their addresses."""
    config = tf.ConfigProto()
    for name, tasks in sorted(jobs.items()):
        assert name != BOOT_JOB, "the server booted under this name; a session's cluster needs others"
        job = config.cluster_def.job.add(name=name)
        for number, address in sorted(tasks.items()):
            job.tasks[number] = address
    config.experimental.share_session_state_in_clusterspec_propagation = shared
    return config


def shares_state(server: Server, *, config: Any = None) -> bool:
    """Whether a variable that one session sets is there in another."""
    config = config or session_config({"probe": {0: server.address}})
    graph = tf.Graph()
    with graph.as_default(), graph.container(_PROBE), tf.device("/job:probe/task:0"):
        variable = tf.get_variable(
            "shared", shape=[], dtype=tf.int64, use_resource=True, initializer=tf.ones_initializer()
        )
        is_set = tf.is_variable_initialized(variable)
    try:
        with tf.Session(server.target, graph=graph, config=config) as session:
            session.run(variable.initializer)
        with tf.Session(server.target, graph=graph, config=config) as session:
            return bool(session.run(is_set))
    finally:
        tf.Session.reset(server.target, [_PROBE])


def serve(stop: threading.Event) -> NoReturn:
    """Be a parameter server until `stop` is set or the process is asked to end (SIGTERM, SIGINT).

    The server's own threads do all the work. It is left without ceremony: its threads cannot be joined, and what it
    holds is on other servers by now, or in a checkpoint.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
    os._exit(0)
