"""Pollux's ground: the published completion times come out, and the rules behind them hold for any model."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.traces import pollux

from shoal.core.errors import BadInput
from shoal.sim.pollux.compare import compare, pollux_folder, published_times, replay
from shoal.sim.pollux.jobs import Ask, Training, split_batch
from shoal.sim.pollux.profiles import Application, MeasuredSpeeds, Pass, load_applications, smallest_rotation
from shoal.sim.pollux.synthetic import synthetic_applications, synthetic_asks
from shoal.sim.pollux.workloads import most_gpus, workload_of
from shoal.sim.workload import ON_POLLUX_GROUND


@cache
def applications() -> dict[str, Application]:
    return synthetic_applications()


NAMES = sorted(applications())


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    application = applications()[draw(st.sampled_from(NAMES))]
    limits = application.limits
    batch = draw(st.integers(limits.init_batch, limits.max_batch))
    return Training(Ask(name="job", submitted=0, application=application.name, gpus=1, batch=batch), application)


@st.composite
def placements(draw: st.DrawFn, training: Training) -> tuple[int, ...]:
    most = most_gpus(training.ask, training.application)
    gpus = draw(st.integers(1, most))
    shape: list[int] = []
    while sum(shape) < gpus:
        shape.append(draw(st.integers(1, min(4, gpus - sum(shape)))))
    return tuple(shape)


# The published runs --------------------------------------------------------------------------------------


def test_two_published_runs_are_replayed_to_the_second() -> None:
    report = replay(pollux(), most=1)
    assert [check.text for check in report.checks if check.holds] == [
        "tiresias at load 1.0: 160 of 160 completion times are the published ones to the second",
        "optimus at load 1.0: 160 of 160 completion times are the published ones to the second",
    ]


@pytest.mark.slow
def test_all_2560_published_completion_times_are_replayed_to_the_second() -> None:
    report = replay(pollux())
    assert sum(len(run.jobs) for run in report.runs) == 2_560
    assert [check.text for check in report.checks if not check.holds] == []


def test_a_wrong_time_would_be_told() -> None:
    """Half a minute more for a start and the replay is off."""
    check = replay(pollux(), most=1, times=replace(ON_POLLUX_GROUND, startup=60.0)).checks[0]
    assert not check.holds
    assert "published" in check.detail


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cfs_is_no_worse_than_rigid_policies_at_any_load() -> None:
    report = compare(pollux(), ["cfs"])
    assert [check.text for check in report.checks if not check.holds] == []


def test_a_folder_without_traces_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no Pollux traces"):
        pollux_folder(tmp_path)
    with pytest.raises(BadInput, match=r"tiresias-1\.0\.json is not readable"):
        published_times(tmp_path, "tiresias", "1.0")


def test_measured_models_answer_only_within_what_was_measured() -> None:
    bert = load_applications(pollux())["bert"]
    step, sync = bert.pass_seconds((1,), 4)
    assert (round(step, 6), round(sync, 6)) == (0.455324, 0.013739)
    with pytest.raises(BadInput, match="bert was not measured on 1 hosts with 1 GPUs and 99 examples each"):
        bert.pass_seconds((1,), 99)
    with pytest.raises(BadInput, match="bert was measured with total batches of 12 to 384, not 10000"):
        bert.gain(10_000, 0)


# The rules ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.integers(0, 7))
def test_a_ring_has_no_first_host(shape: list[int], by: int) -> None:
    turned = tuple(shape[by % len(shape) :] + shape[: by % len(shape)])
    assert smallest_rotation(turned) == smallest_rotation(tuple(shape)) <= turned


def test_a_ring_and_its_mirror_image_are_two() -> None:
    assert smallest_rotation((1, 2, 3)) != smallest_rotation((3, 2, 1))


def test_passes_are_linear_between_measured_batches() -> None:
    speeds = MeasuredSpeeds("model", {(1,): [Pass(10, 1.0, 0.0), Pass(20, 3.0, 1.0)]}, [])
    assert speeds.pass_seconds((1,), 15) == (2.0, 0.5)


@given(st.data())
def test_a_batch_is_split_without_losing_examples(data: st.DataObject) -> None:
    training = data.draw(trainings())
    gpus = sum(data.draw(placements(training)))
    split = split_batch(training.application, training.ask.batch, gpus)
    whole = gpus * split.local_batch * (split.accumulation + 1)
    limits = training.application.limits
    assert limits.min_local <= split.local_batch <= limits.max_local or training.ask.batch < limits.min_local
    assert whole <= limits.max_batch
    assert abs(whole - training.ask.batch) < gpus * (split.accumulation + 1)


@given(st.data())
@settings(max_examples=40)
def test_a_job_takes_as_long_as_it_says_whatever_the_slices(data: st.DataObject) -> None:
    training = data.draw(trainings())
    placement = data.draw(placements(training))
    foreseen = training.seconds_left(placement)
    slice_seconds = max(60, int(foreseen // data.draw(st.integers(1, 20))))
    now = 0
    while training.finished is None:
        training.advance(now, slice_seconds, placement)
        now += slice_seconds
    assert abs(training.finished - foreseen) <= training.application.limits.max_epochs
    assert training.finished == int(training.finished)


@given(st.data())
@settings(max_examples=40)
def test_what_is_lost_has_to_be_trained_again(data: st.DataObject) -> None:
    training = data.draw(trainings())
    placement = data.draw(placements(training))
    whole = training.seconds_left(placement)
    training.advance(0, whole / 2, placement)
    left = training.seconds_left(placement)
    training.rewind(whole / 10, placement)
    assert left <= training.seconds_left(placement) <= whole


@given(st.integers(0, 2**31), st.integers(1, 60))
@settings(max_examples=20)
def test_look_alike_workloads_can_be_run_and_depend_on_their_seed_alone(seed: int, jobs: int) -> None:
    asks = synthetic_asks(seed, jobs, applications())
    assert asks == synthetic_asks(seed, jobs, applications())
    for spec in workload_of("w", asks, applications()).jobs:
        assert 1 <= spec.min <= spec.size <= spec.max or spec.max == 1
        spec.model().advance(0, 1, (1,))


def test_a_job_of_an_unknown_model_is_named() -> None:
    ask = Ask(name="job-7", submitted=0, application="alexnet", gpus=1, batch=32)
    with pytest.raises(BadInput, match="job job-7 is of application 'alexnet'; there are profiles of detection, "):
        workload_of("w", [ask], applications())
