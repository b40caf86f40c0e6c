"""`shoal bring`: only a Shoal that has its own interpreter can be brought along."""

from pathlib import Path

import pytest

from shoal.cli.bring import bring, main
from shoal.core.errors import BadInput


def a_bundle(folder: Path) -> Path:
    for name in ("bin/shoal", "lib/python3.11/os.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "bin/shoal").chmod(0o755)
    return folder


def test_all_of_a_bundle_is_copied_with_its_modes(tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()  # as an emptyDir is
    bring(a_bundle(tmp_path / "here"), target)
    assert (target / "lib/python3.11/os.py").read_text() == "lib/python3.11/os.py"
    assert (target / "bin/shoal").stat().st_mode & 0o777 == 0o755


def test_a_shoal_that_needs_this_machines_interpreter_is_not_brought_along(tmp_path: Path) -> None:
    here = a_bundle(tmp_path / "here")
    (here / "pyvenv.cfg").touch()
    with pytest.raises(BadInput, match="is no bundle"):
        bring(here, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"cannot be copied to .*file"):
        bring(a_bundle(tmp_path / "here"), tmp_path / "file")


@pytest.mark.parametrize("words", [[], ["a", "b"], ["--help"]])
def test_it_wants_one_directory(words: list[str]) -> None:
    with pytest.raises(BadInput, match="shoal bring DIR"):
        main(words)
