"""Real processes, real collectives: what a change of world may cost and what it must not change."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

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


def assert_all_enter_with_the_metrics_of_their_step(told: dict[int, float], *workers: Worker) -> None:
    for worker in workers:
        for step, metrics in worker.told("metrics"):
            assert metrics == ({"loss": told[step]} if step else {}), f"{worker.node} at step {step}"


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
    assert_all_enter_with_the_metrics_of_their_step(told, *crew.workers.values())
    ((final, seen, history, _),) = survivor.told("final")
    assert seen == 50
    assert history == list(range(1, 51))
    assert_same_training(told, final, undisturbed(a_crew, 5, steps=50), 1e-9)
    assert all(r.lost_steps <= 1 for reports in crew.hub.resized.values() for r in reports)


@pytest.mark.parametrize(
    ("dtype", "gates", "steps", "tolerance"),
    [("float64", (50, 100, 150), 200, 1e-9), ("float32", (12, 25, 37), 50, 1e-5)],
)
def test_a_run_that_is_resized_is_the_run_that_is_not(
    a_crew: MakeCrew, dtype: str, gates: tuple[int, int, int], steps: int, tolerance: float
) -> None:
    nodes = [f"worker-{i}" for i in range(4)]
    fixed = a_crew(max_nodes=4, name="fixed")
    fixed.start(scripts.regression, nodes, steps=steps, dtype=dtype)
    fixed.finish()

    crew = a_crew(max_nodes=4, name="resized")
    crew.start(scripts.regression, nodes, steps=steps, dtype=dtype, gates=gates)
    crew.start(scripts.regression, ["worker-4", "worker-5"], steps=steps, dtype=dtype, gates=gates, admit=False)
    crew.hub.wait_for(lambda hub: hub.has_waiting("worker-4", "worker-5"))
    crew.wait_gate(gates[0])
    crew.hub.leave("worker-1")
    crew.open_gate(gates[0])
    crew.wait_gate(gates[1])
    crew.hub.leave("worker-0", "worker-2")  # the source among them
    crew.open_gate(gates[1])
    crew.wait_gate(gates[2])
    crew.hub.admit("worker-1", "worker-4", "worker-5")  # one that was here before, two that have no state
    crew.open_gate(gates[2])
    crew.finish("worker-1", "worker-3", "worker-4", "worker-5")

    assert [world.size for world in crew.hub.worlds] == [4, 3, 1, 4]
    assert [type(b).__name__ for b in crew.hub.breaks] == ["Pause"] * 3
    assert [r.lost_steps for r in crew.hub.resized["worker-3"]] == [0, 0, 0]
    assert len({pid for *_, pid in crew.workers["worker-3"].told("entered")}) == 1
    told = losses(*crew.workers.values())
    assert sorted(told) == list(range(1, steps + 1))
    assert_all_enter_with_the_metrics_of_their_step(told, *crew.workers.values())
    finals = [crew.workers[n].told("final")[0] for n in ("worker-1", "worker-3", "worker-4", "worker-5")]
    for final, seen, history, _ in finals:
        assert final == finals[0][0]
        assert (seen, history) == (steps, list(range(1, steps + 1)))
    assert_same_training(told, finals[0][0], fixed.workers["worker-0"], tolerance)


def test_no_thread_of_the_library_is_left_when_training_is_over(a_crew: MakeCrew) -> None:
    """One that drops a tensor while the interpreter ends aborts the process: "terminate called without ..."."""
    crew = a_crew(max_nodes=3)
    crew.start(scripts.regression, ["worker-0", "worker-1", "worker-2"], steps=20, kills={"worker-1": (10, "in")})
    crew.finish("worker-0", "worker-2")
    assert [crew.workers[node].told("gloo") for node in ("worker-0", "worker-2")] == [[[]], [[]]]


def test_every_worker_makes_the_same_collectives_whatever_its_share_and_its_parameters(a_crew: MakeCrew) -> None:
    """Three workers, two micro-batches: one worker has none. One branch nobody uses, one only some batches use."""
    crew = a_crew(max_nodes=3)
    crew.start(scripts.branches, ["worker-0", "worker-1", "worker-2"], steps=12, micro_batches=2)
    crew.finish()
    alone = a_crew(max_nodes=1, name="alone")
    reference = alone.start_one(scripts.branches, "alone", {}, steps=12, micro_batches=2)
    alone.finish()
    ((wanted, untouched, _),) = reference.told("final")
    assert untouched, "weight decay moved a parameter that nothing uses"
    for worker in crew.workers.values():
        ((final, untouched, reduced),) = worker.told("final")
        assert untouched
        assert reduced == 3.0
        assert final == pytest.approx(wanted, rel=0, abs=1e-12)
    assert crew.hub.worlds[0].size == 3


def test_a_model_that_differs_ends_the_process_that_differs(a_crew: MakeCrew, tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    crew = a_crew(max_nodes=2)
    good, bad = crew.hub.add("worker-0", admit=False), crew.hub.add("worker-1", admit=False)
    crew.start_one(scripts.sized, "worker-0", {"SHOAL_AGENT_SOCKET": good}, width=8)
    crew.hub.wait_for(lambda hub: hub.has_waiting("worker-0"))  # the older one is the source
    worker = crew.start_one(
        scripts.sized, "worker-1", {"SHOAL_AGENT_SOCKET": bad, "TORCHELASTIC_ERROR_FILE": str(error_file)}, width=9
    )
    crew.hub.wait_for(lambda hub: hub.has_waiting("worker-1"))
    crew.hub.admit("worker-0", "worker-1")
    assert worker.exit_code() == 76
    sentence = (
        "the training state differs between workers: rank 1 has parameter weight of torch.float32 [1, 9] "
        "where rank 0, whose state everybody takes, has parameter weight of torch.float32 [1, 8]"
    )
    assert sentence in worker.printed()
    assert sentence in json.loads(error_file.read_text())["message"]["message"]
    crew.finish("worker-0")  # goes on without it


def test_a_process_without_its_agent_ends(a_crew: MakeCrew) -> None:
    crew = a_crew(max_nodes=1)
    crew.start(scripts.regression, ["worker-0"], steps=5, gates=(3,))
    crew.wait_gate(3)
    crew.hub.close()
    worker = crew.workers["worker-0"]
    assert worker.exit_code() == 1
    assert "agent of this process is gone" in worker.printed()


def test_stacks_are_printed_on_request(a_crew: MakeCrew) -> None:
    crew = a_crew(max_nodes=2)
    crew.start(scripts.regression, ["worker-0", "worker-1"], steps=5, gates=(3,))
    crew.wait_gate(3)
    crew.hub.wait_for(lambda hub: any(r.step == 3 for r in hub.reports.get("worker-1", [])))
    waiting = crew.workers["worker-1"]  # for rank 0, in step 3
    os.kill(waiting.process.pid, signal.SIGUSR2)
    crew.open_gate(3)
    crew.finish()
    assert "most recent call first" in waiting.printed()
    assert "in train" in waiting.printed()


def test_reports_tell_of_every_worker_up_to_the_last_step(a_crew: MakeCrew) -> None:
    crew = a_crew(max_nodes=2)
    crew.start(scripts.regression, ["worker-0", "worker-1"], steps=5)
    crew.finish()
    for worker in crew.workers.values():
        last = crew.hub.reports[worker.node][-1]
        assert (last.step, last.samples, last.generation) == (5, 5 * 2 * 4, 1)
        assert last.metrics == {"loss": worker.told("loss")[-1][1]}
        assert last.collectives == 5 * 2 + 3  # two buckets a step; who has a checkpoint; header and tensors


def test_losses_in_quick_succession_end_in_one_world(a_crew: MakeCrew) -> None:
    """Two die at once, then one more while the survivors are still forming the next world."""
    nodes = [f"worker-{i}" for i in range(5)]
    crew = a_crew(max_nodes=5)
    crew.start(scripts.regression, nodes, steps=40, gates=(20,))
    crew.wait_gate(20)
    crew.workers["worker-0"].kill()
    crew.workers["worker-3"].kill()
    crew.hub.wait_for(lambda hub: hub.breaks)
    crew.workers["worker-1"].kill()
    crew.open_gate(20)
    crew.finish("worker-2", "worker-4")
    assert crew.hub.worlds[-1].size == 2
    told = losses(*crew.workers.values())
    final = crew.workers["worker-4"].told("final")[0][0]
    assert_same_training(told, final, undisturbed(a_crew, 5, steps=40), 1e-9)


def test_a_batch_that_follows_the_world_still_takes_every_sample_once(a_crew: MakeCrew) -> None:
    crew = a_crew(max_nodes=3)
    crew.start(scripts.following, ["worker-0", "worker-1", "worker-2"], steps=12, gates=(6,))
    crew.wait_gate(6)
    crew.hub.leave("worker-0")
    crew.open_gate(6)
    crew.finish("worker-1", "worker-2")
    assert [world.size for world in crew.hub.worlds] == [3, 2]
    taken = sorted(n for worker in crew.workers.values() for samples in worker.told("did") for n in samples)
    samples, rate = crew.workers["worker-1"].told("final")[0]
    assert taken == list(range(samples))
    assert rate == 0.02


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_kills_joins_and_leaves_is_the_same_training(a_crew: MakeCrew, seed: int) -> None:
    random, steps = Random(seed), 300
    crew = a_crew(max_nodes=4)
    live = [f"worker-{i}" for i in range(3)]
    spare = [f"worker-{i}" for i in range(3, 8)]
    crew.start(scripts.regression, live, steps=steps, gates=(0, steps - 1))
    crew.start(scripts.regression, spare, steps=steps, gates=(0, steps - 1), admit=False)
    crew.hub.wait_for(lambda hub: hub.has_waiting(*spare))
    crew.open_gate(0)
    for _ in range(8):
        node = random.choice(live)
        crew.wait_told(node, "loss", len(crew.workers[node].told("loss")) + random.randrange(1, 12))
        event = random.choice([e for e in ("kill", "join", "leave") if (len(live) > 1 if e != "join" else spare)])
        if event == "join" and len(live) < 4:
            live.append(spare.pop())
            crew.hub.admit(live[-1])
        elif event == "kill":
            live.remove(victim := random.choice(live))
            crew.workers[victim].kill()
        elif event == "leave":
            live.remove(victim := random.choice(live))
            crew.hub.leave(victim)
    crew.open_gate(steps - 1)
    crew.finish(*live)
    told = losses(*crew.workers.values())
    assert sorted(told) == list(range(1, steps + 1))
    reference = undisturbed(a_crew, 4, steps=steps)
    for node in live:
        assert_same_training(told, crew.workers[node].told("final")[0][0], reference, 1e-9)
