"""The objects of a TrainingJob: what is made of a spec, owned by the TrainingJob, so that nothing outlives it.

| role    | object                     | Pods run                                                               |
| ------- | -------------------------- | ---------------------------------------------------------------------- |
| master  | ReplicaSet `{job}-master`  | `shoal master --training`, or its entrypoint                           |
| etcd    | StatefulSet `{job}-etcd`   | etcd                                                                   |
| pserver | ReplicaSet `{job}-pserver` | its entrypoint; or the trainers', under `shoal agent --role ps` if ours |
| trainer | batch Job `{job}-trainer`  | the entrypoint, under `shoal agent` where the master is ours           |

The first three are addressed: each has a Service of its name. Every manifest bears the *form* of the spec that it was
made of. A running job keeps its form (the rules see to that); one that was suspended and changed gets new objects when
it comes back.
"""

import copy
import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.api.elasticjob import Checkpoint
from shoal.api.labels import FORM, JOB_NAME, JOB_UID, KIND, MASTER, PADDLE_LABELS, ROLE, TRAINING_JOB
from shoal.api.resources import GPU_NAMES
from shoal.api.trainingjob import API_VERSION, Requirements, TrainingRole
from shoal.api.trainingjob import KIND as TRAINING_KIND
from shoal.api.trainingspec import Instances, TrainingSpec, in_the_words_of
from shoal.core.exits import EXIT_JOB_FAILED
from shoal.core.nodes import Role
from shoal.operator.objects import MANAGER, Manifest, network_policy, token_data, token_name
from shoal.operator.pods import LOCKED, SECRETS, SHOAL, bring_agent, master_probes, mount_agent, pull_secrets
from shoal.operator.settings import OperatorSettings
from shoal.operator.training.snapshot import TrainingSeen
from shoal.scheduler.actuation import preference

VERSION = "4"
"""Raised when what is made of one and the same spec changes."""
MASTER_PORT, ETCD_PORT, PEER_PORT = 8080, 2379, 2380
"""A master that is not ours listens on the first, as the first controller's did."""
NO_LIMIT = 2**31 - 1
_GRACE_SECONDS = 45
"""As that of an ElasticJob's members: the agent must outlive its processes."""
SERVERS_GRACE_SECONDS = 1800
"""Of parameter servers: one that is told to end stays until everybody trains without it. That is a matter of seconds;
but a change may take minutes (`core.ps.values.PSSettings`), and one that was given up is tried again."""
_TOKEN, _TMP, _DATA = "shoal-token", "tmp", "data"
_FOR_A_SHELL = re.compile(r"""[^\w\s./:,@%+=-]|[\n]|^\s*\w+=""")
"""Quotes, variables, pipes and the like; and an assignment before the command."""
_SUPERVISED = ".agent"
_SIZES = ("min-instance", "max-instance", "max-restarts", "replicaSpec")


def object_name(job: str, role: TrainingRole) -> str:
    return f"{job}-{role}"


def form_of(spec: TrainingSpec, settings: OperatorSettings) -> str:
    """A digest of everything that Pods are made of: not of how many there are."""
    written: dict[str, Any] = msgspec.to_builtins(spec.written)
    for name in ("priority", "freezingWindow", "suspend", "fault_tolerant"):
        written.pop(name, None)
    for part in ("trainer", "pserver"):
        for name in _SIZES:
            (written.get(part) or {}).pop(name, None)
    whole = [VERSION, written, settings.image, settings.training_image, settings.etcd_image, settings.priority_class]
    return hashlib.sha256(msgspec.json.encode(whole, order="sorted")).hexdigest()[:16]


def form_for(role: TrainingRole, spec: TrainingSpec, settings: OperatorSettings) -> str:
    """The form of one role's object. A master of ours is told when it starts whether parameter servers join it, and the
    bounds: they are part of its."""
    form = form_of(spec, settings)
    if role in (TrainingRole.PSERVER, TrainingRole.MASTER) and spec.servers_follow:
        form += _SUPERVISED
    return form + _bounds(spec) if role is TrainingRole.MASTER and spec.is_ours else form


def _bounds(spec: TrainingSpec) -> str:
    return f".{spec.trainer.min}.{spec.trainer.max}"


