"""From what is known of a cluster to the rows that a policy looks at. Pure.

A job's Pods are told apart by what they will be: trainers that stay, trainers that have to go although nobody has told
them yet (there are more than allowed), Pods that were told to end, and the others of the job. Whoever has to go still
takes its room, until a time that can be guessed; a policy must neither give that room away twice nor forget it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.core.hosts import Amounts, HostSeen, Placement, PodUse, QuotaSeen
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.kept import Kept
from shoal.operator.scheduling.ledger import ANY_HOST, Ledger, Owner, room_of
from shoal.scheduler.actuation import Standing, TrainerPod, most_of
from shoal.scheduler.rows import NOTHING, Host, Job, Leaving, Part, Quota, Room, Seconds, Servers, ServicePod

ENDLESS = Amounts(cpu=10**12, memory=2**60, gpu=10**6, pods=10**9)
"""What the one host has that stands for all, where hosts may not be looked at. A thousand cores for each device: those
that are kept beside free devices must leave some for jobs that want no device."""


class Pools:
    """Hosts that are alike to everybody who has a say: each is admitted by the same placements."""

    def __init__(self, hosts: Iterable[HostSeen], placements: Sequence[Placement], kept: Kept | None = None) -> None:
        """`kept`: what is known from the round before."""
        self._placements = {each: number for number, each in enumerate(dict.fromkeys(placements))}
        admitted = (Kept() if kept is None else kept).admitted(hosts, placements)
        names = {bits: f"{bits:x}" for bits in set(admitted.values())}
        self._pools = {host: names[bits] for host, bits in admitted.items()}
        self._admitted = {name: bits for bits, name in names.items()}
        self._found: dict[Placement, frozenset[str] | None] = {}

    def of_host(self, name: str) -> str:
        return self._pools.get(name, "")

    def admitting(self, placement: Placement) -> frozenset[str] | None:
        """The pools in which such a Pod may be; None: all of them."""
        if placement not in self._found:
            bit = 1 << self._placements[placement]
            found = frozenset(name for name, bits in self._admitted.items() if bits & bit)
            self._found[placement] = None if len(found) == len(self._admitted) else found
        return self._found[placement]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as one round sees it."""

    row: Job
    running: Room
    """What all its running Pods have."""
    trainers: tuple[TrainerPod, ...]
    """Those that were not told to end."""
    going: tuple[tuple[str, Leaving], ...]
    """By host, the trainers that have to go and were not told yet."""


def look_at(
    facts: JobFacts,
    standing: Standing,
    pods: Sequence[PodUse],
    ledger: Ledger,
    *,
    victims: Sequence[str] | None = None,
    now: Seconds,
) -> JobView:
    """What the job has, by its Pods and by what it may have. `victims`: who was named to go; None: as its status has
    it, which may be older than the last decision."""
    there = [pod for pod in pods if not pod.is_over]
    stays = [pod for pod in there if pod.ends is None]
    trainers = [pod for pod in stays if pod.role == facts.trainer_role]
    others = [pod for pod in stays if pod.role != facts.trainer_role]
    named = facts.victims if victims is None else victims
    going = _going(trainers, len(trainers) - standing.target, named)
    remaining = [pod for pod in trainers if pod not in going]
    placed = Counter(ledger.host_of(pod) for pod in remaining if pod.host)
    ended = len(facts.spared) + (sum(_ended_well(pod, facts) for pod in pods) if facts.spares_succeeded else 0)
    leaving = len(going) + sum(pod.ends is not None and pod.role == facts.trainer_role for pod in there)
    # One that has no host takes no room: a replacement that finds none may wait for long, and nobody waits for it.
    settles = leaving == sum(not pod.host for pod in going)
    wanted = max(0, min(standing.target, facts.max) - ended)
    running = sum(pod.runs for pod in remaining)
    fixed, servers = _had(facts, others)
    row = Job(
        key=facts.key,
        uid=facts.uid,
        priority=facts.priority,
        created=facts.created,
        min=facts.min,
        max=_most(facts, standing, ended),
        unit=facts.unit,
        each=_each(trainers) or facts.each,
        fixed=fixed if standing.target else _without_host(fixed, others),
        servers=servers,
        target=standing.target,
        placed=dict(sorted(placed.items())),
        fixed_placed=_rooms(others, ledger),
        pending=max(0, standing.target - ended - sum(placed.values())),
        unbound_since=tuple(sorted(pod.since for pod in remaining if not pod.host)),
        fixed_pending=_missing(fixed, servers, facts.server_role, standing.target, others) if standing.target else (),
        running=running,
        leaving=leaving,
        ended=ended,
        resizing=running < wanted or not settles or (standing.target == 0 and bool(trainers)),
        attained=standing.attained,
        waiting_since=standing.waiting_since,
        frozen_until=standing.frozen_until,
        asked=standing.asked,
        short_since=standing.short_since,
        freezing_window=facts.freezing_window,
    )
    by_age = sorted(trainers, key=lambda pod: (pod.since, len(pod.name), pod.name))
    until = now + facts.drain + facts.grace
    return JobView(
        row=row,
        running=_sum(pod for pod in stays if pod.runs),
        trainers=tuple(
            TrainerPod(name=pod.name, host=ledger.host_of(pod) or None, ready=pod.is_ready, seniority=number)
            for number, pod in enumerate(by_age)
        ),
        going=tuple((ledger.host_of(pod), Leaving(room=room_of(pod), until=until)) for pod in going if pod.host),
    )


