"""The job's data: its ledger, as part of everything else that happens to the job.

Agents come in rounds (`rounds`); nodes that are gone give back what their processes held; time gives away what is
overdue; in the ordered mode the account follows the steps that rank 0 reports, and where a world deals shards itself,
what its source says. A poisoned dataset fails the job, by name. Whoever waits and can go on is told so, on whichever
node it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from shoal.core import ledger as ledgers
from shoal.core.errors import BadInput
from shoal.core.job import failures, servers
from shoal.core.job.turn import Turn
from shoal.core.job.values import DataAnswered, DataAsked, Job, Tell
from shoal.core.ledger import Ask, Lease, Ledger, Owner, Verdict, Wake
from shoal.core.nodes import NodeId, NodeStatus
from shoal.core.rounds import DatasetRefusal, Departure, Extent, Given, Holding, Restore, Round, RoundAnswer, node_of
from shoal.core.view import DatasetView


def asked(turn: Turn, event: DataAsked) -> None:
    """A round of one agent: hear all it says, then answer it. Words for other nodes' processes do not count."""
    heard, first = _own(event.round, event.node), len(turn.effects)
    unusable: list[DatasetRefusal] = []
    void: list[tuple[Owner, str, int]] = []
    given: list[Given] = []
    for spec in heard.specs:
        try:
            turn.job = replace(turn.job, ledger=ledgers.registered(turn.job.ledger, spec))
        except BadInput as exc:
            unusable.append(DatasetRefusal(dataset=spec.name, reason=str(exc)))
    for extent in heard.extents:
        try:
            turn.take(*_extended(turn.job.ledger, extent))
        except BadInput as exc:
            unusable.append(DatasetRefusal(dataset=extent.dataset, reason=str(exc)))
    for stand in heard.stands:
        try:
            book = ledgers.stood(turn.job.ledger, stand.mark, generation=stand.generation, step=stand.step)
        except BadInput as exc:
            unusable.append(DatasetRefusal(dataset=stand.mark.spec.name, reason=str(exc)))
        else:
            turn.take(book, ())
    if heard.roll_call:
        _called(turn, event.node, {claim.owner for claim in heard.holding})
    for claim in heard.holding:
        void += _reunited(turn, claim)
    contradicted = {refusal.dataset for refusal in unusable}
    for wish in heard.asks:
        stands = not servers.may_have_data(turn.job, event.node)
        held_back = (turn.job.reunion is not None or stands) and wish.want > 0
        # Who means another dataset by that name would train other records than are counted.
        ask = replace(wish, want=0) if held_back or wish.dataset in contradicted else wish
        try:
            book, said = ledgers.exchange(turn.job.ledger, ask, turn.now)
        except BadInput as exc:
            unusable.append(DatasetRefusal(dataset=ask.dataset, reason=str(exc)))
            continue
        _progressed(turn, ask)
        turn.take(book, said.woken)
        given.append(
            Given(
                owner=ask.owner,
                dataset=ask.dataset,
                verdict=_held_back(turn, ask) if held_back and said.verdict is Verdict.GO else said.verdict,
                leases=said.leases,
                refused=said.refused,
                reason=said.reason,
            )
        )
    for departure in heard.departed:
        _departed(turn, departure)
    refused = tuple(_restored(turn, event.node, heard.restores))
    answer = RoundAnswer(
        number=event.round.number,
        unusable=tuple(unusable),
        void=tuple(void),
        given=tuple(given),
        refused=refused,
        mark=ledgers.checkpoint(turn.job.ledger) if heard.marks else None,
    )
    # Before all wakes that the round brought about: who is told to wait must not have been woken already.
    turn.effects.insert(first, Tell(to=(event.node,), what=DataAnswered(answer=answer)))


def _held_back(turn: Turn, ask: Ask) -> Verdict:
    """It waits until everybody is back, or until it may train."""
    wake = Wake(ask.owner, ask.dataset)
    if turn.job.reunion is None:
        servers.held_back(turn, wake)
        return Verdict.WAIT
    waiting = dict.fromkeys((*turn.job.reunion.waiting, wake))
    turn.job = replace(turn.job, reunion=replace(turn.job.reunion, waiting=tuple(waiting)))
    return Verdict.WAIT