def knows_its_bounds(form: str, spec: TrainingSpec) -> bool:
    """Whether a master of this form was told the bounds that hold now. Whose master is not ours need not be."""
    return not spec.is_ours or form.endswith(_bounds(spec))


def is_supervised(form: str) -> bool:
    """Whether parameter servers of this form run under our agent. Those that an operator before us has made do not,
    whatever their spec would mean today."""
    return form.endswith(_SUPERVISED)


# What all of them have -------------------------------------------------------------------------------------


def owner(job: TrainingSeen) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": TRAINING_KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def labels(job: TrainingSeen, role: str) -> dict[str, str]:
    original = {PADDLE_LABELS[role]: job.name} if role in PADDLE_LABELS else {}
    return {
        **original,
        "app.kubernetes.io/name": "shoal",
        "app.kubernetes.io/instance": job.name,
        "app.kubernetes.io/component": role,
        "app.kubernetes.io/part-of": "shoal",
        "app.kubernetes.io/managed-by": MANAGER,
        JOB_NAME: job.name,
        JOB_UID: job.uid,
        KIND: TRAINING_JOB,
        ROLE: role,
    }


def selector(job: TrainingSeen, role: str) -> dict[str, str]:
    return {JOB_UID: job.uid, ROLE: role}


def _metadata(job: TrainingSeen, name: str, role: str, form: str | None = None) -> Manifest:
    return {
        "name": name,
        "namespace": job.key.namespace,
        "labels": labels(job, role),
        **({"annotations": {FORM: form}} if form else {}),
        "ownerReferences": [owner(job)],
    }


# Fixed objects ---------------------------------------------------------------------------------------------


def fixed_objects(job: TrainingSeen, spec: TrainingSpec, settings: OperatorSettings) -> tuple[Manifest, ...]:
    """What must be there before the Pods: names to be found by, and what only the job's own Pods know."""
    made: list[Manifest] = [network_policy(_metadata(job, job.name, "job"), job.uid, settings)]
    if spec.is_ours:
        made.append(_token_secret(job, settings))
    if spec.master is not None:
        port = settings.master_port if spec.is_ours else MASTER_PORT
        made.append(_service(job, TrainingRole.MASTER, {MASTER: port}, headless=False))
    if spec.etcd is not None:
        made.append(_service(job, TrainingRole.ETCD, {"client": ETCD_PORT, "peer": PEER_PORT}, headless=True))
    if spec.pserver is not None:
        named = {f"jobport-{port}": port for port in spec.ports}
        made.append(_service(job, TrainingRole.PSERVER, named, headless=True))
    return tuple(made)


def _token_secret(job: TrainingSeen, settings: OperatorSettings) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, token_name(job.name), MASTER),
        "type": "Opaque",
        "immutable": True,
        "data": token_data(job.uid, settings),
    }


