"""Keys that wait to be worked on: each once, by one worker at a time, again after a failure, never all at once.

A key says only *that* something should be looked at, so any number of wake-ups before the look are one look, and a
wake-up during the look means one more look after it. `Backlog` is that bookkeeping, without a clock or a task;
`WorkQueue` is the loop around it.

    queue = WorkQueue()
    queue.add("train/mnist")                      # from an informer's handler
    queue.add_after("train/mnist", seconds=30)    # the earlier of two times holds
    await queue.work(reconcile, workers=8)        # for ever; reconcile(key) returns seconds to the next look, or None

Keys whose time has come are taken by their deadline, not by when they came. Who asks for a look at once has waited too
long already; who could wait a second (news to be written down) can as well wait ten behind him. So when more is asked
than can be done, what people ask for is done first, and what is told of it follows; but nobody waits for ever, because
a deadline that has passed is earlier than any new one.

A failed key waits longer each time; a success ends that. Retries of all keys together draw on one budget, so that a
server in trouble is not asked by everybody at once. When there is no room for a new key it is turned away and the
backlog says so; the loop then asks `refill` for all keys once there is room, so that nothing is lost for good.
"""

import asyncio
import heapq
import logging
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.errors import ApiError

log = logging.getLogger("shoal.platforms.kubernetes")

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    capacity: int = 100_000
    """Keys that wait or are worked on. More than a cluster has jobs; it bounds memory, not work."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first_seconds=0.05, limit_seconds=60.0))
    retries_per_second: float = 50.0
    """Of all keys together, in the long run."""
    retry_burst: int = 200
    """So many may come at once."""
    slack: float = 10.0
    """How many times as long as it had to wait anyway a key may wait behind others."""
    most_slack_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.retries_per_second <= 0 or self.retry_burst < 1:
            raise ValueError("capacity, retries_per_second and retry_burst must be greater than 0")
        if min(self.slack, self.most_slack_seconds) < 0:
            raise ValueError("slack and most_slack_seconds must not be negative")


@dataclass(frozen=True, slots=True)
class _Turn:
    """When a key is looked at."""

    due: float
    """Not before."""
    deadline: float
    """If more keys are due than can be worked on, in the order of these."""

    def sooner(self, other: "_Turn | None") -> "_Turn":
        return self if other is None else _Turn(min(self.due, other.due), min(self.deadline, other.deadline))


class Backlog(Generic[K]):
    """Which keys are ready, waiting for their time, or being worked on. A key is in one of these at most; one that is
    being worked on may also be marked to be looked at again."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._ready: dict[K, float] = {}  # the deadlines
        self._waiting: dict[K, _Turn] = {}
        self._by_deadline: list[tuple[float, int, K]] = []  # heaps, with entries that a sooner one has replaced
        self._by_due: list[tuple[float, int, K]] = []
        self._pushed = 0
        self._working: dict[K, float | None] = {}  # how long after it to look again; None: no need
        self._failures: dict[K, int] = {}
        self._budget = float(settings.retry_burst)
        self._budget_at: float | None = None
        self.turned_away = False
        """A key was not taken for want of room. Whoever refills sets it back."""

    def add(self, key: K, now: float, after: float = 0.0) -> bool:
        """Have the key looked at, not before so many seconds have passed; of one that is being worked on, since the
        end of that look. False: there is no room for it."""
        after = max(after, 0.0)
        turn = _Turn(now + after, now + after + min(self._settings.slack * after, self._settings.most_slack_seconds))
        if key in self._working:
            marked = self._working[key]
            self._working[key] = after if marked is None else min(marked, after)
        elif key in self._ready:
            if turn.deadline < self._ready[key]:
                self._line_up(key, turn.deadline)
        elif key not in self._waiting and len(self) >= self._settings.capacity:
            self.turned_away = True
            return False
        else:
            self._wait(key, now, turn)
        return True

    def _wait(self, key: K, now: float, turn: _Turn) -> None:
        before = self._waiting.get(key)
        turn = turn.sooner(before)
        if turn.due <= now:
            self._waiting.pop(key, None)
            self._line_up(key, turn.deadline)
        elif turn != before:
            self._waiting[key] = turn
            self._push(self._by_due, turn.due, key)

    def take(self, now: float) -> K | None:
        """Of the keys that are ready the one with the earliest deadline; it is being worked on from now on. None: none
        is ready."""
        self._ripen(now)
        while self._by_deadline:
            deadline, _, key = heapq.heappop(self._by_deadline)
            if self._ready.get(key) == deadline:
                del self._ready[key]
                self._working[key] = None
                return key
        return None

    def done(self, key: K, now: float, *, again_after: float | None = None) -> None:
        """The look went well."""
        self._failures.pop(key, None)
        waits = [after for after in (self._working.pop(key), again_after) if after is not None]
        if waits:
            self.add(key, now, min(waits))

    def failed(self, key: K, now: float, chance: float) -> float:
        """The look failed: it is tried again after the seconds that are returned, whoever asked for it sooner."""
        self._working.pop(key)
        self._failures[key] = self._failures.get(key, 0) + 1
        wait = self._settings.backoff.seconds(self._failures[key], chance) + self._charge(now)
        self.add(key, now, wait)
        return wait

    def forget(self, key: K) -> None:
        """Count the key's failures anew: it is another thing by now."""
        self._failures.pop(key, None)

    def next_due(self) -> float | None:
        """When the next key becomes ready; None: none is waiting for its time."""
        self._prune()
        return self._by_due[0][0] if self._by_due else None

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def working(self) -> int:
        return len(self._working)

    def __len__(self) -> int:
        return len(self._ready) + len(self._waiting) + len(self._working)

    def _ripen(self, now: float) -> None:
        self._prune()
        while self._by_due and self._by_due[0][0] <= now:
            _, _, key = heapq.heappop(self._by_due)
            self._line_up(key, self._waiting.pop(key).deadline)
            self._prune()

    def _prune(self) -> None:
        """Drop what a sooner time has replaced, so that the first entry counts."""
        while self._by_due:
            due, _, key = self._by_due[0]
            turn = self._waiting.get(key)
            if turn is not None and turn.due == due:
                return
            heapq.heappop(self._by_due)

    def _line_up(self, key: K, deadline: float) -> None:
        self._ready[key] = deadline
        self._push(self._by_deadline, deadline, key)

    def _push(self, heap: list[tuple[float, int, K]], when: float, key: K) -> None:
        self._pushed += 1
        heapq.heappush(heap, (when, self._pushed, key))

    def _charge(self, now: float) -> float:
        """Take one retry from the common budget. Returns how long it takes until the budget has it."""
        rate, burst = self._settings.retries_per_second, self._settings.retry_burst
        if self._budget_at is not None:
            self._budget = min(float(burst), self._budget + (now - self._budget_at) * rate)
        self._budget_at = now
        self._budget -= 1
        return max(0.0, -self._budget / rate)


