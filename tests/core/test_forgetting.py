"""A job that loses nodes for ever knows of the last ones, and of those that still matter."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.job_builders import Story

from shoal.core import journal
from shoal.core.exits import ProcessExit
from shoal.core.job import admit, is_news, view
from shoal.core.job.forgetting import AT_ONCE, FORGET_AFTER, KEPT_ENDED
from shoal.core.job.handle import Rejected
from shoal.core.job.values import Announced, Job, NodeExited, NodesAnnounced, ScaleAsked
from shoal.core.nodes import NodeId, NodeStatus

MOST = KEPT_ENDED + AT_ONCE


def a_job() -> Story:
    story = Story(nodes=0, platform_grows=True, pending_timeout=timedelta(days=99))
    story.happen(ScaleAsked(count=2, who="the grant"))
    story.happen(NodesAnnounced(nodes=tuple(Announced(node=NodeId(f"worker-{seat}"), seat=seat) for seat in (0, 1))))
    return story


def lose(story: Story, times: int, *, every: float = 60) -> None:
    """One node after the other is preempted and replaced, before it ever trained."""
    for _ in range(times):
        live = [node for node in story.job.nodes.values() if node.is_live]
        story.happen(NodeExited(node=live[-1].id, exit=ProcessExit(code=137)))
        story.wait(every)


def change(story: Story, times: int, *, every: float = 0) -> None:
    """The job is shrunk and grown, and each time gets a node of another name."""
    for _ in range(times):
        last = max((node for node in story.job.nodes.values() if node.is_live), key=lambda node: node.number)
        story.happen(ScaleAsked(count=1, who="the grant", victims=frozenset({last.id})))
        story.happen(ScaleAsked(count=2, who="the grant"))
        fresh = Announced(node=NodeId(f"worker-{story.job.next_number}"), seat=last.seat)
        story.happen(NodesAnnounced(nodes=(fresh,)))
        story.wait(every)


def ended(job: Job) -> list[str]:
    return [node.id for node in job.nodes.values() if not node.is_live]


def test_of_a_thousand_lost_nodes_the_last_are_known_and_the_names_of_all_stay_used_up() -> None:
    story = a_job()
    lose(story, 1000)
    assert KEPT_ENDED <= len(ended(story.job)) <= MOST + FORGET_AFTER // timedelta(minutes=1)
    assert len(story.launched()) == len(set(story.launched())) == 1000
    assert view(story.job, story.now).restarts == 1000
    assert len(journal.snapshot(story.job)) < 200_000


def test_nodes_that_ended_just_now_are_known_however_many_they_are() -> None:
    story = a_job()
    change(story, 2 * MOST)
    assert len(ended(story.job)) == 2 * MOST
    story.wait(FORGET_AFTER.total_seconds())
    assert len(ended(story.job)) == KEPT_ENDED


def test_a_forgotten_node_is_neither_adopted_nor_let_in_again() -> None:
    story = a_job()
    lose(story, 2 * MOST)
    old = Announced(node=NodeId("worker-1"), seat=1)
    assert old.node not in story.job.nodes
    assert not is_news(story.job, old)
    before = story.job
    story.happen(NodesAnnounced(nodes=(old,)))
    assert story.job == before
    _, answer = admit(story.job, old.node, 1, story.now)
    assert isinstance(answer, Rejected)
    assert "ended long ago" in answer.reason
    assert is_news(story.job, Announced(node=NodeId(f"worker-{story.job.next_number}"), seat=2))


def test_members_of_the_last_world_are_known_until_there_is_another() -> None:
    story = a_job()
    story.train("worker-0", "worker-1")
    story.succeed("worker-0")
    lose(story, 2 * MOST)
    assert story.job.nodes[NodeId("worker-0")].status is NodeStatus.SUCCEEDED
    assert NodeId("worker-1") in story.job.nodes
    assert NodeId("worker-2") not in story.job.nodes


def test_what_is_left_of_them_is_written_down_and_read_again() -> None:
    story = a_job()
    before = story.job
    lose(story, 2 * MOST)
    change = journal.change(before, story.job)
    assert change is not None
    assert journal.replay([journal.snapshot(before), change.record]) == journal.kept(story.job)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.sampled_from([0.0, 5.0, 700.0])), min_size=1, max_size=8))
def test_whenever_nodes_are_lost_all_are_known_or_forgotten_and_never_both(losses: list[tuple[int, float]]) -> None:
    story = a_job()
    for times, every in losses:
        change(story, times, every=every)
    forgotten = {n for ranges in story.job.forgotten.values() for start, stop in ranges for n in range(start, stop)}
    known = {node.number for node in story.job.nodes.values()}
    assert forgotten | known == set(range(story.job.next_number))
    assert not forgotten & known
    assert sum(node.is_live for node in story.job.nodes.values()) == 2
