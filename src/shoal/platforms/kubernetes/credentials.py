"""Credentials that change while a process runs: token files, certificate files, exec plug-ins.

Each of these is asked before every call and answers from memory while it may: a file is read again after
`REREAD_SECONDS` (a Pod's token is replaced by the kubelet long before the old one ends), a plug-in is run again when
its answer expires. When the server refuses what they gave, they forget it.
"""

import asyncio
import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from shoal.core.errors import BadInput
from shoal.platforms.kubernetes.access import Certificate, Identity
from shoal.platforms.kubernetes.errors import Unauthorized

REREAD_SECONDS = 60.0
EARLY = timedelta(seconds=30)
"""So much before its end an answer is no longer used: clocks differ, calls take time."""
PLUGIN_SECONDS = 60.0
PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Fixed:
    """Always the same: a token or a certificate that stands in the kubeconfig itself."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    async def identity(self) -> Identity:
        return self._identity

    def refused(self) -> bool:
        return False


class Files:
    """A token, or a certificate with its key, in files that somebody replaces from time to time."""

    def __init__(
        self,
        *,
        token: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        headers: Mapping[str, str] | None = None,
        inline: Certificate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`inline`: the certificate, where it does not come from files."""
        self._token, self._certificate, self._key = token, certificate, key
        self._headers = dict(headers or {})
        self._inline = inline
        self._clock = clock
        self._read: Identity | None = None
        self._read_at = 0.0
        self._refused = False

    async def identity(self) -> Identity:
        now = self._clock()
        if self._read is None or now - self._read_at >= REREAD_SECONDS:
            try:
                self._read = self._from_files()
                self._read_at = now
            except OSError as exc:
                if self._read is None:
                    raise Unauthorized(f"cannot read our credentials: {exc}") from exc
                self._read_at = now  # being replaced at this moment: what we have is still good
        return self._read

    def refused(self) -> bool:
        """There is something new to try only if the files have changed."""
        before, self._read = self._read, None
        try:
            self._read, self._read_at = self._from_files(), self._clock()
        except OSError:
            return False
        return self._read != before

    def _from_files(self) -> Identity:
        headers = dict(self._headers)
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
        certificate = self._inline
        if self._certificate is not None and self._key is not None:
            certificate = Certificate(self._certificate.read_bytes(), self._key.read_bytes())
        return Identity(headers, certificate)


# Exec plug-ins -----------------------------------------------------------------------------------------------------


class _PluginStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str | None = None
    expiration_timestamp: datetime | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None


class _PluginAnswer(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _PluginStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A program that says who we are."""

    argv: tuple[str, ...]
    api_version: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None
    """What it is told of the server, if it asked for it (`provideClusterInfo`)."""

    def __post_init__(self) -> None:
        if self.api_version not in PLUGIN_VERSIONS:
            raise BadInput(
                f"exec plug-in {self.argv[0]}: apiVersion {self.api_version!r} is not known, wanted one of "
                f"{', '.join(PLUGIN_VERSIONS)}"
            )

    def info(self) -> str:
        """What it finds in KUBERNETES_EXEC_INFO."""
        spec: dict[str, Any] = {"interactive": False}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        told = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        return msgspec.json.encode(told).decode()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a plug-in said."""

    identity: Identity
    expires: datetime | None

    def is_good(self, now: datetime) -> bool:
        return self.expires is None or now < self.expires - EARLY


def parse_answer(plugin: Plugin, output: bytes, headers: Mapping[str, str]) -> Answer:
    """A plug-in's output. Raises `Unauthorized` with what is wrong with it; never repeats it: it may hold a token."""
    name = plugin.argv[0]
    try:
        answer = msgspec.json.decode(output, type=_PluginAnswer)
    except msgspec.MsgspecError as exc:
        raise Unauthorized(f"exec plug-in {name} printed no ExecCredential: {exc}") from exc
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        raise Unauthorized(
            f"exec plug-in {name} printed {answer.kind} of {answer.api_version}, wanted ExecCredential of "
            f"{plugin.api_version}"
        )
    status = answer.status or _PluginStatus()
    if (status.client_certificate_data is None) != (status.client_key_data is None):
        raise Unauthorized(f"exec plug-in {name} gave only one of certificate and key")
    if status.token is None and status.client_certificate_data is None:
        raise Unauthorized(f"exec plug-in {name} gave neither a token nor a certificate")
    certificate = None
    if status.client_certificate_data is not None and status.client_key_data is not None:
        certificate = Certificate(status.client_certificate_data.encode(), status.client_key_data.encode())
    bearer = {"Authorization": f"Bearer {status.token}"} if status.token else {}
    expires = status.expiration_timestamp
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    return Answer(Identity({**headers, **bearer}, certificate), expires)


class Exec:
    """Asks a plug-in, and keeps its answer for as long as that holds. Callers who come together wait for one run."""

    def __init__(
        self,
        plugin: Plugin,
        *,
        headers: Mapping[str, str] | None = None,
        now: Callable[[], datetime] | None = None,
        seconds: float = PLUGIN_SECONDS,
    ) -> None:
        self.plugin = plugin
        self._headers = dict(headers or {})
        self._now = now or (lambda: datetime.now(UTC))
        self._seconds = seconds
        self._answer: Answer | None = None
        self._asking = asyncio.Lock()

    async def identity(self) -> Identity:
        async with self._asking:
            if self._answer is None or not self._answer.is_good(self._now()):
                self._answer = parse_answer(self.plugin, await self._run(), self._headers)
            return self._answer.identity

    def refused(self) -> bool:
        self._answer = None
        return True

    async def _run(self) -> bytes:
        name = self.plugin.argv[0]
        try:
            process = await asyncio.create_subprocess_exec(
                *self.plugin.argv,
                env={**self.plugin.environment, "KUBERNETES_EXEC_INFO": self.plugin.info()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as exc:
            hint = f"; {self.plugin.install_hint}" if self.plugin.install_hint else ""
            raise Unauthorized(f"cannot run the exec plug-in {name}: {exc}{hint}") from exc
        try:
            async with asyncio.timeout(self._seconds):
                output, trouble = await process.communicate()
        except TimeoutError as exc:
            raise Unauthorized(f"exec plug-in {name} did not end within {self._seconds:g} s") from exc
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            said = " ".join(trouble.decode(errors="replace").split())[-500:]
            raise Unauthorized(f"exec plug-in {name} ended with code {process.returncode}: {said}")
        return output


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def impersonating(user: str, groups: Sequence[str], uid: str | None) -> dict[str, str]:
    """The headers for acting as another. One header per group is what the server wants; aiohttp takes one value per
    name here, so several groups are refused rather than guessed at."""
    if len(groups) > 1:
        raise BadInput(f"a kubeconfig that acts as {user} with {len(groups)} groups is not supported, at most one is")
    headers = {"Impersonate-User": user}
    if groups:
        headers["Impersonate-Group"] = groups[0]
    if uid:
        headers["Impersonate-Uid"] = uid
    return headers
