"""The Pods of a job: a member's from the user's template, and the master's.

A template is kept: what the user wrote stays, and what we need is added. The first container is the one that trains.
An init container of Shoal's image copies the agent, interpreter and all, into an empty directory; the user's command
becomes the agent's. So a user's image needs nothing of ours.
"""

import copy
import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec

from shoal.api.elasticjob import Role, Strategy
from shoal.api.fields import Template
from shoal.api.jobspec import JobSpec, RoleNeeds, processes_with
from shoal.api.labels import GENERATION, INCARNATION, MASTER, POD_SCALER, RANK_HINT, ROLE, SCALER, TERM
from shoal.api.quantities import format_cores, format_mebibytes, mebibytes, parse_quantity
from shoal.api.resources import GPU_NAMES, Resource, of_template
from shoal.core.errors import BadInput
from shoal.operator.masters import master_name
from shoal.operator.memory import Member
from shoal.operator.objects import (
    TENSORFLOW_PORT,
    Manifest,
    agent_name,
    labels,
    members_name,
    metadata,
    owner,
    service_name,
    token_name,
)
from shoal.operator.placing import avoid
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import JobSeen

SHOAL = "/shoal/bin/shoal"
SECRETS = "/var/run/shoal"
_AGENT, _TOKEN, _SHM, _TMP = "shoal-agent", "shoal-token", "shoal-shm", "tmp"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108
_GRACE_SECONDS = 45
"""More than an agent gives its training processes (30 s): the agent must outlive them."""
_QUIET = {"name": "TF_CPP_MIN_LOG_LEVEL", "value": "2"}
"""For jobs with parameter servers: TensorFlow's lines of level INFO and WARNING drown what the job itself prints, and
each change of the servers makes more of them: steps that are rehearsed, connections that end."""
LOCKED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


class NoPod(BadInput):
    """A template of which no Pod can be made."""


def member_pod(
    job: JobSeen, spec: JobSpec, needs: RoleNeeds, member: Member, resource: Resource, settings: OperatorSettings
) -> Manifest:
    """The Pod of a member with this resource. Raises `NoPod`.

    What we read of a template has the types that its schema says; but the definitions in a cluster may be older than
    we are, and one template that nobody thought of must not stop the look at its job without a word."""
    try:
        return _member_pod(job, spec, needs, member, resource, settings)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as exc:
        raise NoPod(f"no Pod can be made of the template of {member.role}: {exc}") from exc


def _member_pod(
    job: JobSeen, spec: JobSpec, needs: RoleNeeds, member: Member, resource: Resource, settings: OperatorSettings
) -> Manifest:
    template: Template = copy.deepcopy(needs.template)
    written = template.get("metadata") or {}
    pod: dict[str, Any] = template["spec"]
    _fill(pod, settings)
    if not (pod.get("serviceAccountName") or pod.get("serviceAccount")):  # the second: its name of old
        pod["serviceAccountName"] = agent_name(job.name)
    has_servers = spec.strategy is Strategy.PARAMETER_SERVER  # whose processes see all devices of their Pod
    processes = 1 if has_servers else processes_with(resource.over(needs.resource))
    _train(pod["containers"][0], job, spec, member, processes, settings)
    if spec.tf_config:
        pod["hostname"], pod["subdomain"] = f"{member.role}-{member.rank}", members_name(job.name)
    _size(pod, resource, of_template(needs.template), settings)
    _keep_guaranteed(pod)
    if needs.priority is not None and needs.priority in settings.priority_classes:
        pod.setdefault("priorityClassName", settings.priority_classes[needs.priority])
    if settings.priority_class:
        pod.setdefault("priorityClassName", settings.priority_class)
    mount_agent(pod, job.name, settings)
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": member.name,
            "namespace": job.key.namespace,
            "labels": {
                **(written.get("labels") or {}),
                **labels(job, member.role),
                ROLE: str(member.role),
                RANK_HINT: str(member.rank),
                GENERATION: str(job.generation),
                INCARNATION: str(member.id),
            },
            "annotations": dict(written.get("annotations") or {}),
            "ownerReferences": [owner(job)],
        },
        "spec": pod,
    }
    return avoid(made, member.avoid_hosts) if member.avoid_hosts else made


def _fill(pod: dict[str, Any], settings: OperatorSettings) -> None:
    pod["restartPolicy"] = "Never"
    pod.setdefault("automountServiceAccountToken", False)
    pod.setdefault("enableServiceLinks", False)
    pod.setdefault("terminationGracePeriodSeconds", _GRACE_SECONDS)
    bring_agent(pod, settings)


