"""Schedules of kills, cuts, plans and dying masters against jobs with parameter servers, each from one seed.

    python -m shoal.sim.servers --seeds 0:1000    many schedules; the seeds of those that fail are printed
    python -m shoal.sim.servers --seed 17         one schedule with its trace, the same to the byte every time
    ... --failovers                               masters die too, and others take over

The job core is the real one; servers, workers and the evaluator stand in `served`. What is checked in every run: nobody
makes a step on a version that is not the committed one, or that names a server which was let go; a committed version
has all its state; the job ends, with success or with a failure that something in the schedule explains; when it has
succeeded the ledger's account is exact, and the last model that was saved has seen all data, and nothing twice but what
was in the hands of one who was lost.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from shoal.core import job as jobs
from shoal.core import ledger as ledgers
from shoal.core.hang import HangSettings
from shoal.core.job.values import Command, JobSettings, JobSpec, LeaveNode, PlanAsked, PSSpec, SayWord
from shoal.core.ledger import DatasetSpec, LeaseSettings
from shoal.core.nodes import Node, NodeId, Role
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.core.ps.cluster import PSCluster
from shoal.core.ps.words import PreparePS
from shoal.core.view import JobPhase
from shoal.sim.cluster import SLOWEST_LAUNCH, Cluster, Crash, Handle
from shoal.sim.served import MOST_HELD, Gone, Seen, ServedAgent, ServerProcess, TrainerProcess
from shoal.sim.training import Phase, Violation

LONGEST = 3_600_000_000
"""Microseconds after which a run that has not ended is stuck."""
MOST_EVENTS = 200_000


class ServedCluster(Cluster):
    """A cluster whose model lies on servers."""

    def __init__(
        self,
        spec: JobSpec,
        settings: JobSettings,
        dataset: DatasetSpec,
        *,
        nodes: int,
        chance: random.Random,
        trace: Callable[[str], None] | None = None,
        handle: Handle = jobs.handle,
    ) -> None:
        self.dataset = dataset
        self.disk: dict[str, Seen] = {}
        """The models that were saved, by path."""
        self.steps = 0
        self.published: dict[int, PSCluster] = {}
        super().__init__(spec, settings, nodes=nodes, total=0, chance=chance, trace=trace, handle=handle)

    def _launch(self, node: Node) -> None:
        if node.id in self.agents:
            return
        agent = ServedAgent(self, node.id, node.seat)
        self.agents[node.id] = agent
        self.clock.after(self.chance.randrange(1, SLOWEST_LAUNCH), agent.doing(agent.connect))

    def agent(self, node: NodeId) -> ServedAgent | None:
        found = self.agents.get(node)
        assert found is None or isinstance(found, ServedAgent)
        return found

    def _tell(self, node: NodeId, command: Command) -> None:
        if isinstance(command, LeaveNode) and (agent := self.agent(node)) is not None and agent.role is Role.PS:
            self._check_unused(node)
        super()._tell(node, command)

    def _look_at(self, command: Command) -> None:
        """A version's number means one cluster, for ever."""
        if isinstance(command, SayWord) and isinstance(command.word, PreparePS):
            cluster = command.word.cluster
            if self.published.setdefault(cluster.version, cluster) != cluster:
                raise Violation(f"version {cluster.version} is used twice")

    def _check_unused(self, server: NodeId) -> None:
        """Nobody who is in the job may be on a version that names a server which is let go, unless nobody could reach
        that one."""
        m = self.job.servers
        assert m is not None
        for node in m.trainers:
            agent = self.agent(node)
            process = None if agent is None else agent.process
            if not isinstance(process, TrainerProcess) or process.phase is Phase.STARTING or process.version is None:
                continue
            is_lost = server not in (m.current.nodes if m.current is not None else ())
            if is_lost and process.running and server in process.clusters[process.version].nodes:
                known = m.trainers[node]
                if known.incarnation == agent.incarnation if agent is not None else False:
                    raise Violation(f"{server} is let go while {node} is on version {process.version}")

    # The model

    def _server(self, cluster: PSCluster, rank: int) -> ServerProcess:
        node = next(server.node for server in cluster.servers if server.rank == rank)
        address = next(server.address for server in cluster.servers if server.rank == rank)
        agent = self.agent(node)
        process = None if agent is None or not agent.alive else agent.process
        if not isinstance(process, ServerProcess) or process.phase is Phase.STARTING or process.frozen:
            raise Gone(rank)
        if f"{process.name}:1" != address:
            raise Gone(rank)  # it is another one's
        return process

    def values(self, cluster: PSCluster) -> Seen:
        """What the model of a version has seen: the same in all its partitions."""
        found = []
        for partition, rank in zip(cluster.partitions, cluster.placement, strict=True):
            variables = self._server(cluster, rank).variables.get(cluster.version, {})
            if partition.name not in variables:
                raise Gone(rank)
            found.append(variables[partition.name])
        if any(seen != found[0] for seen in found):
            raise Violation(f"the partitions of version {cluster.version} have not seen the same")
        return found[0]

    def put(self, cluster: PSCluster, seen: Seen) -> None:
        for rank in cluster.ranks:
            self._server(cluster, rank)
        for partition, rank in zip(cluster.partitions, cluster.placement, strict=True):
            self._server(cluster, rank).variables.setdefault(cluster.version, {})[partition.name] = Counter(seen)

    def step(self, process: TrainerProcess, cluster: PSCluster, shard: int) -> None:
        """A worker trains a shard. Raises `Gone`."""
        self.values(cluster)
        self._check_step(process, cluster)
        for partition, rank in zip(cluster.partitions, cluster.placement, strict=True):
            self._server(cluster, rank).variables[cluster.version][partition.name][shard] += 1
        self.steps += 1

    def _check_step(self, process: TrainerProcess, cluster: PSCluster) -> None:
        """Only of one whom the master counts on: what others write lies where nobody reads."""
        m, agent = self.job.servers, process.agent
        assert m is not None
        known = m.trainers.get(agent.node)
        if self.down or known is None or known.incarnation != agent.incarnation or not agent.alive:
            return
        if m.current is None or cluster.version != m.current.version:
            raise Violation(f"{process} makes a step on version {cluster.version}, not on {m.current}")
        removed = [s.node for s in cluster.servers if (a := self.agent(s.node)) is not None and a.is_leaving]
        if removed:
            raise Violation(f"{process} makes a step on {removed[0]}, which was let go")
        if known.drained and known.halted is not None:
            raise Violation(f"{process} makes a step and has said that it stands still")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seed: int
    ended: JobPhase | None
    reason: str
    violation: str | None
    versions: int
    rollbacks: int
    faults: int
    failovers: int
    steps: int
    events: int
    seconds: float

    def __str__(self) -> str:
        how = f"VIOLATION: {self.violation}" if self.violation else f"{self.ended} ({self.reason})"
        return (
            f"seed {self.seed}: {how}; {self.versions} versions, {self.rollbacks} roll-backs, {self.faults} faults, "
            f"{self.failovers} masters lost, {self.steps} steps, {self.events} events, {self.seconds:.3f} s"
        )


