"""`shoal checkpoint`: what people see of a folder."""

import json
from pathlib import Path

import pytest
from tests.checkpoint.builders import an_image

from shoal.checkpoint import manifests
from shoal.checkpoint.folder import LocalFolder
from shoal.cli import main


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A directory with the steps 1 and 2."""
    for step in (1, 2):
        image = memoryview(an_image(step, nbytes=3000))
        manifests.write(LocalFolder(tmp_path), [image], job="mnist\x1b[2J", step=step, saved_at=1.7e9)
    return tmp_path


def test_ls_has_a_line_for_each(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "ls", str(kept)]) == 0
    title, newest, older = capsys.readouterr().out.splitlines()
    assert title.split() == ["CHECKPOINT", "STEP", "SIZE", "SAVED", "JOB"]
    assert newest.split() == ["step-000000000002", "2", "6.9", "KiB", "2023-11-14", "22:13:20", "UTC", "mnist"]
    assert older.startswith("step-000000000001")


def test_ls_as_json(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "ls", "-o", "json", str(kept)]) == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)] == [2, 1]


def test_inspect_shows_the_newest_or_the_one_asked_for(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "inspect", str(kept)]) == 0
    out = capsys.readouterr().out
    assert "step 2 of job" in out
    assert "state['epoch'] = 3" in out
    assert "weight  uint8  3000" in out
    assert main(["checkpoint", "inspect", str(kept), "1"]) == 0
    assert "step 1 of job" in capsys.readouterr().out
    assert main(["checkpoint", "inspect", str(kept), "9"]) == 1
    assert "no checkpoint 9 in" in capsys.readouterr().err


def test_verify_names_what_is_damaged(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "verify", str(kept)]) == 0
    assert capsys.readouterr().out.count("good") == 2
    (data,) = kept.glob("step-000000000002-*.data")
    data.write_bytes(data.read_bytes()[:-1])
    assert main(["checkpoint", "verify", str(kept)]) == 1
    assert "DAMAGED" in (out := capsys.readouterr().out)
    assert "step-000000000001: good" in out


def test_an_empty_directory_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "ls", str(tmp_path / "nothing")]) == 0
    assert "no checkpoints in" in capsys.readouterr().out
    assert main(["checkpoint", "verify", str(tmp_path / "nothing")]) == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param(("--checkpoint-dir", "nonsense://a"), "nonsense", id="unknown-url"),
        pytest.param(("--checkpoint-dir", __file__), "is not a directory", id="a-file"),
        pytest.param(("--keep", "0"), "--keep wants a whole number of at least 1", id="keep-nothing"),
        pytest.param(("--checkpoint-memory", "-1"), "--checkpoint-memory wants a whole number", id="memory"),
    ],
)
def test_wrong_flags_of_run_are_refused_before_anything_starts(
    flags: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *flags, __file__]) == 2
    assert said in capsys.readouterr().err
