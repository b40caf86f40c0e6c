"""Jobs whose parts live in different pools, and jobs with devices whose other Pods have none."""

from dataclasses import replace

import pytest
from tests.scheduler.world import a_host, a_job, a_service, hosts, room

from shoal.scheduler.decisions import Action, Code, Decisions
from shoal.scheduler.policies import policy
from shoal.scheduler.rows import Attained, Host, Job, Part, Priority, Servers, ServicePod
from shoal.scheduler.settings import Load, SchedulerSettings
from shoal.scheduler.snapshot import Snapshot

UNTIL_FULL = SchedulerSettings(cpu=Load(grow=1.0, reclaim=1.0), memory=Load(grow=1.0, reclaim=1.0), freezing_window=0.0)
GPU, CPU = frozenset({"gpu"}), frozenset({"cpu"})
MASTER = Part(role="master", each=room(0.1), count=1)
every = pytest.mark.parametrize("name", ["cfs", "fulfillment", "fifo", "static"])


def decide(
    there: list[Host], *jobs: Job, name: str = "cfs", now: float = 0.0, service: ServicePod | None = None
) -> Decisions:
    return policy(name, sim=True)(Snapshot.of(there, jobs, () if service is None else (service,)), now, UNTIL_FULL)


def code_of(decisions: Decisions) -> Code:
    (told,) = [*decisions.changes, *decisions.waits]
    return told.reason.code


def two_pools(cores: float = 64) -> list[Host]:
    return [a_host("cpu0", cores, pool="cpu"), a_host("gpu0", 16, gpus=8, pool="gpu")]


def split(least: int = 2, most: int = 2, *, servers: int = 2, **more: object) -> Job:
    """Trainers with 4 GPUs and 8 cores on one pool, servers with 8 cores on another."""
    beside = Servers(each=room(8), min=servers, max=servers, per_trainer=0.0, pools=CPU)
    return a_job("split", least, most, each=room(8, 1, 4), servers=beside, pools=GPU, **more)


# Pools of their own -----------------------------------------------------------------------------------------


@every
def test_each_part_of_a_gang_goes_to_its_own_pools(name: str) -> None:
    (change,) = decide(two_pools(), split(fixed=(replace(MASTER, pools=CPU),)), name=name).changes
    assert change.hosts == {"gpu0": 2}
    assert change.fixed_hosts == {"pserver": {"cpu0": 2}, "master": {"cpu0": 1}}


@every
def test_a_part_without_a_pool_of_its_own_is_not_kept_in_that_of_the_trainers(name: str) -> None:
    job = a_job("job", 2, 2, each=room(8, 1, 4), fixed=(replace(MASTER, each=room(1)),), pools=GPU)
    (change,) = decide(two_pools(), job, name=name).changes
    assert change.fixed_hosts == {"master": {"cpu0": 1}}, "the trainers need all cores of the other"


@every
def test_a_part_that_its_own_pools_could_never_hold_is_too_large(name: str) -> None:
    assert code_of(decide(two_pools(cores=15), split(), name=name)) is Code.TOO_LARGE


@every
def test_pods_that_may_be_anywhere_leave_room_for_those_that_may_not(name: str) -> None:
    """The large trainer would fit first into the only host that takes the small master."""
    job = a_job("job", each=room(6), fixed=(Part(role="master", each=room(2), count=1, pools=CPU),))
    (change,) = decide([a_host("west", 8), a_host("cpu0", 7, pool="cpu")], job, name=name).changes
    assert (change.hosts, change.fixed_hosts) == ({"west": 1}, {"master": {"cpu0": 1}})


def test_where_pools_overlap_each_part_goes_first_where_no_other_may_be() -> None:
    """Else whoever comes first takes the fullest host, which both may have, and the other has none."""
    there = [a_host("both", 4, pool="both"), a_host("mine", 5, pool="mine")]
    for trainers, master in (("mine", "yours"), ("yours", "mine")):
        part = Part(role="master", each=room(4), count=1, pools=frozenset({"both", master}))
        job = a_job("job", each=room(4), fixed=(part,), pools=frozenset({"both", trainers}))
        (change,) = decide(there, job).changes
        assert {**change.hosts, **change.fixed_hosts["master"]} == {"both": 1, "mine": 1}


def test_parts_share_a_host_that_both_may_have_when_neither_has_enough_of_its_own() -> None:
    each = room(1, 1, pods=1)
    servers = Servers(each=each, min=2, max=2, per_trainer=0.0, pools=frozenset({"both", "yours"}))
    job = a_job("job", 2, 2, each=each, servers=servers, pools=frozenset({"both", "mine"}))
    there = [
        a_host("both", 4, pods=2, pool="both"),
        *(a_host(name, 5, pods=1, pool=name) for name in ("mine", "yours")),
    ]
    (change,) = decide(there, job).changes
    assert change.hosts == {"both": 1, "mine": 1}
    assert change.fixed_hosts == {"pserver": {"both": 1, "yours": 1}}


def test_room_is_made_where_the_part_may_be() -> None:
    rich = replace(a_job("rich", 1, 100, pools=CPU, each=room(8, 1)), target=8, placed={"cpu0": 8}, running=8)
    rich = replace(rich, attained=Attained(), priority=Priority.EXPERIMENT)
    found = decide(two_pools(), rich, split())
    assert {change.key.name: change.target for change in found.changes} == {"rich": 6, "split": 2}
    assert next(change for change in found.changes if change.key.name == "rich").victims == {"cpu0": 2}


