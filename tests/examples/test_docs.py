"""The documentation says what the code does: tables made from it, names of messages and states, links, a script."""

import re
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.api.validation import problems
from shoal.core.nodes import NodeStatus
from shoal.core.view import JobPhase
from shoal.core.world import Standing

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples/README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def test_tables_made_from_the_code_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "tools/reference.py"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("states", [Standing, NodeStatus, JobPhase])
def test_every_state_has_a_line(states: type[StrEnum]) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", (ROOT / "docs/concepts/worlds.md").read_text(), re.MULTILINE)
    told = {name for name, rest in rows if rest.count("|") == 2}
    assert {state.value for state in states} <= told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"`(shoal(?:\.\w+)+)", page.read_text()))
    assert sorted(name for name in named if not _exists(name)) == []


def test_objects_of_ours_in_the_documentation_would_be_accepted() -> None:
    shown = [(page.name, each) for page in PAGES for each in _documents(page) if _is_ours(each)]
    assert {("kubernetes.md", kind) for kind in ("ElasticJob", "ScalePlan", "JobResource")} <= {
        (page, each["kind"]) for page, each in shown
    }
    assert {f"{page}: {each['metadata']['name']}: {p}" for page, each in shown for p in problems(each)} == set()


def _documents(page: Path) -> list[Any]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def _is_ours(document: Any) -> bool:
    """And whole: a part of one has no kind."""
    return isinstance(document, dict) and document.get("kind") in (
        "ElasticJob",
        "ScalePlan",
        "JobResource",
        "TrainingJob",
    )


def _exists(name: str) -> bool:
    """A module, or a name that a module's source defines."""
    place = ROOT / "src"
    for at, part in enumerate(parts := name.split(".")):
        if (place / f"{part}.py").exists():
            text = (place / f"{part}.py").read_text()
            return all(_defines(text, rest) for rest in parts[at + 1 :])
        if not (place / part).is_dir():
            text = (place / "__init__.py").read_text()
            return re.search(rf"\b{part}\b", text) is not None
        place /= part
    return True


def _defines(text: str, name: str) -> bool:
    return re.search(rf"\b(class|def) {name}\b|^\s*{name}\b.*=", text, re.MULTILINE) is not None


def test_the_tour_of_a_failure_names_what_there_is() -> None:
    tour = (ROOT / "docs/concepts/a-failure.md").read_text()
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]?\w*)[`(.]", tour))
    assert {"Exited", "Interrupt", "Prepare", "Commit", "Restart", "Pause"} <= named
    assert sorted(name for name in named if not _defines(code, name)) == []


def test_every_line_about_failures_names_tests_or_benchmarks_that_exist() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    told = _rows_of_tables((ROOT / "docs/concepts/failures.md").read_text(), last_column="measured by")
    assert len(told) > 20
    for line in told:
        named = re.findall(r"`(test_\w+|benchmarks/\w+\.py)`", line.rsplit("|", 2)[1])
        assert named, line
        for name in named:
            there = (ROOT / name).exists() if "/" in name else _defines(tests, name)
            assert there, f"{name}: {line}"


def _rows_of_tables(page: str, *, last_column: str) -> list[str]:
    rows = []
    for table in re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE):
        title, _, *rest = table.splitlines()
        rows += rest if title.endswith(f" {last_column} |") else []
    return rows


@pytest.mark.torch
def test_the_script_in_the_readme_runs(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    script = tmp_path / "train.py"
    script.write_text(found[1].replace("state.step < 500", "state.step < 5"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss ")
