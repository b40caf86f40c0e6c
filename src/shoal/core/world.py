"""Worlds: which members train together, in which order. A two-phase state machine of values.

A *world* is one generation of ranked members. The `Rendezvous` knows every member of the job that could be
in one and where it stands:

    EXPECTED ──ready──▶ READY ──chosen──▶ PREPARED ──ack──▶ ACKED ──all acked──▶ ACTIVE
       ▲                  ▲                   └──────────────┴── a member of the generation was lost ─▶ READY
       └── process died ──┴────────────── world paused or interrupted, member says ready again ◀── ACTIVE

Every function takes the rendezvous and something that happened, and returns the next rendezvous and what must
be told to whom. Nothing waits, nothing is sent here. What never happens, whatever the order of events: two
committed worlds at once, a generation used twice, a member of an old incarnation in a world, ranks with a gap.

Two ways to end a running world. **Pause**: somebody joins or leaves; the members agree on a step boundary and no
step is lost. **Interrupt**: a member is gone; the collective under way is given up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from shoal.core.nodes import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    min_nodes: int
    max_nodes: int
    node_unit: int = 1
    """A world has a multiple of this many nodes."""
    last_call: timedelta = timedelta(seconds=3)
    """How long an incomplete round waits after the last arrival. Long enough for a straggling start, short
    enough that nobody notices when a member never comes."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(f"nodes must satisfy 1 <= min <= max, got {self.min_nodes}:{self.max_nodes}")
        if self.node_unit < 1 or self.largest_size(self.max_nodes) is None:
            raise ValueError(f"no multiple of node unit {self.node_unit} lies in {self.min_nodes}:{self.max_nodes}")

    def largest_size(self, available: int) -> int | None:
        """The largest world that `available` nodes can make, or None."""
        size = min(available, self.max_nodes) // self.node_unit * self.node_unit
        return size if size >= self.min_nodes and size > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldMember:
    node: NodeId
    incarnation: int
    address: str
    """Where its peers reach it."""
    slots: int
    """How many training processes it has."""
    base_rank: int
    """The rank of its first process; its others follow."""
    step: int | None
    """The highest step that one of its processes has committed; None: it has no state yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One generation: its members in rank order, and whose state counts."""

    generation: int
    members: tuple[WorldMember, ...]
    source: int
    """The rank whose state everybody takes."""
    step: int | None
    """The step that the source has committed; None: nobody has state, training starts."""
    transfer: bool
    """Somebody lacks the source's state, so it has to be sent. False: all hold it already."""

    @property
    def size(self) -> int:
        return sum(member.slots for member in self.members)

    def member(self, node: NodeId) -> WorldMember | None:
        return next((m for m in self.members if m.node == node), None)


