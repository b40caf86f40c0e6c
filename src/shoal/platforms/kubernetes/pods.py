"""From a Pod as the API server has it to what decisions look at. Pure.

A Pod says in many places why it does not run or how it ended; here they become one phase, one exit code and at most one
trouble, the first that somebody could do something about.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from shoal.api.elasticjob import Role
from shoal.api.labels import MASTER, POD_SCALER, RANK_HINT, ROLE, SCALER, TERM
from shoal.api.reasons import Reason
from shoal.api.resources import Resource, of_list, to_spec
from shoal.api.scaleplan import PodReport
from shoal.core.pods import PodPhase, PodSeen, Trouble
from shoal.platforms.kubernetes.objects import ContainerStateTerminated, ContainerStatus, Pod

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_IMAGE = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_CANNOT_START = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_OOM = "OOMKilled"


def pod_seen(pod: Pod) -> PodSeen | None:
    """None: it does not say which member or master it is, so it is none of ours."""
    labels, name = pod.metadata.labels, pod.metadata.name
    role = labels.get(ROLE, "")
    number = labels.get(TERM, "") if role == MASTER else name.rpartition("-")[2]
    if not (number.isascii() and number.isdigit()) or (role != MASTER and role not in tuple(Role)):
        return None
    end = pod_end(pod)
    rank = labels.get(RANK_HINT, "0")
    return PodSeen(
        name=name,
        uid=pod.metadata.uid,
        role=None if role == MASTER else Role(role),
        id=int(number),
        rank=int(rank) if rank.isascii() and rank.isdigit() else 0,
        phase=PodPhase(pod.status.phase) if pod.status.phase in tuple(PodPhase) else PodPhase.PENDING,
        ready=any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions),
        deleting=pod.metadata.deletion_timestamp is not None,
        created_at=pod.metadata.creation_timestamp or _EPOCH,
        exit_code=end.exit_code if end else None,
        oom_killed=was_oom_killed(end),
        reason=pod_reason(pod),
        host=pod.spec.node_name,
        resource=_resource(pod),
        trouble=pod_trouble(pod),
        resize_waits=(waits := _resize_waits(pod)),
        is_resizing=not waits and _is_resizing(pod),
        makes_pods=role == MASTER and labels.get(SCALER) == POD_SCALER,
    )


def pod_report(pod: Pod) -> PodReport | None:
    """A member's Pod as the operator reports it to the master. None: it is no member's."""
    seen = pod_seen(pod)
    if seen is None or seen.role is None:
        return None
    return PodReport(
        name=seen.name,
        uid=seen.uid,
        role=str(seen.role),
        id=seen.id,
        rank=seen.rank,
        phase="Deleted" if seen.deleting else str(seen.phase),
        exit_code=seen.exit_code,
        oom_killed=seen.oom_killed,
        reason=seen.trouble.message if seen.trouble else seen.reason,
        host=seen.host,
        resource=None if seen.resource.is_silent else to_spec(seen.resource),
    )


def pod_end(pod: Pod) -> ContainerStateTerminated | None:
    """How the first container ended; if it never began, how the first init container that failed did."""
    ends = [each.state.terminated for each in pod.status.container_statuses if _is_main(pod, each)]
    ends += [each.state.terminated for each in pod.status.init_container_statuses]
    return next((end for end in ends if end is not None and (end.exit_code or end is ends[0])), None)


def was_oom_killed(end: ContainerStateTerminated | None) -> bool:
    return end is not None and end.reason == _OOM


def _is_main(pod: Pod, status: ContainerStatus) -> bool:
    return bool(pod.spec.containers) and status.name == pod.spec.containers[0].name


def pod_reason(pod: Pod) -> str:
    """What Kubernetes says about its end, in one line: eviction before all, then the container's own words."""
    end = pod_end(pod)
    words = [pod.status.reason, pod.status.message]
    if end is not None and end.exit_code:
        words += [end.reason if end.reason not in ("Error", "Completed") else "", end.message]
    return " ".join(": ".join(word for word in words if word).split())[:512]


def _resource(pod: Pod) -> Resource:
    if not pod.spec.containers:
        return Resource()
    written = pod.spec.containers[0].resources
    return _amounts({**written.limits, **written.requests}) or Resource()


def pod_trouble(pod: Pod) -> Trouble | None:
    """Why it does not run. One that has ended or is ending has no trouble any more."""
    if pod.status.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED) or pod.metadata.deletion_timestamp is not None:
        return None
    return _waiting(pod) or _unschedulable(pod)


def _waiting(pod: Pod) -> Trouble | None:
    images = {each.name: each.image for each in (*pod.spec.init_containers, *pod.spec.containers)}
    statuses: Iterable[ContainerStatus] = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    for status in statuses:
        waiting = status.state.waiting
        if waiting is None:
            continue
        who = f"{pod.metadata.name}, container {status.name}"
        if waiting.reason in _NO_IMAGE:
            said = f"{who}: image {images.get(status.name, '')} cannot be had: {waiting.message or waiting.reason}"
            return Trouble(reason=Reason.IMAGE_PULL_FAILED, message=said)
        if waiting.reason in _CANNOT_START:
            return Trouble(reason=Reason.CANNOT_START, message=f"{who}: {waiting.message or waiting.reason}")
    return None


def _unschedulable(pod: Pod) -> Trouble | None:
    for each in pod.status.conditions:
        if each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable":
            return Trouble(reason=Reason.UNSCHEDULABLE, message=f"{pod.metadata.name}: {each.message}")
    return None


def _resize_waits(pod: Pod) -> str:
    """The kubelet's word on a resize that it puts off (`Deferred`) or that its host can never do (`Infeasible`)."""
    for each in pod.status.conditions:
        if each.type == "PodResizePending" and each.status == "True":
            return " ".join(": ".join(word for word in (each.reason, each.message) if word).split())[:512]
    return ""


def _is_resizing(pod: Pod) -> bool:
    given = next((each.allocated_resources for each in pod.status.container_statuses if _is_main(pod, each)), {})
    asked = pod.spec.containers[0].resources.requests if given else {}
    has = {name: amount for name, amount in given.items() if name in asked}
    return _amounts(has) != _amounts({name: asked[name] for name in has})


def _amounts(written: Mapping[str, str]) -> Resource | None:
    try:
        return of_list(written)
    except ValueError:
        return None
