"""TensorFlow's own processes, forked from one that has it imported. Without TensorFlow these tests are skipped."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="TensorFlow is not installed"))


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """Three parameter servers, which a module's tests share: each test has its own versions."""
    from tests.tensorflow.nodes import start_ps

    servers = start_ps(3)
    yield [server.address for server in servers]
    for server in servers:
        server.kill()
