"""The operator on an API server: what people see happen, and what it costs."""

import asyncio
import copy
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.operator.builders import NOW, SETTINGS, TEMPLATE, a_role
from tests.operator.stage import Stage, a_stage, quick

from shoal.core.errors import Denied, Outdated
from shoal.core.pods import Trouble
from shoal.operator.reconcile import Part
from shoal.operator.snapshot import Key
from shoal.platforms.kubernetes.client import Merge
from shoal.platforms.kubernetes.errors import NotFound, Unavailable
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS
from shoal.platforms.kubernetes.objects import PODS, SECRETS, SERVICE_ACCOUNTS, SERVICES


async def test_a_job_gets_its_fixed_objects_its_master_and_its_members() -> None:
    async with a_stage() as stage, stage.operator():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=2)})
        await stage.until(lambda: stage.condition("Ready") == ("True", "AllMembersUp"), "ready")
        assert sorted(stage.pods()) == ["mnist-master-1", "mnist-worker-0", "mnist-worker-1"]
        names = {obj["metadata"]["name"] for obj in stage.server.objects(SECRETS)}
        assert names == {"mnist-token", "mnist-state"}
        accounts = {obj["metadata"]["name"] for obj in stage.server.objects(SERVICE_ACCOUNTS)}
        assert accounts == {"mnist-master", "mnist-agent"}
        assert stage.server.objects(SERVICES)[0]["spec"]["selector"]["elastic.iml.github.io/term"] == "1"
        owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in stage.pods().values()}
        assert owners == {stage.job()["metadata"]["uid"]}


async def test_secrets_are_never_listed_nor_watched() -> None:
    async with a_stage() as stage, stage.operator():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        assert not {("list", "secrets"), ("watch", "secrets")} & set(stage.server.calls)


async def test_a_settled_job_costs_no_call_however_often_it_is_looked_at() -> None:
    async with a_stage() as stage, stage.operator() as operator:
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=3)})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await _quiet(stage, operator)
        before = len(stage.server.calls)
        for _ in range(5):
            operator.wake_all()
            await asyncio.sleep(0.02)
        calls = stage.server.calls[before:]
        assert [call for call in calls if call[0] not in ("watch", "list")] == []


async def _quiet(stage: Stage, operator: Any) -> None:
    """Until nothing is written any more."""
    writes = -1
    while writes != operator.writes or operator.queue.backlog.ready:
        writes = operator.writes
        await asyncio.sleep(0.1)


async def test_scaling_through_the_scale_subresource() -> None:
    async with a_stage() as stage, stage.operator():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
        await stage.until(lambda: len(stage.running()) == 1, "one worker")
        await stage.client.set_scale(ELASTIC_JOBS, "mnist", 3, namespace="default")
        await stage.until(lambda: len(stage.running()) == 3, "three workers")
        await stage.client.set_scale(ELASTIC_JOBS, "mnist", 2, namespace="default")
        await stage.until(lambda: stage.running() == ["mnist-worker-0", "mnist-worker-1"], "two workers")
        assert "Resized" in stage.events()


async def test_a_scale_plan_waits_for_its_job_and_is_carried_out_when_it_comes() -> None:
    async with a_stage() as stage, stage.operator():
        plan = {"ownerJob": "mnist", "replicaResourceSpecs": {"worker": {"replicas": 2}}}
        await stage.apply(SCALE_PLANS, "grow", plan, labels={"scale-type": "manual"})
        await stage.until(lambda: stage.condition("Accepted", stage.plan("grow"))[1] == "JobNotFound", "waits")
        assert "no ElasticJob mnist in namespace default" in stage.message("Accepted", stage.plan("grow"))
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role()})
        await stage.until(lambda: stage.condition("Completed", stage.plan("grow"))[0] == "True", "completed")
        assert len(stage.running()) == 2


