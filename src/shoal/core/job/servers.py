"""The job's parameter servers: what happens to its nodes goes to the `PSManager`, and what that wants is done here.

The manager decides about versions, barriers and who is chief (`shoal.core.ps`). The job decides who may be started
again and what that costs (`failures`), how many workers there are (`members`), and keeps the ledger. So three things
meet here and nowhere else:

- nodes of servers, workers, chief and evaluator are of the job (`Job.nodes`), and in no world;
- a checkpoint's mark is the ledger's at the moment when everybody stands still; going back puts both back at once;
- no shard is leased to a worker that may not train: what it held would be void when it goes on.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import assert_never

import msgspec

from shoal.core import ledger as ledgers
from shoal.core.errors import BadInput
from shoal.core.job.pauses import timed, words
from shoal.core.job.turn import Turn
from shoal.core.job.values import (
    Job,
    JobSettings,
    JobSpec,
    KillProcesses,
    LeaveNode,
    SayWord,
    Scale,
    ServersGranted,
    WordSaid,
)
from shoal.core.ledger import Wake
from shoal.core.nodes import Node, NodeId, NodeStatus, Role
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan, ScalePlan
from shoal.core.ps import evaluation, manager, platform
from shoal.core.ps.evaluation import Evaluated, Evaluation
from shoal.core.ps.manager import Turned
from shoal.core.ps.values import (
    CheckpointKept,
    FailJob,
    Granted,
    Kind,
    PSManager,
    PSSettings,
    RefuseTrainer,
    RestartTrainer,
    RollBackLedger,
    Say,
    Tell,
)
from shoal.core.ps.values import Scale as ScaleServers
from shoal.core.ps.words import EvaluatorReady, Save, Scored, ServerReady, ToNode
from shoal.core.resources import overlaid
from shoal.core.rounds import node_of
from shoal.core.view import PSChangeView

TRAINERS = frozenset({Role.WORKER, Role.CHIEF})


def settings_of(spec: JobSpec, settings: JobSettings) -> PSSettings:
    assert spec.ps is not None
    return PSSettings(
        min_servers=spec.ps.min_servers,
        # Where the platform says how many there are, its grant is the limit, and may grow beyond what was said.
        max_servers=sys.maxsize if spec.platform_grows else spec.ps.max_servers,
        checkpoint_dir=spec.ps.checkpoint_dir,
        fleeting=spec.ps.fleeting,
        launch_timeout=settings.pending_timeout,
        platform_launches=spec.platform_grows and not spec.fills_grant,
        servers_join=spec.ps.joins,
        unreachable_after=settings.suspect_after,
        restore_patience=settings.suspect_after_restart + settings.heartbeat,
    )


def begin(turn: Turn) -> None:
    """Launch the servers of a job that has them."""
    spec, before = turn.job.spec.ps, turn.job.servers
    if spec is None:
        return
    settings = settings_of(turn.job.spec, turn.job.settings)
    if before is None:
        follow(turn, manager.new_manager(settings, servers=spec.first, now=turn.now))
    else:
        turn.job = replace(turn.job, servers=None)
        follow(turn, manager.resumed(before, settings, servers=spec.first, now=turn.now))


def resumed(job: Job, before: Job) -> Job:
    """A job of which nothing runs any more, about to begin again. The first version will put the data back to where its
    checkpoint stood; if there is none, no model has seen anything."""
    old = before.servers
    if job.spec.ps is None or old is None:
        return job
    book = job.ledger if old.checkpoints else ledgers.restored(job.ledger, ledgers.Checkpoint())[0]
    unscored = replace(before.evaluation, evaluator=None, is_last=False)
    return replace(job, servers=old, ledger=book, evaluation=unscored)


def announced(turn: Turn, nodes: Sequence[Node], replaces: Mapping[NodeId, NodeId]) -> None:
    """The platform has launched these servers by itself, some in the place of others."""
    m = turn.job.servers
    if m is not None and m.settings.platform_launches and nodes:
        follow(turn, platform.servers_announced(m, nodes, replaces=replaces, now=turn.now))


def granted(turn: Turn, said: ServersGranted) -> None:
    """The platform wants so many servers: those that it has launched, or that we launch where it launches none."""
    m = turn.job.servers
    if m is None or turn.is_ending:
        return
    if m.settings.platform_launches:
        wanted = Granted(most=said.count if said.are_too_many else None, victims=said.victims)
        follow(turn, platform.servers_granted(m, wanted, now=turn.now))
    elif said.count > 0:
        plan = ResourcePlan(
            node_group_resources={Role.PS: NodeGroupResource(count=said.count)},
            reason=f"{said.count} parameter servers are granted",
        )
        follow(turn, manager.planned(m, plan, victims=said.victims, now=turn.now))


def sized(turn: Turn, resource: NodeResource) -> None:
    """Servers that are launched from now on have this; those that are there keep what they have."""
    m = turn.job.servers
    if m is not None:
        goal = replace(m.goal, resource=overlaid(m.goal.resource, resource))
        turn.job = replace(turn.job, servers=replace(m, goal=goal))


# Servers that join by themselves ---------------------------------------------------------------------------------


def place_for_newcomer(turn: Turn) -> Node:
    """A server joins by itself: in the place of one that was lost, if somebody is waited for, else in another."""
    m = turn.job.servers
    assert m is not None
    awaited = [n for n in turn.job.nodes.values() if _is_awaited(n)]
    if awaited:
        node = replace(min(awaited, key=lambda n: (n.seat, n.number)), external=True)
        turn.put(node)
    else:
        taken = {n.seat for n in turn.job.nodes.values() if n.is_live and n.role is Role.PS}
        node = Node(
            role=Role.PS,
            number=m.next_number,
            seat=next(seat for seat in range(len(taken) + 1) if seat not in taken),
            status=NodeStatus.PENDING,
            since=turn.now,
            reason="it joined by itself",
            external=True,
        )
        turn.put(node)
        turn.job = replace(turn.job, servers=replace(m, next_number=node.number + 1))
    return node


def _has_joined(turn: Turn, node: Node) -> None:
    announced(turn, (node,), {})
    assert turn.job.servers is not None
    follow(turn, platform.server_unsure(turn.job.servers, node.id, is_unsure=False, now=turn.now))
    regranted(turn)


def _is_awaited(node: Node) -> bool:
    """Whether it is one that the manager has asked for and that nobody has joined as."""
    is_new = node.status is NodeStatus.PENDING and not node.external
    return is_new and node.role is Role.PS and not node.is_released


def going(turn: Turn, node: Node) -> None:
    """A server was told to end. It stays until the others have taken over what it holds."""
    if turn.is_ending or node.role is not Role.PS or node.is_going or node.is_released or not _joins(turn.job):
        return
    turn.put(replace(node, is_going=True))
    turn.say(f"{node.id} has to go: it stays until no version needs it")
    regranted(turn)


def regranted(turn: Turn) -> None:
    """Use all servers that have joined, but for those that have to go. If all of them have to, whoever joins next takes
    over; if nobody trains there is nothing to take over, and they may go at once."""
    job, m = turn.job, turn.job.servers
    if m is None or turn.is_ending or not _joins(job):
        return
    there = [n for n in job.nodes.values() if n.is_live and n.role is Role.PS and not n.is_released]
    there = [n for n in there if not _is_awaited(n)]  # nobody may ever join as one of them
    leaving = [n for n in there if n.is_going]
    staying = len(there) - len(leaving)
    assert job.spec.ps is not None
    if m.granted is None and sum(n.status is NodeStatus.RUNNING for n in there) < job.spec.ps.first:
        return  # the first version has as many as are the least
    if leaving and not staying and not any(n.is_live and n.role in TRAINERS for n in job.nodes.values()):
        follow(turn, platform.servers_dismissed(m, "they have to go, and nobody trains", now=turn.now))
    elif there:
        most = staying if leaving and staying else None
        victims = frozenset(n.id for n in leaving)
        follow(turn, platform.servers_granted(m, Granted(most=most, victims=victims), now=turn.now))


def _joins(job: Job) -> bool:
    return job.spec.ps is not None and job.spec.ps.joins


def out_of_touch(turn: Turn, node: Node) -> None:
    m = turn.job.servers
    if m is not None and node.role is Role.PS and not turn.is_ending:
        follow(turn, platform.server_unsure(m, node.id, is_unsure=True, now=turn.now))


def _reseated(job: Job) -> Job:
    """The job, knowing who has taken the place of another."""
    assert job.servers is not None
    moved = {
        name: replace(job.nodes[name], seat=known.seat)
        for name, known in job.servers.nodes.items()
        if name in job.nodes and job.nodes[name].seat != known.seat
    }
    return replace(job, nodes={**job.nodes, **moved}) if moved else job


# Rest ------------------------------------------------------------------------------------------------------------


def saves_before_rest(turn: Turn) -> bool:
    """The job is to rest. Whether its workers go when what they have trained is saved, and not at once."""
    m = turn.job.servers
    if m is None or turn.is_ending:
        return False
    follow(turn, manager.save_first(m, "the job is to rest", now=turn.now))
    return is_saving(turn.job)


def is_saving(job: Job) -> bool:
    return manager.is_saving(job.servers)


def _rest(turn: Turn) -> None:
    """All is saved that can be, or the save was given up: the workers go."""
    reason = "the job rests"
    workers = [n for n in turn.job.nodes.values() if n.is_live and n.role is Role.WORKER and not n.is_released]
    gone = release(turn, workers, reason)
    if gone:
        turn.effects.append(Scale(plan=ScalePlan(remove_nodes=gone, reason=reason)))


def grants_news(job: Job, said: ServersGranted) -> bool:
    """Whether it is something else than was said before."""
    m = job.servers
    if m is None:
        return False
    if m.settings.platform_launches:
        return m.granted != Granted(most=said.count if said.are_too_many else None, victims=said.victims)
    return said.count not in (0, m.goal.count)


def follow(turn: Turn, turned: Turned) -> None:
    """Take the next manager over and do what it wants done."""
    m, effects = turned
    before, told = turn.job.servers, turn.job.changes
    turn.job = replace(turn.job, servers=m, changes=timed(told, before, m, turn.now))
    if m.settings.servers_join:
        turn.job = _reseated(turn.job)
    unstarted: list[Node] = []
    for effect in effects:
        match effect:
            case Tell(to=to, word=word):
                turn.tell(SayWord(word=_marked(turn.job, word)), *to)
            case ScaleServers(plan=plan):
                unstarted += _scale(turn, plan)
            case RestartTrainer(node=node, reason=reason):
                kill(turn, node, reason)
            case RefuseTrainer(node=node, reason=reason):
                turn.refused[node] = reason
            case RollBackLedger(mark=mark, step=step):
                _roll_back(turn, mark, step)
            case CheckpointKept(checkpoint=checkpoint):
                if turn.job.spec.ps is not None and turn.job.spec.ps.evaluator:
                    _evaluate(turn, evaluation.kept(turn.job.evaluation, checkpoint))
            case Say(reason=reason):
                turn.say(reason)
            case FailJob():
                pass  # `settle` sees that it has failed
            case _:
                assert_never(effect)
    _tell_costs(turn, told)
    for gone in unstarted:
        server_lost(turn, gone, gone.reason)
    if manager.is_saving(before) and not is_saving(turn.job) and turn.job.is_suspended:
        _rest(turn)


def _tell_costs(turn: Turn, before: tuple[PSChangeView, ...]) -> None:
    """A change that has ended is worth a line, but for the many pauses for a checkpoint."""
    if turn.job.changes is before or not before or before[-1].outcome is not None:
        return
    change = next((c for c in turn.job.changes[-2:] if c.at == before[-1].at and c.kind == before[-1].kind), None)
    if change is not None and change.outcome == "done" and change.kind != Kind.SAVE:
        turn.say(words(change))


def _marked(job: Job, word: ToNode) -> ToNode:
    """Everybody stands still when a model is saved, and has reported all it trained: the ledger stands where the model
    does. For a fuzzy one nobody does: what was reported until now is in the model, and perhaps more."""
    if not isinstance(word, Save):
        return word
    return msgspec.structs.replace(word, mark=ledgers.checkpoint(job.ledger), needed=_needed(job))


def _needed(job: Job) -> tuple[str, ...]:
    """Checkpoints that must not be deleted: the one that the job would go back to now, and those yet to be scored."""
    assert job.servers is not None
    last = (checkpoint.path for checkpoint in job.servers.checkpoints[-1:])
    return tuple(sorted({*last, *job.evaluation.needed}))


def _scale(turn: Turn, plan: ScalePlan) -> list[Node]:
    """Ask for the new servers; let those go that are not needed. Returns those that never began, and are gone."""
    for node in plan.launch_nodes:
        turn.put(node)
    going = [turn.job.nodes[node.id] for node in plan.remove_nodes]
    waiting = release(turn, going, plan.reason)
    if plan.launch_nodes or waiting:
        # Whom these replace is told by who is launched; a platform is asked to replace nobody beside that.
        turn.effects.append(Scale(plan=replace(plan, remove_nodes=waiting, migrate_nodes=())))
    return list(waiting)


def release(turn: Turn, nodes: Iterable[Node], reason: str) -> tuple[Node, ...]:
    """Let nodes go whose end is no loss: those that run are told to, the others are gone at once, and returned."""
    gone = []
    for node in nodes:
        if not node.is_live:
            continue
        turn.put(replace(node, relaunchable=False, is_released=True))
        if node.status is NodeStatus.RUNNING:
            turn.tell(LeaveNode(reason=reason, grace=turn.job.settings.grace), node.id)
        else:
            turn.move(node.id, NodeStatus.DELETED, reason)
            gone.append(turn.job.nodes[node.id])
    return tuple(gone)


def kill(turn: Turn, node: NodeId, reason: str) -> None:
    """Its process does not answer. When it is gone it is started again, as after any hang."""
    known = turn.job.nodes.get(node)
    if known is None or known.status is not NodeStatus.RUNNING:
        return
    if (node, known.incarnation, 0) in turn.job.hanging:
        return  # it has been told to die; its exit is on the way
    turn.say(reason)
    turn.job = replace(turn.job, hanging=turn.job.hanging | {(node, known.incarnation, 0)})
    turn.tell(KillProcesses(incarnation=known.incarnation, local_ranks=(0,), reason=reason), node)


def _roll_back(turn: Turn, mark: ledgers.Checkpoint, step: int) -> None:
    """Steps since then were not made, as far as the model goes: what is reported from here on is progress."""
    gain = turn.job.gain
    if gain.step is not None:
        turn.job = replace(turn.job, gain=replace(gain, step=step, samples=None, metrics={}, speed=(), at=turn.now))
    try:
        turn.take(*ledgers.restored(turn.job.ledger, mark))
    except BadInput as exc:
        reason = f"the data cannot go back to where the model was saved: {exc}"
        assert turn.job.servers is not None
        turn.job = replace(turn.job, servers=replace(turn.job.servers, failed=reason, change=None))


# What is said ----------------------------------------------------------------------------------------------------


def said(turn: Turn, event: WordSaid, node: Node) -> None:
    m, word = turn.job.servers, event.word
    if m is None or turn.is_ending or (node.is_released and node.role is Role.PS):
        return
    match word:
        case ServerReady(address=address):
            if node.role is Role.PS:
                follow(turn, manager.server_ready(m, node.id, event.incarnation, address, now=turn.now))
        case EvaluatorReady():
            if node.role is Role.EVALUATOR:
                _evaluate(turn, evaluation.ready(turn.job.evaluation, node.id, event.incarnation))
        case Scored(path=path, metrics=metrics):
            _evaluate(turn, evaluation.scored(turn.job.evaluation, node.id, event.incarnation, path, metrics))
        case _:
            if node.role in TRAINERS:
                follow(turn, manager.heard(m, node.id, event.incarnation, node.role, word, now=turn.now))


def _evaluate(turn: Turn, evaluated: Evaluated) -> None:
    now, word = evaluated
    _tell_passed_over(turn, turn.job.evaluation, now)
    scored = now.scores is not turn.job.evaluation.scores
    turn.job = replace(turn.job, evaluation=now)
    if scored and turn.job.scores_awaited is not None:
        turn.job = replace(turn.job, scores_awaited=turn.now)
    if word is not None and now.evaluator is not None:
        turn.tell(SayWord(word=word), now.evaluator)


def _tell_passed_over(turn: Turn, before: Evaluation, now: Evaluation) -> None:
    if now.passed_over > before.passed_over:
        steps = ", ".join(f"{c.step}" for c in before.waiting if c not in now.waiting)
        turn.say(f"the checkpoint of step {steps} will not be scored: {len(now.waiting)} others wait for the evaluator")


# Nodes -----------------------------------------------------------------------------------------------------------


def joined(turn: Turn, node: Node) -> None:
    """A node's agent has registered, or is back."""
    m = turn.job.servers
    assert m is not None
    if node.is_released:
        turn.tell(LeaveNode(reason=node.reason, grace=turn.job.settings.grace), node.id)
    if (node.id, node.incarnation, 0) in turn.job.hanging:
        reason = f"{node.id} did not answer"
        turn.tell(KillProcesses(incarnation=node.incarnation, local_ranks=(0,), reason=reason), node.id)
    elif node.role is Role.PS:
        follow(turn, manager.server_running(m, node.id, host=node.host, now=turn.now))
        if _joins(turn.job):
            _has_joined(turn, node)
    elif node.role in TRAINERS:
        follow(turn, manager.returned(m, node.id, now=turn.now))
    if node.role is Role.PS:
        assert turn.job.servers is not None
        follow(turn, platform.server_unsure(turn.job.servers, node.id, is_unsure=False, now=turn.now))


