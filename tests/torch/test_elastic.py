"""Real processes, real collectives: what a change of world may cost and what it must not change."""

from collections.abc import Callable

import pytest
from tests.torch import scripts
from tests.torch.crew import Crew, Worker

pytestmark = pytest.mark.torch

MakeCrew = Callable[..., Crew]


def losses(*workers: Worker) -> dict[int, float]:
    """The loss of each step, from all who committed it; they must agree."""
    found: dict[int, float] = {}
    for worker in workers:
        steps = [step for step, _ in worker.told("loss")]
        assert steps == sorted(set(steps)), f"{worker.node} committed a step twice: {steps}"
        for step, loss in worker.told("loss"):
            assert found.setdefault(step, loss) == loss, f"step {step}: workers disagree"
    return found


def undisturbed(a_crew: MakeCrew, nodes: int, **options: object) -> Worker:
    """The same job, by one process alone."""
    crew = a_crew(max_nodes=nodes, name="alone")
    worker = crew.start_one(scripts.regression, "alone", {}, micro_batches=nodes, **options)
    crew.finish()
    return worker


def assert_same_training(some: dict[int, float], final: list[float], reference: Worker, tolerance: float) -> None:
    wanted = dict(reference.told("loss"))
    assert some == pytest.approx({step: wanted[step] for step in some}, rel=0, abs=tolerance)
    (values, *_) = reference.told("final")[0]
    assert final == pytest.approx(values, rel=0, abs=tolerance)


KILLS = {
    "worker-1": (10, "before"),
    "worker-3": (20, "in"),
    "worker-0": (30, "after"),
    "worker-2": (40, "update"),
}


def test_a_kill_at_any_point_of_a_step_changes_nothing(a_crew: MakeCrew) -> None:
    nodes = [f"worker-{i}" for i in range(5)]
    crew = a_crew(max_nodes=5)
    crew.start(scripts.regression, nodes, steps=50, kills=KILLS)
    crew.finish("worker-4")
    survivor = crew.workers["worker-4"]
    assert [size for _, _, size, _ in survivor.told("entered")] == [5, 4, 3, 2, 1]
    assert len({pid for *_, pid in survivor.told("entered")}) == 1
    told = losses(*crew.workers.values())
    assert sorted(told) == list(range(1, 51))
    ((final, seen, history, _),) = survivor.told("final")
    assert seen == 50
    assert history == list(range(1, 51))
    assert_same_training(told, final, undisturbed(a_crew, 5, steps=50), 1e-9)
    assert all(r.lost_steps <= 1 for reports in crew.hub.resized.values() for r in reports)
