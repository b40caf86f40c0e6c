"""What no file of ours may hold, and what no install may pull in."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def our_files() -> list[Path]:
    """Every file under version control, or about to be, that holds text."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        paths = [ROOT / name for name in names]
    else:  # an unpacked archive
        paths = [path for top in ("src", "tests", "docs", "tools", ".ci") for path in (ROOT / top).rglob("*")]
    return [p for p in paths if p.is_file() and p != Path(__file__) and b"\0" not in p.read_bytes()[:1024]]


FORBIDDEN = {
    "the address of a package registry": r"\b(pypi\.org|pythonhosted\.org|download\.pytorch|index-url|find-links)\b",
    "a path of somebody's machine": r"(?<![\w.])/(home|root|work|Users)/\w",
    "unpickling: state is a msgspec tree and raw tensors": r"\b(c?pickle|dill|cloudpickle)\.(load|loads|Unpickler)\b"
    r"|\ballow_pickle\s*=\s*True|\bweights_only\s*=\s*False",
}
ALLOWED = {
    "Makefile": {"the address of a package registry"},
    "tests/api/examples/seed-trainingjob.yaml": {"a path of somebody's machine"},
}
"""The Makefile tells uv *not* to write addresses, and has to name the flags for it. The seed's job is as it was."""


def offences(text: str) -> set[str]:
    return {what for what, pattern in FORBIDDEN.items() if re.search(pattern, text)}


def test_no_file_names_a_registry_a_machine_path_or_unpickles() -> None:
    found = {}
    for path in our_files():
        name = str(path.relative_to(ROOT))
        if bad := offences(path.read_text(errors="replace")) - ALLOWED.get(name, set()):
            found[name] = bad
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install --index-url x",
        "https://pypi.org/simple",
        'open("/home/ann/data")',
        "state = pickle.loads(data)",
        "torch.load(path, weights_only=False)",
    ],
)
def test_an_offence_would_be_noticed(text: str) -> None:
    assert len(offences(text)) == 1


def test_constraints_pin_exact_versions_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.match(r"[a-z0-9._-]+==[^\s@]+( ; .+)?$", line)] == []
    assert "torch==2.13.0" in lines


def test_the_plain_install_is_light() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in project["dependencies"]}  # type: ignore[index]
    assert not names & {"torch", "numpy", "kubernetes", "sqlalchemy", "ray", "tensorflow"}
