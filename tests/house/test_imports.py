"""The promises about imports that import-linter cannot make: it sees who imports whom, not what is then called."""

import ast
import configparser
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "shoal"
PURE = sorted([*PACKAGE.glob("api/**/*.py"), *PACKAGE.glob("core/**/*.py")])

# fmt: off
IMPURE_MODULES = frozenset({
    "asyncio", "http", "io", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "selectors",
    "shutil", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
})
# fmt: on
"""Clocks, sockets, environments, files and chance, by the name of the module they come from."""

CLOCK_CALLS = frozenset({"now", "utcnow", "today", "fromtimestamp"})
"""`datetime` is a value that the core may hold; these read a clock or the machine's time zone."""

BUILTINS_THAT_ACT = frozenset({"open", "input", "print", "exec", "eval", "__import__"})


def impurities(source: str) -> list[str]:
    """What in this source reads the world outside its arguments."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [f"import {a.name}" for a in names if a.name.partition(".")[0] in IMPURE_MODULES]
            case ast.ImportFrom(module=str(module), level=0) if module.partition(".")[0] in IMPURE_MODULES:
                found.append(f"from {module} import")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=name)) if name in CLOCK_CALLS:
                found.append(f"datetime.{name}()")
            case ast.Call(func=ast.Name(id=name)) if name in BUILTINS_THAT_ACT:
                found.append(f"{name}()")
            case _:
                pass
    return found


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_reads_no_clock_socket_environment_or_random_source(path: Path) -> None:
    assert impurities(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        pytest.param("import os.path", "import os.path", id="environment"),
        pytest.param("def f():\n    from random import random", "from random import", id="hidden-in-a-function"),
        pytest.param("from datetime import datetime\ndatetime.now()", "datetime.now()", id="clock"),
        pytest.param("open('f')", "open()", id="file"),
    ],
)
def test_an_impure_core_would_be_noticed(source: str, found: str) -> None:
    assert impurities(source) == [found]


LOADED = """
import sys
import {module}
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


def loaded_by(module: str) -> frozenset[str]:
    """The top-level packages that a fresh interpreter holds after one import."""
    run = subprocess.run(
        [sys.executable, "-c", LOADED.format(module=module)], capture_output=True, text=True, check=True
    )
    return frozenset(run.stdout.split())


HEAVY = frozenset({"aiohttp", "cryptography", "kubernetes", "numpy", "prometheus_client", "rich", "torch", "typer"})


@pytest.mark.parametrize("module", ["shoal", "shoal.core", "shoal.trainer"])
def test_what_users_import_is_light(module: str) -> None:
    assert not loaded_by(module) & HEAVY


def test_importing_shoal_imports_nothing_else_of_ours() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "import sys, shoal; print([m for m in sys.modules if m.startswith('shoal.')])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"


def test_every_package_has_an_import_contract() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    protected = {
        name for section in contracts.values() for name in section.get("protected_modules", fallback="").split()
    }
    packages = {f"shoal.{init.parent.name}" for init in PACKAGE.glob("*/__init__.py")}
    assert packages <= protected
