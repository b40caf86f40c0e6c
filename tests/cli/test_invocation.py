"""What one `shoal run` is: a job, its host, or one node of it."""

import socket

import pytest

from shoal.cli.addresses import can_bind, is_loopback, port_in_use
from shoal.cli.invocation import Alone, EndpointFacts, HostEndpoint, Invocation, Join, decide, look
from shoal.cli.torchrun import Address, RunOptions, parse
from shoal.core.errors import BadInput

LOCAL = EndpointFacts(is_loopback=True, is_ours=True, is_free=True)
TAKEN = EndpointFacts(is_loopback=True, is_ours=True, is_free=False)
OURS = EndpointFacts(is_loopback=False, is_ours=True, is_free=True)
FOREIGN = EndpointFacts(is_loopback=False, is_ours=False, is_free=False)
H1 = Address(host="h", port=1)


def options(*words: str) -> RunOptions:
    found = parse([*words, "t.py"], {})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("words", "facts", "expected"),
    [
        pytest.param(
            ["--nnodes", "1:4"],
            None,
            Alone(listen=Address(host="127.0.0.1", port=0), agents=4, invites=False),
            id="this-machine-runs-MAX",
        ),
        pytest.param(
            ["--nnodes", "1:4", "--agents", "2", "--listen", "0.0.0.0", "--port", "7"],
            None,
            Alone(listen=Address(host="0.0.0.0", port=7), agents=2, invites=True),
            id="others-are-invited",
        ),
        pytest.param(
            ["--nnodes", "2", "--rdzv-endpoint", "h:1"], LOCAL, HostEndpoint(listen=H1, shared=False), id="first-hosts"
        ),
        pytest.param(
            ["--nnodes", "2", "--rdzv-endpoint", "h:1"],
            TAKEN,
            Join(master=H1, shared=False, on_loopback=True),
            id="second-joins",
        ),
        pytest.param(
            ["--nnodes", "2", "--rdzv-endpoint", "h:1"], OURS, HostEndpoint(listen=H1, shared=True), id="open-host"
        ),
        pytest.param(
            ["--nnodes", "2", "--rdzv-endpoint", "h:1"],
            FOREIGN,
            Join(master=H1, shared=True, on_loopback=False),
            id="elsewhere",
        ),
        pytest.param(
            ["--nnodes", "2", "--master-addr", "h", "--master-port", "1", "--node-rank", "1"],
            OURS,
            Join(master=H1, shared=True, on_loopback=False),
            id="rank-1-never-hosts",
        ),
        pytest.param(
            ["--nnodes", "1", "--rdzv-endpoint", "h:1"],
            FOREIGN,
            Alone(listen=Address(host="127.0.0.1", port=0), agents=1, invites=False),
            id="one-node-needs-no-endpoint",
        ),
    ],
)
def test_what_one_invocation_is(words: list[str], facts: EndpointFacts | None, expected: Invocation) -> None:
    assert decide(options(*words), facts) == expected


@pytest.mark.parametrize(("facts", "complaint"), [(FOREIGN, "no address of this machine"), (TAKEN, "in use")])
def test_an_owner_that_cannot_own(facts: EndpointFacts, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        decide(options("--nnodes", "2", "--master-addr", "h", "--node-rank", "0"), facts)


def test_looking_at_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        taken = Address(host="127.0.0.1", port=port)
        assert look(taken) == TAKEN
        assert port_in_use(taken)
    assert not port_in_use(Address(host="127.0.0.1", port=0))
    assert not can_bind(socket.AF_INET, "203.0.113.7", port=0)


def test_a_host_without_an_address_is_named() -> None:
    with pytest.raises(BadInput, match="no-such-host"):
        look(Address(host="no-such-host.invalid", port=1))


@pytest.mark.parametrize(
    ("host", "expected"), [("localhost", True), ("127.0.0.2", True), ("::1", True), ("10.0.0.1", False), ("box", False)]
)
def test_loopback_is_a_matter_of_numbers(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
