"""`shoal ps`, `top`, `scale`, `stop` and `logs`: look at the local jobs and tell them something."""

import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from shoal.cli import client, logs
from shoal.cli.changes import change_why, changes_of
from shoal.cli.registry import Entry, JobState, Registry, process_started
from shoal.cli.text import age, clean, seconds, sizing_line
from shoal.core.errors import BadInput, Disconnected, ShoalError
from shoal.core.figures import JobFigures
from shoal.core.nodes import parsed
from shoal.core.view import JobView

TITLES = ("JOB", "PHASE", "NODES", "PROCESSES", "WORLD", "STEP", "STEPS/S", "AGE", "PID", "COMMAND")
SCALED = ("worker", "ps")
AUTO = "auto"
"""As many workers as the job finds best."""
"""Roles of which a job may have more or fewer."""
POLL_SECONDS = 0.05
"""How often `stop` looks whether the job's process is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One job as found: its record, and its master's word if it gave one."""

    entry: Entry
    view: JobView | None = None
    silent: str | None = None
    """Why its master said nothing, if it should have."""

    @property
    def phase(self) -> str:
        if self.entry.record.result is not None:
            return self.entry.record.result.phase
        if self.view is not None:
            return self.view.phase.value
        if self.silent is not None:
            return "silent" if self.entry.record.url else "starting"
        return "lost"


def look(entry: Entry) -> Seen:
    if entry.state is not JobState.RUNNING:
        return Seen(entry=entry, view=entry.kept_state())
    try:
        return Seen(entry=entry, view=client.state(entry))
    except ShoalError as exc:
        return Seen(entry=entry, silent=str(exc))


def choose(registry: Registry, name: str | None, *, ended: bool = False) -> Entry:
    """The job that is meant. Without a name: the only one that runs (or, with `ended`, the only or newest one)."""
    entries = registry.entries()
    running = [entry for entry in entries if entry.state is JobState.RUNNING]
    if name is not None:
        found = next((entry for entry in entries if entry.record.name == name), None)
        if found is None:
            raise ShoalError(f"no job named {clean(name)}; {_known(entries, running)}")
        if found.state is not JobState.RUNNING and not ended:
            raise ShoalError(f"job {found.record.name} is not running: it is {look(found).phase}")
        return found
    if len(running) == 1:
        return running[0]
    if ended and not running and entries:
        return entries[-1]
    if not running:
        raise ShoalError("no job is running on this machine")
    raise ShoalError(f"{len(running)} jobs are running, say which: {_names(running)}")


def _known(entries: tuple[Entry, ...], running: list[Entry]) -> str:
    if running:
        return f"running: {_names(running)}"
    return f"none is running, ended: {_names(list(entries[-5:]))}" if entries else "there are none on this machine"


def _names(entries: list[Entry]) -> str:
    return ", ".join(entry.record.name for entry in entries)


# ps ------------------------------------------------------------------------------------------------------


def show(registry: Registry, *, everything: bool, output: str, names: Sequence[str] = ()) -> None:
    entries = tuple(choose(registry, name, ended=True) for name in names) or registry.entries()
    seen = [look(entry) for entry in entries]
    shown = [job for job in seen if everything or names or _is_news(job.entry)]
    if output in ("json", "yaml"):
        print_value([_as_json(job) for job in shown], output)
        return
    _print_table(shown, hidden=len(seen) - len(shown))
    for job in shown:
        if job.entry.state is JobState.LOST:
            job.entry.tell()


def print_value(value: object, output: str) -> None:
    if output == "json":
        print(json.dumps(value, indent=2))
        return
    try:
        import yaml
    except ImportError as exc:
        raise ShoalError("-o yaml needs PyYAML: pip install 'shoal[kubernetes]'") from exc
    print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")


def describe(registry: Registry, name: str, *, output: str) -> None:
    """One job: its members and its worlds."""
    job = look(choose(registry, name, ended=True))
    if output in ("json", "yaml"):
        print_value(_as_json(job), output)
        return
    _print_table([job], hidden=0)
    if job.view is None:
        return
    for node in job.view.nodes:
        ranks = ", ".join(str(p.rank) for p in node.processes if p.rank is not None)
        print(clean(f"  {node.node}: {node.status}" + (f", ranks {ranks}" if ranks else "") + f" ({node.reason})"))
    for resize in job.view.resizes[-10:]:
        pause = f", {seconds(resize.pause)} pause" if resize.reported else ""
        print(
            clean(f"  world {resize.generation}: {resize.before} to {resize.after} processes{pause}: {resize.reason}")
        )
    for change in changes_of(job.view)[-10:]:
        version = f"version {change.version}" if change.version is not None else change.kind
        pause = f", {seconds(change.pause)} pause" if change.outcome == "done" else ""
        print(f"  {version}: {change.before} to {change.after} parameter servers{pause}: {change_why(change)}")
    if job.view.servers is not None:
        for step, metrics in job.view.servers.scores[-10:]:
            figures = ", ".join(f"{clean(name)} {value:.4g}" for name, value in sorted(metrics.items()))
            print(f"  scored at step {step}: {figures or 'not'}")
    if job.view.error:
        print(clean(job.view.error))


