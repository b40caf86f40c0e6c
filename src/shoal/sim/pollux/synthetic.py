"""Look-alike models and workloads, for those who do not have the measured ones. Nothing here is a measurement.

Six models differ as real ones do: in how much there is to compute for each example, how long gradients take to travel,
inside a host and between hosts, and how noisy they are (noisy gradients make large batches worth having). Workloads
have many small jobs and a few huge ones, and more of them around noon.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.sim.models import Placement
from shoal.sim.pollux.jobs import Ask, Training
from shoal.sim.pollux.profiles import Application, Epoch, Limits
from shoal.sim.pollux.workloads import most_gpus

HOURS = (0.5, 0.9, 1.3, 1.6, 1.5, 1.1, 0.7, 0.4)
"""How busy each hour of a workload is."""
HOUR = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaSpeeds:
    """Passes by formula: computing and exchange overlap, the longer one hides most of the shorter."""

    start: float
    """Seconds of a pass without any example."""
    example: float
    inside: float
    """Seconds of an exchange inside one host, and what each further GPU adds."""
    inside_each: float
    between: float
    """The same between hosts."""
    between_each: float
    overlap: float = 1.6
    """1: nothing overlaps; the larger, the more."""

    def pass_seconds(self, shape: Placement, local_batch: int) -> tuple[float, float]:
        computing = self.start + self.example * local_batch
        gpus = sum(shape)
        if gpus == 1:
            return computing, 0.0
        first, further = (self.inside, self.inside_each) if len(shape) == 1 else (self.between, self.between_each)
        exchange = first + further * (gpus - 2)
        whole = (computing**self.overlap + exchange**self.overlap) ** (1.0 / self.overlap)
        return whole, whole - computing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    speeds: FormulaSpeeds
    limits: Limits
    steps: int
    """Steps of an epoch, at the smallest batch."""
    noise: float
    """The noise scale in smallest batches, at the start; it grows tenfold until the end."""
    share: float
    """Of all jobs."""


# fmt: off
_KINDS: Mapping[str, _Kind] = {
    "ranking": _Kind(
        speeds=FormulaSpeeds(start=.012, example=4e-6, inside=.004, inside_each=.001, between=.02, between_each=.002),
        limits=Limits(init_batch=256, max_batch=32_768, min_local=32, max_local=32_768, max_epochs=10,
                      adaptive_max_gpus=1),
        steps=1_200, noise=30, share=.38),
    "vision-small": _Kind(
        speeds=FormulaSpeeds(start=.022, example=6e-4, inside=.02, inside_each=.002, between=.06, between_each=.001),
        limits=Limits(init_batch=128, max_batch=4_096, min_local=32, max_local=1_024, max_epochs=60),
        steps=400, noise=6, share=.38),
    "speech": _Kind(
        speeds=FormulaSpeeds(start=.05, example=.011, inside=.06, inside_each=.004, between=.2, between_each=.004),
        limits=Limits(init_batch=20, max_batch=640, min_local=10, max_local=80, max_epochs=60),
        steps=50, noise=8, share=.1),
    "language": _Kind(
        speeds=FormulaSpeeds(start=.12, example=.075, inside=.2, inside_each=.01, between=.9, between_each=.01),
        limits=Limits(init_batch=12, max_batch=384, min_local=4, max_local=12, max_epochs=2),
        steps=7_000, noise=12, share=.07),
    "detection": _Kind(
        speeds=FormulaSpeeds(start=.06, example=.06, inside=.1, inside_each=.006, between=.35, between_each=.006),
        limits=Limits(init_batch=8, max_batch=512, min_local=4, max_local=8, max_epochs=40),
        steps=1_900, noise=10, share=.05),
    "vision-large": _Kind(
        speeds=FormulaSpeeds(start=.05, example=.0052, inside=.08, inside_each=.004, between=.25, between_each=.002),
        limits=Limits(init_batch=200, max_batch=12_800, min_local=20, max_local=200, max_epochs=60),
        steps=6_400, noise=12, share=.02),
}
# fmt: on


def synthetic_applications() -> dict[str, Application]:
    return {name: Application(name, kind.limits, kind.speeds, _runs(kind)) for name, kind in _KINDS.items()}


def _runs(kind: _Kind) -> dict[int, list[Epoch]]:
    """A whole training at each batch size, as the noise of the gradient would have it."""
    runs: dict[int, list[Epoch]] = {}
    batch = kind.limits.init_batch
    while batch < kind.limits.max_batch:
        runs[batch] = _run(kind, batch)
        batch *= 2
    runs[kind.limits.max_batch] = _run(kind, kind.limits.max_batch)
    return runs


def _run(kind: _Kind, batch: int) -> list[Epoch]:
    epochs: list[Epoch] = []
    iteration = 0.0
    scale = batch / kind.limits.init_batch
    for epoch in range(kind.limits.max_epochs):
        noise = kind.noise * 10.0 ** (epoch / kind.limits.max_epochs)
        iteration += kind.steps / ((noise + 1.0) / (noise / scale + 1.0))
        epochs.append(Epoch(float(kind.steps * (epoch + 1)), round(iteration), 1.0, noise))
    return epochs


def synthetic_asks(seed: int, jobs: int, applications: Mapping[str, Application], hours: float = 8.0) -> list[Ask]:
    """Jobs with the sizes and batches that somebody who tried a few would ask for."""
    chance = random.Random(f"asks:{seed}")
    names = list(_KINDS)
    shares = [_KINDS[name].share for name in names]
    times = sorted(round(_arrival(chance) * hours / len(HOURS) * HOUR) for _ in range(jobs))
    asks = []
    for number, submitted in enumerate(times):
        name = chance.choices(names, shares)[0]
        gpus, batch = _tuned(chance, applications[name])
        asks.append(Ask(name=f"{name}-{number}", submitted=submitted, application=name, gpus=gpus, batch=batch))
    return asks


def _arrival(chance: random.Random) -> float:
    return chance.choices(range(len(HOURS)), HOURS)[0] + chance.random()


def _tuned(chance: random.Random, application: Application) -> tuple[int, int]:
    """One of the larger sizes that are at least half worth their GPUs, with the batch that is best there."""
    limits = application.limits
    worth: list[tuple[int, int]] = []
    alone = _best(application, 1)[1]
    for gpus in (1, 2, 4, 8, 12, 16):
        if gpus > (limits.adaptive_max_gpus or gpus) or limits.min_local * gpus > limits.max_batch:
            break
        batch, speed = _best(application, gpus)
        if gpus == 1 or speed / alone / gpus >= 0.5:
            worth.append((gpus, batch))
    return chance.choice(worth[len(worth) // 2 :])


def _best(application: Application, gpus: int) -> tuple[int, float]:
    """The batch with which a job of this size is fastest in the middle of its training, and how fast."""
    limits = application.limits
    batches = _doublings(max(limits.init_batch, limits.min_local * gpus), limits.max_batch)
    found: list[tuple[float, int]] = []
    for batch in batches:
        ask = Ask(name="", submitted=0, application=application.name, gpus=gpus, batch=batch)
        if most_gpus(ask, application) < gpus:
            continue
        training = Training(ask, application)
        training.epoch = limits.max_epochs // 2
        full, rest = divmod(gpus, 4)
        found.append((training.speed((4,) * full + ((rest,) if rest else ())), batch))
    speed, batch = max(found, key=lambda pair: (pair[0], -pair[1]))
    return batch, speed


def _doublings(low: int, high: int) -> Sequence[int]:
    count = max(1, math.floor(math.log2(high / low)) + 1)
    return [low * 2**power for power in range(count)]
