"""Move one job one step towards what is asked: read everything, decide once, record the decision, act, then answer.

Safe to call at any time, twice, late, or by two processes at once. A decision that rests on an old reading is refused
when it is recorded, before anything is done about it. After a crash at any line the next look repairs the rest: Pods
have names that were recorded before, so making one twice makes one.

What the server refuses is remembered until the next try and stands in the job's status meanwhile. It is tried again
ever later, however often the job is woken; what has nothing to do with it goes on: members for which there is no quota
hold up neither a deletion nor the next master.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

from shoal.api.labels import MASTER, ROLE
from shoal.api.reasons import Reason
from shoal.core.errors import Denied, NameTaken, Outdated
from shoal.core.pods import Trouble
from shoal.operator.actions import JobPlan, Resize
from shoal.operator.allowances import Allowance, Allowances
from shoal.operator.holding import Holding, trouble_of
from shoal.operator.masters import master_name
from shoal.operator.pacing import Pace
from shoal.operator.plan import plan_job
from shoal.operator.ports import Cluster, Json
from shoal.operator.reading import Reader, read_plan
from shoal.operator.resizing import Resizing
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import JobSeen, Key, PlanSeen, PlanStatus, Snapshot
from shoal.operator.verdicts import judge_orphan
from shoal.operator.writing import (
    counts_starts_only,
    differs,
    tells_of_new_pods,
    tells_of_starts_only,
    write_job,
    write_plan,
)
from shoal.scheduler.rows import JobKey, Kind

log = logging.getLogger("shoal.operator")

_SOON = timedelta(milliseconds=200)
"""After an outdated decision: the newer object is on its way, and wakes us before that."""
_AFTER_REFUSAL = timedelta(seconds=30)
"""Before a plan's status that the server did not take is written again."""


class Part(StrEnum):
    """What is refused as one, and held back as one."""

    PREPARE = "prepare"
    """The fixed objects: without them nothing else can be made."""
    MASTER = "master"
    MEMBERS = "members"
    CHECK = "check"
    """Another look at fixed objects that an earlier process made."""


