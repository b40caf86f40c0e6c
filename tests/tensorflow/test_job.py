"""A whole job with parameter servers, as a user runs it: `shoal run`, real agents, real TensorFlow, and everything
that can happen to it while it trains."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import JobRun, shoal_run
from tests.tensorflow.nodes import in_worker

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("train_ctr.py")
BATCH = 256
RECORDS = 600 * BATCH
SEEDS = tuple(range(1, 11))
State = dict[str, Any]


class PSJob:
    """A running job, and what is done to it."""

    def __init__(self, run: JobRun) -> None:
        self.run = run

    async def until(self, what: str, holds: Callable[[State], bool]) -> State:
        return await self.run.wait_for(what, holds)

    async def scale(self, **roles: int) -> None:
        await self.run.command("scale", "job", *(f"{role}={count}" for role, count in roles.items()))

    async def trains(self, *, servers: int | None = None, workers: int | None = None) -> State:
        """Wait until so many servers hold the model and so many workers have trained, and a step more."""

        def holds(state: State) -> bool:
            s = state["servers"]
            has_servers = servers is None or (s["servers"] == servers and len(nodes(state, "ps")) == servers)
            at = [step for step in steps(state).values() if step is not None]
            return has_servers and (workers is None or len(at) == workers == len(nodes(state, "worker")))

        reached = await self.until(f"{servers} servers and {workers} workers", lambda s: is_calm(s) and holds(s))
        return await self.until("a step more", lambda s: (s["step"] or 0) > (reached["step"] or 0))

    async def kill(self, node: str, how: signal.Signals = signal.SIGKILL) -> None:
        """End its process, or stop it, and wait until another one is there."""
        before = pid_of(await self.state(), node)
        assert before is not None, f"{node} has no process"
        os.kill(before, how)
        await self.until(f"another process of {node}", lambda s: pid_of(s, node) not in (None, before))

    async def state(self) -> State:
        return await self.until("its state", lambda _: True)


def nodes(state: State, role: str) -> list[State]:
    return [node for node in state["nodes"] if node["role"] == role and node["status"] == "running"]


def steps(state: State) -> dict[str, int | None]:
    return {node["node"]: process["step"] for node in nodes(state, "worker") for process in node["processes"]}


def pid_of(state: State, name: str) -> int | None:
    return next((p["pid"] for node in state["nodes"] if node["node"] == name for p in node["processes"]), None)


def is_calm(state: State) -> bool:
    changes = state["servers"]["changes"]
    return state["phase"] == "running" and (not changes or changes[-1]["phase"] is None)


async def test_the_click_model_trains_while_everything_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Callable[[str], None]
) -> None:
    """Servers 1→2→3→2, one migrated, workers 1→4→2; a server, a worker, the chief and the evaluator are killed, and
    another server is frozen."""
    gate = tmp_path / "closed"
    gate.touch()
    flags = ("--strategy", "ps", "--nnodes", "1:4", "--agents", "1", "--ps", "1:3", "--evaluator")
    saving = ("--checkpoint-dir", str(tmp_path / "checkpoints"), "--checkpoint-every", "5", "--keep", "1000")
    args = ("--gate", str(gate), "--records", str(RECORDS), "--batch-size", str(BATCH))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    async with shoal_run(tmp_path, *flags, *saving, script=SCRIPT, script_args=args) as run:
        job = PSJob(run)
        await job.trains(servers=1, workers=1)
        await job.scale(ps=2, worker=4)
        state = await job.trains(servers=2, workers=4)

        chief = state["servers"]["chief"]
        worker = next(node for node in steps(state) if node != chief)
        await job.until("a checkpoint", lambda s: s["servers"]["checkpoint"] is not None)
        await job.scale(ps=3)
        await asyncio.gather(*(job.kill(node) for node in (worker, chief, evaluator_of(state))))
        state = await job.trains(servers=3, workers=4)
        assert state["servers"]["chief"] != chief  # another took over; the old one is a worker like others now

        await job.scale(ps=2, worker=2)
        state = await job.trains(servers=2, workers=2)
        old = state["servers"]["nodes"][0]
        await run.command("scale", "job", f"{old}.cpu=2")
        state = await job.until("the migration", lambda s: is_calm(s) and old not in s["servers"]["nodes"])
        await job.trains(servers=2, workers=2)

        lost = state["servers"]["nodes"][1]
        await job.kill(lost)
        await job.until("the roll-back", lambda s: is_calm(s) and len(changes(s, "rollback")) == 1)
        state = await job.trains(servers=2, workers=2)
        frozen = state["servers"]["nodes"][0]
        await job.kill(frozen, signal.SIGSTOP)  # its agent finds it and ends it
        await job.until("the second roll-back", lambda s: is_calm(s) and len(changes(s, "rollback")) == 2)
        await job.trains(servers=2, workers=2)
        gate.unlink()
        last = await finished(job)
    moves = tell(last, run.output, figures)
    losses = in_worker("undisturbed", SEEDS, 4, RECORDS, BATCH)
    scores = {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss (\S+) \(", run.output)}
    figures("scores by step: " + ", ".join(f"{step} {scored:.4f}" for step, scored in scores.items()))
    loss = dict(last["servers"]["scores"])[last["servers"]["checkpoint_step"]]["loss"]
    low, high = range_of_another(losses)
    figures(
        f"loss on held-out records: {loss:.4f}; of {len(SEEDS)} undisturbed seeds: {min(losses):.4f} to "
        f"{max(losses):.4f}, so of another one {low:.4f} to {high:.4f}"
    )
    size, unseen, too_often = in_worker("seen", last["servers"]["checkpoint"])
    figures(f"{size} records: {unseen} not in the model, {too_often} in it more than once")

    (data,) = last["data"]
    assert (data["done"], data["records"], data["leased"]) == (RECORDS, RECORDS, 0)
    assert (size, unseen) == (RECORDS, 0)
    # At the gate a batch takes longer than a process waits before it tells what it trained: each of the two that were
    # killed had at most one in the model that it had not told of. To go back adds none: the model goes back, too.
    assert too_often <= 2 * BATCH
    assert [(c["before"], c["after"]) for c in changes(last, "resize")] == [(1, 2), (2, 3), (3, 2), (2, 2)]
    assert len(changes(last, "rollback")) == 2
    assert "it is frozen" in run.output
    assert low <= loss <= high
    assert len(moves) >= 4, "each resize was told of by the chief that did it"
    assert all(before == after for before, after in moves), "no parameter was lost on the way"
    saved = {json.loads(path.read_text())["step"] for path in (tmp_path / "checkpoints").glob("*/ckpt-*/manifest.json")}
    passed_over = {int(step) for step in re.findall(r"the checkpoint of step (\d+) will not be scored", run.output)}
    assert len(saved) > 4
    unknown = run.output.count("which was saving it, is gone")  # it may have been complete by then
    assert len(saved - scores.keys() - passed_over) <= unknown, "each is scored, or it is said that it is not"
    assert scores.keys() <= saved


def range_of_another(losses: list[float]) -> tuple[float, float]:
    """Where one more run of the same kind lies: as far below and above the others as these lie apart. Of eleven runs
    that are alike the last is the lowest or the highest of all in two of eleven cases, so their range by itself would
    not do. Beyond this one it is in two of 1,000 (drawn from 30 undisturbed runs; with five to compare with, in 35).
    The loss falls by as much in the last 50 of 600 steps: a model that has lost a twelfth of its training is seen. How
    far apart the runs lie is what their seeds make of it, the first values of all variables, and who comes first."""
    apart = max(losses) - min(losses)
    return min(losses) - apart, max(losses) + apart


def evaluator_of(state: State) -> str:
    return str(nodes(state, "evaluator")[0]["node"])


def changes(state: State, kind: str) -> list[State]:
    return [c for c in state["servers"]["changes"] if c["kind"] == kind and c["outcome"] == "done"]


async def finished(job: PSJob) -> State:
    """How the job looked in the end."""
    assert await job.run.ended() == 0, job.run.output
    kept: State = json.loads((job.run.home / "jobs" / "job" / "state.json").read_text())
    return kept


def tell(state: State, output: str, figures: Callable[[str], None]) -> list[tuple[str, str]]:
    """Every change's pause by phase, as the master saw it, and as the chief did. The checksums of all variables before
    and after each copy."""
    for change in state["servers"]["changes"]:
        if change["kind"] != "save":
            phases = ", ".join(f"{name} {change[name]:.2f}" for name in ("launch", "prepare", "drain", "move", "go"))
            figures(f"{change['kind']} {change['before']}→{change['after']}, {change['outcome']}: {phases} s")
    for pause in re.findall(r"version \d+: [\d.]+ s without a step .*checksum [0-9a-f]{64}.*", output):
        figures(pause)
    return re.findall(r"without a step .*checksum ([0-9a-f]{64}) before, ([0-9a-f]{64}) after", output)


async def test_a_script_that_only_reads_tf_config_is_restarted_when_the_servers_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "closed"
    gate.touch()
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    flags = ("--strategy", "ps", "--tf-config", "--nnodes", "1:2", "--ps", "1:2")
    checkpoints = tmp_path / "checkpoints"
    saving = ("--checkpoint-dir", str(checkpoints))
    script = Path(__file__).with_name("train_tf_config.py")
    args = ("--gate", str(gate), "--steps", "2000")
    async with shoal_run(tmp_path, *flags, *saving, script=script, script_args=args) as run:
        job = PSJob(run)
        await said(run, r"worker 0 begins at step \d+ with 1 ps", r"worker 1 begins at step \d+ with 1 ps")
        async with asyncio.timeout(150):
            while not any(checkpoints.rglob("model.ckpt-[1-9]*.index")):
                await asyncio.sleep(0.1)
        await job.scale(ps=2)
        (again, _) = await said(
            run, r"worker 0 begins at step (\d+) with 2 ps", r"worker 1 begins at step (\d+) with 2 ps"
        )
        assert int(again) > 0  # from its checkpoint
        await job.kill(str(nodes(await job.state(), "worker")[1]["node"]))
        gate.unlink()
        assert await run.ended() == 0, run.output
    assert "ends at step" in run.output


async def said(run: JobRun, *patterns: str) -> list[str]:
    """Wait until each of these was printed; the first group of each."""
    found: list[str] = []
    async with asyncio.timeout(150):
        while len(found) < len(patterns):
            assert run.process.returncode is None, run.output
            await asyncio.sleep(0.1)
            matches = [re.search(pattern, run.output) for pattern in patterns]
            found = [match[match.re.groups] for match in matches if match is not None]
    return found
