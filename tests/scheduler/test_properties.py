"""What holds of every round of `cfs` and `fulfillment`, whatever the cluster (§3.4 of the specification)."""

import copy
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.scheduler.clusters import mixed_worlds, worlds
from tests.scheduler.reference import plan_plainly
from tests.scheduler.world import World

from shoal.scheduler.budgets import Quotas, limits
from shoal.scheduler.columns import least_size, most_size
from shoal.scheduler.decisions import Action, Code, Decisions
from shoal.scheduler.keys import cfs_keys, fulfillment_keys
from shoal.scheduler.planning import servers_role
from shoal.scheduler.policies import policy
from shoal.scheduler.rows import Job, JobKey, Room
from shoal.scheduler.snapshot import Snapshot

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
both = pytest.mark.parametrize("name", ["cfs", "fulfillment"])
few = settings(max_examples=50, suppress_health_check=SLOW)
small = worlds(hosts=30, jobs=25)
seeds = st.integers(0, 2**32)
large = worlds(hosts=200, jobs=100, rounds=2)


def decide(world: World, name: str = "cfs") -> Decisions:
    return policy(name)(world.snapshot(), world.now, world.settings)


def check_everything(world: World, name: str) -> None:
    """The properties that one round shows by itself."""
    before = {key: world.row(key) for key in world.jobs}
    decisions = decide(world, name)
    check_steps(before, decisions)
    check_sizes(before, decisions)
    check_hosts(before, decisions, world)
    check_services_come_first(world, decisions)
    check_reasons(before, decisions)
    check_scarcity(world, decisions)
    check_queue(before, decisions)
    world.carry_out(decisions)
    check_room(world)
    check_nothing_is_left(world, decisions)


def check_steps(before: dict, decisions: Decisions) -> None:
    """All phases end. In a round a job goes in one direction only, and there is at most one try for it that comes to
    nothing: so there are no more steps than trainers between the least and the most, and one for each job. One whose
    maximum was lowered has further to go. Room that is made for a gang and then not enough is given back: that is one
    try, and each of the trainers above the least sizes is taken at most once in it."""
    taken = sum(distance(before[change.key], change.before, change.target) for change in decisions.changes)
    assert taken <= decisions.steps <= taken + len(before)
    assert decisions.steps <= sum(max(job.max, job.target) - job.min for job in before.values()) + len(before)


def distance(job: Job, one: int, other: int) -> int:
    """In steps of a trainer, of which its least size takes one."""
    return abs(max(0, one - least_size(job) + 1) - max(0, other - least_size(job) + 1))


def check_sizes(before: dict, decisions: Decisions) -> None:
    for change in decisions.changes:
        job = before[change.key]
        assert change.before == job.target
        assert change.target != change.before
        if change.action is not Action.SUSPEND:
            assert job.min <= change.target <= job.max
            assert change.target % job.unit == 0 or change.target in (job.min, least_size(job))
    changed = {change.key for change in decisions.changes}
    assert len(changed) == len(decisions.changes)
    for key, job in before.items():
        assert key in changed or not job.is_admitted or job.target <= most_size(job)


def check_hosts(before: dict, decisions: Decisions, world: World) -> None:
    """Every Pod that is planned has a host that takes it, every one that goes has one it goes from."""
    for change in decisions.changes:
        job: Job = before[change.key]
        for role, there in {"": change.hosts, **change.fixed_hosts}.items():
            for name in there:
                host, pools = world.hosts[name], pools_of(job)[role]
                assert host.open
                assert pools is None or host.pool in pools
        if change.action in (Action.ADMIT, Action.GROW):
            assert sum(change.hosts.values()) == change.target - change.before
            assert not change.victims
        elif change.action is Action.SHRINK:
            assert not change.hosts
            assert sum(change.victims.values()) == change.before - change.target - pending_lost(job, change.target)
            assert all(count <= job.placed[name] for name, count in change.victims.items())
        places = {role: sum(there.values()) for role, there in change.fixed_hosts.items()}
        if change.action is Action.ADMIT:
            assert all(places.pop(part.role) == part.count for part in job.fixed)
        if change.action in (Action.ADMIT, Action.GROW) and job.servers is not None:
            before_it = job.servers.beside(change.before) if change.before else 0
            assert places.pop(servers_role(job), 0) == job.servers.beside(change.target) - before_it
        assert not places, "nobody else is planned"


