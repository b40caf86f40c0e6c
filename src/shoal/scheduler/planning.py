"""One round of planning: what is being decided for each job, and the room that this takes and gives.

The phases (`mandatory`, `admit`, `fill`, `fairness`) change a `Round` in turn; when they are done it is read off as
decisions. A job that anything was decided for has a `Draft`. Trainers that a job may have and that have no host yet are
*planned* on one, so that their room is not given away; taking such a trainer back stops nobody.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from shoal.scheduler.budgets import Limits, Quotas, limits
from shoal.scheduler.columns import Columns, Shape
from shoal.scheduler.decisions import Action, Change, Nomination, Reason, Wait
from shoal.scheduler.keys import Keys, Ruler
from shoal.scheduler.rows import Job, Kind, Part, Room, Seconds
from shoal.scheduler.settings import SchedulerSettings
from shoal.scheduler.snapshot import Snapshot
from shoal.scheduler.units import Order
from shoal.scheduler.view import Search, View

PATIENCE_ROUNDS = 2
"""Rounds after its grace in which a Pod that leaves is still believed to."""


@dataclass(slots=True, kw_only=True)
class Draft:
    """What is being decided for one job."""

    index: int
    job: Job
    target: int
    placed: dict[str, int]
    """Trainers that stay, by host."""
    planned: dict[int, int] = field(default_factory=dict)
    """Trainers without a host, by the position of the host they are to go to. They were decided in earlier rounds."""
    planned_fixed: dict[int, Room] = field(default_factory=dict)
    hosts: dict[int, int] = field(default_factory=dict)
    """Additional trainers, decided in this round."""
    fixed_hosts: dict[str, dict[str, int]] = field(default_factory=dict)
    victims: dict[str, int] = field(default_factory=dict)
    reason: Reason | None = None
    beneficiary: str | None = None
    is_mandatory: bool = False
    holds_for: Seconds | None = None
    """It is given no more for so long."""
    gave: bool = False
    """It lost something in this round, and is given nothing more in it."""


Released = tuple[str | int, int]
"""A host's name (a running trainer) or a position (a planned one), and how many."""


