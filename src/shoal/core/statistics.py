"""What a job uses and how fast it trains: its own history, and that of each node. Fed by what agents and SDK report.

Three things come in. A node's agent says with each heartbeat what the node uses (`heard`). The member that speaks for
the world says how far training is (`progressed`). And every few seconds the owner says that time has passed (`ticked`):
then the sums over all nodes are taken.

What training processes count (`Trained`) comes as counters; two reports of one process make a rate. A counter that has
fallen is another process's, or one that went back to a checkpoint: it is where counting begins again, not a speed.

Bounded: by `MOST_NODES`, and by the levels of each `History`. Above that the nodes that were silent longest are
forgotten; and of those that live no more, all but the last `MOST_DEAD`. One owner, the master;
`shoal.core.statistics_kept` makes bytes of it for the journal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from shoal.core.history import FEW, LARGEST, MANY, History, Quantity, Timeline, sampled, sane
from shoal.core.nodes import Node, NodeId, NodeSeen, ProcessSeen, Role, Trained

MOST_NODES = 2000
MOST_DEAD = 20
"""Nodes that live no more and are remembered: who decides after a loss wants to know what the lost ones used."""
MOST_TAKEN = 125
"""Heartbeats a second that are taken in. A job of 250 nodes has so many; of a larger one each node counts less often,
so that its master has time for other things: a node of 1,000 every eight seconds."""
SOONEST = 0.2
"""Seconds between two reports that make a rate: messages that waited somewhere arrive together, and no time between
them is no speed."""
QUIET = 15.0
"""Seconds after which a node that says nothing is left out of the job's sums, and so is what it said before."""
TICK = 2.0
"""Seconds between two sums over all nodes."""
SAMPLE = 30
"""Seconds in one sample, for optimizers, unless they want another number of them."""
WORKERS = frozenset({Role.WORKER, Role.CHIEF})


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What one heartbeat says of a node. Numbers as they came."""

    node: NodeSeen = field(default_factory=NodeSeen)
    processes: tuple[ProcessSeen, ...] = ()
    gpus: int = 0
    gpu_busy: float = 0.0
    """GPUs that are busy, summed."""
    gpu_memory: int = 0
    gpu_memory_total: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A counter as it stood at one moment."""

    at: float
    trained: Trained


@dataclass(slots=True)
class Book:
    """What is known of one node."""

    history: History = field(default_factory=History)
    at: float = 0.0
    """When it was last heard."""
    taken: float = float("-inf")
    """When it was last heard and what it said was taken in."""
    cpu_limit: float | None = None
    memory_limit: float | None = None
    gpus: int = 0
    gpu_memory_total: float | None = None
    marks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    """By local rank and pid."""


