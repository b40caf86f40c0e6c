"""Virtual time: a queue of what happens when, and links that carry messages in order.

One `VirtualClock` drives a whole simulation. Nothing sleeps: the clock jumps to the next event. Times are whole
microseconds and events of one moment run in the order in which they were asked for, so that a run depends on
nothing but its inputs and its seed.
"""

import heapq
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)

Event = Callable[[], None]


class VirtualClock:
    """The time of a simulation, and what is going to happen in it."""

    def __init__(self) -> None:
        self.micros = 0
        self.events = 0
        """How many events have run."""
        self._queue: list[tuple[int, int, Event]] = []
        self._asked = 0

    def now(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.micros)

    def after(self, micros: int, event: Event) -> None:
        """Let something happen so many microseconds from now."""
        self.at(self.micros + micros, event)

    def at(self, micros: int, event: Event) -> None:
        heapq.heappush(self._queue, (max(micros, self.micros), self._asked, event))
        self._asked += 1

    def step(self) -> bool:
        """Run the next event. False: nothing is going to happen any more."""
        if not self._queue:
            return False
        self.micros, _, event = heapq.heappop(self._queue)
        self.events += 1
        event()
        return True


class Link:
    """One direction of a connection: messages take their time, and never overtake each other."""

    def __init__(self, clock: VirtualClock, chance: random.Random, *, slowest: int) -> None:
        self.open = True
        self._clock = clock
        self._chance = chance
        self._slowest = slowest
        self._last = 0

    def send(self, deliver: Event) -> None:
        """Deliver later; not at all if the link is closed by then."""
        self._last = max(self._last, self._clock.micros + self._chance.randrange(1, self._slowest))
        self._clock.at(self._last, lambda: deliver() if self.open else None)
