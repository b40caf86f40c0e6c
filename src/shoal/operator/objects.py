"""The fixed objects of a job: what exists beside its Pods, made once, owned by the ElasticJob.

All of it is worked out from the job and the install key, so making it again makes the same: the tokens are HMACs, the
certificate comes from a secret derived the same way. What the master may do stands in its Role: read and patch three
objects by name, and with `pod_scaler` make and delete Pods. Training Pods have an account of their own: nobody grants
it anything, and no token of it is in them.
"""

import base64
import hmac
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from shoal.api.elasticjob import API_VERSION, KIND
from shoal.api.labels import GROUP, JOB_NAME, JOB_UID, MASTER, ROLE, TERM
from shoal.api.scaleplan import JOB_LABEL, TYPE_LABEL, ScaleType
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import JobSeen
from shoal.wire.tls import Certificate, certificate_from_secret
from shoal.wire.tokens import JobKeys, Purpose

Manifest = dict[str, Any]

MANAGER = "shoal-operator"
TENSORFLOW_PORT = 2222
"""Where members of a job with `tfConfig` serve each other; each is alone in its Pod."""
FORM = "2"
"""The form of the fixed objects. Raised when they change, so that existing jobs get the new ones."""


def form_of(term: int) -> str:
    return f"{FORM}.{term}"


def auto_name(job: str) -> str:
    return f"{job}-auto"


def token_name(job: str) -> str:
    return f"{job}-token"


def service_name(job: str) -> str:
    return f"{job}-master"


def agent_name(job: str) -> str:
    return f"{job}-agent"


def members_name(job: str) -> str:
    return f"{job}-members"


def owner(job: JobSeen) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def labels(job: JobSeen, component: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "shoal",
        "app.kubernetes.io/instance": job.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "shoal",
        "app.kubernetes.io/managed-by": MANAGER,
        JOB_NAME: job.name,
        JOB_UID: job.uid,
    }


def metadata(job: JobSeen, name: str, component: str, **more: str) -> Manifest:
    return {
        "name": name,
        "namespace": job.key.namespace,
        "labels": {**labels(job, component), **more},
        "ownerReferences": [owner(job)],
    }


def fixed_objects(job: JobSeen, term: int, settings: OperatorSettings) -> tuple[Manifest, ...]:
    """Everything that must be there before the master's Pod can run."""
    named = job.spec is not None and job.spec.tf_config
    return (
        token_secret(job, settings),
        _state_secret(job),
        auto_plan(job),
        _service_account(job, service_name(job.name), MASTER),
        _service_account(job, agent_name(job.name), "agent"),
        _role(job, settings),
        _role_binding(job),
        _network_policy(job, settings),
        service(job, term, settings),
        *((_members_service(job),) if named else ()),
    )


def certificate(uid: str, settings: OperatorSettings) -> Certificate:
    return _certificate(hmac.digest(settings.install_key, uid.encode() + b"\0tls", "sha256"))


@lru_cache(maxsize=64)
def _certificate(secret: bytes) -> Certificate:
    """Kept for a while: a job's first tries may come close together."""
    return certificate_from_secret(secret)


def token_secret(job: JobSeen, settings: OperatorSettings) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, token_name(job.name), MASTER),
        "type": "Opaque",
        "immutable": True,
        "data": token_data(job.uid, settings),
    }


def token_data(uid: str, settings: OperatorSettings) -> dict[str, str]:
    """What master and agents of the job with this uid know each other by."""
    keys = JobKeys(uid=uid, install_key=settings.install_key)
    cert = certificate(uid, settings)
    data = {
        "agent": keys.token(Purpose.AGENT).encode(),
        "admin": keys.token(Purpose.ADMIN).encode(),
        "tls.crt": cert.cert_pem,
        "tls.key": cert.key_pem,
        "fingerprint": cert.fingerprint.encode(),
    }
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


def _state_secret(job: JobSeen) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, f"{job.name}-state", MASTER),
        "type": "Opaque",
    }


def auto_plan(job: JobSeen) -> Manifest:
    """The master's plan, empty: the master may patch it, not create it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ScalePlan",
        "metadata": metadata(
            job, auto_name(job.name), MASTER, **{JOB_LABEL: job.name, TYPE_LABEL: str(ScaleType.AUTO)}
        ),
        "spec": {"ownerJob": job.name},
    }


def service(job: JobSeen, term: int, settings: OperatorSettings) -> Manifest:
    """Where the newest master is. A master is found before it is ready: agents are what it waits for."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, service_name(job.name), MASTER),
        "spec": {
            "selector": {JOB_UID: job.uid, ROLE: MASTER, TERM: str(term)},
            "ports": [
                {"name": "master", "port": settings.master_port, "targetPort": settings.master_port, "protocol": "TCP"}
            ],
            "publishNotReadyAddresses": True,
        },
    }


def _members_service(job: JobSeen) -> Manifest:
    """Names for members by role and rank, for scripts that have one `TF_CONFIG` for life. Whoever is about to go has no
    name any more: it is its successor's."""
    port = {"name": "tensorflow", "port": TENSORFLOW_PORT, "targetPort": TENSORFLOW_PORT, "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, members_name(job.name), MASTER),
        "spec": {"clusterIP": "None", "selector": {JOB_UID: job.uid}, "ports": [port]},
    }


def _service_account(job: JobSeen, name: str, component: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(job, name, component),
        "automountServiceAccountToken": False,
    }


def _role(job: JobSeen, settings: OperatorSettings) -> Manifest:
    def rule(group: str, resource: str, name: str, *verbs: str) -> Manifest:
        return {"apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": list(verbs)}

    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(job, service_name(job.name), MASTER),
        "rules": [
            rule(GROUP, "elasticjobs", job.name, "get", "list", "watch"),
            rule(GROUP, "elasticjobs/status", job.name, "get", "patch"),
            rule(GROUP, "scaleplans", auto_name(job.name), "get", "list", "watch", "patch"),
            rule("", "secrets", f"{job.name}-state", "get", "patch"),
            *(_pod_rules(job) if settings.pod_scaler else ()),
        ],
    }


def _pod_rules(job: JobSeen) -> tuple[Manifest, ...]:
    """For a master that makes its Pods itself. Pods have no names to restrict this to before they are made: it is the
    right to every Pod of the namespace, and a Pod can mount any of its Secrets. The finalizers are for clusters that
    let only those own an object in an ElasticJob's name who may change them."""
    return (
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
        {
            "apiGroups": [GROUP],
            "resources": ["elasticjobs/finalizers"],
            "resourceNames": [job.name],
            "verbs": ["update"],
        },
    )


def _role_binding(job: JobSeen) -> Manifest:
    name = service_name(job.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(job, name, MASTER),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": job.key.namespace}],
    }


def _network_policy(job: JobSeen, settings: OperatorSettings) -> Manifest:
    return network_policy(metadata(job, job.name, "job"), job.uid, settings)


def network_policy(meta: Manifest, uid: str, settings: OperatorSettings) -> Manifest:
    """Only the job's own Pods and the operator reach its Pods: stores and collectives have no password."""
    sources: list[Mapping[str, Any]] = [{"podSelector": {"matchLabels": {JOB_UID: uid}}}]
    if settings.operator_namespace is not None:
        sources.append(
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.operator_namespace}},
                "podSelector": {
                    "matchLabels": {"app.kubernetes.io/name": "shoal", "app.kubernetes.io/component": "operator"}
                },
            }
        )
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": meta,
        "spec": {
            "podSelector": {"matchLabels": {JOB_UID: uid}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": sources}],
        },
    }
