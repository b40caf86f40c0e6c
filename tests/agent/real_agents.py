"""Agents that run in the test's process; their training processes are real."""

import asyncio
import os
import sys
from pathlib import Path

from tests.agent.small_master import TOKEN, SmallMaster

from shoal.agent.settings import AgentSettings, ReconnectSettings
from shoal.agent.shell import run

LINK = """
import os, sys, threading, queue, time
from shoal.wire.local import *
from shoal.wire.messages import *
inbox = queue.Queue()
rank = int(os.environ["LOCAL_RANK"])
link = LocalLink(os.environ["SHOAL_AGENT_SOCKET"], local_rank=rank, handle=inbox.put, report=lambda: None,
                 closed=lambda: os._exit(3))
def get(kind):
    while True:
        message = inbox.get(timeout=90)
        if isinstance(message, kind):
            return message
def world(step, key=None):
    "Wait for a world: its message, and this process's rank in it."
    link.send(LocalReady(step=step))
    while True:
        prepared = get(Prepare).world
        link.send(LocalAck(generation=prepared.generation, store={key or f"key{rank}": b"blob"}))
        message = get((Commit, Prepare, Interrupt))
        if isinstance(message, Commit):
            return prepared, message
"""
"""The beginning of a training script that speaks to its agent, without torch."""


class Agents:
    """The agents of one test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tasks: list[asyncio.Task[int]] = []

    def settings(
        self, master: SmallMaster, script: str, *, node: str | None = "worker-0", **more: object
    ) -> AgentSettings:
        values: dict[str, object] = {
            "master": master.url,
            "token": TOKEN,
            "job": "mnist",
            "node": node,
            "command": (sys.executable, "-c", script),
            "python": sys.executable,
            "host": "here",
            "environment": dict(os.environ),
            "log_dir": self.directory / "logs",
            "grace": 5.0,
            "plain_grace": 2.0,
            "reconnect": ReconnectSettings(first_delay=0.01, longest_delay=0.05, master_timeout=10.0),
            **more,
        }
        return AgentSettings(**values)  # type: ignore[arg-type]

    def start(
        self, master: SmallMaster, script: str, *, fds: tuple[int, int] = (1, 2), **more: object
    ) -> "asyncio.Task[int]":
        settings = self.settings(master, script, **more)
        task = asyncio.get_running_loop().create_task(run(settings, stdout=fds[0], stderr=fds[1]))
        self.tasks.append(task)
        return task

    def log(self, *, node: str = "worker-0", incarnation: int = 1, rank: int = 0, stream: str = "stdout") -> str:
        path = self.directory / "logs" / node / str(incarnation) / str(rank) / f"{stream}.log"
        return path.read_text() if path.exists() else ""

    async def logged(self, text: str, **where: object) -> str:
        """The log, once this text is in it."""
        async with asyncio.timeout(90):
            while text not in (log := self.log(**where)):  # type: ignore[arg-type]
                await asyncio.sleep(0.01)
        return log
