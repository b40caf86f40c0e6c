"""`shoal checkpoint`: what people see of a folder."""

import json
import os
from collections.abc import Callable, Iterator
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
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    assert "no checkpoints in" in capsys.readouterr().out
    assert main(["checkpoint", "verify", str(tmp_path)]) == 1
    assert main(["checkpoint", "inspect", str(tmp_path)]) == 1
    assert f"shoal: no checkpoints in {tmp_path}" in capsys.readouterr().err


COMMANDS = pytest.mark.parametrize("command", ["ls", "inspect", "verify"])


@COMMANDS
@pytest.mark.parametrize(
    ("place", "said"),
    [
        pytest.param("mistyped", "there is no directory", id="not-there"),
        pytest.param("step-000000000002.json", "is a file, wanted the directory of checkpoints (perhaps", id="a-file"),
        pytest.param(None, "got an empty word", id="empty"),
    ],
)
def test_a_place_that_is_no_directory_is_said_to_be_none(
    kept: Path, command: str, place: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", command, "" if place is None else str(kept / place)]) == 2
    assert said in capsys.readouterr().err


@COMMANDS
def test_a_directory_that_may_not_be_read_is_told(
    kept: Path, command: str, capsys: pytest.CaptureFixture[str], nobody: None
) -> None:
    assert main(["checkpoint", command, str(kept)]) == 1
    assert "cannot be read: Permission denied" in capsys.readouterr().err


@pytest.fixture
def nobody(kept: Path) -> Iterator[None]:
    """Who may not read the directory, whoever runs the tests."""
    kept.chmod(0)
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    yield
    if mine == 0:
        os.seteuid(mine)
    kept.chmod(0o700)


@pytest.mark.parametrize("name", ["1", "step-1", "step-000000000001", "step-000000000001.json"])
def test_a_checkpoint_may_be_named_in_several_ways(kept: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "inspect", str(kept), name]) == 0
    assert "step 1 of job" in capsys.readouterr().out


def torn_manifest(kept: Path, data: Path) -> None:
    manifest = kept / "step-000000000002.json"
    manifest.write_bytes(manifest.read_bytes()[:50])


def lost_data(kept: Path, data: Path) -> None:
    data.unlink()


def half_of_the_data(kept: Path, data: Path) -> None:
    data.write_bytes(data.read_bytes()[:2000])


@pytest.mark.parametrize("damage", [torn_manifest, lost_data, half_of_the_data])
def test_ls_and_inspect_tell_of_what_is_damaged_beside_their_answer(
    kept: Path, damage: Callable[[Path, Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(kept, *kept.glob("step-000000000002-*.data"))
    assert main(["checkpoint", "ls", "-o", "json", str(kept)]) == 0
    out, err = capsys.readouterr()
    assert [row["step"] for row in json.loads(out)] == [1]
    assert err.startswith(f"DAMAGED {kept}: step-000000000002")
    assert main(["checkpoint", "inspect", str(kept)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("step-000000000001: step 1 of job")
    assert "DAMAGED" in err
    assert main(["checkpoint", "inspect", str(kept), "2"]) == 1
    assert "no checkpoint 2 in" in capsys.readouterr().err


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
