"""One decision about one TrainingJob: everything that is known goes in, everything that is to be done comes out.

`plan_training_job` is pure. How many trainers and parameter servers there may be is the scheduler's word (`Allowance`),
which is recorded in the status before anything is done about it. Without a new word, after the operator was restarted,
the recorded one holds: a job keeps what it has, and one that was never admitted gets nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shoal.api.fields import MAX_ENTRIES
from shoal.api.trainingjob import MAX_SCALE_RECORDS, TrainingCondition, TrainingRole
from shoal.api.trainingspec import Instances, TrainingSpec
from shoal.core.workloads import TrainingPod, Workload, WorkloadKind
from shoal.operator.actions import Notice, PodRef
from shoal.operator.objects import Manifest
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import Condition
from shoal.operator.standings import to_status
from shoal.operator.status import TRUE, conditions
from shoal.operator.training.objects import (
    affinity,
    fixed_objects,
    form_for,
    form_of,
    is_supervised,
    knows_its_bounds,
    workload,
)
from shoal.operator.training.snapshot import (
    RoleCounts,
    ScaleRecord,
    TrainingMemory,
    TrainingSeen,
    TrainingSnapshot,
    TrainingStatus,
)
from shoal.operator.training.status import Ending, Outlook, say, say_invalid, say_over
from shoal.operator.training.trainers import plan_trainers

ROLES = tuple(TrainingRole)
_SERVING = (TrainingRole.ETCD, TrainingRole.MASTER, TrainingRole.PSERVER)
"""Roles that serve the trainers; in the order in which they need each other."""
_PATIENCE = timedelta(minutes=1)
"""After its grace a Pod is believed to be ending for so long: its end has to be noticed and written."""
_STARTED_BEFORE = "they were started by an operator that did not know how; suspend the job and resume it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """How many Pods a workload should make from now on."""

    kind: WorkloadKind
    name: str
    uid: str
    generation: int
    """What it was asked for when this was decided."""
    count: int
    affinity: Manifest | None = None
    """Of the Pods that it makes from now on; None: as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRef:
    kind: WorkloadKind
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    status: TrainingStatus
    ensure: tuple[Manifest, ...] = ()
    """Fixed objects that must exist, as they are here, before anything else is made. Somebody may have deleted one, so
    they are seen to at the first look of a process, and whenever trainers are made."""
    form: str | None = None
    """What is prepared once all of `ensure` is there."""
    create: tuple[Manifest, ...] = ()
    resize: tuple[Resized, ...] = ()
    evict: tuple[PodRef, ...] = ()
    delete: tuple[WorkloadRef, ...] = ()
    notices: tuple[Notice, ...] = ()
    again: bool = False
    """What was recorded has to be followed up at once."""
    next_look: datetime | None = None
    """When something is to be done though nothing happens before."""


def plan_training_job(snapshot: TrainingSnapshot, settings: OperatorSettings, *, now: datetime) -> TrainingPlan:
    job = snapshot.job
    if job.deleting:
        return TrainingPlan(status=job.status)
    if job.spec is None:
        return _invalid(job, now=now)
    if job.is_over:
        return _after_the_end(snapshot)
    return _Decision(snapshot, job.spec, settings, now).plan()


def _invalid(job: TrainingSeen, *, now: datetime) -> TrainingPlan:
    """What cannot be understood is said, and nothing is done."""
    said = {str(kind): each for kind, each in say_invalid(job.invalid).items()}
    told = conditions(job.status.conditions, said, generation=job.generation, now=now)
    status = replace(job.status, conditions=told, reason=job.invalid, observed_generation=job.generation)
    return TrainingPlan(status=status, notices=_troubles(job, told))


