"""Checkpoints through the real `shoal run`: whatever is killed, training goes on from the last save, and the numbers
are those of a run that nothing happened to."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import PATIENCE, JobRun, shoal_run

from shoal.checkpoint import manifests
from shoal.checkpoint.folder import LocalFolder

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).with_name("train_saving.py")


def job(tmp: Path, *flags: str, args: tuple[str, ...] = ()):  # type: ignore[no-untyped-def]
    tmp.mkdir(exist_ok=True)
    return shoal_run(tmp, *flags, script=SCRIPT, script_args=("--log", str(tmp / "steps"), *args))


async def until(what: str, holds: Callable[[], bool], run: JobRun) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                assert run.process.returncode is None, f"the run ended before {what}\n{run.output}"
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}\n{run.output}") from None


def held(run: JobRun) -> list[Path]:
    """The processes that stand at `--hold-at`."""
    return list(run.logs.glob("held-*"))


def memory_of(agent: int) -> Path:
    """The home of an agent: it has that lock open. Other jobs of this machine have homes beside it."""
    opened = (os.readlink(fd) for fd in Path(f"/proc/{agent}/fd").iterdir())
    return next(Path(path).parent for path in opened if "/shoal-memory-" in path and path.endswith("/lock"))


def steps_of(directory: Path) -> list[int]:
    """The checkpoints in a directory, the newest first; all must be good."""
    folder = LocalFolder(directory)

    def fail(exc: manifests.Damaged) -> None:
        raise AssertionError(str(exc))

    found = list(manifests.scan(folder, damaged=fail))
    return [manifests.load(folder, each).header.step for each in found]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of a run that nothing happens to."""

    async def run_it() -> dict[int, float]:
        async with job(tmp_path_factory.mktemp("unbroken")) as run:
            assert await run.ended() == 0, run.output
            return run.losses()

    losses = asyncio.run(run_it())
    assert len(losses) == 40
    return losses


def assert_same(losses: dict[int, float], wanted: dict[int, float]) -> None:
    assert losses.keys() == wanted.keys()
    assert max(abs(losses[step] - wanted[step]) for step in wanted) < 1e-9


async def test_all_processes_are_killed_and_training_goes_on_from_memory(
    tmp_path: Path, unbroken: dict[int, float]
) -> None:
    """No directory at all: the agents live, and one of them has the last save in its memory."""
    hold = ("--hold-at", "23", "--release", str(tmp_path / "go"))
    async with job(tmp_path, "--nnodes", "2", args=hold) as run:
        await until("both to stand", lambda: len(held(run)) == 2, run)
        before = held(run)
        (tmp_path / "go").touch()
        for each in before:
            os.kill(int(each.name.removeprefix("held-")), signal.SIGKILL)
        assert await run.ended() == 0, run.output
        assert "restored step 20 from the agent's memory" in run.output
        assert_same(run.losses(), unbroken)


async def test_a_new_run_goes_on_from_the_directory_with_another_number_of_workers(
    tmp_path: Path, unbroken: dict[int, float]
) -> None:
    directory = str(tmp_path / "kept")
    where = ("--checkpoint-dir", directory, "--keep", "2")
    async with job(tmp_path / "first", "--nnodes", "1", *where, args=("--steps", "20")) as run:
        assert await run.ended() == 0, run.output
        losses = run.losses()
    assert steps_of(Path(directory)) == [20, 15]
    async with job(tmp_path / "second", "--nnodes", "3", *where) as run:
        assert await run.ended() == 0, run.output
        assert f"restored step 20 from {directory} (step-000000000020)" in run.output
        losses |= run.losses()
    assert steps_of(Path(directory)) == [40, 35]
    assert_same(losses, unbroken)


async def test_the_agent_is_killed_and_the_last_one_on_disk_counts(tmp_path: Path, unbroken: dict[int, float]) -> None:
    directory = tmp_path / "kept"
    hold = ("--hold-at", "23", "--release", str(tmp_path / "go"))
    async with job(tmp_path, "--nnodes", "1", "--checkpoint-dir", str(directory), args=hold) as run:
        await until("it to stand", lambda: len(held(run)) == 1, run)
        await until("the disk", lambda: (directory / "step-000000000020.json").exists(), run)
        state = await run.wait_for("the agent", lambda s: bool(s["nodes"]))
        home = memory_of(state["nodes"][0]["pid"])
        assert home.exists()
        (tmp_path / "go").touch()
        os.kill(state["nodes"][0]["pid"], signal.SIGKILL)
        assert await run.ended() == 0, run.output
        assert f"restored step 20 from {directory}" in run.output
        assert_same(run.losses(), unbroken)
    assert not home.exists(), "the killed agent's memory is still there"


