"""The stores there are, each as a way to open one more on the same state."""

import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shoal.core.ports import StateStore
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.objects import SECRETS, ObjectMeta, Secret
from shoal.platforms.kubernetes.store import SecretStore
from shoal.stores import FileStore, MemoryState, MemoryStore
from shoal.stores.etcd import EtcdStore

BUILD = Path(__file__).parents[2] / "hack" / "etcd" / "build"

OpenStore = Callable[[], StateStore]


@pytest.fixture(params=["memory", "file", "etcd", "kubernetes"])
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

        elif request.param == "kubernetes":
            server = await opened.enter_async_context(FakeApiServer())
            client = await opened.enter_async_context(Client(server.access()))
            await client.create(SECRETS, Secret(metadata=ObjectMeta(name="job-state", namespace="default")))

            def one_more() -> StateStore:
                return SecretStore(client, namespace="default", name="job-state")

        else:
            etcd = request.getfixturevalue("etcd")

            def one_more() -> StateStore:
                return EtcdStore(etcd, prefix=f"/test/{tmp_path.name}")

        def make() -> StateStore:
            store = one_more()
            opened.push_async_callback(store.close)
            return store

        yield make


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real etcd."""
    if shutil.which("go") is None:
        pytest.skip("etcd is built with Go, which is not installed")
    built = subprocess.run([BUILD], capture_output=True, text=True)
    if built.returncode != 0:
        pytest.skip(f"etcd cannot be built here: {built.stderr.strip().splitlines()[-1:]}")
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    words = [
        *("--data-dir", str(tmp_path_factory.mktemp("etcd")), "--log-level", "error"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
    ]
    process = subprocess.Popen([built.stdout.strip(), *words])
    try:
        wait_for(f"{client}/health", process)
        yield client
    finally:
        process.kill()
        process.wait()


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                answer.read()
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.05)