@dataclass(frozen=True, slots=True)
class JobMark:
    at: float
    step: int
    samples: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What the owner knows of the job besides, when time has passed."""

    workers: int
    """Nodes in the world; 0: there is none."""
    nodes: Iterable[Node] = ()
    """Those that live."""


class Statistics:
    def __init__(self, sample: int = SAMPLE) -> None:
        """`sample`: how many seconds make a sample, of the job and of each node."""
        self.sample = sample
        self.timeline = Timeline()
        self.job = History(sampled(MANY, sample))
        self.nodes: dict[NodeId, Book] = {}
        """Those heard last are last."""
        self.dead: frozenset[NodeId] = frozenset()
        """Those of them that lived no more when time last passed."""
        self._mark: JobMark | None = None
        self._is_told = False
        """Somebody counts the whole job's samples; else its speed is the sum of what the nodes count themselves."""
        self._ticked = float("-inf")

    # What comes in ----------------------------------------------------------------------------------------

    def heard(self, node: NodeId, heard: Heard, now: datetime) -> None:
        """A heartbeat came."""
        at = self.timeline.at(now)
        book = self.nodes.pop(node, None) or self.new_book()
        self.nodes[node] = book
        while len(self.nodes) > MOST_NODES:
            del self.nodes[next(iter(self.nodes))]
        book.at = at
        if at - book.taken < self._taking:
            return
        book.taken = at
        book.cpu_limit, book.memory_limit = sane(heard.node.cpu_limit), sane(heard.node.memory_limit)
        said: list[tuple[Quantity, float | None, float]] = []
        if heard.processes:
            counted = heard.node.memory_bytes
            memory = _sum([process.memory_bytes for process in heard.processes]) if counted is None else counted
            said = [
                (Quantity.CPU, _sum([process.cpu for process in heard.processes]), 1.0),
                (Quantity.MEMORY, memory, 1.0),
                *_counted(book, heard.processes, at),
            ]
        if heard.gpus > 0:
            book.gpus, book.gpu_memory_total = heard.gpus, sane(heard.gpu_memory_total)
            said += [(Quantity.GPU, heard.gpu_busy, 1.0), (Quantity.GPU_MEMORY, heard.gpu_memory, 1.0)]
        book.history.add_all(at, said)

    def progressed(self, step: int, samples: int | None, now: datetime) -> None:
        """Training has come so far, by whoever speaks for the world."""
        at = self.timeline.at(now)
        before, self._is_told = self._mark, self._is_told or samples is not None
        if before is not None and before.step <= step and at - before.at < SOONEST:
            return
        self._mark = JobMark(at, step, samples)
        if before is None or step < before.step:
            return
        seconds, steps = at - before.at, step - before.step
        self.job.add(at, Quantity.STEPS, steps / seconds, seconds)
        if steps:
            self.job.add(at, Quantity.STEP, seconds / steps, steps)
        if samples is not None and before.samples is not None and samples >= before.samples:
            self.job.add(at, Quantity.SAMPLES, (samples - before.samples) / seconds, seconds)

    def broken(self) -> None:
        """The world is over: until the next one stands nobody trains, and that is no slow step."""
        self._mark = None

    def ticked(self, now: Callable[[], Now], at: datetime) -> None:
        """Time has passed. `now` is asked only when the sums are due."""
        seconds = self.timeline.at(at)
        if seconds - self._ticked < TICK:
            return
        self._ticked = seconds
        self._sum_up(now(), seconds)

    def new_book(self, at: float = 0.0) -> Book:
        return Book(history=History(sampled(FEW, self.sample)), at=at)

    @property
    def _taking(self) -> float:
        """Seconds from one heartbeat of a node that is taken in to the next; at most 0: each is."""
        return (len(self.nodes) - len(self.dead)) / MOST_TAKEN - 1.0

    # How it is added up -----------------------------------------------------------------------------------

    def _forget(self, live: Mapping[NodeId, Node]) -> None:
        dead = [name for name in self.nodes if name not in live]
        for name in dead[:-MOST_DEAD]:
            del self.nodes[name]
        self.dead = frozenset(dead[-MOST_DEAD:])

    def _sum_up(self, now: Now, at: float) -> None:
        live = {node.id: node for node in now.nodes}
        self._forget(live)
        books = {name: book for name, book in self.nodes.items() if at - book.at <= QUIET and name in live}
        since = at - QUIET - max(0.0, self._taking)
        if now.workers > 0:
            self.job.add(at, Quantity.WORKERS, now.workers)
        is_heard = any(book.taken > since for book in books.values())
        for quantity in (Quantity.CPU, Quantity.MEMORY, Quantity.GPU):
            values = _fresh(books.values(), quantity, since)
            # Agents that speak and have nothing to tell of have no processes: the job uses nothing.
            if values or (is_heard and self.job.latest(quantity) is not None):
                self.job.add(at, quantity, sum(values))
        speeds = [] if self._is_told else _fresh(books.values(), Quantity.SAMPLES, since)
        self.job.add(at, Quantity.SAMPLES, sum(speeds) if speeds else None)
        workers = {name: book for name, book in books.items() if live[name].role in WORKERS}
        # One that was let go holds nothing any more, however long it takes to end.
        servers = {
            name: book for name, book in books.items() if live[name].role is Role.PS and not live[name].is_released
        }
        self._by_role(at, since, workers, live, Quantity.WORKER_CPU, Quantity.WORKER_GRANT)
        self._by_role(at, since, servers, live, Quantity.PS_CPU, Quantity.PS_GRANT)
        if servers:
            self.job.add(at, Quantity.PS, len(servers))
            busy = [
                used / granted
                for name, book in servers.items()
                if (used := book.history.fresh(Quantity.CPU, since)) is not None
                and (granted := live[name].resource.cpu)
            ]
            self.job.add(at, Quantity.PS_BUSIEST, max(busy, default=None))

    def _by_role(
        self,
        at: float,
        since: float,
        books: Mapping[NodeId, Book],
        live: Mapping[NodeId, Node],
        used: Quantity,
        granted: Quantity,
    ) -> None:
        uses = _fresh(books.values(), Quantity.CPU, since)
        grants = [cpu for name in books if (cpu := live[name].resource.cpu) is not None]
        if uses:
            self.job.add(at, used, sum(uses) / len(uses))
        if grants:
            self.job.add(at, granted, median(grants))