@pytest.mark.slow
async def test_a_damaged_checkpoint_is_told_and_the_one_before_it_used(
    tmp_path: Path, unbroken: dict[int, float]
) -> None:
    directory = tmp_path / "kept"
    where = ("--checkpoint-dir", str(directory))
    async with job(tmp_path / "first", *where, args=("--steps", "20")) as run:
        assert await run.ended() == 0, run.output
        losses = run.losses()
    name = json.loads((directory / "step-000000000020.json").read_text())["data"]
    data = bytearray((directory / name).read_bytes())
    data[len(data) // 2] ^= 1
    (directory / name).write_bytes(data)
    async with job(tmp_path / "second", *where) as run:
        assert await run.ended() == 0, run.output
        assert "WARNING: a checkpoint is damaged" in run.output
        assert "step-000000000020: its data differs from what was written" in run.output
        assert "restored step 15 from" in run.output
        again = run.losses()
    assert_same(losses | again, unbroken)


@pytest.mark.slow
async def test_a_checkpoint_of_another_model_ends_the_job_with_the_difference(tmp_path: Path) -> None:
    where = ("--checkpoint-dir", str(tmp_path / "kept"))
    async with job(tmp_path / "first", *where, args=("--steps", "5")) as run:
        assert await run.ended() == 0, run.output
    async with job(tmp_path / "second", *where, args=("--wide",)) as run:
        assert await run.ended() == 1
        assert "the checkpoint of step 5 in" in run.output
        assert "is of another model: it has parameter 0.weight" in run.output


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["auto", "0"], ids=["in-memory", "disk-only"])
async def test_a_directory_that_cannot_be_written_does_not_stop_training(
    tmp_path: Path, memory: str, unbroken: dict[int, float]
) -> None:
    """A path below a file: nobody can make that, not even root."""
    (tmp_path / "file").touch()
    limit = () if memory == "auto" else ("--checkpoint-memory", memory)
    async with job(tmp_path / "run", "--checkpoint-dir", str(tmp_path / "file" / "kept"), *limit) as run:
        assert await run.ended() == 0, run.output
        assert run.output.count("training goes on") == 1
        assert_same(run.losses(), unbroken)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize("memory", ["auto", "0"], ids=["in-memory", "disk-only"])
async def test_a_full_disk_does_not_stop_training_and_what_was_written_is_left(
    tmp_path: Path, small_disk: Path, memory: str, unbroken: dict[int, float]
) -> None:
    where = ("--checkpoint-dir", str(small_disk), *(() if memory == "auto" else ("--checkpoint-memory", memory)))
    async with job(tmp_path / "first", *where, args=("--steps", "10")) as run:
        assert await run.ended() == 0, run.output
    losses = run.losses()
    assert steps_of(small_disk) == [10, 5]
    async with job(tmp_path / "second", *where, args=("--ballast", "2")) as run:
        assert await run.ended() == 0, run.output
        assert run.output.count("No space left on device") == 1
        assert "training goes on" in run.output
        assert_same(losses | run.losses(), unbroken)
    assert steps_of(small_disk) == [10, 5]
    assert len(os.listdir(small_disk)) == 4, "what could not be finished was removed"


@pytest.mark.slow
async def test_without_shared_memory_saves_go_to_disk_and_it_is_said_once(
    tmp_path: Path, unbroken: dict[int, float]
) -> None:
    directory = tmp_path / "kept"
    where = ("--checkpoint-dir", str(directory), "--checkpoint-memory", "0")
    async with job(tmp_path / "run", *where) as run:
        assert await run.ended() == 0, run.output
        assert run.output.count("no shared memory for checkpoints") == 1
        assert_same(run.losses(), unbroken)
    assert steps_of(directory) == [40, 35, 30]


async def test_a_node_and_all_processes_are_lost_and_another_agent_has_the_replica(
    tmp_path: Path, unbroken: dict[int, float]
) -> None:
    """No directory: the only other copy of what the first node saved is in the second agent's memory."""
    hold = ("--hold-at", "23", "--release", str(tmp_path / "go"), "--every", "20")
    async with job(tmp_path, "--nnodes", "1:2", "--checkpoint-replica", args=hold) as run:
        await until("both to stand", lambda: len(held(run)) == 2, run)
        await until("the replica", lambda: "keeps a copy of its checkpoints, so far of step 20" in run.output, run)
        state = await run.wait_for("both processes", lambda s: len(run.pids(s)) == 2)
        (tmp_path / "go").touch()
        os.kill(run.agents(state)[0], signal.SIGKILL)
        os.kill(run.pids(state)[1], signal.SIGKILL)
        assert await run.ended() == 0, run.output
        assert "restored step 20 from the agent's memory" in run.output
        assert_same(run.losses(), unbroken)
