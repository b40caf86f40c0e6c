"""The small pure parts: keyed seeds, phases of a change, the error file; and what importing them costs."""

import json
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shoal.trainer.errorfile import VARIABLE, write_error
from shoal.trainer.keyed import stream_seed
from shoal.trainer.phases import Change, resized

NUMBERS = st.integers(0, 2**40)


@given(st.integers(-(2**63), 2**64), NUMBERS, NUMBERS)
def test_a_seed_is_one_that_torch_takes(seed: int, step: int, micro_batch: int) -> None:
    assert 0 <= stream_seed(seed, step, micro_batch) < 2**64


@given(st.sets(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=2, max_size=50))
def test_different_keys_have_different_streams(keys: set[tuple[int, int, int]]) -> None:
    assert len({stream_seed(*key) for key in keys}) == len(keys)


def test_a_seed_is_the_same_in_every_version() -> None:
    """Known values: a job whose members run different releases draws the same dropout."""
    assert [stream_seed(0, 0, 0), stream_seed(3, 7, 1)] == [2558736989570252433, 9826705540319768415]


def test_the_phases_of_a_change_add_up() -> None:
    change = Change(noticed=10.0, stopped=10.5, lost_steps=1, formed=11.0, restored=11.25)
    report = resized(change, generation=4, rank=1, now=12.0)
    assert (report.drain, report.rendezvous, report.restore, report.first_step) == (0.5, 0.5, 0.25, 0.75)
    assert report.lost_steps == 1


def test_a_change_that_is_broken_again_goes_on_counting() -> None:
    change = Change(noticed=1.0, stopped=2.0, lost_steps=1, formed=3.0, restored=4.0).broken_again(lost_steps=1)
    assert change == Change(noticed=1.0, stopped=2.0, lost_steps=2)


def test_the_first_error_stays_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    write_error(ValueError("first"), {VARIABLE: str(path)})
    write_error(ValueError("second"), {VARIABLE: str(path)})
    content = json.loads(path.read_text())
    assert content["message"]["message"] == "ValueError: first"
    assert "ValueError: first" in content["message"]["extraInfo"]["py_callstack"]


def test_without_a_place_for_it_an_error_is_left_nowhere(tmp_path: Path) -> None:
    write_error(ValueError("x"), {})
    write_error(ValueError("x"), {VARIABLE: str(tmp_path / "no" / "such" / "directory")})


def test_importing_the_trainer_imports_no_framework_and_no_server() -> None:
    code = "import shoal.trainer, sys; print(*(m for m in ('torch', 'aiohttp', 'numpy', 'typer') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
