"""The node as a value: what must hold whatever comes in whatever order."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.agent import node as core
from shoal.core.exits import ProcessExit
from shoal.core.nodes import NodeId
from shoal.core.world import World, WorldMember
from shoal.wire.local import FromProcess, LocalAck, LocalFinished, LocalReady, Report
from shoal.wire.messages import (
    Ack,
    Commit,
    DumpStacks,
    Exited,
    FromMaster,
    Going,
    Heartbeat,
    Hello,
    Interrupt,
    Kill,
    Leave,
    Left,
    Pause,
    Prepare,
    Ready,
    Refuse,
    Release,
    Restart,
    Stop,
    Welcome,
)

NAME = "worker-0"


def a_welcome(*, sdk: bool = False, incarnation: int = 1) -> Welcome:
    return Welcome(
        protocol=1,
        job="mnist",
        node=NAME,
        incarnation=incarnation,
        sdk=sdk,
        max_workers=4,
        heartbeat_seconds=2.0,
        max_restarts=3,
    )


def a_world(generation: int, *, incarnation: int = 1, slots: int = 2, rank: int = 0) -> World:
    names = ["worker-1", NAME] if rank else [NAME, "worker-1"]
    members = tuple(
        WorldMember(
            node=NodeId(name),
            incarnation=incarnation if name == NAME else 1,
            address="127.0.0.1",
            slots=slots,
            base_rank=index * slots,
            step=None,
        )
        for index, name in enumerate(names)
    )
    return World(generation=generation, members=members, source=0, step=None, transfer=True)


def an_sdk_node(slots: int = 2) -> core.Node:
    """All processes attached and waiting."""
    n = core.a_node(name=NAME, incarnation=1, slots=slots, plain_grace=1.0)
    n, _ = core.welcomed(n, a_welcome(sdk=True))
    for rank in range(slots):
        n, _ = core.attached(n, rank)
        n, _ = core.said(n, rank, LocalReady(step=None))
    return n


def in_a_world(n: core.Node, generation: int = 1) -> core.Node:
    n, _ = core.told(n, Prepare(world=a_world(generation, incarnation=n.incarnation, slots=len(n.slots))))
    for rank in range(len(n.slots)):
        n, _ = core.said(n, rank, LocalAck(generation=generation, store={}))
    n, _ = core.told(n, Commit(generation=generation, store={}))
    return n


def a_plain_node_in_a_world(*, rank: int = 1) -> tuple[core.Node, tuple[core.Effect, ...]]:
    n = core.a_node(name=NAME, incarnation=1, slots=2, plain_grace=1.0)
    n, _ = core.welcomed(n, a_welcome())
    n, _ = core.told(n, Prepare(world=a_world(1, rank=rank)))
    if rank == 0:
        n, _ = core.store_opened(n, 1, "127.0.0.1:1")
    return core.told(n, Commit(generation=1, store={}))


def sent(effects: tuple[core.Effect, ...]) -> list[object]:
    return [effect.message for effect in effects if isinstance(effect, core.Send)]


# One thing at a time -------------------------------------------------------------------------------------


def test_the_node_is_ready_when_its_last_process_is() -> None:
    n = core.a_node(name=NAME, incarnation=1, slots=2, plain_grace=1.0)
    n, effects = core.welcomed(n, a_welcome(sdk=True))
    assert effects == (core.StartProcesses((0, 1), None, {}),)
    n, _ = core.attached(n, 0)
    n, _ = core.attached(n, 1)
    n, effects = core.said(n, 1, LocalReady(step=4))
    assert effects == ()
    n, effects = core.said(n, 0, LocalReady(step=3))
    assert sent(effects) == [Ready(incarnation=1, steps=(3, 4), sdk=True)]


def test_a_newer_prepare_supersedes_an_older_one() -> None:
    n = an_sdk_node()
    n, _ = core.told(n, Prepare(world=a_world(1)))
    n, _ = core.said(n, 0, LocalAck(generation=1, store={"0": b"old"}))
    n, effects = core.told(n, Prepare(world=a_world(2)))
    assert effects == (core.Tell(Prepare(world=a_world(2)), (0, 1)),)
    n, effects = core.said(n, 1, LocalAck(generation=1, store={}))
    assert effects == ()
    n, _ = core.said(n, 1, LocalAck(generation=2, store={"1": b"b"}))
    n, effects = core.said(n, 0, LocalAck(generation=2, store={"0": b"a"}))
    assert sent(effects) == [Ack(incarnation=1, generation=2, store={"0": b"a", "1": b"b"})]
    _, effects = core.told(n, Commit(generation=1, store={}))
    assert effects == ()


def test_what_is_said_twice_is_answered_once() -> None:
    n = an_sdk_node(slots=1)
    n, _ = core.told(n, Prepare(world=a_world(1, slots=1)))
    assert core.told(n, Prepare(world=a_world(1, slots=1)))[1] == ()
    n, effects = core.said(n, 0, LocalAck(generation=1, store={}))
    assert len(sent(effects)) == 1
    assert core.said(n, 0, LocalAck(generation=1, store={}))[1] == ()
    n, _ = core.told(n, Commit(generation=1, store={}))
    assert core.told(n, Commit(generation=1, store={}))[1] == ()
    assert core.told(n, Prepare(world=a_world(1, slots=1)))[1] == ()


def test_group_rank_one_of_a_plain_world_warms_its_store_and_rank_zero_listens() -> None:
    _, effects = a_plain_node_in_a_world(rank=1)
    assert core.WarmStore() in effects
    n = core.a_node(name=NAME, incarnation=1, slots=2, plain_grace=1.0)
    n, _ = core.welcomed(n, a_welcome())
    n, effects = core.told(n, Prepare(world=a_world(1)))
    assert effects == (core.OpenStore(a_world(1)),)
    _, effects = core.store_opened(n, 1, "127.0.0.1:29500")
    assert sent(effects) == [Ack(incarnation=1, generation=1, store={"plain/store": b"127.0.0.1:29500"})]


@pytest.mark.parametrize("order", [Pause, Interrupt])
def test_a_plain_node_is_ready_again_when_its_last_process_has_ended(order: Callable[..., Pause | Interrupt]) -> None:
    n, _ = a_plain_node_in_a_world()
    n, effects = core.told(n, order(generation=1, reason="r"))
    assert effects == (core.StopProcesses((0, 1), 1.0),)
    n, effects = core.ended(n, 1, ProcessExit(code=143))
    assert effects == ()
    n, effects = core.ended(n, 0, ProcessExit(code=0))
    assert sent(effects) == [Ready(incarnation=1, steps=(None, None), sdk=False)]
    _, effects = core.told(n, Interrupt(generation=1, reason="said twice"))
    assert effects == ()


def test_a_plain_node_that_failed_waits_for_the_order_to_restart_and_for_its_other_processes() -> None:
    n, _ = a_plain_node_in_a_world()
    n, effects = core.ended(n, 0, ProcessExit(code=1))
    assert [type(message) for message in sent(effects)] == [Exited]
    assert core.StopProcesses((1,), 1.0) in effects
    assert [type(message) for message in sent(core.standing(n))] == [Exited]
    n, effects = core.told(n, Restart(incarnation=2, reason="r"))
    assert effects == ()
    n, effects = core.ended(n, 1, ProcessExit(code=143))
    assert sent(effects) == [Ready(incarnation=2, steps=(None, None), sdk=False)]


def test_a_plain_node_that_is_told_that_the_job_uses_the_sdk_starts_its_processes_at_once() -> None:
    n = core.a_node(name=NAME, incarnation=1, slots=1, plain_grace=1.0)
    n, _ = core.welcomed(n, a_welcome())
    n, effects = core.told(n, Restart(incarnation=1, sdk=True, reason="the job uses the SDK"))
    assert effects == (core.StartProcesses((0,), None, {}),)
    assert n.incarnation == 1


def test_a_dead_process_interrupts_the_others_once_and_only_it_is_started_again() -> None:
    n = in_a_world(an_sdk_node())
    n, effects = core.ended(n, 1, ProcessExit(code=137))
    (told,) = [effect for effect in effects if isinstance(effect, core.Tell)]
    assert isinstance(told.message, Interrupt)
    assert told.to == (0,)
    n, effects = core.told(n, Interrupt(generation=1, reason="from the master too"))
    assert effects == ()
    n, effects = core.told(n, Restart(incarnation=2, sdk=True, reason="r"))
    assert effects == (core.StartProcesses((1,), None, {}),)


def test_an_interrupt_of_a_world_whose_commit_was_lost_makes_the_node_ready_again() -> None:
    n = an_sdk_node(slots=1)
    n, _ = core.told(n, Prepare(world=a_world(1, slots=1)))
    n, effects = core.said(n, 0, LocalAck(generation=1, store={}))
    (ack,) = sent(effects)
    assert sent(core.standing(n)) == [ack]
    n, effects = core.told(n, Interrupt(generation=1, reason="worker-0 missed the start of world 1"))
    assert sent(effects) == [Ready(incarnation=1, steps=(None,), sdk=True)]


def test_a_welcome_that_knows_a_later_incarnation_is_the_order_to_restart_that_was_lost() -> None:
    n = in_a_world(an_sdk_node())
    n, _ = core.ended(n, 0, ProcessExit(code=1))
    n, effects = core.welcomed(n, a_welcome(sdk=True, incarnation=2))
    assert n.incarnation == 2
    assert core.StartProcesses((0,), None, {}) in effects


def test_kill_is_for_its_own_incarnation_and_asks_only_attached_processes_for_stacks() -> None:
    n = in_a_world(an_sdk_node())
    n, _ = core.detached(n, 1)
    order = Kill(incarnation=1, local_ranks=(0, 1, 7), dump_first=True, reason="hang")
    assert core.told(n, order)[1] == (core.KillProcesses((0, 1), (0,), "hang"),)
    late = Kill(incarnation=9, local_ranks=(0,), dump_first=True, reason="hang")
    assert core.told(n, late)[1] == ()


def test_stacks_are_asked_of_the_processes_named_or_of_all_that_are_attached() -> None:
    n = in_a_world(an_sdk_node(slots=3))
    n, _ = core.detached(n, 1)
    assert core.told(n, DumpStacks(incarnation=1, local_ranks=(0, 1)))[1] == (core.DumpProcesses((0,)),)
    assert core.told(n, DumpStacks(incarnation=1, local_ranks=()))[1] == (core.DumpProcesses((0, 2)),)
    assert core.told(n, DumpStacks(incarnation=9, local_ranks=()))[1] == ()


def test_the_first_reason_to_end_stays_and_a_second_signal_kills() -> None:
    n = in_a_world(an_sdk_node())
    n, effects = core.signalled(n, 15, "SIGTERM", grace=30.0)
    assert effects == (core.StopProcesses((0, 1), 30.0),)
    n, _ = core.told(n, Leave(reason="drained", grace_seconds=1.0))
    n, effects = core.signalled(n, 15, "SIGTERM", grace=30.0)
    assert effects == (core.StopProcesses((0, 1), 0.0),)
    n, _ = core.ended(n, 0, ProcessExit(code=137))
    n, effects = core.ended(n, 1, ProcessExit(code=137))
    assert effects[-1] == core.End(143, "ends: got SIGTERM")
    assert core.overdue(n)[1] == ()


def test_a_process_that_leaves_because_the_agent_is_ended_was_terminated() -> None:
    """Exit 77 would tell the master that it was let go, and nobody would take its place."""
    n = in_a_world(an_sdk_node(slots=1))
    n, _ = core.signalled(n, 15, "SIGTERM", grace=30.0)
    n, (said, end) = core.ended(n, 0, ProcessExit(code=77))
    assert isinstance(said, core.Send)
    assert isinstance(said.message, Exited)
    assert said.message.code == 143
    assert end == core.End(143, "ends: got SIGTERM")


def test_a_node_that_joined_by_itself_leaves_when_it_is_told_to_end() -> None:
    n = replace(in_a_world(an_sdk_node()), joined=True)
    n, effects = core.signalled(n, 2, "SIGINT", grace=30.0)
    assert effects == (core.StopProcesses((0, 1), 30.0),)
    n, effects = core.ended(n, 0, ProcessExit(code=143))
    assert effects == ()
    n, effects = core.ended(n, 1, ProcessExit(code=143))
    assert effects == (core.End(130, "ends: got SIGINT", goodbye=Left(incarnation=1)),)


@pytest.mark.parametrize(("joined", "failed", "code"), [(True, True, 78), (True, False, 0), (False, True, 0)])
def test_whoever_started_a_node_that_joined_learns_that_the_job_has_failed(
    joined: bool, failed: bool, code: int
) -> None:
    n = replace(in_a_world(an_sdk_node(slots=1)), joined=joined)
    n, _ = core.told(n, Stop(reason="it is over", grace_seconds=1.0, has_failed=failed))
    _, effects = core.ended(n, 0, ProcessExit(code=143))
    assert effects == (core.End(code, "stops: it is over"),)


def a_server() -> core.Node:
    n = replace(in_a_world(an_sdk_node(slots=1)), joined=True, serves=True)
    n, effects = core.signalled(n, 15, "SIGTERM", grace=30.0)
    assert effects == (core.Send(Going(incarnation=1)),)
    return n


def test_a_server_that_joined_by_itself_stays_until_it_is_let_go() -> None:
    n, effects = core.told(a_server(), Leave(reason="nobody needs it", grace_seconds=5.0))
    assert effects == (core.StopProcesses((0,), 5.0),)
    n, effects = core.ended(n, 0, ProcessExit(code=0))
    assert effects == (core.End(0, "leaves: nobody needs it", goodbye=Left(incarnation=1)),)


def test_a_server_that_has_to_go_says_so_again_to_the_next_master() -> None:
    _, effects = core.welcomed(a_server(), a_welcome())
    assert effects[-1] == core.Send(Going(incarnation=1))


def test_a_second_signal_ends_a_server_that_has_to_go() -> None:
    _, effects = core.signalled(a_server(), 15, "SIGTERM", grace=30.0)
    assert effects == (core.StopProcesses((0,), 30.0),)


def test_a_node_that_nobody_knows_yet_has_nothing_to_leave() -> None:
    n = core.a_node(name="", incarnation=1, slots=1, plain_grace=1.0, joined=True)
    assert core.signalled(n, 2, "SIGINT", grace=30.0)[1] == (core.End(130, "ends: got SIGINT"),)


def test_a_report_of_an_earlier_world_tells_nothing_of_this_one() -> None:
    n = in_a_world(an_sdk_node(slots=1))
    report = Report(generation=1, rank=0, step=3, collectives=40, busy="eval", samples=None, metrics={})
    n, _ = core.said(n, 0, report)
    assert n.report(0) == report
    n, _ = core.told(n, Pause(generation=1, reason="a node joins"))
    n, _ = core.said(n, 0, LocalReady(step=3))
    n = in_a_world(n, generation=2)
    assert n.report(0) is None


# Anything, in any order ----------------------------------------------------------------------------------

Event = Callable[[core.Node], tuple[str, core.Step]]
OFTEN = ["prepare", "prepare", "commit", "commit", "ready", "ready", "ready", "ack", "ack", "ack", "attach", "attach"]
SELDOM = ["welcome", "pause", "interrupt", "release", "restart", "kill", "finished", "report", "detach", "end", "store"]
LAST = ["leave", "stop", "refuse"]


@st.composite
def events(draw: st.DrawFn, slots: int) -> Event:
    """Something that happens, about what the node has just been told, or about something earlier or later."""
    kind = draw(st.sampled_from(OFTEN * 2 + SELDOM + (LAST if draw(st.integers(0, 9)) == 0 else [])))
    rank = draw(st.integers(0, slots - 1))
    later = draw(st.sampled_from([0, 0, 0, 1, 1, -1]))
    reborn = draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
    group = draw(st.integers(0, 1))
    step = draw(st.none() | st.integers(0, 3))
    sdk = draw(st.booleans())
    exit = ProcessExit(code=draw(st.sampled_from([0, 1, 137])))

    def happen(n: core.Node) -> tuple[str, core.Step]:
        generation, incarnation = max(1, n.prepared + later), max(1, n.incarnation + reborn)
        told: dict[str, FromMaster] = {
            "welcome": a_welcome(sdk=sdk, incarnation=incarnation),
            "prepare": Prepare(world=a_world(generation, incarnation=incarnation, slots=slots, rank=group)),
            "commit": Commit(generation=generation, store={}),
            "pause": Pause(generation=generation, reason="r"),
            "interrupt": Interrupt(generation=generation, reason="r"),
            "release": Release(generation=generation),
            "restart": Restart(incarnation=incarnation, sdk=sdk, reason="r"),
            "kill": Kill(incarnation=incarnation, local_ranks=(rank,), dump_first=sdk, reason="r"),
            "leave": Leave(reason="r", grace_seconds=1.0),
            "stop": Stop(reason="r", grace_seconds=1.0),
            "refuse": Refuse(reason="r"),
        }
        said: dict[str, FromProcess] = {
            "ready": LocalReady(step=step),
            "ack": LocalAck(generation=generation, store={f"{generation}/{rank}": b"x"}),
            "finished": LocalFinished(generation=generation),
            "report": Report(generation=generation, rank=0, step=step, collectives=0, busy=None),
        }
        if kind in told:
            return kind, core.told(n, told[kind])
        if kind in said:
            return kind, core.said(n, rank, said[kind])
        if kind == "store":
            return kind, core.store_opened(n, generation, "here:1")
        if kind == "detach":
            return kind, core.detached(n, rank)
        if not _runs(n, rank):
            return kind, (n, ())  # only what runs attaches or ends
        return kind, core.attached(n, rank) if kind == "attach" else core.ended(n, rank, exit)

    return happen


def _runs(n: core.Node, rank: int) -> bool:
    return n.slots[rank].phase is core.Phase.RUNNING


@settings(max_examples=200)
@given(st.data(), st.integers(1, 3))
def test_whatever_happens_the_node_keeps_its_promises(data: st.DataObject, slots: int) -> None:
    fresh = core.a_node(name=NAME, incarnation=1, slots=slots, plain_grace=1.0)
    waiting = an_sdk_node(slots)
    begins = [core.welcomed(fresh, a_welcome())[0], waiting, waiting, in_a_world(waiting)]
    n = data.draw(st.sampled_from(begins))
    acked: set[int] = set(range(1, n.prepared + 1))
    for event in data.draw(st.lists(events(slots), max_size=40)):
        before = n
        name, (n, effects) = event(n)
        _check(name, before, n, effects, acked)


def _check(name: str, before: core.Node, n: core.Node, effects: tuple[core.Effect, ...], acked: set[int]) -> None:
    assert not before.ended or not effects, f"{name}: something after the end"
    assert n.incarnation >= before.incarnation
    assert n.generation >= before.generation or n.world is None
    for effect in effects:
        match effect:
            case core.StartProcesses(local_ranks=ranks):
                ran = sum(_runs(before, rank) for rank in ranks)  # the one that has just ended did
                assert ran <= (name == "end"), f"{name}: a process beside one that runs"
                assert n.ending is None
            case core.StopProcesses(local_ranks=ranks):
                assert ranks
                assert all(_runs(n, rank) for rank in ranks)
            case core.Tell(to=to):
                assert to
                assert all(n.slots[rank].attached for rank in to)
            case core.Send(message=Ready() as ready):
                assert n.is_waiting
                assert len(ready.steps) == len(n.slots)
                if ready.sdk:
                    assert all(slot.attached and slot.ready for slot in n.slots)
            case core.Send(message=Ack() as ack):
                assert n.pending is not None
                assert n.pending.generation == ack.generation
                assert ack.generation not in acked or name == "welcome", f"{name}: acknowledged twice"
                acked.add(ack.generation)
            case core.End(goodbye=goodbye):
                assert n.ended
                assert goodbye is None or goodbye.incarnation == n.incarnation
                assert not any(_runs(n, rank) for rank in range(len(n.slots)))
            case _:
                pass
        if isinstance(effect, core.Send) and not isinstance(effect.message, Hello | Heartbeat | Exited):
            assert effect.message.incarnation == n.incarnation


@given(st.permutations(range(3)), st.permutations(range(3)))
def test_acknowledgements_merge_to_the_same_store_in_any_order(readies: list[int], acks: list[int]) -> None:
    n = core.a_node(name=NAME, incarnation=1, slots=3, plain_grace=1.0)
    n, _ = core.welcomed(n, a_welcome(sdk=True))
    for rank in readies:
        n, _ = core.attached(n, rank)
        n, _ = core.said(n, rank, LocalReady(step=rank))
    assert n.is_waiting
    n, _ = core.told(n, Prepare(world=a_world(1, slots=3)))
    for rank in acks:
        n, effects = core.said(n, rank, LocalAck(generation=1, store={f"0/{rank}": bytes([rank])}))
    store = {"0/0": b"\0", "0/1": b"\1", "0/2": b"\2"}
    assert sent(effects) == [Ack(incarnation=1, generation=1, store=store)]


def test_the_standing_of_a_node_that_waits_says_its_steps() -> None:
    n = an_sdk_node()
    n = replace(n, slots=tuple(replace(slot, step=9) for slot in n.slots))
    assert sent(core.standing(n)) == [Ready(incarnation=1, steps=(9, 9), sdk=True)]
    assert core.standing(in_a_world(n)) == ()
