"""The hosts as a round of planning sees them: how much is free on each, and the first that has room for a Pod.

Free is what will be free when everybody has left who was told to leave: room of Pods whose grace has not run out
counts, room of Pods that should be gone and are not does not. Closed hosts are not in the view.

Hosts are looked at in one fixed order for the whole round: hosts without devices first, then those with the fewest free
devices, then the fullest, then by name. So Pods are packed, CPU-only Pods stay off GPU hosts while there are others,
and where they borrow, they borrow beside devices that are in use. A Pod goes to the first host that fits. Because the
order is fixed, a shape that did not fit a host does not fit it until something is given back there, and the search for
it goes on where it ended: a whole round looks at each host once for each shape, however many Pods it places.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.scheduler.columns import Bools, Columns, Ints, Records, Shape
from shoal.scheduler.rows import Host, Room, Seconds

NOWHERE = -1
Table = tuple[Ints, Ints, Ints, Ints]
"""A column for each part of a `Room`, with a line for each host."""


class Search:
    """Where the search for room for one shape has come to. Of its candidates, none before the cursor fits."""

    __slots__ = ("candidates", "cpu", "cursor", "each", "floor", "gpu", "memory", "pods", "pools")

    def __init__(self, shape: Shape, floor: int, candidates: list[int]) -> None:
        self.each = shape.each
        self.cpu, self.memory, self.gpu, self.pods = shape.each
        self.pools = shape.pools
        self.floor = floor
        """Thousandths of a core to leave for each free device of the host."""
        self.candidates = candidates
        self.cursor = 0


class View:
    def __init__(
        self, hosts: Sequence[Host], columns: Columns, now: Seconds, patience: Seconds, cpu_per_gpu: int
    ) -> None:
        records = columns.hosts
        free = {r: records[r] - records[f"others_{r}"] - records[f"taken_{r}"] for r in Room._fields}
        coming: dict[int, Room] = {}
        bare = {r: records[r] - records[f"others_{r}"] for r in Room._fields}
        for index in np.flatnonzero(records["leaving"]).tolist():
            late, coming[index] = _leaving(hosts[index], now, patience)
            for resource, amount in zip(Room._fields, late, strict=True):
                free[resource][index] -= amount
                bare[resource][index] -= amount
        has_gpu = records["gpu"] > 0
        order = np.lexsort((np.arange(len(records)), free["memory"], free["cpu"], free["gpu"], has_gpu))
        order = order[records["open"][order]]

        self.cpu_per_gpu = cpu_per_gpu
        self.names: list[str] = [hosts[index].name for index in order.tolist()]
        self.position: dict[str, int] = {name: position for position, name in enumerate(self.names)}
        self.free_cpu: list[int] = free["cpu"][order].tolist()
        self.free_memory: list[int] = free["memory"][order].tolist()
        self.free_gpu: list[int] = free["gpu"][order].tolist()
        self.free_pods: list[int] = free["pods"][order].tolist()
        self.has_gpu: list[bool] = has_gpu[order].tolist()
        self.coming: dict[int, Room] = {
            self.position[hosts[i].name]: room for i, room in coming.items() if hosts[i].open
        }
        self.capacity = Room(*(int(records[r][order].sum()) for r in Room._fields))
        self._used: list[int] = [int((records[r] - free[r])[order].sum()) for r in Room._fields]

        self._start = _table(free, order)
        self._has_gpu: Bools = has_gpu[order]
        self._pool: Ints = records["pool"][order]
        self._pool_numbers = columns.vocabulary.pools
        self.pools = frozenset(self._pool_numbers.values)
        self.bare = _table(bare, order)
        """What would be free without any training."""
        self.capacities = _table(records, order)
        self._searches: dict[tuple[Shape, int], Search] = {}
        """By shape and by how many cores it leaves for each free device."""
        self._changed_up: set[int] = set()
        """Where more is free than at the start."""

    # Looking ---------------------------------------------------------------------------------------------

    def search(self, shape: Shape, *, leaves_cores: bool = True) -> Search:
        """The search for a shape. `leaves_cores`: one without devices leaves those that free devices need, which Pods
        of services and of jobs with devices do not."""
        floor = self.cpu_per_gpu if leaves_cores and shape.each.gpu == 0 else 0
        found = self._searches.get((shape, floor))
        if found is None:
            fits = self._fits_at_start(shape, floor)
            found = self._searches[shape, floor] = Search(shape, floor, np.flatnonzero(fits).tolist())
            for position in self._changed_up:
                self._look_again(found, position)
        return found

    def first_fit(self, search: Search) -> int:
        """The first host with room for one more, or NOWHERE."""
        candidates, at, end = search.candidates, search.cursor, len(search.candidates)
        while at < end:
            position = candidates[at]
            if self.fits(search, position):
                search.cursor = at
                return position
            at += 1
        search.cursor = at
        return NOWHERE

    def fits(self, search: Search, position: int) -> bool:
        """Whether one more fits here; what is not asked for does not matter."""
        cpu, gpu = self.free_cpu[position], self.free_gpu[position]
        if search.gpu and gpu < search.gpu:
            return False
        if search.cpu and cpu < search.cpu:
            return False
        if search.memory and self.free_memory[position] < search.memory:
            return False
        if search.pods and self.free_pods[position] < search.pods:
            return False
        if search.floor and search.cpu and gpu > 0 and self.has_gpu[position]:
            return cpu - search.cpu >= search.floor * gpu
        return True

    def fits_with(self, search: Search, position: int, more: Room, times: int = 1) -> bool:
        """Whether one would fit here if so much more were free."""
        self._add(position, more, times)
        try:
            return self.fits(search, position)
        finally:
            self._add(position, more, -times)

    def how_many(self, search: Search, position: int, most: int) -> int:
        """How many more fit here, where at least one does."""
        if most == 1:
            return 1
        cpu, gpu = self.free_cpu[position], self.free_gpu[position]
        if search.floor and gpu > 0 and self.has_gpu[position]:
            cpu -= search.floor * gpu
        if search.gpu:
            most = min(most, gpu // search.gpu)
        if search.cpu:
            most = min(most, cpu // search.cpu)
        if search.memory:
            most = min(most, self.free_memory[position] // search.memory)
        if search.pods:
            most = min(most, self.free_pods[position] // search.pods)
        return most

    @property
    def used(self) -> Room:
        """Of the hosts in view, by everything that stays and everything that was planned."""
        return Room(*self._used)

    def free(self, position: int) -> Room:
        at = position
        return Room(self.free_cpu[at], self.free_memory[at], self.free_gpu[at], self.free_pods[at])

    def is_in(self, pools: frozenset[str] | None, position: int) -> bool:
        return pools is None or self._pool_numbers.values[int(self._pool[position])] in pools

    def in_pools(self, pools: frozenset[str] | None) -> Bools:
        if pools is None:
            return np.ones(len(self.names), dtype=np.bool_)
        wanted = [number for number, pool in enumerate(self._pool_numbers.values) if pool in pools]
        return np.isin(self._pool, wanted)

    def fits_bare(self, shape: Shape) -> bool:
        """Whether any host would have room without any training on it."""
        return bool(self._enough(self.bare, shape).any())

    def fits_empty(self, shape: Shape) -> bool:
        """Whether any host would have room with nothing on it at all."""
        return bool(self._enough(self.capacities, shape).any())

    def bare_at(self, position: int) -> Room:
        """What would be free there without any training."""
        return Room(*(int(column[position]) for column in self.bare))

    def live(self) -> Table:
        """What is free now, in columns."""
        return np.array(self.free_cpu), np.array(self.free_memory), np.array(self.free_gpu), np.array(self.free_pods)

    # Planning --------------------------------------------------------------------------------------------

    def take(self, position: int, room: Room, times: int = 1) -> None:
        self._add(position, room, -times)
        self.use(room, times)

    def use(self, room: Room, times: int) -> None:
        """Count it as used, wherever it is."""
        used = self._used
        used[0] += room.cpu * times
        used[1] += room.memory * times
        used[2] += room.gpu * times
        used[3] += room.pods * times

    def give(self, position: int, room: Room, times: int = 1) -> None:
        self._add(position, room, times)
        self.use(room, -times)
        self._changed_up.add(position)
        for search in self._searches.values():
            self._look_again(search, position)

    def keep(self, position: int, room: Room) -> None:
        """Keep room for somebody who cannot have it yet: nobody else finds it, though nobody uses it. What is not
        free today is kept as well, so free may be less than nothing."""
        self._add(position, room, -1)

    def keep_what_is_leaving(self) -> None:
        """From here on only what is free now is found, and not what somebody is still leaving."""
        for position, room in self.coming.items():
            self.keep(position, room)

    def take_from_bare(self, position: int, room: Room) -> None:
        """A service goes here, and will be in the way even when no training is."""
        for column, amount in zip(self.bare, room, strict=True):
            column[position] -= amount

    def _add(self, position: int, room: Room, times: int) -> None:
        cpu, memory, gpu, pods = room
        self.free_cpu[position] += cpu * times
        self.free_memory[position] += memory * times
        self.free_gpu[position] += gpu * times
        self.free_pods[position] += pods * times

    def _look_again(self, search: Search, position: int) -> None:
        if not self.is_in(search.pools, position):
            return
        at = bisect_left(search.candidates, position)
        if at == len(search.candidates) or search.candidates[at] != position:
            insort(search.candidates, position)
        search.cursor = min(search.cursor, at)

    def _fits_at_start(self, shape: Shape, floor: int) -> Bools:
        cpu, _, gpu, _ = self._start
        fits = self._enough(self._start, shape)
        if floor and shape.each.cpu:
            fits &= ~self._has_gpu | (cpu - shape.each.cpu >= floor * np.maximum(gpu, 0))
        return fits

    def _enough(self, free: Table, shape: Shape) -> Bools:
        fits = self.in_pools(shape.pools)
        for column, amount in zip(free, shape.each, strict=True):
            if amount:
                fits &= column >= amount
        return fits


def _table(columns: Mapping[str, Ints] | Records, order: Ints) -> Table:
    return columns["cpu"][order], columns["memory"][order], columns["gpu"][order], columns["pods"][order]


def _leaving(host: Host, now: Seconds, patience: Seconds) -> tuple[Room, Room]:
    """What Pods have that should be gone and are not, and what those have that still may leave in time."""
    late, soon = Room(), Room()
    for leaving in host.leaving:
        if leaving.until + patience < now:
            late = late.plus(leaving.room)
        else:
            soon = soon.plus(leaving.room)
    return late, soon
