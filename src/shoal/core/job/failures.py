"""What a loss leads to: who is told, who is charged, who comes back, and when the job gives up."""

from dataclasses import replace
from datetime import timedelta

from shoal.core import world
from shoal.core.exits import ExitCause, ProcessExit, cause_of, describe
from shoal.core.hang import (
    GiveWorldUp,
    HangFacts,
    KillCulprits,
    ProcessProgress,
    WarnOfHang,
    decide_hang,
)
from shoal.core.job import servers
from shoal.core.job.members import is_leaving, is_seat_filled, one_fewer, replace_node, staying
from shoal.core.job.turn import Turn, without
from shoal.core.job.values import (
    DumpStacks,
    EarlyErrors,
    Fence,
    Job,
    KillProcesses,
    LeaveNode,
    ProcessExited,
    RestartNode,
    Scale,
    StopNode,
    Unexplained,
)
from shoal.core.nodes import Node, NodeId, NodeStatus, Role
from shoal.core.plans import ScalePlan
from shoal.core.recovery import (
    Budget,
    EndMember,
    FailJob,
    Failure,
    Recovery,
    RelaunchNode,
    RestartProcesses,
    decide_recovery,
)
from shoal.core.view import JobPhase
from shoal.core.world import Break, Standing, WorldMember

_WORTH_KNOWING = frozenset({ExitCause.OOM, ExitCause.HARDWARE, ExitCause.USER_ERROR})
"""What the platform may say of a node that had been given up: other ends may be our own doing, or say nothing."""
_CRITICAL = frozenset({Role.PS, Role.CHIEF, Role.EVALUATOR, Role.MASTER})


# Losses --------------------------------------------------------------------------------------------------


def process_exited(turn: Turn, event: ProcessExited) -> None:
    """A training process ended with something else than success."""
    if event.exit.error and not _is_fallout(turn.job, turn.job.nodes[event.node]):
        turn.job = replace(turn.job, error=event.exit.error)
    if _is_early(turn.job, event.exit) and _is_ranked(turn.job, event.node):
        _hold_back(turn, event)
    else:
        process_lost(turn, event.node, event.local_rank, event.exit)


def process_lost(turn: Turn, node_id: NodeId, local_rank: int, exit: ProcessExit) -> None:
    job = turn.job
    node = job.nodes[node_id]
    hung = (node_id, node.incarnation, local_rank) in job.hanging
    cause = ExitCause.HANG if hung else cause_of(exit)
    detail = (
        f"{_rank_name(job, node_id, local_rank)} {'hung and was killed' if hung else 'ended with ' + describe(exit)}"
    )
    if job.rendezvous.released:
        fail(turn, f"{node_id}: {detail} after training had finished")
        return
    _recover(turn, node, cause, detail, node_lost=False, uptime=timedelta(seconds=exit.uptime_seconds))


def node_lost(turn: Turn, node_id: NodeId, cause: ExitCause, detail: str) -> None:
    """A node is gone: nothing it says counts any more, and its members' world ends."""
    node = turn.job.nodes[node_id]
    turn.effects.append(Fence(node=node_id, reason=f"{node_id} was given up: {detail}"))
    if turn.job.rendezvous.released:
        reason = f"{node_id}: {detail} after training had finished"
        turn.move(node_id, NodeStatus.FAILED, reason)
        fail(turn, reason)
        return
    if is_leaving(turn.job, node_id):
        reason = f"{node_id}: {detail} while it was leaving"
        turn.say(reason)
        _take_out(turn, node, NodeStatus.DELETED, cause, reason)
        turn.effects.append(Scale(plan=ScalePlan(remove_nodes=(node,), reason=reason)))
        return
    if cause is ExitCause.GONE and turn.job.spec.platform_grows and not node.external:
        _await_word(turn, node, detail)
        return
    _recover(turn, node, cause, detail, node_lost=True, uptime=turn.now - node.since)


def _await_word(turn: Turn, node: Node, detail: str) -> None:
    """It is gone, and the others go on without it. It is replaced when the platform has said how it ended: one that ran
    out of memory must come back with more."""
    reason = f"{node.id}: {detail}; the platform will say how it ended"
    turn.say(reason)
    committed = turn.job.rendezvous.committed
    was_fallout = _is_fallout(turn.job, node)
    _take_out(turn, node, NodeStatus.FAILED, ExitCause.GONE, reason)
    servers.state_gone(turn, node, reason)
    lost = Unexplained(
        until=turn.now + turn.job.settings.explained_after,
        detail=detail,
        uptime=turn.now - node.since,
        fallout=was_fallout,
        newcomer=_is_newcomer(turn.job, node),
    )
    turn.job = replace(
        turn.job,
        unexplained={**turn.job.unexplained, node.id: lost},
        fallen=committed.generation if committed is not None else 0,
    )


