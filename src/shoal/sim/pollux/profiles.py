"""Measured models: how long a step takes where, and how much it is worth.

An application is a model with its data set. Three kinds of measurement describe it:

- *placements*: the time of one pass, on small clusters, for every shape of a job (GPUs on each of its hosts) and
  several local batch sizes; and of that the part in which gradients are exchanged and nothing else is done;
- *scalability*: the same on larger clusters, where only the number of hosts and GPUs was recorded;
- *validations*: whole training runs, one for each total batch size, with the noise of the gradient by epoch. The
  noise says how much of a larger batch is worth having.

Between the measured points everything is linear. Batch sizes or shapes outside what was measured are an error: a
guess would look like a measurement.
"""

import csv
import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shoal.core.errors import BadInput
from shoal.sim.models import Placement

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

MOST_HOSTS = 16
"""Jobs on more hosts than this are taken to be as fast as on this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an application can be run with."""

    init_batch: int
    """The smallest total batch; progress is counted in steps of it."""
    max_batch: int
    min_local: int
    """Examples for each GPU and pass."""
    max_local: int
    max_epochs: int
    adaptive_max_gpus: int | None = None
    """The most GPUs that a policy which chooses counts may give. None: no limit of its own."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass at one measured point."""

    local_batch: int
    step_seconds: float
    sync_seconds: float


@dataclass(frozen=True, slots=True)
class Epoch:
    """The end of one epoch of a measured run."""

    progress: float
    """Steps at the smallest batch that would have come as far."""
    iteration: int
    """Real steps."""
    sqr: float
    var: float


@dataclass(frozen=True, slots=True)
class Point:
    """A pass of a job of which only the numbers of hosts and GPUs are known."""

    hosts: int
    gpus: int
    local_batch: int
    step_seconds: float
    sync_seconds: float


class Speeds(Protocol):
    """How long one pass takes."""

    def pass_seconds(self, shape: Placement, local_batch: int) -> tuple[float, float]:
        """With the exchange of gradients, and the part of it that is only exchange. `shape` is a smallest rotation."""
        ...


class Application:
    """A model with its data. Its answers are remembered: a simulation asks the same few questions again and again."""

    def __init__(self, name: str, limits: Limits, speeds: Speeds, runs: Mapping[int, Sequence[Epoch]]) -> None:
        """`runs`: a whole training for each total batch size."""
        self.name = name
        self.limits = limits
        self.speeds: dict[tuple[int, int, Placement], float] = {}
        """What `Training` found: progress per second by total batch, epoch and placement."""
        self._passes_by = speeds
        self._batches = sorted(runs)
        self._runs = {batch: tuple(epochs) for batch, epochs in runs.items()}
        self._passes: dict[tuple[Placement, int], tuple[float, float]] = {}
        self._gains: dict[tuple[int, int], float] = {}
        self._ends = [
            min(run[epoch].progress for run in self._runs.values() if epoch < len(run))
            for epoch in range(limits.max_epochs)
        ]

    def pass_seconds(self, placement: Placement, local_batch: int) -> tuple[float, float]:
        """One pass with the exchange of gradients, and the part of it that is only exchange."""
        key = (placement, local_batch)
        found = self._passes.get(key)
        if found is None:
            found = self._passes_by.pass_seconds(smallest_rotation(placement), local_batch)
            self._passes[key] = found
        return found

    def step_seconds(self, placement: Placement, local_batch: int, accumulation: int) -> float:
        """One step of the optimiser: passes that only accumulate, then one that exchanges."""
        step, sync = self.pass_seconds(placement, local_batch)
        return step + accumulation * (step - sync)

    def gain(self, batch: int, epoch: int) -> float:
        """How many steps at the smallest batch one step at this batch is worth, by the noise of the gradient."""
        key = (batch, epoch)
        found = self._gains.get(key)
        if found is None:
            sqr = self._between(batch, lambda run: run[epoch].sqr)
            var = self._between(batch, lambda run: run[epoch].var)
            found = (var + sqr) / (var * self.limits.init_batch / batch + sqr)
            self._gains[key] = found
        return found

    def epoch_end(self, epoch: int) -> float:
        """The progress at which an epoch is over."""
        return self._ends[epoch]

    def iterations(self, batch: int, epoch: int) -> float:
        """Real steps that a run at this batch has done by the end of an epoch."""
        return self._between(batch, lambda run: run[epoch].iteration)

    def _between(self, batch: int, of: Callable[[Sequence[Epoch]], float]) -> float:
        at = bisect_left(self._batches, batch)
        if at < len(self._batches) and self._batches[at] == batch:
            return of(self._runs[batch])
        if at in (0, len(self._batches)):
            raise BadInput(
                f"{self.name} was measured with total batches of {self._batches[0]} to {self._batches[-1]}, not {batch}"
            )
        low, high = self._batches[at - 1], self._batches[at]
        below, above = of(self._runs[low]), of(self._runs[high])
        return below + (above - below) * (batch - low) / (high - low)


