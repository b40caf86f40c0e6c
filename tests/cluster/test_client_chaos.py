"""Client and informer in front of a real API server, with everything going wrong in between."""

from collections.abc import Callable

import pytest
from hack.kube.harness import Cluster
from tests.cluster.chaos import ROUGH, Chaos
from tests.platforms.kubernetes.builders import QUICK_CLIENT
from tests.platforms.kubernetes.disorder import survive

from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.config import load


@pytest.mark.parametrize("seed", range(3))
async def test_a_cache_behind_a_bad_connection_ends_equal_to_the_server(
    seed: int, control_plane: Cluster, make_namespace: Callable[[Cluster], str]
) -> None:
    namespace = make_namespace(control_plane)
    access = load([control_plane.kubeconfig], environment={})
    async with Client(access, QUICK_CLIENT) as direct:
        async with Chaos(access, seed=seed, odds=ROUGH) as chaos:
            await survive(chaos, direct, namespace, seed=seed, steps=150)
        assert len(chaos.faults) > 8, chaos.faults
