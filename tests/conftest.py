"""What every test directory shares: hypothesis profiles, figures that a run shows, and a last word on what did not run.

A test that the machine cannot run is skipped *with a reason*; the end of the run repeats each reason with its
count, and `--no-skips` (CI) turns any skip into a failure, so that nothing stops being tested unnoticed.
"""

import os
from collections import Counter
from collections.abc import Callable, Generator

import pytest
from hypothesis import settings

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

FIGURES = "figures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail when a test was skipped")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--no-skips") and session.exitstatus == pytest.ExitCode.OK and _skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Takes lines that a test has measured and that somebody wants to read: they are shown in the end, also when the
    test passes."""
    return lambda line: record_property(FIGURES, line)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    yield  # after pytest's own summary, before its closing line
    _show_figures(terminalreporter)
    skips = _skips(config)
    if not skips:
        return
    told = "; ".join(f"{reason} ({count})" for reason, count in sorted(skips.items()))
    verdict = ", which --no-skips forbids" if config.getoption("--no-skips") else ""
    terminalreporter.write_line(f"not run here{verdict}: {told}", yellow=True)


def _show_figures(terminalreporter: pytest.TerminalReporter) -> None:
    for report in (*terminalreporter.stats.get("passed", []), *terminalreporter.stats.get("failed", [])):
        lines = [line for name, line in report.user_properties if name == FIGURES]
        if lines and report.when == "call":
            terminalreporter.write_line(f"figures of {report.nodeid}:")
            for line in lines:
                terminalreporter.write_line(f"  {line}")


def _skips(config: pytest.Config) -> Counter[str]:
    """How often each reason made a test (or a whole file) be skipped."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return Counter()
    return Counter(_reason(report) for report in reporter.stats.get("skipped", []))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)
