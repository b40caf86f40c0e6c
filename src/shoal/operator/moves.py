"""Moves: a member is replaced by one with another resource, the new one first, the old one after.

An entry of `migratePods` or `resource_updation` is carried out once per plan, generation and name. It waits until the
member runs, then the replacement is added beside it (the grant is one higher meanwhile), and when that one runs the
old member becomes a victim of the grant, which is back at its number: so it is drained like any other that has to go.
It goes also when more are granted meanwhile: then somebody new comes after it.
A replacement that fails, or does not run in time, is given up, and so is one that no plan asks for any more: then the
old member stays.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shoal.api.elasticjob import Role
from shoal.api.fields import MAX_ENTRIES
from shoal.api.reasons import Reason
from shoal.operator.crew import Crew
from shoal.operator.memory import Member, MemberState, Move, MoveState
from shoal.operator.snapshot import MoveOrder, PlanSeen

_WORTH = (MoveState.STARTING, MoveState.REMOVING, MoveState.FAILED, MoveState.WAITING, MoveState.DONE)
"""What is remembered before what else, where there is no room for all. A move that is done is known by the member being
gone; one that failed and was forgotten would be begun again, so none is begun that could not be remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    moves: tuple[Move, ...]
    surge: dict[Role, int]
    """How many members more than asked for are needed now."""
    victims: tuple[str, ...]
    next_look: datetime | None = None
    """When a replacement will have had its time."""


def advance(
    crew: Crew,
    moves: Sequence[Move],
    plans: Sequence[PlanSeen],
    *,
    suspended: bool,
    pending: timedelta,
    most: int | None = None,
) -> Moving:
    """Begin what is new, and take every open move one step on. `pending`: what a replacement's Pod gets to run.
    `most`: how many may be open at once."""
    known = {(move.plan, move.generation, move.name): move for move in moves}
    current = {(plan.uid, plan.generation) for plan in plans}
    open_names = {move.name for move in moves if move.is_open}
    after = []
    for move in moves:
        if move.is_open or (move.state is not MoveState.WAITING and (move.plan, move.generation) in current):
            after.append(_step(crew, move, suspended=suspended, asked=_is_asked(move, plans), pending=pending))
    room = MAX_ENTRIES - sum(move.is_open or move.state is MoveState.FAILED for move in after)
    if most is not None:
        room = min(room, most - sum(move.is_open for move in after))
    for plan in plans:
        for order in plan.migrate:
            earlier = known.get((plan.uid, plan.generation, order.name))
            if earlier is None or earlier.state is MoveState.WAITING:
                begun = _begin(crew, plan, order, waits=suspended or order.name in open_names or room <= 0)
                open_names |= {begun.name} if begun.is_open else set()
                room -= begun.is_open
                after.append(begun)
    after.sort(key=lambda move: (_WORTH.index(move.state), move.plan, move.generation, move.name))
    after = sorted(after[:MAX_ENTRIES], key=lambda move: (move.plan, move.generation, move.name))
    starting = [move.replacement or "" for move in after if move.state is MoveState.STARTING]
    surge: dict[Role, int] = {}
    for member in map(crew.get, starting):
        if member is not None:
            surge[member.role] = surge.get(member.role, 0) + 1
    victims = tuple(move.name for move in after if move.state is MoveState.REMOVING)
    dues = [crew.pods[name].created_at + pending for name in starting if name in crew.pods]
    return Moving(moves=tuple(after), surge=surge, victims=victims, next_look=min(dues, default=None))


def _is_asked(move: Move, plans: Iterable[PlanSeen]) -> bool:
    """Whether its plan is there and, if it was changed since, still names the member."""
    plan = next((plan for plan in plans if plan.uid == move.plan), None)
    return plan is not None and (
        plan.generation == move.generation or any(order.name == move.name for order in plan.migrate)
    )


def _begin(crew: Crew, plan: PlanSeen, order: MoveOrder, *, waits: bool) -> Move:
    move = Move(plan=plan.uid, generation=plan.generation, name=order.name, state=MoveState.WAITING)
    member = crew.get(order.name)
    if member is None or not member.has_seat:
        if _was_there(crew, order.name):
            return replace(move, state=MoveState.DONE, reason=f"{order.name} is no member any more")
        return replace(move, reason=f"there is no {order.name} yet")
    if member.role in crew.made_elsewhere:
        why = f"Pods of {member.role} are made by the job's master (--pod-scaler), which replaces nobody that runs"
        return replace(move, state=MoveState.FAILED, reason=why)
    if not member.is_live or not crew.is_running(order.name):
        return replace(move, reason=f"{order.name} does not run yet")
    if waits:
        return replace(move, reason=f"{order.name} waits for its turn")
    new = crew.add(
        member.role,
        rank=member.rank,
        resource=order.resource.over(member.resource),
        avoid_hosts=member.avoid_hosts,
        replaces=member.name,
        reason=f"{plan.title} gives {member.name} another resource",
    )
    crew.say(Reason.MIGRATING, f"{new.name} is to take the place of {member.name}: {new.reason}")
    return replace(move, state=MoveState.STARTING, replacement=new.name, reason=f"{new.name} is starting")


def _step(crew: Crew, move: Move, *, suspended: bool, asked: bool, pending: timedelta) -> Move:
    if not move.is_open:
        return move
    old, new = crew.get(move.name), crew.get(move.replacement or "")
    gone = old is None or not old.has_seat
    if new is None or not new.has_seat:
        why = "the job was suspended" if suspended else f"{move.replacement} is no member any more"
        return replace(move, state=MoveState.DONE if gone else MoveState.FAILED, reason=why)
    if gone:
        return replace(move, state=MoveState.DONE, reason=f"{new.name} took its place")
    assert old is not None
    if move.state is MoveState.STARTING:
        return _starting(crew, move, old, new, asked=asked, pending=pending)
    return move


def _starting(crew: Crew, move: Move, old: Member, new: Member, *, asked: bool, pending: timedelta) -> Move:
    if new.state is MemberState.FAILED:
        return _given_up(crew, move, old, new, f"{new.name} failed: {new.reason}")
    if not old.is_live:
        crew.leave(old, f"{new.name} takes its place")
        return replace(move, state=MoveState.DONE, reason=f"{new.name} took its place; {old.name} had ended")
    if crew.is_running(new.name):
        crew.say(Reason.MIGRATED, f"{new.name} runs; {old.name} is to leave")
        return replace(move, state=MoveState.REMOVING, reason=f"{new.name} runs; {old.name} is to leave")
    if not asked:
        return _given_up(crew, move, old, new, "no plan asks for it any more")
    pod = crew.pods.get(new.name)
    if pod is not None and crew.now >= pod.created_at + pending:
        why = f" ({pod.trouble.message})" if pod.trouble else ""
        return _given_up(crew, move, old, new, f"{new.name} did not run within {pending.total_seconds():.0f} s{why}")
    return move


def _given_up(crew: Crew, move: Move, old: Member, new: Member, why: str) -> Move:
    crew.leave(new, f"it does not take the place of {old.name}: {why}")
    crew.say(Reason.MIGRATION_FAILED, f"{old.name} stays: {why}")
    return replace(move, state=MoveState.FAILED, reason=why)


def _was_there(crew: Crew, name: str) -> bool:
    """Whether a name is one that the job has used: names are never used twice."""
    for role in Role:
        prefix = f"{crew.job}-{role}-"
        number = name.removeprefix(prefix)
        if name.startswith(prefix) and number.isascii() and number.isdigit():
            return int(number) < crew.next_id(role)
    return False