class Standing(StrEnum):
    EXPECTED = "expected"
    """On its way: launched, or its processes are starting."""
    READY = "ready"
    """Waits for a world."""
    PREPARED = "prepared"
    """Told of the pending generation."""
    ACKED = "acked"
    """Has acknowledged the pending generation."""
    ACTIVE = "active"
    """In the committed world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    node: NodeId
    incarnation: int
    standing: Standing = Standing.EXPECTED
    awaited: bool = True
    """A round that has the minimum still gives it the last call."""
    seniority: int | None = None
    """The order in which process incarnations became ready; None: not yet."""
    address: str = ""
    slots: int = 1
    steps: tuple[int | None, ...] = ()
    """The committed step of each of its processes."""
    leaving: bool = False
    finished: bool = False
    """Its processes have done all steps and wait for the others to say so too."""

    @property
    def step(self) -> int | None:
        return max((s for s in self.steps if s is not None), default=None)

    @property
    def is_awaited(self) -> bool:
        return self.awaited and not self.leaving and self.standing in (Standing.EXPECTED, Standing.ACTIVE)

    @property
    def is_unfinished(self) -> bool:
        return self.standing is Standing.ACTIVE and not self.finished


class Break(StrEnum):
    PAUSE = "pause"
    INTERRUPT = "interrupt"


# What must be told to whom -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    world: World


@dataclass(frozen=True, slots=True)
class Commit:
    world: World
    store: Mapping[str, bytes]
    """What the members put into the bootstrap store with their acknowledgements."""


@dataclass(frozen=True, slots=True)
class Pause:
    generation: int
    to: tuple[NodeId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Interrupt:
    generation: int
    to: tuple[NodeId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """All members have finished: their training functions may return."""

    generation: int
    to: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Dismiss:
    """A leaving member is in no world any more: its node may go."""

    node: NodeId


Notice = Prepare | Commit | Pause | Interrupt | Release | Dismiss


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """All that is known about members and worlds. Made by `Rendezvous(settings=...)`, changed only by the functions
    below."""

    settings: WorldSettings
    generation: int = 0
    """The highest generation ever prepared, by any master, as far as is known."""
    members: Mapping[NodeId, Member] = field(default_factory=dict)
    committed: World | None = None
    """The world that trains, or the last one that did while the next is being formed."""
    pending: World | None = None
    breaking: Break | None = None
    released: bool = False
    """The job's training functions have returned; no world is formed any more."""
    next_seniority: int = 0
    last_arrival: datetime | None = None
    store: Mapping[str, bytes] = field(default_factory=dict)
    unsettled: int = 0
    """How many members a closing round still has to hear of: awaited and not ready. This and the next three are counted
    along, so that what one member of a large job says needs no look at all the others."""
    unacked: int = 0
    unfinished: int = 0
    """How many members are in the committed world and have steps to do."""
    leaving: int = 0
    strays: frozenset[NodeId] = frozenset()
    """Members that have not come back since another master took over. What that one wrote down last may be older than
    what they were told, so they may be in a world that nobody knows of: until each has come back or is given up, no
    world is formed."""

    @property
    def running(self) -> World | None:
        """The committed world, if its members are (as far as we know) training in it."""
        if self.breaking is not None or self.pending is not None:
            return None
        # A pending generation that was given up leaves its members ready and the world before it behind.
        return self.committed if any(m.standing is Standing.ACTIVE for m in self.members.values()) else None


Step = tuple[Rendezvous, tuple[Notice, ...]]


# Things that happen --------------------------------------------------------------------------------------


def expect(r: Rendezvous, node: NodeId, incarnation: int, *, awaited: bool, now: datetime) -> Step:
    """A node was launched, or its next incarnation is starting. Later incarnations replace earlier ones."""
    known = r.members.get(node)
    if known is not None and known.incarnation >= incarnation:
        return r, ()
    notices: tuple[Notice, ...] = ()
    leaving = known is not None and known.leaving
    if known is not None:
        r, notices = _without(r, known, now=now, reason=f"{node} restarts its processes")
    r = _put(r, Member(node=node, incarnation=incarnation, awaited=awaited, leaving=leaving))
    return _settled(r, now, notices)


def ready(
    r: Rendezvous,
    node: NodeId,
    incarnation: int,
    *,
    address: str,
    steps: tuple[int | None, ...],
    now: datetime,
) -> Step:
    """All processes of a member wait for a world. Said again by a member of the running world, it ends that world."""
    known = r.members.get(node)
    if known is None or known.incarnation != incarnation or not steps:
        return r, ()
    notices: tuple[Notice, ...] = ()
    if known.standing is Standing.ACTIVE and r.breaking is None:
        r, notices = _broken(r, except_for=node, reason=f"{node} asks for a new world")
    elif known.standing in (Standing.PREPARED, Standing.ACKED):
        r = _abandoned(r)
    seniority = known.seniority if known.seniority is not None else r.next_seniority
    r = replace(r, next_seniority=max(r.next_seniority, seniority + 1), last_arrival=now)
    r = _put(
        r,
        replace(
            known,
            standing=Standing.READY,
            seniority=seniority,
            address=address,
            slots=len(steps),
            steps=steps,
            finished=False,
        ),
    )
    return _settled(r, now, notices)


