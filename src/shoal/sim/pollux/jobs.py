"""One job on Pollux's ground: how far it gets in a slice of time, with what it holds.

Progress is counted in steps at the application's smallest batch. The total batch is the one that was asked for,
whatever the number of GPUs. Nothing is random.
"""

import math
from dataclasses import dataclass

from shoal.sim.models import Placement
from shoal.sim.pollux.profiles import Application

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
    """A job as it really is (a `shoal.sim.models.Model`). Whoever schedules it may not know all of this."""

    def __init__(self, ask: Ask, application: Application) -> None:
        self.ask = ask
        self.application = application
        self.progress = 0.0
        self.epoch = 0
        self.finished: float | None = None

    def advance(self, now: float, seconds: float, placement: Placement, slowdown: float = 0.0) -> None:
        """Let it train from `now`. An epoch takes a whole number of seconds."""
        while seconds > 0 and self.finished is None:
            speed = self.speed(placement) * (1.0 - slowdown)
            end = self.application.epoch_end(self.epoch)
            if self.progress + speed * seconds < end:
                self.progress += speed * seconds
                return
            took = round((end - self.progress) / speed)
            self.progress = end
            self.epoch += 1
            now, seconds = now + took, seconds - took
            if self.epoch == self.application.limits.max_epochs:
                self.finished = now

    def seconds_left(self, placement: Placement, slowdown: float = 0.0) -> float:
        copy = Training(self.ask, self.application)
        copy.progress, copy.epoch, copy.finished = self.progress, self.epoch, self.finished
        copy.advance(0.0, math.inf, placement, slowdown)
        return copy.finished or 0.0

    def rewind(self, seconds: float, placement: Placement) -> None:
        self.progress = max(0.0, self.progress - seconds * self.speed(placement))
        while self.epoch > 0 and self.progress < self.application.epoch_end(self.epoch - 1):
            self.epoch -= 1

    def speed(self, placement: Placement) -> float:
        """Progress per second in this epoch with what it holds."""
        key = (self.ask.batch, self.epoch, placement)
        found = self.application.speeds.get(key)
        if found is None:
            gpus = sum(placement)
            split = split_batch(self.application, self.ask.batch, gpus)
            batch = gpus * split.local_batch * (split.accumulation + 1)
            seconds = self.application.step_seconds(placement, split.local_batch, split.accumulation)
            found = self.application.speeds[key] = self.application.gain(batch, self.epoch) / seconds
        return found

    def remaining_steps(self) -> float:
        """Real steps until its end by the measured run at its batch; 1 when it is in its last epoch."""
        last = self.application.limits.max_epochs - 1
        if self.epoch >= last:
            return 1
        whole = self.application.iterations(self.ask.batch, last)
        return whole - self.application.iterations(self.ask.batch, self.epoch)
