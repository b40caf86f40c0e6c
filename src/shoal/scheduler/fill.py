"""Phase C: room that is free is given away, one step at a time, always to the job that deserves it most.

The key is projected: a job is compared as if it had the step already. A job that no host has room for, or that a budget
stops, is out for this round; so a round has at most as many steps as trainers are missing, plus one for each job.

`steps` has the order. What is found out about room for one job holds for all of its shape: where the next trainer goes,
and that no more of them fit. Where the trainers of a shape go does not depend on whose they are, so hosts are dealt out
when all steps are taken, side by side for each job. The outcome is that of the plain loop, step by step.
"""

import numpy as np

from shoal.scheduler.budgets import allows, difference
from shoal.scheduler.columns import Bools, Ints
from shoal.scheduler.decisions import Code, Reason
from shoal.scheduler.gangs import Placement, hardest_first, place_all, record, servers_of, trainers_of
from shoal.scheduler.planning import Draft, Round
from shoal.scheduler.rows import Room
from shoal.scheduler.steps import in_order
from shoal.scheduler.view import NOWHERE, Search


def fill(plan: Round) -> None:
    hungry = _hungry(plan)
    if not len(hungry):
        return
    giving = Giving(plan, hungry)
    for jobs in in_order(plan, hungry, giving.is_alive):
        giving.give(jobs)
    giving.deal_out()


def _hungry(plan: Round) -> Ints:
    """Jobs that would take more: admitted, below their most, not frozen, with enough cores for their devices."""
    jobs, n = plan.columns.jobs, np.array(plan.n, dtype=np.int64)
    able = (n > 0) & (n < jobs["most"]) & (jobs["cpu"] >= plan.settings.cpu_per_gpu * jobs["gpu"])
    able &= ~np.array(plan.may_not_grow, dtype=np.bool_)
    for job, draft in plan.drafts.items():
        if draft.gave:
            able[job] = False
    return np.flatnonzero(able)


class _Hosts:
    """The hosts that trainers of one shape were given, in the order of the view."""

    __slots__ = ("is_over", "positions", "search")

    def __init__(self, search: Search) -> None:
        self.search = search
        self.positions: list[int] = []
        self.is_over = False
        """No more of this shape fit."""


