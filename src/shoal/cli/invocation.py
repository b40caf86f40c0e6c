"""What one `shoal run` is: a whole job on this machine, the host of a job of many, or one more node of it.

`decide` is pure. It takes the options and what was found out about the endpoint, and answers with one of three
small values; `launch` makes them true.
"""

from dataclasses import dataclass

from shoal.cli.addresses import LOOPBACK, can_bind, is_loopback, resolve
from shoal.cli.torchrun import Address, RunOptions
from shoal.core.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """This machine runs the master and all nodes it starts. Others may come if it listens."""

    listen: Address
    agents: int
    invites: bool
    """`--listen`: TLS, and a join line is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEndpoint:
    """This invocation owns the endpoint: it runs the master there, and one node."""

    listen: Address
    shared: bool
    """Nodes of other machines come with the token that all share; else the token is found on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """This invocation is one node of a job whose master is elsewhere."""

    master: Address
    shared: bool
    """The certificate follows from the shared token (`--rdzv-endpoint`), not from `--fingerprint`."""
    on_loopback: bool


Invocation = Alone | HostEndpoint | Join


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFacts:
    """What this machine knows about an endpoint."""

    is_loopback: bool
    is_ours: bool
    """Its host is an address of this machine."""
    is_free: bool
    """The port can be bound here: nobody hosts a master there yet."""


def decide(options: RunOptions, facts: EndpointFacts | None) -> Invocation:
    """`facts` are needed for options with an endpoint only."""
    assert options.endpoint is None or facts is not None
    if options.join is not None:
        return Join(master=options.join, shared=False, on_loopback=is_loopback(options.join.host))
    if options.endpoint is None or options.max_nodes == 1:
        # A job of one node needs no endpoint: nobody else will come.
        host = options.listen.host if options.listen else LOOPBACK
        port = options.listen.port if options.listen and options.listen.port is not None else options.port
        return Alone(
            listen=Address(host=host, port=port or 0),
            agents=options.agents or _first(options),
            invites=options.listen is not None,
        )
    assert facts is not None
    owns = facts.is_ours and facts.is_free if options.owns_endpoint is None else options.owns_endpoint
    if not owns:
        return Join(master=options.endpoint, shared=not facts.is_loopback, on_loopback=facts.is_loopback)
    if not facts.is_ours:
        raise BadInput(
            f"this node should host the master at {options.endpoint}, but {options.endpoint.host} is no address of "
            f"this machine: give its own address, or --node-rank 1 or more to join"
        )
    if not facts.is_free:
        raise BadInput(
            f"this node should host the master at {options.endpoint}, but port {options.endpoint.port} is in use: "
            f"choose another, or --node-rank 1 or more to join"
        )
    return HostEndpoint(listen=options.endpoint, shared=not facts.is_loopback)


# Finding out ---------------------------------------------------------------------------------------------


def _first(options: RunOptions) -> int:
    """Nodes to begin with: all that there may be, or as few as there may be, if the job finds its size itself."""
    if not options.autoscale:
        return options.max_nodes
    return -(-options.min_nodes // options.node_unit) * options.node_unit


def look(endpoint: Address) -> EndpointFacts:
    """Ask the resolver and the kernel about an endpoint. Raises `BadInput` if its host has no address."""
    addresses = resolve(endpoint)
    ours = [found for found in addresses if can_bind(*found, port=0)]
    return EndpointFacts(
        is_loopback=is_loopback(endpoint.host),
        is_ours=bool(ours),
        is_free=bool(ours) and all(can_bind(*found, port=endpoint.port or 0) for found in ours),
    )
