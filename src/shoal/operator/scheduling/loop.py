"""The scheduler's rounds: every few seconds, or when something has happened, while this operator leads.

Events that come together are one round. A round reads what is known, asks the policy (in a thread, for it only
computes), and holds the new allowances; whoever is allowed something else now is woken. A policy that fails takes
nobody down: what was allowed last stays allowed, and the jobs, the log and a metric say so.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from shoal.core.hosts import HostSeen, QuotaSeen
from shoal.operator.allowances import Allowance
from shoal.operator.metrics import OperatorMetrics
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.ledger import Ledger
from shoal.operator.scheduling.round import Held, Known, Looks, Outcome, Round, begin, conclude
from shoal.scheduler.decisions import Action, Decisions
from shoal.scheduler.policies import Policy
from shoal.scheduler.rows import JobKey
from shoal.scheduler.settings import SchedulerSettings

log = logging.getLogger("shoal.operator")

Wake = Callable[[JobKey, float], None]
"""Told a job that is allowed something else now, and how many seconds the look at it may wait."""

_RETELL_SECONDS = 15.0
"""A place in the queue changes all the time. It is told a job no more often than this: each time is a write."""


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
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`keep` is given `min_v` whenever it has grown; `ignored` a service Pod that no room is made for, and why."""
        self._hosts, self._quotas, self._ledger, self._sources = hosts, quotas, ledger, sources
        self._policy, self._settings, self._wake = policy, settings, wake
        self._metrics, self._keep, self._ignored, self._clock = metrics, keep, ignored, clock
        self._holding: dict[JobKey, Held] = {}
        self._told: dict[JobKey, tuple[Allowance, float]] = {}
        self._looks: Looks = {}
        self._unheard: set[tuple[str, str]] = set()
        self._min_v = 0.0
        self._trouble: str | None = None
        self._happened = asyncio.Event()
        self.rounds = 0

    # What controllers ask ----------------------------------------------------------------------------------------

    def of(self, key: JobKey, uid: str) -> Allowance | None:
        held = self._holding.get(key)
        return held.allowance if held is not None and held.uid == uid else None

    @property
    def trouble(self) -> str | None:
        return self._trouble

    # Running -----------------------------------------------------------------------------------------------------

    def happened(self) -> None:
        """Something changed: a round is due."""
        self._happened.set()

    def start(self, min_v: float = 0.0) -> None:
        """Begin anew, from the jobs' statuses: whatever was held before is another leader's by now."""
        self._holding, self._told, self._trouble = {}, {}, None
        self._min_v = min_v
        self._happened.set()

    async def run(self) -> None:
        """Rounds, until cancelled."""
        while True:
            settings = self._settings()
            try:
                async with asyncio.timeout(settings.interval):
                    await self._happened.wait()
            except TimeoutError:
                pass
            self._happened.clear()
            began = time.monotonic()
            await self.round()
            await asyncio.sleep(max(0.0, settings.spacing - (time.monotonic() - began)))

    async def round(self) -> None:
        """One round. It never fails."""
        began, result = time.monotonic(), "error"
        try:
            settings, now = self._settings(), self._clock()
            policy = self._policy(settings.policy)
            known = Known(
                hosts=self._hosts(),
                quotas=self._quotas(),
                facts=[facts for source in self._sources for facts in source()],
                ledger=self._ledger,
            )
            taken_up = begin(known, self._holding, self._min_v, settings, looks=self._looks, now=now)
            decisions = await asyncio.to_thread(policy, taken_up.snapshot, now, settings)
            self._take(taken_up, decisions, conclude(taken_up, decisions, now=now), now)
            result = "ok"
        except Exception as exc:
            self._fail(exc)
        finally:
            self.rounds += 1
            if self._metrics is not None:
                self._metrics.scheduled(result, time.monotonic() - began)

    def _take(self, taken_up: Round, decisions: Decisions, outcome: Outcome, now: float) -> None:
        recovered, self._trouble = self._trouble is not None, None
        self._holding = dict(outcome.holding)
        if decisions.min_v > self._min_v:
            self._min_v = decisions.min_v
            self._keep(self._min_v)
        for change in outcome.carried_out:
            log.info("%s: %s %d -> %d: %s", change.key, change.action, change.before, change.target, change.reason.text)
            if self._metrics is not None:
                self._metrics.decided(str(change.action), str(change.reason.code))
                row = taken_up.views[change.key].row
                if change.action is Action.ADMIT and row.waiting_since is not None:
                    waited = max(0.0, now - row.waiting_since)
                    self._metrics.waited(change.key.namespace, str(row.priority), waited)
        self._tell_services(decisions)
        self._told = {key: told for key, told in self._told.items() if key in self._holding}
        for key, held in self._holding.items():
            self._tell(key, held.allowance, now, again=recovered)

    def _tell(self, key: JobKey, allowance: Allowance, now: float, *, again: bool) -> None:
        told, at = self._told.get(key, (None, 0.0))
        if told == allowance and not again:
            return
        wording = told is not None and replace(told, place=None, reason="") == replace(allowance, place=None, reason="")
        if wording and not again and now - at < _RETELL_SECONDS:
            return
        self._told[key] = (allowance, now)
        self._wake(key, 0.0)

    def _tell_services(self, decisions: Decisions) -> None:
        ignored = {(each.namespace, each.name): each.reason for each in decisions.nominations if each.host is None}
        for (namespace, name), why in ignored.items():
            if (namespace, name) not in self._unheard:
                log.warning("Pod %s/%s is not made room for: %s", namespace, name, why)
                self._ignored(namespace, name, why)
        self._unheard = set(ignored)

    def _fail(self, exc: Exception) -> None:
        why = f"the scheduler fails, what was decided last stays: {type(exc).__name__}: {exc}"[:1024]
        log.error("%s", why, exc_info=self._trouble is None)
        if self._trouble == why:
            return
        self._trouble = why
        for key in self._holding:
            self._wake(key, 0.0)
