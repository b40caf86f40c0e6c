"""The store that torchrun's agents share in one generation.

torchrun's agent waits in it for its peers: for their roles when a world begins, for their end when its own processes
have succeeded. A wait inside C++ would outlast the world (minutes, when a peer has died), and no signal is handled
meanwhile. So every wait is cut into short ones, and ends with an error when the world has changed.
"""

import time
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistStoreError

SLICE = timedelta(seconds=0.2)
"""A key that is set ends a wait at once; only a changed world is noticed this late."""
_PREFIX = "torchrun/agents"
"""Keeps the agents' keys apart from those of the training processes in the same store."""


class GenerationStore(Store):
    """A view of the generation's TCPStore. `why_over` says why the generation is over, or None."""

    def __init__(self, store: Store, why_over: Callable[[], str | None]) -> None:
        super().__init__()
        self._store = PrefixStore(_PREFIX, store)
        self._why_over = why_over

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(key, value)  # type: ignore[arg-type]  # torch's stub forgets bytes

    def add(self, key: str, amount: int) -> int:
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._store.get(key)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.wait(keys)
        return self._store.multi_get(keys)

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._store.set(key, value)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        limit: timedelta = self.timeout if timeout is None else timeout  # type: ignore[attr-defined]  # nor this
        deadline = time.monotonic() + limit.total_seconds()
        while not self._appears(keys):
            why = self._why_over()
            if why is not None:
                raise DistStoreError(f"the world has changed while waiting for {', '.join(keys)}: {why}")
            if time.monotonic() >= deadline:
                raise DistStoreError(f"{', '.join(keys)}: not set within {limit.total_seconds():g} s")

    def _appears(self, keys: list[str]) -> bool:
        try:
            self._store.wait(keys, SLICE)
        except DistStoreError:
            return False
        return True
