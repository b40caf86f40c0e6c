"""An ElasticJob under a scheduler: it has what it is allowed, waits for what it is not, and says so."""

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.builders import NOW, TIMES, a_job, a_move, a_plan, a_pod, a_role, an_auto_plan, an_order
from tests.operator.world import World

from shoal.api.elasticjob import ElasticJobStatus, JobCondition, Role
from shoal.api.scheduling import SchedulingStatus
from shoal.operator.allowances import Allowance
from shoal.operator.asks import Asks, Wanted
from shoal.operator.grants import Limit, decide_grant
from shoal.operator.masters import plan_master
from shoal.operator.memory import Grant, MasterRecord
from shoal.operator.objects import Manifest
from shoal.operator.snapshot import JobSeen, PlanSeen, Snapshot, Training
from shoal.operator.standings import of_status, to_status
from shoal.operator.writing import write_job
from shoal.scheduler.actuation import Standing
from shoal.scheduler.rows import Attained


class Scheduled(World):
    """A job for which somebody else says what it may have."""

    def __init__(self, job: JobSeen, allowance: Allowance | None = None) -> None:
        super().__init__(job)
        self.allowance = allowance

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), is_scheduled=True, allowance=self.allowance)

    def said(self, kind: JobCondition) -> tuple[str, str]:
        condition = self.job.status.conditions[kind]
        return condition.status, condition.reason


def allowed(target: int, **more: object) -> Allowance:
    return Allowance(standing=Standing(target=target, attained=Attained(v=1.5, at=1e9, rate=0.25)), **more)  # type: ignore[arg-type]


def waits(place: int = 3, **more: object) -> Allowance:
    standing = Standing(attained=Attained(v=7.0, at=1e9), waiting_since=1e9)
    given = {"code": "NoRoom", "reason": "its gang does not fit", "place": place, "starts_master": False}
    return Allowance(standing=standing, **{**given, **more})  # type: ignore[arg-type]


# Standings -------------------------------------------------------------------------------------------------------

standings = st.builds(
    Standing,
    target=st.integers(0, 2000),
    attained=st.builds(
        Attained,
        v=st.floats(0, 1e18),
        at=st.integers(0, 4 * 10**15).map(lambda micros: micros / 1e6),
        rate=st.floats(0, 1e12),
    ),
    waiting_since=st.one_of(st.none(), st.integers(0, 4 * 10**9).map(float)),
    settling=st.booleans(),
    frozen_until=st.integers(0, 4 * 10**9).map(float),
    asked=st.integers(0, 2000),
)


@given(standings)
def test_what_is_written_of_a_standing_is_what_is_read_back(standing: Standing) -> None:
    written = to_status(Allowance(standing=standing))
    there = msgspec.json.decode(msgspec.json.encode(written), type=SchedulingStatus)
    again = of_status(there)
    assert again is not None
    assert again.attained.v == standing.attained.v
    assert again.attained.rate == standing.attained.rate
    assert abs(again.attained.at - standing.attained.at) < 2e-6
    assert replace(again, attained=standing.attained) == standing
    assert to_status(Allowance(standing=again)) == there


def test_what_nobody_can_read_is_no_standing() -> None:
    assert of_status(None) is None
    assert of_status(SchedulingStatus(target=3)) is None
    assert of_status(SchedulingStatus(target=3, v="lots", at=NOW)) is None


# Grants ----------------------------------------------------------------------------------------------------------

counts = st.dictionaries(st.sampled_from(tuple(Role)), st.integers(0, 9))
allowances = st.one_of(
    st.none(),
    st.builds(
        lambda target, servers: allowed(target, servers=servers),
        st.integers(0, 9),
        st.one_of(st.none(), st.integers(1, 9)),
    ),
)


@given(counts, counts, allowances, counts)
def test_nobody_is_granted_more_than_is_asked_for_and_allowed(
    asked: dict[Role, int], granted: dict[Role, int], allowance: Allowance | None, surge: dict[Role, int]
) -> None:
    asks = Asks(roles={role: Wanted(count=count, reason="asked") for role, count in asked.items()}, accepted=())
    before = Grant(generation=1, counts=granted)
    grant = decide_grant(
        before,
        asks,
        limit=Limit(is_scheduled=True, allowance=allowance),
        kept=granted,
        surge=surge,
        victims=(),
        live={},
        suspended=False,
        times=TIMES,
        now=NOW,
    )
    for role, count in grant.counts.items():
        assert count <= asked[role] + surge.get(role, 0)
        if allowance is None:
            assert count <= granted.get(role, 0) + surge.get(role, 0)
        elif role is Role.WORKER:
            assert count <= allowance.standing.target + surge.get(role, 0)
        elif role is Role.PS:
            most = granted.get(role, 0) if allowance.servers is None else allowance.servers
            assert count <= most + surge.get(role, 0)
        if allowance is not None and not allowance.is_admitted:
            assert count == 0
    again = decide_grant(
        grant,
        asks,
        limit=Limit(is_scheduled=True, allowance=allowance),
        kept=granted,
        surge=surge,
        victims=(),
        live={},
        suspended=False,
        times=TIMES,
        now=NOW,
    )
    assert again == grant