def acked(
    r: Rendezvous,
    node: NodeId,
    incarnation: int,
    generation: int,
    *,
    store: Mapping[str, bytes],
    now: datetime,
) -> Step:
    """A member acknowledged the pending generation, with what it puts into that generation's bootstrap store."""
    known = r.members.get(node)
    if (
        known is None
        or known.incarnation != incarnation
        or known.standing is not Standing.PREPARED
        or r.pending is None
        or r.pending.generation != generation
    ):
        return r, ()
    r = _put(r, replace(known, standing=Standing.ACKED))
    r = replace(r, store={**r.store, **store}, unacked=r.unacked - 1)
    return _settled(r, now, ())


def lost(r: Rendezvous, node: NodeId, *, now: datetime, reason: str) -> Step:
    """A node is gone for good: it is fenced and will not come back under this name."""
    known = r.members.get(node)
    if known is None:
        return r, ()
    r, notices = _without(r, known, now=now, reason=reason)
    return _settled(r, now, notices)


def dropped(r: Rendezvous, node: NodeId, incarnation: int, *, awaited: bool, now: datetime, reason: str) -> Step:
    """A process of the node died: the node leaves the world as a whole and comes back as `incarnation`.

    `awaited`: it will be ready about as soon as the survivors are (processes of plain scripts restart anyhow);
    otherwise the survivors go on without it and it joins when its new process is up.
    """
    known = r.members.get(node)
    if known is None or known.incarnation >= incarnation:
        return r, ()
    leaving = known.leaving
    r, notices = _without(r, known, now=now, reason=reason)
    r = _put(r, Member(node=node, incarnation=incarnation, awaited=awaited, leaving=leaving))
    return _settled(r, now, notices)


def leave(r: Rendezvous, nodes: Iterable[NodeId], *, now: datetime) -> Step:
    """These nodes are to leave: at a step boundary if they are in the running world, at once if they are not."""
    for node in nodes:
        known = r.members.get(node)
        if known is not None and not known.leaving:
            r = _put(r, replace(known, leaving=True))
    return _settled(r, now, ())


def completed(r: Rendezvous, node: NodeId, *, now: datetime) -> Step:
    """All processes of a node ended well by themselves: it goes, and the others are not disturbed."""
    known = r.members.get(node)
    if known is None:
        return r, ()
    if known.standing in (Standing.PREPARED, Standing.ACKED):
        r = _abandoned(r)
    r = _drop(r, node)
    return _settled(r, now, ())


def finished(r: Rendezvous, node: NodeId, incarnation: int, generation: int, *, now: datetime) -> Step:
    """A member's training function is through, in this generation. It waits for `Release` or `Interrupt`.

    A `Pause` that reaches it while it waits means nothing to it: there is no step boundary left to pause at.
    """
    known = r.members.get(node)
    if (
        known is None
        or known.incarnation != incarnation
        or known.standing is not Standing.ACTIVE
        or r.committed is None
        or r.committed.generation != generation
    ):
        return r, ()
    r = _put(r, replace(known, finished=True))
    return _settled(r, now, ())


def broken(r: Rendezvous, generation: int, *, now: datetime, reason: str) -> Step:
    """The running world cannot go on although nobody is known to be gone (a connection between members failed)."""
    if r.committed is None or r.committed.generation != generation or r.breaking is Break.INTERRUPT:
        return r, ()
    if r.pending is not None or r.released or not _active(r):
        return r, ()  # connections between released members close because they return
    r, notices = _broken(r, except_for=None, reason=reason)
    return _settled(r, now, notices)


def superseded(r: Rendezvous, *, now: datetime) -> Step:
    """The running world turned out to be one of agents only: its training processes ask for a world themselves.

    Nobody is interrupted. Each member is on its way to the next world, as if it had just been launched; so is whoever
    was ready, for it was an agent that said so and not its processes.
    """
    if r.pending is not None:
        return r, ()
    agents = [m for m in r.members.values() if m.standing in (Standing.ACTIVE, Standing.READY)]
    r = _put(r, *(replace(m, standing=Standing.EXPECTED, awaited=True) for m in agents))
    return _settled(r if r.committed is None else replace(r, breaking=Break.INTERRUPT), now, ())


