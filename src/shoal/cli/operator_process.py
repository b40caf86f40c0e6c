"""One operator of a cluster, put together: what it watches, who is woken by it, who looks at jobs, and what it serves.

Everything is made before anything runs. `run` then keeps the caches of every replica up to date; only the one that
leads schedules and looks at jobs.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aiohttp import web

from shoal.cli.operator_scheduler import Scheduling
from shoal.operator.http import application, why_unhealthy
from shoal.operator.metrics import OperatorMetrics
from shoal.operator.objects import MANAGER
from shoal.operator.operator import Operator, TrainingOperator
from shoal.operator.scheduling.sources import ElasticJobs
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import Key
from shoal.operator.training.facts import TrainingJobs
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.cluster import KubernetesCluster
from shoal.platforms.kubernetes.elector import Elector
from shoal.platforms.kubernetes.events import Recorder
from shoal.platforms.kubernetes.informer import Caches, InformerSettings
from shoal.platforms.kubernetes.room import KubernetesRoom
from shoal.platforms.kubernetes.training import KubernetesTraining
from shoal.platforms.kubernetes.uses import shape
from shoal.platforms.kubernetes.workqueue import WorkQueue
from shoal.scheduler.rows import JobKey, Kind

if TYPE_CHECKING:
    from shoal.cli.operator import OperatorConfig

log = logging.getLogger("shoal.operator")

_UNREADY = "the caches are not filled yet"
Look = Callable[[Key], Awaitable[float | None]]


def _now() -> datetime:
    return datetime.now(UTC)


class _Jobs:
    """The jobs of one kind that wait to be looked at. Whatever happens to one of them puts it there."""

    def __init__(self, seen: KubernetesCluster | KubernetesTraining, *, happened: Callable[[], None]) -> None:
        """`happened`: the scheduler wants to hear of everything as well."""
        self._seen = seen
        self._happened = happened
        self.queue: WorkQueue[Key] = WorkQueue(refill=self._known)
        seen.on_wake(self._wake)

    async def work(self, look: Look, *, workers: int) -> None:
        """Look at every job that is known, and then at whatever is woken, until cancelled."""
        for key in self._known():
            self.queue.add(key)
        await self.queue.work(look, workers=workers)

    def _wake(self, namespace: str, name: str, after: float) -> None:
        self.queue.add_after(Key(namespace, name), after)
        self._happened()

    def _known(self) -> list[Key]:
        return [Key(*each) for each in self._seen.known_jobs()]


class OperatorProcess:
    def __init__(
        self,
        config: "OperatorConfig",
        client: Client,
        elector: Elector,
        settings: OperatorSettings,
        metrics: OperatorMetrics,
        *,
        sees_hosts: bool,
    ) -> None:
        """`sees_hosts`: whether we may look at hosts and at all Pods on them."""
        self._config, self._elector, self._metrics = config, elector, metrics
        self._ticked_at = time.monotonic()
        self._recorder = Recorder(client, controller=MANAGER, instance=config.identity)
        watched: dict[str, Any] = {
            "namespace": config.namespace,
            "settings": InformerSettings(relist_seconds=config.relist_seconds),
        }
        writer = client.fenced(elector.check)
        self._room = KubernetesRoom(
            client,
            recorder=self._recorder,
            home=config.home,
            config_map=config.scheduler_settings,
            sees_hosts=sees_hosts,
            **watched,
        )
        self._cluster = KubernetesCluster(
            client, recorder=self._recorder, manager=MANAGER, writer=writer, hosts=self._room.book, **watched
        )
        self._training = KubernetesTraining(client, self._cluster, writer=writer, **watched)
        self._scheduling = self._scheduler(settings)
        happened, allowances = self._scheduling.scheduler.happened, self._scheduling.scheduler
        self._elastic_jobs = _Jobs(self._cluster, happened=happened)
        self._training_jobs = _Jobs(self._training, happened=happened)
        self._operator = Operator(self._cluster, settings, metrics=metrics, clock=_now, allowances=allowances)
        self._trainer = TrainingOperator(self._training, settings, metrics=metrics, clock=_now, allowances=allowances)

    def _scheduler(self, settings: OperatorSettings) -> Scheduling:
        return Scheduling(
            self._room,
            self._elector,
            sources=(
                ElasticJobs(self._cluster, shape, settings, clock=_now),
                TrainingJobs(self._training.jobs, shape, settings),
            ),
            wake=self._allowed,
            metrics=self._metrics,
        )

    def _allowed(self, key: JobKey, after: float) -> None:
        """The scheduler has something new for a job."""
        jobs = self._training_jobs if key.kind is Kind.TRAINING_JOB else self._elastic_jobs
        jobs.queue.add_after(Key(key.namespace, key.name), after)

    # Running ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Be one of the operators, until cancelled."""
        try:
            async with self._served(), asyncio.TaskGroup() as tasks:
                for caches in self._caches:
                    tasks.create_task(caches.run())
                tasks.create_task(self._recorder.run())
                tasks.create_task(self._measure_lag())
                tasks.create_task(self._elector.run(self._lead))
        finally:
            await self._recorder.flush()

    @property
    def _caches(self) -> Sequence[Caches]:
        return (self._cluster, self._training, self._room)

    async def _lead(self) -> None:
        await self._cluster.synced()
        await self._training.synced()
        self._operator.begin()
        await self._scheduling.lead(self._work)

    async def _work(self) -> None:
        workers = self._config.workers
        async with asyncio.TaskGroup() as both:
            both.create_task(self._elastic_jobs.work(self._operator.look, workers=workers))
            both.create_task(self._training_jobs.work(self._trainer.look, workers=workers))

    async def _measure_lag(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(1.0)
            self._ticked_at = time.monotonic()
            self._metrics.lag(max(0.0, time.monotonic() - began - 1.0))

    # Serving ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[None]:
        """/metrics, /healthz and /readyz can be asked for."""
        app = application(metrics=self._metrics_text, unhealthy=self._unhealthy, unready=self._unready)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._config.host, self._config.port).start()
            log.info("serves http://%s:%d/metrics", *runner.addresses[0][:2])
            yield
        finally:
            await runner.cleanup()

    def _unhealthy(self) -> str | None:
        return why_unhealthy(
            loop_idle=time.monotonic() - self._ticked_at,
            elector_idle=self._elector.idle_seconds(),
            lease_seconds=self._config.lease_seconds,
            round_idle=self._scheduling.scheduler.idle_seconds(),
            round_patience=self._scheduling.patience(self._config.round_stuck_seconds),
        )

    def _unready(self) -> str | None:
        return None if all(caches.has_synced for caches in self._caches) else _UNREADY

    def _metrics_text(self) -> bytes:
        informers = [informer for caches in self._caches for informer in caches.informers]
        return self._metrics.text(
            (*self._cluster.jobs(), *self._training.jobs()),
            staleness={informer.kind.plural: informer.staleness() for informer in informers},
            waiting=len(self._elastic_jobs.queue) + len(self._training_jobs.queue),
            leads=self._elector.is_leader(),
            goodput=self._scheduling.scheduler.goodput() if self._elector.is_leader() else None,
        )
