"""Pictures of a report: what each job held over time, how full the cluster was, and how long jobs took.

Policies stand side by side. The files depend on the report alone, to the byte: neither dates nor random ids are in
them. matplotlib is imported when a picture is wanted.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.errors import BadInput
from shoal.sim.report import JobOutcome, Report, Run, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
MOST_WORKLOADS = 8
"""Of which pictures are made; a report of more would fill a directory that nobody looks through."""
MOST_JOBS = 40
"""That have a colour of their own in a picture; all others share one."""
LONGEST_NAME = 24
"""Of a job in a legend."""
NAMED_JOBS, NAMED_IN_A_COLUMN = 24, 12
"""That the legend names; more would be larger than the picture."""
MOST_MOMENTS = 160
"""In a picture of who held what."""
GREY = "#b0b0b0"
MINUTE, HOUR = 60.0, 3_600.0


def draw(report: Report, folder: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Write all pictures. Returns the files, in order."""
    written: list[Path] = []
    with figures() as figure:
        folder.mkdir(parents=True, exist_ok=True)
        for workload, name in _file_names(report.workloads[:MOST_WORKLOADS]).items():
            runs = [report.of(policy, workload)[0] for policy in report.policies if report.of(policy, workload)]
            written += save(_allocations(figure, runs), folder / f"allocation-{name}", formats)
            written += save(_utilisation(figure, runs), folder / f"utilisation-{name}", formats)
            for curve in dict.fromkeys(curve for run in runs for curve in run.curves):
                pictured = _curve(figure, runs, curve)
                written += save(pictured, folder / f"{_file_name(curve)}-{name}", formats)
        if any(job.finished is not None for run in report.runs for job in run.jobs):
            written += save(_completion(figure, report), folder / "completion-times", formats)
    return written


