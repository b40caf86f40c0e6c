"""Who deserves the next trainer: a number for each job and size, smaller for those who deserve it more.

The key is *projected*: `key(job, n)` says where the job would stand if it had `n` trainers, so a job that has just been
given one moves back in the order by itself. For `cfs` the key is the service attained so far plus what `n` trainers
would take over the horizon, both divided by the job's weight; for `fulfillment` it is how far between its least and its
most the job is. Equal keys are told apart by `rank`, which no two jobs share.

Most keys are straight lines in `n` and are kept as such; those that are not (servers that come with trainers, dominant
shares) are worked out one at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.scheduler.columns import PRIORITIES, Bools, Columns, Floats, Ints, Records
from shoal.scheduler.rows import Job, Room, Seconds
from shoal.scheduler.scores import GIBIBYTE, footprint, score
from shoal.scheduler.settings import SchedulerSettings, ScoreMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    base: list[float]
    slope: list[float]
    shift: list[int]
    """key(n) = base + slope x (n - shift)"""
    bent: Mapping[int, Callable[[int], float]]
    """The keys that are no straight lines."""
    rank: list[int]
    """The order of equal keys."""
    waiting: list[float]
    """The key with which a job that waits is compared: at its least size, and owed no more than the lag cap."""
    service: Floats
    """Attained service now; of those that wait, with no more owed to them than the lag cap."""
    min_v: float
    weight: Ints

    def key(self, job: int, n: int) -> float:
        bent = self.bent.get(job)
        return self.base[job] + self.slope[job] * (n - self.shift[job]) if bent is None else bent(n)

    def all_at(self, sizes: Ints) -> Floats:
        """The keys of all jobs, each at its size."""
        keys: Floats = np.asarray(self.base) + np.asarray(self.slope) * (sizes - np.asarray(self.shift, dtype=np.int64))
        for job, bent in self.bent.items():
            keys[job] = bent(int(sizes[job]))
        return keys


Ruler = Callable[[Columns, Sequence[Job], float, Room, Seconds, SchedulerSettings], Keys]
"""Makes the keys of a round: columns, rows, `min_v`, the cluster's capacity, now, settings."""


def cfs_keys(
    columns: Columns, rows: Sequence[Job], min_v: float, capacity: Room, now: Seconds, settings: SchedulerSettings
) -> Keys:
    jobs = columns.jobs
    weight = weights(jobs, settings)
    scale = settings.base_weight / weight
    each, fixed = _prices(jobs, settings)
    bent = _bent_jobs(jobs, settings)
    gang = fixed + each * jobs["least"]
    for job in bent:
        gang[job] = score(footprint(rows[job], int(jobs["least"][job])), capacity, settings)

    owed, min_v = attained(jobs, gang * scale, min_v, now, settings)
    per_cost = settings.horizon * scale
    base, slope = owed + per_cost * fixed, per_cost * each

    def bend(job: int) -> Callable[[int], float]:
        row, start, factor = rows[job], float(owed[job]), float(per_cost[job])
        if settings.scores.mode is ScoreMode.DOMINANT_SHARE or row.servers is None:
            return lambda n: start + factor * score(footprint(row, n), capacity, settings)
        servers, server = row.servers, score(row.servers.each, capacity, settings)
        at_rest, trainer = float(fixed[job]), float(each[job])
        return lambda n: start + factor * (at_rest + trainer * n + server * servers.beside(n))

    return _finish(jobs, base, slope, np.zeros(len(jobs), np.int64), {job: bend(job) for job in bent},
                   cfs_rank(jobs, weight), None, owed, min_v, weight)  # fmt: skip


