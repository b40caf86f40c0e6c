"""One decision about one TrainingJob: what is made of which snapshot, and what is said about it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.builders import SETTINGS, at
from tests.operator.training.builders import a_job, a_pod, a_workload, allowed, elastic, plan_for
from tests.operator.training.world import World

from shoal.api.fields import MAX_ENTRIES
from shoal.api.trainingjob import Phase, TrainingRole
from shoal.core.hosts import Amounts, PodUse
from shoal.core.pods import PodPhase, Trouble
from shoal.operator.scheduling.ledger import Ledger
from shoal.operator.scheduling.reading import look_at
from shoal.operator.training.alone import everything
from shoal.operator.training.facts import training_facts
from shoal.operator.training.trainers import plan_trainers
from shoal.platforms.kubernetes.uses import shape
from shoal.scheduler.actuation import Standing

TRAINER, PSERVER, MASTER, ETCD = (
    TrainingRole.TRAINER,
    TrainingRole.PSERVER,
    TrainingRole.MASTER,
    TrainingRole.ETCD,
)


def made(plan: object) -> list[str]:
    return sorted(each["metadata"]["name"] for each in plan.create)  # type: ignore[attr-defined]


def said(world: World, kind: str) -> tuple[str, str]:
    found = world.job.status.conditions[kind]
    return str(found.status), found.reason


def running(**spec: object) -> World:
    """A job that is admitted with two trainers and runs."""
    world = World(a_job(**{"trainer": elastic(), **spec}))
    world.allowance = allowed(2)
    world.settle()
    return world


def test_a_job_that_was_never_admitted_gets_nothing() -> None:
    plan = plan_for(a_job(master={}))
    assert (plan.create, plan.ensure) == ((), ())
    assert plan.status.conditions["Admitted"].reason == "WaitingForScheduler"
    waiting = plan_for(a_job(), allowance=allowed(0, code="QuotaExceeded", reason="cpu: 8 of 8 in use", place=3))
    assert waiting.create == ()
    assert waiting.status.phase is Phase.PENDING
    assert waiting.status.reason == "place 3 in the queue: cpu: 8 of 8 in use"
    assert waiting.status.conditions["QuotaExceeded"].status == "True"


def test_a_priority_that_counts_for_less_is_said() -> None:
    world = running()
    assert said(world, "PriorityTrimmed") == ("False", "AsAsked")
    world.allowance = allowed(2, trimmed="priority Production counts as Normal")
    world.settle()
    assert said(world, "PriorityTrimmed") == ("True", "NotInPriorities")


def test_an_admitted_gang_is_made_at_once() -> None:
    job = a_job(trainer=elastic(2, 4), pserver={"min-instance": 2}, master={"etcd-replicas": 3})
    plan = plan_for(job, allowance=allowed(2))
    assert made(plan) == ["job-etcd", "job-master", "job-pserver", "job-trainer"]
    counts = {
        each["metadata"]["name"]: each["spec"].get("replicas", each["spec"].get("parallelism")) for each in plan.create
    }
    assert counts == {"job-etcd": 3, "job-master": 1, "job-pserver": 2, "job-trainer": 2}
    assert plan.status.memory.target == 2


def preferred(spec: dict[str, Any]) -> dict[str, int]:
    terms = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    return {each["preference"]["matchFields"][0]["values"][0]: each["weight"] for each in terms}


def test_every_role_would_best_be_where_room_was_found_for_it() -> None:
    job = a_job(trainer=elastic(2, 4), pserver={"min-instance": 3}, master={})
    beside = {"pserver": {"b": 2, "c": 1}, "master": {"d": 1}, "etcd": {"e": 1}}
    plan = plan_for(job, allowance=allowed(2, hosts={"a": 2}, fixed_hosts=beside))
    found = {each["metadata"]["name"]: preferred(each["spec"]["template"]["spec"]) for each in plan.create}
    assert found == {
        "job-trainer": {"a": 100},
        "job-pserver": {"b": 100, "c": 50},
        "job-master": {"d": 100},
        "job-etcd": {"e": 100},
    }


def test_only_who_can_be_told_later_is_told_where_more_should_go() -> None:
    """The template of a Job is fixed, and a StatefulSet would replace the Pods that it has."""
    job = a_job(trainer=elastic(2, 4), pserver={"min-instance": 2}, master={})
    there = tuple(a_workload(job, role, count) for role, count in ((TRAINER, 2), (PSERVER, 0), (MASTER, 0), (ETCD, 0)))
    beside = {"pserver": {"b": 2}, "etcd": {"e": 1}}
    plan = plan_for(job, workloads=there, allowance=allowed(3, hosts={"a": 1}, fixed_hosts=beside))
    found = {
        each.name: None if each.affinity is None else preferred({"affinity": each.affinity}) for each in plan.resize
    }
    assert found == {"job-trainer": None, "job-pserver": {"b": 100}, "job-master": None, "job-etcd": None}


def test_without_a_master_there_is_no_etcd() -> None:
    assert made(plan_for(a_job(), allowance=allowed(1))) == ["job-trainer"]


def test_after_a_restart_a_job_keeps_what_it_has() -> None:
    world = running(pserver={})
    before = (world.live(), world.live(PSERVER))
    world.allowance = None
    world.settle()
    assert (world.live(), world.live(PSERVER)) == before
    assert world.job.status.phase is Phase.RUNNING


def test_growth_is_one_number() -> None:
    world = running()
    world.allowance = allowed(4)
    plan = world.step()
    assert [(each.name, each.count) for each in plan.resize] == [("job-trainer", 4)]
    world.control()
    world.step()
    assert world.job.status.phase is Phase.SCALING
    world.settle()
    assert (len(world.running()), world.job.status.phase) == (4, Phase.RUNNING)
    assert [(each.before, each.after) for each in world.job.memory.records] == [(0, 2), (2, 4)]


def test_who_was_chosen_is_evicted_and_the_number_lowered_before_they_are_gone() -> None:
    world = running()
    world.allowance = allowed(4)
    world.settle()
    oldest, other = world.running()[0], world.running()[2]
    world.allowance = allowed(2, victims=(oldest, other))
    plan = world.step()
    assert [each.name for each in plan.evict] == [oldest, other]
    assert not plan.resize  # not yet: the Job controller would choose by itself
    plan = world.step()
    assert [(each.name, each.count) for each in plan.resize] == [("job-trainer", 2)]
    assert any(pod.deleting for pod in world.pods.values())
    world.settle()
    assert len(world.live()) == 2
    assert not {oldest, other} & set(world.live())
    assert world.workloads["job-trainer"].failed == 0


def test_trainers_without_a_host_need_no_eviction() -> None:
    job = a_job(trainer=elastic())
    batch = a_workload(job, TRAINER, 4)
    pods = [a_pod(0), a_pod(1), *(a_pod(n, phase=PodPhase.PENDING, host="", ready=False) for n in (2, 3))]
    step = plan_trainers(batch, pods, 2)
    assert (step.parallelism, step.evict) == (2, ())
    step = plan_trainers(batch, pods, 2, victims=("job-trainer-0",))  # its host was promised to somebody
    assert (step.parallelism, [pod.name for pod in step.evict]) == (None, ["job-trainer-0"])


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), max_size=8),
    st.sets(st.integers(0, 7), max_size=3),
)
def test_those_go_whose_hosts_the_scheduler_counts_as_free(
    target: int, shapes: list[tuple[bool, bool, int]], chosen: set[int]
) -> None:
    pods, uses = [], []
    for number, (housed, ready, age) in enumerate(shapes):
        host, since = (f"host-{number}" if housed else ""), at(age)
        phase = PodPhase.RUNNING if housed else PodPhase.PENDING
        pods.append(a_pod(number, phase=phase, host=host, ready=ready and housed, created_at=since))
        name = pods[-1].name
        uses.append(
            PodUse(
                namespace="default",
                name=name,
                uid=name,
                amounts=Amounts(),
                job="job-uid",
                role=str(TRAINER),
                host=host,
                since=since.timestamp(),
            )
        )
    victims = tuple(f"job-trainer-{number}" for number in sorted(chosen))[: max(0, len(pods) - target)]
    facts = training_facts(a_job(trainer=elastic(1, 8)), shape, SETTINGS)
    assert facts is not None
    view = look_at(facts, Standing(target=target), uses, Ledger(), victims=victims, now=0.0)
    step = plan_trainers(a_workload(a_job(), TRAINER, max(len(pods), target + 1)), pods, target, victims)
    assert sorted(pod.host for pod in step.evict) == sorted(host for host, _ in view.going)


def test_a_job_that_is_about_to_end_does_not_grow() -> None:
    batch = a_workload(a_job(), TRAINER, 2, succeeded=1)
    assert plan_trainers(batch, [a_pod(0)], 4).parallelism is None


@given(
    st.integers(0, 6),
    st.lists(st.sampled_from(["runs", "waits", "leaves", "failed"]), max_size=8),
    st.permutations([f"job-trainer-{n}" for n in range(8)]),
    st.integers(0, 8),
)
def test_a_shrink_takes_exactly_the_excess_and_the_named_first(
    target: int, states: list[str], order: list[str], named: int
) -> None:
    shapes = {
        "runs": {},
        "waits": {"phase": PodPhase.PENDING, "host": "", "ready": False},
        "leaves": {"deleting": True},
        "failed": {"phase": PodPhase.FAILED},
    }
    pods = [a_pod(n, **shapes[state]) for n, state in enumerate(states)]
    victims = order[:named]
    batch = a_workload(a_job(), TRAINER, max(len(states), target + 1))
    step = plan_trainers(batch, pods, target, victims)
    gone = [pod.name for pod in step.evict]
    ran = [pod.name for pod, state in zip(pods, states, strict=True) if state == "runs"]
    assert set(gone) <= set(ran)
    live = [pod.name for pod in pods if pod.is_live]
    excess = max(0, len(live) - target)
    wanted = [name for name in victims if name in live][:excess]
    waiting = [name for name in live if name not in ran and name not in wanted]
    assert gone[: len([name for name in wanted if name in ran])] == [name for name in wanted if name in ran]
    assert len(gone) == sum(name in ran for name in wanted) + max(0, excess - len(wanted) - len(waiting))
    assert (step.parallelism == target) is not bool(gone)


def test_the_budget_is_so_many_failures_for_each_trainer() -> None:
    world = running(trainer={**elastic(1, 4), "max-restarts": 2})
    for failure in range(4):
        world.end(world.running()[0], well=False)
        world.settle()
        assert world.job.status.phase is Phase.RUNNING, failure
    world.end(world.running()[0], well=False)
    world.settle()
    assert world.job.status.phase is Phase.FAILED
    assert "5 trainers failed, 4 are allowed: 2 for each trainer; the last:" in world.job.status.reason
    assert world.live() == []
    assert world.notices.count("TrainerFailed") == 4


def test_lost_hosts_and_evictions_are_not_counted() -> None:
    world = running(trainer={**elastic(1, 4), "max-restarts": 0})
    for _ in range(3):
        world.end(world.running()[0], well=False, disrupted=True)
        world.settle()
    assert world.job.status.phase is Phase.RUNNING


def test_failures_count_on_over_a_suspension() -> None:
    world = running(trainer={**elastic(1, 4), "max-restarts": 1})
    for _ in range(2):
        world.end(world.running()[0], well=False)
        world.settle()
    world.allowance = allowed(0)
    world.settle()
    assert (world.live(), world.job.status.phase) == ([], Phase.PENDING)
    world.allowance = allowed(2)
    world.settle()
    assert (len(world.running()), world.job.memory.failures) == (2, 2)
    world.end(world.running()[0], well=False)
    world.settle()
    assert world.job.status.phase is Phase.FAILED


def test_a_job_that_is_given_up_says_what_its_trainers_said_last() -> None:
    world = running(master={}, pserver={})
    failed = world.running()[0]
    world.pods[failed] = replace(world.pods[failed], phase=PodPhase.FAILED, reason="stops: ps-0 is lost (exit 78)")
    world.workloads["job-trainer"] = replace(world.workloads["job-trainer"], failure="matching FailJob rule")
    world.settle()
    assert world.job.status.phase is Phase.FAILED
    assert world.job.status.reason == f"matching FailJob rule; the last: {failed}: stops: ps-0 is lost (exit 78)"
    assert not world.live(MASTER)


def test_when_the_trainers_succeed_whoever_served_them_is_stopped() -> None:
    world = running(pserver={}, master={})
    for name in world.running():
        world.end(name, well=True)
    world.settle()
    assert world.job.status.phase is Phase.SUCCEEDED
    assert said(world, "Succeeded") == ("True", "TrainersSucceeded")
    assert {each.name: each.wanted for each in world.workloads.values()} == {
        "job-master": 0,
        "job-etcd": 0,
        "job-pserver": 0,
        "job-trainer": 2,
    }


def test_suspended_by_its_owner_it_has_no_pods() -> None:
    world = running(master={}, pserver={})
    spec = world.job.spec
    assert spec is not None
    world.job = replace(world.job, spec=replace(spec, suspend=True))
    world.settle()
    assert world.pods == {}
    assert said(world, "Admitted") == ("False", "Suspended")
    world.job = replace(world.job, spec=replace(spec, suspend=False))
    world.settle()
    assert world.job.status.phase is Phase.RUNNING
    assert [each.after for each in world.job.memory.records] == [2, 0, 2]


def test_what_was_decided_of_a_suspended_job_takes_nobody_from_one_that_was_resumed() -> None:
    world = running(pserver={})
    there, written = (world.live(), world.live(PSERVER)), world.job.memory.scheduling
    world.allowance = allowed(0, code="Suspended", aside=True)
    world.settle()
    assert ((world.live(), world.live(PSERVER)), world.job.memory.scheduling) == (there, written)


def test_what_changed_while_it_was_suspended_is_made_anew() -> None:
    world = running(pserver={})
    old = world.workloads["job-pserver"]
    world.allowance = allowed(0)
    world.settle()
    changed = a_job(trainer=elastic(), pserver={}, image="another")
    world.job = replace(world.job, spec=changed.spec)
    world.settle()
    assert "job-pserver" not in world.workloads
    world.allowance = allowed(2)
    world.settle()
    assert world.workloads["job-pserver"].form != old.form


RANGE = {"min-instance": 1, "max-instance": 3}
GPUS = {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": 2}}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, "do not run under `shoal agent`"),
        ({"master": {"entrypoint": "own"}}, "do not run under `shoal agent`"),
        ({"master": {}, "pserver": {**RANGE, "entrypoint": "serve"}}, "an entrypoint of their own"),
        ({"master": {}, "trainer": {**elastic(), "resources": GPUS}}, "each trainer has 2 processes"),
    ],
)
def test_servers_that_trainers_cannot_follow_stay_at_their_least_and_it_is_said(
    spec: dict[str, object], why: str
) -> None:
    world = running(**{"pserver": RANGE, **spec})
    world.allowance = allowed(4, servers=3)
    world.settle()
    assert len(world.live(PSERVER)) == 1
    assert said(world, "ServersFixed") == ("True", "TrainersCannotFollow")
    assert why in world.job.status.conditions["ServersFixed"].message
    plain = running(pserver={"min-instance": 2})
    assert said(plain, "ServersFixed") == ("False", "AsAsked")


def test_servers_that_trainers_follow_are_as_many_as_the_scheduler_allows() -> None:
    world = running(pserver=RANGE, master={})
    counts = []
    for servers in (2, 3, 9, 1, 0):
        world.allowance = allowed(4, servers=servers)
        world.settle()
        counts.append(len(world.live(PSERVER)))
    assert counts == [2, 3, 3, 1, 1], "within its range"
    assert said(world, "ServersFixed") == ("False", "TrainersFollow")
    told = [(each.role, each.before, each.after) for each in world.job.memory.records]
    assert told == [(TRAINER, 0, 2), (TRAINER, 2, 4), (PSERVER, 1, 2), (PSERVER, 2, 3), (PSERVER, 3, 1)]


def test_a_job_whose_servers_come_or_go_is_scaling_and_trains() -> None:
    world = running(pserver=RANGE, master={})
    world.allowance = allowed(2, servers=2)
    world.step()
    world.control()
    world.step()
    assert world.job.status.phase is Phase.SCALING
    assert "1 of 2 parameter servers run" in world.job.status.reason
    world.settle()
    assert world.job.status.phase is Phase.RUNNING


@pytest.mark.parametrize("servers", [3, 1])
@pytest.mark.parametrize("cut", range(4))
def test_a_crash_at_any_write_loses_no_change_of_servers(servers: int, cut: int) -> None:
    world = running(pserver=RANGE, master={})
    world.allowance = allowed(2, servers=2)
    world.settle()
    world.allowance = allowed(2, servers=servers)
    world.step(cut=cut)
    world.control()
    if not cut:
        world.allowance = allowed(2, servers=servers)  # it was never decided
    world.settle()
    assert len(world.live(PSERVER)) == servers
    records = [(each.before, each.after) for each in world.job.memory.records if each.role is PSERVER]
    assert records == [(1, 2), (2, servers)], "and it is told once"


def test_servers_that_an_older_operator_made_stay_until_the_job_is_suspended() -> None:
    world = running(pserver=RANGE, master={})
    world.workloads["job-pserver"] = replace(world.workloads["job-pserver"], form="old")
    world.allowance = allowed(2, servers=3)
    world.settle()
    assert len(world.live(PSERVER)) == 1
    assert "suspend the job and resume it" in world.job.status.conditions["ServersFixed"].message
    world.allowance = allowed(0)
    world.settle()
    world.allowance = allowed(2, servers=3)
    world.settle()
    assert len(world.live(PSERVER)) == 3


def test_a_master_waits_for_no_servers_that_an_older_operator_made() -> None:
    world = running(pserver=RANGE, master={})
    for name in ("job-pserver", "job-master"):
        form = world.workloads[name].form.replace(".agent", "")
        world.workloads[name] = replace(world.workloads[name], form=form)
    world.job = replace(world.job, spec=a_job(trainer=elastic(1, 6), pserver=RANGE, master={}).spec, generation=2)
    world.allowance = allowed(6, servers=3)
    assert [each.name for each in world.step().delete] == ["job-master"], "it has to learn new bounds"
    (master,) = world.step().create
    assert not told_of_servers(master)
    world.settle()
    world.allowance = allowed(0)
    world.settle()
    world.allowance = allowed(6, servers=3)
    made = {each["metadata"]["name"]: each for _ in range(3) for each in world.step().create}
    assert told_of_servers(made["job-master"]), "those that come with it join"


def told_of_servers(master: dict[str, Any]) -> bool:
    (container,) = master["spec"]["template"]["spec"]["containers"]
    return "SHOAL_MIN_SERVERS" in [each["name"] for each in container["env"]]


def test_no_room_is_kept_for_servers_beside_those_that_an_older_operator_made() -> None:
    def beside(world: World) -> list[int]:
        facts = training_facts(world.job, shape, SETTINGS)
        assert facts is not None
        assert facts.servers is not None
        return [facts.servers.beside(trainers) for trainers in (1, 4)]

    world = running(pserver=RANGE, master={})
    assert beside(world) == [1, 3]
    world.workloads["job-pserver"] = replace(world.workloads["job-pserver"], form="old")
    world.settle()
    assert beside(world) == [1, 1]
    world.allowance = allowed(0)
    world.settle()
    assert beside(world) == [1, 3], "they are gone"


def test_the_master_of_a_job_that_is_put_back_stays_until_its_servers_are_gone() -> None:
    world = running(pserver=RANGE, master={"etcd-storage": "1Gi"})
    world.allowance = allowed(0)
    for _ in range(3):
        world.step()
        world.control()
    assert all(pod.deleting for pod in world.pods.values() if pod.role is PSERVER)
    assert [len(world.live(role)) for role in (MASTER, ETCD)] == [1, 1], "it lets them go, and writes that down"
    world.settle()
    assert world.pods == {}


def test_a_server_whose_host_is_lost_keeps_nobody_waiting_for_ever() -> None:
    world = running(pserver=RANGE, master={"etcd-storage": "1Gi"})
    world.allowance = allowed(0)
    for _ in range(3):
        world.step()
        world.control()
    (server,) = (pod for pod in world.pods.values() if pod.role is PSERVER)
    world.vanish()
    world.pods[server.name] = replace(server, ends=at(1800))
    for seconds, there in ((0, 1), (1830, 1), (1860, 0)):
        world.now = at(seconds)
        plan = world.step()
        world.control()
        world.pods = {name: pod for name, pod in world.pods.items() if not pod.deleting or name == server.name}
        assert [len(world.live(role)) for role in (MASTER, ETCD)] == [there, there]
        assert plan.next_look == (at(1860) if there else None)


def test_servers_with_less_time_to_leave_than_they_may_need_are_told_of() -> None:
    hasty = running(pserver={**RANGE, "grace_period_seconds": 30}, master={})
    assert said(hasty, "ServersFixed") == ("False", "TrainersFollow")
    assert "grace_period_seconds is 30" in hasty.job.status.conditions["ServersFixed"].message
    for pserver in (RANGE, {**RANGE, "grace_period_seconds": 1800}):
        world = running(pserver=pserver, master={}, grace_period_seconds=30)
        assert world.job.status.conditions["ServersFixed"].message == ""


def test_servers_that_a_job_has_and_trainers_cannot_follow_are_not_taken_from_it() -> None:
    pserver = {"min-instance": 1, "max-instance": 4, "entrypoint": "serve"}
    job = a_job(trainer=elastic(1, 8), pserver=pserver, master={})
    there = {TRAINER: 8, PSERVER: 4, MASTER: 1, ETCD: 1}
    workloads = tuple(a_workload(job, role, count) for role, count in there.items())
    pods = (*(a_pod(n) for n in range(8)), *(a_pod(n, PSERVER) for n in range(4)))
    plan = plan_for(job, workloads=workloads, pods=pods, allowance=allowed(2, servers=1))
    assert len(plan.evict) == 6
    assert plan.resize == ()
    back = plan_for(job, workloads=workloads, pods=pods, allowance=allowed(0))
    assert ("job-pserver", 0) in [(each.name, each.count) for each in back.resize]


def test_the_last_record_of_trainers_is_kept_however_often_servers_change() -> None:
    world = running(pserver=RANGE, master={})
    for number in range(12):
        world.allowance = allowed(2, servers=2 + number % 2)
        world.settle()
    records = world.job.memory.records
    assert (len(records), records[0].role, records[0].after) == (10, TRAINER, 2)


def test_who_was_named_goes_also_after_a_crash() -> None:
    world = running()
    world.allowance = allowed(4)
    world.settle()
    oldest = world.running()[0]
    world.allowance = allowed(3, victims=("long-gone", oldest))
    world.step(cut=1)
    assert (world.evicted, world.job.memory.victims) == ([], (oldest,))
    facts = training_facts(world.job, shape, SETTINGS)
    assert facts is not None
    assert facts.victims == (oldest,)
    world.settle()  # without a word of the scheduler, which knows nothing yet
    assert world.evicted == [oldest]
    world.allowance = allowed(3, victims=facts.victims)
    world.settle()
    assert (len(world.running()), world.job.memory.victims) == (3, ())


def test_no_more_victims_are_recorded_than_a_status_holds() -> None:
    job = a_job(trainer=elastic(1, 900))
    pods = tuple(a_pod(n) for n in range(900))
    named = allowed(1, victims=tuple(pod.name for pod in pods[:800]))
    plan = plan_for(job, workloads=(a_workload(job, TRAINER, 900),), pods=pods, allowance=named)
    assert len(plan.evict) == 899
    assert plan.status.memory.victims == named.victims[:MAX_ENTRIES]


def test_put_back_by_the_scheduler_it_keeps_the_state_of_its_master() -> None:
    world = running(master={})
    etcd = world.live(ETCD)
    world.allowance = allowed(0, code="OnlineService")
    world.settle()
    assert (world.live(), world.live(MASTER), world.live(ETCD)) == ([], [], etcd)
    assert (world.job.status.phase, said(world, "StateNotKept")[0]) == (Phase.PENDING, "False")
    world.allowance = allowed(2)
    world.settle()
    assert (world.job.status.phase, world.live(ETCD)) == (Phase.RUNNING, etcd)


def test_state_on_a_volume_needs_no_pod_while_it_waits() -> None:
    world = running(master={"etcd-storage": "1Gi"})
    world.allowance = allowed(0, code="OnlineService")
    world.settle()
    assert world.pods == {}


@pytest.mark.parametrize(("master", "lost"), [({}, "True"), ({"etcd-storage": "1Gi"}, "False")])
def test_state_that_a_suspension_loses_is_said(master: dict[str, str], lost: str) -> None:
    world = running(master=master)
    assert said(world, "StateNotKept")[0] == "False"
    spec = a_job(trainer=elastic(), master=master, suspend=True).spec
    world.job = replace(world.job, spec=spec)
    world.settle()
    assert (world.pods, said(world, "StateNotKept")[0]) == ({}, lost)


def test_that_parameter_servers_forget_is_said_before_and_after() -> None:
    world = running(pserver={})
    before = world.job.status.conditions["StateNotKept"]
    assert (before.status, before.reason) == ("False", "WhileItRuns")
    assert "when it is put back or suspended they end" in before.message
    world.allowance = allowed(0, code="OnlineService")
    world.settle()
    assert world.live(PSERVER) == []
    assert said(world, "StateNotKept") == ("True", "ServersEnded")
    world.allowance = allowed(2)
    world.settle()
    assert said(world, "StateNotKept") == ("False", "WhileItRuns")


@pytest.mark.parametrize(("more", "lost"), [({}, "True"), ({"checkpoint": {"path": "/kept"}}, "False")])
def test_a_job_put_back_says_when_what_its_servers_held_is_lost(more: dict[str, object], lost: str) -> None:
    world = running(pserver={}, master={}, **more)
    assert said(world, "StateNotKept") == ("False", "AsAsked" if more else "WhileItRuns")
    world.allowance = allowed(0)
    world.settle()
    assert said(world, "StateNotKept")[0] == lost


def test_what_trainers_are_found_by_is_made_again_with_them() -> None:
    world = running(pserver={}, master={})
    fixed = set(world.fixed)
    assert "job-pserver" in fixed
    world.allowance = allowed(0)
    world.settle()
    world.fixed.clear()  # somebody deletes them
    world.allowance = allowed(2)
    world.settle()
    assert world.fixed == fixed


def test_a_new_process_makes_what_is_missing_once() -> None:
    world = running(pserver={})
    fixed = set(world.fixed)
    world.fixed.clear()
    world.prepared = None
    assert world.step().ensure
    assert world.fixed == fixed
    assert not world.step().ensure


def test_new_bounds_reach_the_master() -> None:
    world = running(master={})
    old = world.workloads["job-master"].uid
    world.job = replace(world.job, spec=a_job(trainer=elastic(1, 6), master={}).spec, generation=2)
    world.allowance = allowed(6)
    world.settle()
    assert world.workloads["job-master"].uid != old
    assert len(world.running()) == 6


def test_a_new_operator_leaves_what_runs_alone() -> None:
    world = running(master={}, pserver={})
    before = (dict(world.workloads), world.live(), world.live(MASTER))
    world.settings = replace(SETTINGS, image="shoal:next", etcd_image="etcd:next")
    world.settle()
    assert (world.workloads, world.live(), world.live(MASTER)) == before


def test_no_image_is_said() -> None:
    job = a_job(image=None)
    plan = plan_for(job, allowance=allowed(1))
    assert plan.create == ()
    assert plan.status.conditions["ImageMissing"].status == "True"
    assert plan_for(job, allowance=allowed(1), settings=replace(SETTINGS, training_image="a")).create


def test_what_cannot_be_read_is_said_and_left_alone() -> None:
    job = replace(a_job(), spec=None, invalid="spec.trainer: it is missing")
    plan = plan_for(job, allowance=allowed(3))
    assert (plan.create, plan.resize) == ((), ())
    assert plan.status.conditions["Degraded"].reason == "InvalidSpec"
    assert [each.reason for each in plan.notices] == ["InvalidSpec"]


def test_a_job_that_is_being_deleted_is_left_to_kubernetes() -> None:
    world = running()
    world.job = replace(world.job, deleting=True)
    plan = world.step()
    assert (plan.resize, plan.delete, plan.status) == ((), (), world.job.status)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (
            a_pod(9, phase=PodPhase.PENDING, host="", trouble=Trouble(reason="Unschedulable", message="0/3")),
            "Unschedulable",
        ),
        (a_pod(9, phase=PodPhase.PENDING, trouble=Trouble(reason="ImagePullFailed", message="no")), "ImagePullFailed"),
    ],
)
def test_why_a_pod_does_not_run_is_said(pod: object, reason: str) -> None:
    job = a_job()
    plan = plan_for(job, allowance=allowed(1), workloads=(a_workload(job, TRAINER, 1),), pods=(pod,))
    assert plan.status.phase is Phase.CREATING
    assert plan.status.conditions["Degraded"].reason == reason
    assert plan.status.conditions["Ready"].reason == reason


def test_a_smaller_most_counts_before_the_scheduler_has_heard_of_it() -> None:
    world = running()
    world.allowance = allowed(4)
    world.settle()
    world.job = replace(world.job, spec=a_job(trainer=elastic(1, 3)).spec)
    world.settle()
    assert len(world.running()) == 3


def test_only_the_last_ten_resizes_are_kept() -> None:
    world = running()
    for number in range(14):
        world.allowance = allowed(1 + number % 2)
        world.settle()
    assert len(world.job.memory.records) == 10


def test_where_nobody_arbitrates_a_job_gets_what_it_asks_for() -> None:
    job = a_job(trainer=elastic(1, 4), pserver={"min-instance": 2, "max-instance": 3})
    found = everything(job)
    assert found is not None
    assert (found.standing.target, found.servers) == (4, 2)
    ours = everything(a_job(trainer=elastic(1, 4), pserver={"min-instance": 2, "max-instance": 3}, master={}))
    assert ours is not None
    assert ours.servers == 3


@pytest.mark.parametrize(("ours", "beside"), [(True, [2, 2, 3, 4]), (False, [2, 2, 2, 2])])
def test_the_scheduler_is_told_how_many_servers_go_with_the_trainers(ours: bool, beside: list[int]) -> None:
    pserver = {"min-instance": 2, "max-instance": 4}
    job = a_job(trainer=elastic(1, 4), pserver=pserver, **({"master": {}} if ours else {}))
    facts = training_facts(job, shape, SETTINGS)
    assert facts is not None
    assert facts.servers is not None
    assert [facts.servers.beside(trainers) for trainers in range(1, 5)] == beside