async def test_a_plan_that_names_no_job_is_told_so_and_is_carried_out_once_it_names_one() -> None:
    async with a_stage() as stage:
        plan = {"replicaResourceSpecs": {"worker": {"replicas": 2}}}
        await stage.apply(SCALE_PLANS, "before", plan)  # while no operator runs
        async with stage.operator() as operator:
            await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role()})
            await stage.apply(SCALE_PLANS, "grow", plan)
            await stage.apply(JOB_RESOURCES, "odd", {"worker": {"replicas": 2}})  # as an older definition let it pass
            for name in ("before", "grow"):
                await stage.until(lambda name=name: _accepted(stage, name) == ("False", "NoJobNamed"), name)
            await stage.until(lambda: _accepted(stage, "odd") == ("False", "InvalidPlan"), "odd")
            message = stage.message("Accepted", stage.plan("grow"))
            assert "neither `spec.ownerJob` nor the label `elasticjob-name`" in message
            assert "say `spec.ownerJob`" in message
            assert "spec.selector: it is missing" in stage.message("Accepted", stage.plan("odd"))
            await _quiet(stage, operator)
            assert not stage.running()
            await stage.apply(SCALE_PLANS, "grow", {"ownerJob": "mnist", **plan})
            await stage.until(lambda: stage.condition("Completed", stage.plan("grow"))[0] == "True", "completed")
            assert len(stage.running()) == 2
            assert _accepted(stage, "before") == ("False", "NoJobNamed")


def _accepted(stage: Stage, plan: str) -> tuple[str, str]:
    return stage.condition("Accepted", stage.plan(plan))


async def test_the_seeds_job_resource_replaces_first_and_removes_after() -> None:
    async with a_stage() as stage, stage.operator():
        await stage.apply(
            ELASTIC_JOBS,
            "deepctr",
            {"distributionStrategy": "parameter_server", "parameterServer": a_role(), "worker": a_role()},
        )
        resource = {"cpu": 4, "memory": 4096, "disk": 8192, "gpu": 1}
        spec = {
            "selector": {"name": "deepctr"},
            "parameter_server": {"replicas": 4, "resource": resource},
            "worker": {"replicas": 4, "resource": resource},
            "evaluator": {"replicas": 1, "resource": resource},
            "resource_updation": [
                {"name": "deepctr-ps-0", "resource": {"cpu": 8, "memory": 8192}},
                {"name": "deepctr-ps-1", "resource": {"cpu": 16, "memory": 8192}},
            ],
        }
        await stage.apply(JOB_RESOURCES, "resource", spec)
        await stage.until(lambda: stage.condition("Completed", stage.plan("resource"))[0] == "True", "completed")
        assert stage.running("ps") == [f"deepctr-ps-{number}" for number in (2, 3, 4, 5)]
        assert len(stage.running()) == 4
        assert stage.running("evaluator") == ["deepctr-evaluator-0"]
        container = stage.pods()["deepctr-ps-4"]["spec"]["containers"][0]
        assert container["resources"]["requests"] == {
            "cpu": "8",
            "memory": "8192Mi",
            "ephemeral-storage": "8192Mi",
            "nvidia.com/gpu": "1",
        }


async def test_suspend_takes_everything_away_and_resume_brings_it_back() -> None:
    async with a_stage() as stage, stage.operator():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=2)})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await stage.client.patch(ELASTIC_JOBS, "mnist", Merge({"spec": {"suspend": True}}), namespace="default")
        await stage.until(lambda: not stage.pods(), "no Pods")
        await stage.client.patch(ELASTIC_JOBS, "mnist", Merge({"spec": {"suspend": False}}), namespace="default")
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready again")
        assert sorted(stage.pods()) == ["mnist-master-2", "mnist-worker-2", "mnist-worker-3"]


async def test_a_job_that_succeeded_leaves_no_pod_running() -> None:
    async with a_stage(quick(ending=timedelta(seconds=0.2))) as stage, stage.operator():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=2)})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await stage.report("running")
        await stage.end("mnist-worker-0", 0)
        await stage.report("succeeded", reason="all data was trained")
        await stage.until(lambda: stage.condition("Succeeded") == ("True", "Completed"), "succeeded")
        await stage.until(lambda: sorted(stage.pods()) == ["mnist-worker-0"], "what ended stays")


async def test_a_job_is_deleted_after_its_ttl() -> None:
    async with a_stage(quick(ending=timedelta(0))) as stage, stage.operator():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1), "ttlSecondsAfterFinished": 0})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await stage.report("succeeded")
        await stage.until(lambda: not stage.server.objects(ELASTIC_JOBS), "the job is gone")
        await stage.until(lambda: not stage.pods(), "its Pods are gone")