def _fresh(books: Iterable[Book], quantity: Quantity, since: float) -> list[float]:
    return [value for book in books if (value := book.history.fresh(quantity, since)) is not None]


def _sum(values: list[float]) -> float | None:
    """None if one of them is no measurement: half of a node is no node."""
    return sum(values) if all(0.0 <= value <= LARGEST for value in values) else None


def _counted(
    book: Book, processes: tuple[ProcessSeen, ...], at: float
) -> Iterable[tuple[Quantity, float | None, float]]:
    """What the node's processes have trained since they last said so: the samples of all, the slowest's steps."""
    marks: dict[tuple[int, int], Mark] = {}
    gains: list[Gain] = []
    for process in processes:
        after = process.trained
        if after is None or not _is_sane(after):
            continue
        key = (process.local_rank, process.pid)
        before = book.marks.get(key)
        if before is None or _has_fallen(before.trained, after):
            marks[key] = Mark(at, after)
        elif at - before.at < SOONEST:
            marks[key] = before
        else:
            marks[key] = Mark(at, after)
            gains.append(_gain(before, marks[key]))
    book.marks = marks
    return _summed(gains)


@dataclass(frozen=True, slots=True)
class Gain:
    """What one process did between two reports."""

    seconds: float
    steps: int
    samples: int | None
    step: float
    """Seconds a step."""
    work: float


def _gain(before: Mark, after: Mark) -> Gain:
    was, now = before.trained, after.trained
    steps = now.steps - was.steps
    each = max(1, steps)
    return Gain(
        after.at - before.at,
        steps,
        None if now.samples is None or was.samples is None else now.samples - was.samples,
        (now.step_seconds - was.step_seconds) / each,
        (now.work_seconds - was.work_seconds) / each,
    )


def _summed(gains: list[Gain]) -> Iterator[tuple[Quantity, float | None, float]]:
    if not gains:
        return
    seconds, steps = max(gain.seconds for gain in gains), max(gain.steps for gain in gains)
    yield Quantity.STEPS, max(gain.steps / gain.seconds for gain in gains), seconds
    samples = [gain.samples / gain.seconds for gain in gains if gain.samples is not None]
    if samples:
        yield Quantity.SAMPLES, sum(samples), seconds
    if steps:
        yield Quantity.STEP, max(gain.step for gain in gains), steps
        yield Quantity.WORK, max(gain.work for gain in gains), steps


def _is_sane(trained: Trained) -> bool:
    return (
        0 <= trained.steps <= LARGEST
        and 0 <= (trained.samples or 0) <= LARGEST
        and 0.0 <= trained.step_seconds <= LARGEST
        and 0.0 <= trained.work_seconds <= LARGEST
    )


def _has_fallen(before: Trained, after: Trained) -> bool:
    return (
        after.steps < before.steps
        or (after.samples or 0) < (before.samples or 0)
        or after.step_seconds < before.step_seconds
        or after.work_seconds < before.work_seconds
    )
