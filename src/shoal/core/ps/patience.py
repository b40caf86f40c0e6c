"""How long is waited for whom, and what follows when that is over: no change waits for ever."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from shoal.core.ps.losses import reseated, state_lost, without
from shoal.core.ps.steps import abandon, again, undrained, unprepared
from shoal.core.ps.turn import Turn
from shoal.core.ps.values import Kind, Phase, PSManager
from shoal.core.ps.versions import unready


def deadline(m: PSManager) -> datetime | None:
    """When `ticked` should be called if nothing happens before."""
    if m.failed is not None:
        return None
    times = [t.unreachable[1] + m.settings.unreachable_after for t in m.trainers.values() if t.unreachable is not None]
    phase = _phase_ends(m)
    return min([*times, *([] if phase is None else [phase])], default=None)


def _phase_ends(m: PSManager) -> datetime | None:
    change, settings = m.change, m.settings
    if change is None:
        return None
    limits: Mapping[Phase, timedelta] = {
        Phase.LAUNCHING: settings.launch_timeout,
        Phase.PREPARING: settings.prepare_timeout,
        Phase.DRAINING: settings.drain_timeout,
        Phase.MOVING: settings.move_timeout,
        Phase.SAVING: settings.save_timeout,
        Phase.RESUMING: settings.resume_timeout,
    }
    waits_for_trainers = change.kind in (Kind.START, Kind.ROLLBACK) and not m.trainers
    if waits_for_trainers and (change.phase is Phase.PREPARING or not unready(m)):
        return None  # whether a job may be without workers is not decided here
    return change.since + limits[change.phase]


def expired(turn: Turn) -> None:
    """What was waited for until now is waited for no longer."""
    for rank in sorted(_out_of_reach(turn.m, turn.now)):
        _give_up_server(turn, rank)
    phase_ends = _phase_ends(turn.m)
    if turn.m.failed is None and phase_ends is not None and turn.now >= phase_ends:
        _too_long(turn)


def _out_of_reach(m: PSManager, now: datetime) -> frozenset[int]:
    said = (t.unreachable for t in m.trainers.values() if t.unreachable is not None)
    return frozenset(rank for rank, since in said if now >= since + m.settings.unreachable_after)


def _give_up_server(turn: Turn, rank: int) -> None:
    """Its node lives as far as anybody knows, but nobody reaches it: it is ended and counts as lost."""
    m = turn.m
    turn.put(*(replace(t, unreachable=None) for t in m.trainers.values() if t.unreachable and t.unreachable[0] == rank))
    node = next((s.node for s in m.current.servers if s.rank == rank), None) if m.current is not None else None
    if node is None or node not in m.nodes or node in m.removing:
        return  # it is known to be gone
    reason = f"{node} cannot be reached"
    turn.m = replace(turn.m, servers=without(turn.m.servers, node))
    state_lost(turn, node, reason)
    reseated(turn, node, reason, frozenset())
    if turn.m.failed is None:
        turn.remove((node,), reason)


def _too_long(turn: Turn) -> None:
    m, change, settings = turn.m, turn.change, turn.m.settings
    is_optional = change.kind in (Kind.RESIZE, Kind.SAVE)
    match change.phase:
        case Phase.LAUNCHING if is_optional:
            abandon(turn, f"{_did_not_come(m)} within {settings.launch_timeout}")
        case Phase.LAUNCHING:
            turn.fail(f"{_did_not_come(m)} within {settings.launch_timeout}, and the job cannot do without")
        case Phase.PREPARING | Phase.DRAINING:
            silent = undrained(m) if change.phase is Phase.DRAINING else unprepared(m)
            verb = "stand still" if change.phase is Phase.DRAINING else "prepare"
            limit = settings.drain_timeout if change.phase is Phase.DRAINING else settings.prepare_timeout
            reason = f"{', '.join(silent) or 'nobody'} did not {verb} within {limit}"
            if is_optional:
                abandon(turn, reason)
            else:
                turn.restart(silent, reason)
        case Phase.MOVING if is_optional:
            abandon(turn, f"the state was not moved within {settings.move_timeout}")
        case Phase.MOVING:
            reason = f"{m.chief} did not restore the state within {settings.move_timeout}"
            assert m.chief is not None
            turn.restart((m.chief,), reason)
            again(turn, reason)
        case Phase.SAVING:
            abandon(turn, f"it was not saved within {settings.save_timeout}")
        case Phase.RESUMING:
            turn.restart(change.awaiting, f"it did not go on within {settings.resume_timeout}")
        case _:
            assert_never(change.phase)


def _did_not_come(m: PSManager) -> str:
    return f"{', '.join(unready(m)) or 'a model to train'} did not come up"
