"""What a policy is, and the policies by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from shoal.scheduler import cfs, fifo, fulfillment, static, upstream
from shoal.scheduler.decisions import Decisions
from shoal.scheduler.rows import Seconds
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot


class Policy(Protocol):
    def __call__(self, snapshot: Snapshot, now: Seconds, settings: SchedulerSettings) -> Decisions:
        """Decide once. The same arguments give the same decisions; nothing is kept between calls."""
        ...


class UnknownPolicy(ValueError):
    """A name that no policy has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    policy: Policy
    summary: str
    sim_only: bool = False
    """For comparison in the simulator; no cluster is run by it."""


POLICIES: Mapping[str, Entry] = {
    "cfs": Entry(policy=cfs.plan, summary="shares in proportion to weights, over time"),
    "fulfillment": Entry(policy=fulfillment.plan, summary="every job as far between its minimum and maximum as others"),
    "fifo": Entry(policy=fifo.plan, summary="in the order of arrival, at a fixed size, as gangs", sim_only=True),
    "static": Entry(policy=static.plan, summary="at a fixed size, whoever fits", sim_only=True),
    "upstream": Entry(policy=upstream.plan, summary="the original algorithm, with its defects", sim_only=True),
}
"""By name. Those of them that are only for comparison decide for no cluster."""


def known_policies(*, sim: bool) -> Mapping[str, Entry]:
    """The policies that may be chosen, for the simulator or for a cluster."""
    return {name: entry for name, entry in POLICIES.items() if sim or not entry.sim_only}


def policy(name: str, *, sim: bool = False) -> Policy:
    """The policy of that name. Those that are only for comparison are found only for the simulator."""
    known = known_policies(sim=sim)
    if name in known:
        return known[name].policy
    why = "is for the simulator only" if name in POLICIES else "is unknown"
    raise UnknownPolicy(f"policy {name!r} {why}; there are: {', '.join(sorted(known))}")