def fulfillment_keys(
    columns: Columns, rows: Sequence[Job], min_v: float, capacity: Room, now: Seconds, settings: SchedulerSettings
) -> Keys:
    """A job without choice is fulfilled; one that waits is not, whatever its range."""
    jobs = columns.jobs
    weight = weights(jobs, settings)
    each, fixed = _prices(jobs, settings)
    gang = (fixed + each * jobs["least"]) * (settings.base_weight / weight)
    v, min_v = attained(jobs, gang, min_v, now, settings)
    span = jobs["max"] - jobs["min"]
    slope = np.where(span > 0, 1.0 / np.maximum(span, 1), 0.0)
    base = np.where(span > 0, 0.0, 1.0)
    rank = _ranks(jobs["created"], jobs["memory"], jobs["cpu"], jobs["gpu"])
    return _finish(jobs, base, slope, jobs["min"], {}, rank, np.zeros(len(jobs)), v, min_v, weight)


def _finish(
    jobs: Records, base: Floats, slope: Floats, shift: Ints, bent: Mapping[int, Callable[[int], float]],
    rank: list[int], waiting: Floats | None, v: Floats, min_v: float, weight: Ints,
) -> Keys:  # fmt: skip
    keys = Keys(
        base=base.tolist(), slope=slope.tolist(), shift=shift.tolist(), bent=bent, rank=rank,
        waiting=[] if waiting is None else waiting.tolist(), service=v, min_v=min_v, weight=weight,
    )  # fmt: skip
    if waiting is None:
        keys.waiting.extend(keys.all_at(jobs["least"]).tolist())
    return keys


def weights(jobs: Records, settings: SchedulerSettings) -> Ints:
    table = np.array([settings.weights[priority] for priority in PRIORITIES], dtype=np.int64)
    weight: Ints = table[jobs["priority"]]
    return weight


def attained(
    jobs: Records, gang: Floats, min_v: float, now: Seconds, settings: SchedulerSettings
) -> tuple[Floats, float]:
    """Service so far, and the least of it among admitted jobs, which never falls. A job that was never seen begins
    there, with a debit; one that waits is owed no more than the lag cap. `gang` is what a second of its gang counts."""
    known: Bools = jobs["is_known"]
    v: Floats = jobs["v"] + jobs["rate"] * np.maximum(0.0, now - jobs["at"])
    admitted = v[known & (jobs["target"] > 0)]
    if len(admitted):
        min_v = max(min_v, float(admitted.min()))
    v = np.where(known, v, max(0.0, min_v) + settings.start_debit * gang)
    return np.where(jobs["target"] > 0, v, np.maximum(v, min_v - settings.lag_cap * gang)), min_v


def cfs_rank(jobs: Records, weight: Ints) -> list[int]:
    """Equal keys: the higher weight, then GPU jobs, then the earlier, then by name (the order of the records)."""
    return _ranks(jobs["created"], jobs["gpu"] == 0, -weight)


def _ranks(*least_first: Ints | Floats | Bools) -> list[int]:
    order = np.lexsort((np.arange(len(least_first[0])), *least_first))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    ranks: list[int] = rank.tolist()
    return ranks


def _prices(jobs: Records, settings: SchedulerSettings) -> tuple[Floats, Floats]:
    """What one trainer costs, and all fixed Pods together, by the weights of resources."""
    prices = settings.scores
    gpu, core, gibibyte, pod = float(prices.gpu), float(prices.core), float(prices.gibibyte), float(prices.pod)

    def price(of: str) -> Floats:
        devices, cores = jobs[f"{of}gpu"] * gpu, jobs[f"{of}cpu"] * core / 1_000
        found: Floats = devices + cores + jobs[f"{of}memory"] * gibibyte / GIBIBYTE + jobs[f"{of}pods"] * pod
        return found

    return price(""), price("fixed_")


def _bent_jobs(jobs: Records, settings: SchedulerSettings) -> list[int]:
    if settings.scores.mode is ScoreMode.DOMINANT_SHARE:
        return list(range(len(jobs)))
    found: list[int] = np.flatnonzero(jobs["has_servers"]).tolist()
    return found
