"""A simulation's report on a terminal: one line for each policy, one for each workload, and what was promised."""

import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.cli.text import clean
from shoal.sim.report import Measures, Report, mean_extra, mean_measures

UNKNOWN = "-"
PIPE_WIDTH = 160
"""Where there is no terminal whose width could be asked."""


def print_report(report: Report) -> None:
    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else PIPE_WIDTH, highlight=False)
    for table in tables(report):
        console.print(table)
    for line in report.ground:
        console.print(Text(clean(line), style="dim"))
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
    ("Jain", lambda m: UNKNOWN if m.jain is None else f"{m.jain:.2f}"),
    ("moves/job", lambda m: f"{m.moves_per_job:.1f}"),
    ("gangs", lambda m: f"{m.gangs_started:,}"),
)


def tables(report: Report) -> list[Table]:
    """Runs with numbers of their own are shown by workload: what was counted in one cannot be averaged with another."""
    made: list[Table] = []
    if any(run.extra for run in report.runs):
        for workload in report.workloads:
            made += [policies_table(report, workload), own_table(report, workload)]
        return made
    several = [workloads_table(report)] if len(report.workloads) > 1 else []
    return [policies_table(report), *several]


def policies_table(report: Report, workload: str | None = None) -> Table:
    """One line for each policy: the mean over its runs, of all workloads or of one. Columns that say nothing are left
    out."""
    means = {policy: mean_measures(runs) for policy in report.policies if (runs := report.of(policy, workload))}
    columns = {name: [cell(each) for each in means.values()] for name, cell in COLUMNS}
    shown = {name: cells for name, cells in columns.items() if any(cell != UNKNOWN for cell in cells)}
    title = report.title if workload is None or len(report.workloads) == 1 else f"{report.title}: {workload}"
    table = Table(title=clean(title), title_justify="left")
    table.add_column("policy")
    for name in shown:
        table.add_column(name, justify="right")
    for policy, *line in zip(means, *shown.values(), strict=True):
        table.add_row(clean(policy), *line)
    return table


def own_table(report: Report, workload: str) -> Table:
    """The numbers of one experiment: a line for each, a column for each policy."""
    numbers = {policy: mean_extra(runs) for policy in report.policies if (runs := report.of(policy, workload))}
    table = Table()
    table.add_column("")
    for policy in numbers:
        table.add_column(clean(policy), justify="right")
    for name in dict.fromkeys(name for own in numbers.values() for name in own):
        cells = [f"{own[name]:.4g}" if name in own else UNKNOWN for own in numbers.values()]
        table.add_row(clean(name), *cells)
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
    return UNKNOWN if value is None else f"{value:,.0f} s"


def _per_cent(value: float) -> str:
    return f"{100 * value:.1f} %"
