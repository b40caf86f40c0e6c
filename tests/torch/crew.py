"""Training processes for tests: forked from a server that has torch imported, so that each starts in milliseconds.

A process runs one function of `scripts` with a `Wire` as its first argument: it tells what it does (`tell`), and can
stop at a gate until the test opens it (`gate`). The test side keeps everything told, in order, per worker.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.torch.hub import PATIENCE, Hub

_context = multiprocessing.get_context("forkserver")
# An optimizer's first use imports torch._dynamo, which takes longer than all the rest.
_context.set_forkserver_preload(["torch", "torch._dynamo", "shoal.torch"])


def dismiss() -> None:
    """End the server, and what counts resources for it: they would stay as long as the tests run, also those of others,
    who want to see that they leave no child. The standard library's own tests do it so."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


class Wire:
    """The process's end."""

    def __init__(self, connection: Connection, node: str) -> None:
        self._connection = connection
        self.node = node

    def tell(self, what: str, *values: Any) -> None:
        self._connection.send((what, *values))

    def gate(self, name: Any) -> None:
        self._connection.send(("gate", name))
        self._connection.recv()


class Worker:
    """The test's end."""

    def __init__(self, crew: "Crew", node: str, output: Path) -> None:
        self.node = node
        self.output = output
        self.log: list[tuple[Any, ...]] = []
        self.process: Any = None
        self._crew = crew

    def told(self, what: str) -> list[Any]:
        """All that it told under this word: bare values when there was one each."""
        found = [entry[1:] for entry in self.log if entry[0] == what]
        return [entry[0] if len(entry) == 1 else entry for entry in found]

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)

    def exit_code(self) -> int:
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, f"{self.node} did not end"
        return int(self.process.exitcode)

    def printed(self) -> str:
        return self.output.read_text()


class Crew:
    """All processes of one test, and the hub they talk to."""

    def __init__(self, directory: Path, *, max_nodes: int, min_nodes: int = 1) -> None:
        self.hub = Hub(directory, max_nodes=max_nodes, min_nodes=min_nodes)
        self.workers: dict[str, Worker] = {}
        self.changed = threading.Condition()
        self._directory = directory
        self._open: set[Any] = set()
        self._at: dict[Any, list[Connection]] = {}

    def start(self, script: Callable[..., None], nodes: list[str], *, admit: bool = True, **options: Any) -> None:
        paths = {node: self.hub.add(node, admit=False) for node in nodes}
        if admit:
            self.hub.admit(*nodes)  # all are expected before the first is there: one world, not several
        for node in nodes:
            self.start_one(script, node, {"SHOAL_AGENT_SOCKET": paths[node]}, **options)

    def start_one(self, script: Callable[..., None], node: str, environ: dict[str, str], **options: Any) -> Worker:
        worker = self.workers[node] = Worker(self, node, self._directory / f"{node}.out")
        ours, theirs = _context.Pipe()
        worker.process = _context.Process(
            target=_main, args=(script, theirs, node, str(worker.output), environ, options), daemon=True
        )
        worker.process.start()
        theirs.close()
        threading.Thread(target=self._listen, args=(worker, ours), daemon=True).start()
        return worker

    def wait_gate(self, name: Any, count: int = 1) -> None:
        """Until so many processes stand at the gate."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self._at.get(name, [])) >= count, PATIENCE):
                raise AssertionError(f"nobody came to gate {name}: " + self.everything_printed())

    def open_gate(self, name: Any) -> None:
        with self.changed:
            self._open.add(name)
            for connection in self._at.pop(name, []):
                _go(connection)

    def wait_told(self, node: str, what: str, count: int = 1) -> None:
        with self.changed:
            worker = self.workers[node]
            if not self.changed.wait_for(lambda: len(worker.told(what)) >= count, PATIENCE):
                raise AssertionError(f"{node} never told {what}: " + self.everything_printed())

    def finish(self, *nodes: str) -> None:
        """These processes end well."""
        for node in nodes or tuple(self.workers):
            worker = self.workers[node]
            worker.process.join(PATIENCE)
            assert worker.process.exitcode == 0, f"{node}: {worker.process.exitcode}\n{self.everything_printed()}"
            with self.changed:
                assert self.changed.wait_for(lambda w=worker: w.log and w.log[-1] == ("end",), PATIENCE)

    def everything_printed(self) -> str:
        return "\n".join(f"--- {w.node}\n{w.printed()}" for w in self.workers.values() if w.output.exists())

    def close(self) -> None:
        for worker in self.workers.values():
            worker.process.kill()
            worker.process.join()
            worker.process.close()
        self.hub.close()

    def _listen(self, worker: Worker, connection: Connection) -> None:
        while True:
            try:
                entry = connection.recv()
            except (EOFError, OSError):
                entry = ("end",)
            with self.changed:
                if entry[0] == "gate" and entry[1] in self._open:
                    _go(connection)
                elif entry[0] == "gate":
                    self._at.setdefault(entry[1], []).append(connection)
                else:
                    worker.log.append(entry)
                self.changed.notify_all()
            if entry == ("end",):
                connection.close()
                return


def _go(connection: Connection) -> None:
    try:
        connection.send("go")
    except OSError:
        pass  # it died at the gate


def _main(
    script: Callable[..., None],
    connection: Connection,
    node: str,
    output: str,
    environ: dict[str, str],
    options: dict[str, Any],
) -> None:
    import torch

    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.update(environ)
    torch.set_num_threads(1)
    script(Wire(connection, node), **options)
