"""Parameter servers hold what was trained: who takes one away, and when.

One that is beyond the grant stays until the master has released it (`removePods`): by then what it held has been moved
and every trainer has acknowledged a version of the PS cluster without it. However long that takes, `drainBy` does not
end it as long as a master answers. The operator takes a server by itself in three cases only: no master has answered
for as long as agents go on without one, so nobody trains any more; no master has ever answered, so nobody has begun to;
or the job rests, and whoever could train has left.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from shoal.api.elasticjob import Role, Strategy
from shoal.api.jobspec import JobSpec
from shoal.api.kept import why_not_kept
from shoal.operator.crew import Crew
from shoal.operator.members import MasterLooks
from shoal.operator.memory import Grant, Memory

_TRAINERS = (Role.CHIEF, Role.WORKER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Servers beyond the grant that are still there."""

    due: datetime | None
    """From when on the operator takes them by itself; None: it waits for the master."""
    why: str
    """For people."""


def held_servers(
    crew: Crew,
    grant: Grant,
    looks: MasterLooks,
    *,
    patience: timedelta,
    rests: bool,
    has_begun: bool,
    managed: frozenset[Role],
) -> Held | None:
    """What is to be said of servers beyond the grant; None: there are none. `patience`: how long agents go on without a
    master. `rests`: the job is to have no members now. `has_begun`: some master has reported."""
    excess = len(crew.seats(Role.PS)) - grant.counts.get(Role.PS, 0)
    live = crew.live(Role.PS)
    if excess <= 0 or not live or Role.PS not in managed:
        return None
    named = [member.name for member in live if member.name in grant.victims]
    names = named if len(named) >= excess else [member.name for member in live]
    due = _due(crew, grant, looks, patience=patience, rests=rests) if has_begun else crew.now
    who = names[0] if len(names) == 1 else f"{min(excess, len(live))} of {', '.join(names)}"
    waits = "until the master has moved what it holds and all trainers have acknowledged that"
    if not looks.answers:
        waits += f"; no master answers: it is removed at {due:%H:%M:%S} UTC if none does by then" if due else ""
    return Held(due=due, why=f"{who} stays {waits}")


def _due(crew: Crew, grant: Grant, looks: MasterLooks, *, patience: timedelta, rests: bool) -> datetime | None:
    if rests and not any(crew.live(role) for role in _TRAINERS):
        return (grant.drain_by or crew.now) if looks.answers else crew.now
    if looks.answers or looks.silent_since is None:
        return None
    return max(looks.silent_since + patience, grant.drain_by or crew.now)


def why_not_suspended(spec: JobSpec, memory: Memory, *, has_begun: bool) -> str:
    """Why a job goes on though its owner wants it to rest; empty: it may. What its servers hold would be lost."""
    has_servers = spec.strategy is Strategy.PARAMETER_SERVER and any(member.is_live for member in memory.of(Role.PS))
    why = "there is no checkpoint.path" if spec.checkpoint_path is None else why_not_kept(spec)
    if not (spec.suspend and has_servers and has_begun and why):
        return ""
    how = "delete the job, or begin one with a checkpoint path that outlives its Pods"
    return f"spec.suspend has no effect: its parameter servers hold the model, and {why}; {how}"