def taken_over(r: Rendezvous, nodes: Iterable[NodeId]) -> Rendezvous:
    """Another master knows only what was written down, and `nodes` ran then."""
    return replace(r, strays=r.strays | {node for node in nodes if node in r.members})


def returned(r: Rendezvous, node: NodeId, *, generation: int, prepared: int, now: datetime) -> Step:
    """A member's agent is back. It was last in the world `generation`, and `prepared` is the newest it was told of.

    What it tells and nobody knows was decided by a master that could not write it down. A world that was being formed
    may have been committed: then it is. Of a later one nobody knows who else is in it, so it is over: each member that
    comes from it is told to come out, and asks for the next one as everybody does. No number is used again that
    somebody has heard of.
    """
    newest = max(generation, prepared)
    is_stray = node in r.strays
    r = replace(r, strays=r.strays - {node}, generation=max(r.generation, newest))
    known = r.members.get(node)
    if known is None or r.released:
        return _settled(r, now, ())
    notices: tuple[Notice, ...] = ()
    current = r.committed.generation if r.committed is not None else 0
    if known.standing in (Standing.PREPARED, Standing.ACKED) and r.pending is not None:
        if generation == r.pending.generation:  # so all have acknowledged it; who has not heard of it yet will say so
            return _settled(replace(_commit(r, []), unacked=0), now, ())
        if newest <= r.pending.generation:
            return _settled(r, now, ())
        r = _abandoned(r)
    if known.standing is Standing.ACTIVE:
        if generation == newest == current:
            return _settled(r, now, ())
        r, notices = _broken(r, except_for=node, reason=f"{node} missed the start of world {current}")
    elif is_stray or known.standing is not Standing.READY:
        soon = known.standing is not Standing.EXPECTED or generation > 0  # it is up, and will be ready in a moment
        r = _put(r, replace(r.members[node], standing=Standing.EXPECTED, awaited=known.awaited or soon))
    if newest and r.members[node].standing is not Standing.READY:
        notices += (Interrupt(newest, (node,), f"{node} comes from a world that is over"),)
    return _settled(r, now, notices)


def ticked(r: Rendezvous, *, now: datetime) -> Step:
    """Time passed; see `deadline`."""
    return _settled(r, now, ())


def deadline(r: Rendezvous) -> datetime | None:
    """When `ticked` should be called if nothing happens before."""
    if r.pending is not None or r.released or r.last_arrival is None or not r.unsettled or r.strays:
        return None
    if any(m.standing is Standing.ACTIVE for m in r.members.values()):
        return None
    if r.settings.largest_size(len(_chosen(r))) is None:
        return None
    return r.last_arrival + r.settings.last_call


# How the next state follows ------------------------------------------------------------------------------


def _settled(r: Rendezvous, now: datetime, notices: tuple[Notice, ...]) -> Step:
    """Do all that can be done now: pause, commit, form, release, dismiss. The notices go out in this order."""
    out = list(notices)
    if r.pending is not None and r.unacked == 0:
        r = _commit(r, out)
    if r.committed is not None and r.breaking is not Break.INTERRUPT and r.pending is None:
        r = _change_running(r, out)
    if r.pending is None and not r.released:
        r = _form(r, now, out)
    if r.leaving:
        r = _dismiss(r, out)
    return r, tuple(out)


def _change_running(r: Rendezvous, out: list[Notice]) -> Rendezvous:
    assert r.committed is not None
    if r.breaking is Break.PAUSE and r.unfinished:
        return r  # they are on their way out
    active = _active(r)
    if active and not r.unfinished:
        return r if r.released else _end(r, active, out)
    if r.breaking is Break.PAUSE or not active or any(m.finished for m in active):
        return r  # the end is near: nobody joins or leaves a world that is finishing
    why = _why_pause(r, active)
    if why is None:
        return r
    out.append(Pause(r.committed.generation, tuple(m.node for m in active), why))
    return replace(r, breaking=Break.PAUSE)


