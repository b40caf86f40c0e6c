"""What simulated schedules found in the job core, each as the few events that show it."""

from datetime import UTC, datetime, timedelta

import pytest

from shoal.core import job as jobs
from shoal.core.exits import ProcessExit
from shoal.core.job.values import (
    AgentDisconnected,
    AgentJoined,
    Effect,
    End,
    Event,
    HeartbeatSeen,
    Job,
    JobSettings,
    JobSpec,
    KillProcesses,
    NodeAcked,
    NodeExited,
    NodeFinished,
    NodeReady,
    PeerLost,
    RestartNode,
    ScaleAsked,
    Tell,
    Ticked,
)
from shoal.core.nodes import NodeId, ProcessSeen
from shoal.core.view import JobPhase
from shoal.core.world import Interrupt, Pause, Standing

T0 = datetime(2030, 1, 1, tzinfo=UTC)
A, B, C = (NodeId(f"worker-{n}") for n in range(3))


class Desk:
    """A job core driven by hand."""

    def __init__(self, *, low: int, high: int, nodes: int) -> None:
        self.now = T0
        self.job: Job
        spec = JobSpec(name="j", uid="u", min_nodes=low, max_nodes=high)
        self.job, self.effects = jobs.new_job(spec, JobSettings(), nodes=nodes, now=T0)

    def __call__(self, *events: Event, after: float = 0.0) -> tuple[Effect, ...]:
        self.now += timedelta(seconds=after)
        self.effects = ()
        for event in events:
            self.job, effects = jobs.handle(self.job, event, self.now)
            self.effects += effects
        return self.effects

    def told(self, kind: type) -> list[tuple[NodeId, ...]]:
        return [e.to for e in self.effects if isinstance(e, Tell) and isinstance(e.what, kind)]

    def join(self, *nodes: NodeId) -> None:
        for node in nodes:
            self(AgentJoined(node=node, incarnation=1, generation=0, pid=1, host="h", address="h:1"))

    def ready(self, *nodes: NodeId, step: int | None = None, sdk: bool = True) -> None:
        self(*(NodeReady(node=n, incarnation=1, steps=(step,), sdk=sdk) for n in nodes))

    def ack(self, *nodes: NodeId) -> None:
        generation = self.job.rendezvous.generation
        self(*(NodeAcked(node=n, incarnation=1, generation=generation, store={}) for n in nodes))

    def train(self, *nodes: NodeId) -> None:
        self.join(*nodes)
        self.ready(*nodes)
        self.ack(*nodes)
        assert self.job.rendezvous.running is not None

    def finish(self, *nodes: NodeId) -> None:
        generation = self.job.rendezvous.generation
        self(*(NodeFinished(node=n, incarnation=1, generation=generation) for n in nodes))
        assert self.job.rendezvous.released


def test_an_agent_that_ends_well_after_the_release_has_succeeded_although_its_last_word_was_lost() -> None:
    desk = Desk(low=1, high=1, nodes=1)
    desk.train(A)
    desk.finish(A)
    desk(AgentDisconnected(node=A), NodeExited(node=A, exit=ProcessExit(code=0)))
    assert desk.job.phase is JobPhase.SUCCEEDED


def test_a_node_lost_after_the_release_does_not_hold_the_end_up() -> None:
    desk = Desk(low=1, high=1, nodes=1)
    desk.train(A)
    desk.finish(A)
    effects = desk(NodeExited(node=A, exit=ProcessExit(code=137)))
    assert any(isinstance(effect, End) for effect in effects)
    assert desk.job.phase is JobPhase.FAILED


def test_a_job_that_is_ending_is_not_woken_for_what_no_longer_matters() -> None:
    """A time in the past would let the master spin until the end."""
    desk = Desk(low=1, high=2, nodes=2)
    desk.train(A, B)
    desk(AgentDisconnected(node=B))
    desk.finish(A, B)
    desk(NodeExited(node=A, exit=ProcessExit(code=137)), after=60)
    assert desk.job.ending is not None
    due = jobs.deadline(desk.job)
    assert due is not None
    assert due > desk.now


def test_agents_that_wait_for_a_plain_world_start_their_processes_when_the_job_turns_out_to_use_the_sdk() -> None:
    desk = Desk(low=2, high=3, nodes=3)
    desk.join(A, B, C)
    desk.ready(A, B, sdk=False)
    desk(Ticked(), after=3)
    desk.ack(A, B)
    desk(AgentDisconnected(node=B), NodeExited(node=B, exit=ProcessExit(code=137)))
    desk.ready(C, sdk=False)
    desk.ready(A, sdk=True)
    assert desk.told(RestartNode) == [(C,)]
    assert desk.job.rendezvous.members[C].standing is Standing.EXPECTED


@pytest.mark.parametrize("standing", [Standing.PREPARED, Standing.EXPECTED])
def test_a_process_stopped_while_a_world_is_formed_is_killed(standing: Standing) -> None:
    desk = Desk(low=2, high=2, nodes=2)
    desk.join(A, B)
    desk.ready(A)
    if standing is Standing.PREPARED:
        desk.ready(B)
        desk.ack(A)
    assert desk.job.rendezvous.members[B].standing is standing
    stopped = ProcessSeen(
        local_rank=0, pid=1, stopped=True, cpu=0.0, memory_bytes=0, step=None, collectives=0, busy=None
    )
    desk(HeartbeatSeen(node=B, incarnation=1, processes=(stopped,)), Ticked())
    assert desk.told(KillProcesses) == [(B,)]
    desk(Ticked())
    assert desk.told(KillProcesses) == [], "it has been told"


def test_a_connection_lost_during_a_pause_ends_the_pause() -> None:
    desk = Desk(low=1, high=3, nodes=2)
    desk.train(A, B)
    desk(ScaleAsked(count=3, who="somebody"))
    desk.join(C)
    desk.ready(C)
    assert desk.told(Pause) == [(A, B)]
    generation = desk.job.rendezvous.generation
    desk(PeerLost(node=A, incarnation=1, generation=generation, detail="closed"))
    desk(Ticked(), after=1)
    assert desk.told(Interrupt) == [(A, B)]