def test_parameter_servers_come_and_go_with_the_workers() -> None:
    roles = {Role.WORKER: Wanted(count=8, reason="w"), Role.PS: Wanted(count=4, reason="p")}
    limit = Limit(is_scheduled=True, allowance=allowed(2, servers=1))
    assert limit.held({role: each.count or 0 for role, each in roles.items()}, {}) == {Role.WORKER: 2, Role.PS: 1}
    assert limit.held({Role.WORKER: 8, Role.PS: 4}, {Role.PS: 3})[Role.PS] == 1


def test_servers_that_the_scheduler_has_not_counted_yet_are_not_made_and_taken_again() -> None:
    world = Scheduled(a_job(worker=a_role(), parameterServer=a_role(max=6)), allowed(1))
    world.settle()  # it was admitted for its least number of workers, when nobody had asked for servers
    world.put(a_plan("four", ps=4, worker=4))
    world.settle()
    assert world.names(Role.PS) == []
    world.allowance = allowed(1, servers=1)
    world.settle()
    world.allowance = allowed(4, servers=4)
    world.settle()
    assert world.names(Role.PS) == [f"mnist-ps-{number}" for number in range(4)]
    world.allowance = allowed(4)  # one who cannot count them takes none
    world.settle()
    assert len(world.names(Role.PS)) == 4


# A job's life ----------------------------------------------------------------------------------------------------


def test_nothing_is_done_for_a_new_job_before_the_scheduler_has_spoken() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=3)))
    world.settle()
    assert not world.born
    assert world.job.status.conditions == {}


def test_a_job_that_waits_costs_nothing_and_says_its_place() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=3)), waits())
    world.settle()
    assert not world.pods
    assert world.said(JobCondition.ADMITTED) == ("False", "NoRoom")
    assert world.said(JobCondition.READY) == ("False", "Waiting")
    message = world.job.status.conditions[JobCondition.ADMITTED].message
    assert message == "place 3 in the queue: its gang does not fit"
    assert world.job.status.scheduling == to_status(waits())


def test_a_job_near_its_turn_holds_a_master_and_gives_it_back() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=3)), waits(place=1, starts_master=True))
    world.settle()
    assert sorted(world.pods) == ["mnist-master-1"]
    world.allowance = waits(place=9)
    world.settle()
    assert not world.pods
    world.allowance = allowed(2)
    world.settle()
    assert sorted(world.pods) == ["mnist-master-2", "mnist-worker-0", "mnist-worker-1"]


def test_a_job_is_trimmed_to_what_it_is_allowed() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=5)), allowed(2, reason="there is no room for more"))
    world.settle()
    assert world.names(Role.WORKER) == ["mnist-worker-0", "mnist-worker-1"]
    assert world.said(JobCondition.ADMITTED) == ("True", "Trimmed")
    message = world.job.status.conditions[JobCondition.ADMITTED].message
    assert message == "2 of 5 workers: there is no room for more"
    world.allowance = allowed(5)
    world.settle()
    assert len(world.names(Role.WORKER)) == 5
    assert world.said(JobCondition.ADMITTED) == ("True", "Granted")


@pytest.mark.parametrize("plan", [a_plan("a", worker=99), an_auto_plan(worker=99)], ids=["a-users", "the-masters"])
def test_a_plan_says_what_the_scheduler_has_left_of_it(plan: PlanSeen) -> None:
    world = Scheduled(a_job(worker=a_role(max=8)), allowed(2, reason="there is no room for more"))
    world.put(plan)
    world.settle()
    (trim,) = world.plans[plan.ask].status.trims
    assert (trim.what, trim.asked, trim.got) == ("worker.replicas", "99", "2")
    assert trim.reason == "job mnist has at most 8 of worker; there is no room for more"
    world.allowance = allowed(8)
    world.settle()
    (trim,) = world.plans[plan.ask].status.trims
    assert (trim.got, trim.reason) == ("8", "job mnist has at most 8 of worker")


def test_a_replacement_that_starts_is_not_taken_for_granted_room() -> None:
    world = Scheduled(a_job(worker=a_role(max=8)), allowed(2, reason="there is no room for more"))
    world.put(a_plan("a", worker=4, migrate=(a_move(Role.WORKER, 0, cpu=2),)))
    for _ in range(4):
        world.step()
        world.run("mnist-master-1")
        for name in ("mnist-worker-0", "mnist-worker-1"):
            if name in world.pods:
                world.run(name)
    assert world.job.memory.grant.counts == {Role.WORKER: 3}
    assert [trim.got for trim in world.plans["ScalePlan/a"].status.trims] == ["2"]


