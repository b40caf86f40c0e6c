"""Who of several processes may act: a Lease, and a clock of one's own.

The Lease object names its holder. A holder renews it; whoever sees it unchanged for as long as it was taken for may
take it over. Nobody compares clocks with anybody: each measures, on a clock of its own that counts suspended time too,
how long *it* has seen the record unchanged.

A holder stops earlier than others may begin: it counts `renew_seconds` from the moment *before* its last successful
renewal, others count `lease_seconds` from when they saw it. In between nobody leads. `check()` asks that clock, and
raises when the time is over; `Client.fenced(elector.check)` asks it before every write, so that a reconcile that was
held up for a minute finds out before it writes, not after.

That is an optimisation, not a lock: a write that is under way when the time runs out may still land. So writes are
also fenced by resource version or by `term`, which is higher for each new holder (the Lease's `leaseTransitions`).
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.errors import AlreadyExists, ApiError, Conflict, LeaseLost, NotFound
from shoal.platforms.kubernetes.objects import LEASES, Lease, LeaseSpec, ObjectMeta, micro_time

log = logging.getLogger("shoal.platforms.kubernetes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectorSettings:
    lease_seconds: float = 15.0
    """For how long others leave an unchanged lease alone: how long a killed leader stands in the way."""
    renew_seconds: float = 10.0
    """For how long a leader trusts its last renewal. Shorter than the lease, by more than a slow call."""
    retry_seconds: float = 2.0
    """Between tries, for leaders and candidates."""
    is_released: bool = True
    """Give the lease up when closed, so that the next one need not wait."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_seconds < self.renew_seconds < self.lease_seconds:
            raise ValueError(
                "leader election must satisfy 0 < retry < renew < lease, got "
                f"{self.retry_seconds} s, {self.renew_seconds} s and {self.lease_seconds} s"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a Lease says. An empty holder: it was given up."""

    holder: str
    term: int
    seconds: float
    version: str


@dataclass(frozen=True, slots=True)
class Sight:
    """A record, and since when it has been seen unchanged, by the clock of who sees it. None: there is no Lease."""

    record: Record | None
    since: float


@dataclass(frozen=True, slots=True)
class Create:
    """There is no Lease: make one."""


@dataclass(frozen=True, slots=True)
class Take:
    """It is free, or its holder has been silent for too long."""

    term: int


@dataclass(frozen=True, slots=True)
class Renew:
    """It is ours."""


@dataclass(frozen=True, slots=True)
class Wait:
    """It is another's."""

    holder: str
    seconds: float
    """Until it may be taken, if nothing changes."""


Move = Create | Take | Renew | Wait


def seen(before: Sight | None, record: Record | None, now: float) -> Sight:
    """What is seen now. The time runs on while the record is the same; any change of it starts it anew."""
    if before is not None and before.record == record:
        return before
    return Sight(record, now)


def decide_move(sight: Sight, me: str, *, holds: bool, now: float) -> Move:
    """What to do about the lease. `holds`: this process got it and has not lost it since; a record that merely bears
    our name is from an earlier life, and is taken anew so that the term rises."""
    record = sight.record
    if record is None:
        return Create()
    if record.holder == me and holds:
        return Renew()
    if record.holder in ("", me):
        return Take(record.term + 1)
    left = sight.since + record.seconds - now
    return Take(record.term + 1) if left <= 0 else Wait(record.holder, left)


@dataclass(frozen=True, slots=True)
class Held:
    """The lease as held: until when by our own clock, and in which term."""

    until: float
    term: int


def boot_clock() -> float:
    """Seconds that count while the machine is suspended too: a leader that wakes up must see that time has passed."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Elector:
    """One candidate. `run` campaigns until cancelled."""

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        namespace: str,
        identity: str,
        settings: ElectorSettings | None = None,
        clock: Callable[[], float] = boot_clock,
        rng: random.Random | None = None,
    ) -> None:
        """`identity` must be this process's alone: the Pod's name and something random."""
        self._client = client
        self._name, self._namespace, self._me = name, namespace, identity
        self._settings = settings or ElectorSettings()
        self._clock = clock
        self._rng = rng or random.Random()
        self._sight: Sight | None = None
        self._lease: Lease | None = None
        self._held: Held | None = None
        self._notes: dict[str, str] = {}
        self._tried_at = clock()

    def idle_seconds(self) -> float:
        """How long ago the lease was last tried for, well or not. It is every few seconds, by leaders and others: after
        a minute something that it waits for never ends."""
        return self._clock() - self._tried_at

    def note(self, key: str, value: str) -> None:
        """Leave an annotation on the lease for whoever leads next. It is written with the next renewal: what may not
        be a few seconds old has no place here."""
        self._notes[key] = value

    def noted(self, key: str) -> str | None:
        """What was last left there, by whomever."""
        if key in self._notes:
            return self._notes[key]
        return None if self._lease is None else self._lease.metadata.annotations.get(key)

    @property
    def identity(self) -> str:
        """Who this is, of all that may ever lead."""
        return self._me

    @property
    def term(self) -> int:
        """The fencing token: rises with each new holder. Raises `LeaseLost` when we do not lead."""
        self.check()
        assert self._held is not None
        return self._held.term

    @property
    def holder(self) -> str | None:
        """Who leads, as far as we have seen."""
        return self._sight.record.holder or None if self._sight and self._sight.record else None

    def is_leader(self) -> bool:
        return self._held is not None and self._clock() < self._held.until

    def check(self) -> None:
        """Raises `LeaseLost` unless we lead, by our own clock, now."""
        if not self.is_leader():
            raise LeaseLost(f"{self._me} does not hold the lease {self._namespace}/{self._name}: nothing is written")

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Campaign; while we lead, run `lead`; when the lease is lost, cancel it, wait for its end, campaign again.
        When `lead` returns or raises, so does this. On the way out the lease is given up, after `lead` has ended."""
        try:
            while True:
                await self._campaign()
                log.info("%s leads in term %d", self._me, self._held.term if self._held else 0)
                if await self._reign(lead):
                    return
                log.warning("%s no longer leads", self._me)
        finally:
            await self._release()

    async def _campaign(self) -> None:
        while not await self._try():
            await self._sleep()

    async def _reign(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Lead until the lease is lost. True: `lead` ended by itself."""
        leading = asyncio.ensure_future(lead())
        renewing = asyncio.create_task(self._renew_until_lost())
        try:
            await asyncio.wait({leading, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            renewing.cancel()
            leading.cancel()
            await asyncio.wait({leading, renewing})
        if not leading.cancelled():
            try:
                leading.result()
            except LeaseLost:  # it noticed before we did
                self._held = None
                return False
            return True
        if not renewing.cancelled():
            renewing.result()
        self._held = None
        return False

    async def _renew_until_lost(self) -> None:
        while self.is_leader():
            await self._sleep()
            if not await self._try() and self._is_taken():
                return

    def _is_taken(self) -> bool:
        """Whether somebody else is seen to hold it: no need to wait for our own time to run out."""
        return self._sight is not None and self._sight.record is not None and self._sight.record.holder != self._me

    async def _try(self) -> bool:
        """One look, and one write if it is ours to write. True: we hold the lease, from before the look on."""
        began = self._clock()
        if self._held is not None and began >= self._held.until:
            self._held = None
        try:
            async with asyncio.timeout(self._time_left(began)):
                return await self._step(began)
        except (AlreadyExists, Conflict, NotFound):  # somebody was faster: look again next time
            self._lease = None
        except (ApiError, TimeoutError) as exc:
            self._lease = None
            log.warning("lease %s/%s: %s", self._namespace, self._name, str(exc) or "no answer in time")
        finally:
            self._tried_at = self._clock()
        return False

    def _time_left(self, now: float) -> float:
        """How long a try may take: a leader must know in time that it no longer is one."""
        return self._settings.renew_seconds if self._held is None else self._held.until - now

    async def _step(self, began: float) -> bool:
        if self._held is None or self._lease is None:  # a holder need not look: its write fails if it is wrong
            await self._look()
        assert self._sight is not None
        move = decide_move(self._sight, self._me, holds=self._held is not None, now=self._clock())
        if isinstance(move, Wait):
            self._held = None
            return False
        written = await self._write(move)
        self._note(written)
        self._held = Held(began + self._settings.renew_seconds, written.spec.lease_transitions or 0)
        return self.is_leader()  # unless it took so long that our time has run out meanwhile

    async def _look(self) -> None:
        try:
            self._note(await self._client.get(LEASES, self._name, namespace=self._namespace))
        except NotFound:
            self._lease = None
            self._sight = seen(self._sight, None, self._clock())

    def _note(self, lease: Lease) -> None:
        self._lease = lease
        self._sight = seen(self._sight, _record(lease, self._settings), self._clock())

    async def _write(self, move: Create | Take | Renew) -> Lease:
        moment = micro_time(datetime.now(UTC))
        if isinstance(move, Create):
            spec = LeaseSpec(self._me, int(self._settings.lease_seconds + 0.5) or 1, moment, moment, 0)
            meta = ObjectMeta(name=self._name, namespace=self._namespace, annotations=dict(self._notes))
            return await self._client.create(LEASES, Lease(meta, spec))
        assert self._lease is not None
        spec = msgspec.structs.replace(
            self._lease.spec,
            holder_identity=self._me,
            lease_duration_seconds=int(self._settings.lease_seconds + 0.5) or 1,
            renew_time=moment,
        )
        if isinstance(move, Take):
            spec = msgspec.structs.replace(spec, acquire_time=moment, lease_transitions=move.term)
        before = self._lease.metadata
        meta = msgspec.structs.replace(before, annotations={**before.annotations, **self._notes})
        return await self._client.replace(LEASES, Lease(meta, spec))

    async def _release(self) -> None:
        held, lease = self._held, self._lease
        self._held = None
        if held is None or lease is None or not self._settings.is_released:
            return
        spec = msgspec.structs.replace(lease.spec, holder_identity="", lease_duration_seconds=1)
        meta = msgspec.structs.replace(lease.metadata, annotations={**lease.metadata.annotations, **self._notes})
        try:
            async with asyncio.timeout(self._settings.retry_seconds):
                await self._client.replace(LEASES, Lease(meta, spec))
        except (ApiError, TimeoutError) as exc:
            log.info("the lease was not given up, it will run out: %s", exc)

    async def _sleep(self) -> None:
        seconds = self._settings.retry_seconds * (1 + 0.2 * self._rng.random())
        if self._held is not None:
            seconds = min(seconds, max(0.0, self._held.until - self._clock()))
        await asyncio.sleep(seconds)


def _record(lease: Lease, settings: ElectorSettings) -> Record:
    spec = lease.spec
    return Record(
        holder=spec.holder_identity or "",
        term=spec.lease_transitions or 0,
        seconds=float(spec.lease_duration_seconds or settings.lease_seconds),
        version=lease.metadata.resource_version,
    )
