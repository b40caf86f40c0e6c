"""The examples run, alone and with two workers, and do what their texts say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent


def run(folder: Path, *command: str) -> str:
    """Run a command in a folder of its own; its output."""
    environment = {**os.environ, "SHOAL_HOME": str(folder / "home")}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def alone(folder: Path, script: str, *arguments: str) -> str:
    return run(folder, sys.executable, str(EXAMPLES / script), *arguments)


def with_two_workers(folder: Path, script: str, *arguments: str) -> str:
    return run(folder, str(BIN / "shoal"), "run", "--nnodes", "2", str(EXAMPLES / script), *arguments)


def said(output: str, step: int) -> str:
    """The line about a step, without who said it and with how many workers."""
    found = re.search(rf"step {step}: (loss [^\n]*?),? (?:with )?\d workers", output)
    assert found is not None, output
    return found[1]


def test_the_cnn_comes_out_the_same_with_one_worker_and_with_two(tmp_path: Path) -> None:
    one = alone(tmp_path, "cnn.py", "--steps", "6")
    two = with_two_workers(tmp_path, "cnn.py", "--steps", "6")
    assert said(one, 6) == said(two, 6)


def test_the_transformer_comes_out_the_same_and_is_saved(tmp_path: Path) -> None:
    one = alone(tmp_path, "char_transformer.py", "--steps", "6")
    two = with_two_workers(tmp_path, "char_transformer.py", "--steps", "6", "--save", "model.pt")
    assert said(one, 6) == said(two, 6)
    assert (tmp_path / "model.pt").stat().st_size > 0


def test_the_shards_are_trained_in_half_the_steps_by_two_workers(tmp_path: Path) -> None:
    assert "1 epochs of 2048 pictures in 128 steps" in alone(tmp_path, "shards.py", "--epochs", "1")
    assert "1 epochs of 2048 pictures in 64 steps" in with_two_workers(tmp_path, "shards.py", "--epochs", "1")


def test_the_plain_cnn_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    alone(tmp_path, "cnn_ddp.py", "--steps", "3")
    output = with_two_workers(tmp_path, "cnn_ddp.py", "--steps", "6")
    assert "going on from step 3 with 2 workers" in output
    assert "step 6: loss" in output


def test_the_plain_transformer_goes_on_from_where_torchrun_left_it(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run(tmp_path, *torchrun, str(EXAMPLES / "char_transformer_ddp.py"), "--steps", "3")
    output = with_two_workers(tmp_path, "char_transformer_ddp.py", "--steps", "6")
    assert "going on from step 3 with 2 workers" in output
    assert "step 6: loss" in output


RUN_AND_LIST_THREADS = """
import pathlib, runpy, sys
del sys.argv[0]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
print("left:", sorted(task.joinpath("comm").read_text() for task in pathlib.Path("/proc/self/task").iterdir()))
"""


@pytest.mark.parametrize("script", ["cnn_ddp.py", "char_transformer_ddp.py"])
def test_no_thread_of_gloo_is_left_when_a_plain_script_ends(tmp_path: Path, script: str) -> None:
    """It could abort the process while the interpreter ends."""
    output = run(tmp_path, sys.executable, "-c", RUN_AND_LIST_THREADS, str(EXAMPLES / script), "--steps", "2")
    assert "left: ['" in output
    assert "gloo" not in output.partition("left: ")[2]
