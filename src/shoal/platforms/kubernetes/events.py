"""What users read in `kubectl describe`: one event per thing worth telling, repeats counted instead of repeated.

    recorder = Recorder(client, controller="shoal-operator", instance="shoal-operator-7d4f")
    recorder.record(reference(ELASTIC_JOBS, job), reason="Resized", action="Resize", note="3 -> 5 workers: ...")

`record` never waits and never raises: telling must not get in the way of doing. Events wait in a bounded queue; when it
is full the newest are dropped and counted. An event that cannot be written is tried a few times and dropped: the
status of the object is the truth, an event only draws attention to it.

The same words about the same object again within `series_seconds` are one event with a count, written at most every
`repeat_seconds`.
"""

import asyncio
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.errors import (
    AlreadyExists,
    ApiError,
    NamespaceEnding,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from shoal.platforms.kubernetes.objects import (
    EVENTS,
    Event,
    Kind,
    ObjectMeta,
    ObjectReference,
    metadata_of,
    micro_time,
)

log = logging.getLogger("shoal.platforms.kubernetes")

NOTE_LIMIT = 1024
"""The server takes no longer notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings:
    capacity: int = 1000
    """Events that wait to be written."""
    series_seconds: float = 600.0
    """How long after the last one the same words still count as a repeat."""
    repeat_seconds: float = 10.0
    """At most so often is a count written."""
    remembered: int = 4096
    """Series that are known at once; the longest silent are forgotten first."""
    tries: int = 4
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= self.remembered or self.tries < 1:
            raise ValueError("events must satisfy 1 <= capacity <= remembered and tries >= 1")


@dataclass(frozen=True, slots=True)
class Telling:
    """What is to be told. Two that are equal are repeats of each other."""

    regarding: ObjectReference
    type: str
    reason: str
    action: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One thing told once or often."""

    name: str
    count: int
    last: float
    written: int = 0
    """The count that was written last; 0: nothing yet."""
    written_at: float = 0.0


class Tally:
    """Which tellings are known, and which are due to be written. No clock, no network."""

    def __init__(self, settings: RecorderSettings) -> None:
        self._settings = settings
        self._series: OrderedDict[Telling, Series] = OrderedDict()
        self._waiting: deque[Telling] = deque()
        self.dropped = 0

    def tell(self, telling: Telling, name: str, now: float) -> None:
        """It happened (again). `name` is the event's, should it be a new one."""
        known = self._series.get(telling)
        if known is not None and now - known.last > self._settings.series_seconds and known.written:
            known = None
        if known is not None:
            self._series[telling] = replace(known, count=known.count + 1, last=now)
            self._series.move_to_end(telling)
            return
        if len(self._waiting) >= self._settings.capacity:
            self.dropped += 1
            return
        self._series[telling] = Series(name=name, count=1, last=now)
        self._series.move_to_end(telling)
        self._waiting.append(telling)
        self._forget()

    def due(self, now: float, *, closing: bool = False) -> tuple[Telling, Series] | None:
        """The next one to write: a new one, or one with repeats that have waited for long enough."""
        while self._waiting:
            telling = self._waiting.popleft()
            series = self._series.get(telling)
            if series is not None and not series.written:
                return telling, series
        for telling, series in self._series.items():
            if series.count > series.written and (closing or now >= series.written_at + self._settings.repeat_seconds):
                return telling, series
        return None

    def wrote(self, telling: Telling, count: int, now: float) -> None:
        series = self._series.get(telling)
        if series is not None:
            self._series[telling] = replace(series, written=count, written_at=now)

    def lost(self, telling: Telling) -> None:
        """It could not be written: the next time it happens it is new again."""
        self.dropped += 1
        self._series.pop(telling, None)

    def next_due(self) -> float | None:
        """When a count becomes due; None: none will."""
        times = [s.written_at + self._settings.repeat_seconds for s in self._series.values() if s.count > s.written]
        return min(times, default=None)

    def __len__(self) -> int:
        return len(self._waiting)

    def _forget(self) -> None:
        while len(self._series) > self._settings.remembered:
            _, series = self._series.popitem(last=False)
            self.dropped += series.count - series.written


def reference(kind: Kind[Any], obj: Any) -> ObjectReference:
    """Whom an event is about."""
    meta = metadata_of(obj)
    return ObjectReference(
        api_version=kind.api_version, kind=kind.kind, name=meta.name, namespace=meta.namespace, uid=meta.uid
    )


class Recorder:
    def __init__(
        self,
        client: Client,
        *,
        controller: str,
        instance: str,
        settings: RecorderSettings | None = None,
        rng: random.Random | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._client = client
        self._controller, self._instance = controller, instance
        self._settings = settings or RecorderSettings()
        self._rng = rng or random.Random()
        self._now = now or (lambda: datetime.now(UTC))
        self._tally = Tally(self._settings)
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def record(
        self,
        about: ObjectReference,
        *,
        reason: str,
        note: str,
        action: str = "Reconcile",
        type: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Tell users. `reason` and `action` are CamelCase words, `note` a sentence."""
        if len(note.encode()) > NOTE_LIMIT:
            note = note.encode()[: NOTE_LIMIT - 3].decode(errors="ignore") + "..."
        name = f"{about.name[:230].rstrip('-.')}.{self._rng.getrandbits(64):016x}"
        self._tally.tell(Telling(about, type, reason, action, note), name, self._loop.time())
        self._woken.set()

    @property
    def dropped(self) -> int:
        """Events that nobody will read; for metrics."""
        return self._tally.dropped

    async def run(self) -> None:
        """Write what was recorded, until cancelled."""
        while True:
            self._woken.clear()
            await self._write_due()
            try:
                async with asyncio.timeout_at(self._tally.next_due()):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def flush(self, timeout: float = 2.0) -> None:
        """Write what still waits, counts included: before the end."""
        try:
            async with asyncio.timeout(timeout):
                await self._write_due(closing=True)
        except TimeoutError:
            log.info("%d events were not written in time", len(self._tally))

    async def _write_due(self, *, closing: bool = False) -> None:
        while (due := self._tally.due(self._loop.time(), closing=closing)) is not None:
            telling, series = due
            if await self._written(telling, series):
                self._tally.wrote(telling, series.count, self._loop.time())
            else:
                self._tally.lost(telling)

    async def _written(self, telling: Telling, series: Series) -> bool:
        for failures in range(1, self._settings.tries + 1):
            try:
                await self._write(telling, series)
                return True
            except (Unavailable, TooManyRequests) as exc:
                log.debug("event %s about %s: %s", telling.reason, telling.regarding.name, exc)
            except AlreadyExists:
                return True  # an earlier try of ours, whose answer was lost
            except (NotFound, NamespaceEnding):
                return False  # nobody is left to read it
            except ApiError as exc:
                log.warning("event %s about %s: %s", telling.reason, telling.regarding.name, exc)
                return False
            await asyncio.sleep(self._settings.backoff.seconds(failures, self._rng.random()))
        return False

    async def _write(self, telling: Telling, series: Series) -> None:
        namespace = telling.regarding.namespace or "default"
        moment = micro_time(self._now())
        if series.written:
            change = {"series": {"count": series.count, "lastObservedTime": moment}}
            await self._client.patch(EVENTS, series.name, Merge(change), namespace=namespace)
            return
        event = Event(
            metadata=ObjectMeta(name=series.name, namespace=namespace),
            event_time=moment,
            reporting_controller=self._controller,
            reporting_instance=self._instance,
            action=telling.action,
            reason=telling.reason,
            regarding=telling.regarding,
            note=telling.note,
            type=telling.type,
        )
        await self._client.create(EVENTS, event)