def _end(r: Rendezvous, active: list[Member], out: list[Notice]) -> Rendezvous:
    """All who are still in the world have finished, perhaps after a pause was asked for that came too late."""
    assert r.committed is not None
    generation, to = r.committed.generation, tuple(m.node for m in active)
    if _paused(r):
        out.append(Interrupt(generation, to, "the others paused before the end"))
        return replace(r, breaking=Break.INTERRUPT)
    out.append(Release(generation, to))
    return replace(r, released=True, breaking=None)


def _why_pause(r: Rendezvous, active: list[Member]) -> str | None:
    leaving = sorted(m.node for m in active if m.leaving)
    staying = len(active) - len(leaving)
    joining = sorted(m.node for m in r.members.values() if m.standing is Standing.READY and not m.leaving)
    size = r.settings.largest_size(staying + len(joining))
    # When nobody stays, one who leaves hands the state on in a world with newcomers: there must be room for both.
    can_hand_on = staying > 0 or (r.settings.largest_size(1 + len(joining)) or 0) > 1
    if leaving and size is not None and can_hand_on:
        return f"{', '.join(leaving)} to leave"
    if joining and size is not None and size > len(active):
        return f"{', '.join(joining)} to join"
    return None


def _form(r: Rendezvous, now: datetime, out: list[Notice]) -> Rendezvous:
    """Close the round if everybody awaited is here, or the last call is over."""
    if r.strays:
        return r
    if r.unsettled and (r.last_arrival is None or now < r.last_arrival + r.settings.last_call):
        return r
    if any(m.standing is Standing.ACTIVE for m in r.members.values()):
        return r  # the old world's members have not all come out of it
    chosen = _chosen(r)
    size = r.settings.largest_size(len(chosen))
    if size is None:
        return r
    chosen.sort(key=lambda m: (-1 if m.step is None else -2 - m.step, _seniority(m)))
    world = _ranked(chosen[:size], generation=r.generation + 1)
    # Whoever is not here by now had its last call; it joins when it comes, and no later round waits for it.
    late = [m for m in r.members.values() if m.standing is Standing.EXPECTED and m.awaited]
    r = _put(r, *(replace(m, awaited=False) for m in late))
    r = _put(r, *(replace(r.members[m.node], standing=Standing.PREPARED, finished=False) for m in world.members))
    out.append(Prepare(world))
    return replace(
        r,
        generation=world.generation,
        pending=world,
        store={},
        unacked=len(world.members),
        breaking=None,
    )


def _chosen(r: Rendezvous) -> list[Member]:
    """Who could be in the next world, whatever its size."""
    candidates = [m for m in r.members.values() if m.standing is Standing.READY]
    chosen = [m for m in candidates if not m.leaving]
    newest = max((m.step for m in candidates if m.step is not None), default=None)
    if newest is not None and all(m.step != newest for m in chosen):
        # A leaving member alone holds the newest state: it stays for one more world, to hand it on.
        chosen.append(min((m for m in candidates if m.step == newest), key=_seniority))
    return chosen


def _ranked(chosen: list[Member], *, generation: int) -> World:
    """Rank 0 is the member with the newest state, ties by seniority; the others follow by seniority."""
    first, rest = chosen[0], sorted(chosen[1:], key=_seniority)
    step = first.step
    members: list[WorldMember] = []
    base = 0
    for m in (first, *rest):
        members.append(
            WorldMember(
                node=m.node,
                incarnation=m.incarnation,
                address=m.address,
                slots=m.slots,
                base_rank=base,
                step=m.step,
            )
        )
        base += m.slots
    return World(
        generation=generation,
        members=tuple(members),
        source=0 if step is None else first.steps.index(step),
        step=step,
        transfer=step is None or any(s != step for m in chosen for s in m.steps),
    )


