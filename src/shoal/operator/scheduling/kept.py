"""What a round can take over from the one before: few hosts and jobs change in a few seconds.

- which hosts a placement admits: worked out once for each host as it is;
- the rows in columns (`Board`): only rows that are new or another are put there again.

It belongs to one sequence of rounds, and changes with each. What a round gets from it is a value.
"""

from collections.abc import Iterable, Mapping, Sequence

from shoal.core.hosts import HostSeen, Placement
from shoal.scheduler.board import Board
from shoal.scheduler.rows import Host, Job, JobKey, Quota, ServicePod
from shoal.scheduler.snapshot import Snapshot

_MANY = 64
"""Placements that nobody asks for any more are forgotten when there are so many more than are asked for."""


class Kept:
    def __init__(self) -> None:
        self._placements: dict[Placement, int] = {}
        self._admitted: dict[str, tuple[HostSeen, int, int]] = {}
        """By host: as it was, how many placements were asked, and a bit for each that admits it."""
        self._board = Board()
        self._hosts: dict[str, Host] = {}
        self._jobs: dict[JobKey, Job] = {}

    def admitted(self, hosts: Iterable[HostSeen], placements: Sequence[Placement]) -> dict[str, int]:
        """For each host a bit for each placement that admits it, in their order, which is that of `placements`."""
        wanted = dict.fromkeys(placements)
        if len(self._placements) > len(wanted) + _MANY:
            self._placements, self._admitted = {}, {}
        for each in wanted:
            self._placements.setdefault(each, len(self._placements))
        numbers = [self._placements[each] for each in wanted]
        in_order = numbers == list(range(len(self._placements)))
        known: dict[str, tuple[HostSeen, int, int]] = {}
        for host in hosts:
            known[host.name] = self._asked(host)
        self._admitted = known
        if in_order:
            return {name: bits for name, (_, _, bits) in known.items()}
        chosen: dict[int, int] = {}  # hosts are of few kinds
        for _, _, bits in known.values():
            if bits not in chosen:
                chosen[bits] = sum((bits >> number & 1) << at for at, number in enumerate(numbers))
        return {name: chosen[bits] for name, (_, _, bits) in known.items()}

    def _asked(self, host: HostSeen) -> tuple[HostSeen, int, int]:
        before = self._admitted.get(host.name)
        asked, bits = (before[1], before[2]) if before is not None and before[0] is host else (0, 0)
        if before is not None and before[0] is host and asked == len(self._placements):
            return before
        for placement, number in self._placements.items():
            if number >= asked and placement.admits(host):
                bits |= 1 << number
        return host, len(self._placements), bits

    def snapshot(
        self,
        hosts: Iterable[Host],
        jobs: Iterable[Job],
        services: Iterable[ServicePod],
        quotas: Mapping[str, Quota],
        min_v: float,
    ) -> Snapshot:
        """The same as `Snapshot.of`, with the columns kept."""
        self._put_hosts({host.name: host for host in hosts})
        self._put_jobs({job.key: job for job in jobs})
        self._board.quotas = dict(quotas)
        kept = self._board.snapshot(min_v)
        return Snapshot(
            hosts=kept.hosts,
            jobs=kept.jobs,
            services=tuple(sorted(services, key=lambda pod: (pod.namespace, pod.name))),
            quotas=kept.quotas,
            min_v=min_v,
            kept_columns=kept.kept_columns,
        )

    def _put_hosts(self, rows: dict[str, Host]) -> None:
        for name in self._hosts.keys() - rows.keys():
            self._board.drop_host(name)
        for name, row in rows.items():
            if self._hosts.get(name) != row:
                self._board.put_host(row)
        self._hosts = rows

    def _put_jobs(self, rows: dict[JobKey, Job]) -> None:
        for key in self._jobs.keys() - rows.keys():
            self._board.drop_job(key)
        for key, row in rows.items():
            before = self._jobs.get(key)
            if before is not row and before != row:
                self._board.put_job(row)
        self._jobs = rows