class _Decision:
    """`plan_training_job` for a job that is not over."""

    def __init__(self, snapshot: TrainingSnapshot, spec: TrainingSpec, settings: OperatorSettings, now: datetime):
        has_image = bool(spec.image or settings.training_image)
        allowance = snapshot.allowance
        if allowance is not None and not allowance.is_about(takes_part=has_image and not spec.suspend):
            snapshot = replace(snapshot, allowance=None)
        self.snapshot, self.job, self.settings, self.now = snapshot, snapshot.job, settings, now
        self.spec = _as_it_runs(spec, _there(snapshot.workload(TrainingRole.PSERVER)))
        self.before = snapshot.job.memory
        self.form = form_of(spec, settings)
        self.trainer = _there(snapshot.workload(TrainingRole.TRAINER))

    def plan(self) -> TrainingPlan:
        memory = self._remembered()
        ending = self._ending(memory)
        if ending is not None:
            return self._end(memory, ending)
        target = self._target(memory)
        wanted = self._wanted(memory, target)
        memory = self._with_record(memory, target)
        memory = self._with_server_record(memory, wanted.get(TrainingRole.PSERVER, 0))
        steps = self._steps(wanted)
        if not steps.ensure and target:
            memory = replace(memory, form=self.form)
        status = self._status(memory, wanted, steps)
        return replace(
            steps,
            status=status,
            notices=(*self._notices(memory, status), *_troubles(self.job, status.conditions)),
            next_look=None if target else self._next_look(),
        )

    # What is known ---------------------------------------------------------------------------------------------

    def _remembered(self) -> TrainingMemory:
        """What was recorded, with what has been seen since."""
        memory = self.before
        allowance = self.snapshot.allowance
        if allowance is not None:
            said, victims = to_status(allowance, memory.scheduling), self._still_there(allowance.victims)
            memory = replace(memory, scheduling=said, victims=victims)
        trainer = self.trainer
        if trainer is None:
            return memory
        if trainer.uid == memory.trainer_uid:
            return replace(memory, trainer_failed=max(trainer.failed, memory.trainer_failed))
        return replace(memory, trainer_uid=trainer.uid, trainer_failed=trainer.failed, earlier_failures=memory.failures)

    def _still_there(self, victims: Sequence[str]) -> tuple[str, ...]:
        """They are recorded before anybody is evicted: whoever comes after us has to free the same hosts."""
        live = {pod.name for pod in self.snapshot.pods_of(TrainingRole.TRAINER) if pod.is_live}
        return tuple(name for name in victims if name in live)[:MAX_ENTRIES]

    def _target(self, memory: TrainingMemory) -> int:
        """Trainers that there should be. What the user takes back since the last decision counts at once."""
        if self.spec.suspend or self._image_is_missing():
            return 0
        return min(memory.target, self.spec.trainer.max)

    def _wanted(self, memory: TrainingMemory, target: int) -> dict[TrainingRole, int]:
        """How many Pods each role should have: a job that is not admitted has none, but for its state, and whoever lets
        its parameter servers go."""
        found = {TrainingRole.TRAINER: target}
        for part in self.spec.parts:
            found[part.role] = part.min if target else 0
        if target and self.spec.pserver is not None:
            found[TrainingRole.PSERVER] = self._servers(memory, self.spec.pserver)
        if not target and self.spec.servers_follow and self._servers_left():
            for role in (TrainingRole.MASTER, TrainingRole.ETCD):
                there = _there(self.snapshot.workload(role))
                found[role] = there.wanted if there is not None else 0
        if not target and self.spec.etcd is not None and self._etcd_stays():
            found[TrainingRole.ETCD] = self.spec.etcd.min
        return found

    def _servers(self, memory: TrainingMemory, pserver: Instances) -> int:
        """Where trainers follow, what is allowed: a Pod that has to go stays until its agent is let go, so more and
        fewer are the same to us. Else those that are there stay, for each holds parameters that no other has."""
        there = _there(self.snapshot.workload(TrainingRole.PSERVER))
        if self.spec.servers_fixed:
            return pserver.min if there is None else max(pserver.min, there.wanted)
        allowed = pserver.min if memory.servers is None else memory.servers
        return min(max(allowed, pserver.min), pserver.max)

    def _servers_left(self) -> list[TrainingPod]:
        """Parameter servers that may still have to be let go. One whose grace is long over is none of them: its host is
        lost, and its Pod may stay as it is for ever."""
        there = [pod for pod in self.snapshot.pods_of(TrainingRole.PSERVER) if not pod.is_over]
        return [pod for pod in there if (lost_at := _lost_at(pod)) is None or lost_at > self.now]

    def _next_look(self) -> datetime | None:
        """When the next of the parameter servers that are told to end counts as lost."""
        return min((at for pod in self._servers_left() if (at := _lost_at(pod)) is not None), default=None)

    def _etcd_stays(self) -> bool:
        """A job that the scheduler put back goes on where it was, with the state of its master. Where that has no
        volume it is in the Pods of etcd, which are small; only the job's owner takes them away."""
        there = _there(self.snapshot.workload(TrainingRole.ETCD))
        return not self.spec.suspend and self.spec.etcd_storage is None and there is not None and there.wanted > 0

    def _image_is_missing(self) -> bool:
        return not (self.spec.image or self.settings.training_image)

    def _budget(self, memory: TrainingMemory) -> int:
        """Failures that the job survives: so many for each trainer that it may have, or had until now."""
        return self.spec.restarts * max(memory.target, self.before.target, self.spec.trainer.min)

    # The end ---------------------------------------------------------------------------------------------------

    def _ending(self, memory: TrainingMemory) -> Ending | None:
        trainer = self.trainer
        if trainer is None:
            return None
        if trainer.is_complete:
            return Ending(success=True, reason="TrainersSucceeded", message=_how_many(trainer.succeeded, "succeeded"))
        if trainer.failure is not None:
            return Ending(success=False, reason="JobFailed", message=f"{trainer.failure}{self._last_failure()}")
        budget = self._budget(memory)
        if memory.failures > max(budget, self.before.failures):  # a smaller job is not punished for what it survived
            why = self._last_failure()
            allowed = f"{budget} are allowed: {self.spec.restarts} for each trainer"
            message = f"{_how_many(memory.failures, 'failed')}, {allowed}{why}"
            return Ending(success=False, reason="TooManyFailures", message=message)
        return None

    def _last_failure(self) -> str:
        failed = [pod for pod in self.snapshot.pods_of(TrainingRole.TRAINER) if pod.is_over and pod.reason]
        last = max(failed, key=lambda pod: (pod.created_at, pod.name), default=None)
        return "" if last is None else f"; the last: {last.name}: {last.reason}"

    def _end(self, memory: TrainingMemory, ending: Ending) -> TrainingPlan:
        """Record the end; what follows from it is done when the record stands."""
        memory = replace(memory, finish_time=self.now)
        said = {str(kind): each for kind, each in say_over(ending).items()}
        told = conditions(self.job.status.conditions, said, generation=self.job.generation, now=self.now)
        status = TrainingStatus(
            memory=memory,
            phase=ending.phase,
            reason=ending.message,
            conditions=told,
            counts=_counts(self.snapshot, {}, memory),
            observed_generation=self.job.generation,
        )
        notice = Notice(reason=ending.reason, note=ending.message, warning=not ending.success)
        return TrainingPlan(status=status, notices=(notice,), again=True)

    # What is done ----------------------------------------------------------------------------------------------

    def _steps(self, wanted: Mapping[TrainingRole, int]) -> TrainingPlan:
        ensure: tuple[Manifest, ...] = ()
        makes_trainers = self.snapshot.workload(TrainingRole.TRAINER) is None and not self.snapshot.ending_trainers
        if wanted[TrainingRole.TRAINER] and (makes_trainers or self.form != self.snapshot.prepared):
            ensure = fixed_objects(self.job, self.spec, self.settings)
        create: list[Manifest] = []
        resize: list[Resized] = []
        delete: list[WorkloadRef] = []
        evict: tuple[PodRef, ...] = ()
        for role in _SERVING:
            there, count = self.snapshot.workload(role), wanted.get(role, 0)
            if there is None:
                if count:
                    hosts = self._hosts(role)
                    create.append(workload(self.job, self.spec, role, count, self.settings, hosts=hosts))
            elif there.deleting:
                continue
            elif self._has_to_go(role, there):
                delete.append(_ref(there))
            elif there.wanted != count:
                resize.append(replace(_resized(there, count), affinity=self._affinity(there, count)))
        trainers, count = self.snapshot.workload(TrainingRole.TRAINER), wanted[TrainingRole.TRAINER]
        if trainers is None:
            if count and makes_trainers:
                hosts = self._hosts(TrainingRole.TRAINER)
                create.append(workload(self.job, self.spec, TrainingRole.TRAINER, count, self.settings, hosts=hosts))
        elif self.trainer is not None and not count:
            delete.append(_ref(trainers))  # its Pods go with it; another one is made when the job comes back
        elif self.trainer is not None:
            allowance = self.snapshot.allowance
            victims = allowance.victims if allowance is not None else self.before.victims
            pods = [pod for pod in self.snapshot.pods_of(TrainingRole.TRAINER) if pod.owner == trainers.uid]
            step = plan_trainers(trainers, pods, count, victims)
            evict = tuple(PodRef(name=pod.name, uid=pod.uid) for pod in step.evict)
            if step.parallelism is not None:
                resize.append(_resized(trainers, step.parallelism))
        return TrainingPlan(
            status=self.job.status,
            ensure=ensure,
            form=self.form,
            create=tuple(create),
            resize=tuple(resize),
            evict=evict,
            delete=tuple(delete),
        )

    def _hosts(self, role: TrainingRole) -> Mapping[str, int]:
        """Where the scheduler has found room for new Pods of a role, and how many there."""
        allowance = self.snapshot.allowance
        return {} if allowance is None else allowance.hosts_for(str(role), trains=role is TrainingRole.TRAINER)

    def _affinity(self, there: Workload, count: int) -> Manifest | None:
        """Where more of them should go. Only a ReplicaSet may be told later: the template of a Job is fixed, and a
        StatefulSet would replace the Pods that it has."""
        if count <= there.wanted or there.kind is not WorkloadKind.REPLICA_SET or there.role is None:
            return None
        hosts = self._hosts(there.role)
        return affinity(hosts) if hosts else None

    def _has_to_go(self, role: TrainingRole, there: Workload) -> bool:
        """Whether it is replaced because it was made of another spec: while nothing of it runs; and a master of ours at
        once when it has to learn new bounds, for its state is in etcd."""
        if role is TrainingRole.MASTER and not knows_its_bounds(there.form, self.spec):
            return True
        return not there.wanted and there.form != form_for(role, self.spec, self.settings)

    # What is said ----------------------------------------------------------------------------------------------

    def _with_record(self, memory: TrainingMemory, target: int) -> TrainingMemory:
        before = self.trainer.wanted if self.trainer else 0
        known = [each.after for each in memory.records if each.role is TrainingRole.TRAINER]
        last = known[-1] if known else 0
        if target == last:
            return memory if memory.start_time or not target else replace(memory, start_time=self.now)
        why = self._why(memory)
        record = ScaleRecord(at=self.now, before=last if known else before, after=target, reason=why)
        return replace(
            _recorded(memory, record),
            start_time=memory.start_time or (self.now if target else None),
        )

    def _with_server_record(self, memory: TrainingMemory, count: int) -> TrainingMemory:
        """Of a job that runs: that servers come and go with the trainers as a whole is told by the trainers'."""
        known = self.job.status.counts.get(TrainingRole.PSERVER)
        before = known.target if known is not None else 0
        if not before or not count or before == count:
            return memory
        why, role = self._why(memory), TrainingRole.PSERVER
        return _recorded(memory, ScaleRecord(at=self.now, before=before, after=count, reason=why, role=role))

    def _why(self, memory: TrainingMemory) -> str:
        if self.spec.suspend:
            return "spec.suspend is true"
        return (memory.scheduling.reason if memory.scheduling else None) or "the scheduler decided so"

    def _status(
        self, memory: TrainingMemory, wanted: Mapping[TrainingRole, int], steps: TrainingPlan
    ) -> TrainingStatus:
        counts = _counts(self.snapshot, wanted, memory)
        outlook = Outlook(
            spec=self.spec,
            memory=memory,
            counts=counts,
            image_missing=self._image_is_missing(),
            trimmed=self.snapshot.allowance.trimmed if self.snapshot.allowance else "",
            changing=bool(steps.resize or steps.evict),
            servers_fixed=self.spec.servers_fixed,
            ending=self.snapshot.ending_trainers,
            pods=self.snapshot.pods,
            troubles=self.snapshot.troubles,
        )
        phase, reason, said = say(outlook)
        told = conditions(
            self.job.status.conditions,
            {str(kind): each for kind, each in said.items()},
            generation=self.job.generation,
            now=self.now,
        )
        return TrainingStatus(
            memory=memory,
            phase=phase,
            reason=reason,
            conditions=told,
            counts=counts,
            observed_generation=self.job.generation,
        )

    def _notices(self, memory: TrainingMemory, status: TrainingStatus) -> tuple[Notice, ...]:
        found = []
        for record in memory.records:
            if record not in self.before.records:
                what = "trainers" if record.role is TrainingRole.TRAINER else "parameter servers"
                note = f"{record.before} to {record.after} {what}: {record.reason}"
                found.append(Notice(reason="Scaled", note=note))
        if memory.failures > self.before.failures:
            allowed = self._budget(memory)
            note = f"{_how_many(memory.failures, 'failed')} so far, {allowed} are allowed{self._last_failure()}"
            found.append(Notice(reason="TrainerFailed", note=note, warning=True))
        was = self.job.status.conditions.get(TrainingCondition.ADMITTED)
        admitted = status.conditions[TrainingCondition.ADMITTED]
        if was is None or (was.status, was.reason) != (admitted.status, admitted.reason):
            word = "Admitted" if admitted.status == TRUE else admitted.reason
            found.append(Notice(reason=word, note=admitted.message or word))
        return tuple(found)


