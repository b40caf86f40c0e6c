"""A job's state in memory: as strict as the others, and gone with the process."""

from dataclasses import dataclass, field
from datetime import timedelta

from shoal.core.errors import StateUnavailable, Superseded
from shoal.core.ports import Claimed


@dataclass(slots=True)
class MemoryState:
    """What several `MemoryStore`s of one job share, as several processes share a directory."""

    term: int = 0
    records: list[bytes] = field(default_factory=list)
    trouble: str | None = None
    """Set by a test: from now on nothing can be written, for this reason."""


class MemoryStore:
    def __init__(self, state: MemoryState, *, pace: timedelta = timedelta(0)) -> None:
        self._state = state
        self.pace = pace
        self._term = 0
        self._is_whole = True

    async def claim(self) -> Claimed:
        self._state.term += 1
        self._term = self._state.term
        self._is_whole = self._state.trouble is None
        return Claimed(term=self._term, records=tuple(self._state.records), trouble=self._state.trouble)

    async def append(self, record: bytes) -> None:
        self._check()
        if not self._is_whole:
            raise StateUnavailable("records are missing since the last trouble")
        self._state.records.append(record)

    async def compact(self, snapshot: bytes) -> None:
        self._check()
        self._is_whole = True
        self._state.records[:] = [snapshot]

    async def raise_term(self, term: int) -> None:
        self._check()
        self._state.term = self._term = term

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if self._state.term != self._term:
            raise Superseded(f"term {self._term} was superseded by {self._state.term}")
        if self._state.trouble is not None:
            self._is_whole = False
            raise StateUnavailable(self._state.trouble)
