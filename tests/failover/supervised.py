"""A `Supervisor` with a real master process and real agents, in this process: for what `shoal run` offers no flag."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil
from tests.e2e.harness import environment

from shoal.cli.addresses import listening
from shoal.cli.master import MasterConfig, words
from shoal.cli.supervisor import MasterCommand, Supervisor
from shoal.cli.torchrun import Address
from shoal.core.job import JobSettings, JobSpec, new_job
from shoal.core.job import view as view_of
from shoal.core.nodes import Node
from shoal.core.view import JobView
from shoal.platforms.local import LocalLaunch, LocalScaler
from shoal.wire.tokens import JobKeys, Purpose

PATIENCE = 60


class Supervised:
    def __init__(self, supervisor: Supervisor, state: Path, notes: list[str]) -> None:
        self.supervisor = supervisor
        self.notes = notes
        self._state = state
        self._task = asyncio.create_task(supervisor.run())

    async def until(self, holds: Callable[[JobView], bool]) -> JobView:
        async with asyncio.timeout(PATIENCE):
            while not holds(view := self.supervisor.view):
                assert not self._task.done(), (self._task, self.notes)
                await asyncio.sleep(0.02)
        return view

    async def ended(self) -> JobView:
        async with asyncio.timeout(PATIENCE):
            return await self._task

    @property
    def master_pid(self) -> int:
        return int((self._state / "lock").read_text())

    def find_master(self) -> int:
        """Without its lock: the child that was started first."""
        children = [p for p in psutil.Process().children() if "master" in p.cmdline()]
        return min(children, key=lambda process: process.create_time()).pid

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        with suppress(asyncio.CancelledError):
            self._task.exception()


@asynccontextmanager
async def supervised(tmp: Path, *, silent_seconds: float = 30.0) -> AsyncIterator[Supervised]:
    """One node whose process sleeps."""
    sockets = listening(Address(host="127.0.0.1", port=0))
    port = sockets[0].getsockname()[1]
    url, keys = f"http://127.0.0.1:{port}", JobKeys.new("job.1")
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    spec = JobSpec(name="job", uid=keys.uid, min_nodes=1, max_nodes=1, command=command)
    config = MasterConfig(
        spec=spec,
        settings=JobSettings(),
        uid=keys.uid,
        install_key=keys.install_key,
        host="127.0.0.1",
        port=port,
        cert_pem=None,
        key_pem=None,
        fingerprint=None,
        names=(),
        nodes=1,
        awaited_joins=0,
    )
    (tmp / "master.json").write_bytes(msgspec.json.encode(config))
    base, now, notes = environment(tmp / "home"), datetime.now(UTC), list[str]()

    def launch(node: Node) -> LocalLaunch:
        flags = ("--master", f"ws://127.0.0.1:{port}", "--job", "job", "--node", node.id)
        token = keys.token(Purpose.AGENT)
        return LocalLaunch(
            argv=(sys.executable, "-m", "shoal", "agent", *flags, "--", *command), env={**base, "SHOAL_TOKEN": token}
        )

    descriptors = tuple(each.fileno() for each in sockets)
    supervisor = Supervisor(
        MasterCommand(
            argv=(sys.executable, "-m", "shoal", *words(tmp / "master.json", str(tmp / "state"), descriptors)),
            environment=base,
            sockets=descriptors,
        ),
        LocalScaler(launch, lambda node, line, is_stderr: notes.append(line.decode())),
        url=url,
        token=keys.token(Purpose.ADMIN),
        fingerprint=None,
        first=view_of(new_job(spec, JobSettings(), nodes=1, now=now)[0], now),
        seen=lambda view: None,
        note=notes.append,
        silent_seconds=silent_seconds,
    )
    job = Supervised(supervisor, tmp / "state", notes)
    try:
        yield job
    finally:
        await job.end()
        for each in sockets:
            each.close()
