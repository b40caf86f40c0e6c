"""A process counts its steps: what is a step, what is work, and what is neither."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.nodes import Trained
from shoal.trainer.meter import Meter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_step_lasts_from_the_end_of_the_one_before() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.begin()
    clock.now += 2
    meter.committed(samples=8, waited=0.5)
    clock.now += 1  # reads data
    meter.begin()
    clock.now += 3
    meter.committed(samples=8, waited=1.0)
    assert meter.trained == Trained(steps=2, samples=16, step_seconds=6.0, work_seconds=4.5)


def test_what_is_not_training_is_no_part_of_a_step() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.begin()
    clock.now += 1
    meter.committed(samples=None, waited=0.0)
    clock.now += 60
    meter.rested(60)
    meter.begin()
    clock.now += 1
    meter.committed(samples=None, waited=0.0)
    meter.stop()
    clock.now += 60  # between two worlds
    meter.begin()
    clock.now += 1
    meter.committed(samples=None, waited=0.0)
    assert meter.trained == Trained(steps=3, samples=None, step_seconds=3.0, work_seconds=3.0)


acts = st.one_of(
    st.tuples(st.just("begin"), st.just(0.0)),
    st.tuples(st.just("stop"), st.just(0.0)),
    st.tuples(st.sampled_from(["rest", "commit"]), st.floats(0, 1e6)),
)


@given(st.lists(st.tuples(acts, st.floats(0, 100))))
def test_counters_only_grow_and_work_is_part_of_the_step(said: list[tuple[tuple[str, float], float]]) -> None:
    clock = Clock()
    meter = Meter(clock)
    for (act, amount), passed in said:
        clock.now += passed
        before = meter.trained
        match act:
            case "begin":
                meter.begin()
            case "stop":
                meter.stop()
            case "rest":
                meter.rested(amount)
            case _:
                meter.committed(samples=int(amount), waited=amount)
        after = meter.trained
        assert after.steps >= before.steps
        assert (after.samples or 0) >= (before.samples or 0)
        assert after.step_seconds >= before.step_seconds
        assert after.work_seconds >= before.work_seconds
        assert after.work_seconds <= after.step_seconds + 1e-6
