"""What the master knows of a job's use and speed: rates from counters, sums over nodes, and how it is written down."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.history import Quantity
from shoal.core.nodes import Node, NodeId, NodeSeen, ProcessSeen, Role, Trained
from shoal.core.plans import NodeResource
from shoal.core.statistics import MOST_DEAD, MOST_NODES, Heard, Now, Statistics
from shoal.core.statistics_kept import BUDGET, packed, unpacked

T0 = datetime(2026, 11, 1, tzinfo=UTC)
A = NodeId("worker-0")
MIB = 1024 * 1024
numbers = st.one_of(st.floats(), st.integers(-(2**70), 2**70))
counts = st.one_of(st.integers(-10, 1000), numbers.map(lambda n: int(n) if isfinite(n) else 0))


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def a_process(*, cpu: float = 1.0, memory: int = MIB, trained: Trained | None = None, rank: int = 0) -> ProcessSeen:
    return ProcessSeen(
        local_rank=rank,
        pid=100 + rank,
        stopped=False,
        cpu=cpu,
        memory_bytes=memory,
        step=None,
        collectives=0,
        busy=None,
        trained=trained,
    )


def heard(*processes: ProcessSeen, limit: float | None = 4.0) -> Heard:
    return Heard(node=NodeSeen(cpu_limit=limit, memory_limit=1024 * MIB), processes=processes)


def trained(steps: int, *, samples: int | None = None, each: float = 0.1, work: float = 0.05) -> Trained:
    return Trained(steps=steps, samples=samples, step_seconds=steps * each, work_seconds=steps * work)


def a_node(name: str, cpu: float | None = None) -> Node:
    role, _, number = name.rpartition("-")
    return Node(
        role=Role(role), number=int(number), seat=0, since=T0, reason="", resource=NodeResource(cpu=cpu, memory=1024)
    )


def now_of(*nodes: Node, workers: int = 1) -> Callable[[], Now]:
    return lambda: Now(workers=workers, nodes=nodes)


# Rates ---------------------------------------------------------------------------------------------------


def test_two_reports_of_a_process_make_its_nodes_speed_and_step_time() -> None:
    statistics = Statistics()
    for beat in range(6):
        said = trained(20 * beat, samples=640 * beat)
        statistics.heard(A, heard(a_process(trained=said)), after(2 * beat))
    history = statistics.nodes[A].history
    assert history.latest(Quantity.STEPS) == pytest.approx(10)
    assert history.latest(Quantity.SAMPLES) == pytest.approx(320)
    assert history.latest(Quantity.STEP) == pytest.approx(0.1)
    assert history.latest(Quantity.WORK) == pytest.approx(0.05)
    assert history.latest(Quantity.CPU) == 1.0
    assert statistics.nodes[A].cpu_limit == 4.0


def test_processes_of_a_node_share_its_steps_and_add_their_samples() -> None:
    statistics = Statistics()
    for beat in range(3):
        slow = trained(10 * beat, samples=100 * beat, work=0.09)
        both = (a_process(trained=trained(10 * beat, samples=100 * beat)), a_process(trained=slow, rank=1))
        statistics.heard(A, heard(*both), after(2 * beat))
    history = statistics.nodes[A].history
    assert history.latest(Quantity.STEPS) == pytest.approx(5)
    assert history.latest(Quantity.SAMPLES) == pytest.approx(100)
    assert history.latest(Quantity.WORK) == pytest.approx(0.09)
    assert history.latest(Quantity.CPU) == 2.0


def test_a_counter_that_falls_is_a_new_beginning_and_no_speed() -> None:
    statistics = Statistics()
    for beat, steps in enumerate((1000, 1010, 3, 13, 23)):
        statistics.heard(A, heard(a_process(trained=trained(steps))), after(2 * beat))
        statistics.progressed(steps, 32 * steps, after(2 * beat))
    for history in (statistics.nodes[A].history, statistics.job):
        points = history.levels[0].points(Quantity.STEPS)
        assert [point.mean for point in points] == pytest.approx([5, 5, 5])


def test_messages_that_arrive_together_are_no_burst_of_speed() -> None:
    statistics = Statistics()
    for seconds, steps in ((0, 0), (2, 20), (2.001, 40), (2.002, 60), (4, 80)):
        statistics.heard(A, heard(a_process(trained=trained(steps))), after(seconds))
        statistics.progressed(steps, None, after(seconds))
    assert statistics.nodes[A].history.peak(Quantity.STEPS) == pytest.approx(30, rel=0.01)
    assert statistics.job.peak(Quantity.STEPS) == pytest.approx(30, rel=0.01)


def test_the_time_between_two_worlds_is_no_slow_step() -> None:
    statistics = Statistics()
    statistics.progressed(10, 100, after(0))
    statistics.progressed(20, 200, after(2))
    statistics.broken()
    statistics.progressed(20, 200, after(60))
    statistics.progressed(30, 300, after(62))
    steps = statistics.job.levels[0].points(Quantity.STEP)
    assert [point.mean for point in steps] == pytest.approx([0.2, 0.2])


def test_a_job_that_stands_still_has_no_speed() -> None:
    statistics = Statistics()
    for second in range(0, 10, 2):
        statistics.progressed(5, 50, after(second))
    assert statistics.job.latest(Quantity.STEPS) == 0.0
    assert statistics.job.latest(Quantity.STEP) is None


# Sums ----------------------------------------------------------------------------------------------------


def test_the_jobs_use_is_the_sum_over_nodes_that_are_heard_and_live() -> None:
    statistics = Statistics()
    for name, cpu in (("worker-0", 1.0), ("worker-1", 3.0), ("ps-0", 1.5), ("worker-9", 50.0)):
        statistics.heard(NodeId(name), heard(a_process(cpu=cpu)), after(0))
    live = (a_node("worker-0", 4.0), a_node("worker-1", 4.0), a_node("ps-0", 2.0))
    statistics.ticked(now_of(*live, workers=2), after(1))
    job = statistics.job
    assert job.latest(Quantity.CPU) == 5.5
    assert job.latest(Quantity.MEMORY) == 3 * MIB
    assert job.latest(Quantity.WORKERS) == 2
    assert job.latest(Quantity.WORKER_CPU) == 2.0
    assert job.latest(Quantity.WORKER_GRANT) == 4.0
    assert (job.latest(Quantity.PS), job.latest(Quantity.PS_CPU), job.latest(Quantity.PS_GRANT)) == (1, 1.5, 2.0)
    assert job.latest(Quantity.PS_BUSIEST) == 0.75
    statistics.heard(A, heard(a_process(cpu=1.0)), after(60))
    statistics.ticked(now_of(*live, workers=2), after(61))
    assert job.latest(Quantity.CPU) == 1.0


def test_the_speed_of_a_large_job_that_nobody_speaks_for_is_the_sum_over_all_its_nodes() -> None:
    statistics, live = Statistics(), tuple(a_node(f"worker-{number}") for number in range(1000))
    for beat in range(20):
        for node in live:
            said = heard(a_process(trained=trained(20 * beat, samples=60 * beat)))
            statistics.heard(node.id, said, after(2 * beat + node.number / 1000))
        statistics.progressed(20 * beat, None, after(2 * beat + 1))
        statistics.ticked(now_of(*live, workers=1000), after(2 * beat + 1))
    assert statistics.job.latest(Quantity.SAMPLES) == pytest.approx(30_000)
    assert statistics.job.latest(Quantity.CPU) == 1000


def test_a_job_whose_processes_have_ended_uses_nothing() -> None:
    statistics, live = Statistics(), (a_node("worker-0", 4.0), a_node("worker-1", 4.0))
    for second in range(0, 60, 2):
        for node in live:
            has_ended = second > (10 if node.number else 30)
            statistics.heard(node.id, heard(*(() if has_ended else (a_process(),))), after(second))
        statistics.ticked(now_of(*live), after(second))
    sums = [point.last for point in statistics.job.levels[0].points(Quantity.CPU)]
    assert (sums[0], sums[14], sums[-1]) == (2.0, 1.0, 0.0)
    assert statistics.job.latest(Quantity.MEMORY) == 0.0
    assert statistics.job.latest(Quantity.GPU) is None


def test_a_master_that_has_heard_nothing_yet_does_not_say_that_nothing_is_used() -> None:
    before = a_long_job(2, 1)
    back = unpacked(packed(before))
    back.ticked(now_of(a_node("worker-0"), a_node("worker-1")), after(3600 - 55))
    assert back.job.levels[0].points(Quantity.CPU) == []


def test_what_the_kernel_counts_against_the_limit_wins_over_what_processes_hold() -> None:
    statistics = Statistics()
    said = heard(a_process(memory=10 * MIB))
    statistics.heard(A, replace(said, node=replace(said.node, memory_bytes=70 * MIB)), after(0))
    assert statistics.nodes[A].history.latest(Quantity.MEMORY) == 70 * MIB


def test_nodes_that_were_silent_longest_are_forgotten_when_there_are_too_many() -> None:
    statistics = Statistics()
    for number in range(MOST_NODES + 10):
        statistics.heard(NodeId(f"worker-{number}"), heard(a_process()), after(number / 100))
        statistics.heard(A, heard(a_process()), after(number / 100))
    assert len(statistics.nodes) == MOST_NODES
    assert A in statistics.nodes
    assert NodeId("worker-1") not in statistics.nodes


def test_of_nodes_that_live_no_more_the_last_few_are_remembered_and_do_not_slow_the_others_down() -> None:
    statistics = Statistics()
    for number in range(1, 500):
        statistics.heard(NodeId(f"worker-{number}"), heard(a_process()), after(number / 100))
    statistics.ticked(now_of(a_node("worker-0"), a_node("worker-1")), after(5))
    for beat in range(10):
        statistics.heard(A, heard(a_process()), after(6 + 2 * beat))
    assert set(statistics.nodes) == {
        A,
        NodeId("worker-1"),
        *(NodeId(f"worker-{n}") for n in range(500 - MOST_DEAD, 500)),
    }
    assert len(statistics.nodes[A].history.levels[0].points(Quantity.CPU)) == 10


def test_a_large_jobs_nodes_count_less_often_and_a_small_ones_each_time() -> None:
    for nodes, taken in ((250, 8), (1000, 2)):
        statistics = Statistics()
        for beat in range(8):
            for number in range(nodes):
                said = heard(a_process(cpu=beat, trained=trained(20 * beat)))
                statistics.heard(NodeId(f"worker-{number}"), said, after(2 * beat + number / nodes))
        history = statistics.nodes[NodeId("worker-7")].history
        assert taken <= len(history.levels[0].points(Quantity.CPU)) <= taken + 1
        assert history.latest(Quantity.STEPS) == pytest.approx(10)
        assert statistics.nodes[NodeId("worker-7")].at == pytest.approx(after(14).timestamp(), abs=1)


# Whatever comes in ---------------------------------------------------------------------------------------


odd_trained = st.builds(Trained, steps=counts, samples=st.none() | counts, step_seconds=numbers, work_seconds=numbers)
odd_heard = st.builds(
    lambda cpu, memory, said, limit, gpu: Heard(
        node=NodeSeen(cpu_limit=limit, memory_limit=memory),
        processes=(a_process(cpu=cpu, memory=memory, trained=said),),
        gpus=1,
        gpu_busy=gpu,
    ),
    numbers,
    counts,
    st.none() | odd_trained,
    st.none() | numbers,
    numbers,
)
odd_times = st.floats(-1e9, 1e9)
events = st.lists(
    st.tuples(odd_times, st.sampled_from(["worker-0", "worker-1"]), odd_heard, counts, counts), max_size=20
)


@given(events, st.integers(0, 4096))
def test_no_message_and_no_clock_spoils_the_statistics(
    said: list[tuple[float, str, Heard, int, int]], budget: int
) -> None:
    statistics = Statistics()
    for seconds, name, heartbeat, step, samples in said:
        statistics.heard(NodeId(name), heartbeat, after(seconds))
        statistics.progressed(step, samples, after(seconds))
        statistics.ticked(now_of(a_node("worker-0"), a_node("worker-1", 2.0)), after(seconds))
    for history in (statistics.job, *(book.history for book in statistics.nodes.values())):
        for level in history.levels:
            for quantity in Quantity:
                for point in level.points(quantity):
                    assert all(isfinite(value) and value >= 0 for value in (point.mean, point.max, point.last))
    data = packed(statistics, budget=budget)
    assert len(data) <= budget
    unpacked(data)


@pytest.mark.parametrize("odd", [nan, inf, -1.0])
def test_half_of_a_nodes_processes_is_not_the_node(odd: float) -> None:
    statistics = Statistics()
    statistics.heard(A, heard(a_process(cpu=2.0), a_process(cpu=odd, rank=1)), after(0))
    assert statistics.nodes[A].history.latest(Quantity.CPU) is None


# Written down --------------------------------------------------------------------------------------------


def a_long_job(nodes: int, hours: float) -> Statistics:
    statistics = Statistics()
    live = tuple(a_node(f"worker-{number}", 4.0) for number in range(nodes))
    for minute in range(int(hours * 60)):
        for node in live:
            said = a_process(cpu=1 + node.number % 3, memory=minute * MIB, trained=trained(600 * minute))
            statistics.heard(node.id, heard(said), after(60 * minute))
        statistics.progressed(600 * minute, 6000 * minute, after(60 * minute))
        statistics.ticked(now_of(*live, workers=nodes), after(60 * minute))
    return statistics


def test_the_coarse_series_survive_being_written_down() -> None:
    before = a_long_job(2, 10)
    back = unpacked(packed(before))
    assert back.timeline == before.timeline
    for history, known in ((back.job, before.job), (back.nodes[A].history, before.nodes[A].history)):
        for level, original in zip(history.levels[1:], known.levels[1:], strict=True):
            for quantity in original.columns:
                points, wanted = level.points(quantity), original.points(quantity)[-len(level.points(quantity)) :]
                assert len(points) > 30
                top = max(point.max for point in wanted) / 30_000
                assert [(p.at, p.mean, p.max) for p in points] == [
                    (p.at, pytest.approx(p.mean, abs=top), pytest.approx(p.max, abs=top)) for p in wanted
                ]


def test_a_history_that_was_read_back_goes_on() -> None:
    before = a_long_job(1, 3)
    back = unpacked(packed(before))
    for second in range(0, 1200, 2):
        back.heard(A, heard(a_process(cpu=7.0)), after(3 * 3600 + second))
    level = back.nodes[A].history.levels[1]
    assert list(level.numbers) == sorted(set(level.numbers))
    means = [point.mean for point in level.points(Quantity.CPU)]
    assert 1.0 in [round(mean, 2) for mean in means]
    assert means[-5:] == [7.0] * 5


@pytest.mark.parametrize(("nodes", "hours"), [(1, 20), (20, 2), (700, 0.05)])
def test_however_large_the_job_is_its_statistics_are_small(nodes: int, hours: float) -> None:
    assert 100 < len(packed(a_long_job(nodes, hours))) <= BUDGET


def test_those_that_live_no_more_take_no_room_from_those_that_do() -> None:
    statistics = a_long_job(30, 2)
    live = tuple(a_node(f"worker-{number}") for number in (0, 1))
    statistics.ticked(now_of(*live), after(7200))
    alone = a_long_job(2, 2)
    alone.ticked(now_of(*live), after(7200))
    kept, wanted = unpacked(packed(statistics)), unpacked(packed(alone))
    for node in live:
        levels = zip(kept.nodes[node.id].history.levels, wanted.nodes[node.id].history.levels, strict=True)
        assert all(len(level.numbers) == len(other.numbers) for level, other in levels)
    assert len(packed(statistics)) <= BUDGET


@pytest.mark.parametrize("tiny", [1e-310, 5e-324, 1e-31])
def test_what_is_next_to_nothing_is_written_down_as_nothing(tiny: float) -> None:
    statistics = Statistics()
    for beat in range(3):
        statistics.heard(A, heard(a_process(cpu=tiny)), after(2 * beat))
    found = unpacked(packed(statistics)).nodes[A].history
    assert [point.max for point in found.levels[1].points(Quantity.CPU)] == [0.0]


@given(st.binary(max_size=200))
def test_bytes_that_are_no_statistics_give_an_empty_history(data: bytes) -> None:
    assert not unpacked(data).nodes


def test_damaged_statistics_give_none() -> None:
    data = packed(a_long_job(2, 1))
    for cut in range(1, len(data), max(1, len(data) // 50)):
        assert not unpacked(data[:cut]).nodes