async def test_a_foreign_pod_of_a_members_name_is_left_alone_and_said() -> None:
    async with a_stage() as stage, stage.operator():
        foreign = {"metadata": {"name": "mnist-worker-0", "namespace": "default"}, "spec": TEMPLATE["spec"]}
        await stage.client.create(PODS, foreign)
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
        await stage.until(lambda: stage.condition("Degraded") == ("True", "NameConflict"), "the conflict is said")
        assert "default/mnist-worker-0" in stage.message("Degraded")
        assert "ownerReferences" not in stage.pods()["mnist-worker-0"]["metadata"]
        await stage.client.delete(PODS, "mnist-worker-0", namespace="default", grace_seconds=0)
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "it heals")
        assert stage.condition("Degraded")[0] == "False"


async def test_a_spec_that_breaks_our_rules_is_said_and_nothing_crashes() -> None:
    async with a_stage() as stage, stage.operator():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": {"template": {"spec": {"containers": []}}}})
        await stage.apply(ELASTIC_JOBS, "other", {"worker": a_role(replicas=1)})
        await stage.until(lambda: stage.condition("Degraded") == ("True", "InvalidSpec"), "said")
        await stage.until(lambda: stage.condition("Ready", stage.job("other"))[0] == "True", "others go on")
        assert not [name for name in stage.pods() if name.startswith("mnist")]


async def test_a_lost_member_is_replaced_when_the_masters_plan_says_so() -> None:
    async with a_stage() as stage, stage.operator():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=2)})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await stage.report("running")
        await stage.client.delete(PODS, "mnist-worker-1", namespace="default", grace_seconds=0)
        auto = lambda: stage.plan("mnist-auto").get("status", {}).get("pods", [])  # noqa: E731
        await stage.until(lambda: any(pod["phase"] == "Deleted" for pod in auto()), "the master is told")
        order = {"name": "mnist-worker-2", "type": "worker", "id": 2, "replaces": "mnist-worker-1"}
        order |= {"resource": {"memory": "2Gi"}}
        await stage.client.patch(
            SCALE_PLANS, "mnist-auto", Merge({"spec": {"createPods": [order]}}), namespace="default"
        )
        await stage.until(lambda: stage.running() == ["mnist-worker-0", "mnist-worker-2"], "replaced")
        requests = stage.pods()["mnist-worker-2"]["spec"]["containers"][0]["resources"]["requests"]
        assert requests == {"memory": "2048Mi"}
        assert stage.pods()["mnist-worker-2"]["metadata"]["labels"]["elastic.iml.github.io/rank-hint"] == "1"


async def test_the_masters_report_survives_the_operators_writes() -> None:
    async with a_stage() as stage, stage.operator():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
        await stage.report("running")
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await stage.client.set_scale(ELASTIC_JOBS, "mnist", 2, namespace="default")
        await stage.until(lambda: len(stage.running()) == 2, "two workers")
        assert stage.job()["status"]["training"]["phase"] == "running"


@pytest.mark.parametrize("has_job", [True, False])
async def test_a_plan_that_is_gone_is_not_remembered(has_job: bool) -> None:
    async with a_stage() as stage, stage.operator() as operator:
        known = operator.reconciler._said  # type: ignore[attr-defined]
        paced = operator.reconciler._pace._due  # type: ignore[attr-defined]
        if has_job:
            await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
        await stage.apply(
            SCALE_PLANS, "one", {"ownerJob": "mnist", "replicaResourceSpecs": {"worker": {"replicas": 1}}}
        )
        uid = stage.plan("one")["metadata"]["uid"]
        await stage.until(lambda: uid in known and uid in paced, "it is known")
        await stage.client.delete(SCALE_PLANS, "one", namespace="default")
        await stage.until(lambda: uid not in known and uid not in paced, "it is forgotten")


async def test_each_try_to_prepare_a_job_gets_further_than_the_one_before() -> None:
    """A server that refuses every other write of fixed objects: what is there is not asked for again."""
    async with a_stage() as stage:
        count = 0

        async def flaky(call: Any) -> None:
            nonlocal count
            count += 1
            if count % 2:
                raise Unavailable("not now")
            await call()

        async with stage.operator(ensure=flaky):
            await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
            await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        assert count <= 20


