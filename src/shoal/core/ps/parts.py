"""How variables are cut into the pieces that are placed on servers.

A large variable is cut along its first axis into a fixed number of parts, at least as many as there will ever be
parameter servers. The number stays for the life of a model, whatever the servers: then a piece has the same name and
the same rows in every version of the cluster, and moving one is a plain copy.

TensorFlow itself keeps some variables beside others: what an optimizer holds for a variable stays with it. Such a
group is placed as one **partition**, named for the variable that leads it (`grouped`).
"""

from collections.abc import Mapping, Sequence

from shoal.core.ps.cluster import Partition

SMALLEST_PART_BYTES = 64 << 10
"""Parts are not smaller than this: each costs operations of its own in every step."""


def parts_of(shape: Sequence[int], itemsize: int, most: int) -> int:
    """Into how many parts a variable is cut along its first axis."""
    if not shape:
        return 1
    nbytes = itemsize
    for length in shape:
        nbytes *= length
    return max(1, min(most, shape[0], nbytes // SMALLEST_PART_BYTES))


def grouped(leaders: Mapping[str, str], nbytes: Mapping[str, int]) -> tuple[Partition, ...]:
    """The partitions of a model, sorted by name: each variable's bytes count for the one that leads it."""
    total = dict.fromkeys(leaders.values(), 0)
    for name, leader in leaders.items():
        total[leader] += nbytes[name]
    return tuple(Partition(name=name, nbytes=total[name]) for name in sorted(total))