class MeasuredSpeeds:
    """Linear between what was measured: along the local batch where this very shape was, else between sizes."""

    def __init__(self, name: str, placements: Mapping[Placement, Sequence[Pass]], scalability: Sequence[Point]) -> None:
        self._name = name
        self._placements = {
            shape: sorted(passes, key=lambda each: each.local_batch) for shape, passes in placements.items()
        }
        self._points = (*_means_by_size(self._placements), *scalability)
        self._between_sizes: LinearNDInterpolator | None = None
        self._sizes: dict[tuple[int, int, int], tuple[float, float] | None] = {}

    def pass_seconds(self, shape: Placement, local_batch: int) -> tuple[float, float]:
        found = self._on_line(shape, local_batch) if shape in self._placements else self._by_size(shape, local_batch)
        if found is None:
            raise BadInput(
                f"{self._name} was not measured on {len(shape)} hosts with {'+'.join(map(str, shape))} GPUs and "
                f"{local_batch} examples each, nor around that"
            )
        return found

    def _by_size(self, shape: Placement, local_batch: int) -> tuple[float, float] | None:
        size = (min(len(shape), MOST_HOSTS), sum(shape), local_batch)
        if size not in self._sizes:
            if self._between_sizes is None:
                self._between_sizes = _interpolator(self._points)
            step, sync = map(float, self._between_sizes([size])[0])
            self._sizes[size] = None if math.isnan(step) else (step, sync)
        return self._sizes[size]

    def _on_line(self, shape: Placement, local_batch: int) -> tuple[float, float] | None:
        passes = self._placements[shape]
        at = bisect_left(passes, local_batch, key=lambda each: each.local_batch)
        if at < len(passes) and passes[at].local_batch == local_batch:
            return passes[at].step_seconds, passes[at].sync_seconds
        if at in (0, len(passes)):
            return None
        low, high = passes[at - 1], passes[at]
        part = (local_batch - low.local_batch) / (high.local_batch - low.local_batch)
        return (
            low.step_seconds + part * (high.step_seconds - low.step_seconds),
            low.sync_seconds + part * (high.sync_seconds - low.sync_seconds),
        )


def smallest_rotation(placement: Placement) -> Placement:
    """A ring has no first host: the rotation that sorts first stands for all. (Its mirror image is another ring.)"""
    if len(set(placement)) <= 1:
        return placement
    return min(placement[at:] + placement[:at] for at in range(len(placement)))


def _means_by_size(placements: Mapping[Placement, Sequence[Pass]]) -> list[Point]:
    """What the measured shapes say about sizes, sorted. Order matters: the grid is degenerate, and how it is cut into
    tetrahedra depends on which point comes first."""
    grouped: dict[tuple[int, int, int], list[Pass]] = {}
    for shape, passes in placements.items():
        for each in passes:
            grouped.setdefault((len(shape), sum(shape), each.local_batch), []).append(each)
    return [
        Point(*key, _mean(each.step_seconds for each in group), _mean(each.sync_seconds for each in group))
        for key, group in sorted(grouped.items())
    ]


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


def _interpolator(points: Sequence[Point]) -> "LinearNDInterpolator":
    try:
        from scipy.interpolate import LinearNDInterpolator
    except ImportError as exc:
        raise BadInput("measured profiles need scipy: pip install 'shoal[sim]'") from exc
    return LinearNDInterpolator(
        [(each.hosts, each.gpus, each.local_batch) for each in points],
        [(each.step_seconds, each.sync_seconds) for each in points],
    )


# Files -------------------------------------------------------------------------------------------------------------


def load_applications(folder: Path) -> dict[str, Application]:
    """All applications of a folder in Pollux's layout (`applications.json` and `profiles/`)."""
    try:
        described = json.loads((folder / "applications.json").read_text())["applications"]
    except FileNotFoundError as exc:
        raise BadInput(f"{folder} holds no applications.json: it is not a folder of Pollux traces") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise BadInput(f"{folder}/applications.json is not readable: {exc}") from exc
    return {name: _load(name, values, folder / "profiles" / name) for name, values in described.items()}


def _load(name: str, described: Mapping[str, Any], folder: Path) -> Application:
    try:
        limits = Limits(
            init_batch=described["init_batch"],
            max_batch=described["max_batch"],
            min_local=described["min_local"],
            max_local=described["max_local"],
            max_epochs=described["max_epochs"],
            adaptive_max_gpus=described.get("adaptive_max_gpus"),
        )
        placements: dict[Placement, list[Pass]] = {}
        for row in _rows(folder / "placements.csv"):
            shape = tuple(map(int, row["placement"]))
            each = Pass(int(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"]))
            placements.setdefault(shape, []).append(each)
        scalability = [
            Point(
                min(int(row["num_nodes"]), MOST_HOSTS),
                int(row["num_replicas"]),
                int(row["local_bsz"]),
                float(row["step_time"]),
                float(row["sync_time"]),
            )
            for row in _rows(folder / "scalability.csv")
        ]
        validations = {
            int(path.stem.removeprefix("validation-")): [
                Epoch(float(row["progress"]), int(row["iteration"]), float(row["grad_sqr"]), float(row["grad_var"]))
                for row in _rows(path)
            ]
            for path in sorted(folder.glob("validation-*.csv"))
        }
        return Application(name, limits, MeasuredSpeeds(name, placements, scalability), validations)
    except (OSError, KeyError, ValueError) as exc:
        raise BadInput(f"the profile of {name} in {folder} is not readable: {exc!r}") from exc


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
