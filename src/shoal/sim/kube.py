"""A simulated Kubernetes, as far as scheduling goes: hosts, Pods, their controllers and the scheduler that binds them.

A `Pod` waits for a host, starts, runs, and, when it is told to end, holds its room until its grace is over. A `PodSet`
keeps a number of Pods alike and stands for a Job, a ReplicaSet or a Deployment: all of them, when told to have fewer,
take those that do the least. Pods without a host are tried one after the other, each on the emptiest host that fits;
one that fits nowhere comes back after a wait that doubles.

Everything happens on a `VirtualClock`, and everything that takes time ends on a whole second: what falls into the same
second happens together, older Pods first. Chance (which of two equal hosts) comes from a seeded generator. What the
cluster is told to do comes from outside, and what changed is told to `watch`.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.scheduler.rows import Room
from shoal.sim.clock import VirtualClock

MICROS = 1_000_000


class Phase(StrEnum):
    PENDING = "Pending"
    """It has no host."""
    STARTING = "Starting"
    RUNNING = "Running"
    GONE = "Gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeSettings:
    """Times are seconds."""

    start: float = 2.0
    """From the binding of a Pod until it runs."""
    first_back_off: float = 1.0
    most_back_off: float = 60.0
    """A Pod that fits nowhere is tried again after the first, then after twice that, up to the most."""
    retries_on_room: bool = False
    """A Pod that fits nowhere is also tried when another one goes, once its back-off is over: as of Kubernetes 1.20."""
    obeys_priority: bool = False
    """Of Pods that are tried together, those of higher priority come first."""


PUBLISHED = KubeSettings()
"""Kubernetes 1.6.2, which the published experiment ran on."""
PRESENT = KubeSettings(most_back_off=10.0, retries_on_room=True, obeys_priority=True)
"""What a cluster does today."""


@dataclass(slots=True, eq=False, kw_only=True)
class Pod:
    name: str
    number: int
    """In the order of creation."""
    of: "PodSet"
    created: float
    prefer: Mapping[int, int]
    """As its template said when it was made."""
    host: int | None = None
    phase: Phase = Phase.PENDING
    ends: float | None = None
    """It was told to end, and will be gone by then."""
    back_off: float = 0.0
    tried: float | None = None
    """When it last fitted nowhere."""

    @property
    def is_leaving(self) -> bool:
        return self.ends is not None

    @property
    def runs(self) -> bool:
        """In phase Running, which Pods that were told to end still are."""
        return self.phase is Phase.RUNNING


@dataclass(slots=True, eq=False, kw_only=True)
class PodSet:
    """Pods alike, and how many of them there should be."""

    owner: str
    role: str
    each: Room
    grace: float = 30.0
    priority: int = 0
    replicas: int = 0
    prefer: Mapping[int, int] = field(default_factory=dict)
    """The hosts on which they should rather be, and how much so: the preferred node affinity of their template."""
    pods: dict[int, Pod] = field(default_factory=dict)
    """All that are not gone, by number."""

    def staying(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if not pod.is_leaving]


Watch = Callable[[Pod], None]


class Kube:
    """The cluster. Only its own methods change it."""

    def __init__(
        self,
        clock: VirtualClock,
        hosts: Mapping[str, Room],
        settings: KubeSettings,
        chance: random.Random,
        watch: Watch = lambda pod: None,
    ) -> None:
        self.clock = clock
        self.names = list(hosts)
        self.capacity = list(hosts.values())
        self.cpu_free = [room.cpu for room in self.capacity]
        self.memory_free = [room.memory for room in self.capacity]
        self.settings = settings
        self.index = {name: number for number, name in enumerate(self.names)}
        self._chance = chance
        self._watch = watch
        self._queue: deque[Pod] = deque()
        self._resting: dict[int, Pod] = {}
        """Pods that wait for room to appear."""
        self._awake = False
        self._count = 0

    @property
    def now(self) -> float:
        return self.clock.micros / MICROS

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Let something happen at the first whole second that is not before then."""
        micros = self.clock.micros + round(seconds * MICROS)
        self.clock.at(-(-micros // MICROS) * MICROS, event)

    # what a user or a controller does -----------------------------------------------------------------------------

    def scale(self, pods: PodSet, replicas: int) -> None:
        """Have so many from now on. Those that have to go are the ones that do the least: without a host, then not
        running, then the youngest."""
        pods.replicas = replicas
        staying = pods.staying()
        for _ in range(replicas - len(staying)):
            self._create(pods)
        if len(staying) > replicas:
            least = sorted(staying, key=lambda pod: (pod.host is not None, pod.runs, -pod.number))
            for pod in least[: len(staying) - replicas]:
                self.delete(pod)

    def prefer(self, pods: PodSet, weights: Mapping[str, int]) -> None:
        """Let those that are made from now on rather be on these hosts."""
        pods.prefer = {self.index[host]: weight for host, weight in weights.items() if host in self.index}

    def place(self, pods: PodSet, host: str | None = None) -> None:
        """One more that has long been running: on this host, or where the scheduler would have put it."""
        pod = self._new(pods)
        pods.replicas += 1
        chosen = self._choose(pod) if host is None else self.index[host]
        if chosen is None:
            raise ValueError(f"{pod.name} asks for {pods.each} and fits on no host")
        self._bind(pod, chosen)
        pod.phase = Phase.RUNNING
        self._watch(pod)

    def delete(self, pod: Pod) -> None:
        """Tell a Pod to end. One without a host is gone at once; others hold their room until their grace is over."""
        if pod.is_leaving or pod.phase is Phase.GONE:
            return
        pod.ends = self.now if pod.host is None else self.now + pod.of.grace
        if pod.host is None:
            self._gone(pod)
        else:
            self._watch(pod)
            self.after(pod.of.grace, lambda: self._gone(pod))

    # what happens in it -------------------------------------------------------------------------------------------

    def _new(self, pods: PodSet) -> Pod:
        self._count += 1
        name = f"{pods.owner}-{pods.role}-{self._count}"
        pod = Pod(name=name, number=self._count, of=pods, created=self.now, prefer=pods.prefer)
        pod.back_off = self.settings.first_back_off
        pods.pods[pod.number] = pod
        return pod

    def _create(self, pods: PodSet) -> None:
        pod = self._new(pods)
        self._watch(pod)
        self._enqueue(pod)

    def _enqueue(self, pod: Pod) -> None:
        self._queue.append(pod)
        if not self._awake:
            self._awake = True
            self.after(0, self._try_all)

    def _try_all(self) -> None:
        self._awake = False
        waiting = sorted(self._queue, key=lambda pod: pod.number)
        self._queue.clear()
        if self.settings.obeys_priority:
            waiting.sort(key=lambda pod: -pod.of.priority)
        for pod in waiting:
            if pod.phase is Phase.PENDING and pod.host is None:
                self._try(pod)

    def _try(self, pod: Pod) -> None:
        host = self._choose(pod)
        if host is not None:
            self._bind(pod, host)
            self._watch(pod)
            self.after(self.settings.start, lambda: self._started(pod))
            return
        first = pod.tried is None
        pod.tried = self.now
        wait, pod.back_off = pod.back_off, min(pod.back_off * 2, self.settings.most_back_off)
        if self.settings.retries_on_room:
            self._resting[pod.number] = pod
            pod.tried += wait  # not before its back-off is over
        else:
            self.after(wait, lambda: self._enqueue(pod))
        if first:
            self._watch(pod)

    def _choose(self, pod: Pod) -> int | None:
        """Where it fits: the host it prefers most, then the emptiest (LeastRequested); of equal ones chance says."""
        cpu, memory = pod.of.each.cpu, pod.of.each.memory
        if max(self.cpu_free, default=-1) < cpu:
            return None
        fits = [i for i, free in enumerate(self.cpu_free) if free >= cpu and self.memory_free[i] >= memory]
        if not fits:
            return None
        most = max((pod.prefer.get(i, 0) for i in fits), default=0)
        if most:
            fits = [i for i in fits if pod.prefer.get(i, 0) == most]
        marks = [self._emptiness(i, cpu, memory) for i in fits]
        best = max(marks)
        return self._chance.choice([i for i, mark in zip(fits, marks, strict=True) if mark == best])

    def _emptiness(self, host: int, cpu: int, memory: int) -> float:
        whole = self.capacity[host]
        return (self.cpu_free[host] - cpu) / whole.cpu + (self.memory_free[host] - memory) / whole.memory

    def _bind(self, pod: Pod, host: int) -> None:
        pod.host = host
        pod.phase = Phase.STARTING
        self.cpu_free[host] -= pod.of.each.cpu
        self.memory_free[host] -= pod.of.each.memory

    def _started(self, pod: Pod) -> None:
        if pod.phase is Phase.STARTING:
            pod.phase = Phase.RUNNING
            self._watch(pod)

    def _gone(self, pod: Pod) -> None:
        if pod.host is not None:
            self.cpu_free[pod.host] += pod.of.each.cpu
            self.memory_free[pod.host] += pod.of.each.memory
        pod.phase = Phase.GONE
        del pod.of.pods[pod.number]
        self._resting.pop(pod.number, None)
        self._watch(pod)
        if pod.host is not None:
            self._room_appeared()

    def _room_appeared(self) -> None:
        resting, self._resting = self._resting, {}
        for pod in resting.values():
            wait = max(0.0, (pod.tried or 0.0) - self.now)
            self.after(wait, lambda pod=pod: self._enqueue(pod))  # type: ignore[misc]
