"""One round of the scheduler's default policy, at up to 10,000 jobs on 100,000 GPUs.

*Cold*: nothing runs, every job waits, and all rows are new: building the columns from them, the gangs of all jobs, and
all growth are in the time. *Steady*: the cluster is full, 1 % of the jobs have ended and as many have come since the
last round; the rows that this changed are put on the board, and a snapshot is taken and decided on. Hosts have 8 GPUs
and 96 cores and places for 110 Pods; jobs ask for 0, 1, 2, 4 or 8 GPUs a trainer, in four priorities.

*With parameter servers*: the same, with a server beside every four trainers of half of the jobs. They come with their
trainers, and both are placed or trimmed together, so such a job is looked at step by step.

*Whole*: a steady round as the operator makes it, with four Pods for each job: reading them into rows, the policy, what
follows from it and who is told; that is computed in a thread. What the event loop gives for it, a copy of the ledger,
is a row of its own.

Times are the processor's, of which the policy uses one core, and the best of a few rounds: on a machine that does
nothing else they are the clock's too.

The peer of the same run is the policy in its plainest form (`tests/scheduler/reference.py`): a heap, one step at a
time, and for every Pod a look at every host. Others' figures are from their papers and documents, for what they call a
decision, and are the clock's:

- Kueue: 42 admissions a second, from its published scalability tests;
- Pollux (OSDI '21): 1.1 s a decision at 64 GPUs;
- Sia (SOSP '23): its solver takes up to 25 s at 1,024 and 173 s at 2,048 GPUs.

At the largest size the peer is the aim: a second for a cold round, a tenth of it for a steady one. A ratio above 1 says
that it is reached.
"""

import gc
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from _common import Row, parse_options, progress, report
from shoal.core.hosts import Amounts, HostSeen, PodUse
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.kept import Kept
from shoal.operator.scheduling.ledger import filled
from shoal.operator.scheduling.loop import Sum
from shoal.operator.scheduling.round import Known
from shoal.operator.scheduling.telling import Telling
from shoal.scheduler.actuation import Standing, advance, arrive, carry_out
from shoal.scheduler.board import Board
from shoal.scheduler.decisions import Action, Change, Decisions
from shoal.scheduler.policies import Policy, policy
from shoal.scheduler.rows import NOTHING, Attained, Host, Job, JobKey, Part, Priority, Room, Servers
from shoal.scheduler.scores import footprint
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot

sys.path.append(str(Path(__file__).parents[1]))
from tests.scheduler.reference import plan_plainly

GIB = 2**30
GPUS = 8
PLACES = 110
SIZES = ((100, 125), (1_000, 1_250), (10_000, 12_500))
"""Jobs and hosts."""
CHANGED = 0.01
SETTINGS = SchedulerSettings()
ROUND = 5.0
AIMS = {"cold": ("aim", 1.0), "steady": ("aim", 0.1)}
"""Of the largest size: what a round should cost there at most."""
KUEUE = ("Kueue, admissions (published)", 42.0)
DECISIONS = {
    100: ("Sia's solver, 1,024 GPUs (published)", 25.0),
    1_000: ("Sia's solver, 2,048 GPUs (published)", 173.0),
}


def a_cluster(hosts: int) -> list[Host]:
    room, daemons = Room(96_000, 768 * GIB, GPUS, PLACES), Room(500, GIB, 0, 6)
    return [Host(name=f"host-{number:05}", capacity=room, others=daemons) for number in range(hosts)]


