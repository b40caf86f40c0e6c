"""A real master without nodes of its own: whoever comes joins by itself."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from shoal.core.job import JobSettings, JobSpec
from shoal.core.nodes import Node
from shoal.core.view import DecisionView, JobView
from shoal.master import Master
from shoal.platforms.local import LocalLaunch, LocalScaler
from shoal.wire.tokens import JobKeys, Purpose


@dataclass
class RunningMaster:
    master: Master
    token: str
    ended: "asyncio.Task[JobView]"
    said: list[str]
    news: asyncio.Event

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.master.port}"

    async def says(self, words: str) -> str:
        """Wait for a decision with these words in it."""
        while True:
            for reason in self.said:
                if words in reason:
                    return reason
            self.news.clear()
            await self.news.wait()


StartMaster = Callable[..., Awaitable[RunningMaster]]


def _nothing_to_launch(node: Node) -> LocalLaunch:
    raise AssertionError(f"{node.id} was launched, but every node of this job joins by itself")


async def run_master(*, awaited: int = 0, nodes: tuple[int, int] = (1, 4), nproc: int = 1) -> RunningMaster:
    keys = JobKeys.new("mnist.0a1b2c")
    low, high = nodes
    master = Master(
        JobSpec(name="mnist", uid=keys.uid, min_nodes=low, max_nodes=high, nproc=nproc),
        # The last call outlasts the start of torchrun on a busy machine.
        JobSettings(last_call=timedelta(minutes=1), grace=timedelta(seconds=1), end_slack=timedelta(seconds=1)),
        scaler=LocalScaler(_nothing_to_launch, lambda node, line, err: None),
        keys=keys,
        nodes=0,
        awaited_joins=awaited,
    )
    said: list[str] = []
    news = asyncio.Event()

    def heard(decision: DecisionView) -> None:
        said.append(decision.reason)
        news.set()

    master.on_decision(heard)
    await master.start()
    ended = asyncio.create_task(master.run())
    return RunningMaster(master=master, token=keys.token(Purpose.AGENT), ended=ended, said=said, news=news)