def process_down(turn: Turn, node: Node, reason: str) -> None:
    """A node's process has ended, and another is started there."""
    m = turn.job.servers
    if m is None or turn.is_ending:
        return
    if node.role is Role.PS:
        follow(turn, manager.server_down(m, node.id, reason=reason, now=turn.now))
    elif node.role is Role.EVALUATOR:
        turn.job = replace(turn.job, evaluation=evaluation.gone(turn.job.evaluation, node.id))
    else:
        follow(turn, manager.trainer_gone(m, node.id, reason=reason, now=turn.now))


def node_gone(turn: Turn, node: Node, reason: str) -> None:
    """A node has ended, well or not. Of a server that was needed `server_lost` tells, when it is known whether another
    may take its rank."""
    if turn.job.servers is None or turn.is_ending:
        return
    if node.role is not Role.PS:
        process_down(turn, node, reason)
        regranted(turn)
    elif node.is_released:
        server_lost(turn, node, reason)


def is_needed(job: Job, node: Node) -> bool:
    """Whether it is a server that nobody has let go: that it ends is a loss, however it ended."""
    return job.servers is not None and node.role is Role.PS and not node.is_released


def state_gone(turn: Turn, node: Node, reason: str) -> None:
    """A server is gone, and nobody knows yet how it ended: those who train on it need not wait to hear that."""
    m = turn.job.servers
    if m is not None and m.current is not None and node.id in m.current.nodes:
        process_down(turn, node, reason)


