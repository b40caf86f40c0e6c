"""Move one job one step towards what is asked: read everything, decide once, record the decision, then act.

Safe to call at any time, twice, late, or by two processes at once. A decision that rests on an old reading is refused
when it is recorded, before anything is done about it. After a crash at any line the next look repairs the rest: Pods
have names that were recorded before, so making one twice makes one.

What the server refuses is remembered until the next try and stands in the job's status meanwhile; such a job is tried
again ever later, however often it is woken.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from shoal.core.errors import Denied, NameTaken, Outdated
from shoal.core.pods import Trouble
from shoal.operator.masters import master_name
from shoal.operator.plan import JobPlan, plan_job
from shoal.operator.ports import Cluster, Json
from shoal.operator.reading import Reader, read_plan
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import JobSeen, Key, PlanSeen, PlanStatus, Snapshot
from shoal.operator.verdicts import judge_orphan
from shoal.operator.writing import differs, write_job, write_plan

_SOON = timedelta(milliseconds=200)
"""After an outdated decision: the newer object is on its way, and wakes us before that."""
_FIRST_RETRY = timedelta(seconds=2)
_LAST_RETRY = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A job for which the server refused something."""

    troubles: tuple[Trouble, ...]
    retry_at: datetime
    failures: int


class Reconciler:
    """`reconcile` is the whole of it. What it remembers between looks it could do without: it saves calls."""

    def __init__(
        self,
        cluster: Cluster,
        settings: OperatorSettings,
        *,
        clock: Callable[[], datetime],
        reader: Reader | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._reader = reader or Reader()
        self._uids: dict[Key, str] = {}
        self._prepared: dict[str, str] = {}
        self._ensured: dict[str, set[str]] = {}
        """Of each job that is being prepared, what exists."""
        self._held: dict[str, Held] = {}
        self._made: dict[str, dict[str, str]] = {}
        """Of each job, names and uids of Pods that were made and not yet seen to be recorded."""
        self._said: dict[str, tuple[str, PlanStatus]] = {}
        """Of each plan, in which version it was found to say what it should."""
        self._plans_of: dict[str, list[str]] = {}
        self._creating = asyncio.Semaphore(settings.parallel_writes)

    async def reconcile(self, key: Key) -> timedelta | None:
        """One look. Returns when to look again, if nothing happens before."""
        there = self._cluster.job(key.namespace, key.name)
        if there is None:
            self._forget(key)
            await self._judge_orphans(key)
            return None
        job = self._reader.job(there)
        if self._uids.setdefault(key, job.uid) != job.uid:  # deleted, and made anew under its name
            self._forget(key)
            self._uids[key] = job.uid
        try:
            return await self._look(there, job)
        except Outdated:
            return _SOON

    async def _look(self, there: Json, job: JobSeen) -> timedelta | None:
        plans = self._cluster.plans(job.key.namespace, job.name)
        held = self._held.get(job.uid)
        plan, seen = await self._plan(job, plans, held.troubles if held else ())
        await self._record(there, job, plan, seen)
        now = self._clock()
        if held is not None and now < held.retry_at:
            return _earlier(held.retry_at - now, _until(plan.recheck_at, now))
        troubles = await self._act(job, plan)
        if troubles:
            return self._hold(job, troubles, held)
        if held is not None:
            del self._held[job.uid]
            return timedelta(0)  # the trouble is over: say so
        return _until(plan.recheck_at, self._clock())

    async def _plan(
        self, job: JobSeen, raw_plans: Iterable[Json], troubles: tuple[Trouble, ...]
    ) -> tuple[JobPlan, dict[str, tuple[Json, PlanSeen]]]:
        seen = {}
        for raw in raw_plans:
            plan = read_plan(raw, job.name)
            seen[plan.ask] = (raw, plan)
        self._plans_of[job.uid] = [plan.uid for _, plan in seen.values()]
        memory = job.memory
        expected = {member.name: member.uid for member in memory.members if member.uid is not None}
        if memory.master.uid is not None:
            expected[master_name(job.name, memory.master.term)] = memory.master.uid
        made = {name: uid for name, uid in self._made.get(job.uid, {}).items() if name not in expected}
        self._made[job.uid] = made
        pods = await self._cluster.pods(job.key.namespace, job.uid, {**made, **expected})
        snapshot = Snapshot(
            job=job,
            plans=tuple(plan for _, plan in seen.values()),
            pods=tuple(pods),
            has_auto_plan=any(plan.auto for _, plan in seen.values()),
            troubles=troubles,
            prepared=self._prepared.get(job.uid),
            made=made,
        )
        return plan_job(snapshot, self._settings, now=self._clock()), seen

    async def _record(
        self,
        there: Json,
        job: JobSeen,
        plan: JobPlan,
        seen: dict[str, tuple[Json, PlanSeen]],
    ) -> None:
        """Write what was decided. The job first: its version is the fence."""
        if plan.status != job.status:
            status = write_job(job, plan.status)
            if differs(status, there.get("status"), without="training"):
                await self._cluster.write_status(there, status)
                for notice in plan.notices:
                    self._cluster.tell(there, reason=notice.reason, note=notice.note, warning=notice.warning)
        for ask, verdict in plan.plan_statuses.items():
            await self._write_plan(*seen[ask], verdict)

    async def _write_plan(self, raw: Json, plan: PlanSeen, verdict: PlanStatus) -> None:
        if self._said.get(plan.uid) == (plan.version, verdict):
            return
        status = write_plan(plan, verdict)
        if differs(status, raw.get("status")):
            await self._cluster.write_status(raw, status)
        else:
            self._said[plan.uid] = (plan.version, verdict)

    async def _act(self, job: JobSeen, plan: JobPlan) -> tuple[Trouble, ...]:
        """Do what was decided. Returns what the server refused."""
        namespace = job.key.namespace
        await self._all(partial(self._cluster.delete_pod, namespace, ref.name, ref.uid) for ref in plan.delete)
        troubles = await self._all(partial(self._ensure, job, plan.form, manifest) for manifest in plan.ensure)
        if troubles:
            return troubles
        if plan.ensure and plan.form is not None:
            self._prepared[job.uid] = plan.form
            self._ensured.pop(job.uid, None)
        troubles = await self._all(partial(self._create, job, manifest) for manifest in plan.create)
        if plan.delete_job:
            await self._cluster.delete_job(namespace, job.name, job.uid)
        return troubles

    async def _ensure(self, job: JobSeen, form: str | None, manifest: Json) -> None:
        """What is there already is not asked for again while the rest still fails: each try gets a bit further."""
        done = self._ensured.setdefault(job.uid, set())
        which = f"{form} {manifest['kind']} {manifest['metadata']['name']}"
        if which not in done:
            await self._cluster.ensure(manifest)
            done.add(which)

    async def _create(self, job: JobSeen, manifest: Json) -> None:
        self._made.setdefault(job.uid, {})[manifest["metadata"]["name"]] = await self._cluster.create_pod(manifest)

    async def _all(self, calls: Iterable[Callable[[], Awaitable[None]]]) -> tuple[Trouble, ...]:
        """Make the calls, several at once. What follows a refusal is not tried: it would be refused as well."""
        troubles: list[Trouble] = []

        async def one(call: Callable[[], Awaitable[None]]) -> None:
            async with self._creating:
                if troubles:
                    return
                try:
                    await call()
                except NameTaken as exc:
                    troubles.append(Trouble(reason="NameConflict", message=str(exc)))
                except Denied as exc:
                    troubles.append(Trouble(reason=exc.reason, message=str(exc)))

        answers = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return tuple(sorted(set(troubles), key=lambda trouble: (trouble.reason, trouble.message)))

    def _hold(self, job: JobSeen, troubles: tuple[Trouble, ...], held: Held | None) -> timedelta:
        failures = held.failures + 1 if held else 0
        wait = min(_FIRST_RETRY * (1 << min(failures, 16)), _LAST_RETRY)
        self._held[job.uid] = Held(troubles=troubles, retry_at=self._clock() + wait, failures=failures)
        said = held is not None and held.troubles == troubles
        return wait if said else timedelta(0)  # at once: to write down what was refused

    async def _judge_orphans(self, key: Key) -> None:
        for raw in self._cluster.plans(key.namespace, key.name):
            plan = read_plan(raw, key.name)
            elsewhere = [each for each in self._cluster.namespaces_of(key.name) if each != key.namespace]
            verdict = judge_orphan(plan, key, elsewhere, now=self._clock())
            try:
                await self._write_plan(raw, plan, verdict)
            except Outdated:
                continue  # it has changed, so it wakes us again

    def _forget(self, key: Key) -> None:
        uid = self._uids.pop(key, None)
        if uid is not None:
            self._prepared.pop(uid, None)
            self._held.pop(uid, None)
            self._ensured.pop(uid, None)
            self._made.pop(uid, None)
            for plan in self._plans_of.pop(uid, ()):
                self._said.pop(plan, None)
            self._reader.forget(uid)


def _until(moment: datetime | None, now: datetime) -> timedelta | None:
    return None if moment is None else max(moment - now, timedelta(0))


def _earlier(one: timedelta, other: timedelta | None) -> timedelta:
    return one if other is None else min(one, other)
