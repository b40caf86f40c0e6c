"""Keys that wait to be worked on: each once, by one worker at a time, again after a failure, never all at once.

A key says only *that* something should be looked at, so any number of wake-ups before the look are one look, and a
wake-up during the look means one more look after it. `Backlog` is that bookkeeping, without a clock or a task;
`WorkQueue` is the loop around it.

    queue = WorkQueue()
    queue.add("train/mnist")                      # from an informer's handler
    queue.add_after("train/mnist", seconds=30)    # the earlier of two times holds
    await queue.work(reconcile, workers=8)        # for ever; reconcile(key) returns seconds to the next look, or None

A failed key waits longer each time; a success ends that. Retries of all keys together draw on one budget, so that a
server in trouble is not asked by everybody at once. When there is no room for a new key it is turned away and the
backlog says so; the loop then asks `refill` for all keys once there is room, so that nothing is lost for good.
"""

import asyncio
import heapq
import logging
import random
from collections import deque
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

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.retries_per_second <= 0 or self.retry_burst < 1:
            raise ValueError("capacity, retries_per_second and retry_burst must be greater than 0")


class Backlog(Generic[K]):
    """Which keys are ready, waiting for their time, or being worked on. A key is in one of these at most; one that is
    being worked on may also be marked to be looked at again."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._ready: deque[K] = deque()
        self._is_ready: set[K] = set()
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._pushed = 0
        self._working: dict[K, float | None] = {}  # when to look again; None: no need
        self._failures: dict[K, int] = {}
        self._budget = float(settings.retry_burst)
        self._budget_at: float | None = None
        self.turned_away = False
        """A key was not taken for want of room. Whoever refills sets it back."""

    def add(self, key: K, now: float, after: float = 0.0) -> bool:
        """Have the key looked at, not before so many seconds have passed. False: there is no room for it."""
        due = now + after
        if key in self._working:
            marked = self._working[key]
            self._working[key] = due if marked is None else min(marked, due)
            return True
        if key in self._is_ready:
            return True
        if key not in self._due and len(self) >= self._settings.capacity:
            self.turned_away = True
            return False
        if after <= 0:
            self._due.pop(key, None)
            self._ready.append(key)
            self._is_ready.add(key)
        elif key not in self._due or due < self._due[key]:
            self._due[key] = due
            self._pushed += 1
            heapq.heappush(self._heap, (due, self._pushed, key))
        return True

    def take(self, now: float) -> K | None:
        """The key that has been ready for longest; it is being worked on from now on. None: none is ready."""
        self._ripen(now)
        if not self._ready:
            return None
        key = self._ready.popleft()
        self._is_ready.discard(key)
        self._working[key] = None
        return key

    def done(self, key: K, now: float, *, again_after: float | None = None) -> None:
        """The look went well."""
        self._failures.pop(key, None)
        marked = self._working.pop(key)
        times = [at - now for at in (marked,) if at is not None]
        if again_after is not None:
            times.append(again_after)
        if times:
            self.add(key, now, max(0.0, min(times)))

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
        return self._heap[0][0] if self._heap else None

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def working(self) -> int:
        return len(self._working)

    def __len__(self) -> int:
        return len(self._ready) + len(self._due) + len(self._working)

    def _ripen(self, now: float) -> None:
        self._prune()
        while self._heap and self._heap[0][0] <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._due[key]
            self._ready.append(key)
            self._is_ready.add(key)
            self._prune()

    def _prune(self) -> None:
        """Drop entries of the heap that an earlier time has replaced."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)

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
            key = await self._next()
            await self._handle(key, handle)
            self._wake()

    async def _next(self) -> K:
        while True:
            self._woken.clear()
            key = self.backlog.take(self._loop.time())
            if key is not None:
                if self.backlog.ready:
                    self._woken.set()  # another worker may take the next one
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