def bring_agent(pod: dict[str, Any], settings: OperatorSettings) -> None:
    """The init container that copies the agent into the Pod."""
    brings: Manifest = {
        "name": _AGENT,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": [SHOAL, "bring", "/target"],
        "volumeMounts": [{"name": _AGENT, "mountPath": "/target"}],
        "securityContext": LOCKED,
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
    }
    pull_secrets(pod, settings)
    pod["initContainers"] = [brings, *(pod.get("initContainers") or [])]


def _keep_guaranteed(pod: dict[str, Any]) -> None:
    """A Pod whose every container is limited to what it requests may have cores of its own, and is evicted and killed
    last. One container without limits would end that: ours gets what the training container has, which takes nothing
    away, for it has ended before that one begins."""
    written = pod["containers"][0].get("resources") or {}
    limits, requests = written.get("limits") or {}, written.get("requests") or {}
    has = {name: limits[name] for name in ("cpu", "memory") if name in limits}
    if len(has) == 2 and all(
        parse_quantity(requests.get(name, has[name])) == parse_quantity(has[name]) for name in has
    ):
        pod["initContainers"][0]["resources"] = {"requests": has, "limits": has}


def pull_secrets(pod: dict[str, Any], settings: OperatorSettings) -> None:
    """Our image may be in a registry that the user's template knows nothing of."""
    own = list(pod.get("imagePullSecrets") or [])
    names = {each.get("name") for each in own}
    ours = [{"name": name} for name in settings.image_pull_secrets if name not in names]
    if own or ours:
        pod["imagePullSecrets"] = [*own, *ours]


def _train(
    container: dict[str, Any],
    job: JobSeen,
    spec: JobSpec,
    member: Member,
    processes: int,
    settings: OperatorSettings,
) -> None:
    """Put the agent in front of the user's command, and tell it who it is."""
    command = [*(container.get("command") or []), *(container.pop("args", None) or [])]
    if not command or PurePosixPath(command[0]).name != "shoal":
        command = [SHOAL, "agent", "--", *command]
    container["command"] = command
    ours = _environment(job, spec, member, processes, settings)
    env = [*spec.env, *(container.get("env") or [])]
    if spec.strategy is Strategy.PARAMETER_SERVER and not any(each.get("name") == _QUIET["name"] for each in env):
        env.append(_QUIET)
    taken = {each["name"] for each in ours}
    container["env"] = [*(each for each in env if each.get("name") not in taken), *ours]