def _as_it_runs(spec: TrainingSpec, servers: Workload | None) -> TrainingSpec:
    """What the spec means beside the parameter servers that there are: those that do not run under our agent never join
    a master, which would wait for them."""
    if spec.servers_follow and servers is not None and servers.wanted and not is_supervised(servers.form):
        return replace(spec, servers_stay=_STARTED_BEFORE)
    return spec


def _lost_at(pod: TrainingPod) -> datetime | None:
    """When nobody waits for a Pod any more that was told to end."""
    return None if pod.ends is None else pod.ends + _PATIENCE


def _recorded(memory: TrainingMemory, record: ScaleRecord) -> TrainingMemory:
    return replace(memory, records=_newest((*memory.records, record)))


def _newest(records: Sequence[ScaleRecord]) -> tuple[ScaleRecord, ...]:
    """The last ones, and of them at least one about trainers: it tells how many there were."""
    kept = tuple(records)[-MAX_SCALE_RECORDS:]
    trainers = [each for each in records if each.role is TrainingRole.TRAINER]
    if not trainers or any(each.role is TrainingRole.TRAINER for each in kept):
        return kept
    return (trainers[-1], *kept[1:])


def _there(found: Workload | None) -> Workload | None:
    return None if found is None or found.deleting else found


def _ref(there: Workload) -> WorkloadRef:
    return WorkloadRef(kind=there.kind, name=there.name, uid=there.uid)


