"""Real clusters, one for each tier and test run; each is started when the first test asks for it.

`control_plane` has no node, so Pods stay Pending. `kwok` has simulated hosts, which a test adds as it needs them (and
removes). `real_node` has a node that runs Pods. What costs seconds is shared; what tests could disturb each other in is
not: `namespace` is one of the test's own, in the cluster of its tier.
"""

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hack.image.images import no_python_image, shoal_image
from hack.kube.harness import Cluster, Unavailable
from tests.cluster.operators import install

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from running("control plane", lambda: Cluster(tmp_path_factory.mktemp("control-plane")))


@pytest.fixture(scope="session")
def kwok(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from running("simulated hosts", lambda: Cluster(tmp_path_factory.mktemp("kwok"), simulated_hosts=True))


@pytest.fixture(scope="session")
def real_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from running("real node", lambda: Cluster(tmp_path_factory.mktemp("real-node"), node=True))


@pytest.fixture(scope="session")
def shoal_node(real_node: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The real node with our definitions and images. No operator: who wants one has its own, or `deploy`s it."""
    install(real_node)
    real_node.node.load(shoal_image(tmp_path_factory.mktemp("bundle") / "shoal"))
    real_node.node.load(no_python_image())
    return real_node


@pytest.fixture
def make_namespace(request: pytest.FixtureRequest) -> Iterator[Callable[[Cluster], str]]:
    """Makes a namespace named for the test, and deletes it with all that is in it when the test is over."""
    made: list[tuple[Cluster, str]] = []

    def make(cluster: Cluster) -> str:
        words = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:40]
        made.append((cluster, cluster.namespace(f"{words}-{uuid.uuid4().hex[:6]}")))
        return made[-1][1]

    yield make
    for cluster, name in made:
        cluster.api.delete(f"/api/v1/namespaces/{name}")  # the rest happens behind our back


def running(tier: str, make: Callable[[], Cluster]) -> Iterator[Cluster]:
    try:
        cluster = make()
    except Unavailable as error:
        pytest.skip(f"tier {tier}: {error}")
    with cluster:
        yield cluster
