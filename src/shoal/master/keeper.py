"""The master's records: what it has decided is written down before it is acted upon.

One owner of the `StateStore`. `keep` is given the job as it is and writes what has changed since the last time;
when the records have grown long, a snapshot takes their place. A store that cannot write does not stop the job: it
is said once, and a snapshot is tried again until one is taken. Where all of it has no room it goes without statistics.

A store with a `pace` gets snapshots only: at once when somebody is about to be told of a decision or when nobody could
tell a new master of the change, else in that pace. What is written late is what agents say again: they keep their
reports until `keep` has answered that they are written (`Desk` in the agent).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from shoal.core import journal
from shoal.core.errors import StateTaken, StateTooLarge, StateUnavailable, StateUnreadable
from shoal.core.job import Job
from shoal.core.ports import Claimed, Clock, StateStore

log = logging.getLogger("shoal.master")

MINOR_SECONDS = timedelta(seconds=1)
"""Progress alone is written at most so often."""
RETRY = timedelta(seconds=5)
"""Between tries to write again after the store could not."""
PATIENCE = timedelta(seconds=60)
"""A store in trouble for longer keeps nobody at its end waiting, whatever becomes of its last word."""
CLAIM_RETRY_SECONDS = 0.5
COMPACT_BYTES = 256 * 1024
"""So many bytes of changes, and four times the snapshot's, make a new snapshot worth while."""


