"""The scheduler's rounds: every few seconds, or when something has happened, while this operator leads.

Events that come together are one round. A round takes what is known, which costs the event loop a copy, and computes
the rest in a thread of its own: the rows, the policy's decisions, what follows from them for everybody, and who has to
be told. Then the new allowances hold, and whoever is allowed something else now is woken. A policy that fails, or does
not come to an end, takes nobody down: what was allowed last stays allowed, and the jobs, the log and a metric say so.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from shoal.api.scheduling import SchedulingStatus
from shoal.core.hosts import HostSeen, QuotaSeen
from shoal.operator.allowances import Allowance
from shoal.operator.metrics import OperatorMetrics
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.goodput import goodput
from shoal.operator.scheduling.kept import Kept
from shoal.operator.scheduling.ledger import Ledger
from shoal.operator.scheduling.round import Holding, Known, Looks, Outcome, Round, begin, conclude
from shoal.operator.scheduling.telling import Telling, tell
from shoal.scheduler.decisions import Action, Decisions
from shoal.scheduler.policies import Policy
from shoal.scheduler.rows import NOTHING, JobKey, Seconds
from shoal.scheduler.settings import SchedulerSettings

log = logging.getLogger("shoal.operator")

Wake = Callable[[JobKey, float], None]
"""Told a job that is allowed something else now, and how many seconds the look at it may wait."""
T = TypeVar("T")

_REST = 4.0
"""Times as much as the round took of a core."""
_RETELL_TROUBLE_SECONDS = 300.0
"""A failure that words itself differently each time is told the jobs no more often than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What a round came to."""

    taken_up: Round
    decisions: Decisions
    outcome: Outcome
    telling: Telling
    cpu: Seconds
    """Of a core: others may have had it most of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """All that a round is computed from. Nobody changes any of it meanwhile; `looks` and `kept` are its own."""

    known: Known
    holding: Holding
    looks: Looks
    kept: Kept
    telling: Telling
    recovers: bool
    min_v: float
    policy: Policy
    settings: SchedulerSettings
    by: str
    now: Seconds

    def compute(self) -> Computed:
        began = time.thread_time()
        taken_up = begin(
            self.known,
            self.holding,
            self.min_v,
            self.settings,
            looks=self.looks,
            kept=self.kept,
            by=self.by,
            now=self.now,
        )
        decisions = self.policy(taken_up.snapshot, self.now, self.settings)
        outcome = conclude(taken_up, decisions, now=self.now)
        telling = tell(self.telling, outcome.holding, everybody=self.recovers, now=self.now)
        cpu = time.thread_time() - began
        return Computed(taken_up=taken_up, decisions=decisions, outcome=outcome, telling=telling, cpu=cpu)


@dataclass(frozen=True, slots=True)
class Trouble:
    kind: str
    text: str
    at: float

    def covers(self, kind: str, text: str, now: float) -> bool:
        """Whether this need not be told to those who know of it."""
        return kind == self.kind and (text == self.text or now - self.at < _RETELL_TROUBLE_SECONDS)


def rest(took: Seconds, cpu: Seconds, settings: SchedulerSettings) -> Seconds:
    """How long to wait after a round, whatever happens: rounds that come at every event of a storm would take the cores
    that are to carry them out. `took`: by the clock; `cpu`: of a core."""
    return max(0.0, settings.spacing - took, min(_REST * cpu, settings.interval))


