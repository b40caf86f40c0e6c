"""A process group whose collectives never block the process.

`start` and `broadcast` only begin a collective. `drain` waits until all that were begun are done, or the world is over,
whichever is first, on the inbox's condition; in C++ nobody ever waits. A collective that fails because a peer died is
reported to the agent at once and is then waited for like one that hangs: only the agent's word ends a world.

An old group may still have a collective in C++ that ends only when some peer's sockets close; its destructor waits for
that (without holding the interpreter). So old groups are let go in threads of their own: `bury`.

The last group is let go too before the process ends, and waited for. The library's threads drop what a collective held
some time after it is done; one that did so while the interpreter ends would abort the process.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from shoal.trainer.inbox import Inbox, WorldChanged

OPERATION_TIMEOUT = timedelta(hours=24)
"""For C++ only. Who is gone is the agent's to say; a peer that evaluates for an hour must not look like a dead one."""

Done = Callable[[str | None], None]
"""Called once when a collective ended: None, or what went wrong."""


class Backend(Protocol):
    """The difference between gloo and NCCL."""

    group: Any

    def watch(self, work: Any, done: Done) -> None:
        """Call `done` when the work is finished: its result is in memory, not merely ordered on a stream."""

    def abort(self) -> None:
        """Give up what is under way, where the library can."""


class GlooBackend:
    """CPU tensors. Its abort wakes nobody, so nothing is called: what hangs is left behind."""

    def __init__(self, store: Store, rank: int, size: int, address: str) -> None:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = OPERATION_TIMEOUT
        self.group: Any = dist.ProcessGroupGloo(store, rank, size, options)

    def watch(self, work: Any, done: Done) -> None:
        def callback(future: Any) -> None:
            try:
                future.value()
            except RuntimeError as exc:
                done(str(exc))
            else:
                done(None)

        work.get_future().add_done_callback(callback)

    def abort(self) -> None:
        pass


class NcclBackend:
    """CUDA tensors. A work's future is done when the kernel is queued, so a thread waits for the device instead."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = OPERATION_TIMEOUT
        self.group: Any = dist.ProcessGroupNCCL(store, rank, size, options)

    def watch(self, work: Any, done: Done) -> None:
        device = torch.cuda.current_device()

        def wait() -> None:
            try:
                with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
                    work.wait()
                    torch.cuda.current_stream().synchronize()
            except RuntimeError as exc:
                done(str(exc))
            else:
                done(None)

        threading.Thread(target=wait, name="shoal-collective", daemon=True).start()

    def abort(self) -> None:
        self.group.abort()


class _Flight:
    """Collectives under way. Separate from the group: a completion that held the group might be the last to hold it,
    and its destructor would then run in, and wait for, the completion's own thread."""

    def __init__(self, inbox: Inbox, report: Callable[[str], None]) -> None:
        self._changed = inbox.changed
        self._report = report
        self.under_way = 0
        self.failure: str | None = None

    def begin(self) -> None:
        with self._changed:
            self.under_way += 1

    def done(self, failure: str | None) -> None:
        with self._changed:
            self.under_way -= 1
            first = failure is not None and self.failure is None
            if first:
                self.failure = failure
            if self.under_way == 0:
                self._changed.notify_all()
        if first and failure is not None:
            self._report(failure)


class Group:
    """The members of one world, seen from one of them. Without a backend it is a world of one."""

    def __init__(
        self,
        *,
        generation: int,
        rank: int,
        size: int,
        inbox: Inbox,
        device: torch.device,
        backend: Backend | None = None,
        report: Callable[[str], None] = lambda detail: None,
    ) -> None:
        assert backend is not None or size == 1
        self.generation = generation
        self.rank = rank
        self.size = size
        self.device = device
        self.entered = 0
        """How many collectives this process has entered in this world; tells a hanging rank from the waiting ones."""
        self._inbox = inbox
        self._backend = backend
        self._flight = _Flight(inbox, report)

    def start(self, tensor: Tensor) -> None:
        """Begin to sum the tensor over all members, in place. It must not be touched until `drain` returns."""
        self.entered += 1
        if self._backend is not None:
            self._launch(lambda group: group.allreduce([tensor]))

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Begin to overwrite the tensor with the source's."""
        self.entered += 1
        if self._backend is not None:
            options = dist.BroadcastOptions()
            options.rootRank = source
            self._launch(lambda group: group.broadcast([tensor], options))

    def drain(self) -> None:
        """Wait for everything begun. Raises `WorldChanged` if the world ends before."""
        flight, inbox = self._flight, self._inbox
        with inbox.changed:
            while flight.under_way or flight.failure is not None:
                if inbox.is_broken(self.generation):
                    raise WorldChanged(inbox.reason)
                inbox.changed.wait()

    def raise_if_broken(self) -> None:
        if self._inbox.is_broken(self.generation):
            raise WorldChanged(self._inbox.reason)

    @property
    def is_pausing(self) -> bool:
        return self._inbox.is_pausing(self.generation)

    @property
    def is_busy(self) -> bool:
        """Collectives are under way, and may still write into their tensors."""
        return self._flight.under_way > 0

    def bury(self) -> threading.Thread:
        """Let the group go, in a thread: the library's destructor may have to wait for peers.

        The thread must be the last to hold it, so no variable of this one does: only a list that the thread empties.
        """
        last, self._backend = [self._backend], None
        thread = threading.Thread(target=_let_go, args=(last,), name="shoal-old-group", daemon=True)
        thread.start()
        return thread

    def _launch(self, begin: Callable[[Any], Any]) -> None:
        backend, flight = self._backend, self._flight
        assert backend is not None
        flight.begin()
        try:
            work = begin(backend.group)
        except RuntimeError as exc:
            flight.done(str(exc))
        else:
            backend.watch(work, flight.done)


def _let_go(last: list[Backend | None]) -> None:
    backend = last.pop()
    if backend is not None:
        backend.abort()
