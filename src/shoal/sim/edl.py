"""The published experiment of PaddlePaddle EDL, built in: two cases, each with and without elastic jobs.

133 hosts without GPUs, 2,348 cores. **Case 1**, a cluster for training: 20 jobs arrive one after the other, each with
a master, 10 parameter servers and 2 to 60 trainers; together they could use three such clusters. **Case 2**, a
cluster shared with a service: 400 nginx Pods, of which 300 leave by and by and come back, and 6 such jobs. The
experiment was published with averages; what is wanted here is also what the averages hide: how evenly the trainers
are shared, how many jobs can train at all, and whether the service gets its Pods back.

The policies are those of production, on a simulated Kubernetes (`shoal.sim.kube`). `static` and `upstream` are the two
arms that were published, `cfs` is ours; `shoal.sim.edl_goals` says what each has to come out as.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.errors import BadInput
from shoal.scheduler.policies import Policy, UnknownPolicy, policy
from shoal.scheduler.rows import Job, JobKey, Part, Room
from shoal.scheduler.settings import SchedulerSettings
from shoal.sim.clock import VirtualClock
from shoal.sim.described import hosts_text, hosts_value, plain, policies_lines, seeds_text
from shoal.sim.edl_goals import gate, goals
from shoal.sim.kube import MICROS, PUBLISHED, Kube, KubeSettings, Pod, PodSet
from shoal.sim.operated import TRAINER, Operated, Training
from shoal.sim.report import Check, JobOutcome, Measures, Report, Run, Series
from shoal.sim.runs import Tell

# What was in it ----------------------------------------------------------------------------------------------------

GIBIBYTE = 2**30
CORES = 2_348
HOST_MEMORY = 102_700_000_000
TRAINER_ROOM = Room(cpu=5_000, memory=8 * GIBIBYTE)
PSERVER = Part(role="pserver", each=Room(cpu=4_000, memory=5 * GIBIBYTE), count=10)
MASTER = Part(role="master", each=Room(cpu=1_000, memory=300 * 2**20), count=1)
NGINX = Room(cpu=3_000, memory=3 * GIBIBYTE)
LEAST, MOST = 2, 60
TRAINER_GRACE = 30.0
"""A shell as the first process does not pass the signal on: every trainer used its whole grace."""
NGINX_GRACE = 2.0

MIXES: Mapping[str, Mapping[int, int]] = {
    "69x12+63x24+1x8": {12: 69, 24: 63, 8: 1},
    "46x17+87x18": {17: 46, 18: 87},
}
"""How many hosts of how many cores. The mix was not published; these agree with all that was."""
USUAL_MIX = "69x12+63x24+1x8"
NETWORK = Room(cpu=250)
"""Of the network's daemon, on every host."""
SYSTEM_CORES = 50.51
SYSTEM_POD = Room(cpu=1_000)
"""What the system had beside the daemons is known only as a sum; it is spread in Pods of this size, each on a host of
its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    number: int
    title: str
    jobs: int
    first: float
    spacing: float
    """Between submissions, with elastic jobs."""
    spacing_static: float
    start: int
    """Trainers a job is submitted with where nothing admits it."""
    start_static: int
    services: tuple[tuple[float, int], ...]
    """How many nginx Pods from when on."""
    end: float


CASES = {
    1: Case(
        number=1,
        title="training alone",
        jobs=20,
        first=4.5,
        spacing=12.8,
        spacing_static=14.0,
        start=2,
        start_static=60,
        services=(),
        end=570.0,
    ),
    2: Case(
        number=2,
        title="beside a service",
        jobs=6,
        first=5.0,
        spacing=8.35,
        spacing_static=8.35,
        start=15,
        start_static=15,
        services=((0, 400), (112, 300), (205, 200), (298, 100), (390, 200), (482, 300), (574, 400)),
        end=705.0,
    ),
}

AVERAGED = (0.0, 550.0)
PLATEAU = (300.0, 550.0)
OFF_PEAK = (300.0, 370.0)
RAMP = (390.0, 694.0)
SHARED_AT = 500.0
LAST_RAMP = 574.0
SAMPLED = 10.0
"""Seconds between two looks, where a number is not integrated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to share the cluster."""

    label: str
    policy: Policy
    settings: SchedulerSettings = field(default_factory=SchedulerSettings)
    is_static: bool = False
    """Without elasticity: jobs have the size they were submitted with."""
    admits: bool = True
    """False: Pods are made as the job is submitted, as the original did, and rounds come only with the clock."""


HEADROOM = Room(cpu=900_000)
"""What the 300 nginx Pods need that come back."""
WITH_HEADROOM = "cfs+headroom"
ENOUGH_RUNS = 4
TOO_FEW = f"Single runs differ: promises are checked on the mean of {ENOUGH_RUNS} or more (--seed 0:{ENOUGH_RUNS})."
USUAL = ("static", "upstream", "cfs", WITH_HEADROOM)


def arm_of(name: str) -> Arm:
    """The arm that runs a policy as the experiment needs it."""
    match name:
        case "static":
            settings = SchedulerSettings(policy=name, gang=False)
            return Arm(label=name, policy=policy(name, sim=True), settings=settings, is_static=True, admits=False)
        case "upstream":
            return Arm(label=name, policy=policy(name, sim=True), settings=SchedulerSettings(policy=name), admits=False)
        case "cfs+headroom":
            ours = SchedulerSettings(service_headroom=HEADROOM)
            return Arm(label=name, policy=policy("cfs", sim=True), settings=ours)
        case _:
            try:
                return Arm(label=name, policy=policy(name, sim=True), settings=SchedulerSettings(policy=name))
            except UnknownPolicy as exc:
                raise BadInput(f"--policy: {exc}; or {WITH_HEADROOM}") from exc


def run_edl(
    cases: Sequence[str] = (),
    policies: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    *,
    mix: str = USUAL_MIX,
    tell: Tell | None = None,
) -> Report:
    """The experiment: all cases and the usual arms, or those that are named."""

    def one(case: Case, arm: Arm, seed: int) -> Run:
        if tell is not None:
            tell(
                f"EDL case {case.number} under {arm.label}", seeds.index(seed) * case.jobs, len(seeds) * case.jobs, 0.0
            )
        return run_case(case, arm, seed, mix=mix)

    numbers = [_case_of(name) for name in cases or map(str, CASES)]
    arms = [arm_of(name) for name in policies or USUAL]
    runs: list[Run] = []
    checks: list[Check] = []
    for number in numbers:
        own = {
            arm.label: [one(CASES[number], arm, seed) for seed in seeds]
            for arm in arms
            if number == 2 or arm.label != WITH_HEADROOM
        }
        runs += [run for group in own.values() for run in group]
        if len(seeds) >= ENOUGH_RUNS:
            checks += gate(number, own.get("static", ()), own.get("upstream", ()))
            checks += goals(number, own.get("cfs", ()), own.get("upstream", ()), own.get(WITH_HEADROOM, ()))
    return Report(
        title=f"The EDL experiment, mean of {len(seeds)} runs" if len(seeds) > 1 else "The EDL experiment, one run",
        runs=tuple(runs),
        settings=_described(arms, seeds, mix),
        ground=tuple(_ground(arms, seeds, mix)),
        checks=tuple(checks),
        notes=() if len(seeds) >= ENOUGH_RUNS else (TOO_FEW,),
    )


def _described(arms: Sequence[Arm], seeds: Sequence[int], mix: str) -> dict[str, object]:
    return {
        "experiment": "edl",
        "mix": mix,
        "hosts": hosts_value(list(hosts_of(mix).values())),
        "seeds": list(seeds),
        "kubernetes": plain(PUBLISHED),
        "settings of policies": {arm.label: plain(arm.settings) for arm in arms},
    }


def _ground(arms: Sequence[Arm], seeds: Sequence[int], mix: str) -> Iterator[str]:
    yield f"hosts: {hosts_text(list(hosts_of(mix).values()))}"
    yield (
        f"{seeds_text(seeds)}; Kubernetes 1.6.2: Pods start in {PUBLISHED.start:g} s, one without room is tried again "
        f"after {PUBLISHED.first_back_off:g} to {PUBLISHED.most_back_off:g} s; trainers leave in {TRAINER_GRACE:g} s"
    )
    yield from policies_lines({arm.label: arm.settings for arm in arms})


def _case_of(name: str) -> int:
    if not name.isdecimal() or int(name) not in CASES:
        raise BadInput(f"--case wants {' or '.join(map(str, CASES))}, got {name!r}")
    return int(name)


# One run -----------------------------------------------------------------------------------------------------------


class _Record:
    """Watches the Pods, and keeps what was counted in the published logs."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._counted: set[int] = set()
        self._serving: set[int] = set()
        self.running_cpu = _Curve()
        self.effective_cpu = _Curve()
        self.nginx = _Curve()
        self.trainers: dict[str, _Curve] = {}
        self.first_trainer: dict[str, float] = {}
        self.first_gang: dict[str, float] = {}
        self.starts = 0
        self.stops = 0
        self._cpu: dict[str, int] = {}
        self._roles: dict[tuple[str, str], int] = {}
        self._gangs: dict[str, Mapping[str, int]] = {}

    def expect(self, owner: str, gang: Mapping[str, int]) -> None:
        """A job that trains while it has at least so many of each role."""
        self._gangs[owner] = gang
        self.trainers[owner] = _Curve()
        self.trainers[owner].put(self._now(), 0)

    def watch(self, pod: Pod) -> None:
        runs = pod.runs
        if pod.of.role == "nginx":
            (self._serving.add if runs and not pod.is_leaving else self._serving.discard)(pod.number)
            self.nginx.put(self._now(), len(self._serving))
        if runs != (pod.number in self._counted):
            self._count(pod, 1 if runs else -1)

    def _count(self, pod: Pod, by: int) -> None:
        (self._counted.add if by > 0 else self._counted.discard)(pod.number)
        now, owner, role = self._now(), pod.of.owner, pod.of.role
        self._cpu[owner] = self._cpu.get(owner, 0) + by * pod.of.each.cpu
        self._roles[owner, role] = self._roles.get((owner, role), 0) + by
        if role == TRAINER:
            self.trainers[owner].put(now, self._roles[owner, role])
            self.first_trainer.setdefault(owner, now)
            self.starts, self.stops = self.starts + (by > 0), self.stops + (by < 0)
        if owner in self._gangs and self.trains(owner):
            self.first_gang.setdefault(owner, now)
        self.running_cpu.put(now, sum(self._cpu.values()))
        idle = sum(cpu for name, cpu in self._cpu.items() if name in self._gangs and not self.trains(name))
        self.effective_cpu.put(now, sum(self._cpu.values()) - idle)

    def trains(self, owner: str) -> bool:
        return all(self._roles.get((owner, role), 0) >= count for role, count in self._gangs[owner].items())