def _resized(there: Workload, count: int) -> Resized:
    return Resized(kind=there.kind, name=there.name, uid=there.uid, generation=there.generation, count=count)


def _how_many(count: int, did: str) -> str:
    return f"{count} trainer{'s' if count != 1 else ''} {did}"


def _counts(
    snapshot: TrainingSnapshot, wanted: Mapping[TrainingRole, int], memory: TrainingMemory
) -> dict[TrainingRole, RoleCounts]:
    found = {}
    for role in ROLES:
        pods, there = snapshot.pods_of(role), snapshot.workload(role)
        if role not in wanted and there is None and not pods:
            continue
        running = sum(pod.is_running for pod in pods)
        found[role] = RoleCounts(
            target=wanted.get(role, 0),
            pending=sum(pod.is_live for pod in pods) - running,
            running=running,
            succeeded=there.succeeded if there else 0,
            failed=memory.failures if role is TrainingRole.TRAINER else 0,
        )
    return found


def _troubles(job: TrainingSeen, told: Mapping[str, Condition]) -> tuple[Notice, ...]:
    """An event when a trouble begins or becomes another."""
    now, before = told[TrainingCondition.DEGRADED], job.status.conditions.get(TrainingCondition.DEGRADED)
    if now.status != TRUE or (before is not None and before.reason == now.reason):
        return ()
    return (Notice(reason=now.reason, note=now.message, warning=True),)


def _after_the_end(snapshot: TrainingSnapshot) -> TrainingPlan:
    """Whoever served the trainers is stopped; trainers of a job that failed are, too. What has ended keeps its logs."""
    job = snapshot.job
    there = [each for each in snapshot.workloads if not each.deleting and each.wanted]
    stop = [each for each in there if each.role is not TrainingRole.TRAINER]
    stop += [each for each in there if each.role is TrainingRole.TRAINER and not each.is_complete and not each.failure]
    status = replace(job.status, counts=_counts(snapshot, {}, job.memory), observed_generation=job.generation)
    return TrainingPlan(status=status, resize=tuple(_resized(each, 0) for each in stop))
