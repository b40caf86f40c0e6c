"""How a job survives one failure (elastic-job §3): a table from cause to action, and the budgets behind it.

Losses the user did not cause never spend the restart budget: it exists to stop crash loops, not to punish bad
luck. A rate limit stops kill loops all the same: after too many free losses of one seat in a short time further
ones are charged.
"""

import math
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import assert_never

from shoal.core.exits import ExitCause
from shoal.core.nodes import NodeId

OOM_FACTOR = 2.0
"""How many times its memory a node gets after it ran out of it. Half as much again would do for most; who runs out once
more has lost the time between."""
MEMORY_STEP = 64
"""MiB: memory is given in multiples, as finer differences are not worth a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    budget_decay: timedelta = timedelta(hours=1)
    """A charge is forgiven when training still makes progress this long after it."""
    free_losses: int = 20
    """How many losses of one seat are free within `free_window`."""
    free_window: timedelta = timedelta(minutes=10)
    no_progress_limit: int = 3
    """So many charged recoveries in a row without a step gained end the job."""
    quick_death: timedelta = timedelta(seconds=60)
    """Without reported steps, a process that died younger than this gained nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one seat has spent. `limit` restarts are paid for; times are kept so that charges can be forgiven."""

    limit: int
    charges: tuple[datetime, ...] = ()
    free: tuple[datetime, ...] = ()

    @property
    def used(self) -> int:
        return len(self.charges)

    @property
    def is_spent(self) -> bool:
        return self.used >= self.limit

    def charged(self, now: datetime) -> "Budget":
        return replace(self, charges=(*self.charges, now))

    def lost(self, now: datetime, settings: RecoverySettings) -> "Budget":
        recent = tuple(at for at in self.free if now - at < settings.free_window)
        return replace(self, free=(*recent, now))

    def forgiven(self, progress: datetime, settings: RecoverySettings) -> "Budget":
        """Without the charges that training has outlived: it made progress at `progress`."""
        kept = tuple(at for at in self.charges if progress - at < settings.budget_decay)
        return self if len(kept) == len(self.charges) else replace(self, charges=kept)

    def is_kill_loop(self, now: datetime, settings: RecoverySettings) -> bool:
        return sum(1 for at in self.free if now - at < settings.free_window) >= settings.free_losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One loss: of training processes (`node_lost` False: the agent lives) or of the whole node."""

    node: NodeId
    cause: ExitCause
    detail: str
    """`rank 3: exit 1`, `the agent's process ended`: goes into the reason."""
    node_lost: bool
    can_replace: bool = True
    """False: the platform did not start this node and cannot start another."""
    critical: bool
    """The job cannot do without it: a PS, the chief, or one of no more workers than the minimum."""
    fallout: bool = False
    """It followed from a failure of another member that has been dealt with: nobody pays twice for one cause."""
    newcomer: bool = False
    """It never held the job's state, and others do: the job owes it nothing."""
    host: str | None = None
    memory: int | None = None
    """MiB it has; None: not limited."""
    memory_limit: int | None = None
    """MiB it may have at most; None: not limited."""
    can_share: bool = False
    """Others may be started that share what it holds: the job's optimizer sees to that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartProcesses:
    """Start the node's dead processes again."""

    node: NodeId
    charged: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaunchNode:
    """Another node takes the seat."""

    node: NodeId
    charged: bool
    reason: str
    avoid: frozenset[str] = field(default_factory=frozenset)
    memory: int | None = None
    """MiB for the new node; None: as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMember:
    """The member is done with; nobody takes its seat."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailJob:
    reason: str


Recovery = RestartProcesses | RelaunchNode | EndMember | FailJob