def pools_of(job: Job) -> dict[str, frozenset[str] | None]:
    """By role; trainers have none."""
    pools = {"": job.pools, **{part.role: part.pools for part in job.fixed}}
    return pools if job.servers is None else {**pools, servers_role(job): job.servers.pools}


def pending_lost(job: Job, target: int) -> int:
    """Trainers that go before they ever had a host."""
    return min(job.pending, job.target - target)


def check_services_come_first(world: World, decisions: Decisions) -> None:
    """Nobody grows while a service Pod has no host that has room now."""
    ignored = {(n.namespace, n.name) for n in decisions.nominations if n.host is None}
    waiting = [pod for pod in world.services if (pod.namespace, pod.name) not in ignored]
    young = [pod for pod in waiting if world.now - pod.since < world.settings.reserve_after]
    homeless = [
        pod for pod in waiting if not any(world.free(h.name).holds(pod.each) for h in world.hosts.values() if h.open)
    ]
    if young or homeless:
        assert not [change for change in decisions.changes if change.action in (Action.ADMIT, Action.GROW)]
    for nomination in decisions.nominations:
        assert nomination.reason


def check_reasons(before: dict, decisions: Decisions) -> None:
    for change in decisions.changes:
        assert change.reason.text
        if change.action in (Action.SHRINK, Action.SUSPEND):
            assert change.beneficiary
        else:
            assert change.beneficiary is None
            assert not change.mandatory
            assert change.reason.code in (Code.ADMITTED, Code.FREE_ROOM, Code.FAIRNESS)
        is_voluntary = change.reason.code in (Code.FREE_ROOM, Code.FAIRNESS)
        assert change.mandatory is (not is_voluntary and change.action in (Action.SHRINK, Action.SUSPEND))


def check_scarcity(world: World, decisions: Decisions) -> None:
    """Whoever gives way holds something that is scarce where it gives: more of it comes to that host than was free
    there, or more comes to the cluster than may be in use."""
    if any(wait.reason.code is Code.RESERVED for wait in decisions.waits):
        return  # room that is kept is free, and yet nobody may have it
    coming, going = arrivals(world, decisions), departures(world, decisions)
    scarce_everywhere, leave_cores = scarce_in_cluster(world, coming), hosts_of_jobs_without_devices(world, decisions)
    for change in decisions.changes:
        job = world.jobs[change.key]
        if change.reason.code is Code.PRESSURE:
            assert any(held and WORDS[kind] in change.reason.text for kind, held in job.each._asdict().items())
        if change.reason.code not in (Code.MAKE_ROOM, Code.FAIRNESS, Code.SERVICE):
            continue
        held = {kind for kind, amount in job.each._asdict().items() if amount}
        if change.action is Action.SUSPEND:
            held |= {
                kind for room in world.has[change.key].fixed.values() for kind in Room._fields if getattr(room, kind)
            }
        helps = [
            bool(held & (scarce_everywhere | scarce_on(world, name, coming, going, leave_cores)))
            for name in going[change.key]
            if world.hosts[name].open
        ]
        is_one_by_one = job.unit == 1 and change.action is Action.SHRINK
        assert all(helps) if is_one_by_one else any(helps) or not helps, change


WORDS = {"cpu": "core", "memory": "GiB", "gpu": "GPU", "pods": "Pod"}
Pods = dict[str, list[tuple[Room, int]]]
"""By host: Pods and how many of them."""


def arrivals(world: World, decisions: Decisions) -> Pods:
    """All that a round sends to hosts."""
    found: Pods = {name: [] for name in world.hosts}
    for change in decisions.changes:
        job = world.jobs[change.key]
        sizes = {part.role: part.each for part in job.fixed}
        if job.servers is not None:
            sizes["pserver"] = job.servers.each
        for role, places in {"": change.hosts, **change.fixed_hosts}.items():
            for name, count in places.items():
                found[name].append((sizes[role] if role else job.each, count))
    services = {(pod.namespace, pod.name): pod.each for pod in world.services}
    for nomination in decisions.nominations:
        if nomination.host is not None:
            found[nomination.host].append((services[nomination.namespace, nomination.name], 1))
    return found


def hosts_of_jobs_without_devices(world: World, decisions: Decisions) -> set[str]:
    """Where Pods come that leave the cores that free devices need."""
    without = [change for change in decisions.changes if not world.jobs[change.key].has_devices]
    return {name for change in without for there in (change.hosts, *change.fixed_hosts.values()) for name in there}


