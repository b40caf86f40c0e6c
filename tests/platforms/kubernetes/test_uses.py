"""From Nodes, Pods and quotas to what the scheduler counts with."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.hosts import MOST, Amounts, Demand, Placement, QuotaSeen, Taint, Toleration
from shoal.platforms.kubernetes.objects import (
    Condition,
    Container,
    ContainerStatus,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    ResourceQuota,
    ResourceQuotaSpec,
    ResourceRequirements,
)
from shoal.platforms.kubernetes.objects import Taint as ApiTaint
from shoal.platforms.kubernetes.objects import Toleration as ApiToleration
from shoal.platforms.kubernetes.uses import host_seen, placement, pod_amounts, pod_use, quota_seen, shape


def a_container(requests: dict[str, str] | None = None, **limits: str) -> Container:
    return Container(resources=ResourceRequirements(requests=requests or {}, limits=limits))


def a_node(*, ready: str = "True", cordoned: bool = False, taints: tuple[ApiTaint, ...] = ()) -> Node:
    return Node(
        metadata=ObjectMeta(name="a", labels={"kind": "gpu"}),
        spec=NodeSpec(unschedulable=cordoned, taints=list(taints)),
        status=NodeStatus(
            capacity={"cpu": "64"},
            allocatable={"cpu": "63500m", "memory": "64Gi", "nvidia.com/gpu": "8", "pods": "110"},
            conditions=[Condition(type="Ready", status=ready)],
        ),
    )


def test_a_host_has_what_is_allocatable() -> None:
    seen = host_seen(a_node())
    assert seen.capacity == Amounts(63_500, 64 * 2**30, 8, pods=110)
    assert seen.is_open
    assert seen.labels == {"kind": "gpu"}


def test_of_a_host_that_does_not_say_how_many_pods_it_takes_nothing_is_assumed() -> None:
    node = Node(metadata=ObjectMeta(name="a"), status=NodeStatus(allocatable={"cpu": "1"}))
    assert host_seen(node).capacity == Amounts(cpu=1_000, pods=MOST.pods)


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(a_node(ready="Unknown"), id="silent"),
        pytest.param(a_node(cordoned=True), id="cordoned"),
        pytest.param(Node(metadata=ObjectMeta(name="new")), id="just-made"),
    ],
)
def test_a_host_that_takes_no_pods_is_not_open(node: Node) -> None:
    assert not host_seen(node).is_open


def test_taints_that_only_say_that_a_host_is_not_ready_are_left_to_that() -> None:
    own = ApiTaint(key="node.kubernetes.io/unreachable", effect="NoExecute")
    seen = host_seen(a_node(taints=(own, ApiTaint(key="dedicated", value="ml", effect="NoSchedule"))))
    assert seen.taints == (Taint("dedicated", "ml", "NoSchedule"),)


def test_containers_are_summed_and_the_largest_init_container_counts() -> None:
    spec = PodSpec(
        containers=[a_container({"cpu": "1"}, memory="1Gi"), a_container({"cpu": "500m"})],
        init_containers=[a_container({"cpu": "4"}), a_container({"memory": "2Gi"})],
    )
    assert pod_amounts(spec) == Amounts(4_000, 2 * 2**30, 0, pods=1)


def test_a_limit_without_a_request_is_a_request() -> None:
    spec = PodSpec(containers=[a_container({"cpu": "1"}, cpu="8", **{"alpha.kubernetes.io/nvidia-gpu": "2"})])
    assert pod_amounts(spec) == Amounts(1_000, 0, 2, pods=1)


@given(st.text(max_size=12))
def test_a_quantity_that_nobody_can_read_is_nothing_and_stops_nobody(written: str) -> None:
    amounts = pod_amounts(PodSpec(containers=[a_container({"cpu": written, "memory": written})]))
    assert all(isinstance(each, int) for each in amounts)


def test_a_pod_says_what_it_takes_and_what_it_waits_for() -> None:
    unschedulable = Condition(type="PodScheduled", status="False", reason="Unschedulable")
    pod = Pod(
        metadata=ObjectMeta(name="p", namespace="n", uid="u", labels={"elastic.iml.github.io/job-uid": "j"}),
        spec=PodSpec(containers=[a_container({"cpu": "1"})], priority=7),
        status=PodStatus(phase="Pending", conditions=[unschedulable], nominated_node_name="a"),
    )
    use = pod_use(pod)
    assert (use.job, use.priority, use.is_unschedulable, use.nominated, use.host) == ("j", 7, True, "a", "")
    assert not use.runs


@pytest.mark.parametrize(("grace", "gone_after"), [(None, 0), (0, 0), (30, 30), (60, 60), (1800, 60)])
def test_the_room_of_a_pod_with_a_long_grace_is_not_believed_to_be_free_for_all_of_it(
    grace: int | None, gone_after: int
) -> None:
    told = datetime(2030, 1, 1, tzinfo=UTC)
    meta = ObjectMeta(
        name="p", deletion_timestamp=told + timedelta(seconds=grace or 0), deletion_grace_period_seconds=grace
    )
    assert pod_use(Pod(metadata=meta)).ends == told.timestamp() + gone_after
    assert pod_use(Pod(metadata=ObjectMeta(name="p"))).ends is None


def test_a_selector_holds_in_every_alternative_of_an_affinity() -> None:
    terms = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["h-1"]}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec = PodSpec(
        node_selector={"kind": "gpu"},
        affinity={"nodeAffinity": required},
        tolerations=[ApiToleration(key="dedicated", operator="Exists")],
    )
    gpu = Demand("kind", "In", ("gpu",))
    assert placement(spec) == Placement(
        ((gpu, Demand("zone", "In", ("a",))), (gpu, Demand("metadata.name", "In", ("h-1",)))),
        (Toleration("dedicated", "Exists"),),
    )


@pytest.mark.parametrize("affinity", [None, {}, {"nodeAffinity": None}, {"nodeAffinity": {"x": 1}}])
def test_an_affinity_without_demands_demands_nothing(affinity: dict | None) -> None:
    assert placement(PodSpec(affinity=affinity)) == Placement()


def test_the_shape_of_a_manifest_is_that_of_its_pod_however_people_write_numbers() -> None:
    resources = {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"nvidia.com/gpu": 1}}
    manifest = {"spec": {"containers": [{"name": "main", "resources": resources}], "nodeSelector": {"a": "b"}}}
    found = shape(manifest)
    assert found.amounts == Amounts(2_000, 2**30, 1, pods=1)
    assert found.placement == Placement(((Demand("a", "In", ("b",)),),))
    assert shape({"spec": {"containers": [{"resources": None}], "affinity": None}}).amounts == Amounts(pods=1)


def test_a_quota_about_pods_is_read_and_others_are_left_to_the_server() -> None:
    def quota(**more: object) -> ResourceQuota:
        return ResourceQuota(metadata=ObjectMeta(name="q", namespace="n"), spec=ResourceQuotaSpec(**more))  # type: ignore[arg-type]

    hard = {"cpu": "8", "requests.cpu": "6", "requests.nvidia.com/gpu": "4", "pods": "10"}
    assert quota_seen(quota(hard=hard)) == QuotaSeen(namespace="n", name="q", cpu=6_000, gpu=4, pods=10)
    assert quota_seen(quota(hard={"configmaps": "3"})) is None
    assert quota_seen(quota(hard={"pods": "3"}, scopes=["BestEffort"])) is None


def test_sidecars_and_overhead_are_counted_as_kubernetes_does() -> None:
    manifest = {
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": 1}}}],
            "initContainers": [
                {"name": "first", "resources": {"requests": {"cpu": "4"}}},
                {"name": "mesh", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}},
                {"name": "last", "resources": {"requests": {"cpu": "2500m", "memory": "1Gi"}}},
            ],
            "overhead": {"cpu": "500m", "memory": "10Mi"},
        }
    }
    assert shape(manifest).amounts == Amounts(5_000, 2**30 + 10 * 2**20, 0, pods=1)


@pytest.mark.parametrize(("reason", "memory"), [("Infeasible", 2), ("", 2), ("Deferred", 900)])
def test_what_a_host_can_never_give_or_has_not_heard_of_is_not_counted(reason: str, memory: int) -> None:
    pod = Pod(
        spec=PodSpec(containers=[Container(name="main", resources=ResourceRequirements(requests={"memory": "900Gi"}))]),
        status=PodStatus(
            conditions=[Condition(type="PodResizePending", status="True", reason=reason)] if reason else [],
            container_statuses=[ContainerStatus(name="main", allocated_resources={"memory": "2Gi"})],
        ),
    )
    assert pod_use(pod).amounts.memory == memory * 2**30