class _Curve:
    """A step function in the making: the last value of a moment counts."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.values: list[float] = []

    def put(self, now: float, value: float) -> None:
        if self.times and self.times[-1] == now:
            self.values[-1] = value
        elif not self.values or self.values[-1] != value:
            self.times.append(now)
            self.values.append(value)

    def series(self, scale: float = 1.0) -> Series:
        return Series(tuple(self.times), tuple(value * scale for value in self.values))


def hosts_of(mix: str) -> dict[str, Room]:
    if mix not in MIXES:
        raise ValueError(f"there is no node mix {mix!r}: it is one of {', '.join(MIXES)}")
    sizes = [cores for cores, count in MIXES[mix].items() for _ in range(count)]
    return {f"host-{n:03}": Room(cpu=cores * 1_000, memory=HOST_MEMORY) for n, cores in enumerate(sizes, start=1)}


def job_of(case: Case, number: int, now: float, start: int) -> Job:
    return Job(
        key=JobKey("default", f"job-{number:02}"),
        created=now,
        min=LEAST,
        max=MOST,
        size=start,
        each=TRAINER_ROOM,
        fixed=(MASTER, PSERVER),
    )


def run_case(case: Case, arm: Arm, seed: int, *, mix: str = USUAL_MIX, kubernetes: KubeSettings = PUBLISHED) -> Run:
    """Run a case once. The seed says when rounds fall, how long Pods start, and where the system's Pods are."""
    chance = random.Random(f"edl {case.number} {seed}")
    clock = VirtualClock()
    record = _Record(lambda: clock.micros / MICROS)
    cluster: Operated

    def watch(pod: Pod) -> None:
        record.watch(pod)
        if arm.admits and pod.of.role == "nginx" and pod.host is None and pod.tried is not None and not pod.is_leaving:
            cluster.wake()

    kube = Kube(clock, hosts_of(mix), kubernetes, chance, watch)
    cluster = Operated(kube, arm.policy, arm.settings)
    cluster.services.extend(_system(kube, chance))
    nginx = PodSet(owner="nginx", role="nginx", each=NGINX, grace=NGINX_GRACE)
    cluster.services.append(nginx)
    for _ in range(case.services[0][1] if case.services else 0):
        kube.place(nginx)
    for at, count in case.services[1:]:
        kube.after(at, lambda count=count: kube.scale(nginx, count))  # type: ignore[misc]
    submitted = _submit(case, arm, cluster, record, chance)
    cluster.every(chance.uniform(0.0, arm.settings.interval))
    while clock.micros < case.end * MICROS and clock.step():
        pass
    return _run(case, arm, seed, mix, cluster, record, submitted)