def _commit(r: Rendezvous, out: list[Notice]) -> Rendezvous:
    world = r.pending
    assert world is not None
    r = _put(r, *(replace(r.members[m.node], standing=Standing.ACTIVE, awaited=True) for m in world.members))
    out.append(Commit(world, r.store))
    return replace(r, committed=world, pending=None, breaking=None, store={})


def _dismiss(r: Rendezvous, out: list[Notice]) -> Rendezvous:
    """Leaving members that are in no world go, unless they alone hold the newest state.

    Nor before the others have come out of the world it paused with them: they may still be in its last collective.
    """
    gone = [m for m in r.members.values() if m.leaving and m.standing in (Standing.EXPECTED, Standing.READY)]
    if not gone:
        return r
    paused = _paused(r) if _active(r) else frozenset()
    for member in gone:
        if member.node in paused:
            continue
        others = [m.step for m in r.members.values() if m.node != member.node and m.step is not None]
        if r.released or member.step is None or any(step >= member.step for step in others):
            r = _drop(r, member.node)
            out.append(Dismiss(member.node))
    return r


def _without(r: Rendezvous, member: Member, *, now: datetime, reason: str) -> Step:
    """Take a member out; whatever world it was in ends.

    Also the world it paused with the others: those still in it may wait for what it was about to send.
    """
    if member.standing in (Standing.PREPARED, Standing.ACKED):
        r = _abandoned(r)
    in_world = member.standing is Standing.ACTIVE or member.node in _paused(r)
    r = _drop(r, member.node)
    if not in_world:
        return r, ()
    r = replace(r, last_arrival=now)  # the last call of the round that begins here counts from here
    return _broken(r, except_for=None, reason=reason)


def _abandoned(r: Rendezvous) -> Rendezvous:
    """Give the pending generation up. Its members are ready again: the next prepare supersedes this one for them."""
    chosen = (m for m in r.members.values() if m.standing in (Standing.PREPARED, Standing.ACKED))
    r = _put(r, *(replace(m, standing=Standing.READY) for m in chosen))
    return replace(r, pending=None, store={}, unacked=0)


def _broken(r: Rendezvous, *, except_for: NodeId | None, reason: str) -> Step:
    world = r.committed
    assert world is not None
    if r.breaking is Break.INTERRUPT or r.released:
        return r, ()
    to = tuple(m.node for m in _active(r) if m.node != except_for)
    return replace(r, breaking=Break.INTERRUPT), (Interrupt(world.generation, to, reason),) if to else ()


def _paused(r: Rendezvous) -> frozenset[NodeId]:
    """Those who have come out of the world that is being paused."""
    if r.breaking is not Break.PAUSE or r.committed is None:
        return frozenset()
    nodes = (m.node for m in r.committed.members)
    return frozenset(n for n in nodes if n in r.members and r.members[n].standing is Standing.READY)


def _active(r: Rendezvous) -> list[Member]:
    return [m for m in r.members.values() if m.standing is Standing.ACTIVE]


def _seniority(member: Member) -> int:
    assert member.seniority is not None
    return member.seniority


def _put(r: Rendezvous, *changed: Member) -> Rendezvous:
    members = dict(r.members)
    unsettled, unfinished, leaving = r.unsettled, r.unfinished, r.leaving
    for member in changed:
        if (known := members.get(member.node)) is not None:
            unsettled -= known.is_awaited
            unfinished -= known.is_unfinished
            leaving -= known.leaving
        unsettled += member.is_awaited
        unfinished += member.is_unfinished
        leaving += member.leaving
        members[member.node] = member
    return replace(r, members=members, unsettled=unsettled, unfinished=unfinished, leaving=leaving)


def _drop(r: Rendezvous, node: NodeId) -> Rendezvous:
    member = r.members[node]
    members = {name: m for name, m in r.members.items() if name != node}
    return replace(
        r,
        members=members,
        unsettled=r.unsettled - member.is_awaited,
        unfinished=r.unfinished - member.is_unfinished,
        leaving=r.leaving - member.leaving,
        strays=r.strays - {node},
    )
