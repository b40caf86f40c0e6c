"""Imported once by the process from which tests fork their nodes."""

import tensorflow.compat.v1 as tf

tf.get_logger().setLevel("ERROR")
