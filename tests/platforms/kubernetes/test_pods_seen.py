"""What is seen of a Pod: one phase, one end, at most one trouble."""

from typing import Any

import msgspec
import pytest

from shoal.api.elasticjob import Role
from shoal.core.pods import PodPhase
from shoal.platforms.kubernetes.objects import Pod
from shoal.platforms.kubernetes.pods import pod_seen

GROUP = "elastic.iml.github.io"


def a_pod(status: dict[str, Any] | None = None, *, name: str = "j-worker-3", **labels: str) -> Pod:
    marks = {f"{GROUP}/role": "worker", f"{GROUP}/rank-hint": "1"} | {
        f"{GROUP}/{key}": value for key, value in labels.items()
    }
    container = {"name": "main", "image": "img:1", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    body = {
        "metadata": {"name": name, "uid": "u", "labels": marks},
        "spec": {"containers": [container], "initContainers": [{"name": "shoal-agent", "image": "shoal:1"}]},
        "status": status or {},
    }
    return msgspec.convert(body, Pod)


def terminated(code: int, reason: str = "Error", **more: Any) -> dict[str, Any]:
    return {"name": "main", "state": {"terminated": {"exitCode": code, "reason": reason, **more}}}


def test_role_id_and_rank_come_from_name_and_labels() -> None:
    seen = pod_seen(a_pod())
    assert seen is not None
    assert (seen.role, seen.id, seen.rank, seen.phase) == (Role.WORKER, 3, 1, PodPhase.PENDING)
    assert (seen.resource.cpu, seen.resource.memory) == (0.5, 1024)


def test_a_master_is_known_by_its_term() -> None:
    seen = pod_seen(a_pod(name="j-master-7", role="master", term="7"))
    assert seen is not None
    assert (seen.role, seen.id) == (None, 7)


@pytest.mark.parametrize("labels", [{"role": "cook"}, {"role": "master"}], ids=["no-role-of-ours", "no-term"])
def test_a_pod_that_does_not_say_who_it_is_is_none_of_ours(labels: dict[str, str]) -> None:
    assert pod_seen(a_pod(name="j-thing-x", **labels)) is None


@pytest.mark.parametrize(
    ("status", "code", "oom"),
    [
        ({"phase": "Failed", "containerStatuses": [terminated(1)]}, 1, False),
        ({"phase": "Failed", "containerStatuses": [terminated(137, "OOMKilled")]}, 137, True),
        ({"phase": "Succeeded", "containerStatuses": [terminated(0, "Completed")]}, 0, False),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, None, False),
        ({"phase": "Failed", "initContainerStatuses": [terminated(3) | {"name": "shoal-agent"}]}, 3, False),
    ],
    ids=["fails", "oom", "ends-well", "evicted", "the-init-container-fails"],
)
def test_how_it_ended(status: dict[str, Any], code: int | None, oom: bool) -> None:
    seen = pod_seen(a_pod(status))
    assert seen is not None
    assert (seen.exit_code, seen.oom_killed, seen.is_over) == (code, oom, True)


def test_an_eviction_is_said() -> None:
    seen = pod_seen(a_pod({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}))
    assert seen is not None
    assert seen.reason == "Evicted: low on memory"


@pytest.mark.parametrize(
    ("status", "reason", "says"),
    [
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
                ],
            },
            "ImagePullFailed",
            "image img:1 cannot be had: not found",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"name": "main", "state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no x"}}}
                ],
            },
            "CannotStart",
            "no x",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
                ],
            },
            "Unschedulable",
            "0/3 nodes",
        ),
    ],
    ids=["image", "configuration", "no-room"],
)
def test_why_it_does_not_run(status: dict[str, Any], reason: str, says: str) -> None:
    seen = pod_seen(a_pod(status))
    assert seen is not None
    assert seen.trouble is not None
    assert seen.trouble.reason == reason
    assert says in seen.trouble.message


def test_a_pod_that_ended_has_no_trouble_any_more() -> None:
    waiting = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    seen = pod_seen(a_pod({"phase": "Failed", "containerStatuses": [waiting]}))
    assert seen is not None
    assert seen.trouble is None


def test_a_resize_that_its_host_puts_off_is_told_in_the_kubelets_words() -> None:
    def told(kind: str, status: str) -> str:
        condition = {"type": kind, "status": status, "reason": "Deferred", "message": "Node didn't have enough  memory"}
        seen = pod_seen(a_pod({"phase": "Running", "conditions": [condition]}))
        assert seen is not None
        return seen.resize_waits

    assert told("PodResizePending", "True") == "Deferred: Node didn't have enough memory"
    assert told("PodResizePending", "False") == ""
    assert told("PodResizeInProgress", "True") == ""


@pytest.mark.parametrize(
    ("given", "waits"),
    [
        ({}, False),
        ({"cpu": "500m", "memory": "1Gi"}, False),
        ({"cpu": "0.5", "memory": "1024Mi", "example.com/fpga": "1"}, False),
        ({"cpu": "500m", "memory": "512Mi"}, True),
    ],
)
def test_a_resize_is_waited_for_until_its_host_has_given_it(given: dict[str, str], waits: bool) -> None:
    seen = pod_seen(a_pod({"phase": "Running", "containerStatuses": [{"name": "main", "allocatedResources": given}]}))
    assert seen is not None
    assert (seen.is_resizing, seen.resize_waits) == (waits, "")
