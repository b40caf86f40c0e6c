"""A real elastic job in a fixed order: the records of a step do not depend on who is there to compute it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.data.audit import last_state
from tests.e2e.harness import shoal_run

from shoal.core import ledger as ledgers
from shoal.core.ledger import GlobalBatch, micro_batch, records
from shoal.trainer.job import dataset_spec

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).with_name("train_ordered.py")
SPEC = dataset_spec(
    "train",
    size=200,
    epochs=2,
    shuffle="samples",
    seed=5,
    batch=GlobalBatch(micro_batches=6, micro_batch_size=2),
)


def trained(folder: Path) -> dict[tuple[int, int], set[tuple[int, ...]]]:
    """(step, micro-batch) → all records that somebody computed it with."""
    found: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for path in folder.glob("*.log"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                step, number, *rest = map(int, line.split())
                found.setdefault((step, number), set()).add(tuple(rest))
    return found


async def test_the_order_is_the_same_when_workers_die_and_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    args = ("--log", str(folder))
    async with shoal_run(tmp_path, "--nnodes", "1:3", "--agents", "3", script=SCRIPT, script_args=args) as run:
        state = await run.trains_with(3)
        os.kill(run.pids(state)[2], signal.SIGKILL)
        state = await run.wait_for("a world without it", lambda s: s["generation"] > state["generation"])
        await asyncio.sleep(0.2)
        os.kill(next(iter(run.pids(state).values())), signal.SIGKILL)
        assert await run.ended() == 0, run.output
        job = await last_state(run)
    steps = ledgers.total_steps(SPEC)
    assert steps == 2 * 17
    expected = {}
    for step in range(steps):
        for number in range(6):
            stretch = micro_batch(SPEC, step, number)
            if not len(stretch):  # in the last step of an epoch there are eight records for six times two
                continue
            expected[step, number] = {tuple(records(SPEC, stretch.epoch, [(stretch.start, stretch.stop)]))}
    assert trained(folder) == expected
    assert ledgers.is_complete(job.ledger)
    assert ledgers.account_of(job.ledger, "train").count == 200
