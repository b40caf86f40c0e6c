"""How long is waited for whom, and what follows when that is over: no change waits for ever."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from shoal.core.nodes import NodeId
from shoal.core.ps.cluster import Fresh, FromCheckpoint
from shoal.core.ps.losses import reseated, state_lost, without
from shoal.core.ps.steps import abandon, again, aim, do_without, send_errand, undrained, unprepared
from shoal.core.ps.turn import Turn
from shoal.core.ps.values import Kind, Phase, PSManager, Trainer
from shoal.core.ps.versions import errand, not_joined, unready
from shoal.core.ps.words import Move, Save

RETRY = timedelta(seconds=1)
"""Between two tries to bring state to servers that did not take it."""


def deadline(m: PSManager) -> datetime | None:
    """When `ticked` should be called if nothing happens before."""
    if m.failed is not None:
        return None
    times = [at for t in m.trainers.values() if (at := _is_asked_at(m, t)) is not None]
    phase = _phase_ends(m) if m.change is not None else m.retry_at
    return min([*times, *([] if phase is None else [phase]), *_retry(m)], default=None)


def _retry(m: PSManager) -> tuple[datetime, ...]:
    """When the chief tries again what it could not do."""
    change = m.change
    if change is None or change.phase is not Phase.MOVING or change.failing is None:
        return ()
    _, at = change.failing
    return () if at is None else (at,)


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
    if change.phase is Phase.LAUNCHING and can_do_without(m):
        return change.since + settings.come_timeout
    return change.since + limits[change.phase]


def can_do_without(m: PSManager) -> bool:
    """Whether some servers are there for a roll-back, and others, which should join by themselves, are not."""
    if m.change is None or m.change.kind is not Kind.ROLLBACK or not m.settings.servers_join:
        return False
    return 0 < len(not_joined(m)) < len(m.change.seats)


def expired(turn: Turn, stepped: Mapping[NodeId, datetime]) -> None:
    """What was waited for until now is waited for no longer."""
    _ask_about_servers(turn, stepped)
    if turn.m.failed is None and any(turn.now >= at for at in _retry(turn.m)):
        _try_again(turn)
    phase_ends = _phase_ends(turn.m)
    if turn.m.failed is None and phase_ends is not None and turn.now >= phase_ends:
        _too_long(turn)
    if turn.m.change is None and turn.m.retry_at is not None and turn.now >= turn.m.retry_at:
        aim(turn)


def _try_again(turn: Turn) -> None:
    change = turn.change
    assert change.failing is not None
    failing = (change.failing[0], None)
    turn.m = replace(turn.m, change=replace(change, failing=failing, move=change.move + 1, since=turn.now))
    send_errand(turn)


def _is_asked_at(m: PSManager, trainer: Trainer) -> datetime | None:
    """When it is time to decide about the server that it cannot reach."""
    if trainer.unreachable is None:
        return None
    return (trainer.doubted or trainer.unreachable[1]) + m.settings.unreachable_after


def _ask_about_servers(turn: Turn, stepped: Mapping[NodeId, datetime]) -> None:
    """Whether the server is to blame that somebody cannot reach, or that trainer, or the way between them."""
    for node in tuple(turn.m.trainers):
        trainer = turn.m.trainers[node]
        at = _is_asked_at(turn.m, trainer)
        if turn.m.failed is not None or trainer.unreachable is None or at is None or turn.now < at:
            continue
        rank, since = trainer.unreachable
        training = [t for t in turn.m.trainers.values() if t.active == trainer.active]
        others = [t for t in training if t.unreachable is None]
        agree = len(training) - len(others)
        is_late = trainer.halted is None and turn.now >= since + turn.m.settings.doubt_timeout
        if not others or (agree > 1 and agree > len(others)) or is_late:
            _give_up_server(turn, rank)
        elif any(t.node in stepped and stepped[t.node] > since for t in others):
            turn.restart((node,), f"{node} cannot reach the server of rank {rank}, and others can")
        else:
            turn.put(replace(trainer, doubted=turn.now))


def _give_up_server(turn: Turn, rank: int) -> None:
    """Its node lives as far as anybody knows, but nobody reaches it: it is ended and counts as lost."""
    m = turn.m
    told = [t for t in m.trainers.values() if t.unreachable and t.unreachable[0] == rank]
    turn.put(*(replace(t, unreachable=None, doubted=None) for t in told))
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
            absent = not_joined(m) if settings.servers_join else ()
            abandon(turn, f"{_did_not_come(m)} within {settings.launch_timeout}")
            turn.remove(absent, "nobody has joined in its place")
        case Phase.LAUNCHING if can_do_without(m):
            reason = f"nobody has joined in the place of a lost server for {settings.come_timeout}"
            do_without(turn, not_joined(m), reason)
        case Phase.LAUNCHING:
            turn.fail(f"{_did_not_come(m)} within {settings.launch_timeout}, and the job cannot do without")
        case Phase.PREPARING | Phase.DRAINING:
            silent = undrained(m) if change.phase is Phase.DRAINING else unprepared(m)
            verb = "stand still" if change.phase is Phase.DRAINING else "prepare"
            limit = settings.drain_timeout if change.phase is Phase.DRAINING else settings.prepare_timeout
            reason = f"{', '.join(silent) or 'nobody'} did not {verb} within {limit}"
            if is_optional:
                abandon(turn, reason)
                if change.phase is Phase.DRAINING:
                    _missed(turn, silent, reason)
            else:
                turn.restart(silent, reason)
        case Phase.MOVING if is_optional:
            abandon(turn, _silent_chief(m, settings.move_timeout))
        case Phase.MOVING:
            reason = _silent_chief(m, settings.move_timeout)
            assert m.chief is not None
            turn.restart((m.chief,), f"{reason}: it is started again, and whoever is chief then does it")
            again(turn, reason)
        case Phase.SAVING:
            abandon(turn, _silent_chief(m, settings.save_timeout))
        case Phase.RESUMING:
            late = ", ".join(sorted(change.awaiting))
            turn.restart(change.awaiting, f"{late} did not go on within {settings.resume_timeout}: started again")
        case _:
            assert_never(change.phase)


def _silent_chief(m: PSManager, limit: timedelta) -> str:
    """Everybody waits for one word of one worker: who that is, and what it was to do."""
    task = errand(m)
    match task:
        case Save(path=path):
            wanted = f"save {path}"
        case Move(version=version, transfer=FromCheckpoint(path=path)):
            wanted = f"restore {path} onto the servers of version {version}"
        case Move(version=version, transfer=Fresh()):
            wanted = f"initialise the model on the servers of version {version}"
        case Move(version=version):
            wanted = f"move the state to the servers of version {version}"
        case None:
            raise AssertionError("the chief has nothing to do")
        case _:
            assert_never(task)
    return f"{m.chief}, the chief, was to {wanted} and did not report within {limit}"


def _missed(turn: Turn, silent: Iterable[NodeId], reason: str) -> None:
    """One that never stands still would keep everybody from ever saving anything."""
    counted = [replace(turn.m.trainers[node], missed=turn.m.trainers[node].missed + 1) for node in silent]
    turn.put(*counted)
    hopeless = [t.node for t in counted if t.missed >= turn.m.settings.max_missed]
    if hopeless:
        turn.restart(hopeless, f"{reason}, {turn.m.settings.max_missed} times in a row")


def _did_not_come(m: PSManager) -> str:
    return f"{', '.join(unready(m)) or 'a model to train'} did not come up"
