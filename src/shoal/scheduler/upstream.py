"""The original autoscaler of PaddlePaddle EDL, defects included: for comparison in the simulator only.

It looks at sums over the whole cluster, gives every elastic job one trainer more while the sums allow it, takes one
from every job while they do not, and repeats both until nothing changes (`dry_run`). It knows no gangs, no
priorities, no queue and no hosts beyond "is there one that fits". What is wrong with it is kept, since the published
experiment can only be reproduced with it, and is said where it stands. Two generations differ in a few lines
(`Variant`): the first, on a ThirdPartyResource, is the one that was measured and published.

It counted memory in millions of bytes, rounded up, and cores in thousandths.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from shoal.scheduler.decisions import Action, Change, Code, Decisions, Reason
from shoal.scheduler.rows import Host, Job, JobKey, Room, Seconds
from shoal.scheduler.scores import footprint
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot

MEGA = 10**6


class Variant(StrEnum):
    TPR = "tpr"
    """The first controller, on a ThirdPartyResource: every 5 s, and on events."""
    CRD = "crd"
    """The second, on a CustomResourceDefinition: every 30 s."""


def mega(amount: int) -> int:
    """Bytes as the original counted them."""
    return -(-amount // MEGA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A job as the original saw it."""

    name: str
    cpu: int = 0
    memory: int = 0
    """Millions of bytes."""
    gpu: int = 0
    min: int = 1
    max: int = 1
    parallelism: int = 1
    """What its trainer Job asks for, not what runs."""

    @property
    def is_elastic(self) -> bool:
        return self.min < self.max

    @property
    def fulfillment(self) -> float:
        if self.min == self.max:
            return 1.0
        return (self.parallelism - self.min) / (self.max - self.min)

    @classmethod
    def of(cls, job: Job) -> "Scaled":
        return cls(
            name=job.key.name,
            cpu=job.each.cpu,
            memory=mega(job.each.memory),
            gpu=job.each.gpu,
            min=job.min,
            max=job.max,
            parallelism=job.target,
        )


@dataclass(slots=True, kw_only=True)
class Cluster:
    """The sums that the dry run counts on, and what each host has left: of cores and memory, never of devices."""

    gpu_limit: int = 0
    gpu_total: int = 0
    cpu_request: int = 0
    cpu_total: int = 0
    memory_request: int = 0
    memory_total: int = 0
    idle: list[tuple[int, int]] = field(default_factory=lambda: [(99_999, 99_999)])
    """Cores and memory, by host."""
    last_found: int = 0

    def find(self, job: Scaled) -> int | None:
        """A host on which a trainer fits. Which one is chance in the original; here it is the last one again, if it
        still fits."""
        count = len(self.idle)
        for offset in range(count):
            index = (self.last_found + offset) % count
            cpu, memory = self.idle[index]
            if job.cpu <= cpu and job.memory <= memory:
                self.last_found = index
                return index
        return None


# One step ----------------------------------------------------------------------------------------------------------


def step(cluster: Cluster, job: Scaled, diff: int, load: float, *, down: bool, variant: Variant = Variant.TPR) -> int:
    """How many trainers more (or fewer) the job gets in one step of the dry run; the cluster's sums change with it."""
    size = job.parallelism + diff
    host = None
    if down:
        gained = _down(cluster, job, size, load, variant)
    elif size >= job.max:
        gained = job.max - size
    elif cluster.memory_total - cluster.memory_request <= job.memory or (host := cluster.find(job)) is None:
        gained = 0
    else:
        gained = 1 if int(cluster.cpu_total * load) - cluster.cpu_request >= job.cpu else 0
        if job.gpu > 0:  # up to the last device, although scaling down begins at the load: see `dry_run`
            gained = min(gained, 1 if cluster.gpu_total - cluster.gpu_limit >= job.gpu else 0)
    cluster.gpu_limit += job.gpu * gained
    cluster.cpu_request += job.cpu * gained
    cluster.memory_request += job.memory * gained
    if host is not None:
        _commit(cluster, job, host, gained, variant)
    return gained


def _down(cluster: Cluster, job: Scaled, size: int, load: float, variant: Variant) -> int:
    if size > job.max:
        return -1
    pressed = cluster.gpu_limit > int(cluster.gpu_total * load) or cluster.cpu_request > int(cluster.cpu_total * load)
    if variant is Variant.CRD:
        pressed = pressed or cluster.memory_request > int(cluster.memory_total * load)
    return -1 if pressed and size > job.min else 0