class Reconciler:
    """`reconcile` is the whole of it. What it remembers between looks it could do without: it saves calls."""

    def __init__(
        self,
        cluster: Cluster,
        settings: OperatorSettings,
        *,
        clock: Callable[[], datetime],
        reader: Reader | None = None,
        allowances: Allowances | None = None,
        recorded: Callable[[JobPlan], None] | None = None,
    ) -> None:
        """`allowances`: where the scheduler's are found; None: there is no scheduler. `recorded`: who counts decisions
        that were written down."""
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._leads_since = clock()
        self._allowances = allowances
        self._recorded = recorded
        self._reader = reader or Reader(settings.defaults)
        self._uids: dict[Key, str] = {}
        self._prepared: dict[str, str] = {}
        self._ensured: dict[str, set[str]] = {}
        """Of each job that is being prepared, what exists."""
        self.holding = Holding(clock, order=Part)
        self._made: dict[str, dict[str, str]] = {}
        """Of each job, names and uids of Pods that were made and not yet seen to be recorded."""
        self._said: dict[str, tuple[str, PlanStatus]] = {}
        """Of each plan, in which version it was found to say what it should."""
        self._plans_of: dict[Key, set[str]] = {}
        """Of each job, also of one that is not there, the plans of which something is remembered."""
        self._resizing = Resizing(clock)
        self._pace = Pace(settings.news_rest)
        self._creating = asyncio.Semaphore(settings.parallel_writes)

    def begin(self) -> None:
        """We decide from now on; until now it may be that nobody did."""
        self._leads_since = self._clock()

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
        before, refused = self._troubles(job), self._resizing.refusals(job.uid)
        plan, seen = await self._plan(job, plans, before)
        untold = await self._record(there, job, plan)
        made = await self._act(job, plan)
        await self._resize(there, job, plan)
        again = await self._answer(job, plan, seen, made=made)
        if self._troubles(job) != before or self._resizing.refusals(job.uid) != refused:
            return timedelta(0)  # something is refused, or no longer: say so
        due = _until(plan.recheck_at, self._clock())
        retries = (*self.holding.retries(job.uid), *self._resizing.retries(job.uid))
        return min((each for each in (untold, again, due, *retries) if each is not None), default=None)

    async def _plan(
        self, job: JobSeen, raw_plans: Iterable[Json], troubles: tuple[Trouble, ...]
    ) -> tuple[JobPlan, dict[str, tuple[Json, PlanSeen]]]:
        seen = {}
        for raw in raw_plans:
            plan = read_plan(raw, job.name)
            seen[plan.ask] = (raw, plan)
        self._keep_plans(job.key, {plan.uid for _, plan in seen.values()})
        memory = job.memory
        expected = {m.name: m.uid for m in memory.members if m.uid is not None and m.has_pod}
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
            can_resize=_names_resources(seen.values()) and await self._cluster.can_resize(),
            refused_resizes=self._resizing.refusals(job.uid),
            troubles=troubles,
            prepared=self._prepared.get(job.uid),
            made=made,
            leads_since=self._leads_since,
            is_scheduled=self._allowances is not None,
            allowance=self._allowance(job),
        )
        return plan_job(snapshot, self._settings, now=self._clock()), seen

    def _allowance(self, job: JobSeen) -> Allowance | None:
        key = JobKey(job.key.namespace, job.key.name, Kind.ELASTIC_JOB)
        return None if self._allowances is None else self._allowances.of(key, job.uid, job.status.scheduling)

    async def _record(self, there: Json, job: JobSeen, plan: JobPlan) -> timedelta | None:
        """Write what was decided: the job's version is the fence. Returns when to write news that can wait."""
        if plan.status == job.status:
            return None
        status, written = write_job(job, plan.status), there.get("status")
        if not differs(status, written, without="training"):
            return None
        left = self._pace.left(job.uid, self._clock()) or self._behind_pods(job.uid)
        if left is not None and counts_starts_only(status, written):
            return left
        await self._write_status(there, job.uid, status)
        if self._recorded is not None:
            self._recorded(plan)
        for notice in plan.notices:
            self._cluster.tell(there, reason=notice.reason, note=notice.note, warning=notice.warning)
        return None

    def _behind_pods(self, uid: str) -> timedelta | None:
        """How long what can wait does so because Pods queue up to be made."""
        return self._pace.behind_pods(uid, self._clock()) if self._creating.locked() else None

    async def _write_status(self, there: Json, uid: str, status: Json) -> None:
        began = self._clock()
        await self._cluster.write_status(there, status)
        self._pace.wrote(uid, began, self._clock())

    async def _answer(
        self, job: JobSeen, plan: JobPlan, seen: dict[str, tuple[Json, PlanSeen]], *, made: bool
    ) -> timedelta | None:
        """Tell those who asked what became of it. Last, because nothing depends on it: what they ask for is recorded,
        and a plan whose status cannot be written holds up nobody. Returns when to write it again.

        `made`: Pods were made just now. They will be heard of, and the master told of them then, all at once."""
        again: list[timedelta | None] = []
        for ask, verdict in plan.plan_statuses.items():
            try:
                again.append(await self._write_plan(*seen[ask], verdict, later=made))
            except Outdated:
                again.append(_SOON)
            except Denied as exc:
                log.warning("%s: the status of %s was refused: %s", job.key, ask, exc)
                again.append(_AFTER_REFUSAL)
        return min((each for each in again if each is not None), default=None)

    async def _write_plan(
        self, raw: Json, plan: PlanSeen, verdict: PlanStatus, *, later: bool = False
    ) -> timedelta | None:
        """`later`: Pods that start need not be told of now. Returns when to write news that can wait."""
        if self._said.get(plan.uid) == (plan.version, verdict):
            return None
        status = write_plan(plan, verdict)
        if not differs(status, raw.get("status")):
            self._said[plan.uid] = (plan.version, verdict)
            return None
        if not plan.auto and (behind := self._behind_pods(plan.uid)) is not None:
            return behind
        left, there = self._pace.left(plan.uid, self._clock()), raw.get("status")
        can_wait = later or (left is not None and not tells_of_new_pods(status, there))
        if can_wait and tells_of_starts_only(status, there):
            return left
        await self._write_status(raw, plan.uid, status)
        return None

    async def _act(self, job: JobSeen, plan: JobPlan) -> bool:
        """Do what was decided. What the server refuses is held back until its next try. Returns whether members' Pods
        were made."""
        namespace = job.key.namespace
        await self._all(partial(self._cluster.delete_pod, namespace, ref.name, ref.uid) for ref in plan.delete)
        if plan.delete_job:
            await self._cluster.delete_job(namespace, job.name, job.uid)
        if not await self._prepare(job, Part.PREPARE, plan.form, plan.ensure):
            return False
        masters = [manifest for manifest in plan.create if manifest["metadata"]["labels"][ROLE] == MASTER]
        members = [manifest for manifest in plan.create if manifest["metadata"]["labels"][ROLE] != MASTER]
        await self._try(job, Part.MASTER, [partial(self._create, job, manifest) for manifest in masters])
        made = await self._try(job, Part.MEMBERS, [partial(self._create, job, manifest) for manifest in members])
        checked = await self._prepare(job, Part.CHECK, plan.form, plan.check)
        if (plan.ensure or plan.check) and plan.form is not None and checked:
            self._prepared[job.uid] = plan.form
            self._ensured.pop(job.uid, None)
        return made and bool(members)

    async def _prepare(self, job: JobSeen, part: Part, form: str | None, manifests: tuple[Json, ...]) -> bool:
        """Make fixed objects: a binding last, for the server looks at the Role that it names."""
        bindings = [each for each in manifests if each["kind"] == "RoleBinding"]
        others = [each for each in manifests if each["kind"] != "RoleBinding"]
        waves = ([partial(self._ensure, job, form, each) for each in wave] for wave in (others, bindings))
        return await self._try(job, part, *waves)

    async def _try(self, job: JobSeen, part: Part, *waves: Sequence[Callable[[], Awaitable[None]]]) -> bool:
        """Make the calls of one part, one wave after the other, unless it is held back. Returns whether all of it is
        done: only then is it forgotten how often it was refused."""
        if any(waves) and self.holding.is_held(job.uid, part):
            return False
        for calls in waves:
            if troubles := await self._all(calls):
                self.holding.refused(job.uid, part, troubles)
                return False
        self.holding.done(job.uid, part)
        return True

    def _troubles(self, job: JobSeen) -> tuple[Trouble, ...]:
        found = [*self.holding.troubles(job.uid)]
        if self._allowances is not None and self._allowances.trouble is not None:
            found.append(Trouble(reason=Reason.SCHEDULER_FAILING, message=self._allowances.trouble))
        return tuple(dict.fromkeys(found))

    async def _resize(self, there: Json, job: JobSeen, plan: JobPlan) -> None:
        """Change running Pods in place. One that cannot be changed so keeps what it has, and that is said; the others
        are tried all the same: one that shrinks may make room for one that grows."""
        due = self._resizing.due(job.uid, plan.resize)
        try:
            await self._all(partial(self._resize_one, there, job, each) for each in due)
        finally:
            self._resizing.rest(job.uid)

    async def _resize_one(self, there: Json, job: JobSeen, each: Resize) -> None:
        pod = each.pod
        try:
            await self._cluster.resize_pod(job.key.namespace, pod.name, pod.uid, each.container, each.resources)
        except Denied as exc:
            if self._resizing.refused(job.uid, each, trouble_of(exc)):
                note = f"{pod.name} keeps what it has: {exc}"
                self._cluster.tell(there, reason=Reason.RESIZE_REFUSED, note=note, warning=True)
        else:
            self._resizing.agreed(job.uid, each)

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
                except (NameTaken, Denied) as exc:
                    troubles.append(trouble_of(exc))

        answers = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return tuple(sorted(set(troubles), key=lambda trouble: (trouble.reason, trouble.message)))

    async def _judge_orphans(self, key: Key) -> None:
        plans = [(raw, read_plan(raw, key.name)) for raw in self._cluster.plans(key.namespace, key.name)]
        self._keep_plans(key, {plan.uid for _, plan in plans})
        for raw, plan in plans:
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
            self.holding.forget(uid)
            self._ensured.pop(uid, None)
            self._made.pop(uid, None)
            self._resizing.forget(uid)
            self._pace.forget(uid)
            self._reader.forget(uid)

    def _keep_plans(self, key: Key, uids: set[str]) -> None:
        """Forget the plans of a job that are gone."""
        for gone in self._plans_of.pop(key, set()) - uids:
            self._said.pop(gone, None)
            self._pace.forget(gone)
        if uids:
            self._plans_of[key] = uids


def _names_resources(seen: Iterable[tuple[Json, PlanSeen]]) -> bool:
    return any(not ask.resource.is_silent for _, plan in seen for ask in plan.roles.values())


def _until(moment: datetime | None, now: datetime) -> timedelta | None:
    return None if moment is None else max(moment - now, timedelta(0))