def explained(turn: Turn, node_id: NodeId, exit: ProcessExit | None) -> None:
    """The platform says how a node ended that had been given up; None: it says nothing, for too long."""
    lost = turn.job.unexplained[node_id]
    turn.job = replace(turn.job, unexplained=without(turn.job.unexplained, node_id))
    if turn.job.ending is not None:
        return
    cause, detail = ExitCause.GONE, lost.detail
    if exit is not None and cause_of(exit) in _WORTH_KNOWING:
        cause, detail = cause_of(exit), f"{lost.detail}; it ended with {describe(exit)}"
        turn.put(replace(turn.job.nodes[node_id], exit_cause=cause))
    _recover(turn, turn.job.nodes[node_id], cause, detail, node_lost=True, uptime=lost.uptime, lost=lost)


def check_explained(turn: Turn) -> None:
    for node, lost in turn.job.unexplained.items():
        if turn.now >= lost.until and not turn.is_ending:
            explained(turn, node, None)


def _recover(
    turn: Turn,
    node: Node,
    cause: ExitCause,
    detail: str,
    *,
    node_lost: bool,
    uptime: timedelta,
    lost: Unexplained | None = None,
) -> None:
    """`lost`: it was taken out of everything when it went, and as it was then it is judged."""
    job = turn.job
    cause = _told(job, node, cause)
    settings = job.settings.recovery
    if job.gain.step is None and uptime >= settings.quick_death:
        turn.job = job = replace(job, without_progress=0)
    budget = _budget(job, node)
    failure = Failure(
        node=node.id,
        cause=cause,
        detail=detail,
        node_lost=node_lost,
        can_replace=not node.external or node.role is Role.PS,  # where servers join, another does
        critical=node.role in _CRITICAL or len(staying(job)) - (lost is None) < job.spec.min_nodes,
        fallout=_is_fallout(job, node) if lost is None else lost.fallout,
        newcomer=_is_newcomer(job, node) if lost is None else lost.newcomer,
        host=node.host,
        memory=node.resource.memory,
        memory_limit=_memory_limit(job, node.role),
        can_share=_can_share(job, node),
    )
    decision = decide_recovery(failure, budget, without_progress=job.without_progress, now=turn.now, settings=settings)
    if not (failure.fallout and cause is ExitCause.USER_ERROR):
        _count(turn, node, budget, decision)
    committed = job.rendezvous.committed
    if lost is None:
        turn.job = replace(turn.job, fallen=committed.generation if committed is not None else 0)
    turn.say(decision.reason)
    match decision:
        case RestartProcesses():
            _restart_processes(turn, node, decision.reason)
        case RelaunchNode():
            _take_out(turn, node, NodeStatus.FAILED, cause, decision.reason)
            if turn.job.servers is not None and node.role is Role.PS:
                _replace_server(turn, node, decision)
            elif is_seat_filled(turn.job, node):
                # By a master before this one, which could not write it down.
                turn.effects.append(Scale(plan=ScalePlan(remove_nodes=(node,), reason=decision.reason)))
            else:
                replace_node(turn, node, decision)
        case EndMember():
            ended_well = cause in (ExitCause.LEFT, ExitCause.SUCCEEDED)
            if not node_lost:
                turn.tell(LeaveNode(reason=decision.reason, grace=job.settings.grace), node.id)
            if turn.job.servers is None or (node.role is Role.WORKER and not node.is_released):
                turn.job = one_fewer(turn.job)
            _take_out(turn, node, NodeStatus.SUCCEEDED if ended_well else NodeStatus.FAILED, cause, decision.reason)
            plan = ScalePlan(remove_nodes=(turn.job.nodes[node.id],), reason=decision.reason)
            turn.effects.append(Scale(plan=plan))
            if node.role is Role.PS:
                servers.server_lost(turn, node, decision.reason)
        case FailJob():
            fail(turn, decision.reason)


def _memory_limit(job: Job, role: Role) -> int | None:
    """MiB that a node may have: what the job's optimizer would stop at is the limit of a relaunch too."""
    known = (job.spec.memory_limit_of(role), None if job.spec.sizing is None else job.spec.sizing.limits.node_memory)
    return min((limit for limit in known if limit is not None), default=None)


