"""A master and agents in one object, for training processes that are real.

It listens on one Unix socket per node, as agents do, and answers with what `shoal.core.world` decides, as the master
does. A node here has one training process; when that process's connection ends, the node is lost.
"""

import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from shoal.core import world as w
from shoal.core.nodes import NodeId
from shoal.wire import local as lo
from shoal.wire import messages as m

PATIENCE = 200
"""Seconds until something that was to happen counts as not happening: for machines with much else to do."""


class Hub:
    def __init__(self, directory: Path, *, max_nodes: int, min_nodes: int = 1) -> None:
        self.changed = threading.Condition()
        self.worlds: list[w.World] = []
        self.resized: dict[str, list[lo.LocalResized]] = {}
        self.reports: dict[str, list[lo.Report]] = {}
        self.breaks: list[w.Pause | w.Interrupt] = []
        self.dismissed: list[str] = []
        self.released = False
        self._directory = directory
        self._max_nodes = max_nodes
        self._rendezvous = w.Rendezvous(settings=w.WorldSettings(min_nodes=min_nodes, max_nodes=max_nodes))
        self._links: dict[str, socket.socket] = {}
        self._servers: list[socket.socket] = []
        self._admitted: set[str] = set()
        self._waiting: dict[str, int | None] = {}

    def add(self, node: str, *, admit: bool = True) -> str:
        """Expect a node; returns its agent socket. One that is not admitted may attach but is in no world yet."""
        path = str(self._directory / f"{node}.sock")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(path)
        server.listen(1)
        self._servers.append(server)
        threading.Thread(target=self._serve, args=(node, server), daemon=True).start()
        if admit:
            self.admit(node)
        return path

    def admit(self, *nodes: str) -> None:
        with self.changed:
            for node in nodes:
                self._admitted.add(node)
                known = self._rendezvous.members.get(NodeId(node))
                incarnation = 1 if known is None else known.incarnation + 1
                self._do(w.expect(self._rendezvous, NodeId(node), incarnation, awaited=True, now=_now()))
            for node in nodes:
                if node in self._waiting:
                    self._ready(node, self._waiting.pop(node))

    def leave(self, *nodes: str) -> None:
        with self.changed:
            self._do(w.leave(self._rendezvous, [NodeId(n) for n in nodes], now=_now()))

    def wait_for(self, condition: Callable[["Hub"], object], timeout: float = PATIENCE) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self), timeout), f"never came: {self._rendezvous}"

    def has_waiting(self, *nodes: str) -> bool:
        """These nodes attached and are ready, but were not admitted."""
        return all(node in self._waiting for node in nodes)

    def close(self) -> None:
        for each in (*self._servers, *self._links.values()):
            each.close()

    # One thread per node ---------------------------------------------------------------------------------

    def _serve(self, node: str, server: socket.socket) -> None:
        try:
            link, _ = server.accept()
        except OSError:
            return
        self._links[node] = link
        try:
            while True:
                (length,) = lo.HEADER.unpack(_read(link, lo.HEADER.size))
                self._handle(node, lo.process_decoder.decode(_read(link, length)))
        except (OSError, EOFError):
            with self.changed:
                self._admitted.discard(node)
                self._waiting.pop(node, None)
                self._do(w.lost(self._rendezvous, NodeId(node), now=_now(), reason=f"{node} is gone"))

    def _handle(self, node: str, message: lo.FromProcess) -> None:
        with self.changed:
            match message:
                case lo.Attach():
                    self._send(
                        node,
                        lo.Attached(
                            job="test", node=node, incarnation=1, address="127.0.0.1", max_workers=self._max_nodes
                        ),
                    )
                case lo.LocalReady(step=step) if node in self._admitted:
                    self._ready(node, step)
                case lo.LocalReady(step=step):
                    self._waiting[node] = step
                case lo.LocalAck(generation=generation, store=store):
                    incarnation = self._incarnation(node)
                    self._do(w.acked(self._rendezvous, NodeId(node), incarnation, generation, store=store, now=_now()))
                case lo.LocalFinished(generation=generation):
                    self._do(
                        w.finished(self._rendezvous, NodeId(node), self._incarnation(node), generation, now=_now())
                    )
                case lo.Report():
                    self.reports.setdefault(node, []).append(message)
                case lo.LocalResized():
                    self.resized.setdefault(node, []).append(message)
                case lo.CheckpointsWanted():
                    self._send(node, lo.Checkpoints(memory=(), directory=None))
                case lo.SlotWanted():
                    self._send(node, lo.SlotRefused(reason="no memory here", directory=None, keep=1))
                case lo.SlotsWanted():
                    self._send(node, lo.SlotsMade(paths=()))
                case lo.Saved():
                    pass
                case lo.LocalPeerClosed() | lo.LocalStoreSet():
                    pass  # the loss itself is seen at once here; gloo sets nothing after the commit
            self.changed.notify_all()

    def _ready(self, node: str, step: int | None) -> None:
        self._do(
            w.ready(
                self._rendezvous,
                NodeId(node),
                self._incarnation(node),
                address="127.0.0.1",
                steps=(step,),
                now=_now(),
            )
        )

    def _incarnation(self, node: str) -> int:
        known = self._rendezvous.members.get(NodeId(node))
        return 0 if known is None else known.incarnation

    def _do(self, step: w.Step) -> None:
        self._rendezvous, notices = step
        for notice in notices:
            self._tell(notice)
        self.changed.notify_all()

    def _tell(self, notice: w.Notice) -> None:
        match notice:
            case w.Prepare(world):
                self._send_all((x.node for x in world.members), m.Prepare(world=world))
            case w.Commit(world, store):
                self.worlds.append(world)
                message = m.Commit(generation=world.generation, store=dict(store))
                self._send_all((x.node for x in world.members), message)
            case w.Pause(generation, to, reason):
                self.breaks.append(notice)
                self._send_all(to, m.Pause(generation=generation, reason=reason))
            case w.Interrupt(generation, to, reason):
                self.breaks.append(notice)
                self._send_all(to, m.Interrupt(generation=generation, reason=reason))
            case w.Release(generation, to):
                self.released = True
                self._send_all(to, m.Release(generation=generation))
            case w.Dismiss(node):
                self.dismissed.append(node)
                self._admitted.discard(node)
                self._waiting[node] = None  # it may be admitted again; what it holds is old by then

    def _send_all(self, nodes: "object", message: msgspec.Struct) -> None:
        for node in nodes:  # type: ignore[attr-defined]
            self._send(node, message)

    def _send(self, node: str, message: msgspec.Struct) -> None:
        try:
            self._links[node].sendall(lo.frame(message))
        except OSError:
            pass  # it died; its reader says so


def _read(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = link.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _now() -> datetime:
    return datetime.now(UTC)