def decide_recovery(
    failure: Failure, budget: Budget, *, without_progress: int, now: datetime, settings: RecoverySettings
) -> Recovery:
    """What to do about one failure. Counts nothing: `charged` says what the caller must count.

    `without_progress` is how many charged recoveries the job has made since it last gained a step.
    """
    said = f"{failure.node}: {failure.detail}"
    match failure.cause:
        case ExitCause.DO_NOT_RESTART if failure.newcomer and not failure.critical:
            return EndMember(node=failure.node, reason=f"{said}: it does not fit this job, which goes on without it")
        case ExitCause.DO_NOT_RESTART:
            return FailJob(reason=f"{said}: it asked not to be restarted")
        case ExitCause.LEFT | ExitCause.SUCCEEDED:
            return EndMember(node=failure.node, reason=f"{said}: it left")
        case ExitCause.HARDWARE:
            avoid = frozenset({failure.host}) if failure.host else frozenset()
            return _relaunch(failure, charged=False, reason=f"{said}: hardware fault", avoid=avoid)
        case ExitCause.USER_ERROR if failure.fallout:
            return _again(failure, charged=False, reason=f"{said}, which followed from the failure before")
        case ExitCause.KILLED | ExitCause.GONE if not budget.is_kill_loop(now, settings):
            return _again(failure, charged=False, reason=said)
        case ExitCause.OOM:
            return _after_oom(failure, budget, without_progress, settings, said)
        case ExitCause.KILLED | ExitCause.GONE | ExitCause.USER_ERROR | ExitCause.HANG:
            spent = _spent(failure, budget, without_progress, settings, said)
            return spent or _again(failure, charged=True, reason=f"{said} ({_next(budget)})")
        case _:
            assert_never(failure.cause)


def _again(failure: Failure, *, charged: bool, reason: str) -> Recovery:
    if failure.node_lost:
        return _relaunch(failure, charged=charged, reason=reason)
    return RestartProcesses(node=failure.node, charged=charged, reason=f"{reason}: restarting its processes")


def _relaunch(
    failure: Failure,
    *,
    charged: bool,
    reason: str,
    avoid: frozenset[str] = frozenset(),
    memory: int | None = None,
) -> Recovery:
    if not failure.can_replace:
        return EndMember(node=failure.node, reason=f"{reason}: it joined by itself, so nobody can replace it")
    return RelaunchNode(
        node=failure.node, charged=charged, reason=f"{reason}: replacing it", avoid=avoid, memory=memory
    )


def _after_oom(
    failure: Failure, budget: Budget, without_progress: int, settings: RecoverySettings, said: str
) -> Recovery:
    spent = _spent(failure, budget, without_progress, settings, said)
    if spent is not None:
        return spent
    if failure.memory is None:
        return _again(failure, charged=True, reason=f"{said}: out of memory ({_next(budget)})")
    more = raised_memory(failure.memory, failure.memory_limit)
    if more is None and failure.can_share:
        reason = f"{said}: out of memory with {failure.memory} MiB, which is the limit; more may share what it held"
        return _relaunch(failure, charged=True, reason=f"{reason} ({_next(budget)})")
    if more is None:
        return FailJob(reason=f"{said}: out of memory with {failure.memory} MiB, which is the limit")
    reason = f"{said}: out of memory with {failure.memory} MiB, gets {more} MiB ({_next(budget)})"
    return _relaunch(failure, charged=True, reason=reason, memory=more)


def raised_memory(memory: int, limit: int | None) -> int | None:
    """MiB for a node that ran out of `memory`, and for all of its role: this rule and no other says it. At most the
    limit; None: it has that already."""
    wanted = round_memory(memory * OOM_FACTOR)
    more = wanted if limit is None else min(wanted, limit)
    return more if more > memory else None


def round_memory(amount: float) -> int:
    return max(MEMORY_STEP, math.ceil(amount / MEMORY_STEP) * MEMORY_STEP)


def _spent(
    failure: Failure, budget: Budget, without_progress: int, settings: RecoverySettings, said: str
) -> FailJob | EndMember | None:
    if without_progress >= settings.no_progress_limit:
        return FailJob(reason=f"{said}: {without_progress} recoveries in a row gained no step")
    if budget.is_spent and failure.critical:
        return FailJob(reason=f"{said}, and {_count(budget)}")
    if budget.is_spent:
        return EndMember(node=failure.node, reason=f"{said}, and {_count(budget)}: the job goes on without it")
    return None


def _next(budget: Budget) -> str:
    return f"restart {budget.used + 1} of {budget.limit}"


def _count(budget: Budget) -> str:
    return f"{budget.used} of {budget.limit} restarts used"