def _environment(
    job: JobSeen, spec: JobSpec, member: Member, processes: int, settings: OperatorSettings
) -> list[Manifest]:
    where = f"{service_name(job.name)}.{job.key.namespace}.svc:{settings.master_port}"
    said = {
        "SHOAL_JOB": job.name,
        "SHOAL_ROLE": str(member.role),
        "SHOAL_RANK_HINT": str(member.rank),
        "SHOAL_TOKEN_FILE": f"{SECRETS}/agent",
        "SHOAL_AGENT_MASTER": f"wss://{where}",
        "SHOAL_AGENT_FINGERPRINT_FILE": f"{SECRETS}/fingerprint",
        "SHOAL_AGENT_JOB": job.name,
        "SHOAL_AGENT_NODE": f"{member.role}-{member.id}",
        "SHOAL_AGENT_ROLE": str(member.role),
        "SHOAL_AGENT_SLOTS": str(processes),
        "SHOAL_AGENT_CONTAINER": "own",
        "SHOAL_AGENT_MASTER_TIMEOUT": str(int(settings.master_timeout.total_seconds())),
    }
    if spec.checkpoint_dir is not None:
        said["SHOAL_AGENT_CHECKPOINT_DIR"] = spec.checkpoint_dir
        if spec.strategy is Strategy.PARAMETER_SERVER:
            said["SHOAL_CHECKPOINT_DIR"] = spec.checkpoint_dir
    if spec.tf_config:
        said["SHOAL_AGENT_SEAT"] = str(member.rank)
        said["SHOAL_AGENT_TF_SERVERS"] = ",".join(_addresses(job, spec, Role.PS))
        said["SHOAL_AGENT_TF_WORKERS"] = ",".join(_addresses(job, spec, Role.WORKER))
    address = {"name": "SHOAL_AGENT_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [*({"name": name, "value": value} for name, value in said.items()), address]


def _addresses(job: JobSeen, spec: JobSpec, role: Role) -> list[str]:
    """Of every member of a role that there can be, by its place."""
    needs = spec.roles[role]
    most = max(needs.min, needs.max, needs.replicas or 0)
    where = f"{members_name(job.name)}.{job.key.namespace}.svc:{TENSORFLOW_PORT}"
    return [f"{role}-{rank}.{where}" for rank in range(most)]


def _size(pod: dict[str, Any], resource: Resource, written: Resource, settings: OperatorSettings) -> None:
    """Give the training container what it should have. What the template already says in its own words stays."""
    amounts: dict[str, str] = {}
    if resource.cpu is not None and resource.cpu != written.cpu:
        amounts["cpu"] = format_cores(resource.cpu)
    if resource.memory is not None and resource.memory != written.memory:
        amounts["memory"] = format_mebibytes(resource.memory)
    if resource.disk is not None and resource.disk != written.disk:
        amounts["ephemeral-storage"] = format_mebibytes(resource.disk)
    if resource.gpu_num is not None and resource.gpu_num != written.gpu_num:
        amounts[_device_name(pod["containers"][0], settings)] = str(resource.gpu_num)
    if resource.gpu_type is not None:
        _part(pod, "nodeSelector")[settings.gpu_type_label] = resource.gpu_type
    if not amounts:
        return
    resources = _part(pod["containers"][0], "resources")
    requests, limits = _part(resources, "requests"), _part(resources, "limits")
    requests.update(amounts)
    # A cpu limit would only slow it down; one that the user has set must not be below the request.
    limits.update({name: amount for name, amount in amounts.items() if name != "cpu" or "cpu" in limits})


def _device_name(container: Mapping[str, Any], settings: OperatorSettings) -> str:
    """What devices are called: as in the template, where it has some. Under two names the Pod would ask for both."""
    resources = container.get("resources") or {}
    written = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return next((name for name in (settings.gpu_resource, *GPU_NAMES) if name in written), settings.gpu_resource)


def resized(needs: RoleNeeds, has: Resource, resource: Resource, settings: OperatorSettings) -> tuple[str, Manifest]:
    """The training container's name, and how one that runs, and has something else, gets what a new one would.

    Only what is different is named, and both its sides: a running Pod keeps a request or limit that is not named,
    and the server refuses a request above a limit. No limit can be taken away."""
    pod = copy.deepcopy(needs.template["spec"])
    _size(pod, resource, of_template(needs.template), settings)
    container = pod["containers"][0]
    written = container.get("resources") or {}
    changes = {"cpu": has.cpu != resource.cpu, "memory": has.memory != resource.memory}
    limits, requests = (
        {name: amount for name, amount in (written.get(part) or {}).items() if changes.get(name)}
        for part in ("limits", "requests")
    )
    requests = {**limits, **requests}
    if "memory" in requests:
        limits.setdefault("memory", requests["memory"])
    parts = {"requests": requests, "limits": limits}
    return container["name"], {part: amounts for part, amounts in parts.items() if amounts}


def _part(of: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of the template, made when it is missing or null."""
    of[name] = of.get(name) or {}
    found: dict[str, Any] = of[name]
    return found


def mount_agent(pod: dict[str, Any], job: str, settings: OperatorSettings) -> None:
    """Where the first container finds the agent and the job's token, and shared memory that suffices."""
    container = pod["containers"][0]
    mounts = list(container.get("volumeMounts") or [])
    volumes = list(pod.get("volumes") or [])
    volumes.append({"name": _AGENT, "emptyDir": {}})
    mounts.append({"name": _AGENT, "mountPath": "/shoal", "readOnly": True})
    items = [{"key": key, "path": key} for key in ("agent", "fingerprint")]
    volumes.append({"name": _TOKEN, "secret": {"secretName": token_name(job), "items": items}})
    mounts.append({"name": _TOKEN, "mountPath": SECRETS, "readOnly": True})
    if not any(mount.get("mountPath") == _SHARED_MEMORY for mount in mounts):
        size = settings.shared_memory or _half(container)
        volumes.append({"name": _SHM, "emptyDir": {"medium": "Memory", **({"sizeLimit": size} if size else {})}})
        mounts.append({"name": _SHM, "mountPath": _SHARED_MEMORY})
    pod["volumes"], container["volumeMounts"] = volumes, mounts


def _half(container: Mapping[str, Any]) -> str | None:
    """Half of the memory that a container may have: what it keeps in /dev/shm counts as its memory."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return format_mebibytes(max(mebibytes(limits["memory"]) // 2, 1)) if limits.get("memory") else None


_OF_MEMBERS = (
    "image",
    "image_pull_policy",
    "image_pull_secrets",
    "master_port",
    "master_timeout",
    "shared_memory",
    "gpu_resource",
    "gpu_type_label",
    "priority_classes",
    "priority_class",
    "defaults",
)
"""The settings that `member_pod` looks at, and what it takes to understand a job."""


def pod_settings(settings: OperatorSettings) -> str:
    """What a master has to know of the settings to make the same Pods as the operator would. No secret is in it."""
    return msgspec.json.encode({name: getattr(settings, name) for name in _OF_MEMBERS}).decode()


def settings_of(text: str) -> OperatorSettings:
    """The settings as a master was told them: it has no install key. Raises `BadInput`."""
    try:
        return msgspec.convert({**msgspec.json.decode(text), "install_key": b""}, OperatorSettings)
    except (msgspec.DecodeError, TypeError) as exc:
        raise BadInput(f"these are no settings of Pods: {exc}") from exc


_PROBE_TRIES = 6
_PROBE_PATIENCE = 5
"""What a busy master has to answer one probe, in seconds; never longer than until the next."""


def master_probes(settings: OperatorSettings) -> Manifest:
    """How its host finds out whether a master is there yet, can be asked now, or is frozen. Its event loop answers, so
    one that is stuck does not. One that never was ready is the operator's to judge (`--pending`), not the kubelet's:
    the first probe outlasts that."""
    asks = {"httpGet": {"path": "/healthz", "port": settings.master_port, "scheme": "HTTPS"}}
    often = max(math.ceil(settings.master_frozen.total_seconds() / _PROBE_TRIES), 1)
    starts = math.ceil(settings.times.pending.total_seconds()) + 60
    return {
        "startupProbe": {**asks, "periodSeconds": 1, "failureThreshold": starts},
        "readinessProbe": {**asks, "periodSeconds": 2, "failureThreshold": 3},
        "livenessProbe": {
            **asks,
            "periodSeconds": often,
            "timeoutSeconds": min(often, _PROBE_PATIENCE),
            "failureThreshold": _PROBE_TRIES,
        },
    }


def master_pod(job: JobSeen, term: int, settings: OperatorSettings) -> Manifest:
    """The Pod of the master in this term."""
    said = {
        "SHOAL_JOB": job.name,
        "SHOAL_JOB_UID": job.uid,
        "SHOAL_NAMESPACE": job.key.namespace,
        "SHOAL_TERM": str(term),
        "SHOAL_MAX_MEMBERS": str(settings.defaults.max_members),
        "SHOAL_AUTOSCALE_EVERY": str(settings.autoscale_seconds),
    }
    if settings.log_format != "text":
        said["SHOAL_LOG_FORMAT"] = settings.log_format
    if settings.pod_scaler:
        said |= {"SHOAL_SCALER": POD_SCALER, "SHOAL_POD_SETTINGS": pod_settings(settings)}
    more = {ROLE: MASTER, TERM: str(term), GENERATION: str(job.generation), INCARNATION: str(term)}
    if settings.pod_scaler:
        more[SCALER] = POD_SCALER
    env: list[Manifest] = [{"name": name, "value": value} for name, value in said.items()]
    secrets = settings.image_pull_secrets
    env.append({"name": "SHOAL_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    container: Manifest = {
        "name": MASTER,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": [SHOAL, "master", "--kubernetes"],
        "env": env,
        "ports": [{"name": MASTER, "containerPort": settings.master_port}],
        **master_probes(settings),
        "resources": {
            "requests": dict(settings.master_resources),
            "limits": {"memory": settings.master_memory_limit},
        },
        "securityContext": LOCKED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": _TOKEN, "mountPath": SECRETS, "readOnly": True},
            {"name": _TMP, "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(job, master_name(job.name, term), MASTER, **more),
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": service_name(job.name),
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 10,
            "securityContext": {"runAsNonRoot": True, "fsGroup": 65532},
            **({"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}),
            **({"priorityClassName": settings.priority_class} if settings.priority_class else {}),
            "containers": [container],
            "volumes": [
                {"name": _TOKEN, "secret": {"secretName": token_name(job.name), "defaultMode": 0o440}},
                {"name": _TMP, "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
            ],
        },
    }