def _commit(cluster: Cluster, job: Scaled, host: int, gained: int, variant: Variant) -> None:
    """The first variant adds what it should take away: a host that fits one trainer fits any number of them."""
    sign = 1 if variant is Variant.TPR else -1
    cpu, memory = cluster.idle[host]
    cluster.idle[host] = (cpu + sign * job.cpu * gained, memory + sign * job.memory * gained)


# The dry run -------------------------------------------------------------------------------------------------------

PATIENCE = 100
"""How often the dry run may come back to sizes it had before until it is taken for endless. The second variant does
end, after as many returns as its hosts have room for trainers."""
MOST_RETURNS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    diff: Mapping[str, int]
    iterations: int
    settled: bool
    """False: the original would go on for ever here, and its controller with it."""


def order(jobs: Iterable[Scaled], lot: Callable[[str], int] = lambda name: 0) -> list[Scaled]:
    """Elastic jobs, the least fulfilled first, then those that ask for less. What is left equal was chance in the
    original; here `lot` says it."""
    elastic = [job for job in jobs if job.is_elastic]
    return sorted(elastic, key=lambda job: (job.fulfillment, job.gpu, job.cpu, job.memory, lot(job.name), job.name))


def dry_run(
    jobs: Sequence[Scaled],
    cluster: Cluster,
    load: float,
    variant: Variant = Variant.TPR,
    lot: Callable[[str], int] = lambda name: 0,
) -> DryRun:
    """Up for every job, then down for every job, until a whole iteration changed nothing.

    The order is made from the sizes before the dry run and never again, so that it is a round robin and not "the
    least fulfilled first". Devices may be used up to the last but scaling down begins at `load`: between the two it
    goes up and down by turns and never ends.
    """
    ordered = order(jobs, lot)
    diff = {job.name: 0 for job in ordered}
    seen = {tuple(diff.values())}
    patience = PATIENCE if variant is Variant.TPR else MOST_RETURNS
    iterations = returns = 0
    changed = bool(ordered)
    while changed:
        iterations += 1
        changed = False
        for down, turn in ((False, ordered), (True, ordered[::-1])):
            for job in turn:
                gained = step(cluster, job, diff[job.name], load, down=down, variant=variant)
                diff[job.name] += gained
                changed = changed or gained != 0
        if changed and (sizes := tuple(diff.values())) in seen:
            returns += 1
            if returns >= patience:
                return DryRun(diff=diff, iterations=iterations, settled=False)
        elif changed:
            seen.add(sizes)
    return DryRun(diff=diff, iterations=iterations, settled=True)


# From a snapshot ---------------------------------------------------------------------------------------------------


def pod_room(containers: Iterable[Room], init_containers: Iterable[Room] = ()) -> Room:
    """What one Pod counts for in the sums: all its containers together, and with them those that run one after the
    other before these begin."""
    room = Room()
    for each in (*containers, *init_containers):
        room = room.plus(each)
    return room


def inquire(snapshot: Snapshot) -> Cluster:
    """The sums over all Pods that have not ended, with those that wait for a host and those that are told to end; and
    over all hosts, with those that take no Pods."""
    capacity, asked = Room(), Room()
    free = {host.name: host.capacity.minus(_held_by_others(host)) for host in snapshot.hosts}
    for host in snapshot.hosts:
        capacity = capacity.plus(host.capacity)
        asked = asked.plus(_held_by_others(host))
    for service in snapshot.services:
        asked = asked.plus(service.each)
    for job in snapshot.jobs:
        for name, count in job.placed.items():
            asked = asked.plus(job.each, count)
            free[name] = free.get(name, Room()).minus(job.each, count)
        for name, room in job.fixed_placed.items():
            asked = asked.plus(room)
            free[name] = free.get(name, Room()).minus(room)
        asked = asked.plus(job.each, job.pending)
        for part in job.fixed_pending:
            asked = asked.plus(part.each, part.count)
    return Cluster(
        gpu_limit=asked.gpu,
        gpu_total=capacity.gpu,
        cpu_request=asked.cpu,
        cpu_total=capacity.cpu,
        memory_request=mega(asked.memory),
        memory_total=mega(capacity.memory),
        idle=[(room.cpu, mega(room.memory)) for room in free.values()],
    )