def test_a_job_may_grow_at_the_moment_when_a_replacement_runs() -> None:
    """The one more that was granted for the replacement would be one more for good, with the old member in it."""
    world = Scheduled(a_job(worker=a_role(max=8)), allowed(2))
    world.put(a_plan("a", worker=2))
    world.settle()
    world.put(a_plan("b", worker=3, migrate=(a_move(Role.WORKER, 1, memory=2048),)))
    world.settle(runs=False)
    assert world.job.memory.grant.counts == {Role.WORKER: 3}
    world.run_all()
    world.allowance = allowed(3)
    world.settle()
    assert len(world.names(Role.WORKER)) == 3
    world.passes(60)
    world.settle()
    assert world.names(Role.WORKER) == ["mnist-worker-0", "mnist-worker-2", "mnist-worker-3"]
    assert world.job.memory.grant.counts == {Role.WORKER: 3}
    assert world.plans["ScalePlan/b"].status.conditions["Completed"].status == "True"


def test_a_move_that_waits_for_another_says_so() -> None:
    world = Scheduled(a_job(worker=a_role(max=8)), allowed(2))
    world.put(a_plan("a", worker=2))
    world.settle()
    world.put(a_plan("b", migrate=tuple(a_move(Role.WORKER, number, cpu=2) for number in (0, 1))))
    world.settle(runs=False)
    said = [done.outcome for done in world.plans["ScalePlan/b"].status.done]
    assert said == ["starting: mnist-worker-2 is starting", "waiting: mnist-worker-1 waits for its turn"]


def test_a_suspended_job_trims_no_plan() -> None:
    world = Scheduled(a_job(worker=a_role(max=8), suspend=True), allowed(0))
    world.put(a_plan("a", worker=4))
    world.settle()
    assert world.plans["ScalePlan/a"].status.trims == ()


def test_a_priority_that_counts_for_less_is_said() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=2)), allowed(2))
    world.settle()
    assert world.said(JobCondition.PRIORITY_TRIMMED) == ("False", "AsAsked")
    world.allowance = allowed(2, trimmed="priority Production counts as Normal")
    world.settle()
    assert world.said(JobCondition.PRIORITY_TRIMMED) == ("True", "NotInPriorities")


def test_those_go_whom_the_scheduler_chose() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=4)), allowed(4))
    world.settle()
    world.allowance = allowed(2, victims=("mnist-worker-0", "mnist-worker-2"))
    world.settle()
    assert world.names(Role.WORKER) == ["mnist-worker-1", "mnist-worker-3"]


def test_a_master_that_answers_drains_before_anybody_goes() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=3)), allowed(3))
    world.settle()
    world.job = replace(world.job, training=Training(phase="running"))
    world.put(an_auto_plan())
    world.allowance = allowed(2, victims=("mnist-worker-1",))
    world.step()
    assert len(world.names(Role.WORKER)) == 3
    assert world.job.memory.grant.victims == ("mnist-worker-1",)
    assert world.job.memory.grant.drain_by is not None
    world.passes(121)
    world.settle()
    assert world.names(Role.WORKER) == ["mnist-worker-0", "mnist-worker-2"]


def test_until_the_scheduler_speaks_a_job_keeps_what_it_has_and_grows_by_nothing() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=3)), allowed(3))
    world.settle()
    world.allowance = None  # another operator leads now
    world.put(a_plan("more", worker=6))
    world.settle()
    assert len(world.names(Role.WORKER)) == 3
    assert "mnist-master-1" in world.pods
    world.put(a_plan("more", worker=2, generation=2))
    world.settle()
    assert len(world.names(Role.WORKER)) == 2
    assert world.job.status.scheduling == to_status(allowed(3))  # nothing of what was attained is lost


def test_what_was_decided_of_a_suspended_job_takes_nobody_from_one_that_was_resumed() -> None:
    """Another leader may have resumed it by what is written, before this word was written."""
    world = Scheduled(a_job(worker=a_role(replicas=2)), allowed(2))
    world.settle()
    there = sorted(world.pods)
    rests = allowed(0, code="Suspended", aside=True)
    world.allowance = rests
    world.settle()
    assert sorted(world.pods) == there
    assert world.job.status.scheduling == to_status(allowed(2))
    spec = world.job.spec
    assert spec is not None
    world.job = replace(world.job, spec=replace(spec, suspend=True))
    world.settle()
    assert world.names(Role.WORKER) == []
    assert world.job.status.scheduling == to_status(rests)