def _can_share(job: Job, node: Node) -> bool:
    """Whether there may be more parameter servers than there are, and somebody who asks for them. Who took its place
    with as much memory has shown that it did not help: then nobody does."""
    spec = job.spec
    if spec.ps is None or spec.sizing is None or node.role is not Role.PS or Role.PS in job.sizing.pins:
        return False
    if any(_ran_out_before(node, each) for each in job.nodes.values()):
        return False
    there = [each for each in job.nodes.values() if each.role is Role.PS and each.is_live and not each.is_released]
    return len({node.id, *(each.id for each in there)}) < spec.ps.max_servers


def _ran_out_before(node: Node, other: Node) -> bool:
    """Whether the other had the node's seat before it, and ran out of as much memory."""
    is_before = (other.role, other.seat) == (node.role, node.seat) and other.number != node.number
    return is_before and other.exit_cause is ExitCause.OOM and other.resource.memory == node.resource.memory


def _told(job: Job, node: Node, cause: ExitCause) -> ExitCause:
    """Who trains with parameter servers leaves at every SIGTERM, whoever sent it. Only those that we have let go have
    left; the others were evicted, or somebody has terminated them, and the job still counts on them."""
    is_evicted = cause is ExitCause.LEFT and job.servers is not None and not node.is_released
    return ExitCause.KILLED if is_evicted else cause


def _replace_server(turn: Turn, node: Node, decision: RelaunchNode) -> None:
    """Who takes its rank, if anybody has to, is the manager's to say."""
    turn.effects.append(Scale(plan=ScalePlan(remove_nodes=(turn.job.nodes[node.id],), reason=decision.reason)))
    resource = None if decision.memory is None else replace(node.resource, memory=decision.memory)
    servers.server_lost(turn, node, decision.reason, resource=resource, avoid=decision.avoid)


def refuse(turn: Turn, node_id: NodeId, reason: str) -> None:
    """A worker cannot be in this job, and would not fit any better if it were started again."""
    node = turn.job.nodes[node_id]
    if node.is_live and not turn.is_ending:
        _recover(turn, node, ExitCause.DO_NOT_RESTART, reason, node_lost=False, uptime=turn.now - node.since)


def _is_fallout(job: Job, node: Node) -> bool:
    """A failure has already ended the world that this incarnation is in: it failed because of that."""
    committed = job.rendezvous.committed
    return committed is not None and job.fallen == committed.generation and _ranked(job, node) is not None


def _is_newcomer(job: Job, node: Node) -> bool:
    """Others hold the job's state, and this incarnation never did."""
    if job.servers is not None:
        known = job.servers.trainers.get(node.id)
        return job.servers.current is not None and (known is None or known.active is None)
    committed, ranked = job.rendezvous.committed, _ranked(job, node)
    if committed is None or ranked is None:
        return job.gain.step is not None
    return committed.step is not None and ranked.step is None


def _ranked(job: Job, node: Node) -> WorldMember | None:
    """The node in the committed world, if its present incarnation is in it."""
    committed = job.rendezvous.committed
    ranked = committed.member(node.id) if committed is not None else None
    return ranked if ranked is not None and ranked.incarnation == node.incarnation else None


def _budget(job: Job, node: Node) -> Budget:
    known = job.budgets.get(node.seat) if _is_worker(job, node) else job.purses.get(_purse(node))
    return known or Budget(limit=job.spec.max_restarts)


def _is_worker(job: Job, node: Node) -> bool:
    return job.servers is None or node.role is Role.WORKER


def _purse(node: Node) -> str:
    return f"{node.role}-{node.seat}"


def _count(turn: Turn, node: Node, budget: Budget, decision: Recovery) -> None:
    """Charge what the decision says, once, where it is made."""
    match decision:
        case RestartProcesses(charged=True) | RelaunchNode(charged=True):
            budget = budget.charged(turn.now)
            turn.job = replace(turn.job, without_progress=turn.job.without_progress + 1)
        case RestartProcesses() | RelaunchNode():
            budget = budget.lost(turn.now, turn.job.settings.recovery)
        case EndMember() | FailJob():
            return
    if _is_worker(turn.job, node):
        turn.job = replace(turn.job, budgets={**turn.job.budgets, node.seat: budget})
    else:
        turn.job = replace(turn.job, purses={**turn.job.purses, _purse(node): budget})


