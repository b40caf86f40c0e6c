"""What the agent said, and what follows from it for a process in some generation."""

import pytest

from shoal.core.nodes import NodeId
from shoal.core.world import World, WorldMember
from shoal.trainer import Inbox
from shoal.wire.local import FromAgentLocal
from shoal.wire.messages import Commit, Interrupt, Pause, Prepare, Release, StorePush


def a_world(generation: int) -> World:
    member = WorldMember(node=NodeId("worker-0"), incarnation=1, address="a", slots=1, base_rank=0, step=None)
    return World(generation=generation, members=(member,), source=0, step=None, transfer=True)


def an_inbox(*messages: FromAgentLocal) -> Inbox:
    inbox = Inbox()
    for message in messages:
        inbox.receive(message)
    return inbox


COMMITTED = (Prepare(world=a_world(3)), Commit(generation=3, store={"0/0": b"x"}))


@pytest.mark.parametrize(
    ("messages", "broken", "pausing"),
    [
        pytest.param((), False, False, id="committed"),
        pytest.param((Pause(generation=3, reason="join"),), False, True, id="pause-waits-for-a-boundary"),
        pytest.param((Interrupt(generation=3, reason="loss"),), True, False, id="interrupt-is-now"),
        pytest.param((Interrupt(generation=2, reason="loss"),), False, False, id="an-old-interrupt-does-not-count"),
        pytest.param((Pause(generation=2, reason="join"),), False, False, id="an-old-pause-does-not-count"),
        pytest.param((Prepare(world=a_world(4)),), True, False, id="a-newer-world-supersedes"),
    ],
)
def test_a_world_of_generation_three(messages: tuple[FromAgentLocal, ...], broken: bool, pausing: bool) -> None:
    inbox = an_inbox(*COMMITTED, *messages)
    assert (inbox.is_broken(3), inbox.is_pausing(3)) == (broken, pausing)


def test_the_store_belongs_to_the_committed_generation() -> None:
    inbox = an_inbox(
        *COMMITTED, StorePush(generation=3, store={"id": b"y"}), StorePush(generation=2, store={"old": b""})
    )
    assert inbox.store == {"0/0": b"x", "id": b"y"}
    inbox.receive(Commit(generation=5, store={}))
    assert inbox.store == {}


def test_the_first_notice_counts_and_a_commit_forgets_it() -> None:
    inbox = an_inbox(*COMMITTED, Pause(generation=3, reason="join"))
    first = inbox.noticed_at
    inbox.receive(Interrupt(generation=3, reason="loss"))
    assert first is not None
    assert inbox.noticed_at == first
    assert inbox.reason == "loss"
    inbox.receive(Commit(generation=4, store={}))
    assert inbox.noticed_at is None


def test_a_release_is_for_its_generation() -> None:
    assert an_inbox(*COMMITTED, Release(generation=3)).released == 3