async def test_a_binding_that_is_refused_is_tried_again_ever_later_though_all_before_it_is_done() -> None:
    now = NOW

    async def no_bindings(call: Any) -> None:
        (manifest,) = call.args
        if manifest["kind"] == "RoleBinding":
            raise Denied("Forbidden", "no bindings here")
        await call()

    async with a_stage() as stage, stage.operator(ensure=no_bindings, clock=lambda: now) as operator:
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
        await stage.until(lambda: stage.condition("Degraded")[1] == "Forbidden", "refused")
        uid, holding = stage.job()["metadata"]["uid"], operator.reconciler.holding  # type: ignore[attr-defined]
        waits = []
        for _ in range(3):
            waits += holding.retries(uid)
            now += waits[-1]
            while not all(holding.retries(uid)):  # a look at an outdated cache tries nothing
                await operator.reconciler.reconcile(Key("default", "mnist"))  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
        assert waits[0] < waits[1] < waits[2]


NO_QUOTA = Trouble(reason="QuotaExceeded", message="no more Pods here")


async def test_members_that_are_refused_hold_up_neither_the_next_master_nor_deletions() -> None:
    async def scarce(create: Any, manifest: Any) -> str:
        if manifest["metadata"]["name"].startswith("mnist-worker-") and manifest["metadata"]["name"] > "mnist-worker-1":
            raise Denied("QuotaExceeded", "no more Pods here")
        made: str = await create(manifest)
        return made

    async with a_stage() as stage, stage.operator(create_pod=scarce) as operator:
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=2)})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "two workers")
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=6)})
        await stage.until(lambda: stage.condition("Degraded")[1] == "QuotaExceeded", "refused")
        (job,) = stage.server.objects(ELASTIC_JOBS)
        for _ in range(8):  # as if it had been refused often: the next try is two minutes off
            operator.reconciler.holding.refused(job["metadata"]["uid"], Part.MEMBERS, [NO_QUOTA])
        await stage.client.delete(PODS, "mnist-master-1", namespace="default", grace_seconds=0)
        await stage.until(lambda: "mnist-master-2" in stage.pods(), "the next master")
        await stage.client.patch(ELASTIC_JOBS, "mnist", Merge({"spec": {"suspend": True}}), namespace="default")
        await stage.until(lambda: not stage.pods(), "no Pods")


async def test_a_new_operator_makes_fixed_objects_that_somebody_deleted() -> None:
    async with a_stage() as stage:
        async with stage.operator():
            await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
            await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await stage.client.delete(SERVICES, "mnist-master", namespace="default")
        async with stage.operator():
            await stage.until(lambda: bool(stage.server.objects(SERVICES)), "it is there again")


async def test_members_that_ended_are_not_asked_for_again() -> None:
    async with a_stage() as stage, stage.operator() as operator:
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=2)})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await stage.report("running")
        await stage.client.delete(PODS, "mnist-worker-1", namespace="default", grace_seconds=0)
        await stage.until(lambda: stage.condition("Degraded")[1] == "MemberFailed", "it is missed")
        await _quiet(stage, operator)
        before = len(stage.server.calls)
        for _ in range(3):
            operator.wake_all()
            await asyncio.sleep(0.05)
        assert ("get", "pods") not in stage.server.calls[before:]


async def test_a_plan_whose_status_is_refused_holds_up_nothing() -> None:
    async def picky(write: Any, there: Any, status: Any) -> None:
        if there["metadata"]["name"] == "grow":
            raise Denied("InvalidObject", "not like that")
        await write(there, status)

    async with a_stage() as stage, stage.operator(write_status=picky):
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
        plan = {"ownerJob": "mnist", "replicaResourceSpecs": {"worker": {"replicas": 3}}}
        await stage.apply(SCALE_PLANS, "grow", plan)
        await stage.until(lambda: len(stage.running()) == 3, "it is carried out all the same")


