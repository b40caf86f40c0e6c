"""Masters with a store, in this process: what one decided, the next one knows; of two, the older is refused."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import UnionType
from typing import Any

import aiohttp
import pytest
from tests.core.ledger.builders import a_dataset

from shoal.core import journal
from shoal.core.errors import BadInput, Disconnected, StateTaken, StateUnavailable, StateUnreadable, Superseded
from shoal.core.exits import ProcessExit
from shoal.core.job import JobSettings, JobSpec, PSSpec
from shoal.core.job.values import Announced
from shoal.core.nodes import NodeId
from shoal.core.plans import ScalePlan
from shoal.core.ports import Clock, StateStore
from shoal.core.ps.cluster import Partition
from shoal.core.ps.words import ModelNamed, PreparePS, ServerReady
from shoal.core.rounds import Departure, Round, owner_of
from shoal.core.view import JobPhase, JobView
from shoal.master import Begin, Master, SystemClock, keeper
from shoal.stores import FileStore, MemoryState, MemoryStore
from shoal.stores.etcd import EtcdStore
from shoal.wire.client import Connection, connect
from shoal.wire.messages import (
    PROTOCOL,
    Ack,
    Commit,
    DataAnswers,
    DataKept,
    DataRound,
    Exited,
    Finished,
    FromMaster,
    Hello,
    Interrupt,
    Kill,
    Pause,
    Prepare,
    Progress,
    PSSaid,
    PSTold,
    Ready,
    Release,
    Restart,
)
from shoal.wire.tokens import JobKeys, Purpose

KEYS = JobKeys.new("j.1")
PATIENCE = 20
CONNECTIONS: list[Connection] = []


@pytest.fixture(autouse=True)
async def _hang_up() -> AsyncIterator[None]:
    yield
    while CONNECTIONS:
        await CONNECTIONS.pop().close()


class Nowhere:
    """A platform that keeps the plans it is given and starts nothing: the agents are the test's."""

    def __init__(self) -> None:
        self.plans: list[ScalePlan] = []

    async def start(self, on_exit: Callable[[NodeId, ProcessExit], None]) -> None:
        self.on_exit = on_exit

    async def scale(self, plan: ScalePlan) -> None:
        self.plans.append(plan)

    async def close(self) -> None:
        pass


class Running:
    def __init__(self, master: Master, platform: Nowhere) -> None:
        self.master = master
        self.platform = platform
        self.task = asyncio.create_task(master.run())

    async def die(self) -> None:
        """As a kill does: without a last word."""
        await asyncio.sleep(0)  # a task that never began has nothing to clean up with
        self.task.cancel()
        await asyncio.wait([self.task])

    async def until(self, holds: Callable[[JobView], bool]) -> JobView:
        async with asyncio.timeout(PATIENCE):
            while not holds(view := self.master.view()):
                await asyncio.sleep(0.01)
        return view


@asynccontextmanager
async def a_master(
    store: StateStore | None, *, nodes: int = 2, joins: int = 0, clock: Clock | None = None, ps: PSSpec | None = None
) -> AsyncIterator[Running]:
    platform = Nowhere()
    master = Master(
        JobSpec(name="j", uid=KEYS.uid, min_nodes=1, max_nodes=4, command=("true",), ps=ps),
        JobSettings(last_call=timedelta(seconds=1)),
        scaler=platform,
        keys=KEYS,
        nodes=nodes,
        awaited_joins=joins,
        clock=clock,
        store=store,
    )
    await master.start()
    running = Running(master, platform)
    try:
        yield running
    finally:
        await running.die()


class Agent:
    def __init__(self, connection: Connection, incarnation: int = 1) -> None:
        self.connection = connection
        self.incarnation = incarnation
        self.name = connection.welcome.node
        self.messages = aiter(connection)

    async def hears(self, kind: type | UnionType) -> FromMaster:
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await anext(self.messages)
                if isinstance(message, kind):
                    return message

    async def joins_world(self, step: int | None = None) -> int:
        """Be ready, and acknowledge whatever is prepared until a world is committed."""
        await self.is_ready(step)
        return await self.waits_for_world()

    async def is_ready(self, step: int | None = None) -> None:
        await self.connection.send(Ready(incarnation=self.incarnation, steps=(step,), sdk=True))

    async def waits_for_world(self) -> int:
        while True:
            message = await self.hears(Prepare | Commit)
            if isinstance(message, Commit):
                return message.generation
            assert isinstance(message, Prepare)
            ack = Ack(incarnation=self.incarnation, generation=message.world.generation, store={})
            await self.connection.send(ack)


