"""How long training stands still, and how many steps it does again, when more is lost than the survivors can make good.

Who: `shoal run` with the SDK (`scripts/elastic.py`) on this machine, two nodes of one process, steps of at least 10 ms,
`state.save()` every 20 steps, `--checkpoint-dir`. A job of its own for each loss:

- *all processes*: SIGKILL of every training process at once. The agents have the last save in their memory.
- *all agents*: SIGKILL of every agent, and so of its processes and its memory. The last save is on disk.
- *everything*: SIGKILL of all that `shoal run` started and of itself, as when the machine goes down; `--resume` at
  once.
- *a frozen process*: SIGSTOP of one of two, with `--hang-timeout 5`. No error anywhere until the time is over.
- *a frozen node*: SIGSTOP of one agent and its process, as when its machine is unreachable. It is given up when it has
  been silent for 10 s.

The time is from the signal to the end of the longest while in which nobody finished a step; the steps are those that
were finished before and then done again: about ten, as the loss comes half way between two saves. (What is lost when
some process, some node or the master dies while others live on: `recovery.py` and `failover.py`.) The peer is the least
that a new training process needs: a Python that imports the same modules.
"""

import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from _common import Row, kill_all, parse_options, progress, report, tree
from _fleets import ENVIRONMENT, Finished, Job, ShoalFleet, Trial

NODES = 2
STEADY_STEPS = 70
SAVE_EVERY = 20
PATIENCE = 120.0
HANG_SECONDS = 5
IMPORTS = "import torch, shoal.torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    seconds: float
    steps_again: int


Lose = Callable[[ShoalFleet, list[Finished]], None]


def all_processes(fleet: ShoalFleet, last: list[Finished]) -> None:
    for step in last:
        os.kill(step.pid, signal.SIGKILL)


def all_agents(fleet: ShoalFleet, last: list[Finished]) -> None:
    for node in [fleet.node_of(step.pid) for step in last]:
        node.kill()


def everything(fleet: ShoalFleet, last: list[Finished]) -> None:
    fleet.lose_everything()
    fleet.resume()


def a_frozen_process(fleet: ShoalFleet, last: list[Finished]) -> None:
    os.kill(last[-1].pid, signal.SIGSTOP)


def a_frozen_node(fleet: ShoalFleet, last: list[Finished]) -> None:
    for process in tree(fleet.node_of(last[-1].pid).pid):
        if process.name() != "shoal-guard":  # which has to end what is left of the node when that is given up
            process.suspend()


CASES: dict[str, Lose] = {
    "all processes killed, restored from memory": all_processes,
    "all agents killed, restored from disk": all_agents,
    "everything killed, shoal run --resume": everything,
    f"a process stopped, --hang-timeout {HANG_SECONDS}": a_frozen_process,
    "a node stopped": a_frozen_node,
}


def measured(lose: Lose) -> Loss:
    """One job, and what it loses."""
    made: list[ShoalFleet] = []

    def make(job: Job) -> ShoalFleet:
        folder = str(job.folder / "kept")
        made.append(ShoalFleet(job, "--checkpoint-dir", folder, "--hang-timeout", str(HANG_SECONDS)))
        return made[0]

    flags = ("--pace=0.01", f"--save-every={SAVE_EVERY}")
    until = time.monotonic() + 2 * PATIENCE
    with Trial(make, "elastic.py", *flags, nodes=(1, NODES), checkpoint=False, until=until) as trial:
        trial.fleet.start(NODES)
        last = trial.wait_steady(NODES, steps=STEADY_STEPS, seconds=PATIENCE)
        victims = [step.pid for step in last]
        at = time.time()
        lose(made[0], last)
        trial.wait_for(lambda: stood_still(trial, at) is not None, seconds=PATIENCE, what="step after the loss")
        found = stood_still(trial, at)
        assert found is not None
        kill_all([process for pid in victims for process in tree(pid)])  # also those that only stand still
    return found


def stood_still(trial: Trial, at: float) -> Loss | None:
    """What the longest while without a step was, once some steps have been finished after it; None: not yet."""
    steps = sorted(trial.steps.all, key=lambda step: step.at)
    recent = [step for step in steps if step.at > at - 1]
    before, after = max(itertools.pairwise(recent), key=lambda pair: pair[1].at - pair[0].at, default=(None, None))
    if before is None or after is None or after.at < at or sum(step.at > after.at for step in recent) < 5:
        return None
    done = max(step.step for step in steps if step.at <= before.at)
    if after.at - before.at < 0.5 and after.pid == before.pid:
        return None  # the loss is not felt yet
    return Loss(seconds=after.at - at, steps_again=max(0, done - after.step + 1))


def bare_start() -> float:
    """Seconds of a Python process that imports what a training process imports."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", IMPORTS], env=ENVIRONMENT, check=True)
    return time.monotonic() - began


def main() -> None:
    options = parse_options(__doc__)
    rounds = 1 if options.quick else 5
    bare = statistics.median(bare_start() for _ in range(3))
    rows = []
    for name, lose in CASES.items():
        progress(name)
        losses = [measured(lose) for _ in range(rounds)]
        rows.append(
            Row(
                case=f"{name}: stands still, median of {rounds}",
                value=statistics.median(loss.seconds for loss in losses),
                unit="s",
                peer="bare Python with the same imports",
                peer_value=bare,
            )
        )
        rows.append(
            Row(case=f"{name}: steps done again, most", value=max(loss.steps_again for loss in losses), unit="steps")
        )
    report("losses", f"{NODES} nodes, a save every {SAVE_EVERY} steps", rows, options)


if __name__ == "__main__":
    main()