def test_a_master_of_a_later_term_than_the_record_has_is_not_ended_by_it() -> None:
    """The record is older than the Pods: somebody has resumed the job meanwhile."""
    later = a_pod(None, 2)
    resting = MasterRecord(term=1, stopped=True)
    assert plan_master(resting, [later], wanted=False, times=TIMES, now=NOW).delete == ()
    same = replace(resting, term=2)
    assert plan_master(same, [later], wanted=False, times=TIMES, now=NOW).delete == (later,)


def test_a_job_that_waits_gets_no_master_from_a_new_operator_that_knows_nothing_yet() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=3)), waits())
    world.settle()
    world.allowance = None
    world.settle()
    assert not world.born


def test_a_job_that_has_to_give_way_is_put_back_and_comes_back() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=3)), allowed(3))
    world.settle()
    assert world.job.memory.start_time is not None
    world.allowance = waits(place=1, code="OnlineService", reason="a service needs the room")
    world.settle()
    assert not world.pods
    assert "PutBack" in world.notices
    assert world.said(JobCondition.ADMITTED) == ("False", "OnlineService")
    assert world.job.memory.start_time is None
    world.allowance = allowed(2)
    world.settle()
    assert world.names(Role.WORKER) == ["mnist-worker-3", "mnist-worker-4"]
    assert world.said(JobCondition.READY)[0] == "True"


def test_a_suspended_job_says_that_it_was_its_owner() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=3), suspend=True), waits(place=1, starts_master=True))
    world.settle()
    assert not world.pods
    assert world.said(JobCondition.ADMITTED) == ("False", "Suspended")


def best_hosts(pods: Iterable[Manifest]) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: term["preference"]["matchFields"][0]["values"][0]
        for pod in pods
        if "affinity" in pod["spec"]
        for term in pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    }


def test_a_planned_host_that_a_member_avoids_is_not_preferred() -> None:
    job = a_job(worker=a_role(replicas=1), training=Training(phase="running"))
    world = Scheduled(job, allowed(1, hosts={"a": 1}))
    world.put(an_auto_plan())
    world.settle()
    world.end("mnist-worker-0", 201)
    world.step()
    world.put(an_auto_plan(generation=2, create=(an_order(Role.WORKER, 1, replaces=0, avoid_hosts=("a",)),)))
    (made,) = world.step().create
    (wish,) = made["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]


def test_new_workers_would_best_be_where_room_was_found() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=3)), allowed(3, hosts={"a": 2, "b": 1}))
    found = best_hosts(world.step().create)
    assert found == {"mnist-worker-0": "a", "mnist-worker-1": "a", "mnist-worker-2": "b"}


def test_whoever_comes_with_the_workers_would_best_be_where_room_was_found() -> None:
    beside = {"ps": {"c": 1, "d": 1}, "chief": {"e": 1}, "evaluator": {"f": 1}, "master": {"g": 1}}
    roles = {"parameterServer": a_role(replicas=2), "chief": a_role(replicas=1), "evaluator": a_role(replicas=1)}
    job = a_job(worker=a_role(replicas=1), **roles)
    world = Scheduled(job, allowed(1, servers=2, hosts={"a": 1}, fixed_hosts=beside))
    found = best_hosts(world.step().create)
    assert found == {
        "mnist-master-1": "g",
        "mnist-worker-0": "a",
        "mnist-ps-0": "c",
        "mnist-ps-1": "d",
        "mnist-chief-0": "e",
        "mnist-evaluator-0": "f",
    }


def test_no_more_replacements_start_at_once_than_a_few() -> None:
    world = Scheduled(a_job(worker=a_role(replicas=4)), allowed(4))
    world.settle()
    moves = tuple(a_move(Role.WORKER, number, memory=2048) for number in range(4))
    world.put(a_plan("bigger", migrate=moves))
    most = 0
    for _ in range(40):
        world.step()
        most = max(most, len(world.live(Role.WORKER)))
        world.run_all()
        world.vanish()
    assert most == 5
    assert len(world.names(Role.WORKER)) == 4
    assert min(int(name.rpartition("-")[2]) for name in world.names(Role.WORKER)) >= 4


@given(st.lists(st.one_of(st.none(), st.integers(0, 6)), min_size=1, max_size=8), st.integers(1, 6))
def test_whatever_is_allowed_a_job_never_has_more_and_settles_at_it(story: list[int | None], asked: int) -> None:
    world = Scheduled(a_job(worker=a_role(replicas=asked)))
    had = 0
    for target in story:
        world.allowance = None if target is None else allowed(target) if target else waits()
        world.settle()
        there = len(world.live(Role.WORKER))
        had = had if target is None else min(asked, target)
        assert there == had
        status = msgspec.convert(write_job(world.job, world.job.status), ElasticJobStatus)
        assert world.allowance is None or status.scheduling == to_status(world.allowance)
