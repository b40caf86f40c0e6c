"""Move one TrainingJob one step towards what is asked: read everything, decide once, record the decision, then act.

Safe to call at any time, twice, late, or by two processes at once: the status is written first, and only if the job is
still as it was read; every object has one name, so making it twice makes one; a number is written, never a difference,
and only over the one that it was decided on.

What the server refuses is remembered until the next try and stands in the job's status meanwhile. What has nothing to
do with it goes on: a Job that the quota does not admit holds up no eviction, and one eviction no other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial

from shoal.api.reasons import Reason
from shoal.core.errors import Denied, NameTaken, Outdated
from shoal.core.pods import Trouble
from shoal.operator.allowances import Allowance, Allowances
from shoal.operator.counting import Resized
from shoal.operator.holding import Holding, trouble_of
from shoal.operator.ports import Json
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import Key
from shoal.operator.training.alone import everything
from shoal.operator.training.counting import lost_by, resize_of
from shoal.operator.training.plan import TrainingPlan, plan_training_job
from shoal.operator.training.ports import TrainingCluster
from shoal.operator.training.recall import TrainingReader, written_status
from shoal.operator.training.snapshot import TrainingSeen, TrainingSnapshot
from shoal.operator.writing import differs
from shoal.scheduler.rows import JobKey, Kind

_SOON = timedelta(milliseconds=200)


class TrainingReconciler:
    """`reconcile` is the whole of it. What it remembers between looks it could do without: it saves calls."""

    def __init__(
        self,
        cluster: TrainingCluster,
        settings: OperatorSettings,
        *,
        clock: Callable[[], datetime],
        allowances: Allowances | None = None,
        counted: Callable[[Resized | None, Sequence[str]], None] | None = None,
    ) -> None:
        """`allowances`: the scheduler's word; None: nobody arbitrates, and jobs get what they ask for. `counted`: who
        counts what is recorded: a resize, and the classes of trainers that failed."""
        self._cluster = cluster
        self._settings = settings
        self._allowances = allowances
        self._clock = clock
        self._counted = counted
        self._reader = TrainingReader()
        self._uids: dict[Key, str] = {}
        self._prepared: dict[str, str] = {}
        self._holding = Holding(clock)

    async def reconcile(self, key: Key) -> timedelta | None:
        """One look. Returns when to look again, if nothing happens before."""
        there = self._cluster.job(key.namespace, key.name)
        if there is None:
            self._forget(key)
            return None
        job = self._reader.job(there)
        if self._uids.setdefault(key, job.uid) != job.uid:  # deleted, and made anew under its name
            self._forget(key)
            self._uids[key] = job.uid
        try:
            return await self._look(there, job)
        except Outdated:
            return _SOON

    async def _look(self, there: Json, job: TrainingSeen) -> timedelta | None:
        before = self._holding.troubles(job.uid)
        snapshot = TrainingSnapshot(
            job=job,
            workloads=tuple(self._cluster.workloads(job.uid)),
            pods=tuple(self._cluster.pods(job.uid)),
            allowance=self._allowed(job),
            troubles=(*before, *self._schedulers_trouble()),
            prepared=self._prepared.get(job.uid),
        )
        plan = plan_training_job(snapshot, self._settings, now=self._clock())
        if await self._record(there, job, plan) and self._counted is not None:
            self._counted(resize_of(job, plan.status), lost_by(job, plan.status, snapshot.pods))
        await self._act(job, plan)
        if plan.again or self._holding.troubles(job.uid) != before:
            return timedelta(0)
        planned = [] if plan.next_look is None else [max(plan.next_look - self._clock(), timedelta(0))]
        return min((*planned, *self._holding.retries(job.uid)), default=None)

    def _allowed(self, job: TrainingSeen) -> Allowance | None:
        if self._allowances is None:
            return everything(job)
        key = JobKey(job.key.namespace, job.name, Kind.TRAINING_JOB)
        return self._allowances.of(key, job.uid, job.memory.scheduling)

    def _schedulers_trouble(self) -> tuple[Trouble, ...]:
        why = self._allowances.trouble if self._allowances is not None else None
        return () if why is None else (Trouble(reason=Reason.SCHEDULER_FAILING, message=why),)

    async def _record(self, there: Json, job: TrainingSeen, plan: TrainingPlan) -> bool:
        """Returns whether there was anything to write."""
        if plan.status == job.status:
            return False
        status = written_status(job, plan.status)
        if not differs(status, there.get("status")):
            return False
        await self._cluster.write_status(there, status)
        for notice in plan.notices:
            self._cluster.tell(there, reason=notice.reason, note=notice.note, warning=notice.warning)
        return True

    async def _act(self, job: TrainingSeen, plan: TrainingPlan) -> None:
        """Do what was decided: first what frees room, then what takes it."""
        cluster, namespace = self._cluster, job.key.namespace
        gone = [partial(cluster.delete, each.kind, namespace, each.name, each.uid) for each in plan.delete]
        await self._try(job, "delete", gone)
        await self._evict(job, plan)
        sizes = [
            partial(cluster.resize, e.kind, namespace, e.name, e.uid, e.generation, e.count, e.affinity)
            for e in plan.resize
        ]
        await self._try(job, "resize", sizes)
        if not await self._try(job, "prepare", [partial(cluster.ensure, each) for each in plan.ensure]):
            return
        if plan.ensure and plan.form is not None:
            self._prepared[job.uid] = plan.form
        await self._try(job, "create", [partial(cluster.create, each) for each in plan.create])

    async def _evict(self, job: TrainingSeen, plan: TrainingPlan) -> None:
        """Each for itself: one that a disruption budget keeps in place holds up no other. And all at once: the Job
        would replace a Pod that has ended before its parallelism is lowered."""
        parts = {f"evict {each.uid}": each for each in plan.evict}
        for part in self._holding.parts(job.uid):
            if part.startswith("evict ") and part not in parts:
                self._holding.done(job.uid, part)
        evict, namespace = self._cluster.evict, job.key.namespace
        tries = (self._try(job, part, [partial(evict, namespace, pod.name, pod.uid)]) for part, pod in parts.items())
        await asyncio.gather(*tries)

    async def _try(self, job: TrainingSeen, part: str, calls: Sequence[Callable[[], Awaitable[None]]]) -> bool:
        """Make the calls of one part, unless it is held back. Returns whether all of it is done."""
        if calls and self._holding.is_held(job.uid, part):
            return False
        for call in calls:
            try:
                await call()
            except (NameTaken, Denied) as exc:
                self._holding.refused(job.uid, part, [trouble_of(exc)])
                return False
        self._holding.done(job.uid, part)
        return True

    def _forget(self, key: Key) -> None:
        uid = self._uids.pop(key, None)
        if uid is not None:
            self._prepared.pop(uid, None)
            self._holding.forget(uid)
            self._reader.forget(uid)
