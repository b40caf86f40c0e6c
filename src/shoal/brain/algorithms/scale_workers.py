"""`scale_workers`: the number of workers, their cores, and the parameter servers that so many need.

More workers are worth it while one per cent more cost brings half a per cent more speed (`marginal_speedup`); beyond
that the job shrinks. A change must promise more than it is worth the trouble, and pay its pause back within the time
that the job still runs.
"""

from shoal.brain.algorithms.relieve_hot_ps import heating_up
from shoal.brain.algorithms.replace_slow import slowing
from shoal.brain.algorithms.sizing import Found, declined, doubts, find, planned, sizes_in_words
from shoal.core.cleaning import cleaned
from shoal.core.facts import JobFacts, Limits, OptimizerSettings
from shoal.core.optimizing import History
from shoal.core.plans import ResourcePlan

NAME = "scale_workers"
REMEMBERED = 3
"""Outcomes that count."""
MOST_ERROR = 0.2
SURE = 0.1
"""A ring's fit that is further off than this is not believed about fewer workers than were ever measured. One with
parameter servers is: fewer workers relieve a hot one, which no fit gets right."""


def scale_workers(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    clean, note = cleaned(facts)
    hotter = heating_up(clean, settings) if facts.is_ps else None
    if hotter is not None:
        return declined(NAME, note, f"{hotter} has become busy: whether it stays so is seen first")
    slower = slowing(clean, settings)
    if slower is not None:
        return declined(NAME, note, f"{slower} has become slow: whether it stays so is seen first")
    return by_the_model(facts, history, limits, settings)


def by_the_model(facts: JobFacts, history: History, limits: Limits, settings: OptimizerSettings) -> ResourcePlan:
    """The same, whatever else there is to be seen of the job."""
    facts, note = cleaned(facts)
    found = find(facts, history, limits, settings)
    if isinstance(found, str):
        return declined(NAME, note, found)
    now, best = sizes_in_words(facts, found.now.size), sizes_in_words(facts, found.best.size)
    doubted, confidence = doubts(found.model, history, settings), found.model.confidence
    worth = settings.worth + overpromised(history)
    if found.gain < worth:
        close = f"{now} are within {worth:.0%} of the best speed per cost ({best}: {found.gain:+.1%})"
        told = f"{close}, confidence {confidence:.2f} by {found.model.sizes} sizes with {found.model.error:.1%} error"
        return declined(NAME, note, "; ".join([told, *doubted]), confidence)
    if not facts.is_ps and found.best.size.workers < found.fewest and found.model.error > SURE:
        unsure = f"{best} are fewer workers than were ever measured, and the fit is {found.model.error:.0%} off"
        return declined(NAME, note, f"{unsure}: not believed; {found.model.words}", confidence)
    left, pause = seconds_left(facts, settings, found), resize_seconds(facts, settings)
    if not pays(found, left, pause):
        return declined(
            NAME,
            note,
            f"{best} would be {found.gain:+.0%} speed per cost, but {left:.0f} s before the end that does not pay for "
            f"a pause of {pause:.0f} s",
            confidence,
        )
    grows = "grow" if found.best.cost > found.now.cost else "shrink"
    why = (
        f"{grows} from {now} to {best}: {found.best.speed:.4g} samples/s instead of {found.here.speed:.4g}, "
        f"{found.gain:+.0%} speed per cost; {found.model.words}"
    )
    why = "; ".join([why, *doubted, note] if note else [why, *doubted])
    return planned(NAME, facts, limits, settings, found, why)


def overpromised(history: History) -> float:
    """How much more than was measured this algorithm promised the last times: so much more must it promise now."""
    errors = [each.prediction_error for each in history.outcomes if each.algorithm == NAME][-REMEMBERED:]
    known = [min(max(error, 0.0), MOST_ERROR) for error in errors if error is not None]
    return sum(known) / len(known) if known else 0.0


def pays(found: Found, left: float, pause: float) -> bool:
    """Whether the change is still the better choice when its pause counts as part of the time that is left."""
    work = left * found.now.speed
    kept = work / found.best.speed / (pause + work / found.best.speed) if work > 0.0 else 0.0
    return found.best.score * kept > found.now.score


def seconds_left(facts: JobFacts, settings: OptimizerSettings, found: Found) -> float:
    if facts.remaining_samples is None:
        return settings.horizon
    return facts.remaining_samples / found.here.speed


def resize_seconds(facts: JobFacts, settings: OptimizerSettings) -> float:
    """What the last changes cost, at most."""
    recent = [cost.seconds for cost in facts.resizes[-5:]]
    return max(recent) if recent else settings.resize_seconds
