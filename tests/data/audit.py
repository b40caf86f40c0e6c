"""What real workers wrote down, beside what the ledger says."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.e2e.harness import JobRun

from shoal.core import journal
from shoal.core.job import Job
from shoal.stores.file import FileStore

Record = tuple[str, int, int]
"""Dataset, epoch, record."""


def trained(logs: Path) -> Counter[Record]:
    """How often each record was trained, by the workers' own words. A line cut short by a kill was not trained."""
    counts: Counter[Record] = Counter()
    for path in logs.glob("*.log"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                dataset, epoch, record = line.split()
                counts[dataset, int(epoch), int(record)] += 1
    return counts


def missing(counts: Counter[Record], dataset: str, *, epochs: Iterable[int], size: int) -> list[Record]:
    return [(dataset, e, r) for e in epochs for r in range(size) if not counts[dataset, e, r]]


def surplus(counts: Counter[Record]) -> int:
    """How many times a record was trained that had been trained before."""
    return sum(counts.values()) - len(counts)


async def last_state(run: JobRun) -> Job:
    """The job as its last master recorded it."""
    store = FileStore(run.home / "jobs" / run.name / "state")
    try:
        claimed = await store.claim()
    finally:
        await store.close()
    job = journal.replay(claimed.records)
    assert job is not None
    return job