def _system(kube: Kube, chance: random.Random) -> Iterator[PodSet]:
    daemons = PodSet(owner="kube-system", role="network", each=NETWORK)
    for name in kube.names:
        kube.place(daemons, name)
    yield daemons
    rest = round(SYSTEM_CORES * 1_000) - NETWORK.cpu * len(kube.names)
    sizes = [min(SYSTEM_POD.cpu, rest - at) for at in range(0, rest, SYSTEM_POD.cpu)]
    for size, name in zip(sizes, chance.sample(kube.names, len(sizes)), strict=True):
        pods = PodSet(owner="kube-system", role="system", each=Room(cpu=size))
        kube.place(pods, name)
        yield pods


def _submit(case: Case, arm: Arm, cluster: Operated, record: _Record, chance: random.Random) -> dict[str, float]:
    """Jobs come one after the other. Returns when, by name; it is filled as they come."""
    submitted: dict[str, float] = {}
    spacing = case.spacing_static if arm.is_static else case.spacing
    start = case.start_static if arm.is_static else case.start

    def submit(number: int) -> None:
        job = job_of(case, number, cluster.kube.now, start)
        submitted[job.key.name] = cluster.kube.now
        record.expect(job.key.name, {PSERVER.role: PSERVER.count, MASTER.role: MASTER.count, TRAINER: LEAST})
        cluster.submit(job, grace=TRAINER_GRACE, started_with=None if arm.admits else start)
        if arm.admits:
            cluster.wake()

    at = case.first
    for number in range(1, case.jobs + 1):
        cluster.kube.after(at, lambda number=number: submit(number))  # type: ignore[misc]
        at += spacing + chance.uniform(-0.3, 0.3)
    return submitted