class Schedule:
    """What happens to a cluster, at which of its events."""

    def __init__(self, cluster: ServedCluster, chance: random.Random, *, failovers: bool) -> None:
        self.cluster = cluster
        self.chance = chance
        self.failovers = failovers
        self.faults = 0
        self.crashes = 0
        count = chance.choice([0, 1, 2, 3, 4, 6, 8])
        horizon = chance.choice([200, 600, 1500])
        self.due = sorted(chance.randrange(1, horizon) for _ in range(count))

    def strike(self) -> None:
        if self.failovers and self.chance.random() < 0.4:
            how = self.chance.choice(list(Crash))
            self.cluster.note("strike: crash master", how)
            self.cluster.crash_master(how)
            return
        actions: list[tuple[Callable[[], None], int]] = [
            (lambda: self._end_process(137), 5),
            (lambda: self._end_process(1), 1),
            (self._kill_node, 4),
            (self._plan, 8),
            (self._cut, 2),
            (self._freeze_node, 1),
            (self._freeze_process, 1),
        ]
        action = self.chance.choices([a for a, _ in actions], [weight for _, weight in actions])[0]
        self.faults += 1
        action()

    def _agents(self) -> list[ServedAgent]:
        return [
            agent for node in self.cluster.agents if (agent := self.cluster.agent(node)) is not None and agent.alive
        ]

    def _end_process(self, code: int) -> None:
        if processes := [a.process for a in self._agents() if a.process is not None]:
            process = self.chance.choice(processes)
            self.crashes += code == 1
            self.cluster.note("strike: end process", process, code)
            process.die(code)

    def _kill_node(self) -> None:
        if agents := self._agents():
            agent = self.chance.choice(agents)
            self.cluster.note("strike: kill node", agent.node)
            agent.end(137)

    def _cut(self) -> None:
        if agents := self._agents():
            agent = self.chance.choice(agents)
            self.cluster.note("strike: cut", agent.node)
            agent.cut()

    def _freeze_node(self) -> None:
        if agents := self._agents():
            agent = self.chance.choice(agents)
            self.cluster.note("strike: freeze node", agent.node)
            agent.freeze()
            self.cluster.clock.after(self.chance.choice([500_000, 30_000_000]), agent.thaw)

    def _freeze_process(self) -> None:
        if processes := [a.process for a in self._agents() if a.process is not None]:
            process = self.chance.choice(processes)
            self.cluster.note("strike: freeze process", process)
            process.frozen = True
            if self.chance.random() < 0.5:
                self.cluster.clock.after(500_000, process.thaw)

    def _plan(self) -> None:
        job, spec = self.cluster.job, self.cluster.job.spec
        assert spec.ps is not None
        groups: dict[str, NodeGroupResource] = {}
        nodes: dict[str, NodeResource] = {}
        if self.chance.random() < 0.6:
            count = self.chance.randint(spec.ps.min_servers, spec.ps.max_servers)
            groups[Role.PS] = NodeGroupResource(count=count)
        if self.chance.random() < 0.4:
            count = self.chance.randint(spec.min_nodes, spec.max_nodes)
            groups[Role.WORKER] = NodeGroupResource(count=count)
        live = [n.id for n in job.nodes.values() if n.is_live and not n.is_released]
        if self.chance.random() < 0.4 and live:
            nodes[self.chance.choice(live)] = NodeResource(cpu=float(self.chance.randint(1, 4)))
        others = (self.chance.choice(live),) if self.chance.random() < 0.2 and live else ()
        plan = ResourcePlan(
            node_group_resources=groups, node_resources=nodes, replace_nodes=others, reason="somebody's plan"
        )
        if jobs.plan_refusal(job, plan) is None and not self.cluster.down:
            self.cluster.note("strike: plan", plan)
            self.cluster.happen(PlanAsked(plan=plan, who="somebody"))


