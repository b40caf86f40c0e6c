"""From decisions to what each job may have, and the record that outlives the scheduler.

A job's *standing* is all that the scheduler remembers of it; in production it is kept in the job's own status, in a
simulation in a dictionary. Four things happen to it: the job arrives, time passes and its Pods come and go, a change
is decided for it, and it is told to wait. Each is a function here, used alike by the operator and the simulator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.scheduler.columns import least_size
from shoal.scheduler.decisions import STRONGEST, Action, Change
from shoal.scheduler.rows import Attained, Job, Room, Seconds
from shoal.scheduler.scores import footprint, score, weight
from shoal.scheduler.settings import SchedulerSettings

NOTHING_ATTAINED = Attained()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    target: int = 0
    """Trainers by the last decision; 0: it waits."""
    attained: Attained = NOTHING_ATTAINED
    waiting_since: Seconds | None = None
    settling: bool = False
    """Its last change is not yet done."""
    frozen_until: Seconds = 0.0
    asked: int = 0
    """The most it asked for when that was decided."""
    short_since: Seconds | None = None
    """Since when it has been admitted without hosts for all of its gang. It is not kept: a new leader counts anew."""
    held_to: int = 0
    """It is given no more trainers than this until `held_until`: for more than these Kubernetes found no host."""
    held_until: Seconds = 0.0
    """0: it is not held."""


def arrive(
    job: Job, saved: Standing | None, min_v: float, capacity: Room, now: Seconds, settings: SchedulerSettings
) -> Standing:
    """A job that is seen for the first time, or comes back, begins where the others are: with nothing owed to it for
    the time before, and a little in advance for its start."""
    gang = score(footprint(job, job.min), capacity, settings)
    debit = settings.start_debit * gang * settings.base_weight / weight(job, settings)
    had = saved.attained.now(now) if saved is not None else 0.0
    return Standing(attained=Attained(v=max(had, min_v) + debit, at=now), waiting_since=now)


def advance(
    standing: Standing, job: Job, running: Room, capacity: Room, now: Seconds, settings: SchedulerSettings
) -> Standing:
    """Time passes: service is counted at the rate of the Pods that run, and a change that is done freezes the job.
    `running` is what all its running Pods have together."""
    rate = score(running, capacity, settings) * settings.base_weight / weight(job, settings)
    if rate != standing.attained.rate:
        standing = replace(standing, attained=Attained(v=standing.attained.now(now), at=now, rate=rate))
    if standing.settling and not job.resizing:
        window = settings.freezing_window if job.freezing_window is None else job.freezing_window
        standing = replace(standing, settling=False, frozen_until=now + window)
    if _is_short(job) != (standing.short_since is not None):
        standing = replace(standing, short_since=now if _is_short(job) else None)
    if standing.held_until and standing.held_until <= now:
        standing = replace(standing, held_to=0, held_until=0.0)
    return standing


def most_of(standing: Standing, asked: int) -> int:
    """The most that a job is given of what it asks for now. Who has come to ask for more is not held."""
    if standing.held_until and asked <= standing.asked:
        return min(asked, standing.held_to)
    return asked


def _is_short(job: Job) -> bool:
    """It was admitted, and a part of its gang has no host."""
    if not job.is_admitted:
        return False
    return bool(job.fixed_pending) or (job.pending > 0 and sum(job.placed.values()) + job.ended < least_size(job))


def carry_out(standing: Standing, change: Change, now: Seconds, *, asked: int) -> Standing | None:
    """What the decision makes of the standing; None when it was made on another target than there is now. `asked` is
    the most that the job asked for."""
    if standing.target != change.before:
        return None
    waiting = now if change.action is Action.SUSPEND else None
    attained = standing.attained
    if change.attained is not None:
        attained = Attained(v=change.attained, at=now, rate=attained.rate)
    held = standing.held_to, standing.held_until
    if change.holds_for is not None:
        held = change.target, now + change.holds_for
    elif change.target > standing.held_to:
        held = 0, 0.0
    return replace(
        standing,
        target=change.target,
        settling=True,
        asked=asked,
        waiting_since=waiting,
        attained=attained,
        short_since=None,
        held_to=held[0],
        held_until=held[1],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPod:
    """One trainer, as far as it matters who goes."""

    name: str
    host: str | None
    ready: bool
    seniority: int
    """0 is the oldest: it leads its world, and goes last."""


def name_victims(change: Change, pods: Iterable[TrainerPod], before: Sequence[str] = ()) -> tuple[str, ...]:
    """The Pods that go: from the hosts the decision names, first those that do nothing yet, then the youngest. Who was
    named before stays named: nobody is spared for another."""
    there = sorted(pods, key=lambda pod: (pod.name not in before, pod.ready, -pod.seniority, pod.name))
    named: list[str] = []
    for host, count in sorted(change.victims.items()):
        named += [pod.name for pod in there if pod.host == host][:count]
    short = change.before - change.target - len(named)
    if short > 0:
        homeless = [pod.name for pod in there if pod.host is None]
        rest = [pod.name for pod in there if pod.host is not None and pod.name not in named]
        named += [*homeless, *rest][:short]
    return tuple(named)


def preference(hosts: Mapping[str, int]) -> dict[str, int]:
    """How much Pods that are made alike prefer each host: the more, the more of them were planned there. What makes
    them from one template cannot send each to a host of its own."""
    most = max(hosts.values(), default=0)
    return {host: max(1, STRONGEST * count // most) for host, count in sorted(hosts.items()) if count}
