"""How one state of the PS manager follows from another: begin, go on, give up, roll back, end.

`settle` is called after everything that happened. It looks at what is, not at what happened, and does all that can be
done now; so whatever the order in which nodes come, answer and die, the same state leads on in the same way.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from shoal.core.ledger import Checkpoint
from shoal.core.nodes import NodeId
from shoal.core.ps.cluster import FromCheckpoint, PSCluster
from shoal.core.ps.seats import given_seats, ranks_given, seats_for, superfluous
from shoal.core.ps.turn import Turn
from shoal.core.ps.values import Change, Goal, Kind, Phase, PSManager, RollBackLedger
from shoal.core.ps.versions import elected, errand, may_join, mover, next_cluster, unready
from shoal.core.ps.words import Abandon, ChiefIs, Go, Settled
from shoal.core.resources import overlaid


def settle(turn: Turn) -> None:
    """Do all that can be done now."""
    if turn.m.failed is not None:
        return
    _elect(turn)
    while turn.m.failed is None and _advance(turn):
        pass
    if turn.m.failed is None:
        _admit(turn)
        _elect(turn)
        _sweep(turn)


def _elect(turn: Turn) -> None:
    """Who moves or saves state stays chief until that is done, or it is gone."""
    if turn.is_elected:
        return
    m, turn.is_elected = turn.m, True
    busy = m.change is not None and m.change.phase in (Phase.MOVING, Phase.SAVING) and m.chief in m.trainers
    chief = m.chief if busy else elected(m)
    if chief != m.chief:
        turn.m = replace(m, chief=chief)
        if chief is not None:
            turn.tell(ChiefIs(chief=chief), m.trainers)


def _advance(turn: Turn) -> bool:
    """Move the change on by one phase, or begin one. False: nothing can be done now."""
    m, change = turn.m, turn.m.change
    if change is None:
        return _begin(turn)
    match change.phase:
        case Phase.LAUNCHING if m.partitions and not unready(m) and not (change.kind is Kind.RESIZE and m.is_unsure):
            _publish(turn)
        case Phase.PREPARING if m.trainers and _is_prepared(m):
            turn.move(Phase.DRAINING)
            turn.halt(change.reason)
        case Phase.DRAINING if all(t.active is None or t.drained for t in m.trainers.values()):
            _everybody_stands(turn)
        case Phase.RESUMING if not change.awaiting:
            _end(turn)
        case _:
            return False
    return True


# Beginning -------------------------------------------------------------------------------------------------------


def _begin(turn: Turn) -> bool:
    m = turn.m
    if m.settings.platform_launches and not (m.current is not None and m.save_wanted is not None):
        return _begin_given(turn)
    if m.current is None:
        _begin_resize(turn, Kind.START, f"the job starts with {_count(m.goal.count)}")
        return True
    if m.save_wanted is not None:
        return _begin_save(turn, m.save_wanted)
    held = {server.rank: m.nodes[server.node] for server in m.current.servers}
    if [seat.node for seat in seats_for(m.goal, held, ())] == [held[rank].id for rank in sorted(held)]:
        return False
    _begin_resize(turn, Kind.RESIZE, _what_changes(m))
    return True


def _begin_resize(turn: Turn, kind: Kind, reason: str) -> None:
    """Launch what the goal needs beyond what is there. Nobody else notices yet."""
    m = turn.m
    current = m.current.servers if m.current is not None else ()
    held = {server.rank: m.nodes[server.node] for server in current}
    named = {server.node for server in current}
    spare = [node for name, node in m.nodes.items() if name not in named and name not in m.removing]
    seats = seats_for(m.goal, held, spare)
    turn.m = replace(m, change=Change(kind=kind, phase=Phase.LAUNCHING, since=turn.now, reason=reason, goal=m.goal))
    turn.say(reason)
    missing = [seat for seat in seats if seat.node is None]
    new = iter(turn.launch(((seat.rank, seat.resource, seat.avoid) for seat in missing), reason))
    taken = {seat.rank: next(new) if seat.node is None else seat.node for seat in seats}
    turn.m = replace(turn.m, change=replace(turn.change, seats=taken))


def _begin_given(turn: Turn) -> bool:
    """Use the servers that the platform has launched, if they are others than those of the current version."""
    m = turn.m
    seats = given_seats(m) if m.granted is not None and not m.rests else {}
    held = {} if m.current is None else {server.rank: server.node for server in m.current.servers}
    if not seats or seats == held:
        return False
    gone = sorted(set(held.values()) - (m.nodes.keys() - m.removing))
    if gone:
        roll_back(turn, f"{', '.join(gone)} ended while the job rested")
        turn.m = turn.m if turn.m.change is None else replace(turn.m, change=replace(turn.change, seats=seats))
        return True
    kind = Kind.START if m.current is None else Kind.RESIZE
    reason = f"the job starts with {_count(len(seats))}" if m.current is None else _what_is_given(held, seats)
    change = Change(kind=kind, phase=Phase.LAUNCHING, since=turn.now, reason=reason, goal=m.goal, seats=seats)
    turn.m = replace(m, change=change)
    turn.say(reason)
    return True


def aim(turn: Turn) -> None:
    """Where the platform launches servers: aim at what it gives. A change that nobody has noticed yet is begun again if
    it would lead elsewhere."""
    m = turn.m
    if m.granted is None:
        return
    count = min(max(ranks_given(m), 1), m.settings.max_servers)
    m = turn.m = replace(m, goal=replace(m.goal, count=count, victims=m.granted.victims), retry_at=None)
    change = m.change
    if change is None or change.phase is not Phase.LAUNCHING:
        return
    if change.kind is Kind.ROLLBACK:
        if not m.nodes.keys() >= set(change.seats.values()):  # they ended while the job rested
            turn.m = replace(m, change=replace(change, seats=given_seats(m)))
    elif given_seats(m) != change.seats:
        turn.say(f"given up before anybody noticed: {change.reason}, because the platform gives others")
        turn.m = replace(m, change=None)


def _begin_save(turn: Turn, reason: str) -> bool:
    if turn.m.fuzzy_wanted:
        return _begin_fuzzy(turn, reason)
    m = replace(turn.m, save_wanted=None)
    change = Change(kind=Kind.SAVE, phase=Phase.DRAINING, since=turn.now, reason=f"a checkpoint: {reason}", goal=m.goal)
    turn.m = replace(m, change=change)
    turn.halt(change.reason)
    return True


def _begin_fuzzy(turn: Turn, reason: str) -> bool:
    """The chief saves while the others train on. It has the number of a barrier all the same."""
    m = replace(turn.m, save_wanted=None, fuzzy_wanted=False, barrier=turn.m.barrier + 1)
    what = f"a fuzzy checkpoint: {reason}"
    change = Change(
        kind=Kind.SAVE, phase=Phase.SAVING, since=turn.now, reason=what, goal=m.goal, barrier=m.barrier, fuzzy=True
    )
    turn.m = replace(m, change=change)
    if m.chief is None or m.trainers[m.chief].active is None:
        abandon(turn, "nobody trains")
    else:
        send_errand(turn)
    return True


def _publish(turn: Turn) -> None:
    """All servers are there: the next version has a number, and trainers prepare for it."""
    cluster = next_cluster(turn.m)
    turn.move(Phase.PREPARING)
    turn.m = replace(turn.m, version=cluster.version, change=replace(turn.change, cluster=cluster, move=0))
    turn.prepare(turn.m.trainers.values())


# Standing still --------------------------------------------------------------------------------------------------


def _is_prepared(m: PSManager) -> bool:
    assert m.change is not None
    assert m.change.cluster is not None
    version = m.change.cluster.version
    return all(t.prepared == version for t in m.trainers.values())


def unprepared(m: PSManager) -> list[NodeId]:
    assert m.change is not None
    assert m.change.cluster is not None
    version = m.change.cluster.version
    return [t.node for t in m.trainers.values() if t.prepared != version]


def undrained(m: PSManager) -> list[NodeId]:
    return [t.node for t in m.trainers.values() if t.active is not None and not t.drained]


def _everybody_stands(turn: Turn) -> None:
    m, change = turn.m, turn.change
    if change.kind is Kind.SAVE:
        if m.chief is None or not any(t.active is not None for t in m.trainers.values()):
            abandon(turn, "nobody trains")
            return
        turn.move(Phase.SAVING)
    else:
        assert change.cluster is not None
        chief = mover(m, change.cluster.version)
        if chief is None:
            again(turn, "all who were prepared are gone")
            return
        if chief != m.chief:
            turn.tell(ChiefIs(chief=chief), m.trainers)
        turn.m = replace(m, chief=chief)
        turn.move(Phase.MOVING)
        turn.m = replace(turn.m, change=replace(turn.change, move=1))
    send_errand(turn)


def send_errand(turn: Turn) -> None:
    word, chief = errand(turn.m), turn.m.chief
    assert word is not None
    assert chief is not None
    turn.tell(word, (chief,))


def commit(turn: Turn) -> None:
    """The state is there: from here on the next version is the one, and everybody who is prepared goes on with it."""
    m, change = turn.m, turn.change
    cluster = change.cluster
    assert cluster is not None
    old = change.old | (m.current.nodes if m.current is not None else frozenset())
    going = [t for t in m.trainers.values() if t.prepared == cluster.version]
    turn.m = replace(m, current=cluster)
    turn.move(Phase.RESUMING)
    turn.m = replace(turn.m, change=replace(turn.change, old=old, awaiting=frozenset(t.node for t in going)))
    begun = (
        replace(t, active=cluster.version, resumed=False, halted=None, drained=False, unreachable=None, doubted=None)
        for t in going
    )
    turn.put(*begun)
    if change.kind is Kind.ROLLBACK or isinstance(cluster.source, FromCheckpoint):
        is_saved = isinstance(cluster.source, FromCheckpoint)
        mark, step = (m.checkpoints[-1].mark, m.checkpoints[-1].step) if is_saved else (Checkpoint(), 0)
        turn.effects.append(RollBackLedger(mark=mark, step=step))
    turn.say(f"version {cluster.version}: {_count(len(cluster.servers))} ({change.reason}){_fuzziness(m, cluster)}")
    turn.tell(Go(version=cluster.version, chief=turn.m.chief or ""), (t.node for t in going))


def _fuzziness(m: PSManager, cluster: PSCluster) -> str:
    """What is to be known of a model that was restored."""
    if not isinstance(cluster.source, FromCheckpoint) or not m.checkpoints[-1].fuzzy:
        return ""
    return (
        f"; its checkpoint of step {cluster.source.step} is fuzzy, saved while training went on: what was trained "
        "meanwhile may be in it in part, and is trained again"
    )


def saved(turn: Turn) -> None:
    """The pause is over: everybody goes on where it stands."""
    awaiting = frozenset(t.node for t in turn.m.trainers.values() if t.halted is not None)
    turn.move(Phase.RESUMING)
    turn.m = replace(turn.m, change=replace(turn.change, awaiting=awaiting))
    turn.release()


def _end(turn: Turn) -> None:
    """Everybody has acknowledged: what the version does not name is swept away."""
    change = turn.change
    if change.kind is not Kind.SAVE:
        assert change.cluster is not None
        turn.tell(Settled(version=change.cluster.version), turn.m.trainers)
        live = {node: wanted for node, wanted in turn.m.goal.resources.items() if node in change.cluster.nodes}
        moves = turn.m.goal.moves & change.cluster.nodes
        turn.m = replace(turn.m, goal=replace(turn.m.goal, resources=live, moves=moves))
    turn.m = replace(turn.m, change=None)


# Giving up -------------------------------------------------------------------------------------------------------


def abandon(turn: Turn, reason: str) -> None:
    """A resize or a save will not be: training goes on as it was. A plan that came meanwhile is next."""
    m, change = turn.m, turn.change
    assert m.current is not None
    assert change.kind in (Kind.RESIZE, Kind.SAVE)
    _withdraw(turn, reason)
    turn.m = replace(turn.m, change=None)
    turn.is_elected = False  # it may have been kept for the sake of the change
    turn.release()
    if change.kind is Kind.SAVE:
        kept = f"the last one is of step {m.checkpoints[-1].step}" if m.checkpoints else "there is none yet"
        turn.m = replace(turn.m, unsaved=m.unsaved and reason)
        turn.say(f"{change.reason} is given up: {reason}; training goes on, and {kept}")
        return
    unused = frozenset(change.seats.values()) - m.current.nodes
    turn.m = replace(turn.m, successors={old: new for old, new in m.successors.items() if new not in unused})
    is_given = m.settings.platform_launches and m.goal.count == change.goal.count
    if m.goal == change.goal or is_given:
        # Nobody asked for anything else since: what is there is what there shall be, until somebody asks again.
        turn.m = replace(turn.m, goal=Goal(count=len(m.current.servers), resource=m.goal.resource))
        turn.m = replace(turn.m, retry_at=turn.now + m.settings.retry_after if is_given else None)
    turn.say(f"given up: {change.reason}, because {reason}; training goes on with {_count(len(m.current.servers))}")


def again(turn: Turn, reason: str) -> None:
    """Somebody whom the next version needs is gone. The next try has another number, so that whatever was written in
    the name of this one is never read. Those who trained go on meanwhile, unless there is nothing to train on."""
    change = turn.change
    if change.kind is Kind.RESIZE and change.attempt >= turn.m.settings.max_attempts:
        abandon(turn, f"{reason}, for the {change.attempt}. time")
        return
    _withdraw(turn, reason)
    if change.phase is not Phase.LAUNCHING:
        turn.move(Phase.LAUNCHING)
    counted = replace(turn.change, cluster=None, attempt=change.attempt + 1, move=0, failing=None, since=turn.now)
    turn.m = replace(turn.m, change=counted)
    if change.kind is Kind.RESIZE:
        turn.release()


def _withdraw(turn: Turn, reason: str) -> None:
    """Tell those who know of it that the published version will not come."""
    cluster = turn.change.cluster
    if cluster is None or turn.change.phase is Phase.RESUMING:
        return
    told = [t for t in turn.m.trainers.values() if t.told == cluster.version]
    turn.tell(Abandon(version=cluster.version, reason=reason), (t.node for t in told))


def roll_back(turn: Turn, reason: str) -> None:
    """A server of the current version has lost its state: whatever else was going on, everybody stops."""
    m = turn.m
    assert m.current is not None
    if m.settings.checkpoint_dir is None or m.settings.fleeting:
        why = m.settings.fleeting or "there is no checkpoint path to restore it from"
        turn.fail(f"{reason}: what it held is lost, and {why}")
        return
    old: frozenset[NodeId] = frozenset()
    if m.change is not None:
        _withdraw(turn, reason)
        old = m.change.old
        if m.change.kind is Kind.RESIZE and m.change.phase is not Phase.RESUMING:
            turn.say(f"put off: {m.change.reason}, because {reason}")
    seats = {server.rank: server.node for server in m.current.servers}
    change = Change(
        kind=Kind.ROLLBACK, phase=Phase.LAUNCHING, since=turn.now, reason=reason, goal=m.goal, seats=seats, old=old
    )
    # What was to be saved is gone.
    turn.m = replace(turn.m, change=change, save_wanted=None, fuzzy_wanted=False)
    to = f"step {m.checkpoints[-1].step}" if m.checkpoints else "the beginning, for nothing was saved yet"
    turn.say(f"{reason}: back to {to}")
    turn.put(*(replace(t, unreachable=None, doubted=None) for t in turn.m.trainers.values()))
    turn.halt(reason)


def reseat(turn: Turn, lost: NodeId, rank: int, reason: str, avoid: frozenset[str]) -> None:
    """Another node takes the rank of one that is gone, with what that one should have had."""
    spare = _spare(turn.m, lost, rank)
    if spare is not None:
        seated = replace(turn.m.nodes[spare], seat=rank)
        seats = {**turn.change.seats, rank: spare}
        turn.m = replace(turn.m, nodes={**turn.m.nodes, spare: seated}, change=replace(turn.change, seats=seats))
        return
    resource = overlaid(turn.m.nodes[lost].resource, turn.m.goal.resources.get(lost))
    avoid = avoid | turn.m.nodes[lost].avoid_hosts
    (node,) = turn.launch([(rank, resource, avoid)], reason)
    turn.m = replace(turn.m, change=replace(turn.change, seats={**turn.change.seats, rank: node}))


def _spare(m: PSManager, lost: NodeId, rank: int) -> NodeId | None:
    """A node that the platform has launched for the rank and that nobody uses. Who joined by itself came for any."""
    if not m.settings.platform_launches or m.change is None:
        return None
    used = frozenset(m.change.seats.values()) | m.removing | {lost}
    if m.settings.servers_join:
        used |= (m.current.nodes if m.current is not None else frozenset()) | m.unsure
        used |= m.granted.victims if m.granted is not None else frozenset()
    free = [node for name, node in m.nodes.items() if name not in used]
    free = [node for node in free if node.seat == rank or m.settings.servers_join]
    return max(free, key=lambda node: node.number).id if free else None


def do_without(turn: Turn, nodes: Collection[NodeId], reason: str) -> None:
    """Nobody comes for these ranks of the next version: those that are there have to do, if there are any."""
    seats = {rank: node for rank, node in turn.change.seats.items() if node not in nodes}
    if seats:
        turn.say(f"{reason}: {_count(len(seats))} go on without" if len(seats) > 1 else f"{reason}: 1 goes on without")
        turn.m = replace(turn.m, change=replace(turn.change, seats=seats, since=turn.now))
        turn.remove(nodes, reason)


# In the background -----------------------------------------------------------------------------------------------


def _admit(turn: Turn) -> None:
    """Trainers that wait come in: to the version that is being prepared, or, if nothing is, to the one that trains."""
    m = turn.m
    if m.change is not None and m.change.phase is Phase.PREPARING:
        assert m.change.cluster is not None
        turn.prepare([t for t in m.trainers.values() if t.told != m.change.cluster.version])
    elif may_join(m) and (waiting := [t for t in m.trainers.values() if t.active is None]):
        assert m.current is not None
        version = m.current.version
        turn.prepare([t for t in waiting if t.told != version])
        ready = [t for t in waiting if t.prepared == version]
        turn.put(*(replace(t, active=version, resumed=False, halted=None, drained=False) for t in ready))
        turn.tell(Go(version=version, chief=turn.m.chief or ""), (t.node for t in ready))


def _sweep(turn: Turn) -> None:
    """End the servers that no version needs: neither the current one, nor the next, nor, as long as somebody may use
    it, the one before."""
    m = turn.m
    needed: frozenset[NodeId] = m.current.nodes if m.current is not None else frozenset()
    if m.change is not None:
        needed |= frozenset(m.change.seats.values()) | m.change.old
    unneeded = [node for node in m.nodes if node not in needed and node not in m.removing]
    if m.settings.platform_launches:
        unneeded = superfluous(m, needed)
    turn.remove(unneeded, f"no version names {', '.join(unneeded)} any more")


def _what_changes(m: PSManager) -> str:
    assert m.current is not None
    before = len(m.current.servers)
    if m.goal.count != before:
        return f"from {before} to {_count(m.goal.count)}"
    moved = sorted(m.goal.moves & m.current.nodes - m.goal.resources.keys())
    changed = sorted(node for node in m.goal.resources if node in m.current.nodes)
    what = [f"{', '.join(changed)} to other resources"] if changed else []
    return " and ".join([*what, *([f"{', '.join(moved)} to another host"] if moved else [])])


def _what_is_given(held: Mapping[int, NodeId], seats: Mapping[int, NodeId]) -> str:
    if len(held) != len(seats):
        return f"from {len(held)} to {_count(len(seats))}"
    moved = [
        f"{seats[rank]} in the place of {node}" for rank, node in held.items() if seats.get(rank) not in (None, node)
    ]
    return ", ".join(moved) or f"other ranks: {', '.join(map(str, seats))}"


def _count(servers: int) -> str:
    return "1 parameter server" if servers == 1 else f"{servers} parameter servers"
