"""`shoal ps`, `scale`, `stop` and `logs`: look at the local jobs and tell them something."""

import json
import os
import shlex
import signal
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from shoal.cli import client, logs
from shoal.cli.registry import Entry, JobState, Registry, process_started
from shoal.cli.text import age, clean
from shoal.core.errors import BadInput, Disconnected, ShoalError
from shoal.core.view import JobView

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


def show(registry: Registry, *, everything: bool, as_json: bool) -> None:
    seen = [look(entry) for entry in registry.entries()]
    # A lost job is news once: it ended without anybody being told.
    shown = [job for job in seen if everything or job.entry.state is not JobState.ENDED]
    if as_json:
        print(json.dumps([_as_json(job) for job in shown], indent=2))
    else:
        _print_table(shown, hidden=len(seen) - len(shown))


def _as_json(job: Seen) -> dict[str, object]:
    record = msgspec.to_builtins(job.entry.record)
    view = None if job.view is None else msgspec.to_builtins(job.view)
    return {**record, "phase": job.phase, "state": view, "silent": job.silent}


def _print_table(jobs: list[Seen], *, hidden: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if not jobs:
        more = f" ({hidden} ended: shoal ps -a)" if hidden else ""
        console.print(f"no jobs{more}", markup=False)
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    for title in ("JOB", "PHASE", "NODES", "PROCESSES", "WORLD", "STEP", "STEPS/S", "AGE", "PID", "COMMAND"):
        right = title in ("NODES", "PROCESSES", "WORLD", "STEP", "STEPS/S", "PID")
        is_last = title == "COMMAND"
        table.add_column(
            title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis" if is_last else "fold"
        )
    for job in jobs:
        table.add_row(*(escape(clean(cell)) for cell in _cells(job)))
    console.print(table)
    for job in jobs:
        if job.silent is not None and job.entry.record.url is not None:
            console.print(clean(job.silent), style="red", markup=False)


def _cells(job: Seen) -> tuple[str, ...]:
    record, view = job.entry.record, job.view
    ended = record.result.ended if record.result else datetime.now(UTC)
    pid = str(record.pid) if job.entry.state is JobState.RUNNING else ""
    command = shlex.join(record.command)
    if view is None:
        return (record.name, job.phase, "", "", "", "", "", age(ended - record.started), pid, command)
    live = sum(node.status == "running" for node in view.nodes)
    nodes = f"{live}/{view.target}" if job.entry.state is JobState.RUNNING else ""
    return (
        record.name,
        job.phase,
        nodes,
        str(view.world_size),
        str(view.generation),
        "" if view.step is None else f"{view.step:,}",
        "" if view.steps_per_second is None else f"{view.steps_per_second:.3g}",
        age(ended - record.started),
        pid,
        command,
    )


# scale, stop ---------------------------------------------------------------------------------------------


def scale(registry: Registry, words: list[str]) -> None:
    """`[JOB] worker=N`"""
    asks = [word for word in words if "=" in word]
    names = [word for word in words if "=" not in word]
    if len(asks) != 1 or len(names) > 1:
        raise BadInput(f"shoal scale wants [JOB] worker=N, got {shlex.join(words)!r}")
    role, _, number = asks[0].partition("=")
    if role != "worker":
        raise BadInput(f"shoal scale: a local job has role worker, got {role!r}")
    if not number.isascii() or not number.isdecimal() or int(number) < 1:
        raise BadInput(f"shoal scale: worker= wants a number of at least 1, got {number!r}")
    entry = choose(registry, names[0] if names else None)
    print(f"{entry.record.name}: {clean(client.scale(entry, int(number)))}")


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