async def test_nothing_is_made_for_a_job_that_went_while_it_was_decided_on() -> None:
    async def too_late(write: Any, there: Any, status: Any) -> None:
        if there["kind"] == "ElasticJob":
            with suppress(NotFound):
                await stage.client.delete(ELASTIC_JOBS, "mnist", namespace="default")
        await write(there, status)

    async with a_stage() as stage, stage.operator(write_status=too_late):
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
        await stage.until(lambda: not stage.server.objects(ELASTIC_JOBS), "it is gone")
        await asyncio.sleep(0.3)
        assert not [call for call in stage.server.calls if call == ("create", "pods")]


async def test_a_plans_resource_reaches_pods_that_run() -> None:
    async with a_stage() as stage, stage.operator():
        role = a_role(replicas=1, resource={"cpu": 1, "memory": "1Gi"})
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": role})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        uid = stage.pods()["mnist-worker-0"]["metadata"]["uid"]
        plan = {"ownerJob": "mnist", "replicaResourceSpecs": {"worker": {"resource": {"memory": "2Gi"}}}}
        await stage.apply(SCALE_PLANS, "more", plan)

        def has() -> dict[str, Any]:
            found: dict[str, Any] = stage.pods()["mnist-worker-0"]["spec"]["containers"][0]["resources"]
            return found

        await stage.until(lambda: has()["requests"]["memory"] == "2048Mi", "resized")
        assert has() == {"requests": {"cpu": "1", "memory": "2048Mi"}, "limits": {"memory": "2048Mi"}}
        assert stage.pods()["mnist-worker-0"]["metadata"]["uid"] == uid


async def test_a_pod_that_grew_in_place_shrinks_to_what_its_template_says() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["resources"] = {"limits": {"memory": "1Gi"}}
    async with a_stage() as stage, stage.operator():
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": {"template": template, "replicas": 1}})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        for asked, given in (("2Gi", "2048Mi"), ("1Gi", "1Gi")):
            plan = {"ownerJob": "mnist", "replicaResourceSpecs": {"worker": {"resource": {"memory": asked}}}}
            await stage.apply(SCALE_PLANS, "sized", plan)
            wanted = {"requests": {"memory": given}, "limits": {"memory": given}}
            await stage.until(
                lambda wanted=wanted: stage.pods()["mnist-worker-0"]["spec"]["containers"][0]["resources"] == wanted,
                f"it has {given}",
            )


@pytest.mark.parametrize("fails", [Outdated("it has changed"), Unavailable("a reset")])
async def test_a_resize_that_fails_once_reaches_every_pod_all_the_same(fails: Exception) -> None:
    failures = [fails]

    async def once(resize: Any, *what: Any) -> None:
        if failures:
            raise failures.pop()
        await resize(*what)

    async with a_stage() as stage, stage.operator(resize_pod=once):
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=3, resource={"memory": "1Gi"})})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await stage.apply(SCALE_PLANS, "more", _sized("2Gi"))
        await stage.until(lambda: _memory(stage) == ["2048Mi"] * 3, "all have it")
        await stage.until(lambda: stage.condition("Completed", stage.plan("more"))[0] == "True", "and it is said")
        assert not failures


async def test_pods_are_resized_several_at_a_time() -> None:
    at_once, most = 0, 0
    together = asyncio.Event()

    async def slow(resize: Any, *what: Any) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 3:
            together.set()
        await together.wait()
        await resize(*what)
        at_once -= 1

    async with a_stage() as stage, stage.operator(resize_pod=slow):
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=3, resource={"memory": "1Gi"})})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await stage.apply(SCALE_PLANS, "more", _sized("2Gi"))
        await stage.until(lambda: _memory(stage) == ["2048Mi"] * 3, "all have it")
        assert most == 3