def server_lost(
    turn: Turn,
    node: Node,
    reason: str,
    *,
    resource: NodeResource | None = None,
    avoid: frozenset[str] = frozenset(),
) -> None:
    """A server's node is gone. If it is needed, the manager has another take its rank."""
    m = turn.job.servers
    if m is not None and not turn.is_ending:
        follow(turn, manager.server_lost(m, node.id, reason=reason, resource=resource, avoid=avoid, now=turn.now))
        if node.is_going:
            _nobody_follows(turn, node)
        regranted(turn)


def _nobody_follows(turn: Turn, lost: Node) -> None:
    """One that had to go did not last until it was let go. Nobody is started in its place."""
    m = turn.job.servers
    assert m is not None
    absent = [n.id for n in turn.job.nodes.values() if _is_awaited(n) and n.seat == lost.seat]
    reason = f"{lost.id} had to go, and nobody comes in its place"
    follow(turn, platform.not_followed(m, absent, reason=reason, now=turn.now))


# Data ------------------------------------------------------------------------------------------------------------


def may_have_data(job: Job, node: NodeId) -> bool:
    """Whether shards may be leased to a node. A worker gets none before it has said that it goes on: what it was given
    in between it would drop, should it have to go back with the others."""
    if job.servers is None or (known := job.nodes.get(node)) is None or known.role not in TRAINERS:
        return True
    trainer = job.servers.trainers.get(node)
    return trainer is not None and trainer.active is not None and trainer.resumed and trainer.halted is None


