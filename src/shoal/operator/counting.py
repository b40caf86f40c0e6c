"""What is counted of a decision: resizes and lost members, in a few words each, for the operator's metrics.

A resize is a change of what a job may have; replacements that start beside the members they replace are none. Counted
is what was recorded: a decision that was refused as outdated is made, and counted, by the next look.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from shoal.api.elasticjob import Role
from shoal.core.exits import ProcessExit, failure_class
from shoal.core.pods import PodSeen
from shoal.core.workloads import TrainingPod
from shoal.operator.asks import Asks
from shoal.operator.memory import Memory, MoveState

_PREEMPTED = ("Evicted", "Preempt", "NodeShutdown", "Terminated")
"""How the kubelet's reasons begin when a Pod failed without its container having ended."""

HARDWARE = "hardware"
"""The class of a member that was lost with its host."""


class Direction(StrEnum):
    UP = "up"
    DOWN = "down"
    SAME = "same"
    """One role has more, another one fewer."""


class Trigger(StrEnum):
    USER = "user"
    MASTER = "master"
    SCHEDULER = "scheduler"


class Result(StrEnum):
    GRANTED = "granted"
    TRIMMED = "trimmed"


@dataclass(frozen=True, slots=True)
class Resized:
    direction: Direction
    trigger: Trigger
    result: Result


def settled_counts(memory: Memory) -> dict[Role, int]:
    """How many of each role are granted, replacements that have not taken their places yet not counted."""
    starting = {move.replacement for move in memory.moves if move.state is MoveState.STARTING}
    beside = [member.role for member in memory.members if member.name in starting]
    return {role: max(0, count - beside.count(role)) for role, count in memory.grant.counts.items()}


def resize_of(before: Memory, after: Memory, asks: Asks, *, auto: str | None, suspends: bool) -> Resized | None:
    """What happened to the job's size between two records; None: nothing. `auto`: the master's plan. `suspends`: its
    owner has just said that it rests, or that it goes on."""
    was, now = settled_counts(before), settled_counts(after)
    changed = [role for role in Role if was.get(role, 0) != now.get(role, 0)]
    if not changed:
        return None
    more, fewer = sum(now.values()) > sum(was.values()), sum(now.values()) < sum(was.values())
    asked = {role: asks.roles[role].count or 0 for role in changed}
    is_less = not suspends and any(now.get(role, 0) < count for role, count in asked.items())
    return Resized(
        Direction.UP if more else Direction.DOWN if fewer else Direction.SAME,
        Trigger.USER if suspends else _trigger(changed, before.wanted, asks, auto),
        Result.TRIMMED if is_less else Result.GRANTED,
    )


def _trigger(changed: list[Role], wanted: Mapping[Role, int], asks: Asks, auto: str | None) -> Trigger:
    """Who asks for something else than before; if nobody does, it was the scheduler."""
    asking = [asks.roles[role].source for role in changed if asks.roles[role].count != wanted.get(role)]
    if not asking:
        return Trigger.SCHEDULER
    return Trigger.MASTER if auto in asking else Trigger.USER


def lost_class(pod: PodSeen | TrainingPod | None) -> str:
    """Why a member was lost, as the masters' metrics name it. A Pod that is gone was deleted by somebody."""
    if pod is None or pod.deleting:
        return "preemption"
    if pod.exit_code is None and not pod.oom_killed:
        return "preemption" if pod.reason.startswith(_PREEMPTED) else "unknown"
    return failure_class(ProcessExit(code=pod.exit_code or 137, oom=pod.oom_killed))
