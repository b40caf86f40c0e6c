"""Pictures of the laboratory: how near the best each policy comes, and how three jobs got there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.facts import OptimizerSettings
from shoal.sim.laboratory.experiment import CLUSTER, HOUR, Judged
from shoal.sim.plots import figures, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MINUTE = 60.0


def draw_laboratory(
    results: Mapping[str, Sequence[Judged]],
    folder: Path,
    settings: OptimizerSettings,
    formats: Sequence[str] = ("svg",),
) -> list[Path]:
    """`results` by policy. Returns the files."""
    written: list[Path] = []
    with figures() as figure:
        folder.mkdir(parents=True, exist_ok=True)
        written += save(_nearness(figure, results), folder / "laboratory-speed-per-cost", formats)
        written += save(_lives(figure, results[CLUSTER], settings), folder / "laboratory-lives", formats)
    return written


def _nearness(figure: "type[Figure]", results: Mapping[str, Sequence[Judged]]) -> "Figure":
    """The part of jobs that come at most so near."""
    made = figure(figsize=(7, 4), layout="constrained")
    axes = made.subplots()
    for number, (name, found) in enumerate(results.items()):
        near = sorted(100.0 * each.near for each in found)
        parts = [100.0 * (at + 1) / len(near) for at in range(len(near))]
        axes.step(near, parts, where="post", color=f"C{number}", label=name)
    axes.axvline(95.0, color="#b0b0b0", linewidth=0.8)
    axes.set_xlabel("speed per cost within 5 changes, per cent of the best")
    axes.set_ylabel("per cent of jobs")
    axes.set_ylim(0, 102)
    axes.legend(loc="upper left")
    return made


def _lives(figure: "type[Figure]", found: Sequence[Judged], settings: OptimizerSettings) -> "Figure":
    """A ring, a job with a hot parameter server, and one that ran out of memory."""
    picked = [each for each in (_first(found, _is_ring), _first(found, _is_hot), _first(found, _ran_out)) if each]
    made = figure(figsize=(10, 2.4 * len(picked) + 0.4), layout="constrained")
    rows: Any = made.subplots(len(picked), 1, squeeze=False)
    for each, axes in zip(picked, rows[:, 0], strict=True):
        job, exponent = each.case.job, settings.marginal_speedup
        best = job.score(each.case.best, exponent)
        end = each.life.seconds / MINUTE
        times = [step.at / MINUTE for step in each.life.steps]
        scores = [100.0 * job.score(step.held, exponent) / best for step in each.life.steps]
        axes.step([*times, end], [*scores, scores[-1]], where="post", color="C1")
        for step, at, score in zip(each.life.steps, times, scores, strict=True):
            axes.annotate(
                step.algorithm, (at, score), fontsize=6, rotation=20, xytext=(2, 3), textcoords="offset points"
            )
        axes.axhline(100.0, color="#b0b0b0", linewidth=0.8)
        axes.set_xlim(0, min(end, 60.0))
        axes.set_ylim(0, 125)
        axes.set_title(f"{job.name}: {len(each.life.steps) - 1} changes", loc="left", parse_math=False)
        axes.set_ylabel("% of the best")
    rows[-1, 0].set_xlabel("minutes")
    return made


def _first(found: Sequence[Judged], wanted: Any) -> Judged | None:
    return next((each for each in found if wanted(each)), None)


def _is_ring(each: Judged) -> bool:
    return not each.case.job.is_ps and len(each.life.steps) > 3


def _is_hot(each: Judged) -> bool:
    return each.case.job.skew > 1.0 and not each.life.ooms and each.case.hours * HOUR > 0


def _ran_out(each: Judged) -> bool:
    return bool(each.life.ooms) and each.case.job.is_ps