def departures(world: World, decisions: Decisions) -> dict[JobKey, dict[str, Room]]:
    """What each job gives up, by host."""
    found: dict[JobKey, dict[str, Room]] = {}
    for change in decisions.changes:
        job, has = world.jobs[change.key], world.has[change.key]
        gone = has.trainers if change.action is Action.SUSPEND else change.victims
        found[change.key] = {name: Room().plus(job.each, count) for name, count in gone.items() if count}
        for name, fixed in has.fixed.items() if change.action is Action.SUSPEND else ():
            found[change.key][name] = found[change.key].get(name, Room()).plus(fixed)
    return found


def total(pods: Iterable[tuple[Room, int]]) -> Room:
    room = Room()
    for each, count in pods:
        room = room.plus(each, count)
    return room


def scarce_on(
    world: World, name: str, coming: Pods, going: dict[JobKey, dict[str, Room]], leave_cores: set[str]
) -> set[str]:
    """Of what more comes to the host than was free there. Jobs without devices leave cores for free devices."""
    free, wanted = world.free(name, with_leaving=False), total(coming[name])
    if world.hosts[name].capacity.gpu and name in leave_cores:
        devices = free.gpu + sum(gives[name].gpu for gives in going.values() if name in gives)
        wanted = wanted.plus(Room(cpu=world.settings.cpu_per_gpu * devices))
    return {kind for kind in Room._fields if getattr(wanted, kind) > getattr(free, kind)}


def scarce_in_cluster(world: World, coming: Pods) -> set[str]:
    """Of what there would be more in use than jobs may grow to."""
    capacity, used = Room(), Room()
    for host in world.hosts.values():
        if host.open:
            capacity = capacity.plus(host.capacity)
            used = used.plus(host.capacity.minus(world.free(host.name, with_leaving=False)))
    used = used.plus(total(pods for there in coming.values() for pods in there))
    most = limits(capacity, world.now, world.settings).grow
    return {kind for kind in Room._fields if getattr(used, kind) > getattr(most, kind)}


def check_queue(before: dict, decisions: Decisions) -> None:
    """Whoever is not started waits, with a place; every place is taken once."""
    started = {change.key for change in decisions.changes if change.action is Action.ADMIT}
    waiting = {key for key, job in before.items() if not job.is_admitted} - started
    assert {wait.key for wait in decisions.waits} == waiting
    assert [wait.place for wait in decisions.waits] == list(range(1, len(waiting) + 1))
    assert all(wait.reason.text for wait in decisions.waits)
    assert sum(wait.starts_master for wait in decisions.waits) <= 10


def check_room(world: World) -> None:
    """Nobody has more than there is, once those who were told to leave have left."""
    for name in world.hosts:
        assert min(world.free(name, with_leaving=False)) >= 0, name


def check_nothing_is_left(world: World, decisions: Decisions) -> None:
    """Work-conserving: no job that may grow finds room for one more trainer within the budgets. What a fairness move
    leaves over is for the next round."""
    if any(change.reason.code is Code.FAIRNESS for change in decisions.changes):
        return
    if decisions.nominations or any(wait.reason.code in (Code.RESERVED, Code.QUEUED) for wait in decisions.waits):
        return
    capacity, used = Room(), Room()
    open_hosts = [host for host in world.hosts.values() if host.open]
    free = {host.name: world.free(host.name, with_leaving=False) for host in open_hosts}
    for host in open_hosts:
        capacity, used = capacity.plus(host.capacity), used.plus(host.capacity.minus(free[host.name]))
    most = limits(capacity, world.now, world.settings).grow
    quotas = Quotas(world.snapshot())
    gave = {change.key for change in decisions.changes if change.action is Action.SHRINK}
    for key in world.jobs:
        job = world.row(key)
        frozen = job.frozen_until > world.now and key not in {c.key for c in decisions.changes}
        may_grow = job.is_admitted and job.target < most_size(job) and key not in gave and not frozen
        after = next_size(job)
        if not may_grow or after is None or not quotas.allows(job, job.target, after):
            continue
        pods = step_of(job, after)
        step = total((each, 1) for each, _ in pods)
        if any(each and u + each > m for each, u, m in zip(step, used, most, strict=True)):
            continue
        there = Counter((free[host.name], host.capacity.gpu > 0, host.pool) for host in open_hosts)
        floor = 0 if job.has_devices else world.settings.cpu_per_gpu
        assert not all_fit(pods, there, floor), (key, after)


