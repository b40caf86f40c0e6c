"""Random clusters in the middle of their lives, for properties."""

import random
from dataclasses import replace

from hypothesis import strategies as st
from tests.scheduler.world import World, a_host, a_job, a_service, room

from shoal.scheduler.rows import Host, Job, Part, Priority, Quota, Servers
from shoal.scheduler.settings import Load, SchedulerSettings

POOLS = ("", "", "", "west", "east")
PLACES = (3, 8, 110)
"""For Pods on a host."""


def random_host(name: str, chance: random.Random) -> Host:
    gpus = chance.choice([0, 0, 4, 8])
    cores = chance.choice([8, 12, 24, 32]) + 4 * gpus
    others = room(chance.choice([0, 0.25, 1]), 1, pods=chance.choice([0, 2]))
    return a_host(name, cores, 128, gpus, chance.choice(PLACES), others=others, pool=chance.choice(POOLS))


def random_job(name: str, chance: random.Random) -> Job:
    gpus = chance.choice([0, 0, 1, 2])
    least = chance.randint(1, 4)
    return a_job(
        name,
        least,
        least + chance.choice([0, 0, 2, 6, 12, 40]),
        each=room(max(chance.choice([0, 1, 2, 5]), 2 * gpus), chance.choice([0, 1, 4]), gpus, pods=1),
        namespace=chance.choice(["ant", "bee"]),
        priority=chance.choice(list(Priority)),
        created=float(chance.randint(0, 3)),
        unit=chance.choice([1, 1, 1, 1, 2]),
        fixed=(random_master(chance),) if chance.random() < 0.4 else (),
        servers=random_servers(chance) if chance.random() < 0.3 else None,
        pools=random_pools(chance),
    )


def random_pools(chance: random.Random) -> frozenset[str] | None:
    """Of one part of a job: each has its own."""
    return chance.choice([None, None, None, frozenset({"west"}), frozenset({"", "west"}), frozenset({"", "east"})])


def random_master(chance: random.Random) -> Part:
    return Part(role="master", each=room(1, 1, pods=1), count=1, pools=random_pools(chance))


def random_servers(chance: random.Random) -> Servers:
    least = chance.choice([0, 1, 2])
    per_trainer = chance.choice([0.0, 0.5, 1.0])
    each, pools = room(chance.choice([1, 2]), 1, pods=1), random_pools(chance)
    return Servers(each=each, min=least, max=least + 4, per_trainer=per_trainer, pools=pools)


def random_events(world: World, chance: random.Random) -> None:
    """What happens between two rounds that no policy decides."""
    if chance.random() < 0.25:
        for _ in range(chance.randint(1, 5)):
            name = f"nginx-{len(world.log)}-{len(world.services)}-{chance.randint(0, 10**9)}"
            gpus = chance.choice([0, 0, 0, 1])
            pod = a_service(name, chance.choice([1, 3, 8, 100]), 1, gpus, pods=1, since=world.now)
            world.services.append(pod)
    if chance.random() < 0.2:
        name = chance.choice(sorted(world.hosts))
        world.hosts[name] = replace(world.hosts[name], open=not world.hosts[name].open)
    for key in [key for key in world.jobs if chance.random() < 0.03]:
        world.finish(key)
    for key in [key for key in world.jobs if chance.random() < 0.03]:
        world.jobs[key] = replace(world.jobs[key], max=max(world.jobs[key].min, world.jobs[key].max // 2))


@st.composite
def worlds(draw: st.DrawFn, *, hosts: int = 200, jobs: int = 100, rounds: int = 4, freezing: bool = True) -> World:
    """A cluster of up to so many hosts and jobs, some rounds after its start."""
    chance = random.Random(draw(st.integers(0, 2**32), label="seed"))
    number_of_hosts, number_of_jobs = (
        draw(st.integers(1, hosts), label="hosts"),
        draw(st.integers(1, jobs), label="jobs"),
    )
    past = draw(st.integers(0, rounds), label="rounds")
    settings = SchedulerSettings(
        freezing_window=chance.choice([0.0, 60.0]) if freezing else 0.0, max_moves=chance.choice([1, 40])
    )
    world = World.of(
        (random_host(f"host-{number:03}", chance) for number in range(number_of_hosts)),
        (random_job(f"job-{number:03}", chance) for number in range(number_of_jobs)),
        settings=settings,
        grace=chance.choice([0.0, 30.0]),
        quotas={"ant": Quota(cpu=chance.choice([8, 40]) * 1_000, pods=50)} if chance.random() < 0.3 else {},
    )
    for _ in range(past):
        decisions = world.round()
        world.bind_services(decisions)
        world.wait(chance.choice([1.0, 5.0, 70.0, 2_000.0]))
        random_events(world, chance)
    return world


@st.composite
def mixed_worlds(draw: st.DrawFn) -> World:
    """A few GPU hosts that are short of devices and of nothing else, with jobs with and without; those without deserve
    the least what they have. Then gangs and services come that need several devices on one host, or fewer devices may
    be in use."""
    chance = random.Random(draw(st.integers(0, 2**32), label="seed"))
    settings = SchedulerSettings(freezing_window=0.0, cpu_per_gpu=1_000, max_wait=chance.choice([0.0, 1_800.0]))
    world = World.of(
        (a_host(f"host-{number}", 96, 256, 8, 110) for number in range(chance.randint(1, 3))),
        (
            a_job(
                f"there-{number}",
                1,
                40 if gpus else 4,
                each=room(chance.choice([1, 2]), 1, gpus, pods=1),
                priority=Priority.NORMAL if gpus else Priority.EXPERIMENT,
            )
            for number in range(chance.randint(2, 6))
            for gpus in [chance.choice([0, 1])]
        ),
        settings=settings,
    )
    for _ in range(3):
        world.round()
        world.wait(100.0)
    for number in range(chance.randint(1, 3)):
        gpus = chance.choice([2, 3, 4])
        if chance.random() < 0.5:
            priority = chance.choice([Priority.NORMAL, Priority.PRODUCTION])
            world.arrive(a_job(f"gang-{number}", 1, 1, each=room(gpus, 1, gpus, pods=1), priority=priority))
        else:
            world.services.append(a_service(f"nginx-{number}", 2, 1, gpus, pods=1, since=world.now))
    if chance.random() < 0.3:
        world.settings = replace(settings, gpu=Load(grow=0.5, reclaim=0.5))
    world.now += 1.0
    return world
