"""`LocalOptimizer`: sizes one job from its own statistics. Nothing has to be deployed for it.

It asks the stage's algorithms in turn and takes the first plan that changes something. It holds no state: what was
tried, what failed and what is cooling down comes with the question.
"""

from collections.abc import Mapping, Sequence

from shoal.brain.algorithms.proposing import nothing
from shoal.brain.algorithms.recover_oom import recover
from shoal.brain.algorithms.registry import ALGORITHMS, Algorithm, asked_in
from shoal.brain.algorithms.scale_workers import by_the_model
from shoal.core.facts import OomEvent
from shoal.core.optimizing import Question, Stage
from shoal.core.plans import ResourcePlan

__all__ = ["ALGORITHMS", "LocalOptimizer"]


class LocalOptimizer:
    """A `ResourceOptimizer`."""

    def __init__(self, without: Mapping[str, str] | None = None) -> None:
        """`without`: algorithms whose plans could not be followed here, and why."""
        self._without = without or {}

    def generate_opt_plan(self, stage: Stage, config: Question) -> ResourcePlan:
        told, confidence = [], None
        for algorithm in asked_in(stage):
            refused = self._without.get(algorithm.name) or _refused(algorithm, config)
            if refused:
                told.append(refused)
                continue
            plan = algorithm.decide(config.facts, config.history, config.limits, config.settings)
            if not plan.is_empty:
                return plan
            told.append(f"{algorithm.name}: {plan.reason}")
            confidence = plan.confidence if plan.confidence is not None else confidence
        return nothing("local", "; ".join(told) or f"nothing is asked in stage {stage}", confidence)

    def generate_oom_recovery_plan(self, oom_nodes: Sequence[OomEvent], stage: Stage, config: Question) -> ResourcePlan:
        return recover(config.facts, config.limits, config.settings, oom_nodes)

    def generate_resource_plan_with_optimizer(self, config: Question) -> ResourcePlan:
        return by_the_model(config.facts, config.history, config.limits, config.settings)


def _refused(algorithm: Algorithm, config: Question) -> str | None:
    if algorithm.name in config.history.distrusted:
        return f"{algorithm.name} made this job worse before and is not asked again"
    if algorithm.kind in config.history.cooling:
        return f"{algorithm.name} waits: a change of this kind was made less than {config.settings.cool_down:.0f} s ago"
    return None