def held_back(turn: Turn, wake: Wake) -> None:
    turn.job = replace(turn.job, held=tuple(dict.fromkeys((*turn.job.held, wake))))


def _wake(turn: Turn) -> None:
    """Who was held back and may train now asks again."""
    job = turn.job
    if not job.held:
        return
    ready = tuple(wake for wake in job.held if may_have_data(job, node_of(wake.owner)))
    nodes = {wake: job.nodes.get(node_of(wake.owner)) for wake in job.held if wake not in ready}
    waiting = tuple(wake for wake, node in nodes.items() if node is not None and node.is_live)
    if len(waiting) < len(job.held):
        turn.job = replace(job, held=waiting)
        turn.take(turn.job.ledger, ready)


# Time ------------------------------------------------------------------------------------------------------------


def tick(turn: Turn, stepped: Mapping[NodeId, datetime]) -> None:
    """`stepped`: when each worker was last known to train, or to have nothing to do."""
    m = turn.job.servers
    if m is None or turn.is_ending:
        return
    follow(turn, manager.ticked(m, now=turn.now, stepped=stepped))


def put_off(turn: Turn) -> None:
    """What was to be said is not said yet: the time for answers begins anew."""
    if turn.job.servers is not None and not turn.is_ending:
        turn.job = replace(turn.job, servers=manager.put_off(turn.job.servers, now=turn.now))


def deadline(job: Job) -> datetime | None:
    return None if job.servers is None else manager.deadline(job.servers)


def taken_over(job: Job, now: datetime) -> PSManager | None:
    """As another master goes on with it. What the platform has not heard it is told when it says what there is."""
    if job.servers is None:
        return None
    m = manager.taken_over(job.servers, now=now)[0]
    return replace(m, unsure=frozenset(m.nodes.keys() & job.seen.keys())) if m.settings.servers_join else m


def settle(turn: Turn) -> None:
    _wake(turn)


def training_over(turn: Turn) -> None:
    """The evaluator scores what is left, and ends."""
    if not turn.job.evaluation.is_last:
        turn.job = replace(turn.job, scores_awaited=turn.now)
        _evaluate(turn, evaluation.over(turn.job.evaluation))


def is_evaluated(job: Job, now: datetime) -> bool:
    """Whether nobody has anything left to score, or nobody has scored anything for so long that nobody will."""
    there = any(n.is_live and n.role is Role.EVALUATOR for n in job.nodes.values())
    since = job.scores_awaited
    is_late = since is not None and now - since >= job.settings.pending_timeout
    return not there or job.evaluation.is_done or is_late
