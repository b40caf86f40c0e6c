"""`fit_throughput`: the job's speed as a formula, with how far it can be trusted. It plans nothing itself.

The formula is in `model`; `size_ps`, `scale_workers` and `trim_idle` decide by it. Asked alone it says what was found.
"""

from shoal.brain.algorithms.model import fitted
from shoal.brain.algorithms.proposing import nothing
from shoal.brain.algorithms.sizing import doubts
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OptimizerSettings
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "fit_throughput"


def fit_throughput(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    facts, note = cleaned(facts)
    model = fitted(facts, settings, history.canary)
    told = [model] if isinstance(model, str) else [model.words, *doubts(model, history, settings)]
    confidence = None if isinstance(model, str) else model.confidence
    return nothing(NAME, "; ".join([*told, note] if note else told), confidence)
