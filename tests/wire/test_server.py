"""The master's port, used the wrong way: no stranger, no garbage and no browser gets in, and nobody else notices."""

import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest

from shoal.core.errors import BadInput, Disconnected, ProtocolError, Refused
from shoal.wire.client import connect
from shoal.wire.codec import Decoder, encode
from shoal.wire.messages import (
    MAX_MESSAGE,
    PROTOCOL,
    FromAgent,
    FromMaster,
    Hello,
    Ready,
    Refuse,
    Stop,
    Welcome,
)
from shoal.wire.server import AgentServer, AgentSocket, Listen, ServerSettings
from shoal.wire.tls import certificate_from_secret, new_certificate
from shoal.wire.tokens import JobKeys, Purpose, token_uid

KEYS = JobKeys.new("job-uid")


class Desk:
    """A door that lets everybody in and keeps what it hears."""

    def __init__(self) -> None:
        self.sockets: list[AgentSocket] = []
        self.heard: list[FromAgent] = []
        self.left: list[AgentSocket] = []

    async def hello(self, hello: Hello, socket: AgentSocket) -> Welcome | Refuse:
        if hello.node == "stranger":
            return Refuse(reason="job j has no node stranger")
        socket.node = hello.node
        self.sockets.append(socket)
        return a_welcome(hello)

    def message(self, socket: AgentSocket, message: FromAgent) -> None:
        self.heard.append(message)
        socket.push(encode(Stop(reason="heard", grace_seconds=1)))

    def closed(self, socket: AgentSocket) -> None:
        self.left.append(socket)


def a_welcome(hello: Hello) -> Welcome:
    return Welcome(
        protocol=PROTOCOL,
        job=hello.job,
        node=hello.node or "worker-0",
        incarnation=1,
        sdk=False,
        max_workers=1,
        heartbeat_seconds=2,
        max_restarts=3,
    )


def a_hello(node: str = "worker-0", protocol: int = PROTOCOL) -> Hello:
    return Hello(protocol=protocol, job="j", node=node, incarnation=1, host="h", address="127.0.0.1", slots=1, pid=1)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
async def server(desk: Desk) -> AsyncIterator[AgentServer]:
    server = AgentServer(
        keys=KEYS,
        door=desk,
        listen=Listen(),
        settings=ServerSettings(messages_per_second=50, handshake_seconds=1),
    )
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def agent_token() -> str:
    return KEYS.token(Purpose.AGENT)


async def test_an_agent_with_the_token_is_welcomed_and_heard(server: AgentServer, desk: Desk) -> None:
    connection = await connect(server.url, token=agent_token(), hello=a_hello())
    await connection.send(Ready(incarnation=1, steps=(None,), sdk=False))
    answer = await anext(aiter(connection))
    assert isinstance(answer, Stop)
    assert desk.heard == [Ready(incarnation=1, steps=(None,), sdk=False)]
    await connection.close()


@pytest.mark.parametrize(
    "token",
    ["", "nonsense", KEYS.token(Purpose.ADMIN), JobKeys.new("job-uid").token(Purpose.AGENT)],
    ids=["none", "nonsense", "for-another-purpose", "of-another-key"],
)
async def test_a_wrong_token_is_refused_for_good(server: AgentServer, token: str) -> None:
    with pytest.raises(Refused, match="token"):
        await connect(server.url, token=token, hello=a_hello())


async def test_a_protocol_that_is_too_new_is_refused_with_both_versions(server: AgentServer) -> None:
    with pytest.raises(Refused, match=f"protocol {PROTOCOL + 1} asked, this master speaks {PROTOCOL}"):
        await connect(server.url, token=agent_token(), hello=a_hello(protocol=PROTOCOL + 1))


@pytest.mark.parametrize("term", [-1, 1 << 22, 1 << 60])
async def test_a_term_that_no_master_has_is_refused(server: AgentServer, desk: Desk, term: int) -> None:
    hello = msgspec.structs.replace(a_hello(), term=term)
    with pytest.raises(Refused, match=r"not a message of this protocol: Expected `int` .* at `\$.term`"):
        await connect(server.url, token=agent_token(), hello=hello)


async def test_a_node_the_door_does_not_want_is_told_why(server: AgentServer) -> None:
    with pytest.raises(Refused, match="no node stranger"):
        await connect(server.url, token=agent_token(), hello=a_hello("stranger"))


async def test_nobody_there_is_worth_another_try() -> None:
    with pytest.raises(Disconnected, match="no master at"):
        await connect("http://127.0.0.1:9", token=agent_token(), hello=a_hello())


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1\xff\x00garbage", id="not-msgpack"),
        pytest.param(b"\x81\xa4type\xa5Pwned", id="unknown-tag"),
        pytest.param(encode(Stop(reason="x", grace_seconds=1)), id="a-message-of-the-other-side"),
        pytest.param(encode(a_hello()), id="a-second-hello"),
        pytest.param(b"\x91" * 5000, id="deeply-nested"),
    ],
)
async def test_garbage_closes_that_connection_with_a_reason_and_no_other(
    server: AgentServer, desk: Desk, garbage: bytes
) -> None:
    good = await connect(server.url, token=agent_token(), hello=a_hello("worker-1"))
    bad = await connect(server.url, token=agent_token(), hello=a_hello("worker-0"))
    await bad._socket.send_bytes(garbage)
    answer = await anext(aiter(bad))
    assert isinstance(answer, Refuse)
    with pytest.raises(Disconnected):
        await anext(aiter(bad))
    await good.send(Ready(incarnation=1, steps=(None,), sdk=False))
    assert isinstance(await anext(aiter(good)), Stop)
    assert len(desk.heard) == 1
    await good.close()
    await bad.close()


