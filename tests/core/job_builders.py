"""A job under test: events go in by name, effects are kept by kind."""

from datetime import UTC, datetime, timedelta

from shoal.core.exits import ProcessExit
from shoal.core.job import Event, JobSettings, JobSpec, handle, new_job, view
from shoal.core.job.values import (
    AgentJoined,
    Effect,
    HeartbeatSeen,
    NodeAcked,
    NodeExited,
    NodeFinished,
    NodeReady,
    NodeSucceeded,
    ProcessExited,
    Scale,
    StepGained,
    Tell,
    Ticked,
)
from shoal.core.nodes import NodeId
from shoal.core.view import JobView

T0 = datetime(2026, 1, 1, tzinfo=UTC)


class Story:
    """One job and everything that was to be done about it."""

    def __init__(
        self,
        *,
        nodes: int = 3,
        minimum: int = 1,
        maximum: int = 4,
        nproc: int = 1,
        joins: int = 0,
        platform_grows: bool = False,
        fills_grant: bool = False,
        memory_limit: int | None = None,
        **settings: object,
    ) -> None:
        self.now = T0
        spec = JobSpec(
            name="j",
            uid="u",
            min_nodes=minimum,
            max_nodes=maximum,
            nproc=nproc,
            max_restarts=3,
            platform_grows=platform_grows,
            fills_grant=fills_grant,
            memory_limit=memory_limit,
        )
        self.job, self.last = new_job(
            spec,
            JobSettings(**settings),  # type: ignore[arg-type]
            nodes=nodes,
            awaited_joins=joins,
            now=self.now,
        )
        self.effects: list[Effect] = list(self.last)

    def happen(self, event: Event) -> tuple[Effect, ...]:
        self.job, self.last = handle(self.job, event, self.now)
        self.effects += self.last
        return self.last

    def wait(self, seconds: float) -> tuple[Effect, ...]:
        self.now += timedelta(seconds=seconds)
        return self.happen(Ticked())

    def beat(self) -> None:
        """Every connected agent sends its heartbeat."""
        for node, seen in list(self.job.seen.items()):
            if seen.connected:
                incarnation = self.job.nodes[node].incarnation
                self.happen(HeartbeatSeen(node=node, incarnation=incarnation, processes=seen.processes))

    def join(self, *nodes: str) -> None:
        for node in nodes:
            known = self.job.nodes[NodeId(node)]
            self.happen(
                AgentJoined(
                    node=known.id, incarnation=known.incarnation, generation=0, pid=1, host="h", address="127.0.0.1"
                )
            )

    def ready(self, *nodes: str, step: int | None = None, sdk: bool = True) -> None:
        for node in nodes:
            known = self.job.nodes[NodeId(node)]
            steps = (step,) * self.job.spec.nproc
            self.happen(NodeReady(node=known.id, incarnation=known.incarnation, steps=steps, sdk=sdk))

    def ack(self) -> None:
        pending = self.job.rendezvous.pending
        assert pending is not None
        for member in pending.members:
            self.happen(
                NodeAcked(node=member.node, incarnation=member.incarnation, generation=pending.generation, store={})
            )

    def train(self, *nodes: str, step: int = 30) -> None:
        """Bring these nodes into a world that has gained a step."""
        self.join(*nodes)
        self.ready(*nodes)
        self.ack()
        self.gain(step)

    def gain(self, step: int) -> None:
        committed = self.job.rendezvous.committed
        assert committed is not None
        first = committed.members[0]
        self.happen(
            StepGained(
                node=first.node,
                incarnation=first.incarnation,
                generation=committed.generation,
                step=step,
                samples=None,
                metrics={},
            )
        )

    def crash(self, node: str, code: int = 1, *, error: str | None = None, uptime: float = 1) -> tuple[Effect, ...]:
        known = self.job.nodes[NodeId(node)]
        exit = ProcessExit(code=code, error=error, uptime_seconds=uptime)
        return self.happen(ProcessExited(node=known.id, incarnation=known.incarnation, local_rank=0, exit=exit))

    def happen_exit(self, node: str, code: int = 137) -> tuple[Effect, ...]:
        """The platform says that the node ended."""
        return self.happen(NodeExited(node=NodeId(node), exit=ProcessExit(code=code)))

    def finish(self, *nodes: str) -> None:
        committed = self.job.rendezvous.committed
        assert committed is not None
        for node in nodes:
            known = self.job.nodes[NodeId(node)]
            self.happen(NodeFinished(node=known.id, incarnation=known.incarnation, generation=committed.generation))

    def succeed(self, *nodes: str) -> None:
        for node in nodes:
            known = self.job.nodes[NodeId(node)]
            self.happen(NodeSucceeded(node=known.id, incarnation=known.incarnation))

    # What was asked for -----------------------------------------------------------------------------------

    def told(self, kind: type) -> list[Tell]:
        return [e for e in self.effects if isinstance(e, Tell) and isinstance(e.what, kind)]

    def launched(self) -> list[str]:
        return [n.id for e in self.effects if isinstance(e, Scale) for n in e.plan.launch_nodes]

    def removed(self) -> list[str]:
        return [n.id for e in self.effects if isinstance(e, Scale) for n in e.plan.remove_nodes]

    @property
    def world(self) -> list[str]:
        committed = self.job.rendezvous.committed
        return [m.node for m in committed.members] if committed is not None else []

    @property
    def view(self) -> JobView:
        return view(self.job, self.now)