def why(registry: Registry, name: str | None, *, output: str) -> None:
    """What was decided, the newest first."""
    job = look(choose(registry, name, ended=True))
    if job.view is None:
        if job.entry.state is JobState.LOST:
            raise ShoalError(lost_line(job.entry))
        raise ShoalError(f"job {job.entry.record.name} is {job.phase}: {job.silent or 'nothing is known of it'}")
    now = datetime.now(UTC)
    lines = [(age(now - each.at), each.reason) for each in reversed(job.view.decisions)]
    if output in ("json", "yaml"):
        said = [{"at": each.at.isoformat(), "reason": each.reason} for each in reversed(job.view.decisions)]
        print_value(said, output)
        return
    print(clean(f"job {job.entry.record.name}: {job.phase}: {job.view.reason}"))
    if job.view.sizing is not None:
        print(clean(f"  size: {sizing_line(job.view.sizing)}"))
    for ago, reason in lines:
        print(clean(f"  {ago} ago  {reason}"))


def _is_news(entry: Entry) -> bool:
    """It runs, or it was lost and nobody has been told."""
    return entry.state is JobState.RUNNING or (entry.state is JobState.LOST and not entry.is_told)


def _as_json(job: Seen) -> dict[str, object]:
    record = msgspec.to_builtins(job.entry.record)
    view = None if job.view is None else msgspec.to_builtins(job.view)
    can_resume = job.entry.can_resume
    return {**record, "phase": job.phase, "state": view, "silent": job.silent, "can_resume": can_resume}


def _print_table(jobs: list[Seen], *, hidden: int) -> None:
    if not jobs:
        print(f"no jobs ({hidden} ended: shoal ps -a)" if hidden else "no jobs")
        return
    print_rows([TITLES, *map(_cells, jobs)])
    for job in jobs:
        if job.silent is not None and job.entry.record.url is not None:
            print(clean(job.silent), file=sys.stderr)
        if job.entry.state is JobState.LOST:
            print(lost_line(job.entry), file=sys.stderr)


def lost_line(entry: Entry) -> str:
    """What became of a job that nobody ended, and what can be done about it."""
    name = entry.record.name
    if entry.can_resume:
        return f"job {name} was lost with its process; go on with it: shoal run --resume {name}"
    return f"job {name} was lost with its process, and there is nothing to resume"


def print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    # Lines are cut for a reader's eye only: what reads a pipe has no edge.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table(rows, width=width):
        print(line)


