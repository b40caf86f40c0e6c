"""Phase C: room that is free is given away, one step at a time, always to the job that deserves it most.

The key is projected: the job is compared as if it had the step already, and is put back into the order after it was
given it. A job that no host has room for, or that a budget stops, is out for this round; so a round has at most as many
steps as trainers are missing, plus one for each job.
"""

from heapq import heapify, heappop, heapreplace

import numpy as np

from shoal.scheduler.budgets import allows, difference
from shoal.scheduler.decisions import Code, Reason
from shoal.scheduler.planning import Draft, Round, servers_role
from shoal.scheduler.rows import Room
from shoal.scheduler.view import NOWHERE


def fill(plan: Round) -> None:
    heap = _hungry(plan)
    while heap:
        _, rank, job = heap[0]
        plan.steps += 1
        if grow(plan, job) and plan.n[job] < plan.most[job]:
            heapreplace(heap, (plan.keys.key(job, plan.higher(job)), rank, job))
        else:
            heappop(heap)
    for draft in plan.drafts.values():
        if draft.hosts and draft.reason is None:
            text = f"it grows by {draft.target - draft.job.target} into free room; key {plan.key(draft.index):.4g}"
            draft.reason = Reason(code=Code.FREE_ROOM, text=text)


def may_grow(plan: Round, job: int) -> bool:
    """Whether the job takes part in growing at all in this round."""
    draft = plan.drafts.get(job)
    return not plan.frozen[job] and plan.n[job] < plan.most[job] and (draft is None or not draft.gave)


def _hungry(plan: Round) -> list[tuple[float, int, int]]:
    n = np.array(plan.n)
    jobs = plan.columns.jobs
    enough_cpu = jobs["cpu"] >= plan.settings.cpu_per_gpu * jobs["gpu"]
    able = np.flatnonzero((n > 0) & (n < jobs["most"]) & enough_cpu).tolist()
    heap = [(plan.keys.key(job, plan.higher(job)), plan.keys.rank[job], job) for job in able if may_grow(plan, job)]
    heapify(heap)
    return heap


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
    record_step(plan, draft, placed)
    return True


Step = list[tuple[str, Room, int]]
"""Role, Pod and position; trainers have no role."""


def place_step(plan: Round, job: int, after: int) -> Step | None:
    """Hosts for all Pods of the step, or for none."""
    row, view = plan.rows[job], plan.view
    wanted = [("", row.each, after - plan.n[job])]
    if row.servers is not None:
        servers = row.servers.beside(after) - row.servers.beside(plan.n[job])
        wanted.insert(0, (servers_role(row), row.servers.each, servers))
    placed: Step = []
    for role, each, number in wanted:
        search = plan.search_for(each, job) if role else plan.search(job)
        for _ in range(number):
            position = view.first_fit(search)
            if position == NOWHERE:
                take_away(plan, placed)
                return None
            view.take(position, each)
            placed.append((role, each, position))
    return placed


def take_away(plan: Round, placed: Step) -> None:
    for _, each, position in placed:
        plan.view.give(position, each)


def record_step(plan: Round, draft: Draft, placed: Step) -> None:
    for role, _, position in placed:
        if role:
            there = draft.fixed_hosts.setdefault(role, {})
            there[plan.view.names[position]] = there.get(plan.view.names[position], 0) + 1
        else:
            draft.hosts[position] = draft.hosts.get(position, 0) + 1
