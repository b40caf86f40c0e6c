"""The latest rows, as events bring them, with their columns kept up to date.

An event replaces one row; only what it changes is worked out again, so a snapshot of a large cluster costs copying, not
building. A board has one owner. Its snapshots are values: later events do not reach them.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from shoal.scheduler.columns import HOST, JOB, Columns, Records, Vocabulary, held_by, host_record, job_record
from shoal.scheduler.rows import NOTHING, Host, Job, JobKey, Quota, Room, ServicePod
from shoal.scheduler.snapshot import Snapshot


class Board:
    def __init__(self) -> None:
        self.quotas: Mapping[str, Quota] = {}
        self._vocabulary = Vocabulary()
        self._jobs: _Sorted[JobKey, Job] = _Sorted(JOB)
        self._hosts: _Sorted[str, Host] = _Sorted(HOST)
        self._services: dict[tuple[str, str], ServicePod] = {}
        self._taken: dict[str, Room] = {}
        """What jobs have on each host, also on hosts that are not known (yet, or any more)."""

    def put_job(self, job: Job) -> None:
        """The job is like this now. One that is over or suspended by its owner takes no part."""
        if job.over or job.suspended:
            self.drop_job(job.key)
            return
        self._hold(self._jobs.rows.get(job.key), -1)
        self._hold(job, 1)
        self._jobs.put(job.key, job)

    def drop_job(self, key: JobKey) -> None:
        self._hold(self._jobs.rows.get(key), -1)
        self._jobs.drop(key)

    def put_host(self, host: Host) -> None:
        self._hosts.put(host.name, host)

    def drop_host(self, name: str) -> None:
        self._hosts.drop(name)

    def put_service(self, pod: ServicePod) -> None:
        self._services[pod.namespace, pod.name] = pod

    def drop_service(self, namespace: str, name: str) -> None:
        self._services.pop((namespace, name), None)

    def snapshot(self, min_v: float = 0.0) -> Snapshot:
        """All of it at this moment."""
        jobs = self._jobs.records(lambda job: job_record(job, self._vocabulary))
        hosts = self._hosts.records(
            lambda host: host_record(host, self._taken.get(host.name, NOTHING), self._vocabulary)
        )
        return Snapshot(
            hosts=self._hosts.values(),
            jobs=self._jobs.values(),
            services=tuple(self._services[key] for key in sorted(self._services)),
            quotas=self.quotas,
            min_v=min_v,
            kept_columns=Columns(jobs=jobs, hosts=hosts, vocabulary=self._vocabulary),
        )

    def _hold(self, job: Job | None, sign: int) -> None:
        for host, room in () if job is None else held_by(job):
            self._taken[host] = self._taken.get(host, NOTHING).plus(room, sign)
            self._hosts.touch(host)


MANY = 1_000
"""From so many new rows on, sorting all is quicker than putting each into its place."""
K = TypeVar("K", str, JobKey)
R = TypeVar("R", Host, Job)


class _Sorted(Generic[K, R]):
    """Rows by key, with a record for each. Records are made when they are asked for, and only the changed ones."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self.rows: dict[K, R] = {}
        self._order: list[K] = []
        self._values: list[R] = []
        self._records: Records = np.zeros(0, dtype)
        self._changed: set[K] = set()
        self._came: set[K] = set()
        self._went: set[K] = set()

    def put(self, key: K, row: R) -> None:
        if key not in self.rows and key in self._went:
            self._went.remove(key)
        elif key not in self.rows:
            self._came.add(key)
        self.rows[key] = row
        self._changed.add(key)

    def drop(self, key: K) -> None:
        if self.rows.pop(key, None) is None:
            return
        self._changed.discard(key)
        if key in self._came:
            self._came.remove(key)
        else:
            self._went.add(key)

    def touch(self, key: K) -> None:
        """What the record of this row is made of has changed elsewhere."""
        if key in self.rows:
            self._changed.add(key)

    def values(self) -> tuple[R, ...]:
        """The rows, in the order of the records that were made last."""
        return tuple(self._values)

    def records(self, make: Callable[[R], tuple[Any, ...]]) -> Records:
        """A copy of the records in the order of the keys."""
        if self._went or self._came:
            self._reorder()
        if self._changed:
            rows = [self.rows[key] for key in self._changed]
            places = [bisect_left(self._order, key) for key in self._changed]
            for at, row in zip(places, rows, strict=True):
                self._values[at] = row
            self._records[places] = np.array([make(row) for row in rows], self._records.dtype)
            self._changed.clear()
        return self._records.copy()

    def _reorder(self) -> None:
        gone = sorted(bisect_left(self._order, key) for key in self._went)
        self._records = np.delete(self._records, gone)
        for at in reversed(gone):
            del self._order[at], self._values[at]
        new = sorted(self._came)
        places = [bisect_left(self._order, key) for key in new]
        self._records = np.insert(self._records, places, np.zeros(len(new), self._records.dtype))
        if len(new) > MANY:
            self._order = sorted(self.rows)
            self._values = [self.rows[key] for key in self._order]
        else:
            for at, key in zip(reversed(places), reversed(new), strict=True):
                self._order.insert(at, key)
                self._values.insert(at, self.rows[key])
        self._went.clear()
        self._came.clear()
