"""Datasets in the elastic world, with real processes and collectives: what the model has seen, with which weight."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch import data_scripts
from tests.torch.crew import Crew, Worker
from torch import nn

from shoal.core.ledger import GlobalBatch, records, step_slice, total_steps
from shoal.trainer.job import dataset_spec

pytestmark = pytest.mark.torch

MakeCrew = Callable[..., Crew]


def alone(a_crew: MakeCrew, script: Any, **options: Any) -> Worker:
    crew = a_crew(max_nodes=1, name="alone")
    worker = crew.start_one(script, "alone", {}, **options)
    crew.finish()
    return worker


def together(a_crew: MakeCrew, workers: int, script: Any, **options: Any) -> Worker:
    crew = a_crew(max_nodes=workers, name=f"with-{workers}")
    crew.start(script, [f"worker-{i}" for i in range(workers)], **options)
    crew.finish()
    return crew.workers["worker-0"]


KILLS = {
    "worker-1": (2, "before"),
    "worker-3": (4, "in"),
    "worker-0": (6, "after"),
    "worker-2": (8, "committed"),
}


@pytest.mark.parametrize(
    ("mode", "micro_batches"),
    [("sharded", "world"), ("sharded", 4), ("ordered", 4)],
    ids=["dealt-to-the-world", "dealt-to-a-fixed-batch", "ordered"],
)
def test_the_model_has_seen_every_record_once_an_epoch_wherever_members_die(
    a_crew: MakeCrew, mode: str, micro_batches: Any
) -> None:
    crew = a_crew(max_nodes=5)
    nodes = [f"worker-{i}" for i in range(5)]
    crew.start(data_scripts.counting, nodes, mode=mode, micro_batches=micro_batches, kills=KILLS)
    crew.finish("worker-4")
    survivor = crew.workers["worker-4"]
    assert [size for _, size in survivor.told("entered")] == [5, 4, 3, 2, 1]
    ((seen, _),) = survivor.told("final")
    assert seen == pytest.approx([3.0] * 61, abs=1e-9)


def test_a_newcomer_reads_on_where_the_world_stands(a_crew: MakeCrew) -> None:
    crew = a_crew(max_nodes=3)
    gates = range(5, 64)
    crew.start(data_scripts.counting, ["worker-0"], mode="sharded", gates=gates)
    oldest, step = crew.workers["worker-0"], gates.start
    for node, worlds in (("worker-1", 2), ("worker-2", 3)):
        crew.wait_gate(step)
        crew.start(data_scripts.counting, [node], admit=False, mode="sharded")
        crew.hub.wait_for(lambda hub, node=node: hub.has_waiting(node))
        crew.hub.admit(node)
        while len(oldest.told("entered")) < worlds:  # the word of the new world reaches it some steps later
            crew.open_gate(step)
            step += 1
            crew.wait_gate(step)
    for later in range(step, gates.stop):
        crew.open_gate(later)
    crew.finish()
    assert [size for _, size in oldest.told("entered")] == [1, 2, 3]
    for worker in crew.workers.values():
        ((seen, _),) = worker.told("final")
        assert seen == pytest.approx([3.0] * 61, abs=1e-9)


def test_a_member_without_records_takes_part_in_the_step(a_crew: MakeCrew) -> None:
    """Eleven records in steps of nine: the third in rank, whoever that is, has nothing in the second."""
    crew = a_crew(max_nodes=3)
    crew.start(data_scripts.counting, [f"worker-{i}" for i in range(3)], mode="sharded", size=11, epochs=2)
    crew.finish()
    got = sorted([count for _, count in worker.told("records")] for worker in crew.workers.values())
    assert got == [[3, 0, 3, 0], [3, 1, 3, 1], [3, 1, 3, 1]]
    for worker in crew.workers.values():
        assert worker.told("final") == [(pytest.approx([2.0] * 11, abs=1e-9), 4)]


@pytest.mark.parametrize("mode", ["ordered", "sharded"])
def test_the_short_last_step_is_the_same_with_any_number_of_workers(a_crew: MakeCrew, mode: str) -> None:
    """50 records in steps of 12: the fifth step has two, in one micro-batch of three."""
    reference = alone(a_crew, data_scripts.regression, mode=mode)
    for workers in (2, 3):
        worker = together(a_crew, workers, data_scripts.regression, mode=mode)
        assert len(worker.told("loss")) == 15
        assert dict(worker.told("loss")) == pytest.approx(dict(reference.told("loss")), abs=1e-9)
        assert worker.told("final")[0] == pytest.approx(reference.told("final")[0], abs=1e-9)


def test_the_short_last_step_weighs_by_its_records(a_crew: MakeCrew) -> None:
    """Beside plain PyTorch, one batch at a time. Of 53 records the last step has five: four and one."""
    worker = together(a_crew, 2, data_scripts.regression, mode="ordered", size=53, norms=False)
    model = nn.Linear(6, 1, bias=False).double()
    nn.init.constant_(model.weight, 0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batch = GlobalBatch(micro_batches=3, micro_batch_size=4)
    spec = dataset_spec("train", size=53, epochs=3, shuffle="samples", seed=5, batch=batch)
    steps, losses = total_steps(spec), {}
    assert steps == 15
    for step in range(steps):
        whole = step_slice(spec, step)
        x, y = data_scripts.batch_of(list(records(spec, whole.epoch, [(whole.start, whole.stop)])))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses[step + 1] = loss.item()
    assert dict(worker.told("loss")) == pytest.approx(losses, abs=1e-9)
    assert worker.told("final")[0] == pytest.approx(model.weight.flatten().tolist(), abs=1e-9)


def test_what_is_dropped_is_less_than_a_step(a_crew: MakeCrew) -> None:
    worker = alone(a_crew, data_scripts.regression, mode="ordered", drop_last=True)
    assert len(worker.told("loss")) == 3 * (50 // 12)