async def test_a_resize_that_a_quota_refuses_is_tried_again_and_no_plan_is_done_before_it_is() -> None:
    is_full = True

    async def refuses(resize: Any, namespace: str, name: str, *what: Any) -> None:
        if is_full and name != "mnist-worker-1":
            raise Denied("QuotaExceeded", "exceeded quota: small")
        await resize(namespace, name, *what)

    now = datetime.now(UTC)
    clock = lambda: now  # noqa: E731
    async with a_stage() as stage, stage.operator(resize_pod=refuses, clock=clock) as operator:
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=3, resource={"memory": "1Gi"})})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await stage.apply(SCALE_PLANS, "more", _sized("2Gi"))
        refused = ("False", "ResizeRefused")
        await stage.until(lambda: stage.condition("Completed", stage.plan("more")) == refused, "it is said")
        said = stage.message("Completed", stage.plan("more"))
        assert said.startswith("mnist-worker-0, and 1 more keeps what it has: exceeded quota: small; ")
        assert "`migratePods`" in said
        assert "finishTime" not in stage.plan("more")["status"]
        assert stage.condition("Degraded")[0] == "False"
        assert _memory(stage) == ["1024Mi", "2048Mi", "1024Mi"]
        is_full = False
        operator.wake_all()
        await _quiet(stage, operator)
        assert _memory(stage) == ["1024Mi", "2048Mi", "1024Mi"]  # not before its time, however often it is woken
        now += timedelta(seconds=3)
        operator.wake_all()
        await stage.until(lambda: _memory(stage) == ["2048Mi"] * 3, "all have it")
        await stage.until(lambda: stage.condition("Completed", stage.plan("more"))[0] == "True", "and it is said")
        assert "finishTime" in stage.plan("more")["status"]


async def test_another_ask_than_the_one_that_was_refused_is_tried_at_once() -> None:
    async def refuses(resize: Any, *what: Any) -> None:
        if what[-1]["requests"]["memory"] == "4096Mi":
            raise Denied("QuotaExceeded", "exceeded quota: small")
        await resize(*what)

    now = datetime.now(UTC)
    async with a_stage() as stage, stage.operator(resize_pod=refuses, clock=lambda: now):
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1, resource={"memory": "1Gi"})})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        await stage.apply(SCALE_PLANS, "more", _sized("4Gi"))
        refused = ("False", "ResizeRefused")
        await stage.until(lambda: stage.condition("Completed", stage.plan("more")) == refused, "it is said")
        await stage.apply(SCALE_PLANS, "more", _sized("2Gi"))
        await stage.until(lambda: stage.condition("Completed", stage.plan("more"))[0] == "True", "it is done")
        assert _memory(stage) == ["2048Mi"]


def _sized(memory: str) -> dict[str, Any]:
    return {"ownerJob": "mnist", "replicaResourceSpecs": {"worker": {"resource": {"memory": memory}}}}


def _memory(stage: Stage) -> list[str]:
    """What the workers have, by their names."""
    pods = stage.pods()
    return [pods[name]["spec"]["containers"][0]["resources"]["requests"]["memory"] for name in stage.running()]


async def test_a_resize_that_is_refused_is_said_once_and_the_pod_stays() -> None:
    tries = 0

    async def refuses(_: Any, *what: Any) -> None:
        nonlocal tries
        tries += 1
        raise Denied("InvalidObject", "not with this kind of Pod")

    async with a_stage() as stage, stage.operator(resize_pod=refuses) as operator:
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
        await stage.until(lambda: stage.condition("Ready")[0] == "True", "ready")
        plan = {"ownerJob": "mnist", "replicaResourceSpecs": {"worker": {"resource": {"memory": "2Gi"}}}}
        await stage.apply(SCALE_PLANS, "more", plan)
        await stage.until(lambda: "ResizeRefused" in stage.events(), "it is said")
        for _ in range(3):
            operator.wake_all()
            await asyncio.sleep(0.05)
        assert tries == 1
        assert stage.running() == ["mnist-worker-0"]


async def test_who_leads_again_counts_no_time_in_which_nobody_did() -> None:
    now = datetime.now(UTC)
    pending = SETTINGS.times.pending
    async with a_stage() as stage, stage.operator(clock=lambda: now) as operator:
        stage.runs = False
        await stage.apply(ELASTIC_JOBS, "mnist", {"worker": a_role(replicas=1)})
        await stage.until(lambda: "neededSince" in stage.job().get("status", {}).get("master", {}), "it is waited for")
        reconciler, key = operator.reconciler, Key("default", "mnist")  # type: ignore[attr-defined]
        now += 2 * pending
        reconciler.begin()
        await reconciler.reconcile(key)
        assert stage.condition("Succeeded")[0] == "Unknown"
        now += pending
        await reconciler.reconcile(key)
        assert stage.condition("Succeeded") == ("False", "MasterFailed")