async def test_a_message_that_is_too_large_closes_the_connection(server: AgentServer) -> None:
    connection = await connect(server.url, token=agent_token(), hello=a_hello())
    with contextlib.suppress(ConnectionError):  # it may be cut off while it still sends
        await connection._socket.send_bytes(b"\0" * (MAX_MESSAGE + 1))
    with pytest.raises(Disconnected):
        await anext(aiter(connection))
    await connection.close()


async def test_too_many_messages_close_the_connection(server: AgentServer) -> None:
    connection = await connect(server.url, token=agent_token(), hello=a_hello())

    async def shout() -> None:
        for _ in range(200):
            await connection.send(Ready(incarnation=1, steps=(None,), sdk=False))
        async for _ in connection:
            pass

    with pytest.raises(Disconnected):
        await shout()
    await connection.close()


async def test_whoever_says_nothing_is_let_go(server: AgentServer, session: aiohttp.ClientSession) -> None:
    headers = {"Authorization": f"Bearer {agent_token()}"}
    async with session.ws_connect(server.url + "/agent", headers=headers) as socket:
        answer = Decoder[FromMaster](FromMaster, limit=MAX_MESSAGE).decode((await socket.receive()).data)
        assert isinstance(answer, Refuse)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"Origin": "http://evil.example"}, id="foreign-origin"),
        pytest.param({"Origin": "null"}, id="sandboxed-origin"),
        pytest.param({"Host": "evil.example"}, id="foreign-host"),
    ],
)
async def test_browsers_of_other_sites_are_refused_even_with_the_token(
    server: AgentServer, session: aiohttp.ClientSession, headers: dict[str, str]
) -> None:
    token = {"Authorization": f"Bearer {KEYS.token(Purpose.ADMIN)}"}
    async with session.get(server.url + "/healthz", headers={**token, **headers}) as response:
        assert response.status == 403
        assert "error" in json.loads(await response.text())


async def test_what_is_not_open_wants_the_admin_token(server: AgentServer, session: aiohttp.ClientSession) -> None:
    for headers in ({}, {"Authorization": f"Bearer {agent_token()}"}, {"Authorization": "Basic eDp5"}):
        async with session.get(server.url + "/state", headers=headers) as response:
            assert response.status == 401


async def test_a_port_in_use_is_an_error_that_names_it(server: AgentServer, desk: Desk) -> None:
    second = AgentServer(keys=KEYS, door=desk, listen=Listen(port=server.port))
    with pytest.raises(BadInput, match=f"cannot listen on 127.0.0.1:{server.port}"):
        await second.start()


async def test_an_address_of_another_machine_is_an_error_that_does_not_blame_the_port(desk: Desk) -> None:
    certificate = certificate_from_secret(b"secret")
    server = AgentServer(keys=KEYS, door=desk, listen=Listen(host="192.0.2.1", port=0, certificate=certificate))
    with pytest.raises(BadInput, match=r"cannot listen on 192\.0\.2\.1:0: .*give another address or port"):
        await server.start()


def test_only_loopback_goes_without_tls() -> None:
    with pytest.raises(BadInput, match="needs TLS"):
        Listen(host="0.0.0.0")


async def test_tls_is_pinned_to_the_fingerprint(desk: Desk) -> None:
    certificate = new_certificate()
    server = AgentServer(keys=KEYS, door=desk, listen=Listen(certificate=certificate))
    await server.start()
    try:
        good = await connect(server.url, token=agent_token(), hello=a_hello(), fingerprint=certificate.fingerprint)
        await good.close()
        with pytest.raises(Refused, match="another certificate"):
            await connect(server.url, token=agent_token(), hello=a_hello(), fingerprint=new_certificate().fingerprint)
    finally:
        await server.close()


def test_the_same_secret_makes_the_same_certificate() -> None:
    assert certificate_from_secret(b"s").fingerprint == certificate_from_secret(b"s").fingerprint
    assert certificate_from_secret(b"s").fingerprint != certificate_from_secret(b"t").fingerprint


def test_a_token_names_its_job_and_only_its_purpose_opens() -> None:
    token = KEYS.token(Purpose.AGENT)
    assert token_uid(token) == "job-uid"
    assert KEYS.allows(token, Purpose.AGENT)
    assert not KEYS.allows(token, Purpose.ADMIN)
    assert "install_key" not in repr(KEYS)
    with pytest.raises(BadInput):
        token_uid("é")


async def test_text_instead_of_binary_is_a_protocol_error(server: AgentServer) -> None:
    connection = await connect(server.url, token=agent_token(), hello=a_hello())
    await connection._socket.send_str("hello?")
    answer = await anext(aiter(connection))
    assert isinstance(answer, Refuse)
    assert "binary" in answer.reason
    await connection.close()


def test_bytes_that_are_no_message_raise_one_kind_of_error() -> None:
    decoder: Decoder[FromAgent] = Decoder(FromAgent, limit=100)
    for data in (b"", b"\xc1", b"x" * 101, b"\x80"):
        with pytest.raises(ProtocolError):
            decoder.decode(data)
