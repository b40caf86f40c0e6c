"""Whatever users and owners may write, a round works for everybody: amounts, settings and statuses at their ends."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api.builders import a_training_job
from tests.operator.builders import SETTINGS as OPERATOR
from tests.operator.test_scheduling_round import a_job, hosts

from shoal.api.fields import QUANTITY
from shoal.api.scheduling import SchedulingStatus
from shoal.core.errors import BadInput
from shoal.core.hosts import Amounts, HostSeen, PodUse
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.scheduling.ledger import filled
from shoal.operator.scheduling.round import Known, Outcome, begin, conclude
from shoal.operator.scheduling.settings import read_settings
from shoal.operator.standings import of_status
from shoal.operator.training.facts import training_facts
from shoal.operator.training.recall import TrainingReader
from shoal.platforms.kubernetes.uses import amounts, shape
from shoal.scheduler.policies import known_policies, policy
from shoal.scheduler.rows import JobKey, Room
from shoal.scheduler.settings import SchedulerSettings

POLICIES = frozenset(known_policies(sim=False))
quantities = st.from_regex(QUANTITY.replace("$", r"\Z"))


def a_round(known: Known, chosen: SchedulerSettings | None = None) -> Outcome:
    chosen = chosen or SchedulerSettings()
    taken_up = begin(known, {}, 0.0, chosen, now=1_000.0)
    return conclude(taken_up, policy(chosen.policy)(taken_up.snapshot, 1_000.0, chosen), now=1_000.0)


def target(outcome: Outcome, key: JobKey) -> int:
    return outcome.holding[key].allowance.standing.target


def a_training_job_of(trainer: dict[str, Any], pserver: dict[str, Any] | None = None) -> JobFacts | None:
    parts = {"trainer": trainer} | ({} if pserver is None else {"pserver": pserver})
    raw = a_training_job("odd", **parts)
    raw["metadata"] |= {"namespace": "other", "uid": "odd-uid", "generation": 1}
    job = TrainingReader().job(raw)
    return training_facts(job, shape, OPERATOR) if job.spec is not None else None


@pytest.mark.parametrize("cpu", ["9E", "1e30", "999999999999999999Ei"])
def test_a_job_that_asks_for_more_than_can_be_counted_stops_nobody(cpu: str) -> None:
    odd = a_training_job_of({"resources": {"requests": {"cpu": cpu}}})
    assert odd is not None
    outcome = a_round(Known(hosts=hosts(2), facts=[a_job("good"), odd], ledger=filled([])))
    assert target(outcome, JobKey("default", "good")) == 4
    assert outcome.holding[odd.key].allowance.code == "TooLarge"


def test_a_job_whose_pods_ask_for_nothing_gets_no_more_than_hosts_have_places_for() -> None:
    modest = a_training_job_of({"min-instance": 1, "max-instance": 10_000, "resources": {}})
    assert modest is not None
    host = HostSeen(name="h", capacity=Amounts(64_000, 2**38, pods=110))
    there = [PodUse(namespace="x", name=f"d-{n}", uid=f"d-{n}", amounts=Amounts(pods=1), host="h") for n in range(10)]
    outcome = a_round(Known(hosts=[host], facts=[modest], ledger=filled(there)))
    fixed = sum(part.count for part in modest.fixed) + (modest.servers.min if modest.servers else 0)
    assert target(outcome, modest.key) == 100 - fixed


@settings(max_examples=40, deadline=None)
@given(st.lists(quantities, min_size=6, max_size=6), st.integers(1, 10_000), st.integers(1, 10_000))
def test_whatever_quantities_are_written_a_round_works(written: list[str], trainers: int, servers: int) -> None:
    requests = [{"cpu": cpu, "memory": memory} for cpu, memory in zip(written[:3], written[3:], strict=True)]
    odd = a_training_job_of(
        {"min-instance": trainers, "max-instance": 10_000, "resources": {"requests": requests[0]}},
        {"min-instance": servers, "max-instance": 10_000, "resources": {"requests": requests[1]}},
    )
    stranger = PodUse(namespace="x", name="s", uid="s", amounts=amounts(requests[2]), is_unschedulable=True)
    lodger = PodUse(namespace="x", name="l", uid="l", amounts=amounts(requests[2]), host="h-0", runs=True)
    vast = HostSeen(name="vast", capacity=amounts(requests[2]))
    known = Known(
        hosts=[*hosts(1), vast],
        facts=[a_job("good"), *([odd] if odd is not None else [])],
        ledger=filled([stranger, lodger]),
    )
    assert a_round(known).holding.keys() == {each.key for each in known.facts}


def test_a_job_whose_numbers_cannot_be_counted_is_left_out_and_told_why() -> None:
    odd = a_job("odd", each=Room(cpu=2**70, memory=0, gpu=0))
    held = PodUse(
        namespace="default", name="p", uid="p", amounts=Amounts(1_000, 0, 8), job=odd.uid, host="h-0", runs=True
    )
    outcome = a_round(Known(hosts=hosts(2), facts=[a_job("good"), odd], ledger=filled([held])))
    left_out = outcome.holding[odd.key].allowance
    assert left_out.code == "NotCounted"
    assert f"cpu of {2**70:,}" in left_out.reason
    assert target(outcome, JobKey("default", "good")) == 2, "what its Pods have is not given away"


# Settings ---------------------------------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(-(10**31), 10**31), st.sampled_from([0, 1, 10**9, 10**18, 2**63, 10**400]), st.floats(), quantities
)
rooms = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), numbers, max_size=3)
written_settings = st.fixed_dictionaries(
    {},
    optional={
        "policy": st.sampled_from(sorted(POLICIES)),
        "baseWeight": numbers,
        "weights": st.dictionaries(st.sampled_from(["Normal", "Production"]), numbers),
        "scores": st.dictionaries(st.sampled_from(["gpu", "core", "gibibyte"]), numbers),
        "horizon": numbers,
        "startDebit": numbers,
        "lagCap": numbers,
        "maxMoves": numbers,
        "fairnessMargin": numbers,
        "reserveAfter": numbers,
        "maxWait": numbers,
        "cpu": st.dictionaries(st.sampled_from(["grow", "reclaim"]), numbers),
        "cpuPerGpu": numbers,
        "servicePriorityFloor": numbers,
        "serviceHeadroom": rooms,
        "maxStartingMasters": numbers,
        "quotas": st.dictionaries(st.sampled_from(["default"]), rooms),
    },
)


@settings(max_examples=80, deadline=None)
@given(written_settings)
def test_whatever_settings_are_accepted_a_round_works_with_them(written: dict[str, Any]) -> None:
    try:
        chosen = read_settings(written, policies=POLICIES)
    except BadInput:
        return
    jobs = [a_job("a"), a_job("b", created=1.0), a_job("cores", each=Room(2_000, 2**30, 0))]
    a_round(Known(hosts=hosts(2), facts=jobs, ledger=filled([])), chosen)


@pytest.mark.parametrize(
    "written",
    [
        {"baseWeight": 10**30},
        {"weights": {"Normal": 10**30}},
        {"scores": {"gpu": 10**30}},
        {"cpuPerGpu": "1E"},
        {"fairnessMargin": float("nan")},
        {"fairnessMargin": float("inf")},
        {"quotas": {"a": {"cpu": 10**30}}},
        {"quotas": {"a": {"pods": 10**30}}},
        {"serviceHeadroom": {"memory": "99999E"}},
        {"maxMoves": 10**30},
    ],
    ids=str,
)
def test_settings_beyond_all_bounds_are_refused(written: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(written))):
        read_settings(written, policies=POLICIES)


@pytest.mark.parametrize("number", ["1e+999", "-inf", "nan"])
def test_a_standing_that_is_no_number_is_not_read(number: str) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert of_status(SchedulingStatus(target=1, v=number, at=at)) is None
    assert of_status(SchedulingStatus(target=1, v="1.0", at=at, rate=number)) is None
