"""A simulated job that sizes itself, under the real core: it finds a better size than it began with, whoever dies."""

import pytest

from shoal.core.facts import OptimizerSettings
from shoal.core.optimizing import Stage
from shoal.sim.cluster import Crash
from shoal.sim.sizing import SizedLife, Strike, Surface, live

SETTINGS = OptimizerSettings(start_cpu=None, start_memory=None, canary=False)
SCALES = Surface(work=24.0, ring=0.3)
"""Best with all the workers that it may have."""
CROWDED = Surface(work=24.0, ring=8.0)
"""Best with one or two: a ring of more waits for itself."""


def part_of_best(life: SizedLife, surface: Surface, most: int = 8) -> float:
    best = surface.best(range(1, most + 1), SETTINGS)
    return surface.score(life.size, SETTINGS) / surface.score(best, SETTINGS)


def test_a_job_that_scales_grows_to_the_best_size_and_keeps_what_was_predicted_beside_what_came() -> None:
    life = live(1, surface=SCALES, seconds=1_000)
    assert [size for _, size in life.sizes] == [1, 4, 8]
    assert part_of_best(life, SCALES) > 0.95
    probe, grown = life.outcomes
    assert (probe.algorithm, grown.algorithm) == ("probe_workers", "scale_workers")
    assert grown.gain > 0
    assert grown.prediction_error == pytest.approx(0.0, abs=0.1)
    said = [decision.reason for decision in life.job.decisions]
    assert any(reason.startswith("the optimizer (scale_workers): grow from 4 workers") for reason in said)
    assert any("the optimizer: scale_workers took the job from" in reason for reason in said)


def test_a_job_that_began_too_large_gives_back_what_brings_nothing() -> None:
    life = live(2, surface=CROWDED, nodes=8, seconds=900)
    assert [size for _, size in life.sizes][:2] == [8, 4]
    assert part_of_best(life, CROWDED) > 0.95


@pytest.mark.parametrize("how", list(Crash))
def test_a_master_that_dies_in_between_changes_nothing_about_the_size_that_is_found(how: Crash) -> None:
    deaths = [Strike(at=at, what=how) for at in (100.0, 212.0, 330.0, 452.0)]
    life = live(3, surface=SCALES, seconds=1_050, strikes=deaths)
    assert life.failovers == len(deaths)
    assert life.size == 8
    assert life.changes == 2, "nothing was asked for twice"
    assert [outcome.algorithm for outcome in life.outcomes] == ["probe_workers", "scale_workers"]
    assert life.job.sizing.optimizer.stage is Stage.RUNNING


def test_who_scales_the_job_by_hand_has_the_last_word() -> None:
    life = live(4, surface=SCALES, seconds=900, strikes=[Strike(at=300.0, what=2)])
    assert [size for _, size in life.sizes] == [1, 4, 2]
    assert life.job.sizing.pins == {"worker": "shoal scale worker=2"}
    assert life.outcomes == (), "what the optimizer had under way was not judged"
    (said,) = [
        each.reason for each in life.job.decisions if "`shoal scale sized worker=auto` gives it back" in each.reason
    ]
    assert "the optimizer does not any more" in said
