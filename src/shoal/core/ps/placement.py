"""Which server holds which partition: even by bytes, and as few as possible move when servers come and go."""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from shoal.core.ps.cluster import Partition

EVEN_ENOUGH = 0.05
"""Servers that differ by no more than this part of what each holds on average are left as they are: a byte that is
moved costs a pause, a byte that lies one server further costs nothing."""


def placed(
    partitions: Sequence[Partition], ranks: Sequence[int], before: Mapping[str, int] | None = None
) -> tuple[int, ...]:
    """The rank for each partition. `before`: where each lay, by name.

    Partitions of servers that are gone go to whoever holds least, the largest first; then the fullest server hands
    partitions to the emptiest as long as that makes them more even. In the end the fullest has more than the emptiest
    by no more than the smallest partition that it holds, or by little enough (`EVEN_ENOUGH`).
    """
    known = before or {}
    rank_of = {index: known[p.name] for index, p in enumerate(partitions) if known.get(p.name) in ranks}
    load = dict.fromkeys(sorted(ranks), 0)
    for index, rank in rank_of.items():
        load[rank] += _weight(partitions[index])
    homeless = [index for index in range(len(partitions)) if index not in rank_of]
    for index in sorted(homeless, key=lambda i: (-_weight(partitions[i]), i)):
        rank = _lightest(load)
        rank_of[index] = rank
        load[rank] += _weight(partitions[index])
    _even_out(partitions, rank_of, load)
    return tuple(rank_of[index] for index in range(len(partitions)))


def _even_out(partitions: Sequence[Partition], rank_of: dict[int, int], load: dict[int, int]) -> None:
    """Each move makes the two servers differ by less than before, so there is a last one."""
    held: dict[int, list[tuple[int, int]]] = {rank: [] for rank in load}
    for weight, index in sorted((_weight(partitions[i]), -i) for i in rank_of):
        held[rank_of[-index]].append((weight, index))
    enough = EVEN_ENOUGH * sum(load.values()) / len(load)
    while True:
        heavy, light = max(load, key=lambda rank: (load[rank], -rank)), _lightest(load)
        gap = load[heavy] - load[light]
        largest = bisect_left(held[heavy], (gap,)) - 1
        if largest < 0 or gap <= enough:
            return
        weight, index = held[heavy].pop(largest)
        insort(held[light], (weight, index))
        rank_of[-index] = light
        load[heavy] -= weight
        load[light] += weight


def _lightest(load: Mapping[int, int]) -> int:
    return min(load, key=lambda rank: (load[rank], rank))


def _weight(partition: Partition) -> int:
    """Never nothing: many small ones are work too."""
    return max(1, partition.nbytes)