def _each(pods: Iterable[PodUse]) -> Room | None:
    """What one of these has, by those there are: what is asked for since then may never be given. Most have the same;
    of sizes that are as common as each other, the larger."""
    sizes = Counter(room_of(pod) for pod in pods)
    return max(sizes, key=lambda room: (sizes[room], room), default=None)


def _had(facts: JobFacts, others: Sequence[PodUse]) -> tuple[tuple[Part, ...], Servers | None]:
    """The Pods beside the trainers, as many as are asked for and each as large as those that are there."""
    sizes = {role: _each(pod for pod in others if pod.role == role) for role in {pod.role for pod in others}}
    fixed = tuple(replace(part, each=sizes.get(part.role) or part.each) for part in facts.fixed)
    if facts.servers is None:
        return fixed, None
    return fixed, replace(facts.servers, each=sizes.get(facts.server_role) or facts.servers.each)


def _most(facts: JobFacts, standing: Standing, ended: int) -> int:
    """A batch Job that has had a success makes no more Pods: room for more trainers would be held for nothing. So it
    would be for those that Kubernetes found no host for, for a while."""
    most = most_of(standing, facts.max)
    if facts.spares_succeeded and ended and standing.target:
        most = min(most, standing.target)
    return max(facts.min, most) if most < facts.max else facts.max


def _ended_well(pod: PodUse, facts: JobFacts) -> bool:
    return pod.succeeded and pod.role == facts.trainer_role and pod.name not in facts.spared


def _going(trainers: Sequence[PodUse], excess: int, victims: Sequence[str]) -> list[PodUse]:
    """Who has to go: those that were named, those without a host, then the youngest."""
    if excess <= 0:
        return []
    youngest_first = sorted(trainers, key=lambda pod: (pod.since, len(pod.name), pod.name), reverse=True)
    return sorted(youngest_first, key=lambda pod: (pod.name not in victims, bool(pod.host)))[:excess]


def _missing(
    fixed: Iterable[Part], servers: Servers | None, server_role: str, target: int, others: Sequence[PodUse]
) -> tuple[Part, ...]:
    """Pods beside the trainers that have no host yet."""
    wanted = list(fixed)
    if servers is not None:
        wanted.append(Part(role=server_role, each=servers.each, count=servers.beside(target)))
    return _without_host(wanted, others)


def _without_host(parts: Iterable[Part], others: Sequence[PodUse]) -> tuple[Part, ...]:
    """What of these is still to be placed. A job that waits may have some of them: a master, or an etcd for its state.
    Room that those have is not looked for again."""
    housed = Counter(pod.role for pod in others if pod.host)
    return tuple(
        replace(part, count=part.count - housed[part.role]) for part in parts if part.count > housed[part.role]
    )


