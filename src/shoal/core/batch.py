"""The fixed global batch: who computes which micro-batches of a step (elastic-job §6).

One step of the job is always the same N micro-batches, however many workers there are. Worker i of n
does a contiguous block of them; every micro-batch weighs 1/N in the gradient, so the update is the one
that N workers would have made. In a step that is not full, at the end of an epoch, each weighs by its records.
"""

from collections.abc import Sequence


def share(micro_batches: int, workers: int, rank: int) -> int:
    """How many of a step's micro-batches worker `rank` of `workers` does: N/n, and one more for the first N mod n."""
    _check(micro_batches, workers, rank)
    return micro_batches // workers + (1 if rank < micro_batches % workers else 0)


def block(micro_batches: int, workers: int, rank: int) -> range:
    """The logical micro-batches of a step that worker `rank` does. The blocks of all ranks tile 0..N-1 in order."""
    _check(micro_batches, workers, rank)
    each, more = divmod(micro_batches, workers)
    start = rank * each + min(rank, more)
    return range(start, start + each + (1 if rank < more else 0))


def weights(sizes: Sequence[int]) -> tuple[float, ...]:
    """What each micro-batch of a step counts when they have these many records: the step's mean is over records."""
    total = sum(sizes)
    if total < 1 or min(sizes) < 0:
        raise ValueError(f"a step needs records in its micro-batches, got sizes {list(sizes)}")
    return tuple(size / total for size in sizes)


def sample_range(step: int, micro_batch: int, *, micro_batches: int, size: int) -> range:
    """The samples of micro-batch `micro_batch` of step `step`: the same whoever computes them."""
    start = (step * micro_batches + micro_batch) * size
    return range(start, start + size)


def _check(micro_batches: int, workers: int, rank: int) -> None:
    if micro_batches < 1 or workers < 1 or not 0 <= rank < workers:
        raise ValueError(
            "a share needs micro_batches >= 1, workers >= 1 and 0 <= rank < workers, "
            f"got micro_batches={micro_batches}, workers={workers}, rank={rank}"
        )
