"""Nothing outlives an agent: agents as processes of their own, ended in every way."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.agent.real_agents import Agents
from tests.agent.small_master import TOKEN, SmallMaster, a_master

from shoal.wire.messages import Exited, Left

AGENT = f"""
import asyncio, os, sys
from pathlib import Path
from shoal import agent
url, logs, script, slots, node = sys.argv[1:]
settings = agent.AgentSettings(
    master=url, token={TOKEN!r}, job="mnist", node=node or None, slots=int(slots),
    command=(sys.executable, "-c", script), python=sys.executable, host="here", environment=dict(os.environ),
    log_dir=Path(logs), grace=5.0,
)
sys.exit(asyncio.run(agent.run(settings)))
"""

WITH_A_CHILD = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
print("pids", os.getpid(), child.pid, "x", flush=True)
time.sleep(600)
"""


@asynccontextmanager
async def an_agent(
    master: SmallMaster, agents: Agents, script: str, slots: int = 1, node: str = "worker-0"
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, master.url, str(agents.directory / "logs"), script, str(slots), node
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def pids(agents: Agents, slots: int = 1) -> list[int]:
    found: list[int] = []
    for rank in range(slots):
        found += [int(word) for word in (await agents.logged("x\n", rank=rank)).split()[1:3]]
    return found


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def all_gone(found: list[int]) -> None:
    async with asyncio.timeout(10):
        while any(is_alive(pid) for pid in found):
            await asyncio.sleep(0.01)


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


async def test_a_killed_agent_leaves_neither_processes_nor_their_children_nor_its_guard(
    master: SmallMaster, agents: Agents
) -> None:
    async with an_agent(master, agents, WITH_A_CHILD, slots=2) as agent:
        found = await pids(agents, slots=2)
        found += children(agent.pid)  # the guard is among them
        assert len(set(found)) == 5
        assert all(is_alive(pid) for pid in found)
        agent.kill()
        assert await agent.wait() == -signal.SIGKILL
        await all_gone(found)


@pytest.mark.parametrize("killed", [True, False])
async def test_not_even_a_child_with_a_session_of_its_own_outlives_the_agent(
    master: SmallMaster, agents: Agents, killed: bool
) -> None:
    daemon = WITH_A_CHILD.replace('["sleep", "600"]', '["sleep", "600"], start_new_session=True')
    async with an_agent(master, agents, daemon) as agent:
        found = await pids(agents)
        agent.send_signal(signal.SIGKILL if killed else signal.SIGINT)
        agent.send_signal(signal.SIGTERM)
        await agent.wait()
        await all_gone(found)


async def test_the_guard_survives_what_a_terminal_sends(master: SmallMaster, agents: Agents) -> None:
    async with an_agent(master, agents, WITH_A_CHILD) as agent:
        found = await pids(agents)
        (guard,) = set(children(agent.pid)) - set(found)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(guard, number)
        assert os.getsid(guard) == guard
        assert Path(f"/proc/{guard}/cmdline").read_bytes().strip(b"\0") == b"shoal-guard", "ps shows one agent, not two"
        agent.kill()
        await all_gone([*found, guard])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_forwarded_and_the_end_reported(
    master: SmallMaster, agents: Agents, number: signal.Signals
) -> None:
    polite = WITH_A_CHILD.replace("SIG_IGN", "SIG_DFL")
    async with an_agent(master, agents, polite) as agent:
        found = await pids(agents)
        agent.send_signal(number)
        assert await agent.wait() == 128 + number
        await all_gone(found)
        assert (await master.hear(Exited)).code == 128 + signal.SIGTERM


async def test_a_node_that_joined_by_itself_says_that_it_leaves(agents: Agents) -> None:
    async with a_master(nodes=0) as master:
        master.expect("worker-0")
        async with an_agent(master, agents, WITH_A_CHILD.replace("SIG_IGN", "SIG_DFL"), node="") as agent:
            found = await pids(agents)
            agent.send_signal(signal.SIGINT)
            assert await agent.wait() == 128 + signal.SIGINT
            await all_gone(found)
            await master.hear(Left)
            assert not master.all(Exited)


async def test_a_second_signal_does_not_wait_for_the_grace_period(master: SmallMaster, agents: Agents) -> None:
    async with an_agent(master, agents, WITH_A_CHILD) as agent:
        found = await pids(agents)
        async with asyncio.timeout(4):  # less than the grace period
            agent.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)  # two signals at once would be one
            agent.send_signal(signal.SIGTERM)
            assert await agent.wait() == 128 + signal.SIGTERM
        await all_gone(found)


@pytest.mark.parametrize("killed", [False, True])
async def test_the_private_directory_is_gone_after_the_end(master: SmallMaster, agents: Agents, killed: bool) -> None:
    script = "import os, time; print(os.environ['SHOAL_AGENT_SOCKET'], flush=True)"
    if killed:
        script += "; time.sleep(600)"
    async with an_agent(master, agents, script) as agent:
        path = (await agents.logged("\n")).strip()
        assert len(path) < 100
        if killed:
            assert os.path.exists(path)
            agent.kill()
        await agent.wait()
    async with asyncio.timeout(10):
        while os.path.exists(os.path.dirname(path)):
            await asyncio.sleep(0.01)