def next_size(job: Job) -> int | None:
    """The least more that it may have."""
    after = (job.target // job.unit + 1) * job.unit
    return after if after <= most_size(job) else None


Pod = tuple[Room, frozenset[str] | None]
"""What it asks for, and in which pools."""


def step_of(job: Job, after: int) -> list[Pod]:
    """The Pods that come with it. Trainers first: they are the larger."""
    trainers: list[Pod] = [(job.each, job.pools)] * (after - job.target)
    if job.servers is None:
        return trainers
    more = job.servers.beside(after) - job.servers.beside(job.target)
    return trainers + [(job.servers.each, job.servers.pools)] * more


def all_fit(pods: list[Pod], hosts: Counter[tuple[Room, bool, str]], floor: int) -> bool:
    """Whether there is any way to place them all. `hosts`: what is free on them, whether they have devices, and their
    pools."""
    if not pods:
        return True
    (each, pools), *others = pods
    for (free, has_gpus, pool), count in hosts.items():
        if count and (pools is None or pool in pools) and fits(each, free, floor if has_gpus else 0):
            left = hosts - Counter([(free, has_gpus, pool)]) + Counter([(free.minus(each), has_gpus, pool)])
            if all_fit(others, left, floor):
                return True
    return False


def fits(each: Room, free: Room, floor: int) -> bool:
    return free.holds(each) and (each.gpu > 0 or free.cpu - each.cpu >= floor * free.gpu)


@both
@few
@given(world=small)
def test_a_round_keeps_all_promises_in_a_small_cluster(world: World, name: str) -> None:
    check_everything(world, name)


@settings(max_examples=60, suppress_health_check=SLOW)
@given(world=mixed_worlds())
def test_nobody_gives_way_who_has_nothing_of_what_is_scarce(world: World) -> None:
    check_scarcity(world, decide(world))


@both
@settings(max_examples=20, suppress_health_check=SLOW)
@given(world=large)
def test_a_round_keeps_all_promises_with_up_to_200_hosts_and_100_jobs(world: World, name: str) -> None:
    check_everything(world, name)


def check_order(world: World, seed: int, name: str) -> None:
    chance, first = random.Random(seed), decide(world, name)
    hosts, jobs, services = list(world.hosts.values()), world.rows(), list(world.services)
    for rows in (hosts, jobs, services):
        chance.shuffle(rows)  # type: ignore[arg-type]
    jobs = [replace(job, placed=dict(sorted(job.placed.items(), key=lambda _: chance.random()))) for job in jobs]
    shuffled = Snapshot.of(hosts, jobs, services, world.quotas, world.min_v)
    assert policy(name)(shuffled, world.now, world.settings) == first


@both
@settings(max_examples=40, suppress_health_check=SLOW)
@given(world=small, seed=seeds)
def test_the_order_of_the_rows_does_not_matter(world: World, seed: int, name: str) -> None:
    check_order(world, seed, name)


def check_rest(world: World, name: str) -> None:
    for _ in range(80):
        decisions = world.round(name)
        world.bind_services(decisions)
        if not decisions.changes and not decisions.nominations:
            break
        world.services.clear()  # those that found no room at once give up
        for host in list(world.hosts.values()):
            world.hosts[host.name] = replace(host, leaving=())
    assert not decisions.changes
    assert not decide(world, name).changes


@both
@settings(max_examples=40, suppress_health_check=SLOW)
@given(world=worlds(hosts=20, jobs=15, freezing=False))
def test_what_was_carried_out_is_not_decided_again(world: World, name: str) -> None:
    """Without a change outside, and with nothing frozen, the rounds come to rest, and stay there."""
    check_rest(world, name)


def check_next_round(world: World) -> None:
    world.settings = replace(world.settings, freezing_window=60.0)
    changed = {change.key for change in world.round().changes}
    for change in decide(world).changes:
        assert change.key not in changed or change.reason.code not in (Code.FREE_ROOM, Code.FAIRNESS)


@few
@given(world=small)
def test_the_next_round_at_once_takes_nothing_back(world: World) -> None:
    """With a freezing window, what one round changed the next one leaves alone, unless it has to."""
    check_next_round(world)


def check_freezing(world: World, seed: int) -> None:
    chance = random.Random(seed)
    world.settings = replace(world.settings, freezing_window=60.0)
    until: dict = {}
    for _ in range(20):
        decisions = world.round()
        for change in decisions.changes:
            if change.reason.code in (Code.FREE_ROOM, Code.FAIRNESS):
                assert world.now >= until.get(change.key, 0.0)
            until[change.key] = world.now + 60.0
        world.wait(chance.choice([5.0, 5.0, 20.0]))
        if chance.random() < 0.3 and world.jobs:
            world.finish(chance.choice(sorted(world.jobs)))


@settings(max_examples=40, suppress_health_check=SLOW)
@given(world=worlds(hosts=20, jobs=20, rounds=0), seed=seeds)
def test_nothing_voluntary_happens_within_the_freezing_window(world: World, seed: int) -> None:
    check_freezing(world, seed)


def check_over_time(world: World, seed: int, name: str) -> None:
    """What more than one round shows."""
    check_order(world, seed, name)
    check_next_round(copy.deepcopy(world))
    check_freezing(copy.deepcopy(world), seed)
    world.settings = replace(world.settings, freezing_window=0.0)
    check_rest(world, name)


@both
@settings(max_examples=3, suppress_health_check=SLOW)
@given(world=large, seed=seeds)
def test_rounds_keep_their_promises_with_up_to_200_hosts_and_100_jobs(world: World, seed: int, name: str) -> None:
    check_over_time(world, seed, name)


@pytest.mark.slow
@both
@settings(max_examples=60, suppress_health_check=SLOW)
@given(world=large, seed=seeds)
def test_rounds_keep_their_promises_in_many_clusters(world: World, seed: int, name: str) -> None:
    check_over_time(world, seed, name)


@pytest.mark.parametrize("ruler", [cfs_keys, fulfillment_keys])
@few
@given(world=small)
def test_filling_in_portions_is_filling_one_by_one(world: World, ruler) -> None:  # type: ignore[no-untyped-def]
    name = "cfs" if ruler is cfs_keys else "fulfillment"
    ours = decide(world, name)
    plain = plan_plainly(world.snapshot(), world.now, world.settings, ruler)
    assert [replace(change, hosts={}, fixed_hosts={}) for change in ours.changes] == [
        replace(change, hosts={}, fixed_hosts={}) for change in plain.changes
    ]
    assert ours.waits == plain.waits
    for each in {job.each for job in world.jobs.values()}:
        assert total_hosts(world, ours, each) == total_hosts(world, plain, each)


def total_hosts(world: World, decisions: Decisions, each: Room) -> dict[str, int]:
    total: dict[str, int] = {}
    for change in decisions.changes:
        if world.jobs[change.key].each == each:
            for name, count in change.hosts.items():
                total[name] = total.get(name, 0) + count
    return total


@pytest.mark.slow
@both
@settings(max_examples=600, suppress_health_check=SLOW)
@given(world=large)
def test_a_round_keeps_all_promises_in_many_clusters(world: World, name: str) -> None:
    check_everything(world, name)


@pytest.mark.slow
@settings(max_examples=500, suppress_health_check=SLOW)
@given(world=large)
def test_filling_is_the_same_in_many_clusters(world: World) -> None:
    ours, plain = decide(world), plan_plainly(world.snapshot(), world.now, world.settings)
    assert [(c.key, c.target) for c in ours.changes] == [(c.key, c.target) for c in plain.changes]


# Pods that Kubernetes finds no host for ----------------------------------------------------------------------


@both
@settings(max_examples=25, suppress_health_check=SLOW, deadline=None)
@given(world=worlds(hosts=8, jobs=6, rounds=0), seed=seeds)
def test_room_is_kept_for_pods_without_a_host_only_for_so_long_and_not_again_at_once(
    name: str, world: World, seed: int
) -> None:
    chance = random.Random(seed)
    world.settings = replace(world.settings, max_wait=60.0, reserve_after=20.0)
    for key in world.jobs:
        if chance.random() < 0.7:
            world.binds[key] = least_size(world.jobs[key]) + chance.randint(-1, 3)
    held: dict[JobKey, tuple[int, float]] = {}
    for _ in range(40):
        before = {key: world.row(key) for key in world.jobs}
        for change in world.round(name).changes:
            assert change.target == 0 or change.target >= least_size(before[change.key])
            most, until = held.get(change.key, (0, 0.0))
            assert world.now >= until or change.target <= most, f"{change} although it is held to {most}"
            if change.reason.code is Code.UNSCHEDULABLE:
                held[change.key] = change.target, world.now + world.settings.max_wait
        for key, has in world.has.items():
            late = sum(world.now - since >= world.settings.max_wait for since in has.unbound)
            assert late <= max(0, least_size(world.jobs[key]) - has.trainers.total())
        world.wait(10.0)
