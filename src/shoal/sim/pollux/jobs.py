"""One job on Pollux's ground: how far it gets in a slice of time, with what it holds.

Progress is counted in steps at the application's smallest batch. A change of hosts costs a fixed time without
progress, during which the GPUs are held; being suspended costs nothing by itself. Nothing is random.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.sim.pollux.profiles import Application, Placement

RESTART_SECONDS = 30
_ROUNDING = 1e-8
"""So that 8 / 4 rounds up to 2 whatever the division did to the last bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A line of a workload: who asks for what, and when."""

    name: str
    submitted: int
    application: str
    gpus: int
    batch: int


@dataclass(frozen=True, slots=True)
class Split:
    """How a total batch is spread over GPUs and passes."""

    local_batch: int
    accumulation: int
    """Passes beyond the first."""


def split_batch(application: Application, batch: int, gpus: int) -> Split:
    """As few passes as the memory of a GPU allows. One GPU that trains a larger batch than the smallest takes at least
    two: with one pass there would be nothing to tell the noise of the gradient from."""
    limits = application.limits
    each = math.ceil(batch / gpus - _ROUNDING)
    accumulation = math.ceil(each / limits.max_local - _ROUNDING) - 1
    if gpus == 1 and batch > limits.init_batch:
        accumulation = max(1, accumulation)
    local = math.ceil(each / (accumulation + 1) - _ROUNDING)
    return Split(min(local, limits.max_batch // (gpus * (accumulation + 1))), accumulation)


class Training:
    """A job as it really is. Whoever schedules it may not know all of this."""

    def __init__(self, ask: Ask, application: Application) -> None:
        self.ask = ask
        self.application = application
        self.hosts: tuple[int, ...] = ()
        """The host of each of its GPUs, in the order of the ring."""
        self.placement: Placement = ()
        self.progress = 0.0
        self.epoch = 0
        self.finished: int | None = None
        self.restarting = 0
        """Seconds without progress that are still to come."""
        self.training_gpu_seconds = 0.0
        """What it held while it made progress."""

    def place(self, hosts: Sequence[int], *, restart_seconds: int = RESTART_SECONDS) -> bool:
        """Give it these GPUs from now on. False: it has them already."""
        if tuple(hosts) == self.hosts:
            return False
        self.hosts = tuple(hosts)
        self.placement = placement_of(hosts)
        if hosts:
            self.restarting = restart_seconds
        return True

    def advance(self, now: int, seconds: int, *, slowdown: float = 0.0) -> None:
        """Let time pass from `now`. Epochs end at whole seconds."""
        if self.finished is not None or not self.placement:
            return
        waited = min(self.restarting, seconds)
        self.restarting -= waited
        now, seconds = now + waited, seconds - waited
        while seconds > 0:
            speed = self.speed() * (1.0 - slowdown)
            end = self.application.epoch_end(self.epoch)
            if self.progress + speed * seconds < end:
                self.progress += speed * seconds
                self.training_gpu_seconds += seconds * len(self.hosts)
                return
            took = round((end - self.progress) / speed)
            self.training_gpu_seconds += took * len(self.hosts)
            self.progress = end
            self.epoch += 1
            now, seconds = now + took, seconds - took
            if self.epoch == self.application.limits.max_epochs:
                self.finished = now
                return

    def speed(self) -> float:
        """Progress per second in this epoch with what it holds."""
        gpus = len(self.hosts)
        split = split_batch(self.application, self.ask.batch, gpus)
        batch = gpus * split.local_batch * (split.accumulation + 1)
        seconds = self.application.step_seconds(self.placement, split.local_batch, split.accumulation)
        return self.application.gain(batch, self.epoch) / seconds

    def remaining_steps(self) -> float:
        """Real steps until its end by the measured run at its batch; 1 when it is in its last epoch."""
        last = self.application.limits.max_epochs - 1
        if self.epoch >= last:
            return 1
        return self.application.iterations(self.ask.batch, last) - self.application.iterations(self.ask.batch, self.epoch)


def placement_of(hosts: Sequence[int]) -> Placement:
    """GPUs on each host of a ring: neighbours on the same host count together."""
    counts: list[int] = []
    last: int | None = None
    for host in hosts:
        if host == last:
            counts[-1] += 1
        else:
            counts.append(1)
        last = host
    return tuple(counts)