def _rooms(pods: Iterable[PodUse], ledger: Ledger) -> dict[str, Room]:
    found: dict[str, Room] = {}
    for pod in pods:
        if pod.host:
            host = ledger.host_of(pod)
            found[host] = found.get(host, NOTHING).plus(room_of(pod))
    return dict(sorted(found.items()))


def _sum(pods: Iterable[PodUse]) -> Room:
    total = NOTHING
    for pod in pods:
        total = total.plus(room_of(pod))
    return total


# Hosts, services, quotas -----------------------------------------------------------------------------------------


def host_rows(
    hosts: Sequence[HostSeen] | None,
    ledger: Ledger,
    views: Iterable[JobView],
    scheduled: frozenset[Owner],
    pools: Pools,
) -> list[Host]:
    """The hosts with what is taken there by whom nobody decides for. `scheduled`: the jobs that take part;
    Pods of others are nobody's to move. `hosts` None: they may not be looked at, and one stands for all."""
    extra = _rooms((pod for pod in _nobodys(ledger, scheduled) if pod.ends is None), ledger)
    going: dict[str, list[Leaving]] = {}
    for view in views:
        for host, leaving in view.going:
            going.setdefault(host, []).append(leaving)
    if hosts is None:
        hosts = [HostSeen(name=ANY_HOST, capacity=ENDLESS)]
    return [
        Host(
            name=host.name,
            capacity=Room(*host.capacity),
            others=ledger.strangers(host.name).plus(extra.get(host.name, NOTHING)),
            leaving=tuple(
                sorted((*ledger.ending(host.name), *going.get(host.name, ())), key=lambda each: (each.until, each.room))
            ),
            open=host.is_open,
            pool=pools.of_host(host.name),
        )
        for host in hosts
    ]


def _nobodys(ledger: Ledger, scheduled: frozenset[Owner]) -> Iterator[PodUse]:
    """Pods that are there of jobs that take no part: suspended by their owners, over, or gone before their Pods."""
    for namespace, job in ledger.jobs():
        if (namespace, job) not in scheduled:
            yield from (pod for pod in ledger.of(job, namespace) if not pod.is_over)


def waiting_services(ledger: Ledger, floor: int) -> list[PodUse]:
    """Pods that are no job's, for which Kubernetes has looked for a host and found none."""
    return [pod for pod in ledger.homeless() if pod.is_unschedulable and pod.ends is None and pod.priority >= floor]


def service_rows(pods: Iterable[PodUse], pools: Pools) -> list[ServicePod]:
    return [
        ServicePod(
            namespace=pod.namespace,
            name=pod.name,
            each=room_of(pod),
            priority=pod.priority,
            since=pod.since,
            pools=pools.admitting(pod.placement),
            nominated=pod.nominated or None,
        )
        for pod in pods
    ]


def quota_rows(
    quotas: Sequence[QuotaSeen], chosen: Mapping[str, Quota], ledger: Ledger, scheduled: frozenset[Owner]
) -> dict[str, Quota]:
    """By namespace, the smaller of each limit: of Kubernetes' own quotas, which count every Pod there until it is gone,
    and of the settings', which count jobs. `scheduled`: the jobs that take part, which policies count themselves."""
    found = dict(chosen)
    leaving: dict[str, Room] = {}
    for pod in _nobodys(ledger, scheduled) if quotas else ():
        leaving[pod.namespace] = leaving.get(pod.namespace, NOTHING).plus(room_of(pod))
    for seen in quotas:
        before = found.get(seen.namespace, Quota())
        used, pods = ledger.used(seen.namespace)
        found[seen.namespace] = Quota(
            cpu=_least(before.cpu, seen.cpu),
            memory=_least(before.memory, seen.memory),
            gpu=_least(before.gpu, seen.gpu),
            pods=_least(before.pods, seen.pods),
            used_by_others=used,
            pods_of_others=pods,
            leaving=leaving.get(seen.namespace, NOTHING),
        )
    return found


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def capacity_of(hosts: Iterable[Host]) -> Room:
    total = NOTHING
    for host in hosts:
        total = total.plus(host.capacity)
    return total