class WorkQueue(Generic[K]):
    def __init__(
        self,
        settings: QueueSettings | None = None,
        *,
        rng: random.Random | None = None,
        refill: Callable[[], Iterable[K]] | None = None,
    ) -> None:
        """`refill`: all keys there are, for when some had to be turned away."""
        self.backlog: Backlog[K] = Backlog(settings or QueueSettings())
        self._rng = rng or random.Random()
        self._refill = refill
        self._woken = asyncio.Event()
        self._next_in_line = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def add(self, key: K) -> bool:
        return self.add_after(key, 0.0)

    def add_after(self, key: K, seconds: float) -> bool:
        taken = self.backlog.add(key, self._loop.time(), seconds)
        if not taken:
            log.warning("no room in the queue for %s: it is looked for again when there is", key)
        self._woken.set()
        return taken

    def __len__(self) -> int:
        return len(self.backlog)

    async def work(self, handle: Callable[[K], Awaitable[float | None]], *, workers: int = 8) -> None:
        """Hand keys to `handle` until cancelled. It returns after how many seconds to look again, or None."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(self._worker(handle))

    async def _worker(self, handle: Callable[[K], Awaitable[float | None]]) -> None:
        while True:
            async with self._next_in_line:  # one idle worker waits for keys, not all of them for each
                key = await self._next()
            await self._handle(key, handle)
            self._wake()

    async def _next(self) -> K:
        while True:
            self._woken.clear()
            key = self.backlog.take(self._loop.time())
            if key is not None:
                return key
            try:
                async with asyncio.timeout_at(self.backlog.next_due()):
                    await self._woken.wait()
            except TimeoutError:
                pass

    async def _handle(self, key: K, handle: Callable[[K], Awaitable[float | None]]) -> None:
        try:
            again = await handle(key)
        except ApiError as exc:  # foreseen: one line
            wait = self.backlog.failed(key, self._loop.time(), self._rng.random())
            log.warning("%s: %s; again in %.1f s", key, exc, wait)
        except Exception:  # the process's one broad except: a bug with one key must not end the others
            wait = self.backlog.failed(key, self._loop.time(), self._rng.random())
            log.exception("%s failed; again in %.1f s", key, wait)
        except BaseException:  # cancelled: the key is not done, and nobody will retry it here
            self.backlog.done(key, self._loop.time(), again_after=0.0)
            raise
        else:
            self.backlog.done(key, self._loop.time(), again_after=again)

    def _wake(self) -> None:
        self._woken.set()
        if self.backlog.turned_away and self._refill is not None and not self.backlog.ready:
            self.backlog.turned_away = False
            for key in self._refill():
                if not self.add(key):
                    break
