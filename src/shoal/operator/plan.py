"""One decision about one job: everything that is known goes in, everything that is to be done comes out.

`plan_job` is where all that the operator does is decided. It is pure: the same snapshot at the same moment gives the
same plan. What it decides is first recorded (`status`, `plan_statuses`), then done; carried out twice or half it leads
to the same end, because whoever comes next plans again from what is there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from shoal.api.elasticjob import JobCondition, Role
from shoal.api.fields import MAX_ENTRIES
from shoal.api.jobspec import JobSpec
from shoal.api.labels import MASTER
from shoal.api.reasons import Reason
from shoal.core.hang import NO_STEP
from shoal.core.pods import PodSeen
from shoal.operator.actions import JobPlan, Notice, PodRef
from shoal.operator.allowances import Allowance
from shoal.operator.asks import ROLES, asks_for_members, decide_asks, needs_of
from shoal.operator.counting import resize_of, settled_counts
from shoal.operator.crew import Crew
from shoal.operator.ending import Ending, decide_end, plan_cleanup
from shoal.operator.grants import UNLIMITED, Limit, decide_grant
from shoal.operator.masters import MasterPlan, look_at_master, master_name, plan_master, why_no_master
from shoal.operator.members import Alone, MasterLooks, Refusal, fit, obey, replace_alone
from shoal.operator.memory import Grant, MasterRecord, Member, MemberState, Memory
from shoal.operator.moves import Moving, advance
from shoal.operator.objects import Manifest, auto_plan, fixed_objects, form_of
from shoal.operator.placing import prefer
from shoal.operator.pods import NoPod, master_pod, member_pod
from shoal.operator.seats import coming_back, left_behind
from shoal.operator.servers import Held, held_servers, why_not_suspended
from shoal.operator.settings import OperatorSettings
from shoal.operator.sizing import Sizing
from shoal.operator.snapshot import (
    Condition,
    JobSeen,
    JobStatus,
    PlanSeen,
    PlanStatus,
    RoleCounts,
    Snapshot,
    Training,
)
from shoal.operator.standings import to_status
from shoal.operator.status import TRUE, conditions, say, say_invalid, say_over
from shoal.operator.verdicts import judge, judge_over, report

MANAGED_BY = "elastic.iml.github.io/operator"
"""What `spec.managedBy` says when it means us."""
_QUOTAS = frozenset({Reason.QUOTA_EXCEEDED, Reason.OVER_QUOTA})
_WARNINGS = frozenset({Reason.HANG_DETECTED, Reason.MEMBER_LOST, Reason.MASTER_LOST, Reason.MIGRATION_FAILED})


def plan_job(snapshot: Snapshot, settings: OperatorSettings, *, now: datetime) -> JobPlan:
    job = snapshot.job
    if job.deleting or (job.spec is not None and job.spec.managed_by not in (None, "", MANAGED_BY)):
        return JobPlan(status=job.status)
    if job.spec is None:
        return _invalid(job, job.invalid, now=now)
    if job.is_over:
        return _after_the_end(snapshot, job.spec, settings, now=now)
    if snapshot.is_scheduled and snapshot.allowance is None and _is_new(job):
        return JobPlan(status=job.status)  # the scheduler's first word about it wakes us
    try:
        return _Decision(snapshot, job.spec, settings, now).plan()
    except NoPod as exc:
        return _invalid(job, str(exc), now=now)


def _is_new(job: JobSeen) -> bool:
    memory = job.memory
    return not memory.members and memory.master.term == 0 and job.status.scheduling is None


def _invalid(job: JobSeen, why: str, *, now: datetime) -> JobPlan:
    """What cannot be understood is said, and nothing is done."""
    said = {str(kind): each for kind, each in say_invalid(why).items()}
    told = conditions(job.status.conditions, said, generation=job.generation, now=now)
    status = replace(job.status, conditions=told, observed_generation=job.generation)
    return JobPlan(status=status, notices=_notices(job, told))


class _Decision:
    """`plan_job` for a job that is not over: one step after the other on a working copy of the members."""

    def __init__(self, snapshot: Snapshot, spec: JobSpec, settings: OperatorSettings, now: datetime) -> None:
        self.before = snapshot.job.memory
        self.goes_on = why_not_suspended(spec, self.before, has_begun=snapshot.job.training is not None)
        """Why it does not rest though it should."""
        if self.goes_on:
            spec = replace(spec, suspend=False)
        self.snapshot, self.job, self.spec, self.settings, self.now = snapshot, snapshot.job, spec, settings, now
        self.asks = decide_asks(spec, self.before, snapshot.plans, now=now)
        self.limit = Limit(is_scheduled=snapshot.is_scheduled, allowance=self._allowance())
        waits = self.limit.allowance is not None and not self.limit.allowance.is_admitted
        self.waits = snapshot.is_scheduled and waits and not spec.suspend
        """The scheduler has not admitted it, or has put it back into the queue."""
        self.rests = spec.suspend or self.waits
        """It should have no members now."""
        self.managed = settings.managed_in(spec)
        self.plans = [plan for plan in snapshot.plans if plan.refused is None and plan.invalid is None]
        self.auto = next((plan for plan in self.plans if plan.auto), None)
        self.record, self.looks = self._look_at_master()
        self.crew = Crew(
            snapshot.job.name,
            self.before,
            snapshot.pods,
            made=snapshot.made,
            made_elsewhere=settings.made_by_master(spec),
            host_grace=settings.times.host_grace,
            now=now,
        )
        self.sizing = Sizing(
            crew=self.crew,
            spec=spec,
            asks=self.asks,
            settings=settings,
            can_resize=snapshot.can_resize,
            refused=snapshot.refused_resizes,
            rests=self.rests,
            plans=self.plans,
            moves=self.before.moves,
        )

    def plan(self) -> JobPlan:
        crew, before = self.crew, self.before
        crew.observe()
        self._hear_of_hangs()
        orders = None if self.settings.pod_scaler else self.auto
        refusals = obey(crew, orders, before.grant.counts, suspended=self.rests)
        alone = Alone() if self.ends else replace_alone(crew, self.spec, before.moves, self.looks, self.settings)
        ending = self._ending(alone)
        if ending is not None:
            return self._end(ending)
        moving = advance(
            crew,
            before.moves,
            [self.sizing.with_moves(plan) for plan in self.plans],
            suspended=self.rests,
            pending=self.settings.times.pending,
            most=self._most_moves(),
        )
        self.sizing = replace(self.sizing, moves=moving.moves)
        grant = self._grant(moving)
        self._fit(grant)
        over = not crew.members and (self.spec.suspend or not self._may_have_master())
        master = self._master(wanted=not over)
        if grant.counts != before.grant.counts:
            resting = Reason.SUSPENDED if self.spec.suspend else Reason.PUT_BACK if self.waits else None
            crew.say(resting or Reason.RESIZED, grant.reason)
        memory = self._memory(grant, moving, master.record)
        return self._carried_out(self._status(memory), master, (alone.next_look, moving.next_look), refusals, over=over)

    # The steps -------------------------------------------------------------------------------------------------

    def _allowance(self) -> Allowance | None:
        """The scheduler's word; None: nothing yet of the job as it is now."""
        found = self.snapshot.allowance
        takes_part = not self.spec.suspend and asks_for_members(self.spec, self.asks)
        return found if found is None or found.is_about(takes_part=takes_part) else None

    def _look_at_master(self) -> tuple[MasterRecord, MasterLooks]:
        known = self.before.master
        if known.uid is None:
            known = replace(known, uid=self.snapshot.made.get(master_name(self.job.name, known.term)))
        return look_at_master(known, self.snapshot.pods, self.job.training, needed=not self.rests, now=self.now)

    def _hear_of_hangs(self) -> None:
        """What the master decided about members that hang is told once: what was told last stands in the status. Whole
        seconds are compared, for others may write no more."""
        heard, last = self.job.training, self.job.status.decided_at
        if heard is None or heard.decided_at is None or NO_STEP not in (heard.decision or ""):
            return
        if last is None or heard.decided_at.replace(microsecond=0) > last.replace(microsecond=0):
            self.crew.say(Reason.HANG_DETECTED, heard.decision or "")

    @property
    def heard(self) -> Training | None:
        """What the master that there is has said of the training."""
        said = self.job.training
        return said if said is not None and said.term == self.record.term else None

    @property
    def ends(self) -> bool:
        """The master is ending the job: it lets all go, and would let go whoever came."""
        return self.heard is not None and self.heard.is_ending and self.looks.answers

    def _ending(self, alone: Alone) -> Ending | None:
        return decide_end(
            self.crew,
            self.spec,
            self.heard,
            started=self.before.start_time,
            exhausted=alone.exhausted,
            looks=self.looks,
            no_master=None if self.rests else self._no_master(),
            settings=self.settings,
        )

    def _no_master(self) -> str | None:
        return why_no_master(
            self.record,
            self.snapshot.pods,
            most=self.settings.master_restarts,
            times=self.settings.times,
            leads_since=self.snapshot.leads_since,
            now=self.now,
        )

    def _grant(self, moving: Moving) -> Grant:
        crew = self.crew
        return decide_grant(
            self.before.grant,
            self.asks,
            limit=self.limit,
            kept=_kept(crew, moving),
            surge=moving.surge,
            victims=_victims(crew, moving.victims, self.plans, self.limit.victims),
            live={role: len(crew.live(role)) for role in ROLES},
            replaced=_replaced(crew, moving),
            suspended=self.spec.suspend,
            times=self.settings.times,
            now=self.now,
        )

    def _fit(self, grant: Grant) -> None:
        """Make the members as many as granted."""
        held = self._held_servers(grant)
        fit(
            self.crew,
            grant,
            self.looks,
            managed=self.managed,
            made_elsewhere=self.crew.made_elsewhere,
            takes_servers=held is not None and held.due is not None and self.now >= held.due,
            orders=[order for plan in self.plans if plan.ask in self.asks.winning for order in plan.create],
            seats=coming_back(self.before.seats, self.asks),
            adds=not self.ends,
            resting="the job is suspended" if self.spec.suspend else self.limit.reason if self.waits else "",
        )

    def _held_servers(self, grant: Grant) -> Held | None:
        return held_servers(
            self.crew,
            grant,
            self.looks,
            patience=self.settings.master_timeout,
            rests=self.rests,
            has_begun=self.job.training is not None,
            managed=self.managed,
        )

    def _master(self, *, wanted: bool) -> MasterPlan:
        master = plan_master(
            self.record,
            self.snapshot.pods,
            wanted=wanted,
            makes_pods=self.settings.pod_scaler,
            times=self.settings.times,
            leads_since=self.snapshot.leads_since,
            now=self.now,
        )
        if master.lost is not None:
            followed = f"master {self.record.term} is followed by {master.record.term}"
            self.crew.say(Reason.MASTER_LOST, f"{followed}: {master.lost}")
        return master

    def _memory(self, grant: Grant, moving: Moving, master: MasterRecord) -> Memory:
        before, crew = self.before, self.crew
        return replace(
            before,
            members=crew.members,
            next_id=crew.next_ids,
            wanted={role: each.count for role, each in self.asks.roles.items() if each.count is not None},
            grant=grant,
            moves=moving.moves,
            master=master,
            accepted=self.asks.accepted,
            seats=left_behind(before, crew),
            start_time=None if self.rests else before.start_time or (self.now if crew.members else None),
        )

    def _carried_out(
        self,
        status: JobStatus,
        master: MasterPlan,
        dues: Sequence[datetime | None],
        refusals: Sequence[Refusal],
        *,
        over: bool,
    ) -> JobPlan:
        """The status, and what follows from it. `dues`: when members are to be looked at again. `over`: nothing of the
        job has to be there but its record."""
        crew, term = self.crew, master.record.term
        form = form_of(term)
        ensure = () if over else self._ensure(form, term)
        check = () if over or ensure else self._check(form, term)
        if not ensure and not over:
            status = replace(status, memory=replace(status.memory, prepared=form))
        memory = status.memory
        unborn = crew.to_create(memory.grant.counts)
        masters = [self._master_pod(term)] if master.create else []
        return JobPlan(
            status=status,
            plan_statuses=self._verdicts(status, refusals),
            ensure=ensure,
            check=check,
            form=form,
            create=(*masters, *self._members(unborn)),
            delete=tuple(PodRef(name=pod.name, uid=pod.uid) for pod in (*crew.to_delete(), *master.delete)),
            resize=self.sizing.resizes(),
            notices=self._notices(status),
            resized=resize_of(
                self.before,
                memory,
                self.asks,
                auto=self.auto.ask if self.auto else None,
                suspends=self.spec.suspend is not self._was_suspended(),
            ),
            lost=tuple(crew.lost),
            recheck_at=self.now if len(unborn) > self.settings.most_at_once else self._next_look(memory, master, dues),
        )

    # What they need --------------------------------------------------------------------------------------------

    def _may_have_master(self) -> bool:
        """A job that waits holds one only near its turn; until the scheduler has spoken, one that it has."""
        if not self.limit.is_scheduled:
            return True
        if self.limit.allowance is None:
            return self.before.master.term > 0 and not self.before.master.stopped
        return self.limit.allowance.starts_master or self.limit.allowance.is_admitted

    def _was_suspended(self) -> bool:
        admitted = self.job.status.conditions.get(JobCondition.ADMITTED)
        return admitted is not None and admitted.reason == Reason.SUSPENDED

    def _most_moves(self) -> int | None:
        """Replacements that may start beside those they replace: what they have meanwhile nobody has granted them."""
        granted = sum(self.before.grant.counts.values())
        return max(1, granted // 10) if self.limit.is_scheduled else None

    def _end(self, ending: Ending) -> JobPlan:
        """Record the end; what follows from it is done by `_after_the_end` when the record stands."""
        crew = self.crew
        memory = replace(self.before, members=crew.members, next_id=crew.next_ids, finish_time=self.now)
        told = conditions(
            self.job.status.conditions,
            {str(kind): each for kind, each in say_over(ending, ()).items()},
            generation=self.job.generation,
            now=self.now,
        )
        status = _summed(replace(self.job.status, memory=memory, conditions=told), self.snapshot, self.job)
        status = replace(status, decision=ending.message, decided_at=self.now)
        notice = Notice(reason=ending.reason, note=ending.message, warning=not ending.success)
        return JobPlan(status=status, notices=(notice,), lost=tuple(crew.lost), recheck_at=self.now)

    def _status(self, memory: Memory) -> JobStatus:
        said = say(
            memory,
            self.asks,
            self.snapshot.pods,
            self.job.training,
            self.snapshot.troubles,
            suspended=self.spec.suspend,
            limit=self.limit,
            master_answers=self.looks.answers,
            remarks=[*self._unknown_priorities(), *([self.goes_on] if self.goes_on else [])],
            master_missed=self._missed(),
            held=self._servers_stay(memory.grant),
        )
        told = conditions(
            self.job.status.conditions,
            {str(kind): each for kind, each in said.items()},
            generation=self.job.generation,
            now=self.now,
        )
        status = _summed(replace(self.job.status, memory=memory, conditions=told), self.snapshot, self.job)
        if self.limit.allowance is not None:
            status = replace(status, scheduling=to_status(self.limit.allowance, status.scheduling))
        replaced = sum(reason == Reason.MEMBER_REPLACED for reason, _ in self.crew.said)
        status = replace(status, restarts=status.restarts + replaced)
        if self.crew.said:
            decision = "; ".join(sentence for _, sentence in self.crew.said[-3:])
            heard = self.job.training.decided_at if self.job.training else None  # its clock may be ahead of ours
            status = replace(status, decision=decision[:1024], decided_at=max(self.now, heard or self.now))
        return status

    def _servers_stay(self, grant: Grant) -> str:
        """What is said of parameter servers that are to go and are still there."""
        held = self._held_servers(grant)
        return "" if held is None else held.why

    def _ensure(self, form: str, term: int) -> tuple[Manifest, ...]:
        if form in (self.snapshot.prepared, self.before.prepared):
            if self.snapshot.has_auto_plan:
                return ()
            if self.snapshot.prepared == form:
                return (auto_plan(self.job),)
        return fixed_objects(self.job, term, self.settings)

    def _check(self, form: str, term: int) -> tuple[Manifest, ...]:
        return () if self.snapshot.prepared == form else fixed_objects(self.job, term, self.settings)

    def _unknown_priorities(self) -> list[str]:
        """What is said of roles whose `priority` means nothing here."""
        classes = self.settings.priority_classes
        return [
            f"{role}.priority {needs.priority} has no effect: the operator has no PriorityClass for it "
            "(--priority-classes)"
            for role, needs in sorted(self.spec.roles.items())
            if needs.priority is not None and needs.priority not in classes
        ]

    def _master_pod(self, term: int) -> Manifest:
        pod = master_pod(self.job, term, self.settings)
        host = next(self._hosts(MASTER), None)
        return pod if host is None else prefer(pod, host)

    def _members(self, unborn: Sequence[Member]) -> list[Manifest]:
        made = []
        hosts = {role: self._hosts(str(role), trains=role is Role.WORKER) for role in ROLES}
        for member in unborn[: self.settings.most_at_once]:
            needs = needs_of(self.spec, member.role)
            if needs is not None:
                host = next(hosts[member.role], None)
                pod = member_pod(self.job, self.spec, needs, member, self.sizing.target(member), self.settings)
                made.append(pod if host is None or host in member.avoid_hosts else prefer(pod, host))
        return made

    def _hosts(self, role: str, *, trains: bool = False) -> Iterator[str]:
        """Where the scheduler has found room for new Pods of a role, once for each of them."""
        allowance = self.limit.allowance
        planned = {} if allowance is None else allowance.hosts_for(role, trains=trains)
        return iter([host for host, count in sorted(planned.items()) for _ in range(count)])

    def _verdicts(self, status: JobStatus, refusals: Sequence[Refusal]) -> dict[str, PlanStatus]:
        return {
            plan.ask: judge(
                plan,
                self.asks,
                status.memory,
                status.counts,
                granted=settled_counts(status.memory),
                limit=UNLIMITED if self.spec.suspend else self.limit,
                refusals=refusals if plan.auto else (),
                remark=self.sizing.remark(plan),
                unmet=self.sizing.unmet(plan),
                held=self._servers_stay(status.memory.grant),
                pods=report(self.crew.members, self.crew.pods) if plan.auto else (),
                now=self.now,
            )
            for plan in self.snapshot.plans
        }

    def _notices(self, status: JobStatus) -> tuple[Notice, ...]:
        said = tuple(Notice(reason=reason, note=note, warning=reason in _WARNINGS) for reason, note in self.crew.said)
        if self.before.start_time is None and status.memory.start_time is not None:
            unknown = self._unknown_priorities()
            said += tuple(Notice(reason=Reason.PRIORITY_IGNORED, note=note, warning=True) for note in unknown)
        return (*said, *self._news(status), *_notices(self.job, status.conditions))

    def _news(self, status: JobStatus) -> Iterator[Notice]:
        """What the master reports and the scheduler decides, when it becomes so: the status remembers it."""
        heard, before = self.job.training, self.job.status
        if heard is not None and heard.world is not None and heard.world != before.world:
            why = f": {heard.decision}" if heard.decision else ""
            yield Notice(reason=Reason.RENDEZVOUS_COMPLETED, note=f"world {heard.world} trains{why}")
        was, granted = settled_counts(self.before), settled_counts(status.memory)
        is_less = sum(granted.values()) < sum(was.values())
        by_scheduler = self.limit.is_scheduled and status.memory.wanted == self.before.wanted and not self.spec.suspend
        if is_less and by_scheduler:
            yield Notice(reason=Reason.PREEMPTED, note=status.memory.grant.reason, warning=True)
        now, then = status.conditions[JobCondition.ADMITTED], before.conditions.get(JobCondition.ADMITTED)
        if now.status != TRUE and now.reason in _QUOTAS and (then is None or then.reason != now.reason):
            yield Notice(reason=Reason.QUOTA_PENDING, note=now.message)

    def _next_look(self, memory: Memory, master: MasterPlan, members: Sequence[datetime | None]) -> datetime | None:
        """When time alone will have changed something."""
        dues = [memory.grant.drain_by, *members, master.next_look, self._deadline(memory)]
        held = self._held_servers(memory.grant)
        dues += [self._silence(), self._missed_from(), None if held is None else held.due]
        grace = self.settings.times.host_grace
        dues += [pod.host_down + grace for pod in self.snapshot.pods if pod.host_down is not None]
        return min((due for due in dues if due is not None and due > self.now), default=None)

    def _deadline(self, memory: Memory) -> datetime | None:
        if memory.start_time is None or self.spec.active_deadline is None:
            return None
        return memory.start_time + self.spec.active_deadline

    def _missed_from(self) -> datetime | None:
        """From when on it is said that nobody makes Pods. None: it is the operator who does, or a master answers."""
        if not self.settings.pod_scaler or self.rests or self.looks.silent_since is None:
            return None
        return self.looks.silent_since + self.settings.times.silence

    def _missed(self) -> str:
        due = self._missed_from()
        if due is None or self.now < due:
            return ""
        seconds = int(self.settings.times.silence.total_seconds())
        why = "nobody else makes or replaces Pods (--pod-scaler)"
        return f"no master has answered for {seconds} s, and {why}"

    def _silence(self) -> datetime | None:
        """When all workers have ended well and nobody says so, we look again."""
        workers, looks = self.crew.seats(Role.WORKER), self.looks
        if not workers or looks.silent_since is None or any(m.state is not MemberState.SUCCEEDED for m in workers):
            return None
        last = max(member.ended_at for member in workers if member.ended_at is not None)
        return max(last, looks.silent_since) + self.settings.times.silence


def _kept(crew: Crew, moving: Moving) -> dict[Role, int]:
    """The seats of each role; of a member and its replacement, one."""
    replaced = _replaced(crew, moving)
    return {role: len(crew.seats(role)) - moving.surge.get(role, 0) - replaced[role] for role in ROLES}


def _replaced(crew: Crew, moving: Moving) -> dict[Role, int]:
    """Members that have a seat although their replacement runs."""
    leaving = [member.role for name in moving.victims if (member := crew.get(name)) is not None and member.has_seat]
    return {role: leaving.count(role) for role in ROLES}


def _victims(crew: Crew, moved: Sequence[str], plans: Sequence[PlanSeen], chosen: Sequence[str]) -> tuple[str, ...]:
    """Who should go first: those whose replacement runs, then those that users' `removePods` name, then those that the
    scheduler chose. Only who is there, and no more than the status has room for: what is decided must be what is read
    back."""
    live = {member.name for role in ROLES for member in crew.live(role)}
    named = sorted({name for plan in plans if not plan.auto for name in plan.remove})
    return tuple(name for name in dict.fromkeys([*moved, *named, *chosen]) if name in live)[:MAX_ENTRIES]


def _notices(job: JobSeen, told: Mapping[str, Condition]) -> tuple[Notice, ...]:
    """An event when a trouble begins or becomes another."""
    now, before = told[JobCondition.DEGRADED], job.status.conditions.get(JobCondition.DEGRADED)
    if now.status != TRUE or (before is not None and before.reason == now.reason):
        return ()
    return (Notice(reason=now.reason, note=now.message, warning=True),)


def _summed(status: JobStatus, snapshot: Snapshot, job: JobSeen) -> JobStatus:
    """The counts, and what else follows from the rest."""
    by_name = {pod.name: pod for pod in snapshot.pods}
    counts = {}
    for role in ROLES:
        members = [member for member in status.memory.of(role) if member.has_seat]
        if not members and role not in status.memory.grant.counts:
            continue
        running = sum(member.is_live and _runs(by_name.get(member.name)) for member in members)
        counts[role] = RoleCounts(
            pending=sum(member.is_live for member in members) - running,
            running=running,
            succeeded=sum(member.state is MemberState.SUCCEEDED for member in members),
            failed=sum(member.state is MemberState.FAILED for member in members),
        )
    return replace(
        status,
        counts=counts,
        observed_generation=job.generation,
        world=job.training.world if job.training else status.world,
    )


def _runs(pod: PodSeen | None) -> bool:
    return pod is not None and pod.is_running


def _after_the_end(snapshot: Snapshot, spec: JobSpec, settings: OperatorSettings, *, now: datetime) -> JobPlan:
    job = snapshot.job
    assert job.memory.finish_time is not None
    crew = Crew(job.name, job.memory, snapshot.pods, made_elsewhere=settings.made_by_master(spec), now=now)
    crew.observe()
    cleanup = plan_cleanup(
        snapshot.pods,
        spec,
        ended=job.memory.finish_time,
        by_master=job.training is not None and job.training.is_over,
        settings=settings,
        now=now,
    )
    status = _summed(replace(job.status, memory=replace(job.memory, members=crew.members)), snapshot, job)
    verdicts = {plan.ask: judge_over(plan, job.name, now=now) for plan in snapshot.plans if not plan.auto}
    return JobPlan(
        status=status,
        plan_statuses=verdicts,
        delete=tuple(PodRef(name=pod.name, uid=pod.uid) for pod in cleanup.delete),
        delete_job=cleanup.delete_job,
        recheck_at=cleanup.next_look,
    )
