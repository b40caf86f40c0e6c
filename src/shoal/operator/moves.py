"""Moves: a member is replaced by one with another resource, the new one first, the old one after.

An entry of `migratePods` or `resource_updation` is carried out once per plan, generation and name. It waits until the
member runs, then the replacement is added beside it (the grant is one higher meanwhile), and when that one runs the
old member becomes a victim of the grant, which is back at its number: so it is drained like any other that has to go.
A replacement that fails is given up, and the old member stays.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shoal.api.elasticjob import Role
from shoal.api.fields import MAX_ENTRIES
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


def advance(
    crew: Crew, moves: Sequence[Move], plans: Iterable[PlanSeen], *, suspended: bool, most: int | None = None
) -> Moving:
    """Begin what is new, and take every open move one step on. `most`: how many may be open at once."""
    known = {(move.plan, move.generation, move.name): move for move in moves}
    current = {(plan.uid, plan.generation) for plan in plans}
    open_names = {move.name for move in moves if move.is_open}
    after = []
    for move in moves:
        if move.is_open or (move.state is not MoveState.WAITING and (move.plan, move.generation) in current):
            after.append(_step(crew, move, suspended=suspended))
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
    starting = [crew.get(move.replacement or "") for move in after if move.state is MoveState.STARTING]
    surge: dict[Role, int] = {}
    for member in starting:
        if member is not None:
            surge[member.role] = surge.get(member.role, 0) + 1
    victims = tuple(move.name for move in after if move.state is MoveState.REMOVING)
    return Moving(moves=tuple(after), surge=surge, victims=victims)


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
    if waits or not member.is_live or not crew.is_running(order.name):
        return replace(move, reason=f"{order.name} does not run yet")
    new = crew.add(
        member.role,
        rank=member.rank,
        resource=order.resource.over(member.resource),
        avoid_hosts=member.avoid_hosts,
        replaces=member.name,
        reason=f"{plan.title} gives {member.name} another resource",
    )
    crew.say("Migrating", f"{new.name} is to take the place of {member.name}: {new.reason}")
    return replace(move, state=MoveState.STARTING, replacement=new.name, reason=f"{new.name} is starting")


def _step(crew: Crew, move: Move, *, suspended: bool) -> Move:
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
        return _starting(crew, move, old, new)
    return move


def _starting(crew: Crew, move: Move, old: Member, new: Member) -> Move:
    if new.state is MemberState.FAILED:
        crew.leave(new, "the replacement failed")
        crew.say("MigrationFailed", f"{new.name} failed ({new.reason}); {old.name} stays")
        return replace(move, state=MoveState.FAILED, reason=f"{new.name} failed: {new.reason}")
    if not old.is_live:
        crew.leave(old, f"{new.name} takes its place")
        return replace(move, state=MoveState.DONE, reason=f"{new.name} took its place; {old.name} had ended")
    if crew.is_running(new.name):
        crew.say("Migrated", f"{new.name} runs; {old.name} is to leave")
        return replace(move, state=MoveState.REMOVING, reason=f"{new.name} runs; {old.name} is to leave")
    return move


def _was_there(crew: Crew, name: str) -> bool:
    """Whether a name is one that the job has used: names are never used twice."""
    for role in Role:
        prefix = f"{crew.job}-{role}-"
        number = name.removeprefix(prefix)
        if name.startswith(prefix) and number.isascii() and number.isdigit():
            return int(number) < crew.next_id(role)
    return False
