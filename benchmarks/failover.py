"""How long a job is without its master when the master is killed, and what training notices of it.

Who: `shoal run` with the SDK (`scripts/elastic.py`) on this machine: three nodes of one process, steps of at least
10 ms. The master gets SIGKILL, again and again, once with a spare master waiting (the usual case, five seconds after
the last one began) and once without (two deaths close together).

What, from the signal on:

- *answers*: until a request to the job's port, made right after the kill, is answered by the next master.
- *agents back*: until that master has all agents connected and has heard of their processes.
- *longest step*: of any process from the kill until everybody is back, beside the median step before. Steps lost or
  done again, processes restarted and worlds formed anew are counted over all kills; each should be 0.

The peer is the least that a process can need which must be started for this: a Python that imports the same modules
and does nothing. A spare master has that behind it.
"""

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import Row, parse_options, progress, report
from _fleets import ENVIRONMENT, Job, ShoalFleet, Steps, Trial

NODES = 3
STEADY_STEPS = 15
PACE = "0.01"
SPARE_SECONDS = 8.0
"""A spare master is there so long after the one before it began."""
PATIENCE = 60.0
IMPORTS = "import shoal.cli.master, shoal.master, shoal.stores.file, shoal.wire.tokens"


class Master:
    """The master of the benchmark's job, as its files and its port show it."""

    def __init__(self, folder: Path) -> None:
        self._job = folder / "home" / "jobs" / "benchmark"

    @property
    def pid(self) -> int:
        while not (text := (self._job / "state" / "lock").read_text()):
            pass  # just being written
        return int(text)

    def state(self) -> dict[str, Any]:
        """Ask until somebody answers: a request may have gone to a master that was dying."""
        url = json.loads((self._job / "job.json").read_text())["url"]
        token = (self._job / "admin.token").read_text()
        request = urllib.request.Request(f"{url}/state", headers={"Authorization": f"Bearer {token}"})
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    return dict(json.loads(answer.read()))
            except (urllib.error.URLError, OSError):
                if time.monotonic() > until:
                    raise

    def wait_for_agents(self) -> dict[str, Any]:
        while True:
            state = self.state()
            live = [node for node in state["nodes"] if node["status"] == "running"]
            if len(live) == NODES and all(node["connected"] and node["processes"] for node in live):
                return state
            time.sleep(0.005)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    answers: float
    agents_back: float
    longest_step: float
    median_step: float


def kill(trial: Trial, master: Master) -> Kill:
    trial.steps.read()
    known = len(trial.steps.all)
    began, at = time.monotonic(), time.time()
    os.kill(master.pid, signal.SIGKILL)
    master.state()
    answered = time.monotonic()
    master.wait_for_agents()
    back = time.monotonic()
    trial.wait_steady(NODES, steps=3, seconds=PATIENCE)
    gaps = step_seconds(trial.steps, since=at - 0.1, until=at + back - began)
    before = [s.at for s in trial.steps.all[:known] if s.rank == 0][-100:]
    return Kill(
        answers=answered - began,
        agents_back=back - began,
        longest_step=max(gaps),
        median_step=statistics.median(b - a for a, b in itertools.pairwise(before)),
    )


def step_seconds(steps: Steps, *, since: float, until: float) -> list[float]:
    """How long the steps of each process took that were under way between these times."""
    found = []
    for pid in {step.pid for step in steps.all}:
        times = [step.at for step in steps.of(pid)]
        found += [end - begin for begin, end in itertools.pairwise(times) if end >= since and begin <= until]
    return found


def repeated_or_missing(done: Steps) -> int:
    """Steps that a process did not do right after the one before."""
    wrong = 0
    for pid in {step.pid for step in done.all}:
        steps = [step.step for step in done.of(pid)]
        wrong += sum(after != before + 1 for before, after in itertools.pairwise(steps))
    return wrong


def bare_start() -> float:
    """Seconds of a Python process that imports what a master imports."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", IMPORTS], env=ENVIRONMENT, check=True)
    return time.monotonic() - began


def life(rounds: int) -> tuple[list[Kill], list[Kill], dict[str, int]]:
    """One job, its master killed so many times with a spare one there and as many times without."""
    folders: list[Path] = []

    def make(job: Job) -> ShoalFleet:
        folders.append(job.folder)
        return ShoalFleet(job)

    until = time.monotonic() + 60 + rounds * 40
    with Trial(make, "elastic.py", f"--pace={PACE}", nodes=(1, NODES), checkpoint=False, until=until) as trial:
        trial.fleet.start(NODES)
        trial.wait_steady(NODES, steps=STEADY_STEPS, seconds=PATIENCE)
        master = Master(folders[0])
        before = master.wait_for_agents()
        spare, cold = [], []
        for number in range(rounds):
            progress(f"kill {number + 1} of {rounds}")
            time.sleep(SPARE_SECONDS)
            spare.append(kill(trial, master))
            cold.append(kill(trial, master))
        after = master.wait_for_agents()
        trial.steps.read()
        counts = {
            "steps lost or done again": repeated_or_missing(trial.steps),
            "processes restarted": len(pids(after) - pids(before)),
            "worlds formed anew": after["generation"] - before["generation"],
        }
    return spare, cold, counts


def pids(state: dict[str, Any]) -> set[int]:
    return {process["pid"] for node in state["nodes"] for process in node["processes"]} | {
        node["pid"] for node in state["nodes"]
    }


def rows(spare: list[Kill], cold: list[Kill], counts: dict[str, int], bare: float) -> list[Row]:
    peer = "bare Python with the same imports"
    found = []
    for name, kills in (("a spare master waits", spare), ("no spare master", cold)):
        for what, values in (
            ("answers", [k.answers for k in kills]),
            ("agents back", [k.agents_back for k in kills]),
        ):
            found.append(
                Row(
                    case=f"{name}: {what}, median",
                    value=statistics.median(values) * 1e3,
                    unit="ms",
                    peer=peer,
                    peer_value=bare * 1e3,
                )
            )
            found.append(Row(case=f"{name}: {what}, worst of {len(values)}", value=max(values) * 1e3, unit="ms"))
    everything = [*spare, *cold]
    found.append(
        Row(
            case="longest training step while there is no master, median",
            value=statistics.median(k.longest_step for k in everything) * 1e3,
            unit="ms",
            peer="median step before",
            peer_value=statistics.median(k.median_step for k in everything) * 1e3,
        )
    )
    found += [Row(case=f"{what}, all kills", value=float(count), unit="") for what, count in counts.items()]
    return found


def main() -> None:
    options = parse_options(__doc__)
    rounds = 3 if options.quick else 10
    bare = statistics.median(bare_start() for _ in range(3))
    spare, cold, counts = life(rounds)
    scale = f"{NODES} nodes, {2 * rounds} kills of the master"
    report("failover", scale, rows(spare, cold, counts, bare), options)


if __name__ == "__main__":
    main()
