"""The pure half: what a torchrun node answers, whatever the order."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from shoal.core.nodes import NodeId
from shoal.core.world import World, WorldMember
from shoal.torch.rendezvous_member import (
    PEERS,
    PLAIN_STORE,
    Ending,
    Member,
    Stage,
    asked,
    last_words,
    opened,
    peer_lost,
    told,
    welcomed,
)
from shoal.wire.messages import (
    Ack,
    Commit,
    Exited,
    FromAgent,
    Interrupt,
    Leave,
    Left,
    Pause,
    PeerClosed,
    Prepare,
    Ready,
    Restart,
    Stop,
    Succeeded,
    Welcome,
)

STORE = {PLAIN_STORE: b"10.0.0.1:4000", PEERS: b"10.0.0.1:4001/word"}


def a_world(generation: int, *nodes: str) -> World:
    members = tuple(
        WorldMember(node=NodeId(n), incarnation=1, address="10.0.0.1", slots=1, base_rank=i, step=None)
        for i, n in enumerate(nodes)
    )
    return World(generation=generation, members=members, source=0, step=None, transfer=True)


def a_welcome(*, sdk: bool = False) -> Welcome:
    return Welcome(
        protocol=1,
        job="mnist",
        node="worker-1",
        incarnation=1,
        sdk=sdk,
        max_workers=4,
        heartbeat_seconds=2.0,
        max_restarts=3,
    )


def waiting() -> Member:
    member, _ = asked(Member(slots=1))
    return welcomed(member, a_welcome())[0]


def training(generation: int = 1) -> Member:
    member, _ = told(waiting(), Prepare(world=a_world(generation, "worker-0", "worker-1")))
    return told(member, Commit(generation=generation, store=STORE))[0]


def kinds(messages: tuple[FromAgent, ...]) -> list[type]:
    return [type(m) for m in messages]


def test_a_commit_gives_rank_and_store() -> None:
    member = training()
    assert member.stage is Stage.TRAINING
    assert member.formed is not None
    assert (member.formed.rank, member.formed.store) == (1, "10.0.0.1:4000")


def test_a_prepare_that_is_superseded_is_not_entered() -> None:
    member, _ = told(waiting(), Prepare(world=a_world(1, "worker-0", "worker-1", "worker-2")))
    member, said = told(member, Prepare(world=a_world(2, "worker-0", "worker-1")))
    assert [m.generation for m in said if isinstance(m, Ack)] == [2]
    member, _ = told(member, Commit(generation=1, store=STORE))
    assert member.stage is Stage.WAITING
    member, _ = told(member, Commit(generation=2, store=STORE))
    assert member.generation == 2


def test_group_rank_0_acknowledges_when_its_store_is_open() -> None:
    member, said = told(waiting(), Prepare(world=a_world(3, "worker-1", "worker-0")))
    assert said == ()
    assert opened(member, 2, store="10.0.0.1:1", peers="10.0.0.1:2/x")[1] == ()  # of a superseded generation
    _, said = opened(member, 3, store="10.0.0.1:1", peers="10.0.0.1:2/x")
    assert [m.store for m in said if isinstance(m, Ack)] == [{PLAIN_STORE: b"10.0.0.1:1", PEERS: b"10.0.0.1:2/x"}]


def test_a_lost_connection_makes_it_say_again_that_it_is_ready() -> None:
    assert kinds(welcomed(waiting(), a_welcome())[1]) == [Ready]
    assert kinds(welcomed(training(), a_welcome())[1]) == []


def test_failed_processes_hint_at_a_lost_peer_and_asked_for_ones_do_not() -> None:
    assert kinds(asked(training())[1]) == [PeerClosed, Ready]
    paused, _ = told(training(), Pause(generation=1, reason="worker-2 to join"))
    assert kinds(asked(paused)[1]) == [Ready]


def test_only_the_world_in_which_it_trains_can_end() -> None:
    assert told(training(2), Interrupt(generation=1, reason="late"))[0].change is None
    assert told(waiting(), Interrupt(generation=1, reason="late"))[0].change is None
    assert told(training(2), Interrupt(generation=2, reason="gone"))[0].change == "gone"
    assert kinds(peer_lost(training(2), 1)[1]) == []
    assert kinds(peer_lost(training(2), 2)[1]) == [PeerClosed]


@pytest.mark.parametrize(
    ("message", "how"),
    [
        pytest.param(Leave(reason="scaled down", grace_seconds=1), Ending.DRAINED, id="leave"),
        pytest.param(Stop(reason="over", grace_seconds=1), Ending.CLOSED, id="stop"),
        pytest.param(Restart(incarnation=1, sdk=True, reason="SDK"), Ending.CLOSED, id="an-sdk-job"),
    ],
)
def test_endings(message: Leave | Stop | Restart, how: Ending) -> None:
    member, _ = told(training(), message)
    assert member.over is not None
    assert member.over.how is how


def test_a_job_with_the_sdk_is_not_for_torchrun() -> None:
    member, _ = welcomed(waiting(), a_welcome(sdk=True))
    assert member.over is not None
    assert "shoal run --join" in member.over.reason


@pytest.mark.parametrize(
    ("member", "error", "expected"),
    [
        pytest.param(training(), None, [Succeeded], id="success"),
        pytest.param(training(), "exit 1", [Exited], id="out-of-restarts"),
        pytest.param(waiting(), "no world", [Left], id="never-in-a-world"),
        pytest.param(told(training(), Stop(reason="over", grace_seconds=1))[0], "closed", [Left], id="stopped"),
        pytest.param(replace(waiting(), node=None), "refused", [], id="never-welcome"),
    ],
)
def test_last_words(member: Member, error: str | None, expected: list[type]) -> None:
    assert kinds(last_words(member, error, pid=1, uptime_seconds=1.0)) == expected
