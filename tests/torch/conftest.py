import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.torch.crew import Crew, dismiss


@pytest.fixture(scope="module", autouse=True)
def no_child_stays() -> Iterator[None]:
    yield
    dismiss()


@pytest.fixture
def a_crew(tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    crews: list[Crew] = []

    def make(*, max_nodes: int, min_nodes: int = 1, name: str = "run") -> Crew:
        directory = tmp_path / name
        directory.mkdir()
        crews.append(Crew(directory, max_nodes=max_nodes, min_nodes=min_nodes))
        return crews[-1]

    yield make
    for crew in crews:
        crew.close()
