"""The bootstrap store of one generation: c10d's store interface over the words between process and agent.

C++ calls it while it builds a process group: it sets this rank's address, then waits for everybody's. What is set
before the first wait travels with this process's acknowledgement; the commit brings all members' values at once, so
a group costs one round trip to bootstrap. What is set later (NCCL does so) is sent on by itself and pushed to all.
A waiter whose generation is over gets an error, which ends the build.
"""

from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import Store

from shoal.trainer.session import Session


class GenerationOver(RuntimeError):
    """The generation of this store was given up; C++ passes it on as a failed build."""


class BootstrapStore(Store):
    def __init__(self, session: Session, generation: int) -> None:
        super().__init__()
        self._session = session
        self._inbox = session.inbox
        self._generation = generation
        self._mine: dict[str, bytes] = {}
        self._acknowledged = False

    def acknowledge(self) -> None:
        """Say that this process is prepared, with what C++ has set so far. Safe to repeat."""
        with self._inbox.changed:
            if self._acknowledged:
                return
            self._acknowledged = True
            mine = dict(self._mine)
        self._session.acknowledge(self._generation, mine)

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._inbox.changed:
            self._mine[key] = data
            late = self._acknowledged
        if late:
            self._session.store_set(self._generation, key, data)

    def get(self, key: str) -> bytes:
        self._await(lambda: self._find(key) is not None)
        found = self._find(key)
        assert found is not None
        return found

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Ends when the keys are there or the generation is over: a time-out would only hide which."""
        self._await(lambda: all(self._find(key) is not None for key in keys))

    def check(self, keys: list[str]) -> bool:
        with self._inbox.changed:
            return all(self._find(key) is not None for key in keys)

    def _find(self, key: str) -> bytes | None:
        if self._inbox.committed == self._generation and key in self._inbox.store:
            return self._inbox.store[key]
        return self._mine.get(key)

    def _await(self, condition: Callable[[], bool]) -> None:
        self.acknowledge()
        inbox, generation = self._inbox, self._generation
        with inbox.changed:
            inbox.changed.wait_for(
                lambda: inbox.is_broken(generation) or (inbox.committed == generation and condition())
            )
            if inbox.is_broken(generation):
                raise GenerationOver(f"generation {generation} was given up")
