"""What supervision costs while nothing happens: steady steps a second, beside torchrun + DDP.

Three jobs train the same model on this machine, two processes of one thread each: torchrun with plain DDP
(`scripts/plain.py`), `shoal run` with the very same script, and `shoal run` with the SDK (`scripts/elastic.py`). All
use gloo, and all reduce gradients in buckets of 25 MiB after a first one of 1 MiB (DDP's defaults, and the SDK's).

The machine is noisy, so the jobs are started once and then take turns of a second or two: the training processes of the
other two are stopped (SIGSTOP) meanwhile. Agents, masters and torchruns run on all the time, so what they use
weighs on everybody. One pair is one turn of ours and the torchrun turn next to it; a turn's rate is taken between its
second and its last finished step. The result is the median of the pairs' ratios: noise that lasts longer than a
pair cancels out, noise that is shorter is outvoted. CPU seconds per step, of the training processes alone and over all
turns, are given beside it: they hardly depend on who else uses the machine.
"""

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from _common import Row, parse_options, progress, report
from _fleets import Fleet, Job, ShoalFleet, TorchrunFleet, Trial

PROCESSES = 2
SETTLE_STEPS = 10
START_SECONDS = 90.0
NO_HANGS = "--hang-timeout=0"
"""A process that is stopped for others' turns does not hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    name: str
    hidden: int
    layers: int

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--hidden", str(self.hidden), "--layers", str(self.layers))


SMALL = Model(name="85,000 parameters", hidden=256, layers=2)
MEDIUM = Model(name="2.2 million parameters", hidden=1024, layers=3)
LARGE = Model(name="12.7 million parameters", hidden=2048, layers=4)


class Contestant:
    """One job that trains only in its turns."""

    def __init__(self, name: str, make: Callable[[Job], Fleet], script: str, model: Model) -> None:
        self.name = name
        self._trial = Trial(
            make, script, *model.flags, nodes=(PROCESSES, PROCESSES), checkpoint=False, until=float("inf")
        )
        self._pids: list[int] = []

    def start(self) -> None:
        """Start it, and stop its training processes when they train."""
        self._trial.fleet.start(PROCESSES)
        world = self._trial.wait_steady(PROCESSES, steps=SETTLE_STEPS, seconds=START_SECONDS)
        self._pids = [member.pid for member in world]
        self._signal(signal.SIGSTOP)

    def turn(self, seconds: float) -> "Turn":
        """Train for so long."""
        began, cpu = time.time(), self._cpu_seconds()
        self._signal(signal.SIGCONT)
        time.sleep(seconds)
        self._signal(signal.SIGSTOP)
        cpu = self._cpu_seconds() - cpu
        self._trial.steps.read()
        times = [step.at for step in self._trial.steps.of(self._pids[0]) if step.at > began]
        if len(times) < 3:
            raise RuntimeError(f"{self.name} finished {len(times)} steps in {seconds} s\n{self._trial.last_words()}")
        return Turn(steps=len(times), rate=(len(times) - 2) / (times[-1] - times[1]), cpu_seconds=cpu)

    def _cpu_seconds(self) -> float:
        times = [psutil.Process(pid).cpu_times() for pid in self._pids]
        return sum(t.user + t.system for t in times)

    def end(self) -> None:
        self._trial.__exit__()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            os.kill(pid, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    steps: int
    rate: float
    """Steps a second, between its second step and its last."""
    cpu_seconds: float
    """Of all its training processes."""


Turns = dict[str, list[Turn]]


def compete(model: Model, *, pairs: int, seconds: float) -> Turns:
    contestants = [  # torchrun in the middle: its turn is next to both of ours
        Contestant("sdk", lambda job: ShoalFleet(job, NO_HANGS), "elastic.py", model),
        Contestant("torchrun", TorchrunFleet, "plain.py", model),
        Contestant("plain", lambda job: ShoalFleet(job, NO_HANGS), "plain.py", model),
    ]
    turns: Turns = {contestant.name: [] for contestant in contestants}
    with contextlib.ExitStack() as stack:
        for contestant in contestants:
            stack.callback(contestant.end)
            progress(f"{model.name}: starting {contestant.name}")
            contestant.start()
        for number in range(pairs):
            progress(f"{model.name}: pair {number + 1} of {pairs}")
            for contestant in contestants[:: 1 if number % 2 else -1]:
                turns[contestant.name].append(contestant.turn(seconds))
    return turns


def rows(model: Model, turns: Turns) -> Iterable[Row]:
    theirs = turns["torchrun"]
    for who in ("sdk", "plain"):
        yield _speed(f"{who}: {model.name} ({len(theirs)} pairs)", turns[who], theirs)
    for who in ("sdk", "plain"):
        yield Row(
            case=f"{who}: {model.name}, CPU of the training processes",
            value=_cpu_milliseconds(turns[who]),
            unit="ms/step",
            peer="torchrun + DDP",
            peer_value=_cpu_milliseconds(theirs),
        )


def _speed(case: str, ours: list[Turn], theirs: list[Turn]) -> Row:
    """The ratio is the median of the pairs'; the value is what it makes of torchrun's median."""
    ratio = statistics.median(mine.rate / its.rate for mine, its in zip(ours, theirs, strict=True))
    peer = statistics.median(turn.rate for turn in theirs)
    return Row(
        case=case, value=ratio * peer, unit="steps/s", peer="torchrun + DDP", peer_value=peer, more_is_better=True
    )


def _cpu_milliseconds(turns: list[Turn]) -> float:
    return 1000 * sum(turn.cpu_seconds for turn in turns) / sum(turn.steps for turn in turns)


def main() -> None:
    options = parse_options(__doc__)
    models = [MEDIUM] if options.quick else [SMALL, MEDIUM, LARGE]
    pairs, seconds = (15, 1.5) if options.quick else (30, 3.0)
    found = [row for model in models for row in rows(model, compete(model, pairs=pairs, seconds=seconds))]
    what = f"{PROCESSES} processes of 1 thread, batch 32 each, buckets of 1 and 25 MiB, gloo; median of pairs"
    report("overhead", what, found, options)


if __name__ == "__main__":
    main()
