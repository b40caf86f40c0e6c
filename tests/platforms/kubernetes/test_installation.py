"""What an operator asks of a cluster before it starts: everything that it will need, and no more."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from shoal.core.errors import BadInput
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.errors import Permission
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.installation import check_installation
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS, TRAINING_JOBS

INSTALL = Path(__file__).parents[3] / "deploy" / "install.yaml"
FOR_OTHER_CLUSTERS = {"elasticjobs/finalizers", "trainingjobs/finalizers"}
"""Asked for by an admission plug-in that few clusters have (OwnerReferencesPermissionEnforcement)."""
OPTIONAL = {"nodes", "configmaps"}
"""Without them the operator works with less: it sees no hosts, or has its default settings."""
HOME = "shoal-system"


async def checked(may: Callable[[Permission], bool]) -> None:
    async with FakeApiServer(allow=lambda _, permission: may(permission)) as server:
        for kind in (ELASTIC_JOBS, SCALE_PLANS, JOB_RESOURCES, TRAINING_JOBS):
            server.serve(kind, categories=("shoal",))
        async with Client(server.access()) as client:
            await check_installation(client, namespace=None, home=HOME, lease="shoal-operator")


async def test_it_asks_for_all_that_is_shipped() -> None:
    asked: set[tuple[str, str, str]] = set()

    def may(permission: Permission) -> bool:
        asked.add((permission.group, permission.resource, permission.verb))
        return True

    await checked(may)
    shipped = {
        (group, resource, verb)
        for role in yaml.safe_load_all(INSTALL.read_text())
        if role and role["kind"] in ("ClusterRole", "Role") and "operator" in role["metadata"]["name"]
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if resource not in FOR_OTHER_CLUSTERS | OPTIONAL
    }
    assert asked - {("authorization.k8s.io", "selfsubjectaccessreviews", "create")} == shipped


@pytest.mark.parametrize(
    ("verb", "resource", "said"),
    [
        ("patch", "pods/resize", "patch pods/resize cluster-wide"),
        ("create", "events", "create events of events.k8s.io cluster-wide"),
        ("update", "leases", f"update leases of coordination.k8s.io in namespace {HOME}"),
        ("create", "leases", f"create leases of coordination.k8s.io in namespace {HOME}"),
        ("patch", "secrets", "patch secrets cluster-wide"),
        ("patch", "scaleplans", "patch scaleplans of elastic.iml.github.io cluster-wide"),
    ],
)
async def test_what_it_may_not_do_is_said_before_it_starts(verb: str, resource: str, said: str) -> None:
    with pytest.raises(BadInput, match=f"lacks permissions: {said}. Install its roles"):
        await checked(lambda permission: (permission.verb, permission.resource) != (verb, resource))
