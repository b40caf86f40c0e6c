"""`shoal top`: what a job and its nodes use, and how fast it trains. Values in, renderables out; `watch` shows them.

Where the figures come from is somebody else's: a local job's master is asked (`client.stats`), a job in a cluster tells
in its status (`kube_top`).
"""

import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from shoal.cli.text import age, clean, count, seconds, size
from shoal.cli.view import PHASE_STYLE
from shoal.core.errors import Disconnected
from shoal.core.figures import JobFigures, NodeFigures
from shoal.core.view import ENDED

EVERY_SECONDS = 2.0
"""As often as agents tell."""
OLD = timedelta(seconds=90)
"""Figures that are older say so: a master in a cluster tells them twice a minute."""
TIGHT = 0.9
"""The part of a limit above which a figure is shown in red."""
FIXED_LINES = 6
PIPE_WIDTH = 200
BARS = "▁▂▃▄▅▆▇█"


def watch(look: Callable[[], JobFigures], ended: Callable[[], str | None], *, once: bool) -> None:
    """Show the picture until the job has ended, or once. A master that is being replaced is waited for.

    `ended` is asked when nobody answers: how the job ended, in a sentence; None: it runs.
    """
    console = Console(highlight=False)
    if once or not console.is_terminal:
        print_once(look())
        return
    with Live(console=console, auto_refresh=False) as live:
        last = look()
        while True:
            live.update(picture(last, room=max(3, console.height - FIXED_LINES)), refresh=True)
            if last.phase in ENDED:
                return
            try:
                time.sleep(EVERY_SECONDS)
                last = look()
            except Disconnected:
                said = ended()
                if said is not None:
                    live.console.print(said, markup=False)
                    return
            except KeyboardInterrupt:
                return


def print_once(job: JobFigures, *, now: datetime | None = None) -> None:
    """All of it. What reads a pipe has no edge."""
    is_terminal = sys.stdout.isatty()
    Console(highlight=False, width=None if is_terminal else PIPE_WIDTH).print(
        picture(job, room=len(job.nodes), now=now)
    )


def picture(job: JobFigures, *, room: int, now: datetime | None = None) -> RenderableType:
    """The job in two lines, its nodes in a table of at most `room` rows. `now`: where figures may be old."""
    return Group(_head(job, now), _figures(job), _table(job.nodes, room))


def _head(job: JobFigures, now: datetime | None) -> Text:
    nodes = count(len(job.nodes), "node")
    return Text.assemble(
        (clean(job.job), "bold"),
        "  ",
        (job.phase.value, PHASE_STYLE[job.phase]),
        f"  {count(job.world_size, 'process')}, {nodes}",
        (f"  as it was {age(now - job.at)} ago", "yellow") if now is not None and now - job.at > OLD else "",
        no_wrap=True,
        overflow="ellipsis",
    )


def _figures(job: JobFigures) -> Text:
    parts = [] if job.step is None else [f"step {job.step:,}"]
    parts += _speed(job)
    if job.cpu is not None:
        parts.append(f"{job.cpu:.2f} cores")
    if job.memory_bytes is not None:
        parts.append(size(int(job.memory_bytes)))
    if job.gpu is not None:
        parts.append(f"{job.gpu:.2f} GPUs")
    text = Text("  ".join(parts) or "nothing is reported yet", no_wrap=True, overflow="ellipsis")
    return text.append(f"  {spark(job.recent_speed)}", style="cyan") if job.recent_speed else text


def _speed(job: JobFigures) -> list[str]:
    parts = []
    if job.samples_per_second is not None:
        parts.append(f"{job.samples_per_second:,.4g} samples/s")
    if job.steps_per_second is not None:
        parts.append(f"{job.steps_per_second:.3g} steps/s")
    if job.step_seconds is not None:
        parts.append(f"{seconds(job.step_seconds)} a step")
    return parts


def _table(nodes: Sequence[NodeFigures], room: int) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, header_style="dim")
    has_gpus = any(node.gpus for node in nodes)
    titles = ["rank", "node", "role", "cpu", "memory", *(["gpu", "gpu memory"] if has_gpus else []), "samples/s"]
    for title in (*titles, "step", "own work", "cpu, last minutes"):
        is_left = title in ("node", "role", "cpu, last minutes")
        table.add_column(title, justify="left" if is_left else "right", no_wrap=True)
    ordered = sorted(nodes, key=lambda node: (not node.ranks, node.ranks, node.node))
    for node in ordered[:room]:
        table.add_row(*_row(node, has_gpus=has_gpus))
    if len(nodes) > room:
        table.add_row("", f"and {len(nodes) - room} more")
    return table


def _row(node: NodeFigures, *, has_gpus: bool) -> list[RenderableType]:
    cells: list[RenderableType] = [
        _ranks(node.ranks),
        escape(clean(node.node)),
        escape(clean(node.role)),
        _of(node.cpu, node.cpu_limit, lambda value: f"{value:.2f}", lambda value: f"{value:g}"),
        _of(node.memory_bytes, node.memory_limit, _bytes, _bytes),
    ]
    if has_gpus:
        gpus = float(node.gpus) if node.gpus else None
        cells.append(_of(node.gpu, gpus, lambda value: f"{value:.2f}", lambda value: f"{value:g}", is_tight=False))
        cells.append(_of(node.gpu_memory_bytes, node.gpu_memory_total, _bytes, _bytes))
    cells.append("" if node.samples_per_second is None else f"{node.samples_per_second:,.4g}")
    cells.append("" if node.step_seconds is None else seconds(node.step_seconds))
    cells.append("" if node.work_seconds is None else seconds(node.work_seconds))
    cells.append(Text(spark(node.recent_cpu, top=node.cpu_limit), style="cyan"))
    return cells


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) < 2:
        return "".join(map(str, ranks))
    return f"{ranks[0]}-{ranks[-1]}"


def _of(
    used: float | None,
    limit: float | None,
    show: Callable[[float], str],
    show_limit: Callable[[float], str],
    *,
    is_tight: bool = True,
) -> Text:
    """`1.20/4`; red near the limit."""
    if used is None:
        return Text("")
    text = show(used) if limit is None else f"{show(used)}/{show_limit(limit)}"
    return Text(text, style="red" if is_tight and limit and used > TIGHT * limit else "")


def _bytes(value: float) -> str:
    return size(int(value))


def spark(values: Sequence[float | None], *, top: float | None = None) -> str:
    """A small picture: one character for each value, a space where none is known; `top`: what a full bar means."""
    known = [value for value in values if value is not None]
    most = top or max(known, default=0.0)
    if most <= 0:
        return "".join(" " if value is None else BARS[0] for value in values)
    steps = len(BARS) - 1
    return "".join(" " if value is None else BARS[round(min(1.0, value / most) * steps)] for value in values)