@contextmanager
def figures() -> "Iterator[type[Figure]]":
    """The class that pictures are made with, set up so that the same picture is the same file."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise BadInput("plots need matplotlib: pip install 'shoal[sim]'") from exc
    with matplotlib.rc_context({"svg.hashsalt": "shoal", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        yield Figure


def save(figure: "Figure", stem: Path, formats: Sequence[str]) -> list[Path]:
    written = []
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(path, format=kind, dpi=120, metadata=metadata)
        if kind == "svg":
            path.write_text(_shortened(path.read_text()))
        written.append(path)
    return written


def _shortened(svg: str) -> str:
    """The same picture with coordinates to a tenth of a point instead of a millionth."""
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), svg)


def _allocations(figure: "type[Figure]", runs: Sequence[Run]) -> "Figure":
    """Trainers of each job, on top of each other; the jobs that held most have colours."""
    made = figure(figsize=(10, 2.6 * len(runs) + 0.4), layout="constrained")
    axes = made.subplots(len(runs), 1, sharex=True, squeeze=False)
    unit, word = _unit(runs)
    for run, each in zip(runs, axes[:, 0], strict=True):
        _stack(each, run, unit)
        _title(each, f"{run.policy} on {run.workload}")
        each.set_ylabel("trainers")
    axes[-1, 0].set_xlabel(word)
    return made


def _title(axes: "Axes", text: str) -> None:
    """As it is: a file may be called `a$b$.csv`, and that is no formula."""
    axes.set_title(text, loc="left", parse_math=False)


def _unit(runs: Sequence[Run]) -> tuple[float, str]:
    """What time is counted in."""
    is_short = max(run.simulated_seconds for run in runs) < 2 * HOUR
    return (MINUTE, "minutes") if is_short else (HOUR, "hours")


def _stack(axes: "Axes", run: Run, unit: float) -> None:
    held = sorted((job for job in run.jobs if job.allocation.times), key=lambda job: (-job.gpu_seconds, job.name))
    large, small = held[:MOST_JOBS], held[MOST_JOBS:]
    changes = {at for job in held for at in job.allocation.times}
    if not changes:
        return
    times = _thinned(sorted(changes | {max(run.simulated_seconds, *changes)}))
    moments = [at / unit for at in times]
    layers = [_values_at(job.allocation, times) for job in large]
    colours: list[Any] = _colours(len(layers))
    names = [job.name for job in large[:NAMED_JOBS]]
    if small:
        layers.append(
            [sum(column) for column in zip(*(_values_at(job.allocation, times) for job in small), strict=True)]
        )
        colours.append(GREY)
    base = [0.0] * len(times)
    bands = []
    for layer, colour in zip(layers, colours, strict=True):
        top = [low + value for low, value in zip(base, layer, strict=True)]
        bands.append(axes.fill_between(moments, base, top, step="post", color=colour, linewidth=0))
        base = top
    _name(axes, bands, names, len(held))
    axes.set_xlim(moments[0], moments[-1])
    axes.set_ylim(0, max(base) * 1.02 or 1)


def _colours(count: int) -> list[Any]:
    """As many as there are, no two alike, neighbours far apart."""
    from matplotlib import colormaps

    shades = [shade for name in ("tab20", "tab20b") for shade in colormaps[name].colors]  # type: ignore[attr-defined]
    return [shades[at * 7 % len(shades)] for at in range(count)]


def _name(axes: "Axes", bands: Sequence[Any], names: Sequence[str], jobs: int) -> None:
    """Which band is whose, the topmost first, as they lie."""
    title = "largest jobs" if jobs > len(names) else "jobs"
    shown = [
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}" for name in names
    ]
    legend = axes.legend(
        list(reversed(bands[: len(names)])), ["" for _ in names], title=title, loc="upper left", bbox_to_anchor=(1, 1),
        fontsize=6, title_fontsize=6, labelspacing=0.2, borderaxespad=0.3, ncols=-(-len(names) // NAMED_IN_A_COLUMN),
        columnspacing=1.0,
    )  # fmt: skip
    for text, name in zip(legend.get_texts(), reversed(shown), strict=True):
        text.set(text=name, parse_math=False)


def _thinned(times: Sequence[float]) -> list[float]:
    """As many moments as a picture shows, evenly spaced if there are more: every layer has a point at each of them."""
    if len(times) <= MOST_MOMENTS:
        return list(times)
    step = (times[-1] - times[0]) / (MOST_MOMENTS - 1)
    return [times[0] + at * step for at in range(MOST_MOMENTS)]


def _values_at(series: Series, times: Sequence[float]) -> list[float]:
    """The step function at each of these times; both are in order."""
    values: list[float] = []
    at, value = 0, 0.0
    for time in times:
        while at < len(series.times) and series.times[at] <= time:
            value = series.values[at]
            at += 1
        values.append(value)
    return values


def _utilisation(figure: "type[Figure]", runs: Sequence[Run]) -> "Figure":
    made = figure(figsize=(10, 3.4), layout="constrained")
    axes = made.subplots()
    unit, word = _unit(runs)
    for number, run in enumerate(runs):
        _step(axes, run.utilisation, unit, color=f"C{number}", label=run.policy, scale=100.0)
        _step(axes, run.effective, unit, color=f"C{number}", linestyle=":", scale=100.0)
    _title(axes, f"Utilisation on {runs[0].workload} (dotted: by jobs that train)")
    axes.set_ylabel("per cent of the cluster")
    axes.set_xlabel(word)
    axes.set_ylim(0, 103)
    axes.legend(loc="lower center", ncols=len(runs))
    return made


def _curve(figure: "type[Figure]", runs: Sequence[Run], name: str) -> "Figure":
    made = figure(figsize=(10, 3.4), layout="constrained")
    axes = made.subplots()
    unit, word = _unit(runs)
    for number, run in enumerate(runs):
        if name in run.curves:
            _step(axes, run.curves[name], unit, color=f"C{number}", label=run.policy)
    _title(axes, f"{name} on {runs[0].workload}")
    axes.set_xlabel(word)
    axes.legend(loc="best")
    return made


def _step(axes: "Axes", series: Series, unit: float, *, scale: float = 1.0, **style: Any) -> None:
    if series.times:
        values = [value * scale for value in series.values]
        axes.step([at / unit for at in series.times], values, where="post", linewidth=1.0, **style)


def _completion(figure: "type[Figure]", report: Report) -> "Figure":
    """How many jobs took no longer than so long. Jobs that never ended are in none of the steps."""
    made = figure(figsize=(7, 4), layout="constrained")
    axes = made.subplots()
    for number, policy in enumerate(report.policies):
        jobs: list[JobOutcome] = [job for run in report.of(policy) for job in run.jobs]
        times = sorted(job.completion_seconds for job in jobs if job.completion_seconds is not None)
        if times:
            parts = [100.0 * (at + 1) / len(jobs) for at in range(len(times))]
            axes.step([each / HOUR for each in times], parts, where="post", color=f"C{number}", label=policy)
    axes.set_xscale("log")
    _title(axes, report.title)
    axes.set_xlabel("completion time, hours")
    axes.set_ylabel("per cent of jobs")
    axes.set_ylim(0, 102)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right")
    return made


def _file_names(workloads: Sequence[str]) -> dict[str, str]:
    """By workload. Where two would have the same, the later ones are numbered."""
    names: dict[str, str] = {}
    for workload in workloads:
        plain = name = _file_name(workload)
        number = 1
        while name in names.values():
            number += 1
            name = f"{plain}-{number}"
        names[workload] = name
    return names


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
