"""What users write, and what somebody may have scribbled into a status, never stops the operator."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.api.strategies import broken, job_resources, jobs, plans
from tests.operator.builders import NOW, SETTINGS, TEMPLATE, a_plan
from tests.operator.test_plan import a_world, rescale

from shoal.api.elasticjob import ElasticJobStatus, Role
from shoal.operator.plan import MANAGED_BY, plan_job
from shoal.operator.reading import Reader, read_plan
from shoal.operator.recall import job_status
from shoal.operator.snapshot import Key, PlanKind, Snapshot
from shoal.operator.verdicts import judge_orphan
from shoal.operator.writing import differs, write_job, write_plan

CREATED = "2026-01-01T00:00:00Z"
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def stored(written: dict[str, Any]) -> dict[str, Any]:
    """As the API server would hand it out."""
    meta = {"name": "job", "namespace": "default", "uid": "u", "generation": 1, "creationTimestamp": CREATED}
    return {**written, "metadata": {**meta, "resourceVersion": "1"}}


@SLOW
@given(jobs() | broken(), plans() | broken(), job_resources() | broken())
def test_whatever_is_written_there_is_a_plan_and_a_status(
    job: dict[str, Any], plan: dict[str, Any], resource: dict[str, Any]
) -> None:
    raw = stored({**job, "kind": "ElasticJob", "apiVersion": "elastic.iml.github.io/v1alpha1"})
    seen = Reader().job(raw)
    asks = (read_plan(stored(plan), "job"), read_plan(stored(resource), "job"))
    decided = plan_job(Snapshot(job=seen, plans=asks), SETTINGS, now=NOW)
    status = write_job(seen, decided.status)
    if seen.spec is not None and seen.spec.managed_by not in (None, MANAGED_BY):
        assert not decided.create
        return
    assert {each["type"] for each in status["conditions"]} >= {"Ready", "Succeeded"}
    assert seen.spec is not None or not decided.create
    for each in asks:
        if each.ask in decided.plan_statuses:
            assert write_plan(each, decided.plan_statuses[each.ask])["conditions"]
        assert write_plan(each, judge_orphan(each, Key("default", "job"), [], now=NOW))["conditions"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["members", "grant", "roles", "conditions", "moves", "master", "acceptedAt", "training", "term", "finishTime"]


@SLOW
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_a_scribbled_status_is_made_anew(status: dict[str, Any]) -> None:
    job = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "spec": {"worker": {"template": TEMPLATE, "replicas": 2}},
        "status": status,
    }
    seen = Reader().job(stored(job))
    assert plan_job(Snapshot(job=seen), SETTINGS, now=NOW).status.conditions


def test_a_status_is_read_as_it_was_written() -> None:
    world = a_world(3, answers=True)
    rescale(world, 2)
    world.step()
    written = write_job(world.job, world.job.status)
    assert job_status(msgspec.convert(written, ElasticJobStatus)) == world.job.status
    assert written["grant"]["counts"] == [{"role": "worker", "count": 2}]


def test_lists_that_are_maps_are_compared_without_their_order() -> None:
    world = a_world(3)
    written = write_job(world.job, world.job.status)
    there = {**written, "members": written["members"][::-1], "training": {"phase": "running"}}
    assert not differs(written, there, without="training")
    assert differs(written, {**there, "members": written["members"][1:]}, without="training")
    assert differs(written, None)


@pytest.mark.parametrize(
    ("labels", "owner", "says"),
    [
        ({"elasticjob-name": "other"}, "job", "label elasticjob-name says other"),
        ({"scale-type": "auto"}, "job", "leave the label out"),
    ],
    ids=["two-jobs-named", "not-the-masters-plan"],
)
def test_a_plan_that_contradicts_itself_is_refused(labels: dict[str, str], owner: str, says: str) -> None:
    raw = stored({"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ScalePlan", "spec": {"ownerJob": owner}})
    raw["metadata"] = {**raw["metadata"], "name": "p", "labels": labels}
    assert says in (read_plan(raw, "job").refused or "")


def test_what_a_job_resource_says() -> None:
    resource = {"cpu": 4, "memory": 4096, "disk": 8192, "gpu": 1}
    spec = {
        "selector": {"name": "job"},
        "parameter_server": {"replicas": 4, "resource": resource},
        "resource_updation": [{"name": "job-ps-0", "resource": {"cpu": 8, "memory": 8192}}],
    }
    plan = read_plan(stored({"apiVersion": "elastic.easydl.org/v1alpha1", "kind": "JobResource", "spec": spec}), "job")
    assert plan.kind is PlanKind.JOB_RESOURCE
    assert plan.roles[Role.PS].replicas == 4
    assert plan.roles[Role.PS].resource.memory == 4096
    assert plan.migrate[0].resource.cpu == 8
    assert plan.created_at == datetime(2026, 1, 1, tzinfo=UTC)


ODD = {
    "env-of-words": {"env": ["a"]},
    "env-as-map": {"env": {"a": 1}},
    "env-as-number": {"env": 5},
    "mounts-as-number": {"volumeMounts": 7},
    "mounts-of-words": {"volumeMounts": ["a"]},
    "beyond-floats": {"resources": {"limits": {"cpu": "1e400"}}},
}
ODD_PODS = {
    "volumes-as-number": {"volumes": 5},
    "init-as-number": {"initContainers": 3},
    "init-as-word": {"initContainers": "abc"},
    "selector-as-list": {"nodeSelector": ["a"]},
    "selector-as-word": {"nodeSelector": "abc"},
    "affinity-as-word": {"affinity": "x"},
    "terms-as-word": {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": "x"}}}
    },
}


def an_odd_job(container: dict[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    main = {**TEMPLATE["spec"]["containers"][0], **container}
    role = {"template": {"spec": {"containers": [main], **pod}}, "replicas": 1, "resource": {"gpuType": "x", "gpu": 1}}
    job = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "spec": {"worker": role}}
    return stored(job)


@pytest.mark.parametrize(
    ("container", "pod"),
    [*((each, {}) for each in ODD.values()), *(({}, each) for each in ODD_PODS.values())],
    ids=[*ODD, *ODD_PODS],
)
def test_an_odd_template_is_said_to_be_one(container: dict[str, Any], pod: dict[str, Any]) -> None:
    seen = Reader().job(an_odd_job(container, pod))
    decided = plan_job(Snapshot(job=seen), SETTINGS, now=NOW)
    assert decided.status.conditions["Degraded"].reason == "InvalidSpec"
    assert decided.status.conditions["Degraded"].message
    assert not decided.create


def test_a_template_that_an_older_definition_let_pass_is_said_too() -> None:
    seen = Reader().job(an_odd_job({}, {}))
    assert seen.spec is not None
    template = {"spec": {**TEMPLATE["spec"], "volumes": 5}}
    spec = replace(seen.spec, roles={Role.WORKER: replace(seen.spec.worker, template=template)})
    decided = plan_job(Snapshot(job=replace(seen, spec=spec)), SETTINGS, now=NOW)
    assert decided.status.conditions["Degraded"].reason == "InvalidSpec"
    assert "template of worker" in decided.status.conditions["Degraded"].message
    assert not decided.create


def test_a_plan_for_a_job_of_another_namespace_is_told_where_that_is() -> None:
    plan = a_plan("more", worker=2)
    said = judge_orphan(plan, Key("default", "mnist"), ["team"], now=NOW).conditions["Accepted"]
    assert said.reason == "JobNotFound"
    assert "there is one in team, but a plan is for jobs of its own namespace" in said.message
