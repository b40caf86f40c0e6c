"""The cluster's scheduler in `shoal operator`: its caches, its settings and its memory, wired to Kubernetes.

What it remembers beyond the jobs' own statuses stands on the operator's lease: one number, `min_v`, and the settings
that were last understood.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.api.reasons import Reason
from shoal.core.hosts import PodUse

if TYPE_CHECKING:
    from shoal.operator.metrics import OperatorMetrics
    from shoal.operator.scheduling.facts import JobFacts
    from shoal.operator.scheduling.loop import Wake
    from shoal.platforms.kubernetes.elector import Elector
    from shoal.platforms.kubernetes.objects import ConfigMap
    from shoal.platforms.kubernetes.room import KubernetesRoom
    from shoal.scheduler.policies import Policy

log = logging.getLogger("shoal.operator")

_PATIENCE_SECONDS = 10.0
MIN_V = "elastic.iml.github.io/min-v"
"""The annotation of the lease."""
LAST_SETTINGS = "elastic.iml.github.io/scheduler-settings"
"""Beside it."""
_MOST_TEXT = 64 * 1024
"""What is kept of settings: all annotations of an object together may have four times as much."""


class Scheduling:
    """The scheduler of one operator. `run` keeps its caches; `lead` makes rounds while the operator leads."""

    def __init__(
        self,
        room: "KubernetesRoom",
        elector: "Elector",
        *,
        sources: Sequence[Callable[[], "Sequence[JobFacts]"]],
        wake: "Wake",
        metrics: "OperatorMetrics",
        policies: "Callable[[str], Policy] | None" = None,
    ) -> None:
        """`policies`: by name; None: those that there are."""
        from shoal.operator.scheduling.ledger import Ledger
        from shoal.operator.scheduling.live import LiveSettings
        from shoal.operator.scheduling.loop import Scheduler
        from shoal.scheduler.policies import known_policies, policy

        self.room = room
        self._refused = False
        self._elector = elector
        self.settings = LiveSettings(
            parse=parse_yaml, policies=frozenset(known_policies(sim=False)), metrics=metrics, keep=self._keep
        )
        self._ledger = Ledger(knows_hosts=room.sees_hosts)
        self.scheduler = Scheduler(
            hosts=room.hosts,
            quotas=room.quotas,
            ledger=self._ledger,
            sources=sources,
            policy=policies or policy,
            settings=self.settings,
            wake=wake,
            metrics=metrics,
            keep=lambda min_v: elector.note(MIN_V, repr(min_v)),
            by=elector.identity,
            ignored=lambda namespace, name, why: room.tell_pod(namespace, name, reason=Reason.NO_ROOM_MADE, note=why),
        )
        room.on_pod(self._saw, self._gone)
        room.on_change(self.scheduler.happened)
        room.on_settings(self._hear)

    def patience(self, seconds: float) -> float:
        """How long no round may come to an end before something must be wrong: so long, and never less than rounds may
        take and be apart by the settings."""
        settings = self.settings()
        return max(seconds, 2 * (settings.round_timeout + settings.interval))

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the operator's work, and make rounds beside it. The first one comes before any work: nobody's controller
        has to guess. When one of the two ends, so does the other: an operator without rounds would look healthy."""
        await self.room.synced()
        unread = await self.room.settings_read(_PATIENCE_SECONDS)
        if unread is not None:
            log.warning("the scheduler's settings cannot be read, those of before hold meanwhile: %s", unread)
        if unread is not None or self._refused:
            self.settings.recall(self._elector.noted(LAST_SETTINGS))
        elif not self.settings.made_sense:  # there are none
            self._keep("")
        if not self.room.sees_hosts:
            log.warning(
                "it may not list and watch nodes, and the Pods of all namespaces: jobs are held against quotas only, "
                "and nothing is known of free room, of other Pods, or of services that wait for it"
            )
        self.scheduler.start(number_of(self._elector.noted(MIN_V)))
        tasks = {asyncio.create_task(self.scheduler.run()), asyncio.create_task(self._work(work))}
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in ended:
            task.result()

    async def _work(self, work: Callable[[], Awaitable[None]]) -> None:
        await self.scheduler.begun()
        await work()

    def _keep(self, text: str) -> None:
        if len(text) <= _MOST_TEXT:
            self._elector.note(LAST_SETTINGS, text)
        else:
            log.warning("the scheduler's settings are too long to be kept for the next operator")

    def _saw(self, use: PodUse) -> None:
        self._ledger.saw(use)
        self.scheduler.happened()

    def _gone(self, uid: str) -> None:
        self._ledger.gone(uid)
        self.scheduler.happened()

    def _hear(self, found: "ConfigMap | None") -> None:
        refused = self.settings.hear(None if found is None else dict(found.data))
        self._refused = refused is not None
        if refused is not None and found is not None:
            self.room.tell_settings(found, reason=Reason.SETTINGS_REFUSED, note=refused[:1024], warning=True)
        self.scheduler.happened()


def number_of(written: str | None) -> float:
    """What stands on the lease; anybody may have written there."""
    try:
        found = float(written or 0)
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0


def parse_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise ValueError(" ".join(str(exc).split())) from exc