class Scheduler:
    """Where controllers find allowances (`operator.allowances.Allowances`), and the loop that makes them."""

    def __init__(
        self,
        *,
        hosts: Callable[[], Sequence[HostSeen] | None],
        quotas: Callable[[], Sequence[QuotaSeen]],
        ledger: Ledger,
        sources: Sequence[Callable[[], Sequence[JobFacts]]],
        policy: Callable[[str], Policy],
        settings: Callable[[], SchedulerSettings],
        wake: Wake,
        metrics: OperatorMetrics | None = None,
        keep: Callable[[float], None] = lambda min_v: None,
        ignored: Callable[[str, str, str], None] = lambda namespace, name, why: None,
        by: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`keep` is given `min_v` whenever it has grown; `ignored` a service Pod that no room is made for, and why;
        `by` is who this is, of all that may write the jobs' statuses."""
        self._hosts, self._quotas, self._ledger, self._sources = hosts, quotas, ledger, sources
        self._policy, self._settings, self._wake = policy, settings, wake
        self._metrics, self._keep, self._ignored, self._clock = metrics, keep, ignored, clock
        self._by = by
        self._holding: Holding = {}
        self._telling = Telling()
        self._looks: Looks = {}
        self._kept = Kept()
        self._unheard: set[tuple[str, str]] = set()
        self._last: Round | None = None
        self._min_v = 0.0
        self._trouble: Trouble | None = None
        self._happened, self._begun = asyncio.Event(), asyncio.Event()
        self._ended_at: float | None = None
        """When the last round ended, or the first one was due; None: none is made here."""
        self.rounds = 0

    # What controllers ask ----------------------------------------------------------------------------------------

    def of(self, key: JobKey, uid: str, written: SchedulingStatus | None) -> Allowance | None:
        held = self._holding.get(key)
        if held is None or held.uid != uid or held.allowance.is_overtaken(written):
            return None
        return held.allowance

    @property
    def trouble(self) -> str | None:
        return None if self._trouble is None else self._trouble.text

    def goodput(self) -> dict[str, float]:
        """As of the last round, by namespace."""
        if self._last is None:
            return {}
        capacity = NOTHING
        for host in self._last.snapshot.hosts:
            capacity = capacity.plus(host.capacity)
        return goodput(self._last.views.values(), capacity, self._settings())

    def idle_seconds(self) -> float | None:
        """Since the last round came to an end, well or not. None: none is made here, for another process leads."""
        return None if self._ended_at is None else time.monotonic() - self._ended_at

    # Running -----------------------------------------------------------------------------------------------------

    def happened(self) -> None:
        """Something changed: a round is due."""
        self._happened.set()

    def start(self, min_v: float = 0.0) -> None:
        """Begin anew, from the jobs' statuses: whatever was held before is another leader's by now."""
        self._holding, self._telling, self._trouble = {}, Telling(), None
        self._looks, self._kept, self._last = {}, Kept(), None
        self._min_v = min_v
        self._begun.clear()
        self._happened.set()

    async def begun(self) -> None:
        """Wait until there was a round since `start`, or there is trouble."""
        await self._begun.wait()

    async def run(self) -> None:
        """Rounds, until cancelled."""
        self._ended_at = time.monotonic()
        try:
            while True:
                settings = self._settings()
                try:
                    async with asyncio.timeout(settings.interval):
                        await self._happened.wait()
                except TimeoutError:
                    pass
                self._happened.clear()
                began = time.monotonic()
                cpu = await self.round()
                self._ended_at = time.monotonic()
                await asyncio.sleep(rest(self._ended_at - began, cpu, settings))
        finally:
            self._ended_at = None

    async def round(self) -> Seconds:
        """One round. It never fails. Returns what it took of a core, as far as it got to an end."""
        began, result, cpu = time.monotonic(), "error", 0.0
        try:
            settings = self._settings()
            sum_ = self._sum(settings)
            computed = await self._computed(sum_, settings.round_timeout)
            self._take(computed, sum_)
            result, cpu = "ok", computed.cpu
        except Exception as exc:
            self._fail(exc)
        finally:
            self.rounds += 1
            if self._metrics is not None:
                self._metrics.scheduled(result, time.monotonic() - began)
        return cpu

    def _sum(self, settings: SchedulerSettings) -> Sum:
        return Sum(
            known=Known(
                hosts=self._hosts(),
                quotas=self._quotas(),
                facts=[facts for source in self._sources for facts in source()],
                ledger=self._ledger.as_it_is(),
            ),
            holding=self._holding,
            looks=self._looks,
            kept=self._kept,
            telling=self._telling,
            recovers=self._trouble is not None,
            min_v=self._min_v,
            policy=self._policy(settings.policy),
            settings=settings,
            by=self._by,
            now=self._clock(),
        )

    async def _computed(self, sum_: Sum, patience: Seconds) -> Computed:
        """A thread cannot be broken off. One that takes too long is trouble until it ends, and its answer still holds:
        nothing was decided meanwhile."""
        computing = asyncio.ensure_future(_beside(sum_.compute))
        try:
            done, _ = await asyncio.wait({computing}, timeout=patience)
            if not done:
                self._fail(TimeoutError(f"the policy {sum_.settings.policy} has not decided for {patience:g} s"))
            return await computing
        finally:
            computing.cancel()

    def _take(self, computed: Computed, sum_: Sum) -> None:
        """Hold what was computed, and wake whom it concerns: everybody, if they were told of trouble meanwhile."""
        decisions, outcome = computed.decisions, computed.outcome
        late, self._trouble = self._trouble is not None and not sum_.recovers, None
        self._holding, self._telling, self._last = outcome.holding, computed.telling, computed.taken_up
        self._begun.set()
        if decisions.min_v > self._min_v:
            self._min_v = decisions.min_v
            self._keep(self._min_v)
        for change in outcome.carried_out:
            log.info("%s: %s %d -> %d: %s", change.key, change.action, change.before, change.target, change.reason.text)
            if self._metrics is not None:
                self._metrics.decided(str(change.action), str(change.reason.code))
                row = computed.taken_up.views[change.key].row
                if change.action is Action.ADMIT and row.waiting_since is not None:
                    waited = max(0.0, sum_.now - row.waiting_since)
                    self._metrics.waited(change.key.namespace, str(row.priority), waited)
        self._tell_services(decisions)
        for key in self._holding if late else computed.telling.due:
            self._wake(key, 0.0)

    def _tell_services(self, decisions: Decisions) -> None:
        ignored = {(each.namespace, each.name): each.reason for each in decisions.nominations if each.host is None}
        for (namespace, name), why in ignored.items():
            if (namespace, name) not in self._unheard:
                log.warning("Pod %s/%s is not made room for: %s", namespace, name, why)
                self._ignored(namespace, name, why)
        self._unheard = set(ignored)

    def _fail(self, exc: Exception) -> None:
        kind, before, now = type(exc).__name__, self._trouble, time.monotonic()
        why = f"the scheduler fails, what was decided last stays: {kind}: {exc}"[:1024]
        log.error("%s", why, exc_info=before is None)
        self._begun.set()
        self._looks, self._kept = {}, Kept()  # whatever it was doing to them
        if before is not None and before.covers(kind, why, now):
            return
        self._trouble = Trouble(kind, why, now)
        for key in self._holding:
            self._wake(key, 0.0)


async def _beside(work: Callable[[], T]) -> T:
    """The work's answer, from a thread that ends with the process, whether the work does or not."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    found: list[T | Exception] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as exc:
            found.append(exc)
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run, name="scheduler", daemon=True).start()
    await ended.wait()
    (answer,) = found
    if isinstance(answer, Exception):
        raise answer
    return answer
