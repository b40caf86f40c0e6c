"""A job's state in etcd v3, where several machines may try to be the job's master.

    <prefix>/term           the term of the master that owns the state
    <prefix>/head           the number of the last write; its revision tells whether there was one since
    <prefix>/r/<number>     the records, numbered in order; the first one is the newest snapshot

Every write is a transaction that compares the term first: a master that was superseded can change nothing, however
late it finds out. It also compares and moves the head: a write that was given up because no answer came can not be
carried out after the one that took its place. Claiming is a compare-and-swap of the term, and reads the records in
the same transaction.

It speaks etcd's JSON gateway, which is there in every etcd since 3.4: one HTTP stack for everything.
"""

import asyncio
import base64
import io
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from shoal.core.errors import BadInput, StateUnavailable, StateUnreadable, Superseded
from shoal.core.ports import Claimed

TIMEOUT_SECONDS = 5.0
_DIGITS = 20
_TRIES = 50

Json = dict[str, Any]


class EtcdStore:
    pace = timedelta(0)

    def __init__(self, url: str, *, prefix: str, timeout: float = TIMEOUT_SECONDS) -> None:
        """`url`: `http://HOST:PORT` of etcd's clients' port. `timeout`: seconds that one answer may take."""
        self._timeout = timeout
        self._url = url.rstrip("/")
        self._prefix = prefix.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._term = 0
        self._next = 0
        self._head: int | None = None
        """The revision of the last write; None: nobody knows whether that one was carried out."""
        self._is_whole = False

    @classmethod
    def at(cls, where: str) -> "EtcdStore":
        """`etcd://HOST:PORT/PREFIX`; `etcds` for TLS."""
        parts = urlsplit(where)
        if parts.scheme not in ("etcd", "etcds") or not parts.netloc or not parts.path.strip("/"):
            raise BadInput(f"a store in etcd is etcd://HOST:PORT/PREFIX, got {where!r}")
        scheme = "https" if parts.scheme == "etcds" else "http"
        return cls(f"{scheme}://{parts.netloc}", prefix=parts.path)

    async def claim(self) -> Claimed:
        self._session = self._session or aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout))
        for _ in range(_TRIES):
            term, revision = await self._found_term()
            if term is None and not await self._has_records():
                raise StateUnreadable(f"{self._where}/term is no number; nothing was changed")
            mine = 1 + (term or 0)
            answer = await self._transaction(
                _unchanged(self._key("term"), revision),
                then=(_put(self._key("term"), str(mine).encode()), self._all_records(), _put(self._key("head"), b"0")),
            )
            if answer.get("succeeded"):
                found = answer["responses"][1]["response_range"].get("kvs", [])
                self._term, self._head, self._is_whole = mine, int(answer["header"]["revision"]), True
                self._next = 1 + (int(_bytes(found[-1]["key"])[-_DIGITS:]) if found else 0)
                return Claimed(term=mine, records=tuple(_bytes(each.get("value", "")) for each in found))
        raise StateUnavailable(f"{self._where}: others claimed it {_TRIES} times while we tried")

    async def append(self, record: bytes) -> None:
        if not self._is_whole:
            raise StateUnavailable(f"{self._where}: records are missing since the last trouble")
        await self._write(_put(self._record(self._next), record))

    async def compact(self, snapshot: bytes) -> None:
        number = self._next
        older = {"request_delete_range": {"key": self._record(0), "range_end": self._record(number)}}
        await self._write(_put(self._record(number), snapshot), older)
        self._is_whole = True

    async def raise_term(self, term: int) -> None:
        await self._write(_put(self._key("term"), str(term).encode()))
        self._term = term

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # What it says to etcd ---------------------------------------------------------------------------------

    async def _write(self, *requests: Json) -> None:
        self._next += 1  # also when it fails: nobody knows whether it was written all the same
        number = str(self._next).encode()
        mine = {"target": "VALUE", "key": self._key("term"), "value": _text(str(self._term).encode())}
        for _ in range(_TRIES):
            try:
                head = self._head if self._head is not None else await self._found_head()
                self._head = None
                answer = await self._transaction(
                    mine, _unchanged(self._key("head"), head), then=(*requests, _put(self._key("head"), number))
                )
            except StateUnavailable:
                self._is_whole = False
                raise
            if answer.get("succeeded"):
                self._head = int(answer["header"]["revision"])
                return
            newer, _ = await self._found_term()
            if newer != self._term:
                raise Superseded(f"{self._where}: term {self._term} was superseded by {newer}")
        raise StateUnavailable(f"{self._where} changes faster than it can be written")

    async def _found_head(self) -> int:
        """The revision of the last write that was carried out; 0: there was none."""
        found = (await self._ask("range", {"key": self._key("head")})).get("kvs", [])
        return int(found[0]["mod_revision"]) if found else 0

    async def _found_term(self) -> tuple[int | None, int]:
        """The term (None: something that is none), and the revision in which it was written; 0 and 0: none was."""
        answer = await self._ask("range", {"key": self._key("term")})
        found = answer.get("kvs", [])
        if not found:
            return 0, 0
        text, revision = _bytes(found[0]["value"]), int(found[0]["mod_revision"])
        return int(text) if text.isdigit() else None, revision

    async def _has_records(self) -> bool:
        return bool((await self._ask("range", self._all_records()["request_range"])).get("kvs"))

    async def _transaction(self, *compare: Json, then: Sequence[Json]) -> Json:
        equal = [{"result": "EQUAL", **each} for each in compare]
        return await self._ask("txn", {"compare": equal, "success": list(then)})

    def _all_records(self) -> Json:
        return {
            "request_range": {
                "key": self._key("r/"),
                "range_end": self._key("r0"),  # the first key behind all that begin with r/
                "sort_order": "ASCEND",
                "sort_target": "KEY",
            }
        }

    async def _ask(self, what: str, body: Mapping[str, Any]) -> Json:
        if self._session is None:
            raise StateUnavailable(f"{self._where} was not claimed")
        try:
            data = io.BytesIO(msgspec.json.encode(body))
            async with self._session.post(f"{self._url}/v3/kv/{what}", data=data) as response:
                said, status = await response.read(), response.status
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as exc:  # noqa: UP041 - what aiohttp raises
            raise StateUnavailable(f"{self._where} does not answer: {str(exc) or 'no answer in time'}") from exc
        try:
            answer = msgspec.json.decode(said, type=Json)
        except msgspec.MsgspecError as exc:
            raise StateUnavailable(f"{self._where} answered {status} with something else than JSON") from exc
        if status != 200:
            raise StateUnavailable(f"{self._where} answered {status}: {answer.get('message') or answer.get('error')}")
        return answer

    @property
    def _where(self) -> str:
        return f"etcd at {self._url}{self._prefix}"

    def _key(self, name: str) -> str:
        return _text(f"{self._prefix}/{name}".encode())

    def _record(self, number: int) -> str:
        return self._key(f"r/{number:0{_DIGITS}}")


def _unchanged(key: str, revision: int) -> Json:
    return {"target": "MOD", "key": key, "mod_revision": str(revision)}


def _put(key: str, value: bytes) -> Json:
    return {"request_put": {"key": key, "value": _text(value)}}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