def heard_from(turn: Turn, node: NodeId) -> None:
    """A node's heartbeat: what it holds, it has said before."""
    reunion = turn.job.reunion
    if reunion is not None and node in reunion.missing:
        turn.job = replace(turn.job, reunion=replace(reunion, missing=reunion.missing - {node}))


def reunited(turn: Turn) -> None:
    """Lease again when everybody has been heard, or is known to be gone."""
    reunion = turn.job.reunion
    if reunion is None or any(turn.job.nodes[node].is_live for node in reunion.missing):
        return
    turn.job = replace(turn.job, reunion=None)
    turn.take(turn.job.ledger, reunion.waiting)


def _extended(book: Ledger, extent: Extent) -> tuple[Ledger, tuple[Wake, ...]]:
    extend = ledgers.closed if extent.closed else ledgers.grown
    return extend(book, extent.dataset, extent.partition, extent.until)


def _own(heard: Round, node: NodeId) -> Round:
    return replace(
        heard,
        holding=tuple(claim for claim in heard.holding if node_of(claim.owner) == node),
        departed=tuple(gone for gone in heard.departed if node_of(gone.owner) == node),
        asks=tuple(ask for ask in heard.asks if node_of(ask.owner) == node),
        stands=tuple(stand for stand in heard.stands if node_of(stand.owner) == node),
        restores=tuple(restore for restore in heard.restores if node_of(restore.owner) == node),
    )


def _restored(turn: Turn, node: NodeId, restores: tuple[Restore, ...]) -> Iterable[tuple[Owner, str]]:
    """Go back, or forth, to where a model was saved. Each wish is fulfilled once, however often it is said; one that is
    said no more was heard of, and is forgotten."""
    said = {restore.owner for restore in restores}
    known = {owner: number for owner, number in turn.job.restored.items() if node_of(owner) != node or owner in said}
    if len(known) < len(turn.job.restored):
        turn.job = replace(turn.job, restored=known)
    for restore in restores:
        if turn.job.restored.get(restore.owner, -1) >= restore.number:
            continue
        try:
            book, woken = ledgers.restored(turn.job.ledger, restore.mark)
        except BadInput as exc:
            yield restore.owner, str(exc)
            continue
        turn.job = replace(turn.job, restored={**turn.job.restored, restore.owner: restore.number})
        turn.say(f"{restore.owner} restored a checkpoint: the data goes on from there")
        turn.take(book, woken)


def _reunited(turn: Turn, claim: Holding) -> Iterable[tuple[Owner, str, int]]:
    try:
        book, reunion = ledgers.reconnected(turn.job.ledger, claim.owner, claim.dataset, claim.leases, turn.now)
    except BadInput:  # a master without its predecessor's records knows no such dataset
        return [(claim.owner, claim.dataset, lease.attempt) for lease in claim.leases]
    turn.take(book, reunion.woken)
    return [(claim.owner, claim.dataset, refusal.attempt) for refusal in reunion.refused]


def _called(turn: Turn, node: NodeId, present: set[Owner]) -> None:
    """These are all of a node: what others of it held goes to others. Their agent was lost with them."""
    for owner in _owners(turn.job.ledger):
        if node_of(owner) == node and owner not in present:
            turn.take(*ledgers.lost(turn.job.ledger, owner, charged=False, reason=f"{node} began anew"))


def _owners(book: Ledger) -> list[Owner]:
    """Who holds something or waits for it."""
    return sorted({owner for d in book.dynamic.values() for owner in (*d.held, *d.waiting)})


def _departed(turn: Turn, gone: Departure) -> None:
    turn.take(*ledgers.lost(turn.job.ledger, gone.owner, charged=gone.charged, reason=gone.reason))


