"""What the published experiment has to come out as, and what has to be better: promises about runs, checked.

`gate` says whether `static` and `upstream` are what was published: only then is a comparison worth anything. `goals`
say what `cfs` has to reach on the same ground. The bands of the gate are those in which a calibrated model of the
published runs lies; each is about the mean of all runs of an arm, and the promises about the service about every run.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from shoal.sim.report import Check, Run

Value = Callable[[Run], float]


def extra(name: str) -> Value:
    return lambda run: run.extra[name]


def utilisation(run: Run) -> float:
    return 100 * run.measures.utilisation


def effective(run: Run) -> float:
    return 100 * run.measures.effective_utilisation


def moves(run: Run) -> float:
    return run.extra["starts"] + run.extra["stops"]


def mean(runs: Sequence[Run], value: Value) -> float:
    return sum(map(value, runs)) / len(runs)


# Reproduced --------------------------------------------------------------------------------------------------------

STATIC_BANDS: dict[int, tuple[tuple[str, Value, float, float], ...]] = {
    1: (("utilisation %", utilisation, 80.4, 84.4), ("plateau %", extra("plateau %"), 86.7, 90.7)),
    2: (("utilisation %", utilisation, 60.8, 64.8), ("off-peak %", extra("off-peak %"), 42.9, 46.9)),
}
UPSTREAM_BANDS: dict[int, tuple[tuple[str, Value, float, float], ...]] = {
    1: (
        ("plateau %", extra("plateau %"), 86, 90),
        ("trainers", extra("trainers"), 250, 265),
        ("Jain at 500 s", extra("Jain at 500 s"), 0.38, 0.48),
        ("full gangs", extra("full gangs"), 13, 18),
    ),
    2: (("off-peak %", extra("off-peak %"), 77.5, 80.5), ("missing nginx", extra("missing nginx"), 25, 70)),
}


def gate(case: int, static: Sequence[Run], upstream: Sequence[Run]) -> Iterator[Check]:
    """Is it what was published?"""
    for name, runs, bands in (("static", static, STATIC_BANDS), ("upstream", upstream, UPSTREAM_BANDS)):
        for what, value, low, high in bands[case] if runs else ():
            found = mean(runs, value)
            text = f"case {case}, {name} as published: {what} {low:g} to {high:g}"
            yield Check(text=text, holds=low <= found <= high, detail=f"{found:.4g}")


# Beaten ------------------------------------------------------------------------------------------------------------

MOST_MOVES = 1.5
"""Times those of `upstream`."""


def goals(case: int, ours: Sequence[Run], upstream: Sequence[Run], headroom: Sequence[Run] = ()) -> Iterator[Check]:
    """Is it better? With the settings that clusters have by default."""
    for check in _goals(case, ours, upstream, headroom):
        yield replace(check, text=f"case {case}, cfs: {check.text}")


def _goals(case: int, ours: Sequence[Run], upstream: Sequence[Run], headroom: Sequence[Run]) -> Iterator[Check]:
    if ours and upstream:
        yield _at_most("trainers started and stopped", mean(ours, moves), MOST_MOVES * mean(upstream, moves))
    if case == 1 and ours:
        yield from _fairness(ours, upstream)
    if case == 2 and ours:
        back = max(run.extra["back at 400 s"] for run in ours)
        yield _at_most("s until all nginx Pods are back, in every run", back, 45)
        yield _at_most("missing nginx Pods", mean(ours, extra("missing nginx")), 30)
    if case == 2 and headroom:
        yield _at_most("missing nginx Pods with headroom", mean(headroom, extra("missing nginx")), 10)


def _fairness(ours: Sequence[Run], upstream: Sequence[Run]) -> Iterator[Check]:
    yield _at_least("Jain at 500 s", mean(ours, extra("Jain at 500 s")), 0.95)
    yield _at_least("gangs started, in every run", min(run.measures.gangs_started for run in ours), 20)
    yield _at_least("effective utilisation 300-550 s", mean(ours, extra("effective 300-550 %")), 84)
    if upstream:
        yield _at_least("effective utilisation, as upstream", mean(ours, effective), mean(upstream, effective))


def _at_least(what: str, found: float, least: float) -> Check:
    return Check(text=f"{what} at least {least:.4g}", holds=found >= least, detail=f"{found:.4g}")


def _at_most(what: str, found: float, most: float) -> Check:
    return Check(text=f"{what} at most {most:.4g}", holds=found <= most, detail=f"{found:.4g}")