class Giving:
    """What is being given away: steps to jobs, hosts to shapes."""

    def __init__(self, plan: Round, hungry: Ints) -> None:
        jobs = plan.columns.jobs
        limited = [
            number for number, name in enumerate(plan.columns.vocabulary.namespaces.values) if name in plan.quotas
        ]
        self._plan = plan
        self._alone: Bools = (jobs["unit"] > 1) | jobs["has_servers"] | np.isin(jobs["namespace"], limited)
        """Jobs whose step is more than one Pod, or that have limits of their own, are looked at by themselves."""
        self._shape: Ints = jobs["shape"]
        self._hosts: dict[int, _Hosts] = {}
        """By shape."""
        self._of: list[_Hosts | None] = [None] * len(plan.n)
        """By job; None: it is looked at by itself."""
        self._out: set[int] = set()
        """Of those that are looked at by themselves, who is out."""
        self._given: dict[int, int] = {}
        together = hungry[~self._alone[hungry]]
        for job, shape in zip(together.tolist(), self._shape[together].tolist(), strict=True):
            hosts = self._hosts.get(shape)
            if hosts is None:
                hosts = self._hosts[shape] = _Hosts(plan.search(job))
            self._of[job] = hosts

    def is_alive(self, jobs: Ints) -> Bools:
        """Which of these jobs may still be given something."""
        over = np.array([shape for shape, hosts in self._hosts.items() if hosts.is_over], dtype=np.int64)
        alive: Bools = ~np.where(self._alone[jobs], np.isin(jobs, list(self._out)), np.isin(self._shape[jobs], over))
        return alive

    def give(self, jobs: list[int]) -> None:
        """A step to each of these, in this order, as far as there is room."""
        plan, view, of, given = self._plan, self._plan.view, self._of, self._given
        first_fit, free_cpu, free_memory = view.first_fit, view.free_cpu, view.free_memory
        free_gpu, free_pods = view.free_gpu, view.free_pods
        start = left_cpu, left_memory, left_gpu, places = self._left()
        for job in jobs:
            hosts = of[job]
            if hosts is None:
                if job not in self._out:
                    view.use(start.minus(Room(left_cpu, left_memory, left_gpu, places)), 1)
                    self._give_alone(job)
                    start = left_cpu, left_memory, left_gpu, places = self._left()
                continue
            if hosts.is_over:
                continue
            search = hosts.search
            within = search.cpu <= left_cpu and search.memory <= left_memory and search.gpu <= left_gpu
            position = first_fit(search) if within else NOWHERE
            if position == NOWHERE:
                hosts.is_over = True
                plan.steps += 1
                continue
            free_cpu[position] -= search.cpu
            free_memory[position] -= search.memory
            free_gpu[position] -= search.gpu
            free_pods[position] -= search.pods
            left_cpu, left_memory, left_gpu = left_cpu - search.cpu, left_memory - search.memory, left_gpu - search.gpu
            hosts.positions.append(position)
            given[job] = given.get(job, 0) + 1
        view.use(start.minus(Room(left_cpu, left_memory, left_gpu, places)), 1)

    def _give_alone(self, job: int) -> None:
        if not grow(self._plan, job):
            self._plan.steps += 1
            self._out.add(job)

    def _left(self) -> Room:
        """What may still be used. Less than nothing of what a job does not ask for does not stop it."""
        return Room(*(max(0, amount) for amount in self._plan.limits.grow.minus(self._plan.view.used)))

    def deal_out(self) -> None:
        """Say which hosts each job was given. Places are counted here: no budget stops anybody for their sake."""
        plan = self._plan
        for hosts in self._hosts.values():
            plan.view.use(Room(pods=hosts.search.pods), len(hosts.positions))
        dealt = dict.fromkeys(self._hosts.values(), 0)
        for job in sorted(self._given):
            given, number = self._of[job], self._given[job]
            assert given is not None
            draft = plan.resize(job, plan.n[job] + number)
            at = dealt[given]
            for position in given.positions[at : at + number]:
                draft.hosts[position] = draft.hosts.get(position, 0) + 1
            dealt[given] = at + number
            tell_growth(plan, draft)


def tell_growth(plan: Round, draft: Draft) -> None:
    if draft.reason is None or draft.reason.code is Code.FREE_ROOM:
        text = f"it grows by {draft.target - draft.job.target} into free room; key {plan.key(draft.index):.4g}"
        draft.reason = Reason(code=Code.FREE_ROOM, text=text)


# One step ---------------------------------------------------------------------------------------------------


def grow(plan: Round, job: int) -> bool:
    """Give the job its next step, with the servers that go with it, if budgets and hosts allow."""
    row, before, after = plan.rows[job], plan.n[job], plan.higher(job)
    if after > plan.most[job]:
        return False
    more, _ = difference(row, before, after)
    if not allows(plan.limits.grow, plan.view.used, more) or not plan.quotas.allows(row, before, after):
        return False
    placed = place_step(plan, job, after)
    if placed is None:
        return False
    draft = plan.resize(job, after)
    record(plan, draft, placed)
    tell_growth(plan, draft)
    return True


def place_step(plan: Round, job: int, after: int) -> Placement | None:
    """Hosts for all Pods of the step, or for none."""
    row, before = plan.rows[job], plan.n[job]
    parts = [trainers_of(row, after - before)]
    more = 0 if row.servers is None else row.servers.beside(after) - row.servers.beside(before)
    if more:
        parts = hardest_first((servers_of(row, more), *parts))
    return place_all(plan, job, parts, growing=True)
