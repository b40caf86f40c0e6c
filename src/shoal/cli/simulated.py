"""A simulation's report on a terminal: one line for each policy, one for each workload, and what was promised."""

import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.cli.text import clean
from shoal.sim.report import Measures, Report, mean_extra, mean_measures

PIPE_WIDTH = 160
"""Where there is no terminal whose width could be asked."""


def print_report(report: Report) -> None:
    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else PIPE_WIDTH, highlight=False)
    console.print(policies_table(report))
    if len(report.workloads) > 1:
        console.print(workloads_table(report))
    for note in report.notes:
        console.print(Text(clean(note)))
    for check in report.checks:
        word, style = ("holds", "green") if check.holds else ("FAILS", "bold red")
        console.print(Text.assemble((f"{word:>5}  ", style), clean(check.text), *_detail(check.detail)))


def _detail(detail: str) -> Sequence[tuple[str, str]]:
    return [(f": {clean(detail)}", "dim")] if detail else []


Cell = Callable[[Measures], str]
COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("jobs", lambda m: f"{m.finished:,}/{m.jobs:,}"),
    ("mean JCT", lambda m: _seconds(m.jct_mean)),
    ("median", lambda m: _seconds(m.jct_median)),
    ("p99", lambda m: _seconds(m.jct_p99)),
    ("makespan", lambda m: _seconds(m.makespan)),
    ("wait", lambda m: _seconds(m.wait_mean)),
    ("util", lambda m: _per_cent(m.utilisation)),
    ("effective", lambda m: _per_cent(m.effective_utilisation)),
    ("Jain", lambda m: "-" if m.jain is None else f"{m.jain:.2f}"),
    ("moves/job", lambda m: f"{m.moves_per_job:.1f}"),
    ("gangs", lambda m: f"{m.gangs_started:,}"),
)


def policies_table(report: Report) -> Table:
    """One line for each policy: the mean over its runs."""
    by_policy = {policy: report.of(policy) for policy in report.policies}
    extra = list(dict.fromkeys(name for runs in by_policy.values() for name in mean_extra(runs)))
    table = Table(title=clean(report.title), title_justify="left")
    table.add_column("policy")
    for name in (*(name for name, _ in COLUMNS), *extra):
        table.add_column(name, justify="right")
    for policy, runs in by_policy.items():
        measures, numbers = mean_measures(runs), mean_extra(runs)
        own = [f"{numbers[name]:.3g}" if name in numbers else "-" for name in extra]
        table.add_row(policy, *(cell(measures) for _, cell in COLUMNS), *own)
    return table


def workloads_table(report: Report) -> Table:
    """The mean completion time of each policy on each workload, the best one marked."""
    table = Table(title="mean JCT by workload", title_justify="left")
    table.add_column("workload")
    for policy in report.policies:
        table.add_column(policy, justify="right")
    for workload in report.workloads:
        means = [
            mean_measures(runs).jct_mean if (runs := report.of(policy, workload)) else None
            for policy in report.policies
        ]
        best = min((mean for mean in means if mean is not None), default=None)
        cells = [Text(_seconds(mean), style="bold" if mean is not None and mean == best else "") for mean in means]
        table.add_row(clean(workload), *cells)
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} s"


def _per_cent(value: float) -> str:
    return f"{100 * value:.1f} %"
