"""`size_ps`: parameter servers for the number of workers that the job will want.

A few workers have shown how many core-seconds of the parameter servers each of their steps takes and how much memory
these hold. From that come count, cores and memory of the parameter servers, for the best number of workers within
reach.
"""

from shoal.brain.algorithms.proposing import nothing
from shoal.brain.algorithms.sizing import declined, doubts, find, planned, sizes_in_words
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OptimizerSettings
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "size_ps"


def size_ps(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    if not facts.is_ps:
        return nothing(NAME, f"a job of strategy {facts.strategy} has no parameter servers")
    facts, note = cleaned(facts)
    found = find(facts, history, limits, settings)
    if isinstance(found, str):
        return declined(NAME, note, found)
    load = found.here.ps_seconds
    told = f"each worker's step takes {load:.3g} core s of the PS; " if load is not None else ""
    why = (
        f"{told}{sizes_in_words(facts, found.best.size)} should train {found.best.speed:.4g} samples/s, "
        f"{found.here.speed:.4g} now: {found.gain:+.0%} speed per cost; {found.model.words}"
    )
    why = "; ".join([why, *doubts(found.model, history, settings)])
    return planned(NAME, facts, limits, settings, found, why)