async def agent(
    master: Master,
    node: str | None,
    *,
    generation: int = 0,
    prepared: int = 0,
    term: int = 0,
    incarnation: int = 1,
) -> Agent:
    hello = Hello(
        protocol=PROTOCOL,
        job="j",
        node=node,
        incarnation=incarnation,
        host="h",
        address="127.0.0.1",
        slots=1,
        pid=1,
        generation=generation,
        prepared=prepared,
        sdk=True,
        term=term,
    )
    connection = await connect(master.url, token=KEYS.token(Purpose.AGENT), hello=hello)
    CONNECTIONS.append(connection)
    return Agent(connection, incarnation)


async def a_world(master: Master, *nodes: str) -> list[Agent]:
    agents = [await agent(master, node) for node in nodes]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(each.joins_world() for each in agents))
    return agents


@pytest.fixture(params=["memory", "file"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StateStore]:
    state = MemoryState()
    return (lambda: MemoryStore(state)) if request.param == "memory" else (lambda: FileStore(tmp_path / "state"))


async def test_agents_that_come_back_are_in_the_same_world(stores: Callable[[], StateStore]) -> None:
    async with a_master(stores()) as first:
        agents = await a_world(first.master, "worker-0", "worker-1")
        assert agents[0].connection.welcome.term == 1
        await first.die()
    async with a_master(stores()) as second:
        view = second.master.view()
        assert (second.master.term, view.generation) == (2, 1)
        assert second.platform.plans == []
        back = [await agent(second.master, name, generation=1, term=1) for name in ("worker-0", "worker-1")]
        view = await second.until(lambda view: all(node.connected for node in view.nodes))
        assert (view.phase, view.generation) == (JobPhase.RUNNING, 1)
        assert "master 2 took over" in view.decisions[-1].reason
        await back[0].connection.send(Progress(incarnation=1, generation=1, step=42, samples=None, metrics={}))
        await second.until(lambda view: view.step == 42)


async def test_a_resize_that_was_under_way_is_brought_to_its_end(stores: Callable[[], StateStore]) -> None:
    async with a_master(stores(), nodes=1) as first:
        (old,) = await a_world(first.master, "worker-0")
        first.master.scale(2, who="test")
        new = await agent(first.master, "worker-1")
        await new.connection.send(Ready(incarnation=1, steps=(None,), sdk=True))
        await old.hears(Pause)
        await first.die()
    async with a_master(stores()) as second:
        old = await agent(second.master, "worker-0", generation=1, term=1)
        await old.hears(Pause)  # said again: nobody knows whether it was heard
        new = await agent(second.master, "worker-1", term=1)
        async with asyncio.timeout(PATIENCE):
            generations = await asyncio.gather(old.joins_world(5), new.joins_world())
        assert generations[0] == generations[1] > 1
        assert second.master.view().world_size == 2


async def test_a_name_that_was_given_away_stays_given_away(stores: Callable[[], StateStore]) -> None:
    async with a_master(stores(), nodes=1) as first:
        newcomer = await agent(first.master, None)
        assert newcomer.name == "worker-1"
        await first.die()
    async with a_master(stores()) as second:
        back = await agent(second.master, "worker-1", term=1)
        assert back.name == "worker-1"
        assert (await agent(second.master, None)).name == "worker-2"


async def test_of_two_masters_the_older_one_ends_and_nobody_listens_to_it() -> None:
    state = MemoryState()
    async with a_master(MemoryStore(state)) as old, a_master(MemoryStore(state)) as new:
        mine = await agent(new.master, "worker-0")
        term = mine.connection.welcome.term
        assert (old.master.term, term) == (1, 2)
        with pytest.raises(Disconnected):
            await agent(old.master, "worker-0", term=term)
        with pytest.raises(Superseded, match="worker-0 has spoken to master 2, this is master 1"):
            await old.task
        assert not new.task.done()


async def test_the_store_tells_the_older_master_that_it_is_over() -> None:
    state = MemoryState()
    async with a_master(MemoryStore(state)) as old, a_master(MemoryStore(state)):
        old.master.scale(3, who="somebody who knows no better")
        with pytest.raises(Superseded, match="term 1 was superseded by 2"):
            await old.task
        assert [n.id for plan in old.platform.plans for n in plan.launch_nodes] == ["worker-0", "worker-1"]


async def test_a_master_whose_store_lost_its_term_takes_one_above_all_that_were_heard_of() -> None:
    state = MemoryState()
    async with a_master(MemoryStore(state)) as first:
        await a_world(first.master, "worker-0", "worker-1")
        await first.die()
    state.term = 0
    async with a_master(MemoryStore(state)) as second:
        assert second.master.term == 1
        one = await agent(second.master, "worker-0", generation=1, term=5)
        assert (one.connection.welcome.term, second.master.term, state.term) == (6, 6, 6)
        other = await agent(second.master, "worker-1", generation=1, term=8)
        assert other.connection.welcome.term == 9
        view = await second.until(lambda view: all(node.connected for node in view.nodes))
        assert (view.generation, view.phase) == (1, JobPhase.RUNNING)
        said = [d.reason for d in view.decisions if "lost its term" in d.reason]
        assert said[0] == "the store had lost its term: worker-0 has spoken to master 5, this is master 6 now"
        second.master.scale(3, who="test")
        await second.die()
    async with a_master(MemoryStore(state)) as third:
        assert (third.master.term, third.master.view().target) == (10, 3)


async def test_a_store_that_cannot_write_the_higher_term_lets_the_agent_try_again() -> None:
    state = MemoryState()
    async with a_master(MemoryStore(state)) as master:
        state.trouble = "No space left on device"
        with pytest.raises(Disconnected):
            await agent(master.master, "worker-0", term=5)
        state.trouble = None
        assert (await agent(master.master, "worker-0", term=5)).connection.welcome.term == 6


async def test_a_store_of_another_job_is_not_taken_over() -> None:
    state = MemoryState()
    async with a_master(MemoryStore(state)) as first:
        await first.die()
    records = list(state.records)
    other = Master(
        JobSpec(name="other", uid="other.1", min_nodes=1, max_nodes=1, command=("true",)),
        JobSettings(),
        scaler=Nowhere(),
        keys=KEYS,
        nodes=1,
        store=MemoryStore(state),
    )
    with pytest.raises(BadInput, match=r"holds the state of job j \(its master is lost\): go on with that one"):
        await other.start()
    assert state.records == records


async def test_a_master_that_takes_over_waits_for_its_store_and_one_that_resumes_does_not(tmp_path: Path) -> None:
    spec = JobSpec(name="j", uid=KEYS.uid, min_nodes=1, max_nodes=1, command=("true",))

    def master(begin: Begin) -> Master:
        store = FileStore(tmp_path / "late" / "state")
        return Master(spec, JobSettings(), scaler=Nowhere(), keys=KEYS, nodes=1, store=store, begin=begin)

    (tmp_path / "late").touch()
    with pytest.raises(StateUnavailable, match="Not a directory"):
        await master(Begin.RESUME).start()
    second = master(Begin.TAKE_OVER)
    starting = asyncio.create_task(second.start())
    await asyncio.sleep(0.1)
    assert not starting.done()
    (tmp_path / "late").unlink()
    with pytest.raises(StateUnreadable, match="there is nothing to take over"):
        await starting


async def test_a_master_that_cannot_begin_leaves_its_store_closed() -> None:
    store = EtcdStore("http://127.0.0.1:9", prefix="/x")
    spec = JobSpec(name="j", uid=KEYS.uid, min_nodes=1, max_nodes=1, command=("true",))
    master = Master(spec, JobSettings(), scaler=Nowhere(), keys=KEYS, nodes=1, store=store, begin=Begin.RESUME)
    with pytest.raises(StateUnavailable, match="does not answer"):
        await master.start()
    with pytest.raises(StateUnavailable, match="was not claimed"):
        await store.compact(b"late")


async def test_an_agent_does_not_listen_to_a_master_of_the_past() -> None:
    async with a_master(None) as master:
        with pytest.raises(Disconnected, match="it was superseded"):
            await agent(master.master, "worker-0", term=5)


async def test_two_jobs_in_one_directory_are_refused(tmp_path: Path) -> None:
    async with a_master(FileStore(tmp_path)):
        with pytest.raises(StateTaken, match="is in use"):
            async with a_master(FileStore(tmp_path)):
                pass


async def test_a_job_whose_state_cannot_be_kept_goes_on_and_says_so() -> None:
    state = MemoryState()
    async with a_master(MemoryStore(state)) as running:
        state.trouble = "No space left on device"
        running.master.scale(3, who="test")
        view = await running.until(lambda view: any("cannot be kept" in d.reason for d in view.decisions))
        assert [d.reason for d in view.decisions if "No space left on device" in d.reason]
        assert running.master.seen().trouble == "No space left on device"
        await a_world(running.master, "worker-0", "worker-1", "worker-2")
        assert running.master.view().world_size == 3


@asynccontextmanager
async def asking(master: Master) -> AsyncIterator[Callable[[str, dict[str, Any]], Awaitable[str]]]:
    """What a master answers over HTTP."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEYS.token(Purpose.ADMIN)}"}) as http:

        async def ask(path: str, body: dict[str, Any]) -> str:
            async with http.post(master.url + path, json=body) as answer:
                said: str = (await answer.json())["said"]
                return said

        yield ask


@pytest.mark.parametrize("pace", [0.0, 3600.0], ids=["each-change", "in-a-pace"])
async def test_who_asks_for_something_is_answered_when_it_is_written_down(pace: float) -> None:
    state = MemoryState()
    async with a_master(MemoryStore(state, pace=timedelta(seconds=pace))) as running, asking(running.master) as ask:
        assert await ask("/scale", {"worker": 3}) == "3 nodes asked for"
        found = journal.replay(state.records)
        assert found is not None
        assert found.target == 3
        assert await ask("/stop", {"reason": "enough"}) == "stopping"
        found = journal.replay(state.records)
        assert found is not None
        assert found.ending is JobPhase.STOPPED


async def test_who_asks_while_the_state_cannot_be_kept_is_told_to_ask_again() -> None:
    state = MemoryState()
    async with a_master(MemoryStore(state)) as running, asking(running.master) as ask:
        state.trouble = "No space left on device"
        said = await ask("/scale", {"worker": 3})
        assert said.startswith("3 nodes asked for; it cannot be written down (No space left on device), so ask again")
        assert running.master.view().target == 3


class FastClock(SystemClock):
    """The time as it is, and as much more as the test says."""

    ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead


async def test_a_store_in_long_trouble_keeps_nobody_from_its_end_and_nothing_else_is_called_written() -> None:
    state, clock = MemoryState(), FastClock()
    async with a_master(MemoryStore(state, pace=timedelta(seconds=10)), clock=clock) as running:
        ending, training = await a_world(running.master, "worker-0", "worker-1")
        state.trouble = "the API server is away"
        gone = Departure(owner=owner_of("worker-0", 0, 1, "a"), charged=False, reason="it ended")
        rounds = {training: Round(number=7, specs=(a_dataset(20, 5),)), ending: Round(number=7, departed=(gone,))}
        for each, round in rounds.items():
            await each.connection.send(DataRound(round=round))
            answer = await each.hears(DataAnswers)
            assert isinstance(answer, DataAnswers)
            assert not answer.is_kept
        clock.ahead += 2 * keeper.PATIENCE
        assert await ending.hears(DataKept) == DataKept(number=7, is_written=False)
        state.trouble = None
        clock.ahead += 2 * keeper.RETRY
        assert await training.hears(DataKept) == DataKept(number=7)


async def test_what_was_decided_while_the_store_was_away_is_learnt_from_the_agents() -> None:
    """A restart, a world without the one that restarts, and a node that was asked for: none of it is written down."""
    state = MemoryState()
    async with a_master(MemoryStore(state, pace=timedelta(seconds=10)), nodes=2) as first:
        stays, restarts = await a_world(first.master, "worker-0", "worker-1")
        before = first.master.view().generation
        state.trouble = "the API server is away"
        await restarts.connection.send(
            Exited(incarnation=1, local_rank=0, pid=1, code=137, oom=False, error=None, uptime_seconds=60)
        )
        assert await restarts.hears(Restart) is not None
        await stays.hears(Interrupt)
        assert await stays.joins_world(5) == before + 1
        first.master.scale(3, who="test")
        await first.until(lambda view: len(view.nodes) == 3)
        await first.die()
    state.trouble = None
    async with a_master(MemoryStore(state, pace=timedelta(seconds=10)), nodes=2) as second:
        assert second.master.view().generation == before
        unknown = asyncio.create_task(agent(second.master, "worker-2", term=1))
        back = await agent(second.master, "worker-0", generation=before + 1, prepared=before + 1, term=1)
        assert await back.hears(Interrupt) == Interrupt(
            generation=before + 1, reason="worker-0 comes from a world that is over"
        )
        again = await agent(second.master, "worker-1", prepared=before, incarnation=2, term=1)
        assert again.connection.welcome.incarnation == 2
        second.master.announced((Announced(node=NodeId("worker-2"), seat=2),))
        newcomer = await unknown
        for each in (again, newcomer):
            await each.is_ready()
        await second.until(lambda view: sum(node.standing == "ready" for node in view.nodes) == 2)
        await back.is_ready(5)
        async with asyncio.timeout(PATIENCE):
            generations = await asyncio.gather(*(each.waits_for_world() for each in (back, again, newcomer)))
        assert set(generations) == {before + 2}
        view = second.master.view()
        assert (view.restarts, [node.incarnation for node in view.nodes]) == (1, [1, 2, 1])


async def test_no_version_is_told_of_before_it_is_written_down_however_long_that_takes() -> None:
    """And nobody is late meanwhile with what it could not know of."""
    state, clock = MemoryState(), FastClock()
    ps = PSSpec(max_servers=1, servers=1)
    async with a_master(MemoryStore(state, pace=timedelta(seconds=10)), nodes=1, clock=clock, ps=ps) as running:
        server, worker = await agent(running.master, "ps-0"), await agent(running.master, "worker-0")
        await server.connection.send(PSSaid(incarnation=1, word=ServerReady(address="here:1")))
        await running.until(lambda view: all(node.status == "running" for node in view.nodes))
        state.trouble = "the API server is away"
        named = ModelNamed(partitions=(Partition(name="v", nbytes=1),))
        await worker.connection.send(PSSaid(incarnation=1, word=named))
        await running.until(lambda view: any("cannot be kept" in d.reason for d in view.decisions))
        heard = asyncio.create_task(_hears_of_version(worker))
        for _ in range(2):
            clock.ahead += 2 * keeper.PATIENCE
            await asyncio.wait({heard}, timeout=1.0)
            assert not heard.done()
        state.trouble = None
        clock.ahead += 2 * keeper.RETRY
        assert await heard == 1


async def _hears_of_version(worker: Agent) -> int:
    """Until it does; and it is not killed."""
    while True:
        message = await worker.hears(PSTold | Kill)
        assert isinstance(message, PSTold), message
        if isinstance(message.word, PreparePS):
            return message.word.cluster.version


@pytest.mark.parametrize("is_long", [False, True], ids=["until-it-is-back", "but-not-for-ever"])
async def test_nobody_is_released_before_it_is_written_down(is_long: bool) -> None:
    state, clock = MemoryState(), FastClock()
    async with a_master(MemoryStore(state, pace=timedelta(seconds=10)), clock=clock) as running:
        agents = await a_world(running.master, "worker-0", "worker-1")
        generation = running.master.view().generation
        state.trouble = "the API server is away"
        for each in agents:
            await each.connection.send(Finished(incarnation=1, generation=generation))
        await running.until(lambda view: any("cannot be kept" in d.reason for d in view.decisions))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await agents[0].hears(Release)
        clock.ahead += 2 * (keeper.PATIENCE if is_long else keeper.RETRY)
        if not is_long:
            state.trouble = None
        for each in agents[1:]:
            assert await each.hears(Release) == Release(generation=generation)