def run(
    seed: int,
    *,
    handle: Handle = jobs.handle,
    trace: Callable[[str], None] | None = None,
    failovers: bool = False,
) -> Outcome:
    """One schedule from beginning to end. `failovers`: masters die too."""
    chance = random.Random(seed)
    most = chance.randint(1, 4)
    workers = chance.randint(1, 4)
    ps = PSSpec(
        max_servers=most,
        servers=chance.randint(1, most),
        chief=chance.random() < 0.3,
        evaluator=chance.random() < 0.4,
        checkpoint_dir="/ckpt",
    )
    spec = JobSpec(name="sim", uid="sim", min_nodes=1, max_nodes=workers, ps=ps, max_restarts=50)
    settings = JobSettings(
        suspect_after=timedelta(seconds=5),
        hang=HangSettings(timeout=timedelta(seconds=4)),
    )
    leases = LeaseSettings(time=timedelta(seconds=60), max_attempts=50)
    dataset = DatasetSpec(name="clicks", size=chance.randint(1, 60), shard_size=1, leases=leases)
    cluster = ServedCluster(
        spec,
        settings,
        dataset,
        nodes=chance.randint(1, workers),
        chance=chance,
        trace=trace,
        handle=handle,
    )
    schedule = Schedule(cluster, chance, failovers=failovers)
    violation: str | None = None
    try:
        _drive(cluster, schedule)
        _judge(cluster, schedule)
    except Violation as exc:
        violation = str(exc)
    return Outcome(
        seed=seed,
        ended=cluster.job.phase if cluster.over else None,
        reason=cluster.job.reason,
        violation=violation,
        versions=len(cluster.published),
        rollbacks=sum(1 for change in cluster.job.changes if change.kind == "rollback"),
        faults=schedule.faults,
        failovers=cluster.failovers,
        steps=cluster.steps,
        events=cluster.clock.events,
        seconds=cluster.clock.micros / 1e6,
    )


