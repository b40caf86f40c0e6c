"""Parameter servers that join by themselves, as those of a TrainingJob do: who joins, who has to go, who is lost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.job_builders import T0
from tests.core.ps_stories import PSStory

from shoal.core import journal
from shoal.core.job import JobSettings, JobSpec, PSSpec, admit, new_job, taken_over
from shoal.core.job.handle import Admitted, Rejected
from shoal.core.job.values import AgentDisconnected, KillProcesses, LeaveNode, NodeGoing
from shoal.core.nodes import Node, NodeId, NodeStatus, Role
from shoal.core.ps.values import Kind
from shoal.core.ps.words import SaveWanted
from shoal.core.view import JobPhase


class Joining(PSStory):
    def __init__(self, *, least: int = 1, directory: str | None = "/ckpt") -> None:
        self.now = T0
        ps = PSSpec(min_servers=least, max_servers=4, checkpoint_dir=directory, joins=True)
        spec = JobSpec(name="j", uid="u", min_nodes=1, max_nodes=4, platform_grows=True, ps=ps)
        self.job, self.last = new_job(spec, JobSettings(), nodes=0, now=self.now)
        self.effects = list(self.last)
        self.rounds = 0

    def comes(self, role: Role) -> str:
        """An agent without a name joins."""
        self.job, answer = admit(self.job, None, 1, self.now, role=role)
        assert isinstance(answer, Admitted), answer
        return answer.node

    def server(self) -> str:
        node = self.comes(Role.PS)
        self.serve(node)
        self.obey()
        return node

    def worker(self) -> str:
        node = self.comes(Role.WORKER)
        self.name(node)
        self.obey()
        return node

    def goes(self, *nodes: str) -> None:
        for node in nodes:
            self.happen(NodeGoing(node=NodeId(node)))
            self.obey()

    def cut(self, *nodes: str) -> None:
        for node in nodes:
            self.happen(AgentDisconnected(node=NodeId(node)))

    def passes(self, seconds: float) -> None:
        """Time passes, and everybody who is in touch lives."""
        while seconds > 0:
            self.beat()
            self.wait(min(seconds, 5.0))
            self.obey()
            seconds -= 5.0

    def lose(self, node: str) -> None:
        self.cut(node)
        self.passes(12)

    @property
    def let_go(self) -> list[str]:
        return [node for tell in self.told(LeaveNode) for node in tell.to]


def trained(servers: int, **settings: object) -> Joining:
    story = Joining(**settings)  # type: ignore[arg-type]
    for _ in range(servers):
        story.server()
    story.worker()
    assert story.serving == [f"ps-{n}" for n in range(servers)]
    return story


def test_servers_without_a_name_are_given_one_and_serve() -> None:
    story = Joining()
    assert (story.server(), story.server(), story.worker()) == ("ps-0", "ps-1", "worker-0")
    assert (story.version, story.serving) == (1, ["ps-0", "ps-1"])


def test_the_first_version_waits_for_the_least_number_of_servers() -> None:
    story = Joining(least=2)
    story.worker()
    story.server()
    assert story.version == 0
    story.server()
    assert (story.version, story.serving) == (1, ["ps-0", "ps-1"])


@pytest.mark.parametrize("ps", [None, PSSpec(max_servers=2)])
def test_a_server_is_refused_by_a_job_that_launches_its_own_or_has_none(ps: PSSpec | None) -> None:
    spec = JobSpec(name="j", uid="u", min_nodes=1, max_nodes=4, ps=ps)
    job, _ = new_job(spec, JobSettings(), nodes=1, now=T0)
    same, answer = admit(job, None, 1, T0, role=Role.PS)
    assert isinstance(answer, Rejected)
    assert same is job


def test_one_more_that_joins_is_used_when_it_is_ready() -> None:
    story = trained(1)
    story.server()
    assert (story.version, story.serving) == (2, ["ps-0", "ps-1"])
    assert story.let_go == []


def test_one_that_has_to_go_is_let_go_when_everybody_is_on_a_version_without_it() -> None:
    story = trained(2)
    story.worker()
    story.happen(NodeGoing(node=NodeId("ps-0")))
    story.obey(but=("worker-1",))
    assert story.let_go == []
    story.obey(tuple(story.effects))
    assert (story.serving, story.let_go) == (["ps-1"], ["ps-0"])
    story.leave("ps-0")
    assert story.job.nodes[NodeId("ps-0")].status is NodeStatus.SUCCEEDED
    story.passes(20)
    assert (story.version, story.serving, story.job.phase) == (2, ["ps-1"], JobPhase.RUNNING)


def test_asking_to_go_again_changes_nothing() -> None:
    story = trained(2)
    story.goes("ps-1")
    before = story.job
    story.goes("ps-1")
    assert story.job == before


def test_a_job_that_shrank_grows_again_into_the_free_rank() -> None:
    story = trained(2)
    story.goes("ps-0")
    story.leave("ps-0")
    new = story.server()
    assert (new, story.job.nodes[NodeId(new)].seat) == ("ps-2", 0)
    assert (story.version, sorted(story.serving)) == (3, ["ps-1", "ps-2"])


def test_the_last_server_stays_until_another_has_taken_over() -> None:
    """As when its host is drained: its successor is started while it ends."""
    story = trained(1)
    story.goes("ps-0")
    story.passes(30)
    assert (story.let_go, story.serving) == ([], ["ps-0"])
    story.server()
    assert (story.serving, story.let_go) == (["ps-1"], ["ps-0"])
    assert story.job.phase is JobPhase.RUNNING, "nothing was lost"


def test_servers_of_a_job_without_workers_may_go_at_once_and_it_goes_on_from_its_checkpoint() -> None:
    story = trained(2)
    story.say("worker-0", SaveWanted(reason="it is time"))
    story.obey()
    for node in ("ps-0", "ps-1"):
        story.happen(NodeGoing(node=NodeId(node)))
    assert story.let_go == []
    story.leave("worker-0")
    assert sorted(story.let_go) == ["ps-0", "ps-1"]
    assert story.job.ending is None, "its workers will be added again"
    for node in ("ps-0", "ps-1"):
        story.leave(node)
    story.server(), story.server(), story.worker()
    assert sorted(story.serving) == ["ps-2", "ps-3"]
    assert any("back to step" in decision.reason for decision in story.job.decisions)


def test_who_joins_takes_the_rank_of_a_lost_server() -> None:
    story = trained(2)
    story.lose("ps-0")
    assert story.version == 1, "all wait for another"
    new = story.comes(Role.PS)
    assert story.job.nodes[NodeId(new)].seat == 0
    story.serve(new)
    story.obey()
    assert (story.version, story.serving) == (2, [new, "ps-1"])


def test_who_joins_before_the_loss_is_known_takes_the_rank_too() -> None:
    """A Pod is replaced within seconds; that one is silent means nothing before ten."""
    story = trained(2)
    story.cut("ps-0")
    new = story.server()
    assert story.version == 1, "nobody is told of another version while nobody knows"
    story.passes(12)
    assert (story.serving, story.job.nodes[NodeId(new)].seat) == ([new, "ps-1"], 0)
    assert not [n for n in story.job.nodes.values() if n.status is NodeStatus.PENDING], "nobody else is waited for"


def test_a_server_that_is_only_out_of_touch_keeps_its_rank() -> None:
    story = trained(1)
    story.cut("ps-0")
    new = story.server()
    story.join("ps-0")
    story.obey()
    assert (story.version, story.serving) == (2, ["ps-0", new])


def test_a_server_that_hangs_is_no_longer_out_of_touch_when_its_agent_is_back() -> None:
    story = trained(1)
    story.job = replace(story.job, hanging=frozenset({(NodeId("ps-0"), 1, 0)}))
    story.cut("ps-0")
    assert story.job.servers is not None
    assert story.job.servers.unsure == {"ps-0"}
    story.join("ps-0")
    assert story.told(KillProcesses)[-1].to == ("ps-0",)
    assert story.job.servers.unsure == frozenset()


def test_a_server_that_has_to_go_does_not_wait_for_one_that_nobody_has_joined_as() -> None:
    story = trained(2)
    story.say("worker-0", SaveWanted(reason="it is time"))
    story.obey()
    story.lose("ps-0")
    story.happen(NodeGoing(node=NodeId("ps-1")))
    assert story.let_go == [], "somebody trains, and whoever joins takes over from it"
    story.leave("worker-0")
    assert story.let_go == ["ps-1"]


def test_those_that_are_there_go_on_when_nobody_joins_in_the_place_of_a_lost_one() -> None:
    story = trained(2)
    story.lose("ps-0")
    story.passes(60)
    assert story.version == 1
    story.passes(70)
    assert (story.version, story.serving) == (2, ["ps-1"])
    assert story.job.phase is JobPhase.RUNNING
    new = story.server()
    assert sorted(story.serving) == ["ps-1", new], "who joins later is used"


def test_one_that_is_lost_while_it_had_to_go_is_not_waited_for() -> None:
    story = trained(2)
    story.happen(NodeGoing(node=NodeId("ps-1")))
    story.lose("ps-1")
    assert (story.serving, story.job.phase) == (["ps-0"], JobPhase.RUNNING)


def test_a_lost_server_ends_a_job_without_checkpoint_path_with_the_reason() -> None:
    story = trained(2, directory=None)
    story.lose("ps-0")
    assert story.job.ending is JobPhase.FAILED
    assert "there is no checkpoint path" in story.job.reason


def test_workers_that_left_or_were_lost_may_come_again() -> None:
    story = trained(1)
    story.leave("worker-0")
    assert story.job.ending is None
    story.worker()
    story.lose("worker-1")
    assert story.job.ending is None
    story.worker()
    assert (story.version, story.job.phase) == (1, JobPhase.RUNNING)


def test_the_next_master_knows_who_has_to_go_and_begins_nothing_before_servers_are_back() -> None:
    story = trained(2)
    story.happen(NodeGoing(node=NodeId("ps-1")))
    story.job = taken_over(story.job, story.now, reason="master 2 took over")
    assert story.job.nodes[NodeId("ps-1")].is_going
    new = story.comes(Role.PS)
    story.serve(new)
    story.join("ps-0", "ps-1", "worker-0")
    story.obey(tuple(story.effects))
    assert (sorted(story.serving), story.let_go) == (["ps-0", new], ["ps-1"])


def test_all_servers_of_before_may_be_gone_when_a_master_takes_over() -> None:
    """As when a suspended job comes back: nothing of what was is there but its records."""
    story = trained(2)
    story.say("worker-0", SaveWanted(reason="it is time"))
    story.obey()
    story.job = taken_over(story.job, story.now, reason="master 2 took over")
    story.server(), story.server(), story.worker()
    assert story.serving == ["ps-0", "ps-1"]
    story.passes(64)
    assert sorted(story.serving) == ["ps-2", "ps-3"]
    assert sorted(n.seat for n in story.job.nodes.values() if n.is_live and n.role is Role.PS) == [0, 1]
    assert story.job.phase is JobPhase.RUNNING


def test_records_tell_who_has_to_go() -> None:
    story = trained(2)
    story.happen(NodeGoing(node=NodeId("ps-1")))
    found = journal.replay([journal.snapshot(story.job)])
    assert found is not None
    assert found.nodes[NodeId("ps-1")].is_going
    assert found.servers == story.job.servers


STEPS = st.sampled_from(["server", "worker", "goes", "cut", "back", "time", "leaves", "save", "master"])


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(STEPS, st.integers(0, 9), st.booleans()), max_size=15), least=st.integers(1, 2))
def test_whatever_comes_and_goes_those_that_stay_serve_in_the_end(
    steps: list[tuple[str, int, bool]], least: int
) -> None:
    story = Joining(least=least)
    for what, number, hurried in steps:
        happens(story, what, number)
        if not hurried:
            story.obey(tuple(story.effects))
        check(story)
    for node in list(away(story)):
        story.join(node)
    while len(there(story, Role.PS)) < least or not any(not n.is_going for n in there(story, Role.PS)):
        story.server()
    while not there(story, Role.WORKER):
        story.worker()
    for _ in range(4):
        story.obey(tuple(story.effects))
        story.passes(130)
        check(story)
        for node in set(story.let_go) & story.job.seen.keys():
            story.leave(node)
    assert story.job.ending is None, story.job.reason
    staying = sorted(n.id for n in there(story, Role.PS) if not n.is_going)
    assert sorted(story.serving) == staying
    assert sorted({n.seat for n in there(story, Role.PS)}) == sorted(n.seat for n in there(story, Role.PS))
    assert not [n for n in there(story, Role.PS) if n.is_going], "who had to go is gone"


def happens(story: Joining, what: str, number: int) -> None:
    servers = [n.id for n in there(story, Role.PS)]
    workers = [n.id for n in there(story, Role.WORKER)]
    match what:
        case "server" if len(servers) < 6:
            story.serve(story.comes(Role.PS))
        case "worker" if len(workers) < 3:
            story.name(story.comes(Role.WORKER))
        case "goes" if servers:
            story.happen(NodeGoing(node=servers[number % len(servers)]))
        case "cut" if servers:
            story.cut(servers[number % len(servers)])
        case "back" if nodes := away(story):
            story.join(nodes[number % len(nodes)])
        case "time":
            story.beat()
            story.wait(number)
        case "leaves" if workers:
            story.leave(workers[number % len(workers)])
        case "save" if workers:
            story.say(workers[0], SaveWanted(reason="it is time"))
        case "master":
            story.job = taken_over(story.job, story.now, reason="another master")
            for node in list(story.job.seen):
                if (number + len(node)) % 3:
                    story.join(node)


def there(story: Joining, role: Role) -> list[Node]:
    return [n for n in story.job.nodes.values() if n.role is role and n.status is NodeStatus.RUNNING]


def away(story: Joining) -> list[NodeId]:
    return [node for node, seen in story.job.seen.items() if not seen.connected]


def check(story: Joining) -> None:
    """Nobody is let go that the version needs on which somebody may train, unless all go back to a checkpoint."""
    m = story.job.servers
    assert m is not None
    goes_back = m.rests or (m.change is not None and m.change.kind is Kind.ROLLBACK)
    needed = m.current.nodes if m.current is not None and not goes_back else frozenset()
    released = {n.id for n in story.job.nodes.values() if n.role is Role.PS and n.is_live and n.is_released}
    assert released.isdisjoint(needed)
