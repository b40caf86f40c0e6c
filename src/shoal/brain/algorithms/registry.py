"""All algorithms by name, with the stage in which each is asked and the kind of change it makes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shoal.brain.algorithms.avoid_oom import avoid_oom
from shoal.brain.algorithms.cold_start import cold_start
from shoal.brain.algorithms.fit_throughput import fit_throughput
from shoal.brain.algorithms.probe_workers import probe_workers
from shoal.brain.algorithms.recover_oom import recover_oom
from shoal.brain.algorithms.relieve_hot_ps import relieve_hot_ps
from shoal.brain.algorithms.replace_slow import replace_slow
from shoal.brain.algorithms.scale_workers import scale_workers
from shoal.brain.algorithms.size_ps import size_ps
from shoal.brain.algorithms.trim_idle import trim_idle
from shoal.core.facts import JobFacts, Limits, OptimizerSettings
from shoal.core.optimizing import History, Kind, Stage
from shoal.core.plans import ResourcePlan

Decide = Callable[[JobFacts, History, Limits, OptimizerSettings], ResourcePlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    name: str
    decide: Decide
    kind: Kind
    stages: tuple[Stage, ...]
    """In which it is asked; none: only when its symptom is there."""


ALGORITHMS: Mapping[str, Algorithm] = {
    each.name: each
    for each in (
        Algorithm(name="cold_start", decide=cold_start, kind=Kind.SIZE, stages=(Stage.CREATE,)),
        Algorithm(name="probe_workers", decide=probe_workers, kind=Kind.SIZE, stages=(Stage.WORKER_INITIAL,)),
        Algorithm(name="size_ps", decide=size_ps, kind=Kind.SIZE, stages=(Stage.PS_INITIAL,)),
        Algorithm(name="recover_oom", decide=recover_oom, kind=Kind.OOM, stages=()),
        Algorithm(
            name="avoid_oom",
            decide=avoid_oom,
            kind=Kind.MEMORY,
            stages=(Stage.WORKER_INITIAL, Stage.PS_INITIAL, Stage.RUNNING),
        ),
        Algorithm(name="replace_slow", decide=replace_slow, kind=Kind.REPLACE, stages=(Stage.RUNNING,)),
        Algorithm(name="relieve_hot_ps", decide=relieve_hot_ps, kind=Kind.HOT_PS, stages=(Stage.RUNNING,)),
        Algorithm(name="scale_workers", decide=scale_workers, kind=Kind.SIZE, stages=(Stage.RUNNING,)),
        Algorithm(name="trim_idle", decide=trim_idle, kind=Kind.MEMORY, stages=(Stage.RUNNING,)),
        Algorithm(name="fit_throughput", decide=fit_throughput, kind=Kind.SIZE, stages=()),
    )
}


def asked_in(stage: Stage) -> tuple[Algorithm, ...]:
    """In the order in which they are asked: danger first, then what holds the job back, then what is wasted."""
    found = [each for each in ALGORITHMS.values() if stage in each.stages]
    return tuple(sorted(found, key=lambda each: each.name != "avoid_oom"))
