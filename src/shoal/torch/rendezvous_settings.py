"""What `torchrun` was told about the master: `--rdzv-endpoint`, `--rdzv-id`, `--rdzv-conf` and the environment.

`--rdzv-conf key=value,…` takes:

    token_file      a file with the job's token; without it SHOAL_TOKEN, then the file that SHOAL_TOKEN_FILE names
    fingerprint     the master's certificate, sha256:…; asked for when the master is not on this machine
    nproc           processes per node, as in --nproc-per-node, which torchrun does not tell its handlers; default 1
    join_timeout    seconds to wait for a world; default: torchrun's own `timeout`
    master_timeout  seconds to go on without a master before giving up; default 60
"""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from shoal.core.errors import BadInput
from shoal.wire.tls import fingerprint_bytes
from shoal.wire.tokens import token_uid

TOKEN, TOKEN_FILE = "SHOAL_TOKEN", "SHOAL_TOKEN_FILE"
NO_RUN_ID = "none"
"""What torchrun says when there was no `--rdzv-id`."""

_KNOWN = ("token_file", "fingerprint", "nproc", "join_timeout", "master_timeout", "timeout")
_LONGEST_TOKEN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSettings:
    url: str
    token: str = field(repr=False)
    fingerprint: str | None
    """None: plain WebSocket, for a master on this machine."""
    job: str
    run_id: str
    host: str
    address: str
    """Where the other nodes reach this one."""
    slots: int
    is_uniform: bool
    """`nproc` was stated, so the master has checked that all nodes have as many processes."""
    join_timeout: float
    """Seconds for one rendezvous."""
    master_timeout: float
    """Seconds. A restart of the master takes a few; a minute without it means that nobody is coming back."""


def read_settings(params: RendezvousParameters, environment: Mapping[str, str]) -> HandlerSettings:
    """Raises `BadInput` with what is missing or wrong, and where to say it."""
    unknown = sorted(set(params.config) - set(_KNOWN))
    if unknown:
        raise BadInput(f"--rdzv-conf: {', '.join(unknown)} is not known; the shoal backend takes {', '.join(_KNOWN)}")
    host, port = _endpoint(params.endpoint)
    token = _token(params.get("token_file"), environment)
    fingerprint = _fingerprint(params.get("fingerprint"))
    if fingerprint is None and not _is_loopback(host):
        raise BadInput(
            f"the master at {host} is not on this machine, so its certificate must be known: "
            f"add fingerprint=sha256:… to --rdzv-conf (the job's join line has it)"
        )
    return HandlerSettings(
        url=f"{'ws' if fingerprint is None else 'wss'}://{f'[{host}]' if ':' in host else host}:{port}",
        token=token,
        fingerprint=fingerprint,
        # A token's uid begins with the job's name, so that --rdzv-id need not repeat it.
        job=token_uid(token).rpartition(".")[0] or params.run_id if params.run_id == NO_RUN_ID else params.run_id,
        run_id=params.run_id,
        host=socket.gethostname(),
        address=params.local_addr or _address_towards(host, port),
        slots=_number(params, "nproc", 1),
        is_uniform="nproc" in params.config,
        join_timeout=_number(params, "join_timeout", _number(params, "timeout", 600)),
        master_timeout=_number(params, "master_timeout", 60),
    )


def _endpoint(endpoint: str) -> tuple[str, int]:
    try:
        host, port = parse_rendezvous_endpoint(endpoint, default_port=0)
    except ValueError as exc:
        raise BadInput(f"--rdzv-endpoint: {exc}") from exc
    if not port:
        raise BadInput(f"--rdzv-endpoint must be HOST:PORT of a running master, got {endpoint!r}")
    return host, port


def _token(token_file: str | None, environment: Mapping[str, str]) -> str:
    path = token_file or (None if environment.get(TOKEN) else environment.get(TOKEN_FILE))
    if path is None:
        token, source = environment.get(TOKEN, ""), TOKEN
    else:
        token, source = _read(path), path
    if token.strip():
        return token.strip()
    if path is not None:
        raise BadInput(f"{source} holds no token: it is empty")
    raise BadInput(
        f"the shoal backend needs the job's token: set {TOKEN} or {TOKEN_FILE}, or add token_file=FILE to --rdzv-conf"
    )


def _read(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(_LONGEST_TOKEN)
    except (OSError, UnicodeError) as exc:
        raise BadInput(f"the token file {path} cannot be read: {exc}") from exc


def _fingerprint(given: str | None) -> str | None:
    if given is not None:
        try:
            fingerprint_bytes(given)
        except ValueError as exc:
            raise BadInput(f"--rdzv-conf: {exc}") from exc
    return given


def _number(params: RendezvousParameters, key: str, default: int) -> int:
    try:
        number = params.get_as_int(key, default)
    except ValueError:
        number = None
    if number is None or number < 1:
        raise BadInput(f"--rdzv-conf: {key} must be a whole number from 1, got {params.get(key)!r}")
    return number


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address_towards(host: str, port: int) -> str:
    """The address of this machine on the way to `host`. Connecting a datagram socket sends nothing."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError as exc:
        raise BadInput(f"--rdzv-endpoint: there is no way to {host}: {exc}; --local-addr may help") from exc