def _restart_processes(turn: Turn, node: Node, reason: str) -> None:
    incarnation = node.incarnation + 1
    turn.put(replace(node, incarnation=incarnation))
    seen = turn.job.seen.get(node.id)
    if seen is not None:
        turn.put_seen(node.id, replace(seen, processes=()))  # what was seen of the dead says nothing of the new
    turn.tell(RestartNode(incarnation=incarnation, sdk=turn.job.sdk, reason=reason), node.id)
    drop_out(turn, node.id, incarnation, reason)


def drop_out(turn: Turn, node: NodeId, incarnation: int, reason: str) -> None:
    """The node is in no world any more, and comes back as this incarnation."""
    if turn.job.servers is not None:
        servers.process_down(turn, turn.job.nodes[node], reason)
        return
    # Plain scripts restart everywhere, so this node is back as soon as the others; so is everybody in the first round.
    awaited = not turn.job.sdk or turn.job.rendezvous.committed is None
    turn.follow(world.dropped(turn.job.rendezvous, node, incarnation, awaited=awaited, now=turn.now, reason=reason))


def _take_out(turn: Turn, node: Node, to: NodeStatus, cause: ExitCause, reason: str) -> None:
    if not node.is_live:
        return  # it was given up before
    if node.status is not NodeStatus.RUNNING:
        to = NodeStatus.FAILED  # it never ran, so it cannot have ended well
    turn.put(replace(turn.job.nodes[node.id], exit_cause=cause))
    turn.move(node.id, to, reason)
    turn.follow(world.lost(turn.job.rendezvous, node.id, now=turn.now, reason=reason))
    servers.node_gone(turn, turn.job.nodes[node.id], reason)


# The same error everywhere -------------------------------------------------------------------------------


def _is_early(job: Job, exit: ProcessExit) -> bool:
    """Before anything was gained, in the first world, a user error may be everybody's."""
    limit = job.settings.recovery.quick_death if job.sdk else job.settings.early_plain
    return (
        cause_of(exit) is ExitCause.USER_ERROR
        and job.gain.step is None
        and job.gain.samples is None
        and exit.uptime_seconds < limit.total_seconds()
        and job.fallen is None
    )


def _hold_back(turn: Turn, event: ProcessExited) -> None:
    early = turn.job.early or EarlyErrors(until=turn.now + turn.job.settings.early_window, exits=())
    turn.job = replace(turn.job, early=replace(early, exits=(*early.exits, (event.node, event.local_rank, event.exit))))
    if _failed_everywhere(turn.job):
        settle_early(turn)


def _failed_everywhere(job: Job) -> bool:
    """Every process the job has had so far failed; none ended well."""
    assert job.early is not None
    failed = {(node, local_rank) for node, local_rank, _ in job.early.exits}
    over = (NodeStatus.DELETED, NodeStatus.FAILED)
    ran = [node for node in job.nodes.values() if node.status not in over and _is_ranked(job, node.id)]
    return all((node.id, rank) in failed for node in ran for rank in range(_slots(job, node.id)))


def _is_ranked(job: Job, node: NodeId) -> bool:
    """Whether it trains, as all others of its kind do."""
    return job.servers is None or job.nodes[node].role in servers.TRAINERS


def _slots(job: Job, node: NodeId) -> int:
    """How many processes the node has: as it said when they were ready; before that, as the job has it."""
    member = job.rendezvous.members.get(node)
    return member.slots if member is not None and member.steps else job.spec.nproc


def settle_early(turn: Turn) -> None:
    """The window is over or everybody has failed: fail the job if it is one error on every rank, else recover."""
    early = turn.job.early
    assert early is not None
    everywhere = _failed_everywhere(turn.job) and len({_fingerprint(exit) for _, _, exit in early.exits}) == 1
    turn.job = replace(turn.job, early=None)
    if everywhere:
        node, local_rank, exit = early.exits[0]
        where = "on every rank " if len(early.exits) > 1 else ""
        said = f": {_fingerprint(exit)}" if exit.error else ""
        who = _rank_name(turn.job, node, local_rank)
        fail(turn, f"{who} ended with {describe(exit)} {where}before the first step{said}")
        return
    recovered: set[NodeId] = set()
    for node, local_rank, exit in early.exits:
        if turn.job.ending is None and turn.job.nodes[node].is_live and node not in recovered:
            recovered.add(node)  # a restart brings all dead processes of the node back
            process_lost(turn, node, local_rank, exit)


def _fingerprint(exit: ProcessExit) -> str:
    """The last line of a traceback says what went wrong; without one the exit code has to do."""
    lines = [line.strip() for line in (exit.error or "").splitlines() if line.strip()]
    return lines[-1][:500] if lines else describe(exit)


# Hangs ---------------------------------------------------------------------------------------------------


