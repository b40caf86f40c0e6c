"""Every policy that can be simulated, by name: those of production, and the simulator's own baselines."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches

from shoal.core.errors import BadInput
from shoal.scheduler.policies import known_policies, policy
from shoal.scheduler.settings import SchedulerSettings
from shoal.sim.pollux.baselines import Optimus, Tiresias
from shoal.sim.scheduling import Placer, PlacingScheduler, PolicyScheduler, Scheduler

RIGID = frozenset({"fifo", "static"})
"""They give a job what it asks for or nothing."""
BASELINES: Mapping[str, Callable[[], Placer]] = {"tiresias": Tiresias, "optimus": Optimus}
NAMES = (*known_policies(sim=True), *BASELINES)


def check_policy(name: str) -> str:
    if name not in NAMES:
        close = get_close_matches(name, NAMES, n=1)
        meant = f" (did you mean {close[0]}?)" if close else ""
        raise BadInput(f"unknown policy {name!r}{meant}; there are {', '.join(NAMES)}")
    return name


def scheduler_named(name: str, settings: SchedulerSettings) -> Scheduler:
    """A scheduler with nothing in its memory yet."""
    check_policy(name)
    if name in BASELINES:
        return PlacingScheduler(name, BASELINES[name]())
    return PolicyScheduler(name, policy(name, sim=True), replace(settings, policy=name), is_rigid=name in RIGID)