def test_room_is_kept_in_the_pools_of_each_part() -> None:
    rigid = replace(a_job("rigid", 7, 7, pools=CPU, each=room(8, 1)), target=7, placed={"cpu0": 7}, running=7)
    waits = replace(split(), waiting_since=0.0)
    late = [a_job(f"late-{pool}", each=room(8, 1), pools=frozenset({pool}), created=1.0) for pool in ("cpu", "west")]
    late = [replace(job, attained=Attained(v=1e9, at=0.0), waiting_since=99.0) for job in late]
    found = decide([*two_pools(), a_host("west", 8, pool="west")], rigid, waits, *late, now=100.0)
    assert [change.key.name for change in found.changes] == ["late-west"]
    codes = {wait.key.name: wait.reason.code for wait in found.waits}
    assert codes == {"split": Code.RESERVED, "late-cpu": Code.NO_ROOM}


def test_servers_that_come_with_growth_go_to_their_own_pools() -> None:
    beside = Servers(each=room(8), min=1, max=9, per_trainer=1.0, pools=CPU)
    job = a_job("job", 1, 9, each=room(2, 1, 1), servers=beside, pools=GPU)
    (change,) = decide(two_pools(cores=24), job).changes
    assert (change.target, change.hosts, change.fixed_hosts) == (3, {"gpu0": 3}, {"pserver": {"cpu0": 3}})


def test_growth_finds_hosts_where_pools_overlap() -> None:
    each = room(1, 1, pods=1)
    beside = Servers(each=each, min=1, max=9, per_trainer=1.0, pools=frozenset({"both", "yours"}))
    job = a_job("job", 1, 9, each=each, servers=beside, pools=frozenset({"both", "mine"}))
    job = replace(job, target=1, placed={"mine": 1}, running=1, fixed_placed={"yours": each}, attained=Attained())
    there = [a_host("both", 4, pods=1, pool="both"), a_host("mine", 5, pods=1, pool="mine")]
    (change,) = decide([*there, a_host("yours", 6, pods=2, pool="yours")], job).changes
    assert (change.target, change.hosts, change.fixed_hosts) == (2, {"both": 1}, {"pserver": {"yours": 1}})


@pytest.mark.parametrize(("pool", "goes_back"), [("cpu", False), ("gone", True)])
def test_a_lost_part_is_looked_for_in_its_own_pools(pool: str, goes_back: bool) -> None:
    lost = replace(MASTER, each=room(4), pools=frozenset({pool}))
    job = replace(a_job("job", each=room(16, 1, 8), fixed=(lost,), pools=GPU), target=1, placed={"gpu0": 1})
    found = decide(two_pools(), replace(job, running=1, fixed_pending=(lost,)))
    assert [change.action for change in found.changes] == ([Action.SUSPEND] if goes_back else [])


# Cores that devices need ------------------------------------------------------------------------------------


def busy(gpus: int = 8) -> list[Host]:
    """An idle host with devices, all of whose cores but half of one those devices need."""
    return [a_host("gpu0", 16, gpus=gpus, others=room(0.5))]


def test_a_job_with_devices_needs_no_leave_for_its_pods_without() -> None:
    """Row 18: what is kept beside free devices is kept from jobs without any."""
    server = Servers(each=room(1), min=1, max=1, per_trainer=0.0)
    job = a_job("job", each=room(2, 1, 1), fixed=(MASTER,), servers=server)
    (change,) = decide(busy(), job).changes
    assert change.fixed_hosts == {"master": {"gpu0": 1}, "pserver": {"gpu0": 1}}
    assert code_of(decide(busy(), a_job("job", each=room(2, 1), fixed=(MASTER,)))) is Code.NO_ROOM


@pytest.mark.parametrize("unit", [1, 2])
def test_one_pod_with_devices_is_enough_for_the_gang_and_growth_leaves_cores(unit: int) -> None:
    chief = Part(role="chief", each=room(2, 1, 1), count=1)
    (change,) = decide(busy(gpus=7), a_job("job", unit, 8, unit=unit, fixed=(chief, MASTER))).changes
    assert (change.target, change.hosts) == (unit, {"gpu0": unit})


def test_a_lost_pod_of_a_job_with_devices_is_placed_beside_free_ones() -> None:
    job = replace(a_job("job", each=room(2, 1, 1), fixed=(MASTER,)), target=1, placed={"gpu0": 1}, running=1)
    job = replace(job, fixed_pending=(MASTER,), short_since=0.0)
    assert not decide(busy(), job, now=100.0).changes, "it is not put back"


def test_services_need_no_leave_either() -> None:
    found = decide(busy(), service=a_service("nginx", 2))
    assert [nomination.host for nomination in found.nominations] == ["gpu0"]


def test_servers_take_no_cores_that_the_trainers_of_their_own_step_need() -> None:
    beside = Servers(each=room(1), min=1, max=9, per_trainer=1.0)
    job = a_job("job", 1, 2, each=room(4, 1, 1), servers=beside)
    job = replace(job, target=1, placed={"one": 1}, running=1, fixed_placed={"more": room(1)}, attained=Attained())
    there = [a_host("one", 4, gpus=1), a_host("two", 4, gpus=1), a_host("more", 4, gpus=2)]
    (change,) = decide(there, job).changes
    assert (change.target, change.hosts, change.fixed_hosts) == (2, {"two": 1}, {"pserver": {"more": 1}})


def test_a_gang_without_differences_is_placed_as_ever() -> None:
    """The largest first: they are the hardest to place."""
    job = a_job("gang", 2, 2, each=room(3, 1), fixed=(Part(role="master", each=room(2, 1), count=1),))
    (change,) = decide(hosts(2, cores=5), job).changes
    assert (change.hosts, change.fixed_hosts) == ({"host-0000": 1, "host-0001": 1}, {"master": {"host-0000": 1}})
