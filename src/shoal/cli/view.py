"""How a job looks: values in, text or rich renderables out. Pure, nothing here prints or asks.

`live` is the picture that stands at the bottom of a terminal while a job runs. `decision_line` and `resize_line`
are what goes to a log or a pipe instead. `summary` ends both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from shoal.cli.changes import CHANGE_TITLES, change_cells, change_why, changes_of
from shoal.cli.text import age, clean, count, seconds, size
from shoal.core.view import DecisionView, JobPhase, JobView, NodeView, ProcessView, PSChangeView, ResizeView

PHASE_STYLE = {
    JobPhase.STARTING: "cyan",
    JobPhase.RUNNING: "green",
    JobPhase.RESIZING: "yellow",
    JobPhase.STOPPING: "yellow",
    JobPhase.SUCCEEDED: "bold green",
    JobPhase.FAILED: "bold red",
    JobPhase.STOPPED: "bold yellow",
}

LIVE_NODE = frozenset({"initial", "pending", "running"})
FIXED_LINES = 12
"""Header, table heads and blank lines of the live view: what is left of the terminal goes to its lists."""


# Lines ---------------------------------------------------------------------------------------------------


def decision_line(decision: DecisionView) -> str:
    return clean(decision.reason)


def resize_line(resize: ResizeView) -> str:
    """`world 3: 4 -> 3 processes, paused 48 ms (drain 1 ms, ...), first step 20 ms, 1 step lost: reason`"""
    change = f"{resize.before} -> " if resize.before else ""
    return (
        f"world {resize.generation}: {change}{count(resize.after, 'process')}, paused {seconds(resize.pause)} "
        f"(drain {seconds(resize.drain)}, rendezvous {seconds(resize.rendezvous)}, restore {seconds(resize.restore)}), "
        f"first step {seconds(resize.first_step)}, {count(resize.lost_steps, 'step')} lost: {clean(resize.reason)}"
    )


def settled(resizes: Iterable[ResizeView], *, after: int) -> tuple[ResizeView, ...]:
    """The resizes of generations above `after` whose cost is known for good, in order.

    All who went through it told theirs; or some did, and a newer world has replaced this one.
    """
    ordered = sorted(resizes, key=lambda resize: resize.generation)
    newest = ordered[-1].generation if ordered else 0
    return tuple(
        resize
        for resize in ordered
        if resize.generation > after
        and (resize.reported >= max(1, resize.continuing) or (resize.reported > 0 and resize.generation < newest))
    )


# The live picture ----------------------------------------------------------------------------------------


def live(view: JobView, *, now: datetime, height: int) -> RenderableType:
    """The picture of a running job, at most about `height` lines."""
    rows = list(_process_rows(view.nodes))
    resizes = [resize for resize in view.resizes if resize.reported][-3:]
    changes = changes_of(view)[-3:]
    decisions = view.decisions[-3:]
    room = max(3, height - FIXED_LINES - len(resizes) - len(changes) - len(decisions))
    parts: list[RenderableType] = [_header(view, now), _nodes(rows, room)]
    if resizes:
        parts.append(_resizes(resizes))
    if changes:
        parts.append(_changes(changes))
    parts.extend(_decision(decision) for decision in decisions)
    return Group(*parts)


def _header(view: JobView, now: datetime) -> RenderableType:
    first = Text.assemble(
        (clean(view.name), "bold"),
        "  ",
        (view.phase.value, PHASE_STYLE[view.phase]),
        f"  {_world(view)}  up {age(now - view.started)}",
        no_wrap=True,
        overflow="ellipsis",
    )
    style = "bold" if view.step is not None else "dim"
    second = Text("  ".join(_figures(view)), style=style, no_wrap=True, overflow="ellipsis")
    return Group(Text(), first, second)


def _world(view: JobView) -> str:
    nodes = sum(node.status in LIVE_NODE for node in view.nodes)
    wanted = (
        str(view.max_nodes)
        if view.min_nodes == view.max_nodes
        else f"{view.target} of {view.min_nodes}:{view.max_nodes}"
    )
    if view.servers is not None:
        there = view.servers
        servers = count(there.servers, "parameter server")
        goal = "" if there.goal == there.servers else f" (want {there.goal})"
        trained = f"version {there.version}: {servers}{goal}" if there.version else f"no parameter server yet{goal}"
        return f"{trained}, {count(view.world_size, 'worker')} (want {wanted})"
    if not view.generation:
        return f"no world yet, {count(nodes, 'node')} (want {wanted})"
    return f"world {view.generation}: {count(view.world_size, 'process')}, {count(nodes, 'node')} (want {wanted})"


def _figures(view: JobView) -> list[str]:
    if view.step is None:
        # Every job counts as a plain script until its processes have attached.
        return ["no step reported yet" if view.sdk else "no step reported yet (plain scripts report none)"]
    figures = [f"step {view.step:,}"]
    if view.steps_per_second is not None:
        figures.append(f"{view.steps_per_second:.3g} steps/s")
    if view.samples is not None:
        figures.append(f"{view.samples:,} samples")
    figures += [f"{clean(name)} {value:.4g}" for name, value in view.metrics.items()]
    return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    node: NodeView
    process: ProcessView | None


def _process_rows(nodes: Sequence[NodeView]) -> Iterable[_Row]:
    """One row for each process, in rank order; nodes without processes last."""
    rows = [_Row(node=node, process=process) for node in nodes for process in node.processes or (None,)]
    shown = (row for row in rows if row.node.status in LIVE_NODE)
    return sorted(
        shown,
        key=lambda row: (
            row.process is None or row.process.rank is None,
            row.process.rank or 0 if row.process else 0,
            row.node.node,
        ),
    )


def _nodes(rows: Sequence[_Row], room: int) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, header_style="dim")
    for title in ("rank", "node", "pid", "step", "cpu", "memory", "standing"):
        table.add_column(title, justify="left" if title in ("node", "standing") else "right", no_wrap=True)
    for row in rows[:room]:
        process = row.process
        table.add_row(
            _known(process.rank if process else None),
            escape(clean(row.node.node)),
            _known(process.pid if process else row.node.pid),
            _known(process.step if process else None),
            f"{process.cpu:.2f}" if process else "",
            size(process.memory_bytes) if process else "",
            _standing(row),
        )
    if len(rows) > room:
        table.add_row("", f"and {len(rows) - room} more", "", "", "", "", "")
    return table


def _standing(row: _Row) -> Text:
    said = row.node.standing or row.node.status
    if row.process is not None and row.process.stopped:
        return Text("stopped", style="red")
    if not row.node.connected and row.node.status == "running":
        return Text("not connected", style="red")
    if row.process is not None and row.process.busy:
        return Text(f"busy: {clean(row.process.busy)}", style="cyan")
    return Text(clean(said), style="green" if said == "active" else "yellow")


def _resizes(resizes: Sequence[ResizeView]) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, header_style="dim")
    for title in ("world", "size", "drain", "rendezvous", "restore", "first step", "lost"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis")
    for resize in resizes:
        table.add_row(*_cost(resize), escape(clean(resize.reason)))
    return table


def _changes(changes: Sequence[PSChangeView]) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, header_style="dim")
    for title in CHANGE_TITLES:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis")
    for change in changes:
        table.add_row(*change_cells(change), escape(change_why(change)))
    return table


def _cost(resize: ResizeView) -> tuple[str, ...]:
    return (
        str(resize.generation),
        f"{resize.before} → {resize.after}",
        seconds(resize.drain),
        seconds(resize.rendezvous),
        seconds(resize.restore),
        seconds(resize.first_step),
        str(resize.lost_steps),
    )


def _decision(decision: DecisionView) -> RenderableType:
    text = Text(f"{decision.at.astimezone():%H:%M:%S} ", style="dim", no_wrap=True, overflow="ellipsis")
    return text.append(decision_line(decision), style="default")


def _known(value: int | None) -> str:
    return "" if value is None else str(value)


# The end -------------------------------------------------------------------------------------------------


def summary(view: JobView, *, logs: str | None) -> tuple[str, ...]:
    """What a job was and how it ended, as lines."""
    lines = [f"job {clean(view.name)} {view.phase.value} after {_duration(view)}: {clean(view.reason)}"]
    costs = [resize for resize in view.resizes if resize.before and resize.reported]
    if view.generation:
        lines.append(f"worlds: {view.generation}, the last with {count(view.world_size, 'training process')}")
    if view.step is not None:
        lines.append(", ".join(_figures(view)))
    if costs:
        lost = sum(resize.lost_steps for resize in costs)
        paused = sum(resize.pause for resize in costs)
        lines.append(f"resizes: {len(costs)}, paused {seconds(paused)} in all, {count(lost, 'step')} lost")
        lines += _columns(
            [("world", "size", "drain", "rendezvous", "restore", "first step", "lost", "why")]
            + [(*_cost(resize), clean(resize.reason)) for resize in costs]
        )
    lines += _of_servers(view)
    if view.phase is JobPhase.FAILED and view.error:
        lines += ["the failure:", *("  " + line for line in clean(view.error).rstrip().split("\n"))]
    if logs is not None:
        lines.append(f"logs: {clean(logs)}")
    return tuple(lines)


def _of_servers(view: JobView) -> list[str]:
    changes = changes_of(view)
    if view.servers is None or not changes:
        return []
    paused = sum(change.pause for change in changes if change.kind != "start")
    lines = [f"versions of the parameter servers: {view.servers.version}, workers paused {seconds(paused)} in all"]
    lines += _columns([(*CHANGE_TITLES, "why"), *((*change_cells(change), change_why(change)) for change in changes)])
    if view.servers.checkpoint is not None:
        lines.append(f"last checkpoint: {clean(view.servers.checkpoint)} (step {view.servers.checkpoint_step})")
    if view.servers.scores:
        step, metrics = view.servers.scores[-1]
        figures = ", ".join(f"{clean(name)} {value:.4g}" for name, value in sorted(metrics.items()))
        lines.append(f"last score: {figures} (step {step})")
    return lines


def _duration(view: JobView) -> str:
    return age((view.ended or view.started) - view.started)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows with their cells in columns, all but the last right-aligned."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    return ["  " + "  ".join([*map(str.rjust, row[:-1], widths), row[-1]]) for row in rows]