def _drive(cluster: ServedCluster, schedule: Schedule) -> None:
    due, clock = list(schedule.due), cluster.clock
    while not cluster.over and clock.step():
        while due and clock.events >= due[0]:
            due.pop(0)
            schedule.strike()
        if clock.micros > LONGEST or clock.events > MOST_EVENTS:
            break


def _judge(cluster: ServedCluster, schedule: Schedule) -> None:
    job = cluster.job
    if not cluster.over:
        m = job.servers
        assert m is not None
        live = [n.id for n in job.nodes.values() if n.is_live]
        raise Violation(f"stuck in {job.phase} ({job.reason}) with {live}, change {m.change}")
    if job.phase is JobPhase.FAILED and not schedule.crashes:
        raise Violation(f"failed with nobody to blame: {job.reason}")
    if job.phase is not JobPhase.SUCCEEDED:
        return
    account = ledgers.account_of(job.ledger, cluster.dataset.name)
    if not ledgers.is_complete(job.ledger) or account.count != cluster.dataset.size:
        raise Violation(f"succeeded with {account.count} of {cluster.dataset.size} shards")
    assert job.servers is not None
    if not job.servers.checkpoints:
        raise Violation("succeeded without a model")
    seen = cluster.disk[job.servers.checkpoints[-1].path]
    if missing := [shard for shard in range(account.count) if not seen[shard]]:
        raise Violation(f"the model has not seen {missing}")
    if seen.total() > cluster.dataset.size + MOST_HELD * schedule.faults:
        raise Violation(f"the model has seen {seen.total()} shards of {cluster.dataset.size}, {schedule.faults} faults")


def _seeds(text: str) -> range:
    first, colon, last = text.rpartition(":")
    seeds = range(int(first) if colon else 0, int(last))
    if not seeds:
        raise ValueError("no seeds")
    return seeds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m shoal.sim.servers", description="Simulated schedules of jobs with parameter servers."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run one schedule and print its trace")
    what.add_argument("--seeds", metavar="N|A:B", type=_seeds, help="run the schedules 0 to N-1, or A to B-1")
    parser.add_argument("--failovers", action="store_true", help="masters die too")
    given = parser.parse_args(arguments)
    out = sys.stdout
    if given.seed is not None:
        outcome = run(given.seed, trace=lambda line: print(line, file=out), failovers=given.failovers)
        print(outcome, file=out)
        return 1 if outcome.violation else 0
    outcomes = [run(seed, failovers=given.failovers) for seed in given.seeds]
    failed = [outcome for outcome in outcomes if outcome.violation]
    for outcome in failed:
        print(outcome, file=out)
    print(
        f"{len(outcomes)} schedules, {len(failed)} with violations, "
        f"{sum(o.ended is JobPhase.SUCCEEDED for o in outcomes)} jobs succeeded, "
        f"{sum(o.ended is JobPhase.FAILED for o in outcomes)} failed for a reason, "
        f"{sum(o.versions for o in outcomes)} versions, {sum(o.rollbacks for o in outcomes)} roll-backs, "
        f"{sum(o.failovers for o in outcomes)} masters lost",
        file=out,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
