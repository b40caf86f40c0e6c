"""Whether Shoal can work in a cluster at all: asked once, at the operator's start, and said with what to do about it.

- the four kinds are served, and by our definitions: those of another operator would let in what we cannot read;
- no operator of DLRover's runs on the same kinds: two would fight over the same Pods;
- the identity we have may do what the operator does.
"""

from collections.abc import Sequence

from shoal.core.errors import BadInput
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.errors import Forbidden, Permission
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS, TRAINING_JOBS
from shoal.platforms.kubernetes.objects import (
    ACCESS_REVIEWS,
    LEASES,
    PODS,
    AccessReviewSpec,
    ResourceAttributes,
    SelfSubjectAccessReview,
)

INSTALL = "kubectl apply --server-side -f install.yaml, or helm install"
_OURS = "shoal"
"""The category that our definitions put their kinds in."""
_NEEDED: Sequence[tuple[str, str, Sequence[str]]] = (
    (ELASTIC_JOBS.group, "elasticjobs", ("get", "list", "watch", "delete")),
    (ELASTIC_JOBS.group, "elasticjobs/status", ("get", "patch")),
    (SCALE_PLANS.group, "scaleplans", ("get", "list", "watch", "create", "patch")),
    (SCALE_PLANS.group, "scaleplans/status", ("patch",)),
    (JOB_RESOURCES.group, "jobresources", ("list", "watch")),
    (JOB_RESOURCES.group, "jobresources/status", ("patch",)),
    (TRAINING_JOBS.group, "trainingjobs", ("list", "watch")),
    (TRAINING_JOBS.group, "trainingjobs/status", ("patch",)),
    ("apps", "replicasets", ("get", "list", "watch", "create", "patch", "delete")),
    ("apps", "statefulsets", ("get", "list", "watch", "create", "patch", "delete")),
    ("batch", "jobs", ("get", "list", "watch", "create", "patch", "delete")),
    ("", "pods/eviction", ("create",)),
    ("", "pods", ("get", "list", "watch", "create", "patch", "delete")),
    ("", "pods/resize", ("patch",)),
    ("", "resourcequotas", ("list", "watch")),
    ("", "secrets", ("get", "create", "patch")),
    ("", "services", ("get", "create", "patch")),
    ("", "serviceaccounts", ("get", "create", "patch")),
    ("rbac.authorization.k8s.io", "roles", ("get", "create", "patch")),
    ("rbac.authorization.k8s.io", "rolebindings", ("get", "create", "patch")),
    ("networking.k8s.io", "networkpolicies", ("get", "create", "patch")),
    ("events.k8s.io", "events", ("create", "patch")),
)
"""Where the jobs are. Some of it the operator never does itself: it must have what the Roles of the masters grant."""


async def check_installation(client: Client, *, namespace: str | None, home: str, lease: str) -> None:
    """Raises `BadInput` with everything that is missing. `namespace`: where the jobs are; None: in all of them. `home`:
    where the lease is."""
    await _check_kinds(client)
    await _check_alone(client, namespace)
    await _check_permissions(client, namespace, home, lease)


async def _check_kinds(client: Client) -> None:
    for kind in (ELASTIC_JOBS, SCALE_PLANS, JOB_RESOURCES, TRAINING_JOBS):
        found = await client.get_path(f"/apis/{kind.group}/{kind.version}") or {}
        served = next((each for each in found.get("resources", []) if each.get("name") == kind.plural), None)
        if served is None:
            raise BadInput(
                f"the cluster does not know {kind.plural}.{kind.group}: install Shoal's definitions ({INSTALL})"
            )
        if _OURS not in (served.get("categories") or []):
            raise BadInput(
                f"{kind.plural}.{kind.group} is defined by another operator, DLRover's perhaps: two operators on the "
                f"same objects would fight. Remove the other one, then install Shoal's definitions ({INSTALL})"
            )


async def _check_alone(client: Client, namespace: str | None) -> None:
    try:
        pods = await client.list(PODS, namespace=namespace, labels="control-plane=controller-manager")
    except Forbidden:
        return  # said by the check of permissions
    for pod in pods.items:
        if any("dlrover" in container.image for container in pod.spec.containers):
            raise BadInput(
                f"DLRover's operator runs here ({pod.metadata.namespace}/{pod.metadata.name}) and serves the same "
                "kinds: two operators on the same objects would fight. Remove it before you start Shoal's"
            )


async def _check_permissions(client: Client, namespace: str | None, home: str, lease: str) -> None:
    needed = [
        (Permission(verb=verb, group=group, resource=resource, namespace=namespace), "")
        for group, resource, verbs in _NEEDED
        for verb in verbs
    ]
    needed += [
        (Permission(verb=verb, group=LEASES.group, resource=LEASES.plural, namespace=home), name)
        for verb, name in (("create", ""), ("get", lease), ("update", lease))
    ]
    missing = [str(permission) for permission, name in needed if not await _may(client, permission, name)]
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise BadInput(f"the operator lacks permissions: {'; '.join(missing[:8])}{more}. Install its roles ({INSTALL})")


async def _may(client: Client, permission: Permission, name: str) -> bool:
    """`name`: of the one object that it is about; empty: any."""
    resource, _, subresource = permission.resource.partition("/")
    asked = ResourceAttributes(
        namespace=permission.namespace or "",
        verb=permission.verb,
        group=permission.group,
        resource=resource,
        subresource=subresource,
        name=name,
    )
    review = SelfSubjectAccessReview(spec=AccessReviewSpec(resource_attributes=asked))
    return (await client.create(ACCESS_REVIEWS, review)).status.allowed
