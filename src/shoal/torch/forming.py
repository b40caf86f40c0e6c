"""Entering the next world: ready, prepare, acknowledge, commit, and a process group at the end.

The group is built in a helper thread, because building blocks in C++. The main thread waits for it, or for the news
that this generation is given up; then it leaves the thread behind and goes on to the next generation. Before the
commit a newer prepare supersedes this one; after it only an interrupt does, and then the process has to say ready
again.
"""

import threading
from collections.abc import Callable

import torch
import torch.distributed as dist

from shoal.core.world import World
from shoal.torch.group import Backend, GlooBackend, Group, NcclBackend
from shoal.torch.store import BootstrapStore
from shoal.trainer.session import Session


def enter_world(session: Session, *, step: int | None, after: int, device: torch.device) -> tuple[World, Group]:
    """Say ready with the last committed step, and come back in a committed world newer than `after`."""
    inbox = session.inbox
    session.ready(step)
    while True:
        world = session.wait_prepared(after=after)
        after = world.generation
        group = _build(session, world, device)
        if group is not None:
            return world, group
        with inbox.changed:
            inbox.changed.wait_for(lambda: inbox.is_broken(after))  # noqa: B023
            interrupted = inbox.interrupted >= after
        if interrupted:
            session.ready(step)


def _build(session: Session, world: World, device: torch.device) -> Group | None:
    """The group of this generation; None: it was given up, or a connection in it failed (which has been reported)."""
    inbox, generation = session.inbox, world.generation
    store = BootstrapStore(session, generation)
    rank, address = session.rank_in(world), session.attached.address
    attempt = _Attempt(lambda: _backend(store, rank, world.size, address, device), inbox.changed)
    attempt.start()
    with inbox.changed:
        inbox.changed.wait_for(
            lambda: (
                inbox.is_broken(generation)
                or (attempt.done and (attempt.error is not None or inbox.committed == generation))
            )
        )
        if inbox.is_broken(generation):
            return None
        committed = inbox.committed == generation
    if attempt.error is not None:
        if not committed:
            raise attempt.error  # nothing of a peer's was involved yet: the next attempt would fail alike
        session.peer_closed(generation, str(attempt.error))
        return None
    return Group(
        generation=generation,
        rank=rank,
        size=world.size,
        inbox=inbox,
        device=device,
        backend=attempt.backend,
        report=lambda detail: session.peer_closed(generation, detail),
    )


def _backend(store: BootstrapStore, rank: int, size: int, address: str, device: torch.device) -> Backend | None:
    backend: Backend | None = None
    if size > 1 and device.type == "cuda":
        backend = NcclBackend(store, rank, size)
    elif size > 1:
        backend = GlooBackend(store, rank, size, address)
    store.acknowledge()  # gloo has asked for its peers, which did it; NCCL and a world of one have not
    return backend


class _Attempt(threading.Thread):
    """One try at building a backend."""

    def __init__(self, build: Callable[[], Backend | None], changed: threading.Condition) -> None:
        super().__init__(name="shoal-build", daemon=True)
        self._build = build
        self._changed = changed
        self.done = False
        self.backend: Backend | None = None
        self.error: RuntimeError | None = None

    def run(self) -> None:
        backend, error = None, None
        try:
            backend = self._build()
        except (RuntimeError, dist.DistError) as exc:
            error = exc
        with self._changed:
            self.backend, self.error, self.done = backend, error, True
            self._changed.notify_all()