class Keeper:
    def __init__(self, store: StateStore, clock: Clock, *, changed: Callable[[str | None], None]) -> None:
        """`changed` is called when trouble begins (with the reason) and when it ends (with None)."""
        self._store = store
        self._clock = clock
        self._changed = changed
        self._written: Job | None = None
        self._snapshot_bytes = 0
        self._change_bytes = 0
        self._last = clock.now()
        self._trouble_at: datetime | None = None
        self._trouble_since: datetime | None = None
        self._is_claimed = False
        self._has_no_room = False
        self.trouble: str | None = None
        self.term = 0

    async def claim(self, *, must_exist: bool = False, patience: float = 0.0) -> tuple[Claimed, Job | None]:
        """Take the job's state over: what was found, and the job that it tells of.

        A new job goes on without a store that cannot be used; one that must exist does not, but may come back within
        `patience` seconds; nor does one whose store has a pace: nobody can tell whether it is new. Raises as
        `StateStore.claim` does.
        """
        try:
            claimed = await self._claimed(patience)
            self._is_claimed = True
        except StateUnavailable as exc:
            if must_exist or self._store.pace:
                raise
            claimed = Claimed(term=1, trouble=str(exc))
        self.term = claimed.term
        if claimed.lost is not None:
            log.warning("%s", claimed.lost)
        job = journal.replay(claimed.records)
        if job is None and must_exist:
            raise StateUnreadable("the job's state is gone: there is nothing to take over")
        if claimed.trouble is not None:
            self._fail(claimed.trouble)
        return claimed, job

    async def _claimed(self, patience: float) -> Claimed:
        until = asyncio.get_running_loop().time() + patience
        told = False
        while True:
            try:
                return await self._store.claim()
            except StateUnavailable as exc:
                if asyncio.get_running_loop().time() >= until:
                    raise
                if not told:
                    log.warning("%s; trying again for %g s", exc, patience)
                told = True
                await asyncio.sleep(CLAIM_RETRY_SECONDS)

    async def raise_term(self, term: int) -> bool:
        """Own the state under a higher term; False: that cannot be written now. Raises `Superseded`."""
        try:
            await self._store.raise_term(term)
        except StateUnavailable as exc:
            self._fail(str(exc))
            return False
        self.term = term
        return True

    @property
    def replays(self) -> bool:
        """What agents say is not written down before they are answered: they are told later that it is."""
        return bool(self._store.pace)

    @property
    def pace(self) -> timedelta:
        """Of the store."""
        return self._store.pace

    async def keep(self, job: Job, *, at_once: bool = True) -> bool:
        """Write what has changed; `at_once`: somebody is about to act upon it. Raises `Superseded`; nothing else.

        Returns whether nobody needs to say what the job knows again: it is written, or the store is one that is given
        up with its master when it cannot be written.
        """
        if self._store.pace:
            return await self._keep_in_pace(job, at_once)
        await self._keep_all(job)
        return True

    async def _keep_in_pace(self, job: Job, at_once: bool) -> bool:
        now = self._clock.now()
        if self._trouble_at is not None and now - self._trouble_at < RETRY:
            return False
        if self._written is not None and self.trouble is None:
            change = journal.change(self._written, job)
            if change is None:
                return True
            if not at_once and change.is_replayed and now - self._last < self._store.pace:
                return False
        await self._compact(job)
        return self.trouble is None

    @property
    def is_in_lasting_trouble(self) -> bool:
        """Nothing could be written for so long that whoever is about to end need not wait for it."""
        return self._trouble_since is not None and self._clock.now() - self._trouble_since > PATIENCE

    @property
    def written(self) -> Job | None:
        """What another master would go on from; None: nothing is written yet, as far as this one knows."""
        return self._written

    @property
    def is_away(self) -> bool:
        """Nothing can be written now, and another master would go on from what was. A state that has no room is not
        worth waiting for: it will not shrink."""
        return self.replays and self.trouble is not None and not self._has_no_room

    @property
    def may_be_back_soon(self) -> bool:
        """Nothing can be written now, another master would go on from what was, and it is worth waiting."""
        return self.replays and self.trouble is not None and not self.is_in_lasting_trouble

    async def _keep_all(self, job: Job) -> None:
        now = self._clock.now()
        if self.trouble is not None:
            if self._trouble_at is not None and now - self._trouble_at < RETRY:
                return
            await self._compact(job)
            return
        if self._written is None or self._is_long:
            await self._compact(job)
            return
        change = journal.change(self._written, job)
        if change is None or (change.is_minor and now - self._last < MINOR_SECONDS):
            return
        try:
            await self._store.append(change.record)
        except StateUnavailable as exc:
            self._fail(str(exc))
            return
        self._written, self._last = job, now
        self._change_bytes += len(change.record)

    @property
    def _is_long(self) -> bool:
        return self._change_bytes > max(COMPACT_BYTES, 4 * self._snapshot_bytes)

    async def _claim_again(self) -> None:
        """The store could not be used when the job began. Raises `StateUnavailable` also when it is another job's."""
        try:
            claimed = await self._store.claim()
        except (StateTaken, StateUnreadable) as exc:
            raise StateUnavailable(str(exc)) from exc
        if claimed.records:
            await self._store.close()
            raise StateUnavailable("the store holds the state of another job, which is left as it is")
        if claimed.term < self.term:
            await self._store.raise_term(self.term)
        self.term, self._is_claimed = max(self.term, claimed.term), True

    async def _compact(self, job: Job) -> None:
        try:
            if not self._is_claimed:
                await self._claim_again()
            size = await self._snapshot(job)
        except StateUnavailable as exc:
            self._has_no_room = isinstance(exc, StateTooLarge)
            self._fail(str(exc))
            return
        self._written, self._last = job, self._clock.now()
        self._snapshot_bytes, self._change_bytes = size, 0
        if self.trouble is not None:
            self.trouble = self._trouble_at = self._trouble_since = None
            self._changed(None)

    async def _snapshot(self, job: Job) -> int:
        """Write all of it, or all but the statistics, which nobody's training depends on; its size."""
        snapshot = journal.snapshot(job)
        try:
            await self._store.compact(snapshot)
        except StateTooLarge:
            if not job.statistics:
                raise
            snapshot = journal.snapshot(replace(job, statistics=b""))
            await self._store.compact(snapshot)
        return len(snapshot)

    def _fail(self, reason: str) -> None:
        self._trouble_at = self._clock.now()
        if self.trouble is None:
            self.trouble, self._trouble_since = reason, self._trouble_at
            self._changed(reason)

    async def close(self) -> None:
        await self._store.close()
