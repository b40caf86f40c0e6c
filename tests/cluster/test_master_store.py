"""The contract of all stores, for a Secret of a real API server, with no more rights than a master has."""

import json
from collections.abc import AsyncIterator, Callable

import pytest
from hack.kube.harness import Cluster
from tests.stores.conftest import OpenStore
from tests.stores.test_contract import (
    test_a_new_job_has_no_records_and_the_first_term,
    test_claiming_again_and_again_loses_nothing,
    test_compacting_leaves_one_record_to_which_others_are_added,
    test_large_and_empty_records_come_back,
    test_of_two_masters_at_once_one_can_write,
    test_the_next_master_finds_all_records_in_order,
)

from shoal.core.errors import StateUnreadable
from shoal.core.ports import StateStore
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.config import load
from shoal.platforms.kubernetes.store import SecretStore

__all__ = [
    "test_a_new_job_has_no_records_and_the_first_term",
    "test_claiming_again_and_again_loses_nothing",
    "test_compacting_leaves_one_record_to_which_others_are_added",
    "test_large_and_empty_records_come_back",
    "test_of_two_masters_at_once_one_can_write",
    "test_the_next_master_finds_all_records_in_order",
]


@pytest.fixture
def namespace(control_plane: Cluster, make_namespace: Callable[[Cluster], str]) -> str:
    return make_namespace(control_plane)


@pytest.fixture
async def master(control_plane: Cluster, namespace: str) -> AsyncIterator[Client]:
    """A client with the rights of a job's master on its state."""
    kubeconfig = control_plane.service_account(namespace, "j-master")
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["j-state"], "verbs": ["get", "patch"]}
    for body in (
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "j-state"}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "j-master"},
            "rules": [rule],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "j-master"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "j-master"},
            "subjects": [{"kind": "ServiceAccount", "name": "j-master", "namespace": namespace}],
        },
    ):
        control_plane.kubectl("apply", "--namespace", namespace, "-f", "-", stdin=json.dumps(body))
    async with Client(load([kubeconfig], environment={})) as client:
        yield client


@pytest.fixture
def open_store(master: Client, namespace: str) -> OpenStore:
    def one_more() -> StateStore:
        return SecretStore(master, namespace=namespace, name="j-state")

    return one_more


async def test_a_master_has_no_right_to_another_jobs_state(master: Client, namespace: str) -> None:
    with pytest.raises(StateUnreadable, match="lacks the permission to get secrets"):
        await SecretStore(master, namespace=namespace, name="other-state").claim()
