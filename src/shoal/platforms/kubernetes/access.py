"""Where an API server is and who we are to it: what a kubeconfig or a Pod's files come down to.

`Access` is a value. What changes while a process runs, tokens that rotate and plug-ins whose answers expire, is behind
`Credentials`: asked before every call, cheap when nothing changed, told when the server refused what it gave.
"""

import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shoal.core.errors import BadInput


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client certificate with its key, both as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are in one call."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    certificate: Certificate | None = None


class Credentials(Protocol):
    async def identity(self) -> Identity:
        """Who we are now. Raises `Unauthorized` when nothing can be had, with what to do about it."""
        ...

    def refused(self) -> bool:
        """The server did not accept the last identity. True: asking again may give another one."""
        ...


class Anonymous:
    """Nobody in particular: a plain-HTTP server on loopback, a test."""

    async def identity(self) -> Identity:
        return Identity()

    def refused(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One API server, as one user."""

    server: str
    """`https://HOST:PORT`, maybe with a path."""
    credentials: Credentials = field(default_factory=Anonymous)
    authority: bytes | None = None
    """PEM of who signs the server's certificate; None: the machine's usual authorities."""
    verify: bool = True
    """False only where a kubeconfig says `insecure-skip-tls-verify`."""
    server_name: str | None = None
    """The name the server's certificate must have, when not the one in `server`."""
    proxy: str | None = None
    namespace: str = "default"
    """Where things are when nobody says."""

    def tls(self, certificate: Certificate | None) -> ssl.SSLContext:
        """What to trust and what to show. Costs milliseconds: make it once per certificate."""
        context = ssl.create_default_context(cadata=_pem(self.authority) if self.authority else None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            _show(context, certificate)
        return context


def _pem(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as exc:
        raise BadInput("the certificate authority is not PEM") from exc


def _show(context: ssl.SSLContext, certificate: Certificate) -> None:
    """`ssl` takes certificates from files only: one that nobody else can read, gone before we return."""
    with tempfile.NamedTemporaryFile(prefix="shoal-", suffix=".pem") as file:  # mode 0600
        file.write(certificate.certificate + b"\n" + certificate.key)
        file.flush()
        try:
            context.load_cert_chain(Path(file.name))
        except (ssl.SSLError, ValueError) as exc:
            raise BadInput(f"the client certificate and its key do not fit together or are not PEM: {exc}") from exc