class Round:
    def __init__(
        self, snapshot: Snapshot, now: Seconds, settings: SchedulerSettings, ruler: Ruler, view: type[View] = View
    ) -> None:
        self.snapshot = snapshot
        self.rows = snapshot.jobs
        self.now = now
        self.settings = settings
        self.columns: Columns = snapshot.columns()
        self.view = view(snapshot.hosts, self.columns, now, PATIENCE_ROUNDS * settings.interval, settings.cpu_per_gpu)
        self.keys: Keys = ruler(self.columns, snapshot.jobs, snapshot.min_v, self.view.capacity, now, settings)
        self.limits: Limits = limits(self.view.capacity, now, settings)
        self.quotas = Quotas(snapshot)
        jobs = self.columns.jobs
        self.n: list[int] = jobs["target"].tolist()
        self.least: list[int] = jobs["least"].tolist()
        self.most: list[int] = jobs["most"].tolist()
        self.unit: list[int] = jobs["unit"].tolist()
        windows = jobs["frozen_until"] > now
        self.frozen: list[bool] = (jobs["resizing"] | windows).tolist()
        self.may_not_grow: list[bool] = (jobs["resizing"] | (windows & ~jobs["wants_more"])).tolist()
        """Windows keep us from moving jobs to and fro, not people from getting what they have come to ask for."""
        self.drafts: dict[int, Draft] = {}
        self.waits: list[Wait] = []
        self.nominations: list[Nomination] = []
        self.steps = 0
        """Trainers given or taken, starts and suspensions, and tries that came to nothing."""
        self._searches: list[Search | None] = [None] * len(self.columns.vocabulary.shapes.values)
        self._shape: list[int] = jobs["shape"].tolist()
        self._donors: dict[bool, Order[int]] = {}

    # Questions -------------------------------------------------------------------------------------------

    def key(self, job: int) -> float:
        """Where the job stands with what it has by now."""
        return self.keys.key(job, self.n[job])

    def higher(self, job: int) -> int:
        """Its next size up."""
        unit = self.unit[job]
        return self.n[job] + 1 if unit == 1 else (self.n[job] // unit + 1) * unit

    def lower(self, job: int) -> int:
        """Its next size down."""
        unit = self.unit[job]
        return max(self.least[job], self.n[job] - 1 if unit == 1 else (self.n[job] - 1) // unit * unit)

    def search(self, job: int) -> Search:
        """The search for room for one of its trainers."""
        shape = self._shape[job]
        found = self._searches[shape]
        if found is None:
            found = self._searches[shape] = self.view.search(self.columns.vocabulary.shapes.values[shape])
        return found

    def search_for(self, part: Part, job: int, pools: frozenset[str] | None, *, leaves_cores: bool = False) -> Search:
        """The search for room for a Pod of the job in these pools. Where the job has devices, its Pods without any need
        no leave to be beside free ones, but for those that are to leave cores all the same."""
        leaves = leaves_cores or not self.rows[job].has_devices
        return self.view.search(Shape(part.each, pools), leaves_cores=leaves)

    def draft(self, job: int) -> Draft:
        found = self.drafts.get(job)
        if found is None:
            row = self.rows[job]
            found = self.drafts[job] = Draft(index=job, job=row, target=self.n[job], placed=dict(row.placed))
        return found

    def places(self, job: int) -> Iterator[tuple[int, int]]:
        """Where in the view its trainers are or are planned, and how many."""
        draft = self.drafts.get(job)
        position = self.view.position
        for name, count in (self.rows[job].placed if draft is None else draft.placed).items():
            if count and name in position:
                yield position[name], count
        if draft is not None:
            yield from ((where, count) for where, count in draft.planned.items() if count)

    def donors(self, *, frozen_last: bool) -> Order[int]:
        """Jobs above their least size, in the order in which they give: the largest key first."""
        order = self._donors.get(frozen_last)
        if order is None:
            n = np.array(self.n)
            keys = self.keys.all_at(n).tolist()
            able = np.flatnonzero(n > self.columns.jobs["least"]).tolist()
            order = Order(((frozen_last and self.frozen[j], -keys[j], -self.keys.rank[j]), j) for j in able)
            self._donors[frozen_last] = order
        return order

    # Changes ---------------------------------------------------------------------------------------------

    def resize(self, job: int, target: int) -> Draft:
        """It has another target from here on; its room is the caller's business."""
        draft = self.draft(job)
        self.steps += self._distance(job, draft.target, target)
        self.quotas.add(draft.job, draft.target, target)
        draft.target = self.n[job] = target
        for frozen_last, order in self._donors.items():
            if target > self.least[job]:
                order.put(job, (frozen_last and self.frozen[job], -self.key(job), -self.keys.rank[job]))
            else:
                order.drop(job)
        return draft

    def place(self, draft: Draft, position: int, count: int = 1) -> None:
        """More trainers of the job go to this host."""
        self.view.take(position, draft.job.each, count)
        draft.hosts[position] = draft.hosts.get(position, 0) + count

    def release(self, job: int, to: int, at: int | None = None) -> list[Released]:
        """Bring the job down to a size and give its room back, first on the host at that position. Trainers that are
        only planned go before running ones. Returns what `restore` needs to undo it."""
        draft = self.draft(job)
        count = draft.target - to
        self.resize(job, to)
        released: list[Released] = []
        for where in self._leaving_order(draft, at):
            if count == 0:
                break
            there = draft.planned if isinstance(where, int) else draft.placed
            taken = min(count, there[where])  # type: ignore[index]
            self._move_out(draft, where, taken)
            released.append((where, taken))
            count -= taken
        return released

    def restore(self, job: int, to: int, released: list[Released]) -> None:
        draft = self.draft(job)
        for where, count in released:
            self._move_out(draft, where, -count)
        self.steps -= 2 * self._distance(job, draft.target, to)  # neither the way there nor the way back counts
        self.resize(job, to)

    def _distance(self, job: int, one: int, other: int) -> int:
        """Steps between two sizes. Up to its least size it is one."""
        below = self.least[job] - 1
        return abs(max(0, one - below) - max(0, other - below))

    def _move_out(self, draft: Draft, where: str | int, count: int) -> None:
        if isinstance(where, int):
            draft.planned[where] -= count
            position: int | None = where
        else:
            draft.placed[where] -= count
            draft.victims[where] = draft.victims.get(where, 0) + count
            position = self.view.position.get(where)
        if position is not None:
            if count > 0:
                self.view.give(position, draft.job.each, count)
            else:
                self.view.take(position, draft.job.each, -count)

    def _leaving_order(self, draft: Draft, at: int | None) -> list[str | int]:
        """From where trainers go first: the host that is wanted, then planned ones, closed hosts, borrowed GPU hosts,
        and hosts with few of them."""
        position = self.view.position
        borrows = draft.job.each.gpu == 0

        def order(name: str) -> tuple[bool, bool, bool, int, str]:
            there = position.get(name)
            on_gpu_host = there is not None and self.view.has_gpu[there]
            wanted = there is not None and there == at
            return (not wanted, there is not None, not (borrows and on_gpu_host), draft.placed[name], name)

        running = sorted((name for name, count in draft.placed.items() if count), key=order)
        planned = sorted((where for where, count in draft.planned.items() if count), key=lambda p: (p != at, p))
        if at is not None and at not in draft.planned:
            return [*running[:1], *planned, *running[1:]]
        return [*planned, *running]

    def suspend(self, job: int) -> None:
        """All its Pods leave, and all their room is given back."""
        self.release(job, 0)
        draft = self.draft(job)
        position = self.view.position
        for name, room in draft.job.fixed_placed.items():
            if name in position:
                self.view.give(position[name], room)
        for where, room in draft.planned_fixed.items():
            self.view.give(where, room)
        draft.planned_fixed = {}
        draft.gave = True

    def gives(self, job: int, reason: Reason, beneficiary: str) -> None:
        """Say why a job gives something up. What was said first in a round stays."""
        draft = self.draft(job)
        draft.gave = True
        draft.is_mandatory = True
        if draft.reason is None:
            draft.reason, draft.beneficiary = reason, beneficiary

    # The end ---------------------------------------------------------------------------------------------

    def has_changes(self) -> bool:
        return any(draft.target != draft.job.target for draft in self.drafts.values())

    def changes(self) -> Iterator[Change]:
        """What was decided, in the order of the jobs."""
        for job in sorted(self.drafts):
            draft = self.drafts[job]
            before = draft.job.target
            if draft.target == before:
                continue
            assert draft.reason is not None, f"{draft.job.key}: {before} -> {draft.target} without a reason"
            yield Change(
                key=draft.job.key,
                action=_action(before, draft.target),
                target=draft.target,
                before=before,
                hosts={self.view.names[where]: count for where, count in sorted(draft.hosts.items()) if count},
                fixed_hosts=draft.fixed_hosts,
                victims={name: count for name, count in sorted(draft.victims.items()) if count and draft.target},
                mandatory=draft.is_mandatory,
                reason=draft.reason,
                beneficiary=draft.beneficiary,
                holds_for=draft.holds_for,
                attained=float(self.keys.service[job]) if before == 0 else None,
            )


def _action(before: int, after: int) -> Action:
    if after == 0:
        return Action.SUSPEND
    if before == 0:
        return Action.ADMIT
    return Action.GROW if after > before else Action.SHRINK


def servers_role(job: Job) -> str:
    """The name of the role that its servers have."""
    return "pserver" if job.key.kind is Kind.TRAINING_JOB else "ps"
