"""A parameter server that stands still is found by its agent and ended, so that the master hears of its loss."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.agent.real_agents import LINK, Agents
from tests.agent.small_master import a_master

from shoal.agent.frozen import LOOK_SECONDS, Watch
from shoal.core.ps.words import ServerReady
from shoal.wire.messages import Exited, PSSaid

SERVER = (
    LINK
    + """
import signal
from shoal.core.ps.words import ServerReady
link.send(ServerReady(address=f"{os.environ['SHOAL_ROLE']}:1"))
"""
)
STOPS = SERVER + "os.kill(os.getpid(), signal.SIGSTOP)\n"
FALLS_SILENT = SERVER + "link.send(Report(generation=0, rank=1, step=None, collectives=1, busy=SERVING))\nget(int)\n"


async def found(agents: Agents, script: str, **more: object) -> tuple[PSSaid, Exited]:
    async with a_master(sdk=True, restarts=False) as master:
        agents.start(master, script, node="ps-0", **more)
        said = await master.hear(PSSaid)
        return said, await master.hear(Exited)


async def test_a_server_that_is_stopped_is_killed_and_the_master_is_told(agents: Agents) -> None:
    said, exited = await found(agents, STOPS, stopped_after=0.6)
    assert said.word == ServerReady(address="ps:1")
    assert exited.code == 137


async def test_a_server_that_says_nothing_any_more_is_killed(agents: Agents) -> None:
    _, exited = await found(agents, FALLS_SILENT, silent_after=1.0)
    assert exited.code == 137


async def test_the_silence_of_one_process_is_not_held_against_the_next(agents: Agents, tmp_path: Path) -> None:
    """The second one takes its time to come up, as an import of TensorFlow does."""
    marker = tmp_path / "died"
    dies = f"""
if os.path.exists({str(marker)!r}):
    time.sleep(2.5)
    link.send(ServerReady(address="ps:2"))
    get(int)
open({str(marker)!r}, "w").close()
link.send(Report(generation=0, rank=1, step=None, collectives=1, busy=SERVING))
os._exit(7)
"""
    async with a_master(sdk=True) as master:
        master.expect("ps-0")
        agents.start(
            master, SERVER.replace("link.send(ServerReady", "0 and (ServerReady") + dies, node="ps-0", silent_after=1.0
        )
        assert (await master.hear(PSSaid)).word == ServerReady(address="ps:2")
        assert [exited.code for exited in master.all(Exited)] == [7]


def test_a_server_that_never_promised_to_speak_is_left_alone() -> None:
    watch = Watch(stopped_after=3.0, silent_after=1.0)
    assert not watch.look((), 0.0)
    assert not watch.look((), 100.0)


@given(st.lists(st.tuples(st.floats(0.01, 1.5), st.booleans(), st.booleans()), max_size=60))
def test_only_what_lasts_counts(looks: list[tuple[float, bool, bool]]) -> None:
    """Whoever is ended was stopped at every look for so long, or was not heard for so long."""
    watch = Watch(stopped_after=3.0, silent_after=5.0)
    watch.heard(0, 0.0)
    now, stopped_since, heard_at = 0.0, None, 0.0
    for passed, is_stopped, speaks in looks:
        now += passed
        stopped_since = (now if stopped_since is None else stopped_since) if is_stopped else None
        if speaks:
            watch.heard(0, now)
            heard_at = now
        stopped_long = stopped_since is not None and now - stopped_since >= 3.0
        assert bool(watch.look((0,) if is_stopped else (), now)) == (stopped_long or now - heard_at >= 5.0)


@given(st.floats(LOOK_SECONDS + 2.01, 1e6))
def test_when_the_agent_itself_stood_still_nobody_is_to_blame(asleep: float) -> None:
    watch = Watch(stopped_after=1.0, silent_after=1.0)
    watch.heard(0, 0.0)
    watch.look((0,), 0.0)
    assert not watch.look((0,), asleep)