def a_job(number: int, chance: random.Random, *, servers: bool = False) -> Job:
    gpus = chance.choices([0, 1, 2, 4, 8], [10, 50, 10, 10, 20])[0]
    least = chance.choice([1, 2] if gpus == GPUS else [1, 2, 4])
    most = least * chance.choice([1, 4, 8, 16])
    beside = Servers(each=Room(2_000, 8 * GIB, 0, 1), min=1, max=max(1, most // 4), per_trainer=0.25)
    return Job(
        key=JobKey(f"team-{number % 20}", f"job-{number:06}"),
        priority=chance.choices(list(Priority), [3, 3, 3, 1])[0],
        created=float(number),
        min=least,
        max=most,
        each=Room(max(4_000, 8_000 * gpus), max(1, gpus) * 32 * GIB, gpus, 1),
        fixed=(Part(role="master", each=Room(1_000, 2 * GIB, 0, 1), count=1),),
        servers=beside if servers and number % 2 else None,
    )


@dataclass
class Cluster:
    """Jobs that have what was decided for them. Pods start and end at once."""

    hosts: list[Host]
    jobs: dict[JobKey, Job]
    board: Board
    capacity: Room
    servers: bool = False
    now: float = 0.0
    min_v: float = 0.0

    @classmethod
    def of(cls, jobs: int, hosts: int, chance: random.Random, *, servers: bool = False) -> "Cluster":
        rows = [a_job(number, chance, servers=servers) for number in range(jobs)]
        capacity = Room(96_000 * hosts, 768 * GIB * hosts, GPUS * hosts, PLACES * hosts)
        return cls(a_cluster(hosts), {job.key: job for job in rows}, Board(), capacity, servers)

    def put_all(self) -> None:
        for host in self.hosts:
            self.board.put_host(host)
        for job in self.jobs.values():
            self.board.put_job(job)

    def carry_out(self, decisions: Decisions) -> None:
        self.min_v = decisions.min_v
        for change in decisions.changes:
            row = self._changed(self.jobs[change.key], change)
            self.jobs[change.key] = row
            self.board.put_job(row)

    def _changed(self, job: Job, change: Change) -> Job:
        standing = Standing(target=job.target, frozen_until=job.frozen_until)
        if job.attained is None:
            standing = arrive(job, None, self.min_v, self.capacity, self.now, SETTINGS)
        else:
            standing = replace(standing, attained=job.attained)
        after = carry_out(standing, change, self.now, asked=job.max)
        assert after is not None
        placed = dict(job.placed)
        for host, count in change.victims.items():
            placed[host] -= count
        for host, count in change.hosts.items():
            placed[host] = placed.get(host, 0) + count
        fixed = dict(job.fixed_placed)
        for role, hosts in change.fixed_hosts.items():
            each = job.fixed[0].each if role == "master" or job.servers is None else job.servers.each
            for host, count in hosts.items():
                fixed[host] = fixed.get(host, NOTHING).plus(each, count)
        if change.action is Action.SUSPEND:
            placed, fixed = {}, {}
        room = footprint(job, after.target) if after.target else Room()
        after = advance(after, job, room, self.capacity, self.now, SETTINGS)
        return replace(
            job, target=after.target, placed=placed, fixed_placed=fixed, attained=after.attained,
            waiting_since=after.waiting_since, frozen_until=after.frozen_until,
        )  # fmt: skip

    def turn_over(self, number: int, count: int, chance: random.Random) -> list[JobKey | Job]:
        """So many jobs end and so many come."""
        ended = chance.sample(sorted(self.jobs), count)
        come = [a_job(number + at, chance, servers=self.servers) for at in range(count)]
        for key in ended:
            del self.jobs[key]
        self.jobs |= {job.key: job for job in come}
        return [*ended, *come]


def decide(cluster: Cluster, chosen: Policy) -> tuple[Decisions, Snapshot]:
    snapshot = cluster.board.snapshot(cluster.min_v)
    return chosen(snapshot, cluster.now, SETTINGS), snapshot


def timed(work: Callable[[], Decisions]) -> tuple[float, Decisions]:
    gc.collect()
    began = time.process_time()
    decisions = work()
    return time.process_time() - began, decisions


def cold(
    jobs: int, hosts: int, chosen: Policy, times: int, *, servers: bool = False
) -> tuple[float, Cluster, Decisions]:
    """The best of a few cold rounds, and a cluster after one."""
    seconds = math.inf
    for _ in range(times):
        cluster = Cluster.of(jobs, hosts, random.Random(jobs), servers=servers)

        def work(cluster: Cluster = cluster) -> Decisions:
            cluster.put_all()
            return decide(cluster, chosen)[0]

        took, decisions = timed(work)
        seconds = min(seconds, took)
    return seconds, cluster, decisions


def steady(cluster: Cluster, chosen: Policy, times: int) -> tuple[float, int]:
    """The best of a few rounds in a full cluster, and how many changes they decided on in all."""
    chance = random.Random(len(cluster.jobs))
    count = max(1, int(len(cluster.jobs) * CHANGED))
    seconds, changes = math.inf, 0
    cluster.now += 2 * SETTINGS.freezing_window
    for turn in range(times):
        cluster.now += ROUND
        events = cluster.turn_over(1_000_000 + turn * count, count, chance)

        def work(events: Sequence[JobKey | Job] = events) -> Decisions:
            for event in events:
                if isinstance(event, Job):
                    cluster.board.put_job(event)
                else:
                    cluster.board.drop_job(event)
            return decide(cluster, chosen)[0]

        took, decisions = timed(work)
        cluster.carry_out(decisions)
        changes += len(decisions.changes)
        seconds = min(seconds, took)
    return seconds, changes


def whole(jobs: int, hosts: int, chosen: Policy, times: int) -> tuple[float, float]:
    """The best of a few rounds as the operator makes them, and of what they cost the event loop."""
    seen = [HostSeen(name=f"host-{n:05}", capacity=Amounts(96_000, 768 * GIB, GPUS, PLACES)) for n in range(hosts)]
    facts = [
        JobFacts(
            key=JobKey(f"team-{n % 20}", f"job-{n:06}"), uid=f"uid-{n}", trainer_role="worker", created=float(n), max=8,
            each=Room(8_000, 32 * GIB, 1, 1), standing=Standing(target=4, attained=Attained()),
        )
        for n in range(jobs)
    ]  # fmt: skip
    ledger = filled(
        PodUse(
            namespace=each.key.namespace, name=f"{each.key.name}-{n}", uid=f"{each.uid}-{n}", job=each.uid,
            amounts=Amounts(*each.each), role="worker", host=f"host-{(number * 4 + n) % hosts:05}", runs=True,
            is_ready=True,
        )
        for number, each in enumerate(facts)
        for n in range(4)
    )  # fmt: skip
    sum_ = Sum(
        known=Known(hosts=seen, facts=facts, ledger=ledger), holding={}, looks={}, kept=Kept(), telling=Telling(),
        recovers=False, min_v=0.0, policy=chosen, settings=SETTINGS, by="", now=1_000.0,
    )  # fmt: skip
    seconds, on_loop = math.inf, math.inf
    for _ in range(times + 2):  # the first two are not steady
        gc.collect()
        began = time.process_time()
        frozen = ledger.as_it_is()
        copied = time.process_time()
        sum_ = replace(sum_, known=replace(sum_.known, ledger=frozen), now=sum_.now + ROUND)
        computed = sum_.compute()
        seconds, on_loop = min(seconds, time.process_time() - copied), min(on_loop, copied - began)
        sum_ = replace(sum_, holding=computed.outcome.holding, telling=computed.telling, min_v=computed.decisions.min_v)
    return seconds, on_loop


def with_servers(jobs: int, hosts: int, chosen: Policy, *, quick: bool) -> list[Row]:
    """Cold and steady rounds where half of the jobs have parameter servers."""
    case = f"with parameter servers, {jobs:,} jobs on {hosts * GPUS:,} GPUs"
    at_first, cluster, decisions = cold(jobs, hosts, chosen, 1 if quick else 3, servers=True)
    cluster.carry_out(decisions)
    later, _ = steady(cluster, chosen, 3 if quick else 20)
    return [
        Row(case=f"cold, {case}", value=at_first, unit="CPU s"),
        Row(case=f"steady, {case}", value=later, unit="CPU s"),
    ]


def exponent(points: Sequence[tuple[int, float]]) -> float:
    """The slope of the straight line through the points on log-log paper: cost ~ size to this power."""
    xs, ys = [math.log(size) for size, _ in points], [math.log(seconds) for _, seconds in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def main() -> None:
    options = parse_options(__doc__)
    cfs = policy("cfs")
    rows: list[Row] = []
    colds: list[tuple[int, float]] = []
    steadies: list[tuple[int, float]] = []
    for jobs, hosts in SIZES:
        progress(f"{jobs} jobs on {hosts * GPUS} GPUs")
        seconds, cluster, decisions = cold(jobs, hosts, cfs, 2 if options.quick else 5)
        colds.append((jobs, seconds))
        case = f"{jobs:,} jobs on {hosts * GPUS:,} GPUs"
        is_largest = jobs == SIZES[-1][0]
        peer: tuple[str, float] | tuple[None, None] = AIMS["cold"] if is_largest else DECISIONS.get(jobs, (None, None))
        if jobs == SIZES[0][0] or (jobs == SIZES[1][0] and not options.quick):
            plain = min(timed(lambda c=cluster: decide(c, plan_plainly)[0])[0] for _ in range(2))  # type: ignore[misc]
            rows.append(
                Row(case=f"cold, {case}", value=seconds, unit="CPU s", peer="plain, same run", peer_value=plain)
            )
        rows.append(Row(case=f"cold, {case}", value=seconds, unit="CPU s", peer=peer[0], peer_value=peer[1]))
        if is_largest:
            admitted = sum(change.action is Action.ADMIT for change in decisions.changes)
            rows.append(Row(case="jobs admitted in that round", value=admitted / seconds, unit="1/s", peer=KUEUE[0],
                            peer_value=KUEUE[1], more_is_better=True))  # fmt: skip
        cluster.carry_out(decisions)
        seconds, changes = steady(cluster, cfs, 5 if options.quick else 20)
        steadies.append((jobs, seconds))
        progress(f"  {changes} changes in the steady rounds")
        pollux = ("Pollux, 64 GPUs (published)", 1.1) if jobs == SIZES[0][0] else (None, None)
        peer = AIMS["steady"] if is_largest else pollux
        rows.append(Row(case=f"steady, {case}", value=seconds, unit="CPU s", peer=peer[0], peer_value=peer[1]))
        rows += with_servers(jobs, hosts, cfs, quick=options.quick)
        seconds, on_loop = whole(jobs, hosts, cfs, 3)
        rows.append(Row(case=f"whole, {case}", value=seconds, unit="CPU s"))
        rows.append(Row(case=f"whole, on the event loop, {case}", value=on_loop, unit="CPU s"))
    rows.append(Row(case="cold: cost grows with size to the power", value=exponent(colds), unit="exponent"))
    rows.append(Row(case="steady: cost grows with size to the power", value=exponent(steadies), unit="exponent"))
    report("scheduler", "one round of cfs, best of a few", rows, options)


if __name__ == "__main__":
    main()