def _service(job: TrainingSeen, role: TrainingRole, ports: Mapping[str, int], *, headless: bool) -> Manifest:
    """Pods are found before they are ready: they are what the others wait for."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, object_name(job.name, role), role),
        "spec": {
            "selector": selector(job, role),
            "publishNotReadyAddresses": True,
            **({"clusterIP": "None"} if headless else {}),
            **({"ports": [_port(name, number) for name, number in ports.items()]} if ports else {}),
        },
    }


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}


# What makes Pods -------------------------------------------------------------------------------------------


def workload(
    job: TrainingSeen,
    spec: TrainingSpec,
    role: TrainingRole,
    count: int,
    settings: OperatorSettings,
    *,
    hosts: Mapping[str, int] | None = None,
) -> Manifest:
    """`hosts`: where the first of them should go, and how many there; a preference."""
    form = form_for(role, spec, settings)
    template = pod_template(job, spec, role, settings)
    if hosts:
        template["spec"]["affinity"] = affinity(hosts)
    match role:
        case TrainingRole.TRAINER:
            return _job(job, role, count, template, form, is_ours=spec.is_ours)
        case TrainingRole.ETCD:
            return _stateful_set(job, spec, role, count, template, form)
        case TrainingRole.MASTER | TrainingRole.PSERVER:
            return _replica_set(job, role, count, template, form)


def _replica_set(job: TrainingSeen, role: TrainingRole, count: int, template: Manifest, form: str) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": _metadata(job, object_name(job.name, role), role, form),
        "spec": {"replicas": count, "selector": {"matchLabels": selector(job, role)}, "template": template},
    }


def _stateful_set(
    job: TrainingSeen, spec: TrainingSpec, role: TrainingRole, count: int, template: Manifest, form: str
) -> Manifest:
    claims = []
    if spec.etcd_storage is not None:
        wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": spec.etcd_storage}}}
        claims = [{"metadata": {"name": _DATA, "labels": labels(job, role)}, "spec": wanted}]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(job, object_name(job.name, role), role, form),
        "spec": {
            "replicas": count,
            "serviceName": object_name(job.name, role),
            "podManagementPolicy": "Parallel",  # one member of three waits for the others
            "selector": {"matchLabels": selector(job, role)},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
            "template": template,
            **({"volumeClaimTemplates": claims} if claims else {}),
        },
    }


def _job(
    job: TrainingSeen, role: TrainingRole, count: int, template: Manifest, form: str, *, is_ours: bool
) -> Manifest:
    """Without `completions` it is a work queue: it is done when one has succeeded and all have ended. How many failures
    are too many is decided by us: a limit of Kubernetes' own knows nothing of how many trainers there are now. But when
    a master of ours has given the job up, its agents say so, and it is over."""
    given_up = {"containerName": str(role), "operator": "In", "values": [EXIT_JOB_FAILED]}
    rules: list[Manifest] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        *([{"action": "FailJob", "onExitCodes": given_up}] if is_ours else []),
    ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job, object_name(job.name, role), role, form),
        "spec": {
            "parallelism": count,
            "backoffLimit": NO_LIMIT,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules},
            "template": template,
        },
    }


# Pods ------------------------------------------------------------------------------------------------------


def pod_template(job: TrainingSeen, spec: TrainingSpec, role: TrainingRole, settings: OperatorSettings) -> Manifest:
    """The Pods of a role, also for whoever has to know what they will ask for."""
    match role:
        case TrainingRole.MASTER if spec.is_ours:
            pod = _our_master(job, spec, settings)
        case TrainingRole.ETCD:
            pod = _etcd(job, spec, settings)
        case TrainingRole.MASTER:
            assert spec.master is not None
            pod = _users_pod(job, spec, spec.master, settings)
        case TrainingRole.PSERVER:
            assert spec.pserver is not None
            pod = _users_pod(job, spec, spec.pserver, settings)
        case TrainingRole.TRAINER:
            pod = _users_pod(job, spec, spec.trainer, settings)
    if settings.priority_class:
        pod["priorityClassName"] = settings.priority_class
    return {
        "metadata": {"labels": labels(job, role), "annotations": dict(spec.written.annotations or {})},
        "spec": pod,
    }


def _users_pod(job: TrainingSeen, spec: TrainingSpec, part: Instances, settings: OperatorSettings) -> Manifest:
    written, role = part.written, part.role
    supervised = _is_supervised(spec, role)
    grace = _grace(spec, part, supervised=supervised)
    tolerations = [*(spec.written.tolerations or []), *(written.tolerations or [])]
    chosen = {**spec.node_selector, **(written.node_selector or {})}
    pod: Manifest = {
        "restartPolicy": "Never" if role is TrainingRole.TRAINER else "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **({"terminationGracePeriodSeconds": grace} if grace is not None else {}),
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if spec.host_network else {}),
        **({"nodeSelector": chosen} if chosen else {}),
        **({"tolerations": copy.deepcopy(tolerations)} if tolerations else {}),
        **({"schedulerName": spec.written.scheduler_name} if spec.written.scheduler_name else {}),
        **({"imagePullSecrets": copy.deepcopy(s)} if (s := spec.written.image_pull_secrets) else {}),
        "containers": [_container(job, spec, part, settings)],
        "volumes": copy.deepcopy(spec.written.volumes or []),
    }
    if supervised:
        bring_agent(pod, settings)
        mount_agent(pod, job.name, settings)
    return pod


def _grace(spec: TrainingSpec, part: Instances, *, supervised: bool) -> int | None:
    """What the job says for all is meant for trainers: it shortens no time that a parameter server needs to leave."""
    own, of_all = part.written.grace_period_seconds, spec.written.grace_period_seconds
    if own is not None:
        return own
    if supervised and part.role is TrainingRole.PSERVER:
        return max(of_all or 0, SERVERS_GRACE_SECONDS)
    return _GRACE_SECONDS if supervised and of_all is None else of_all


def _container(job: TrainingSeen, spec: TrainingSpec, part: Instances, settings: OperatorSettings) -> Manifest:
    written = part.written
    stop = written.pre_stop_cmd or spec.written.pre_stop_cmd
    probes = {"livenessProbe": written.liveness_probe, "readinessProbe": written.readiness_probe}
    ports = (MASTER_PORT,) if part.role is TrainingRole.MASTER else spec.ports
    if spec.host_network and part.role is TrainingRole.TRAINER:
        ports = ()  # nobody calls them, and a port that is named is taken on the host: one trainer on each
    return {
        "name": str(part.role),
        "image": spec.image or settings.training_image or "",
        **_command(spec, part),
        **({"workingDir": spec.workspace} if spec.workspace and part.role is not TrainingRole.MASTER else {}),
        "env": _environment(job, spec, part, settings),
        **({"ports": [{"name": f"jobport-{port}", "containerPort": port} for port in ports]} if ports else {}),
        "resources": _resources(written.resources, settings),
        "volumeMounts": copy.deepcopy(spec.written.volume_mounts or []),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"lifecycle": {"preStop": {"exec": {"command": list(stop)}}}} if stop else {}),
        **{name: copy.deepcopy(probe) for name, probe in probes.items() if probe},
    }


def _command(spec: TrainingSpec, part: Instances) -> Manifest:
    """What a container runs. Parameter servers run what trainers run unless they say, and find out by their environment
    which they are."""
    entrypoint = part.written.entrypoint
    if part.role is TrainingRole.PSERVER:
        entrypoint = entrypoint or spec.trainer.written.entrypoint
    if entrypoint is None:
        return {}
    words = _words(entrypoint)
    if not _is_supervised(spec, part.role):
        return {"command": words}
    role = ["--role", str(Role.PS)] if part.role is TrainingRole.PSERVER else []
    return {"command": [SHOAL, "agent", *role, "--", *words]}


def _is_supervised(spec: TrainingSpec, role: TrainingRole) -> bool:
    """Whether Pods of this role run under our agent."""
    return spec.servers_follow if role is TrainingRole.PSERVER else role is TrainingRole.TRAINER and spec.is_ours


def _words(entrypoint: str) -> list[str]:
    """What a shell would make of it, without the shell where it is that simple: one that is the first process of a
    container ignores the word to end."""
    if entrypoint.strip() and not _FOR_A_SHELL.search(entrypoint):
        return entrypoint.split()
    return ["/bin/sh", "-c", entrypoint]


def _resources(written: Requirements | None, settings: OperatorSettings) -> Manifest:
    """Devices stand in the limits, as Kubernetes wants it, wherever the user wrote them."""
    if written is None:
        return {}
    limits = in_the_words_of(settings.gpu_resource, written.limits)
    requests = in_the_words_of(settings.gpu_resource, written.requests)
    for name in (settings.gpu_resource, *GPU_NAMES):
        if name in requests or name in limits:
            limits[name] = requests[name] = requests.get(name) or limits[name]
    return {**({"limits": limits} if limits else {}), **({"requests": requests} if requests else {})}


def _environment(job: TrainingSeen, spec: TrainingSpec, part: Instances, settings: OperatorSettings) -> list[Manifest]:
    said = {**(spec.written.envs or {}), **(part.written.envs or {}), **_original(job, spec, part)}
    if _is_supervised(spec, part.role):
        said |= _for_the_agent(job, spec, part.role, settings)
    fields = {"NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP", "POD_NAME": "metadata.name"}
    fields |= {"SHOAL_AGENT_ADDRESS": "status.podIP"} if "SHOAL_AGENT_MASTER" in said else {}
    told = [{"name": name, "value": value} for name, value in said.items() if name not in fields]
    return [*told, *({"name": n, "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in fields.items())]


def _original(job: TrainingSeen, spec: TrainingSpec, part: Instances) -> dict[str, str]:
    """What the first controller told its Pods. TRAINERS is the least number: there may be more at any time, and it is
    not for a Pod to count how many failures are too many."""
    entrypoint = spec.trainer.written.entrypoint or ""
    gpus = spec.trainer.resource.gpu_num or 0
    cores = math.ceil(spec.trainer.resource.cpu or 1)
    servers = spec.pserver.min if spec.pserver else 0
    written = spec.written
    return {
        "PADDLE_JOB_NAME": job.name,
        "TRAINERS": str(spec.trainer.min),
        "PSERVERS": str(servers),
        "ENTRY": entrypoint,
        "TOPOLOGY": entrypoint,
        "TRAINER_PACKAGE": spec.workspace or "",
        "TRAINING_ROLE": str(part.role).upper(),
        "PADDLE_INIT_PORT": str(spec.ports[0] if spec.ports else 0),
        "PADDLE_INIT_TRAINER_COUNT": str(gpus or cores),
        "PADDLE_INIT_PORTS_NUM": str(1 if written.ports_num is None else written.ports_num),
        "PADDLE_INIT_PORTS_NUM_FOR_SPARSE": str(
            1 if written.ports_num_for_sparse is None else written.ports_num_for_sparse
        ),
        "PADDLE_INIT_NUM_GRADIENT_SERVERS": str(spec.trainer.min),
        "PADDLE_INIT_NUM_PASSES": str(spec.passes),
        "PADDLE_INIT_USE_GPU": str(int(gpus > 0)),
        **({"PSERVER_SERVICE": f"{job.name}-pserver.{job.key.namespace}.svc"} if spec.pserver else {}),
        **({"MASTER_SERVICE": f"{job.name}-master.{job.key.namespace}.svc"} if spec.master else {}),
    }


def _for_the_agent(
    job: TrainingSeen, spec: TrainingSpec, role: TrainingRole, settings: OperatorSettings
) -> dict[str, str]:
    """It has no name: the master gives it one when it joins."""
    joins_as = str(Role.PS if role is TrainingRole.PSERVER else Role.WORKER)
    where = f"{object_name(job.name, TrainingRole.MASTER)}.{job.key.namespace}.svc:{settings.master_port}"
    return {
        "SHOAL_JOB": job.name,
        "SHOAL_ROLE": joins_as,
        "SHOAL_TOKEN_FILE": f"{SECRETS}/agent",
        "SHOAL_AGENT_MASTER": f"wss://{where}",
        "SHOAL_AGENT_FINGERPRINT_FILE": f"{SECRETS}/fingerprint",
        "SHOAL_AGENT_JOB": job.name,
        "SHOAL_AGENT_ROLE": joins_as,
        "SHOAL_AGENT_SLOTS": str(spec.slots),
        "SHOAL_AGENT_CONTAINER": "own",
        "SHOAL_AGENT_MASTER_TIMEOUT": str(int(settings.master_timeout.total_seconds())),
    }


def affinity(hosts: Mapping[str, int]) -> Manifest:
    """Rather on these hosts, and the more so the more of them should be there."""
    return {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": weight,
                    "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [host]}]},
                }
                for host, weight in preference(hosts).items()
            ]
        }
    }


# The master and its etcd -----------------------------------------------------------------------------------


def _our_master(job: TrainingSeen, spec: TrainingSpec, settings: OperatorSettings) -> Manifest:
    assert spec.master is not None
    etcd = f"{object_name(job.name, TrainingRole.ETCD)}.{job.key.namespace}.svc:{ETCD_PORT}"
    said = {
        "SHOAL_JOB": job.name,
        "SHOAL_JOB_UID": job.uid,
        "SHOAL_NAMESPACE": job.key.namespace,
        "SHOAL_PORT": str(settings.master_port),
        "SHOAL_STORE": f"etcd://{etcd}/{job.uid}",
        "SHOAL_MIN_NODES": str(spec.trainer.min),
        "SHOAL_MAX_NODES": str(spec.trainer.max),
        "SHOAL_SLOTS": str(spec.slots),
        "SHOAL_MAX_RESTARTS": str(spec.restarts),
    }
    if spec.pserver is not None and spec.servers_follow:
        said |= {"SHOAL_MIN_SERVERS": str(spec.pserver.min), "SHOAL_MAX_SERVERS": str(spec.pserver.max)}
    said |= _checkpoints(spec.written.checkpoint)
    if settings.log_format != "text":
        said["SHOAL_LOG_FORMAT"] = settings.log_format
    resources = _resources(spec.master.written.resources, settings) or {
        "requests": dict(settings.master_resources),
        "limits": {"memory": settings.master_memory_limit},
    }
    container: Manifest = {
        "name": str(TrainingRole.MASTER),
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": [SHOAL, "master", "--training"],
        "env": [
            *({"name": name, "value": value} for name, value in said.items()),
            {"name": "SHOAL_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "ports": [{"name": MASTER, "containerPort": settings.master_port}],
        **master_probes(settings),
        "resources": resources,
        "securityContext": LOCKED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": _TOKEN, "mountPath": SECRETS, "readOnly": True},
            {"name": _TMP, "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    volumes = [
        {"name": _TOKEN, "secret": {"secretName": token_name(job.name), "defaultMode": 0o440}},
        {"name": _TMP, "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
    ]
    return _beside(spec, container, volumes, settings)


def _checkpoints(written: Checkpoint | None) -> dict[str, str]:
    """What the job says of its checkpoints; what it does not say is the master's to know."""
    if written is None:
        return {}
    return {
        "SHOAL_CHECKPOINT_PATH": written.path,
        **({} if written.every_seconds is None else {"SHOAL_CHECKPOINT_SECONDS": str(written.every_seconds)}),
        **({} if written.keep is None else {"SHOAL_CHECKPOINT_KEEP": str(written.keep)}),
        **({"SHOAL_CHECKPOINT_FUZZY": "1"} if written.fuzzy else {}),
    }


