"""Agents that keep each other's checkpoints, with real shared memory and real connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.checkpoint.builders import an_image

from shoal.agent.replicas import Replicas
from shoal.agent.saver import Saver
from shoal.agent.settings import CheckpointSettings
from shoal.checkpoint.memory import Home, mapped
from shoal.checkpoint.replica import Offer, ReplicaFailed, send
from shoal.core.nodes import NodeId
from shoal.core.world import World, WorldMember
from shoal.wire.local import CheckpointAnswer, Checkpoints, CheckpointsWanted, Saved, SlotGiven, SlotWanted

TOKEN = "secret"
HOST = "127.0.0.1"


class Agent:
    """A saver and what it keeps for others."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.notes: list[str] = []
        self._noted = asyncio.Event()
        self._answers: asyncio.Queue[CheckpointAnswer] = asyncio.Queue()
        self.saver = Saver(
            CheckpointSettings(),
            home=Home(root),
            tell=lambda _, answer: self._answers.put_nowait(answer),
            note=self._note,
        )
        self.replicas = Replicas(self.saver, token=TOKEN, address=HOST, note=self._note)
        self.replicas.start()

    @property
    def port(self) -> int:
        (entry,) = self.replicas.entry(self.name).values()
        return int(entry.split()[1])

    def _note(self, line: str) -> None:
        self.notes.append(line)
        self._noted.set()

    async def told(self, part: str) -> None:
        """Until it has told this."""
        while not any(part in line for line in self.notes):
            self._noted.clear()
            await self._noted.wait()

    async def slot(self, nbytes: int) -> SlotGiven:
        self.saver.said(0, SlotWanted(nbytes=nbytes))
        answer = await self._answers.get()
        assert isinstance(answer, SlotGiven)
        return answer

    async def save(self, step: int, *, nbytes: int = 100) -> SlotGiven:
        image = an_image(step, nbytes=nbytes)
        slot = await self.slot(len(image))
        with mapped(Path(slot.path), write=True) as memory:
            memory[: len(image)] = image
        self.saver.said(0, Saved(slot=slot.slot, step=step, nbytes=len(image)))
        return slot

    async def holds(self) -> dict[int, Path]:
        """The steps that a process could restore, and where they are."""
        self.saver.said(0, CheckpointsWanted())
        answer = await self._answers.get()
        assert isinstance(answer, Checkpoints)
        return {copy.step: Path(copy.path) for copy in answer.memory}


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[tuple[Agent, Agent]]:
    both = Agent("n0", tmp_path), Agent("n1", tmp_path)
    yield both
    for agent in both:
        await agent.replicas.close()
        await agent.saver.close()


def form_a_world(agents: tuple[Agent, ...]) -> None:
    members = tuple(
        WorldMember(node=NodeId(agent.name), incarnation=1, address=HOST, slots=1, base_rank=i, step=None)
        for i, agent in enumerate(agents)
    )
    world = World(generation=1, members=members, source=0, step=None, transfer=True)
    store = {key: value for agent in agents for key, value in agent.replicas.entry(agent.name).items()}
    for agent in agents:
        agent.replicas.world_formed(world, store, agent.name)


class Relay:
    """Between a sender and a keeper: stops after so many bytes until it is let go on, or cut."""

    def __init__(self, port: int, stop_after: int) -> None:
        self._port = port
        self._stop_after = stop_after
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: list[asyncio.Task[None]] = []
        self.stopped = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._accepted, HOST, 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()
        await asyncio.gather(*self._pumps)

    def cut(self) -> None:
        self.go_on.set()
        for writer in self._writers:
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(HOST, self._port)
        self._writers += (writer, to_writer)
        self._pumps += (
            asyncio.create_task(self._pump(reader, to_writer, self._stop_after)),
            asyncio.create_task(self._pump(to_reader, writer, 1 << 60)),
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stop_after: int) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(min(65536, stop_after) or 65536):
                writer.write(data)
                await writer.drain()
                stop_after = max(0, stop_after - len(data))
                if not stop_after and not self.stopped.is_set():
                    self.stopped.set()
                    await self.go_on.wait()


def sending(port: int, step: int, image: bytes) -> "asyncio.Task[None]":
    offer = Offer(node="worker-1", step=step, nbytes=len(image))
    return asyncio.create_task(send(HOST, port, token=TOKEN, offer=offer, image=memoryview(image)))


async def test_a_save_is_kept_by_the_next_node(agents: tuple[Agent, Agent]) -> None:
    saver, keeper = agents
    form_a_world(agents)
    await saver.save(7)
    await saver.told("so far of step 7")
    (copy,) = (await keeper.holds()).values()
    assert copy.read_bytes()[: len(an_image(7))] == an_image(7)


async def test_the_end_of_a_nodes_last_connection_takes_nothing_from_its_next_one(agents: tuple[Agent, Agent]) -> None:
    """It was restarted, and the keeper notices the old connection's end only while the new one is under way."""
    keeper, _ = agents
    image = an_image(5, nbytes=4 << 20)
    async with Relay(keeper.port, 1 << 20) as first, Relay(keeper.port, 1 << 20) as second:
        old, new = sending(first.port, 5, image), sending(second.port, 5, image)
        await first.stopped.wait()
        await second.stopped.wait()
        first.cut()
        await keeper.told("is not kept")
        with pytest.raises((ReplicaFailed, OSError)):
            await old
        mine = await keeper.save(4, nbytes=4 << 20)
        second.go_on.set()
        await new
    held = await keeper.holds()
    assert sorted(held) == [4, 5]
    for step, path in held.items():
        assert path.read_bytes()[: len(image)] == an_image(step, nbytes=4 << 20)
    assert Path(mine.path) == held[4]


async def test_more_connections_than_a_job_makes_are_refused_and_told(agents: tuple[Agent, Agent]) -> None:
    keeper, _ = agents
    strangers = [await asyncio.open_connection(HOST, keeper.port) for _ in range(40)]
    await keeper.told("too many connections at once")
    for _, writer in strangers:
        writer.transport.abort()
    for _ in range(100):  # until their ends are noticed
        with contextlib.suppress(ReplicaFailed, OSError):
            await sending(keeper.port, 5, an_image(5))
            break
    assert list(await keeper.holds()) == [5]


async def test_an_image_that_is_gone_is_told_and_the_next_one_is_sent(agents: tuple[Agent, Agent]) -> None:
    saver, keeper = agents
    slot = await saver.save(1)
    Path(slot.path).unlink()
    form_a_world(agents)
    await saver.told("no copy of its checkpoints on n1")
    await saver.save(2)
    await saver.told("so far of step 2")
    assert list(await keeper.holds()) == [2]
