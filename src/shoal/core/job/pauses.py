"""How long each phase of a change of the parameter servers took: kept while it goes on, for people and benchmarks.

Found by comparing the manager before and after something happened, so nobody has to report it.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from shoal.core.job.values import KEPT_CHANGES
from shoal.core.ps.values import MOVES, Change, Kind, Phase, PSManager
from shoal.core.view import PSChangeView

_FIELDS: Mapping[Phase, str] = {
    Phase.LAUNCHING: "launch",
    Phase.PREPARING: "prepare",
    Phase.DRAINING: "drain",
    Phase.MOVING: "move",
    Phase.SAVING: "move",
    Phase.RESUMING: "go",
}


def timed(
    told: tuple[PSChangeView, ...], before: PSManager | None, after: PSManager, now: datetime
) -> tuple[PSChangeView, ...]:
    """What is told of the changes when `after` has followed upon `before`."""
    old, new = None if before is None else before.change, after.change
    if old is new:
        return told
    if old is not None and told and (new is None or _is_another(old, new)):
        told = (*told[:-1], _ended(told[-1], old, now))
    elif old is not None and told and new is not None:
        told = (*told[:-1], _went_on(told[-1], old, new, now))
    if new is not None and (old is None or _is_another(old, new)):
        told = (*told, _begun(new, after, now))[-KEPT_CHANGES:]
    return told


def _is_another(old: Change, new: Change) -> bool:
    """Whether one change has ended and the next begun, all at once: no way leads from the one to the other."""
    if (old.kind, old.reason) != (new.kind, new.reason):
        return True
    if old.kind is Kind.SAVE and old.barrier != new.barrier:
        return True
    return new.phase is not old.phase and new.phase not in _reached(old.phase)


def _reached(phase: Phase) -> frozenset[Phase]:
    """Where a change in this phase may come to; several phases may pass at once."""
    found: frozenset[Phase] = MOVES[phase]
    while (more := found.union(*(MOVES[each] for each in found))) != found:
        found = more
    return found


def _begun(change: Change, m: PSManager, now: datetime) -> PSChangeView:
    before = 0 if m.current is None else len(m.current.servers)
    return PSChangeView(
        kind=change.kind,
        reason=change.reason,
        at=now,
        before=before,
        after=before if change.kind is Kind.SAVE else len(change.seats),
        version=None if change.cluster is None else change.cluster.version,
        phase=change.phase,
    )


def _went_on(told: PSChangeView, old: Change, new: Change, now: datetime) -> PSChangeView:
    told = replace(told, version=None if new.cluster is None else new.cluster.version, phase=new.phase)
    return told if new.since == old.since else _counted(told, old, now)


def _ended(told: PSChangeView, old: Change, now: datetime) -> PSChangeView:
    outcome = "done" if old.phase is Phase.RESUMING else "abandoned"
    return replace(_counted(told, old, now), phase=None, outcome=outcome)


def _counted(told: PSChangeView, old: Change, now: datetime) -> PSChangeView:
    name, seconds = _FIELDS[old.phase], max(0.0, (now - old.since).total_seconds())
    return replace(told, **{name: getattr(told, name) + seconds})


def words(change: PSChangeView) -> str:
    """What it cost, for people."""
    phases = {"drain": change.drain, "move": change.move, "go": change.go}
    if change.kind == Kind.ROLLBACK:
        phases = {"launch": change.launch, "prepare": change.prepare, **phases}
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases.items())
    return f"version {change.version} trains: workers stood still for {change.pause:.2f} s ({parts})"
