"""Plain PyTorch scripts over a store that the agent listens for and torch serves: real torch, real gloo."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.real_agents import Agents
from tests.agent.small_master import a_master

from shoal.core.world import WorldSettings
from shoal.wire.messages import Exited

pytest.importorskip("torch", reason="PyTorch is not installed")

ALL_REDUCE = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
print("sum", int(ones.item()), "of", dist.get_world_size(), flush=True)
if os.environ["WORLD_SIZE"] == "2" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(60)
dist.destroy_process_group()
"""


@pytest.mark.torch
async def test_plain_processes_meet_at_the_store_and_again_after_the_host_of_the_store_is_lost(agents: Agents) -> None:
    async with a_master(nodes=2) as master:
        first = agents.start(master, ALL_REDUCE, store_warm_delay=0.0)
        second = agents.start(master, ALL_REDUCE, node="worker-1", store_warm_delay=0.0)
        await agents.logged("sum 2 of 2")
        await agents.logged("sum 2 of 2", node="worker-1")
        # The node of group rank 0 goes, and with it the store of the first world.
        host, other = (first, second) if master.worlds[0].members[0].node == "worker-0" else (second, first)
        survivor = "worker-1" if host is first else "worker-0"
        settings: WorldSettings = replace(master.rendezvous.settings, max_nodes=2)
        master.rendezvous = replace(master.rendezvous, settings=settings)
        host.cancel()
        await asyncio.gather(host, return_exceptions=True)
        master.lose("worker-0" if host is first else "worker-1")
        assert await other == 0
        assert "sum 1 of 1" in agents.log(node=survivor)
        assert not master.all(Exited, survivor)
        assert len(master.worlds) == 2


@pytest.mark.torch
async def test_the_store_host_is_not_started_for_a_script_that_does_not_connect(agents: Agents) -> None:
    async with a_master() as master:
        agent = agents.start(master, "import time; print('up', flush=True); time.sleep(60)")
        await agents.logged("up")
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            names = [Path(f"/proc/{pid}/cmdline").read_text() for pid in file.read().split()]
        assert not any("store_host" in name for name in names)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await agent == 128 + signal.SIGTERM