def table(rows: Sequence[tuple[str, ...]], *, width: int | None) -> list[str]:
    """Rows in columns as wide as their widest cell; lines are cut at `width`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["   ".join(map(str.ljust, map(clean, row), widths)).rstrip() for row in rows]
    return [line if width is None or len(line) <= width else line[: width - 1] + "…" for line in lines]


def _cells(job: Seen) -> tuple[str, ...]:
    record, view = job.entry.record, job.view
    ended = record.result.ended if record.result else datetime.now(UTC)
    pid = str(record.pid) if job.entry.state is JobState.RUNNING else ""
    command = shlex.join(record.command)
    if view is None:
        return (record.name, job.phase, "", "", "", "", "", age(ended - record.started), pid, command)
    live = sum(node.status == "running" and node.role in ("worker", "chief") for node in view.nodes)
    nodes = f"{live}/{view.target}" if job.entry.state is JobState.RUNNING else ""
    return (
        record.name,
        job.phase,
        nodes,
        str(view.world_size),
        str(view.generation if view.servers is None else view.servers.version),
        "" if view.step is None else f"{view.step:,}",
        "" if view.steps_per_second is None else f"{view.steps_per_second:.3g}",
        age(ended - record.started),
        pid,
        command,
    )


# scale, stop ---------------------------------------------------------------------------------------------


def scale_words(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """`[JOB] worker=N ps=N ps-1.cpu=N`: the job, and what the master is asked for. `worker=auto`, `ps=auto`: what its
    optimizer finds best."""
    asks = [word for word in words if "=" in word]
    names = [word for word in words if "=" not in word]
    if not asks or len(names) > 1:
        raise BadInput(f"shoal scale wants [JOB] worker=N ps=N ps-1.cpu=N, got {shlex.join(words)!r}")
    wanted: dict[str, Any] = {}
    for ask in asks:
        what, _, number = ask.partition("=")
        node, dot, resource = what.partition(".")
        if dot:
            part, key = wanted.setdefault("migrate", {}).setdefault(node, {}), resource
        else:
            part, key = wanted, what
        if key in part:
            raise BadInput(f"shoal scale: {what}= is said twice")
        part[key] = _node_wants(ask, node, resource, number) if dot else _role_wants(what, number)
    return (names[0] if names else None), wanted


def _role_wants(role: str, number: str) -> int | str:
    if role not in SCALED:
        raise BadInput(f"shoal scale: a job is scaled by role {' or '.join(SCALED)}, got {role!r}")
    if number == AUTO:
        return AUTO
    if not number.isascii() or not number.isdecimal() or int(number) < 1:
        raise BadInput(f"shoal scale: {role}= wants a number of at least 1, or auto, got {number!r}")
    return int(number)


def _node_wants(ask: str, node: str, resource: str, number: str) -> float:
    if parsed(node) is None or resource not in ("cpu", "memory"):
        raise BadInput(f"shoal scale: one node's resources are said as ps-1.cpu=N or ps-1.memory=MIB, got {ask!r}")
    if resource == "memory":
        if not number.isascii() or not number.isdecimal() or int(number) < 1:
            raise BadInput(f"shoal scale: {node}.memory= wants a whole number of MiB, got {number!r}")
        return int(number)
    try:
        cores = float(number)
    except ValueError:
        cores = 0.0
    if not 0 < cores < float("inf"):
        raise BadInput(f"shoal scale: {node}.cpu= wants a number of cores above 0, got {number!r}")
    return cores


def scale(registry: Registry, name: str | None, wanted: Mapping[str, Any]) -> None:
    entry = choose(registry, name)
    print(f"{entry.record.name}: {clean(client.scale(entry, wanted))}")


def stop(registry: Registry, name: str | None, *, now: bool) -> None:
    """Ask for the end and wait for it."""
    entry = choose(registry, name)
    try:
        client.stop(entry, reason="stopped by shoal stop", grace_seconds=0 if now else None)
    except Disconnected as exc:
        if entry.state is not JobState.RUNNING:
            pass  # it ended by itself just now
        elif now:
            _kill(entry)
        else:
            raise ShoalError(f"{exc}; `shoal stop {entry.record.name} --now` kills it") from exc
    while entry.state is JobState.RUNNING:
        time.sleep(POLL_SECONDS)
        entry = registry.find(entry.record.name) or entry
    print(f"{entry.record.name}: {look(entry).phase if entry.record.result else 'killed'}")


def _kill(entry: Entry) -> None:
    """Kill the job's process; its nodes die with it. The descriptor makes sure that it is the one we looked at."""
    try:
        descriptor = os.pidfd_open(entry.record.pid)
    except ProcessLookupError:
        return
    try:
        if process_started(entry.record.pid) == entry.record.pid_started:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


# top -----------------------------------------------------------------------------------------------------


def show_top(registry: Registry, name: str | None, *, once: bool, output: str, node: str | None) -> None:
    entry = choose(registry, name)

    def again() -> Entry:
        """The entry as it is now: another master has another URL."""
        return registry.find(entry.record.name) or entry

    def ended() -> str | None:
        seen = again()
        if seen.state is JobState.RUNNING:
            return None
        return f"{seen.record.name}: {look(seen).phase}"

    def figures() -> JobFigures:
        found = client.stats(again(), nodes=() if node is None else (node,))
        if node is not None and node not in {each.node for each in found.nodes}:
            known = ", ".join(each.node for each in found.nodes) or "none"
            raise ShoalError(f"job {entry.record.name} has no node named {clean(node)}; its nodes: {known}")
        return found if node is None else replace(found, nodes=tuple(n for n in found.nodes if n.node == node))

    if output in ("json", "yaml"):
        print_value(msgspec.to_builtins(figures()), output)
        return
    from shoal.cli import top

    top.watch(figures, ended, once=once)


# logs ----------------------------------------------------------------------------------------------------


def show_logs(
    registry: Registry, name: str | None, *, rank: int | None, node: str | None, follow: bool, stderr: bool
) -> None:
    if rank is not None and node is not None:
        raise BadInput("shoal logs: --rank and --node both say whose logs: give one")
    entry = choose(registry, name, ended=True)
    wanted = logs.Wanted(node=node, stderr=stderr)
    if rank is not None:
        view = client.state(entry) if entry.state is JobState.RUNNING else entry.kept_state()
        if view is None:
            raise ShoalError(f"job {entry.record.name} was lost, and who had rank {rank} with it: use --node NAME")
        wanted = logs.of_rank(view, rank, stderr=stderr)

    def is_running() -> bool:
        return (registry.find(entry.record.name) or entry).state is JobState.RUNNING

    for line in logs.lines(Path(entry.record.logs), wanted, is_running=is_running if follow else None):
        print(line, flush=follow)