def check_stopped(turn: Turn) -> None:
    """A process that stands still by the kernel's word never gets into the world that is being formed: it is killed,
    and the others go on without it."""
    members = turn.job.rendezvous.members
    awaited = (Standing.EXPECTED, Standing.PREPARED)
    culprits = tuple(
        (node, p.local_rank)
        for node, seen in turn.job.seen.items()
        if node in members and members[node].standing in awaited
        for p in seen.processes
        if p.stopped
    )
    if culprits and turn.job.sdk:
        names = ", ".join(f"{node} process {rank}" for node, rank in culprits)
        _kill_culprits(turn, culprits, f"{names}: stopped while a world is being formed")


def check_hang(turn: Turn) -> None:
    job = turn.job
    committed = job.rendezvous.committed
    if not job.sdk or committed is None or job.rendezvous.pending is not None:
        return
    action = decide_hang(_hang_facts(job), now=turn.now, settings=job.settings.hang)
    match action:
        case None:
            return
        case WarnOfHang(reason=reason):
            turn.job = replace(turn.job, hang_warned=committed.generation)
            turn.say(reason)
            for node in turn.job.seen:
                turn.tell(DumpStacks(incarnation=turn.job.nodes[node].incarnation, local_ranks=()), node)
        case GiveWorldUp(reason=reason):
            turn.say(reason)
            turn.follow(world.broken(turn.job.rendezvous, committed.generation, now=turn.now, reason=reason))
        case KillCulprits(culprits=culprits, reason=reason):
            _kill_culprits(turn, culprits, reason)


def _kill_culprits(turn: Turn, culprits: tuple[tuple[NodeId, int], ...], reason: str) -> None:
    told = frozenset((n, turn.job.nodes[n].incarnation, r) for n, r in culprits)
    if told <= turn.job.hanging:
        return  # they have been told to die; their exits are on the way
    turn.say(reason)
    turn.job = replace(turn.job, hanging=turn.job.hanging | told)
    for node in sorted({n for n, _ in culprits}):
        ranks = tuple(r for n, r in culprits if n == node)
        turn.tell(KillProcesses(incarnation=turn.job.nodes[node].incarnation, local_ranks=ranks, reason=reason), node)


def _hang_facts(job: Job) -> HangFacts:
    committed = job.rendezvous.committed
    members = job.rendezvous.members
    processes = tuple(
        ProcessProgress(
            node=node,
            local_rank=p.local_rank,
            stopped=p.stopped,
            collectives=p.collectives,
            busy=p.busy,
            in_world=node in members and members[node].standing is Standing.ACTIVE and not members[node].finished,
        )
        for node, seen in job.seen.items()
        for p in seen.processes
    )
    return HangFacts(
        steps_done=job.gain.steps_seen,
        step_seconds=job.gain.step_seconds,
        last_gain=job.gain.at,
        leaving_world=job.rendezvous.breaking is Break.INTERRUPT,
        warned=committed is not None and job.hang_warned == committed.generation,
        processes=processes,
    )


# The end -------------------------------------------------------------------------------------------------


def fail(turn: Turn, reason: str) -> None:
    end(turn, JobPhase.FAILED, reason)


def end(turn: Turn, how: JobPhase, reason: str, *, grace: timedelta | None = None) -> None:
    """Stop everything that still runs; the job has ended when it is gone."""
    if turn.job.ending is not None:
        return
    grace = turn.job.settings.grace if grace is None else grace
    turn.job = replace(
        turn.job,
        phase=JobPhase.STOPPING,
        ending=how,
        reason=reason,
        early=None,
        end_by=turn.now + grace + turn.job.settings.end_slack,
    )
    turn.say(reason)
    running = [n.id for n in turn.job.nodes.values() if n.status is NodeStatus.RUNNING]
    turn.tell(StopNode(reason=reason, grace=grace, has_failed=how is JobPhase.FAILED), *running)
    pending = tuple(n for n in turn.job.nodes.values() if n.is_live and n.status is not NodeStatus.RUNNING)
    for node in pending:
        turn.move(node.id, NodeStatus.DELETED, reason)
    if pending:
        turn.effects.append(Scale(plan=ScalePlan(remove_nodes=pending, reason=reason)))


def _rank_name(job: Job, node: NodeId, local_rank: int) -> str:
    """`rank 3` if it has one, `process 0` before."""
    committed = job.rendezvous.committed
    member = committed.member(node) if committed is not None else None
    return f"rank {member.base_rank + local_rank}" if member is not None else f"process {local_rank}"