def nodes_changed(turn: Turn, before: Job) -> None:
    """Processes of nodes that are no longer live hold nothing any more."""
    if turn.job.nodes is before.nodes or not turn.job.ledger.dynamic:
        return
    for owner in _owners(turn.job.ledger):
        node = turn.job.nodes.get(node_of(owner))
        if node is None or not node.is_live:
            why = "it is unknown" if node is None else node.reason
            turn.take(*ledgers.lost(turn.job.ledger, owner, charged=False, reason=why))


def ticked(turn: Turn) -> None:
    due = ledgers.deadline(turn.job.ledger)
    if due is not None and turn.now >= due:
        turn.take(*ledgers.ticked(turn.job.ledger, turn.now))


def gained(turn: Turn, steps: int) -> None:
    """Rank 0 has committed so many steps: the ordered datasets stand there."""
    for name, known in turn.job.ledger.ordered.items():
        end = ledgers.total_steps(known.spec)
        done = steps if end is None else min(steps, end)
        if done != known.steps and done > 0:
            turn.job = replace(turn.job, ledger=ledgers.rewound(turn.job.ledger, name, done))


def settled(turn: Turn) -> None:
    """A shard that nobody can train ends the job: dropping it silently would be a lie about what the model has seen."""
    if turn.job.ending is None:
        for poison in ledgers.poisons(turn.job.ledger)[:1]:
            failures.fail(turn, poison.reason)


def is_through(job: Job) -> bool:
    """All data is trained, and everybody who trained it has ended: those who were lost on the way left no gap."""
    return (
        bool(job.ledger.dynamic)
        and not any(node.is_live for node in job.nodes.values())
        and any(node.status is NodeStatus.SUCCEEDED for node in job.nodes.values())
        and ledgers.is_complete(job.ledger)
    )


def taken_over(book: Ledger, term: int, now: datetime, until: datetime) -> Ledger:
    """The ledger as a new master takes it on. Nobody could report meanwhile: no lease is overdue before its owner has
    had the time to come back, and then as long as it had anyway."""
    away = until - now
    renewed = {
        name: replace(
            d,
            held={
                owner: {a: replace(lease, deadline=max(lease.deadline, now) + away) for a, lease in mine.items()}
                for owner, mine in d.held.items()
            },
            due=None if d.due is None else max(d.due, now) + away,
        )
        for name, d in book.dynamic.items()
    }
    return ledgers.fenced(replace(book, dynamic=renewed), term)


def views(book: Ledger) -> tuple[DatasetView, ...]:
    found = []
    for name in (*book.ordered, *book.dynamic):
        account = ledgers.account_of(book, name)
        d = book.dynamic.get(name)
        found.append(
            DatasetView(
                name=name,
                epoch=account.epoch,
                done=account.count,
                records=account.line,
                leased=0 if d is None else sum(len(mine) for mine in d.held.values()),
                waiting=0 if d is None else len(d.waiting),
            )
        )
    return tuple(found)


def _progressed(turn: Turn, ask: Ask) -> None:
    """Data that is trained is progress: what went wrong before is behind the job."""
    job, settings = turn.job, turn.job.settings.recovery
    count = _trained(job.ledger.dynamic[ask.dataset].held.get(ask.owner, {}), ask)
    if not count:
        return
    if job.without_progress or job.budgets or job.purses:
        budgets = {seat: budget.forgiven(turn.now, settings) for seat, budget in job.budgets.items()}
        purses = {seat: budget.forgiven(turn.now, settings) for seat, budget in job.purses.items()}
        job = replace(job, without_progress=0, budgets=budgets, purses=purses)
    if job.gain.step is None:  # steps tell more, where there are any
        job = replace(job, gain=replace(job.gain, at=turn.now, samples=(job.gain.samples or 0) + count))
    turn.job = job


def _trained(held: Mapping[int, Lease], ask: Ask) -> int:
    """How many records are news in what an owner reports."""
    done = {report.attempt: report.done for report in ask.progress}
    done |= {attempt: lease.stop - lease.start for attempt in ask.completed if (lease := held.get(attempt)) is not None}
    return sum(max(0, count - held[attempt].done) for attempt, count in done.items() if attempt in held)
