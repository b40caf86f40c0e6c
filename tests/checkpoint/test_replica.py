"""An image on its way to another agent: all of it or nothing, and only between two that know the token."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.replicas import keeper_for
from shoal.checkpoint.replica import Keeping, Offer, Patience, ReplicaFailed, keep, send
from shoal.core.nodes import NodeId
from shoal.core.world import World, WorldMember

LONG = Patience()
IMPATIENT_FOR_PIECES = Patience(piece=0.2)


class Keeper:
    """Keeps what it is sent."""

    def __init__(
        self, *, token: str = "secret", room: bool = True, counts: bool = True, patience: Patience = LONG
    ) -> None:
        self.token = token
        self.room = room
        self.counts = counts
        self.patience = patience
        self.kept: list[tuple[Offer, bytes]] = []
        self.failures: list[str] = []

    async def accept(self, offer: Offer) -> Keeping:
        memory = memoryview(bytearray(offer.nbytes))

        def kept() -> bool:
            self.kept.append((offer, bytes(memory)))
            return self.counts

        return Keeping(memory if self.room else None, kept)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await keep(reader, writer, token=self.token, accept=self.accept, patience=self.patience)
        except (ReplicaFailed, OSError) as exc:
            self.failures.append(str(exc))


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """A server on a port of its own; afterwards all its connections are over."""
    serving: list[asyncio.Task[None]] = []

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.append(task)
        await serve(reader, writer)
        await closed(writer)

    async with await asyncio.start_server(accepted, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        server.close()
        await asyncio.gather(*serving)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


IMAGE = bytes(range(256)) * 10000
OFFER = Offer(node="worker-0", step=7, nbytes=len(IMAGE))


async def sent(port: int, *, token: str = "secret", patience: Patience = LONG) -> None:
    await send("127.0.0.1", port, token=token, offer=OFFER, image=memoryview(IMAGE), patience=patience)


async def test_what_arrives_is_what_was_sent() -> None:
    keeper = Keeper()
    async with listening(keeper.serve) as port:
        await sent(port)
    assert keeper.kept == [(OFFER, IMAGE)]


async def test_a_sender_without_the_token_is_refused() -> None:
    keeper = Keeper()
    async with listening(keeper.serve) as port:
        with pytest.raises(ReplicaFailed):
            await sent(port, token="guess")
    assert keeper.kept == []
    assert keeper.failures == ["it does not know the job's token"]


async def test_a_keeper_without_the_token_gets_no_state() -> None:
    """It cannot even say that it has room."""
    got: list[bytes] = []

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(32))
        got.append(await reader.readexactly(32 + 32 + 4))
        writer.write(bytes(32) + b"\1")
        got.append(await reader.read())

    async with listening(pretend) as port:
        with pytest.raises(ReplicaFailed, match="does not know the job's token"):
            await sent(port)
    assert all(IMAGE[:1000] not in part for part in got)


async def test_no_room_is_said() -> None:
    async with listening(Keeper(room=False).serve) as port:
        with pytest.raises(ReplicaFailed, match="no memory"):
            await sent(port)


async def test_what_does_not_count_in_the_end_is_not_said_to_be_kept() -> None:
    async with listening(Keeper(counts=False).serve) as port:
        with pytest.raises(ReplicaFailed, match="did not keep it"):
            await sent(port)


async def test_a_stranger_that_says_nothing_is_let_go() -> None:
    keeper = Keeper(patience=Patience(handshake=0.2))
    async with listening(keeper.serve) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.read()  # the nonce, and then the end
        await closed(writer)
    assert keeper.failures == ["it was silent for 0.2 s"]


async def test_neither_side_waits_without_end_for_one_that_stopped() -> None:
    """A relay in between passes on a part of the image and then nothing, with both connections open."""
    keeper = Keeper(patience=IMPATIENT_FOR_PIECES)
    over = asyncio.Event()

    async with listening(keeper.serve) as port:

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
            back = asyncio.create_task(_pump(to_reader, writer, 1 << 30))
            await _pump(reader, to_writer, 5000)
            await over.wait()
            await closed(to_writer)
            await closed(writer)
            await back

        async with listening(relay) as between:
            with pytest.raises(ReplicaFailed, match="was silent"):
                await sent(between, patience=IMPATIENT_FOR_PIECES)
            while not keeper.failures:
                await asyncio.sleep(0.01)
            over.set()
    assert keeper.failures == ["it was silent for 0.2 s"]
    assert keeper.kept == []


@pytest.mark.parametrize("bytes_through", [0, 40, 100, 5000, len(IMAGE)])
async def test_a_connection_cut_anywhere_keeps_nothing(bytes_through: int) -> None:
    """A relay in between passes on so many bytes of the sender's and then closes."""
    keeper = Keeper()
    done = asyncio.Event()

    async with listening(keeper.serve) as port:

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
            back = asyncio.create_task(_pump(to_reader, writer, 1 << 30))
            await _pump(reader, to_writer, bytes_through)
            await closed(to_writer)
            await closed(writer)
            await back
            done.set()

        async with listening(relay) as between:
            with pytest.raises((ReplicaFailed, OSError)):
                await sent(between)
            await done.wait()
    assert keeper.kept == []


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int) -> None:
    try:
        while most and (data := await reader.read(min(65536, most))):
            writer.write(data)
            await writer.drain()
            most -= len(data)
    except OSError:
        pass


@given(junk=st.binary(max_size=300))
def test_junk_touches_nothing(junk: bytes) -> None:
    async def try_it() -> Keeper:
        keeper = Keeper()
        async with listening(keeper.serve) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(junk)
            writer.write_eof()
            await reader.read()
            await closed(writer)
        return keeper

    keeper = asyncio.run(try_it())
    assert keeper.kept == []
    assert len(keeper.failures) == 1


def a_world(*addresses: str) -> World:
    members = tuple(
        WorldMember(node=NodeId(f"n{i}"), incarnation=1, address=address, slots=1, base_rank=i, step=None)
        for i, address in enumerate(addresses)
    )
    return World(generation=1, members=members, source=0, step=None, transfer=True)


STORE = {f"agent/replica/n{i}": f"10.0.0.{i} {7000 + i}".encode() for i in range(4)}


@pytest.mark.parametrize(
    ("addresses", "node", "expected"),
    [
        pytest.param(("a", "b", "c"), "n0", ("n1", "10.0.0.1", 7001), id="the-next"),
        pytest.param(("a", "b", "c"), "n2", ("n0", "10.0.0.0", 7000), id="round-the-corner"),
        pytest.param(("a", "a", "b"), "n0", ("n2", "10.0.0.2", 7002), id="another-host-first"),
        pytest.param(("a", "a"), "n0", ("n1", "10.0.0.1", 7001), id="the-same-host-if-there-is-no-other"),
        pytest.param(("a",), "n0", None, id="alone"),
        pytest.param(("a", "b"), "n9", None, id="not-in-the-world"),
    ],
)
def test_who_keeps_for_whom(addresses: tuple[str, ...], node: str, expected: tuple[str, str, int] | None) -> None:
    assert keeper_for(a_world(*addresses), STORE, node) == expected
