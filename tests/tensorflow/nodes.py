"""Real TensorFlow processes for tests, forked from one that has TensorFlow imported (0.3 s instead of 9)."""

import importlib
import multiprocessing
import os
import resource
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # servers die here on purpose, and TensorFlow has much to say then
context: Any = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.tensorflow.preloaded"])


@dataclass
class PS:
    """A parameter server in a process of its own."""

    process: Any
    address: str

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def start_ps(count: int, *, can_write: bool = True) -> list[PS]:
    """So many parameter servers, started side by side."""
    started = []
    for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=_be_ps, args=(theirs, can_write), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    return [PS(process, pipe.recv()) for process, pipe in started]


def _be_ps(pipe: Connection, can_write: bool) -> None:
    from shoal.tensorflow.servers import boot, serve

    if not can_write:  # for root too, who may write anywhere
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    pipe.send(boot().address)
    serve(threading.Event())


def in_worker(scenario: str, *args: Any) -> Any:
    """What a function of `scenarios` returns, in a new process that has TensorFlow; or what it raises. The process of
    the tests itself never imports it."""
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_run, scenario, *args).result()


def _run(scenario: str, *args: Any) -> Any:
    return getattr(importlib.import_module("tests.tensorflow.scenarios"), scenario)(*args)
