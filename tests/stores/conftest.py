"""The stores there are, each as a way to open one more on the same state."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shoal.core.ports import StateStore
from shoal.stores import FileStore, MemoryState, MemoryStore

OpenStore = Callable[[], StateStore]


@pytest.fixture(params=["memory", "file"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Each call is one more master that comes to the same job's state."""
    async with AsyncExitStack() as opened:
        if request.param == "memory":
            state = MemoryState()

            def one_more() -> StateStore:
                return MemoryStore(state)

        elif request.param == "file":

            def one_more() -> StateStore:
                return FileStore(tmp_path / "state")

        else:
            from shoal.stores.etcd import EtcdStore

            etcd = request.getfixturevalue("etcd")

            def one_more() -> StateStore:
                return EtcdStore(etcd, prefix=f"/test/{tmp_path.name}")

        def make() -> StateStore:
            store = one_more()
            opened.push_async_callback(store.close)
            return store

        yield make
