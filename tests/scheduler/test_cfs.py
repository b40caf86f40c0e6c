"""`cfs` by examples: one for each thing that the specification settles (§3.2)."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.world import World, a_host, a_job, a_service, hosts, room

from shoal.scheduler.decisions import Action, Code, Decisions, Reason
from shoal.scheduler.policies import policy
from shoal.scheduler.rows import (
    Attained,
    Job,
    JobKey,
    Kind,
    Leaving,
    Part,
    Priority,
    Quota,
    Room,
    Servers,
)
from shoal.scheduler.scores import score
from shoal.scheduler.settings import Load, SchedulerSettings, ScoreMode, Scores
from shoal.scheduler.snapshot import Snapshot

UNTIL_FULL = SchedulerSettings(cpu=Load(grow=1.0, reclaim=1.0), memory=Load(grow=1.0, reclaim=1.0), freezing_window=0.0)


def running(name: str, count: int, host: str = "host-0000", *, v: float = 0.0, **more: object) -> Job:
    """A job that has so many trainers on one host, and has attained `v`."""
    least, most = int(more.pop("least", 1)), int(more.pop("most", 100))  # type: ignore[call-overload]
    placed = more.pop("placed", {host: count})
    job = a_job(name, least, most, **more)  # type: ignore[arg-type]
    return replace(job, target=count, placed=placed, running=count, attained=Attained(v=v, at=0.0))  # type: ignore[arg-type]


def waiting(name: str, least: int, most: int, *, since: float = 0.0, v: float = 0.0, **more: object) -> Job:
    job = a_job(name, least, most, **more)  # type: ignore[arg-type]
    return replace(job, attained=Attained(v=v, at=0.0), waiting_since=since)


def decide(*rows: object, now: float = 0.0, settings: SchedulerSettings = UNTIL_FULL, name: str = "cfs") -> Decisions:
    """Hosts, jobs, service Pods and quotas in any order."""
    found: dict[str, list] = {"Host": [], "Job": [], "ServicePod": [], "dict": []}
    for row in rows:
        for one in row if isinstance(row, list) else [row]:
            found[type(one).__name__].append(one)
    quotas = found["dict"][0] if found["dict"] else {}
    snapshot = Snapshot.of(found["Host"], found["Job"], found["ServicePod"], quotas)
    return policy(name)(snapshot, now, settings)


def targets(decisions: Decisions) -> dict[str, int]:
    return {change.key.name: change.target for change in decisions.changes}


def reason_of(decisions: Decisions, name: str) -> Code:
    return _reasons(decisions)[name].code


def text_of(decisions: Decisions, name: str) -> str:
    return _reasons(decisions)[name].text


def _reasons(decisions: Decisions) -> dict[str, Reason]:
    told = {wait.key.name: wait.reason for wait in decisions.waits}
    return told | {change.key.name: change.reason for change in decisions.changes}


# Order and filling ------------------------------------------------------------------------------------------


def test_room_is_shared_in_proportion_to_weights() -> None:
    """Rows 2 and 5: divided by the weight, ten to one between neighbours."""
    found = decide(hosts(1, cores=110, gib=999), a_job("p", 1, 500, priority=Priority.PRODUCTION), a_job("n", 1, 500))
    assert targets(found) == {"p": 100, "n": 10}


def test_a_job_is_compared_as_if_it_had_the_step_already() -> None:
    """Row 8: the least fulfilled first, again after every step. Defect 4 of upstream gives 2, 8 and 8."""
    jobs = [
        running("a", 1, most=3),
        running("b", 1, most=101),
        running("c", 90, most=101),
    ]
    found = decide(hosts(1, cores=92 + 18, gib=999), jobs)
    assert targets(found) == {"a": 3, "b": 17}


def test_fulfillment_fills_by_how_far_jobs_are_between_their_bounds() -> None:
    jobs = [running("a", 1, most=3), running("b", 1, most=101), running("c", 90, most=101)]
    found = decide(hosts(1, cores=92 + 18, gib=999), jobs, name="fulfillment")
    assert targets(found) == {"b": 19}


def test_a_job_without_a_choice_counts_as_fulfilled() -> None:
    """Row 24. It waits all the same with the others whose minimum is not met."""
    found = decide(hosts(1, cores=4), running("e", 4, most=8, least=2), a_job("rigid", 2, 2), name="fulfillment")
    assert targets(found) == {"e": 2, "rigid": 2}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"priority": Priority.PRODUCTION, "attained": 10.0}, {"attained": 1.0}),
        ({"created": 1.0}, {"created": 2.0}),
        ({}, {"name": "zzz"}),
    ],
    ids=["weight", "age", "name"],
)
def test_equal_keys_are_told_apart(one: dict, other: dict) -> None:
    """Row 25: higher weight, then earlier, then by name. Trainers that cost nothing have equal keys."""
    first = a_job("first", 1, 1, each=Room(), **{k: v for k, v in one.items() if k not in ("attained", "name")})
    second = a_job(other.get("name", "second"), 1, 1, each=Room(), **{k: v for k, v in other.items() if k == "created"})
    settings = replace(UNTIL_FULL, service_priority_floor=0)
    found = decide(hosts(1), [second, first, a_service("web")], settings=settings)
    assert found.waits[0].key.name == "first"


def test_equal_keys_go_to_jobs_with_devices_first() -> None:
    gpu = a_job("z-gpu", 1, 1, each=Room(0, 0, 1))
    cpu = a_job("a-cpu", 1, 1, each=Room(0, 0, 0))
    settings = replace(UNTIL_FULL, scores=Scores(gpu=0), cpu_per_gpu=0)
    found = decide(hosts(1, gpus=1), cpu, gpu, a_service("web"), settings=settings)
    assert [wait.key.name for wait in found.waits] == ["z-gpu", "a-cpu"]


def test_every_pod_of_a_job_is_charged() -> None:
    """Row 7: of two jobs with equal trainers, the one with pservers has less room for trainers."""
    heavy = a_job("heavy", 1, 100, fixed=(Part(role="pserver", each=room(4, 1), count=10),))
    found = decide(hosts(1, cores=200, gib=999), heavy, a_job("light", 1, 100))
    assert targets(found) == {"heavy": 61, "light": 99}  # 410 + 11 x 61 is about 11 x 99


def test_a_host_takes_no_more_pods_than_it_has_places_for() -> None:
    """Whatever they ask for: Kubernetes lets no more in."""
    there = hosts(2, cores=64, pods=110, others=room(1, 1, pods=10))
    master = Part(role="master", each=room(1, 1, pods=1), count=1)
    found = decide(there, a_job("many", 1, 10_000, each=room(pods=1), fixed=(master,)))
    assert targets(found) == {"many": 199}
    assert decide(hosts(1, pods=3), a_job("gang", 4, 4, each=room(pods=1))).waits[0].reason.code is Code.TOO_LARGE


def test_pods_that_leave_free_their_places_when_they_are_gone() -> None:
    leaving = (Leaving(room=room(pods=3), until=-100.0), Leaving(room=room(pods=2), until=20.0))
    found = decide(a_host("h", 64, 64, pods=10, leaving=leaving), a_job("many", 1, 100, each=room(pods=1)))
    assert targets(found) == {"many": 7}  # the three should be gone and are not


def test_a_pod_that_asks_for_nothing_costs_something() -> None:
    """Otherwise its job would always deserve the next place more than anybody else."""
    jobs = [a_job("idle", 1, 1_000, each=room(pods=1)), a_job("busy", 1, 1_000, each=room(1, 1, pods=1))]
    assert targets(decide(hosts(1, cores=100, pods=26), jobs)) == {"idle": 24, "busy": 2}  # 1 against 10 + 1 + 1
    by_share = replace(UNTIL_FULL, scores=Scores(mode=ScoreMode.DOMINANT_SHARE))
    assert targets(decide(hosts(1, cores=13, pods=26), jobs, settings=by_share)) == {"idle": 18, "busy": 8}


def test_trainers_give_up_places_for_services_and_for_those_who_waited_long() -> None:
    idle = running("idle", 10, each=room(pods=1))
    for_service = decide(hosts(1, pods=10), idle, a_service("web", pods=1))
    assert targets(for_service) == {"idle": 9}
    assert [nomination.host for nomination in for_service.nominations] == ["host-0000"]
    late = waiting("late", 2, 2, each=room(1, 1, pods=1), since=-5_000.0)
    assert targets(decide(hosts(1, pods=10), idle, late)) == {"idle": 8, "late": 2}


def test_who_waits_for_places_says_so() -> None:
    full, late = running("full", 10, least=10, each=room(pods=1)), waiting("late", 3, 3, each=room(pods=1))
    (wait,) = decide(hosts(1, pods=12), full, late).waits
    assert wait.reason.text == "its gang of 3 Pods does not fit on the hosts; 32 cores, 256 GiB, 2 Pods are free in all"


def test_a_quota_is_used_by_those_who_leave_until_they_are_gone() -> None:
    """The job waits for them; it is not told that it could never start."""
    job = waiting("next", 2, 4, each=room(1, 1, pods=1))
    for quota in (Quota(cpu=4_000, leaving=room(3, 3, pods=3)), Quota(pods=4, leaving=room(pods=3))):
        for name in ("cfs", "fulfillment"):
            assert reason_of(decide(hosts(1, pods=9), job, {"team": quota}, name=name), "next") is Code.QUOTA
        assert targets(decide(hosts(1, pods=9), job, {"team": replace(quota, leaving=room())})) == {"next": 4}


def test_what_a_fairness_move_leaves_over_is_given_away_before_anybody_else_gives() -> None:
    """A trainer with two devices goes, one with one device comes, and so can another."""
    rich = [running(f"rich-{n}", 2, f"host-000{n}", v=1e7 - n, each=room(4, 1, 2)) for n in range(2)]
    poor = running("poor", 1, "small", most=3, each=room(2, 1, 1))
    found = decide(hosts(2, gpus=4), a_host("small", 32, 256, 1), rich, poor)
    assert targets(found) == {"rich-0": 1, "poor": 3}


def test_dominant_share_counts_the_scarcest_resource() -> None:
    """Row 6: by price a GPU is worth 50 cores; by share, half the GPUs are worth half the cores."""
    settings = replace(UNTIL_FULL, scores=Scores(mode=ScoreMode.DOMINANT_SHARE), cpu_per_gpu=1_000)
    capacity = Room(100_000, 0, 10)
    assert score(Room(cpu=10_000), capacity, settings) == score(Room(gpu=1), capacity, settings) == 100
    gpu = a_job("gpu", 1, 100, each=Room(2_000, 0, 1))
    found = decide(a_host("h", 100, 10, 10), gpu, a_job("cpu", 1, 100, each=Room(8_000, 0, 0)), settings=settings)
    assert targets(found) == {"gpu": 10, "cpu": 10}


def test_units_are_whole() -> None:
    found = decide(hosts(1, cores=11), a_job("pairs", 3, 9, unit=2))
    assert targets(found) == {"pairs": 8}


# Admission --------------------------------------------------------------------------------------------------


def test_a_gang_starts_as_a_whole_or_not_at_all() -> None:
    """Row 9: 7 cores are free on two hosts, but the trainers of 3 cores and the master of 2 do not fit."""
    job = a_job("gang", 2, 2, each=room(3, 1), fixed=(Part(role="master", each=room(2, 1), count=1),))
    assert reason_of(decide([a_host("a", 4), a_host("b", 3)], job), "gang") is Code.TOO_LARGE
    found = decide([a_host("a", 4), a_host("b", 3, others=room(1, 1)), a_host("c", 3)], job)
    assert targets(found) == {"gang": 2}
    assert found.changes[0].fixed_hosts == {"master": {"b": 1}}


def test_a_gang_takes_surplus_from_jobs_with_larger_keys_only() -> None:
    """Row 13: make-room belongs to admission."""
    rich = running("rich", 4, v=50_000.0)
    poor = running("poor", 4, v=0.0, priority=Priority.PRODUCTION)
    found = decide(hosts(1, cores=8), rich, poor, waiting("new", 2, 2))
    assert targets(found) == {"rich": 2, "new": 2}
    assert reason_of(found, "rich") is Code.MAKE_ROOM
    assert next(c for c in found.changes if c.key.name == "rich").beneficiary == "TrainingJob team/new"


def test_a_gang_takes_nothing_from_jobs_that_deserve_it_more() -> None:
    poor = running("poor", 8, priority=Priority.PRODUCTION)
    found = decide(hosts(1, cores=8), poor, waiting("new", 2, 2, priority=Priority.EXPERIMENT))
    assert not found.changes
    assert reason_of(found, "new") is Code.NO_ROOM


def test_after_max_wait_a_gang_takes_from_any_job_above_its_minimum() -> None:
    """Row 17."""
    poor = running("poor", 8, priority=Priority.PRODUCTION)
    new = waiting("new", 2, 2, priority=Priority.EXPERIMENT)
    assert targets(decide(hosts(1, cores=8), poor, new, now=1_800.0)) == {"poor": 6, "new": 2}


def test_make_room_prefers_donors_that_are_not_frozen() -> None:
    """Row 14. When they are not enough, frozen ones give too."""
    frozen = replace(running("frozen", 4, v=1_080_000.0), frozen_until=100.0)
    free = running("free", 4, v=600_000.0)
    assert targets(decide(hosts(1, cores=8), frozen, free, waiting("new", 2, 2))) == {"free": 2, "new": 2}
    assert targets(decide(hosts(1, cores=8), frozen, free, waiting("new", 4, 4)))["frozen"] == 3


def test_a_gang_that_waits_long_has_room_kept_for_it() -> None:
    """Row 10: until `reserve_after` smaller jobs overtake, then they do not."""
    rows = [hosts(1, cores=8), running("rigid", 4, least=4, most=4), waiting("big", 6, 6)]
    small = waiting("small", 2, 2, since=50.0, v=1e9)
    assert targets(decide(*rows, small, now=50.0)) == {"small": 2}
    found = decide(*rows, small, now=60.0)
    assert not found.changes
    assert [(wait.key.name, wait.place, wait.reason.code) for wait in found.waits] == [
        ("big", 1, Code.RESERVED),
        ("small", 2, Code.NO_ROOM),
    ]


def test_room_that_the_first_in_the_queue_cannot_use_is_used() -> None:
    """Row 10: backfill."""
    found = decide(
        [a_host("a", 8), a_host("b", 4, pool="west")],
        running("rigid", 4, "a", least=4, most=4),
        waiting("big", 6, 6, pools=frozenset({""})),
        waiting("small", 2, 2, v=1e9),
        now=60.0,
    )
    assert targets(found) == {"small": 2}
    assert found.changes[0].hosts == {"b": 2}


def test_cpu_jobs_can_be_started_optimistically() -> None:
    """Row 11: as the first document has it, on request; jobs with devices wait all the same."""
    rows = [hosts(1, cores=4, gpus=1), running("rigid", 4, least=4, most=4)]
    gpu = waiting("gpu", 2, 2, each=room(2, 1, 1))
    assert reason_of(decide(*rows, waiting("cpu", 2, 2)), "cpu") is Code.NO_ROOM
    found = decide(*rows, waiting("cpu", 2, 2), gpu, settings=replace(UNTIL_FULL, optimistic_cpu=True))
    assert targets(found) == {"cpu": 2}


def test_a_job_that_waits_says_its_place_and_the_first_ones_hold_masters() -> None:
    jobs = [waiting(f"job-{n:02}", 3, 3) for n in range(14)]
    found = decide(hosts(1, cores=3), jobs)
    assert [wait.place for wait in found.waits] == list(range(1, 14))
    assert sum(wait.starts_master for wait in found.waits) == 10
    assert all(wait.starts_master for wait in found.waits[:10])


def test_a_job_larger_than_the_cluster_says_so_and_waits_last() -> None:
    found = decide(hosts(2, cores=4), waiting("huge", 9, 9), waiting("fits", 4, 4), waiting("next", 8, 8, v=1e9))
    assert targets(found) == {"fits": 4}
    assert [(wait.key.name, wait.reason.code) for wait in found.waits] == [
        ("next", Code.NO_ROOM),
        ("huge", Code.TOO_LARGE),
    ]


# GPUs and cores ---------------------------------------------------------------------------------------------


def test_a_job_with_devices_needs_cores_beside_them() -> None:
    """Row 18."""
    found = decide(hosts(1, gpus=8), a_job("starved", 1, 1, each=room(1, 1, 1)))
    assert reason_of(found, "starved") is Code.CPU_PER_GPU
    assert text_of(found, "starved") == "a trainer asks for 1 GPU, 1 core, 1 GiB; 1 GPU needs at least 2 cores"


def test_cpu_only_trainers_leave_the_cores_that_free_devices_need() -> None:
    """Row 18: 8 cores and 3 free devices leave 2 cores."""
    assert targets(decide(a_host("h", 8, 64, 3), a_job("cpu", 1, 100))) == {"cpu": 2}


def test_cpu_only_trainers_prefer_hosts_without_devices() -> None:
    """Row 19."""
    found = decide([a_host("a-gpu", 32, 64, 4), a_host("b-cpu", 4)], a_job("cpu", 1, 6))
    assert found.changes[0].hosts == {"b-cpu": 4, "a-gpu": 2}


def test_who_borrows_a_gpu_host_gives_it_back_first() -> None:
    """Row 19: the borrower has the smaller key, and still it goes."""
    host = a_host("h", 10, 64, 4)
    borrower = running("borrower", 4, "h", v=0.0, each=room(2, 1))
    other = running("other", 1, "h", v=1e6, each=room(2, 1, 1))
    found = decide(
        host, borrower, other, waiting("new", 1, 1, each=room(2, 1, 1), priority=Priority.PRODUCTION), now=0.0
    )
    assert targets(found)["new"] == 1
    assert "other" not in targets(found)


def test_a_cpu_job_never_shrinks_for_want_of_devices() -> None:
    """Row 19: a donor releases what is missing."""
    cpu = running("cpu", 20, "a", v=1e9)
    gpu = running("gpu", 2, "b", least=2, most=2, each=room(2, 1, 1))
    found = decide(
        [a_host("a", 64), a_host("b", 64, 64, 2)], cpu, gpu, waiting("new", 1, 1, each=room(2, 1, 1)), now=5_000.0
    )
    assert "cpu" not in {n for n, t in targets(found).items() if t < 20}
    assert reason_of(found, "new") in (Code.NO_ROOM, Code.RESERVED)


def test_of_several_victims_each_frees_what_is_missing() -> None:
    """Row 19: two devices are missing, so the CPU-only job on the same host gives nothing, whatever it has had."""
    cpu = running("cpu", 4, "h", v=1e9)
    gpus = [running(name, 2, "h", each=room(2, 1, 1)) for name in ("one", "two")]
    found = decide(a_host("h", 64, 64, 4), cpu, gpus, a_service("web", 1, 1, 2))
    assert targets(found) == {"one": 1, "two": 1}


# Budgets ----------------------------------------------------------------------------------------------------


def test_growth_stops_at_l_and_shrinking_begins_above_u() -> None:
    """Row 23."""
    settings = SchedulerSettings(cpu=Load(grow=0.8, reclaim=0.9), freezing_window=0.0)
    host = a_host("h", 10)
    assert targets(decide(host, running("job", 5, "h"), settings=settings)) == {"job": 8}
    assert targets(decide(host, running("job", 9, "h"), settings=settings)) == {}
    found = decide(host, running("job", 10, "h"), settings=settings)
    assert targets(found) == {"job": 9}
    assert reason_of(found, "job") is Code.PRESSURE
    assert text_of(found, "job").startswith("10 cores are asked for and 9 cores may be in use")


def test_devices_may_be_used_to_the_last() -> None:
    """Defect 1 of upstream: growth to 100 %, shrinking above 97 %, for ever."""
    settings = SchedulerSettings(freezing_window=0.0)
    job = running("job", 9, "h", each=room(2, 1, 1))
    assert targets(decide(a_host("h", 64, 64, 10), job, settings=settings)) == {"job": 10}


def test_headroom_is_left_by_growth_and_follows_the_hour() -> None:
    """Row 21."""
    by_hour = tuple(room(6) if hour == 3 else Room() for hour in range(24))
    settings = replace(UNTIL_FULL, headroom_by_hour=by_hour)
    host, job = a_host("h", 10), running("job", 1, "h")
    assert targets(decide(host, job, now=3 * 3_600.0, settings=settings)) == {"job": 4}
    assert targets(decide(host, job, now=4 * 3_600.0, settings=settings)) == {"job": 10}
    assert targets(decide(host, job, settings=replace(UNTIL_FULL, service_headroom=room(7)))) == {"job": 3}


def test_a_quota_is_kept_and_holds_nobody_else_up() -> None:
    """Row 20."""
    quota = {"team": Quota(cpu=4_000)}
    found = decide(
        hosts(1), quota, running("has", 2, most=9), waiting("asks", 3, 3), waiting("above", 5, 5),
        waiting("other", 2, 2, namespace="free", v=1e9),
    )  # fmt: skip
    assert targets(found) == {"has": 4, "other": 2}
    assert reason_of(found, "asks") is Code.QUOTA
    assert reason_of(found, "above") is Code.OVER_QUOTA
    assert text_of(found, "asks") == "quota of team: 2 cores of 4 cores in use, 3 cores asked"


def test_a_quota_that_was_lowered_takes_surplus_only() -> None:
    """Row 20, and row 14: the freezing window does not matter."""
    has = replace(running("has", 6, least=2), frozen_until=1e9)
    found = decide(hosts(1), {"team": Quota(pods=1)}, has)
    assert targets(found) == {"has": 2}
    assert reason_of(found, "has") is Code.QUOTA


# Mandatory changes and services -----------------------------------------------------------------------------


def test_a_lowered_maximum_passes_the_freezing_window() -> None:
    """Row 14."""
    found = decide(hosts(1), replace(running("job", 8, most=5), frozen_until=1e9))
    assert targets(found) == {"job": 5}
    assert reason_of(found, "job") is Code.ABOVE_MAX
    assert found.changes[0].mandatory


@pytest.mark.parametrize("why", [{"frozen_until": 1e9}, {"resizing": True}], ids=["frozen", "not-settled"])
def test_nobody_grows_within_the_freezing_window(why: dict) -> None:
    """Row 14: it begins when the last change has settled."""
    assert not decide(hosts(1), replace(running("job", 1), **why)).changes


def test_who_asks_for_more_within_its_window_grows_into_free_room_and_hands_nothing_over() -> None:
    """Row 14: the window still keeps it from what nobody asked for."""
    more = replace(running("more", 6, most=8, v=1e6), asked=6, frozen_until=1e9)
    less = running("less", 1, most=8)
    assert targets(decide(hosts(1, cores=8), more, replace(less, max=1))) == {"more": 7}
    assert targets(decide(hosts(1, cores=7), more, less)) == {}
    assert targets(decide(hosts(1, cores=7), replace(more, frozen_until=0.0), less)) != {}


def test_training_gives_way_to_services_whatever_it_deserves() -> None:
    """Row 21: the largest key first, on the host where it fits with the least to spare; nobody grows meanwhile."""
    jobs = [
        running("rich", 4, v=1e6, most=4, placed={"a": 3, "b": 1}),
        running("poor", 1, "b", priority=Priority.PRODUCTION),
    ]
    found = decide([a_host("a", 4, others=room(1)), a_host("b", 2), a_host("c", 1)], jobs, a_service("web", 2))
    assert targets(found) == {"rich": 2} or targets(found) == {"rich": 3}
    assert [nomination.host for nomination in found.nominations] != [None]
    assert all(change.action is Action.SHRINK for change in found.changes)


def test_a_minimum_is_no_protection_against_services() -> None:
    jobs = [running("normal", 2, "a", least=2), running("cheap", 2, "a", least=2, priority=Priority.EXPERIMENT)]
    found = decide(a_host("a", 4), jobs, a_service("web", 2))
    assert [(c.key.name, c.action, c.target) for c in found.changes] == [("cheap", Action.SUSPEND, 0)]
    assert found.changes[0].reason.code is Code.SERVICE
    assert found.changes[0].beneficiary == "web/web"


def test_a_service_pod_that_fits_nowhere_does_not_freeze_the_cluster() -> None:
    """One impossible Pod: it is ignored, and that is said."""
    found = decide(
        hosts(1, cores=8), running("job", 2), a_service("monster", 64), a_service("lost", pools=frozenset({"x"}))
    )
    assert targets(found) == {"job": 8}
    assert {(n.name, n.host) for n in found.nominations} == {("monster", None), ("lost", None)}


def test_a_pod_below_the_floor_is_no_service() -> None:
    assert targets(decide(hosts(1, cores=8), running("job", 2), a_service("batch", 4, priority=-1))) == {"job": 8}


def test_a_pod_that_kubernetes_serves_already_costs_nobody_a_trainer() -> None:
    found = decide(a_host("a", 4), running("job", 4, "a"), a_service("web", 2, nominated="a"))
    assert not found.changes


def test_room_that_is_coming_is_not_made_twice() -> None:
    """Victims of the last round are still leaving: no more are taken, and nobody grows into their room."""
    host = a_host("a", 4, leaving=(Leaving(room=room(2, 2), until=30.0),))
    assert not decide(host, running("job", 2, "a"), a_service("web", 2)).changes
    late = decide(host, running("job", 2, "a"), a_service("web", 2), now=60.0)
    assert targets(late) == {"job": 1} or late.changes[0].action is Action.SUSPEND


def test_a_service_that_has_room_and_is_not_bound_for_long_holds_nobody_up() -> None:
    """It waits for something else, such as a volume; its room is kept."""
    job = running("job", 1, "a")
    assert not decide(a_host("a", 8), job, a_service("web", 2), now=10.0).changes
    assert targets(decide(a_host("a", 8), job, a_service("web", 2), now=100.0)) == {"job": 6}


def test_a_gang_that_lost_a_host_gets_its_pods_placed_again_from_surplus() -> None:
    """Node loss is mandatory; whoever matters less waits for it."""
    broken = replace(running("broken", 2, "a", least=2, most=2, placed={"a": 1}), pending=1)
    rich = running("rich", 3, "a")
    found = decide(a_host("a", 4), broken, rich, waiting("cheap", 1, 1, priority=Priority.EXPERIMENT))
    assert targets(found) == {"rich": 2}
    assert found.changes[0].reason.code is Code.MAKE_ROOM


def test_while_a_gang_has_no_room_nobody_grows_and_lower_classes_do_not_start() -> None:
    broken = replace(running("broken", 2, "a", least=2, most=2, placed={"a": 1}, each=room(3, 1)), pending=1)
    rows = [[a_host("a", 5), a_host("b", 2), a_host("c", 3, others=room(1))], broken]
    found = decide(*rows, running("rigid", 1, "b", most=2), waiting("cheap", 1, 1, priority=Priority.EXPERIMENT))
    assert not found.changes
    assert reason_of(found, "cheap") is Code.QUEUED


def test_a_gang_whose_hosts_are_gone_for_good_waits_instead_of_holding_up_everybody() -> None:
    broken = replace(running("broken", 1, "a", placed={}, pools=frozenset({"gone"})), pending=1)
    found = decide(hosts(1, cores=4), broken, running("other", 1))
    assert {(c.key.name, c.action) for c in found.changes} == {("broken", Action.SUSPEND), ("other", Action.GROW)}


def test_trainers_that_were_promised_and_have_no_room_any_more_are_taken_back() -> None:
    job = replace(running("job", 5, "a", placed={"a": 3}), pending=2)
    found = decide(a_host("a", 4), job)
    assert targets(found) == {"job": 4}
    assert found.changes[0].victims == {}


# Fairness moves ---------------------------------------------------------------------------------------------


def test_a_trainer_moves_only_if_the_order_stays() -> None:
    """Row 12: towards 4 and 4, and no further."""
    found = targets(decide(a_host("a", 8), running("more", 6, "a"), running("less", 2, "a")))
    assert found["more"] + found["less"] == 8
    assert 3 <= found["less"] <= found["more"] <= 5
    assert not decide(a_host("a", 8), running("more", 4, "a"), running("less", 4, "a")).changes
    assert not decide(a_host("a", 7), running("more", 4, "a"), running("less", 3, "a")).changes


def test_jobs_of_different_shapes_hand_no_trainer_back_and_forth() -> None:
    """Row 12: the taker of a step of 12 may not end above the giver of one of 11."""
    more, less = running("more", 6, "a"), running("less", 2, "a", each=room(1, 2))
    assert targets(decide(a_host("a", 8), more, less)) == {"more": 5, "less": 3}
    more, less = running("more", 5, "a"), running("less", 3, "a", each=room(1, 2))
    assert not decide(a_host("a", 8), more, less).changes


def test_a_fairness_move_waits_while_anything_else_is_to_do() -> None:
    """Row 13."""
    found = decide(a_host("a", 9), running("more", 6, "a"), running("less", 2, "a"))
    assert targets(found) == {"less": 3}


def test_moves_in_a_round_are_limited() -> None:
    settings = replace(UNTIL_FULL, max_moves=2)
    found = decide(a_host("a", 12), running("more", 11, "a"), running("less", 1, "a"), settings=settings)
    assert targets(found) == {"more": 9, "less": 3}


def test_a_full_cluster_is_still_shared_better() -> None:
    """A gang may start above L; that must not end all fairness."""
    settings = SchedulerSettings(freezing_window=0.0)
    found = targets(decide(a_host("a", 8), running("more", 6, "a"), running("less", 2, "a"), settings=settings))
    assert found["less"] > 2
    assert found["more"] + found["less"] == 8


# Servers ----------------------------------------------------------------------------------------------------


def test_servers_come_with_trainers_and_are_placed_too() -> None:
    servers = Servers(each=room(1, 1), min=1, max=4, per_trainer=0.5)
    found = decide(a_host("a", 9), a_job("ps", 2, 100, servers=servers))
    assert targets(found) == {"ps": 6}  # 6 trainers and 3 servers
    assert found.changes[0].fixed_hosts == {"pserver": {"a": 3}}


def test_a_trim_of_trainers_is_a_trim_of_servers_in_the_ledger_of_the_quota() -> None:
    servers = Servers(each=room(1, 1), min=1, max=4, per_trainer=0.5)
    job = replace(running("ps", 8, servers=servers), fixed_placed={"host-0000": room(4, 4)})
    assert targets(decide(hosts(1), {"team": Quota(cpu=9_000)}, job)) == {"ps": 6}


def test_both_kinds_of_jobs_take_part_in_one_round() -> None:
    elastic = replace(a_job("same", 1, 100), key=JobKey("team", "same", Kind.ELASTIC_JOB))
    found = decide(hosts(1, cores=8), elastic, a_job("same", 1, 100))
    assert sorted(change.target for change in found.changes) == [4, 4]


def test_a_suspended_or_finished_job_takes_no_part() -> None:
    """Row 16."""
    found = decide(hosts(1, cores=8), a_job("stopped", 1, 9, suspended=True), a_job("done", 1, 9, over=True))
    assert found == Decisions()


def test_a_world_of_nothing_is_planned_without_trouble() -> None:
    assert decide() == Decisions()
    assert reason_of(decide(a_job("job", 1, 1)), "job") is Code.TOO_LARGE
    assert World.of(hosts(1), []).round() == Decisions()


# What must not hold up everybody for ever -------------------------------------------------------------------


def crowd(**more: object) -> list[Job]:
    """One that lost its host, one at its least on the only other host that is large enough, and others."""
    lost = a_job("lost", 1, 1, each=room(16, 1, 8))
    return [
        replace(lost, target=1, pending=1, resizing=True, attained=Attained(), **more),  # type: ignore[arg-type]
        running("rigid", 1, "big", most=1, each=room(8, 1, 4)),
        running("hungry", 1, "small-0", most=9, each=room(2, 1, 1)),
        waiting("low", 1, 4, each=room(2, 1, 1), priority=Priority.OFFLINE),
    ]


LARGE_AND_SMALL = [a_host("big", 64, gpus=8), *(a_host(f"small-{number}", gpus=4) for number in range(5))]


def test_a_gang_that_lost_its_host_and_finds_none_goes_back_into_the_queue() -> None:
    """Everybody waits for it, but not for ever."""
    soon = decide(LARGE_AND_SMALL, crowd(short_since=50.0), now=100.0)
    assert not soon.changes
    later = decide(LARGE_AND_SMALL, crowd(short_since=50.0), now=110.0)
    assert (targets(later), reason_of(later, "lost")) == ({"lost": 0, "hungry": 9, "low": 4}, Code.NO_ROOM)
    in_queue = [waiting("lost", 1, 1, since=110.0, each=room(16, 1, 8)), *crowd()[1:]]
    assert reason_of(decide(LARGE_AND_SMALL, in_queue, now=180.0), "lost") is Code.RESERVED


def test_a_gang_whose_room_others_have_just_now_keeps_what_it_has_for_a_while() -> None:
    """Others are not training: nobody tells them to go, and yet they may be on their way out."""
    server = Part(role="ps", each=room(2, 1), count=1)
    job = running("job", 2, "a", least=2, most=2, fixed=(server,), fixed_pending=(server,), short_since=50.0)
    full = a_host("a", 4, others=room(1))
    assert not decide(full, job, now=100.0).changes
    later = decide(full, job, now=110.0)
    assert (targets(later), reason_of(later, "job")) == ({"job": 0}, Code.NO_ROOM)
    assert "even without training" not in text_of(later, "job")
    crowded = decide(a_host("a", 4, others=room(3)), job, now=110.0)
    assert "even without training" in text_of(crowded, "job")
    assert not decide(a_host("a", 4, others=room(3)), job, now=100.0).changes


def test_a_gang_that_kubernetes_finds_no_hosts_for_goes_back_though_there_is_room() -> None:
    stuck = replace(running("stuck", 1, "a", least=2, most=2), target=2, pending=1, short_since=0.0)
    room_for_all = [a_host("a"), a_host("b")]
    assert not decide(room_for_all, stuck, now=1_799.0).changes
    later = decide(room_for_all, stuck, now=1_800.0)
    assert targets(later) == {"stuck": 0}
    assert "no host for 1800 s" in later.changes[0].reason.text


def with_one_unbound(name: str, bound: int, since: float = 0.0, **more: object) -> Job:
    """A job that may have one trainer more than found a host."""
    job = running(name, bound, "a", **more)
    return replace(job, target=bound + 1, pending=1, unbound_since=(since,), resizing=True)


def test_a_trainer_that_kubernetes_finds_no_host_for_is_taken_back_and_others_have_its_room() -> None:
    stuck, hungry = with_one_unbound("stuck", 3, v=-1e9), running("hungry", 4, "a")
    assert not decide(a_host("a", 8), stuck, hungry, now=1_799.0).changes
    later = decide(a_host("a", 8), stuck, hungry, now=1_800.0)
    assert targets(later) == {"hungry": 5, "stuck": 3}
    taken = next(change for change in later.changes if change.key.name == "stuck")
    assert (taken.reason.code, taken.holds_for, taken.victims) == (Code.UNSCHEDULABLE, 1_800.0, {})
    assert "no host for 1 trainer of it in 1800 s" in taken.reason.text
    assert "the events of those Pods say why" in taken.reason.text


def test_of_trainers_without_a_host_only_those_that_waited_for_long_are_taken_back() -> None:
    both = replace(with_one_unbound("job", 3), target=5, pending=2, unbound_since=(0.0, 1_000.0))
    assert targets(decide(a_host("a", 8), both, now=1_800.0)) == {"job": 4}


def test_whole_units_are_taken_back_and_those_without_a_host_go_first() -> None:
    both = replace(with_one_unbound("job", 2, unit=2), target=4, pending=2, unbound_since=(0.0, 1_799.0))
    (change,) = decide(a_host("a", 8), both, now=1_800.0).changes
    assert (change.target, change.victims) == (2, {})


def test_who_is_at_its_least_size_is_a_gang_that_is_short_and_nothing_is_taken_back_of_it() -> None:
    least = with_one_unbound("job", 3, least=4)
    assert not decide(a_host("a", 8), least, now=1_800.0).changes


def test_what_found_no_host_is_not_given_to_the_same_job_again_for_as_long_as_it_was_waited_for() -> None:
    world = World.of([a_host("a", 8)], [a_job("stuck", 1, 4)], settings=UNTIL_FULL)
    world.binds[JobKey("team", "stuck")] = 3
    for _ in range(4 * 180):
        world.round()
        world.wait(10.0)
    found = [(change.target, change.reason.code) for _, change in world.log]
    assert found == [(4, Code.ADMITTED), (3, Code.UNSCHEDULABLE), (4, Code.FREE_ROOM), (3, Code.UNSCHEDULABLE)]
    assert [at for at, _ in world.log] == [0.0, 1_800.0, 3_600.0, 5_400.0]


def test_who_asks_for_more_is_not_held_to_what_found_hosts_before() -> None:
    world = World.of([a_host("a", 8)], [a_job("stuck", 1, 4)], settings=UNTIL_FULL)
    key = JobKey("team", "stuck")
    world.binds[key] = 3
    for _ in range(182):
        world.round()
        world.wait(10.0)
    assert world.target("stuck") == 3
    del world.binds[key]
    world.jobs[key] = replace(world.jobs[key], max=5)
    world.round()
    world.wait(10.0)
    assert (world.target("stuck"), world.standing[key].held_until) == (5, 0.0)
    assert not world.round().changes


def overtaken() -> Job:
    """A job with one of its two trainers: there is room for the other, and Kubernetes gives it to others."""
    return replace(running("short", 1, "a", least=2, most=2), target=2, pending=1, short_since=0.0)


@pytest.mark.parametrize(("now", "grown"), [(59.0, 6), (60.0, 2), (179.0, 2), (180.0, 6)])
def test_a_gang_that_is_overtaken_keeps_others_out_of_room_that_is_not_free_yet(now: float, grown: int) -> None:
    """Pods that are made before their own room is free go to any host that has some, and that is the gang's. From a
    minute on they are not made; after three it must be something else that the gang waits for."""
    both = [a_host("a", 4), replace(a_host("b", 4), leaving=(Leaving(room=room(4, 4), until=200.0),))]
    found = decide(both, overtaken(), running("hungry", 1, "a", most=9), now=now)
    assert targets(found) == {"hungry": grown}


@pytest.mark.parametrize(("now", "moves"), [(59.0, True), (60.0, False), (179.0, False), (180.0, True)])
def test_a_gang_that_is_overtaken_holds_up_fairness_moves(now: float, moves: bool) -> None:
    full = a_host("a", 11)
    found = decide(full, overtaken(), running("rich", 8, "a"), running("poor", 1, "a"), now=now)
    assert bool(found.changes) is moves


def test_a_nominated_pod_that_has_room_and_is_not_bound_for_long_holds_up_nobody() -> None:
    three = hosts(3, cores=8)
    pod = a_service("web", 2, nominated="host-0001", since=0.0)
    assert not decide(three, running("job", 2), pod, now=59.0).changes
    assert targets(decide(three, running("job", 2), pod, now=60.0)) == {"job": 22}, "its room is kept"


def test_a_pod_nominated_to_a_host_that_could_never_take_it_is_ignored() -> None:
    found = decide(hosts(3, cores=8), running("job", 2), a_service("monster", 900, nominated="host-0001"))
    assert targets(found) == {"job": 24}


def test_the_number_of_trainers_that_make_room_is_that_of_those_that_go() -> None:
    found = decide(hosts(1, cores=8), running("donor", 8, v=1e6), waiting("gang", 6, 6))
    assert targets(found) == {"donor": 2, "gang": 6}
    assert "; 6 trainers of others make room" in {c.key.name: c.reason.text for c in found.changes}["gang"]


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 400))
def test_servers_beside_trainers_are_their_share_rounded_up(servers: int, trainers: int, beside: int) -> None:
    ratio = Servers(each=room(1, 1), min=0, max=10**6, per_trainer=servers / trainers)
    assert ratio.beside(beside) == math.ceil(Fraction(servers, trainers) * beside)