# What is counted ---------------------------------------------------------------------------------------------------


def jain(shares: Iterable[float]) -> float:
    """Jain's index: 1 when all have the same, 1/n when one has everything."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def _mean_jain(trainers: Iterable[Series]) -> float:
    """Over the averaged time, of the jobs that are there."""
    series = list(trainers)
    found = []
    moment = AVERAGED[0]
    while moment < AVERAGED[1]:
        moment += SAMPLED
        there = [each for each in series if each.times[0] <= moment]
        if there:
            found.append(jain(value_at(each, moment) for each in there))
    return sum(found) / len(found)


def value_at(series: Series, moment: float) -> float:
    value = 0.0
    for at, new in zip(series.times, series.values, strict=True):
        if at > moment:
            break
        value = new
    return value


def _run(
    case: Case,
    arm: Arm,
    seed: int,
    mix: str,
    cluster: Operated,
    record: _Record,
    submitted: Mapping[str, float],
) -> Run:
    used = record.running_cpu.series(1 / (CORES * 1_000))
    effective = record.effective_cpu.series(1 / (CORES * 1_000))
    trainers = {name: curve.series() for name, curve in record.trainers.items()}
    outcomes = tuple(_outcome(training, trainers, record, submitted) for training in cluster.jobs.values())
    waits = [record.first_trainer.get(name, case.end) - at for name, at in submitted.items()]
    extra = {
        "plateau %": 100 * used.mean(*PLATEAU),
        "effective 300-550 %": 100 * effective.mean(*PLATEAU),
        "trainers": sum(series.mean(*PLATEAU) for series in trainers.values()),
        "full gangs": float(sum(record.trains(name) for name in submitted)),
        "started": float(len(record.first_trainer)),
        "Jain at 500 s": jain(value_at(series, SHARED_AT) for series in trainers.values()),
        "pending s": sum(waits) / len(waits),
        "starts": float(record.starts),
        "stops": float(record.stops),
    }
    if case.services:
        extra |= _service(case, used, record.nginx.series())
    return Run(
        policy=f"{case.number}: {arm.label}",
        workload=f"EDL case {case.number}: {case.title}" + ("" if mix == USUAL_MIX else f" ({mix})"),
        seed=seed,
        measures=_measures(used, effective, trainers, outcomes),
        jobs=outcomes,
        capacity=float(CORES),
        utilisation=used,
        effective=effective,
        events=cluster.kube.clock.events,
        rounds=cluster.rounds,
        simulated_seconds=case.end,
        extra=extra,
        curves={"nginx": record.nginx.series()} if case.services else {},
    )


def _service(case: Case, used: Series, nginx: Series) -> dict[str, float]:
    wanted = Series(tuple(at for at, _ in case.services), tuple(float(count) for _, count in case.services))
    most = case.services[-1][1]
    back = next(
        (at for at, count in zip(nginx.times, nginx.values, strict=True) if at >= LAST_RAMP - 1 and count >= most),
        case.end,
    )
    return {
        "off-peak %": 100 * used.mean(*OFF_PEAK),
        "missing nginx": wanted.mean(*RAMP) - nginx.mean(*RAMP),
        "back at 400 s": max(0.0, back - LAST_RAMP),
        "most nginx": max(
            (count for at, count in zip(nginx.times, nginx.values, strict=True) if at >= LAST_RAMP), default=0.0
        ),
    }


def _outcome(
    training: Training, trainers: Mapping[str, Series], record: _Record, submitted: Mapping[str, float]
) -> JobOutcome:
    name = training.row.key.name
    series = trainers[name]
    return JobOutcome(
        name=name,
        submitted=submitted[name],
        started=record.first_gang.get(name),
        moves=max(0, len(series.times) - 1),
        allocation=series,
        application="mnist",
    )


def _measures(
    used: Series, effective: Series, trainers: Mapping[str, Series], outcomes: Sequence[JobOutcome]
) -> Measures:
    waits = [job.wait_seconds for job in outcomes if job.wait_seconds is not None]
    return Measures(
        jobs=len(outcomes),
        finished=0,
        jct_mean=None,
        jct_median=None,
        jct_p99=None,
        makespan=None,
        wait_mean=sum(waits) / len(waits) if waits else None,
        utilisation=used.mean(*AVERAGED),
        effective_utilisation=effective.mean(*AVERAGED),
        jain=_mean_jain(trainers.values()),
        moves_per_job=sum(job.moves for job in outcomes) / max(1, len(outcomes)),
        gangs_started=sum(job.started is not None for job in outcomes),
    )