def _etcd(job: TrainingSeen, spec: TrainingSpec, settings: OperatorSettings) -> Manifest:
    assert spec.etcd is not None
    name = object_name(job.name, TrainingRole.ETCD)
    hosts = {f"{name}-{number}": f"{name}-{number}.{name}.{job.key.namespace}.svc" for number in range(spec.etcd.max)}
    if spec.etcd.max == 1:
        hosts = {f"{name}-0": "127.0.0.1"}  # nobody else has to find it
    here = f"$(POD_NAME).{name}.{job.key.namespace}.svc"
    peer = "127.0.0.1" if spec.etcd.max == 1 else here
    words = {
        "name": "$(POD_NAME)",
        "data-dir": "/data/etcd",
        "listen-client-urls": f"http://0.0.0.0:{ETCD_PORT}",
        "advertise-client-urls": f"http://{here}:{ETCD_PORT}",
        "listen-peer-urls": f"http://{'127.0.0.1' if spec.etcd.max == 1 else '0.0.0.0'}:{PEER_PORT}",  # noqa: S104
        "initial-advertise-peer-urls": f"http://{peer}:{PEER_PORT}",
        "initial-cluster": ",".join(f"{member}=http://{host}:{PEER_PORT}" for member, host in hosts.items()),
        "initial-cluster-token": job.uid,
        "initial-cluster-state": "new",
        "auto-compaction-mode": "revision",
        "auto-compaction-retention": "1000",
    }
    container: Manifest = {
        "name": str(TrainingRole.ETCD),
        "image": settings.etcd_image,
        "command": ["etcd", *(f"--{word}={value}" for word, value in words.items())],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [{"name": "client", "containerPort": ETCD_PORT}, {"name": "peer", "containerPort": PEER_PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": ETCD_PORT}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": LOCKED,
        "volumeMounts": [{"name": _DATA, "mountPath": "/data"}],
    }
    volumes: list[Manifest] = [] if spec.etcd_storage is not None else [{"name": _DATA, "emptyDir": {}}]
    return _beside(spec, container, volumes, settings)


def _beside(spec: TrainingSpec, container: Manifest, volumes: list[Manifest], settings: OperatorSettings) -> Manifest:
    """A Pod of ours that stands beside the user's, on hosts that they may be on."""
    tolerations = spec.written.tolerations
    pod: Manifest = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 10,
        "securityContext": {"runAsNonRoot": True, "fsGroup": 65532},
        **({"nodeSelector": dict(spec.node_selector)} if spec.node_selector else {}),
        **({"tolerations": copy.deepcopy(tolerations)} if tolerations else {}),
        "containers": [container],
        **({"volumes": volumes} if volumes else {}),
    }
    pull_secrets(pod, settings)
    return pod
