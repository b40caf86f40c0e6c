"""Which addresses this machine has, which ports are free, at which address a peer reaches us. Nothing is ever sent."""

import ipaddress
import itertools
import random
import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from shoal.cli.torchrun import Address
from shoal.core.errors import BadInput

LOOPBACK = "127.0.0.1"
BACKLOG = 2048
"""Connections that may wait while a job has no master."""
LOWEST_PORT = 10_000
"""Below it are many that services are known by."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
INTERFACES = Path("/sys/class/net")
_UP, _IS_LOOPBACK = 0x1, 0x8
WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not listened on


def resolve(endpoint: Address) -> tuple[tuple[int, str], ...]:
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise BadInput(f"{endpoint}: the host cannot be resolved: {exc}") from exc
    return tuple(dict.fromkeys((int(family), str(address[0])) for family, _, _, _, address in found))


def is_loopback(host: str) -> bool:
    """By number, or `localhost`. A machine's own name may resolve to loopback there and to something else elsewhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def port_in_use(listen: Address) -> bool:
    """Somebody else has that port here. 0 is always free."""
    return bool(listen.port) and any(
        can_bind(*found, port=0) and not can_bind(*found, port=listen.port or 0) for found in resolve(listen)
    )


def can_bind(family: int, address: str, *, port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def listening(listen: Address) -> tuple[socket.socket, ...]:
    """Sockets that listen at every address that the host's name stands for, on one port. Raises `BadInput`."""
    port, opened = listen.port or 0, list[socket.socket]()
    try:
        for family, address in resolve(listen):
            if family == socket.AF_INET6 and opened and not can_bind(family, address, port=0):
                continue  # `localhost` is often said to have an IPv6 address where there is none
            opened.append(_listener(family, address, port))
            port = opened[0].getsockname()[1]
    except OSError as exc:
        for each in opened:
            each.close()
        where = f"{listen.host}:{listen.port or 0}"
        raise BadInput(f"cannot listen on {where}: {exc.strerror or exc}; give another port") from exc
    return tuple(opened)


def _listener(family: int, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def resolves_to_loopback(address: Address) -> bool:
    return any(is_loopback(found) for _, found in resolve(address))


def reachable(listen_host: str) -> str:
    """At which address others reach what listens on `listen_host` here."""
    if listen_host not in WILDCARDS:
        return listen_host
    return towards(Address(host="192.0.2.1", port=9))  # a documentation address: names the default route's interface


def towards(peer: Address) -> str:
    """Our own address on the way to `peer`. Nothing is sent: connecting a datagram socket only picks the route."""
    for family, address in resolve(peer):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, peer.port or 9))
            return str(probe.getsockname()[0])
    return LOOPBACK


def free_ports(count: int, *, candidates: Iterable[int] | None = None) -> tuple[int, ...]:
    """So many ports of this machine that nobody uses now, and that the system gives to nobody of its own accord: they
    may be used much later. Where it keeps none back they are any that are free."""
    candidates = list(range(LOWEST_PORT, first_ephemeral()) if candidates is None else candidates)
    random.shuffle(candidates)  # jobs that start at the same time should not choose the same
    with ExitStack() as held:
        found = list(itertools.islice((s for port in candidates if (s := _held(held, port)) is not None), count))
        found += [held.enter_context(socket.socket()) for _ in range(count - len(found))]
        for each in found:
            if not each.getsockname()[1]:
                each.bind((LOOPBACK, 0))
        return tuple(each.getsockname()[1] for each in found)


def _held(held: ExitStack, port: int) -> socket.socket | None:
    """None: somebody listens there, on whichever address."""
    probe = held.enter_context(socket.socket())
    try:
        probe.bind(("", port))
    except OSError:
        return None
    return probe


def first_ephemeral() -> int:
    """The first port that the system may give to whoever asks for any."""
    try:
        return int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return LOWEST_PORT  # not Linux: nothing is known to be kept back


def outward(interfaces: Path = INTERFACES) -> tuple[str, ...]:
    """The interfaces of this machine that are up and lead out of it."""
    try:
        return tuple(sorted(path.name for path in interfaces.iterdir() if _leads_out(path)))
    except OSError:  # not Linux
        return tuple(sorted(name for _, name in socket.if_nameindex() if not name.startswith("lo")))


def _leads_out(interface: Path) -> bool:
    try:
        flags = int((interface / "flags").read_text(), 16)
    except (OSError, ValueError):
        return False  # gone meanwhile, or no interface
    return bool(flags & _UP) and not flags & _IS_LOOPBACK
