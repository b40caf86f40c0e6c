"""Talking to a running job's master: plain HTTP with the admin token, and nothing but the standard library.

`shoal ps` should answer at once, and importing aiohttp would take longer than the request.
"""

import hashlib
import hmac
import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from shoal.cli.registry import Entry
from shoal.core.errors import Disconnected, ProtocolError, Refused, ShoalError
from shoal.core.figures import JobFigures
from shoal.core.view import JobView

TIMEOUT_SECONDS = 5.0
MAX_ANSWER = 16 * 1024 * 1024


def state(entry: Entry) -> JobView:
    """How the job is now."""
    try:
        return msgspec.json.decode(_ask(entry, "GET", "/state"), type=JobView)
    except msgspec.MsgspecError as exc:
        raise ProtocolError(f"job {entry.record.name}: its master's state is not readable: {exc}") from exc


def stats(entry: Entry, *, nodes: Sequence[str] = ()) -> JobFigures:
    """What the job uses now; with the histories of these nodes."""
    query = urlencode([("node", node) for node in nodes])
    try:
        return msgspec.json.decode(_ask(entry, "GET", f"/stats?{query}" if query else "/stats"), type=JobFigures)
    except msgspec.MsgspecError as exc:
        raise ProtocolError(f"job {entry.record.name}: its master's figures are not readable: {exc}") from exc


def scale(entry: Entry, wanted: Mapping[str, Any]) -> str:
    """Ask for so many nodes of each role, or for others in place of some; the master's sentence about it."""
    return _said(_ask(entry, "POST", "/scale", dict(wanted)))


def stop(entry: Entry, *, reason: str, grace_seconds: float | None) -> str:
    return _said(_ask(entry, "POST", "/stop", {"reason": reason, "grace_seconds": grace_seconds}))


def _ask(entry: Entry, method: str, path: str, body: object = None) -> bytes:
    """One request. Raises `Disconnected` (no master there), `Refused` (it said no), with the job's name."""
    record = entry.record
    if record.url is None:
        raise Disconnected(f"job {record.name} is still starting: its master does not listen yet")
    connection = _connection(record.url)
    try:
        connection.connect()
        _check_certificate(connection, record.fingerprint, record.name)
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {entry.token('admin')}", "Content-Type": "application/json"}
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read(MAX_ANSWER)
    except (OSError, http.client.HTTPException) as exc:
        raise Disconnected(f"job {record.name}: its master at {record.url} does not answer: {exc}") from exc
    finally:
        connection.close()
    if answer.status >= 500:
        raise ShoalError(f"job {record.name}: its master failed ({answer.status}): {_said(text)}")
    if answer.status >= 400:
        raise Refused(f"job {record.name}: {_said(text)}")
    return text


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme in ("https", "wss"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # nobody signs a job's certificate: its fingerprint is checked instead
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)
    return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)


def _check_certificate(connection: http.client.HTTPConnection, fingerprint: str | None, job: str) -> None:
    if not isinstance(connection.sock, ssl.SSLSocket):
        return
    seen = connection.sock.getpeercert(binary_form=True) or b""
    got = f"sha256:{hashlib.sha256(seen).hexdigest()}"
    if fingerprint is None or not hmac.compare_digest(got, fingerprint):
        raise Refused(f"job {job}: another certificate than its own: wanted {fingerprint}, got {got}")


def _said(text: bytes) -> str:
    """The sentence in an answer: `said` or `error` of a JSON object, else the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text.decode("utf-8", "replace").strip()
    if isinstance(value, dict):
        return str(value.get("error") or value.get("said") or "done")
    return str(value)