def _held_by_others(host: Host) -> Room:
    room = host.others
    for leaving in host.leaving:
        room = room.plus(leaving.room)
    return room


def take_part(jobs: Iterable[Job], variant: Variant = Variant.TPR) -> list[Job]:
    """The jobs that may change: those all of whose trainers run, or all jobs while one has none that does."""
    jobs = list(jobs)
    starving = any(_starves(job, variant) for job in jobs)
    return [job for job in jobs if starving or _is_stable(job, variant)]


def _starves(job: Job, variant: Variant) -> bool:
    if variant is Variant.TPR:  # a job without any Pods counts, and one whose pservers wait does not
        return job.running == 0 and job.leaving == 0 and job.ended == 0
    counts = {part.role: part.count for part in job.fixed}
    role = "master" if "master" in counts else "pserver"
    waiting = sum(part.count for part in job.fixed_pending if part.role == role)
    return 0 < waiting == counts.get(role, 0)


def _is_stable(job: Job, variant: Variant) -> bool:
    there = sum(job.placed.values()) + job.pending
    if variant is Variant.TPR:  # one that ended or leaves is counted, so that a finished trainer is for ever
        return there + job.leaving + job.ended == job.running
    return not job.fixed_pending and job.running + job.ended == job.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one round of the original writes."""

    targets: Mapping[JobKey, int]
    """Absolute sizes of all jobs that take part: written every round, changed or not."""
    run: DryRun


def outcome(snapshot: Snapshot, now: Seconds, load: float, variant: Variant = Variant.TPR) -> Outcome:
    known = [job for job in snapshot.jobs if job.is_admitted]
    if variant is Variant.TPR:  # by name alone: of two namespaces' jobs of one name, one is never seen
        known = list({job.key.name: job for job in known}.values())
    named = {_called(job, variant): job for job in take_part(known, variant)}
    scaled = [replace(Scaled.of(job), name=name) for name, job in named.items()]
    run = dry_run(scaled, inquire(snapshot), load, variant, lambda name: zlib.crc32(f"{name} {now}".encode()))
    return Outcome(targets={job.key: job.target + run.diff.get(name, 0) for name, job in named.items()}, run=run)


def _called(job: Job, variant: Variant) -> str:
    return job.key.name if variant is Variant.TPR else str(job.key)


# The policy --------------------------------------------------------------------------------------------------------


def plan(snapshot: Snapshot, now: Seconds, settings: SchedulerSettings, *, variant: Variant = Variant.TPR) -> Decisions:
    """One round. A job without trainers gets its least at once, whether it fits or not, and takes part from the next
    round on. Where the original would never come back from its dry run, nothing changes and a problem says so."""
    found = outcome(snapshot, now, settings.cpu.grow, variant)
    starts = [_start(job) for job in snapshot.jobs if not job.is_admitted]
    steps = found.run.iterations * 2 * max(1, len(found.run.diff))
    if not found.run.settled:
        problem = f"upstream's dry run does not end: still going up and down after {found.run.iterations} iterations"
        return Decisions(changes=tuple(starts), min_v=snapshot.min_v, steps=steps, problems=(problem,))
    jobs = {job.key: job for job in snapshot.jobs}
    changes = [_scale(jobs[key], target) for key, target in found.targets.items() if target != jobs[key].target]
    return Decisions(changes=(*starts, *changes), min_v=snapshot.min_v, steps=steps)


def _start(job: Job) -> Change:
    gang = footprint(job, job.min)
    text = f"started at once with {job.min} trainers ({gang.cpu / 1_000:g} cores in all), whether they fit or not"
    return Change(
        key=job.key,
        action=Action.ADMIT,
        target=job.min,
        before=job.target,
        reason=Reason(code=Code.ADMITTED, text=text),
    )


def _scale(job: Job, target: int) -> Change:
    if target > job.target:
        action, reason = Action.GROW, Reason(code=Code.FREE_ROOM, text="the cluster's sums allow more trainers")
    elif job.target > job.max:
        action, reason = Action.SHRINK, Reason(code=Code.ABOVE_MAX, text=f"it may have no more than {job.max} trainers")
    else:
        text = "more is asked for in the whole cluster than the load allows"
        action, reason = Action.SHRINK, Reason(code=Code.PRESSURE, text=text)
    return Change(key=job.key, action=action, target=target, before=job.target, reason=reason)
