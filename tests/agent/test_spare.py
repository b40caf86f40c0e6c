"""A parameter server that dies is followed at once by a process that has waited for that."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.agent.real_agents import LINK, Agents
from tests.agent.small_master import SmallMaster, a_master

from shoal.core.ps.words import ServerReady
from shoal.trainer.spare import wait_until_needed
from shoal.wire.messages import Exited, PSSaid

BEGINS = """
import os, sys
from shoal.trainer.spare import wait_until_needed
print(f"{os.getpid()} begins", flush=True)
open(os.path.join(os.environ["BEGUN"], str(os.getpid())), "w").close()
"""
SERVES = (
    LINK
    + """
from shoal.core.ps.words import ServerReady
print(f"{os.getpid()} serves", flush=True)
link.send(ServerReady(address=f"{os.getpid()}:{os.environ['TORCHELASTIC_RESTART_COUNT']}"))
link.send(Report(generation=0, rank=1, step=None, collectives=1, busy=SERVING))
get(int)
"""
)
WAITS = BEGINS + "wait_until_needed(os.environ)\n" + SERVES
REPORTS_ON = """
import time
def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
def spares():
    return [int(name) for name in os.listdir(os.environ["BEGUN"]) if name != str(os.getpid())]
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not spares() or not is_gone(spares()[0]):
        time.sleep(0.01)
    for _ in range(10):
        link.send(Report(generation=0, rank=1, step=None, collectives=1, busy=SERVING))
        time.sleep(0.1)
    link.send(ServerReady(address=f"{os.getpid()}:0"))
"""
DOES_NOT_WAIT = (
    BEGINS
    + "if 'SHOAL_SPARE_PIPE' in os.environ:\n    sys.exit('no room for two')\n"
    + SERVES.replace("get(int)\n", REPORTS_ON + "get(int)\n")
)


class Begun:
    """Which processes have begun."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    async def others(self, *known: int) -> int:
        """One that is none of these, once there is one."""
        async with asyncio.timeout(90):
            while not (new := {int(name) for name in os.listdir(self.directory)} - {*known}):
                await asyncio.sleep(0.01)
        return min(new)


@pytest.fixture
def begun(tmp_path: Path) -> Begun:
    return Begun(tmp_path / "begun")


async def served(master: SmallMaster, nth: int) -> tuple[int, int]:
    """The pid and the number of starts of the nth process that serves."""
    word = (await master.hear(PSSaid, nth=nth)).word
    assert isinstance(word, ServerReady)
    pid, _, starts = word.address.partition(":")
    return int(pid), int(starts)


def start(agents: Agents, master: SmallMaster, begun: Begun, script: str, **more: object) -> "asyncio.Task[int]":
    master.expect("ps-0")
    environment = {**os.environ, "BEGUN": str(begun.directory)}
    return agents.start(master, script, node="ps-0", environment=environment, **more)


async def test_the_process_that_waits_goes_on_when_the_server_dies(agents: Agents, begun: Begun) -> None:
    async with a_master(sdk=True) as master:
        start(agents, master, begun, WAITS, spare_after=0.0)
        first, starts = await served(master, 1)
        assert starts == 0
        spare = await begun.others(first)
        os.kill(first, signal.SIGKILL)
        assert await served(master, 2) == (spare, 1), "it knows that it is the second start"
        assert [exited.pid for exited in master.all(Exited)] == [first]
        log = await agents.logged("serves", node="ps-0", incarnation=2)
        assert log.split() == [str(spare), "serves"], "what it printed while it waited is not shown"
        third = await begun.others(first, spare)
        os.kill(spare, signal.SIGKILL)
        assert await served(master, 3) == (third, 2), "and so does the next"


async def test_a_process_that_does_not_wait_is_told_of_and_the_server_is_started_as_ever(
    agents: Agents, begun: Begun, capfd: pytest.CaptureFixture[str]
) -> None:
    async with a_master(sdk=True) as master:
        start(agents, master, begun, DOES_NOT_WAIT, spare_after=0.0)
        first, _ = await served(master, 1)
        assert await served(master, 2) == (first, 0), "it has served on without its spare"
        spare = await begun.others(first)
        assert {int(name) for name in os.listdir(begun.directory)} == {first, spare}, "no other is tried"
        said = ""
        async with asyncio.timeout(90):
            while "did not wait" not in said:
                await asyncio.sleep(0.01)
                said += capfd.readouterr().err
        assert "the spare process did not wait until it was needed (exit 1): no room for two; no other is" in said
        assert master.all(Exited) == []
        os.kill(first, signal.SIGKILL)
        second, starts = await served(master, 3)
        assert second not in (first, spare)
        assert starts == 1


async def test_without_the_setting_there_is_no_second_process(agents: Agents, begun: Begun) -> None:
    async with a_master(sdk=True) as master:
        start(agents, master, begun, WAITS)
        first, _ = await served(master, 1)
        os.kill(first, signal.SIGKILL)
        second, _ = await served(master, 2)
        assert {int(name) for name in os.listdir(begun.directory)} == {first, second}


def test_a_process_that_is_never_needed_ends_when_its_agent_is_gone() -> None:
    theirs, ours = os.pipe()
    os.close(ours)
    with pytest.raises(SystemExit) as ended:
        wait_until_needed({"SHOAL_SPARE_PIPE": str(theirs)})
    assert ended.value.code == 0


def test_a_process_that_is_no_spare_does_not_wait() -> None:
    environ = {"HOME": "/"}
    wait_until_needed(environ)
    assert environ == {"HOME": "/"}
