"""A job's state in one Secret of its namespace, `<job>-state`.

    data:
      term    the term of the master that owns the state
      holder  who that is: one master process, by a name of its own
      state   the records, msgpack in zlib; at most 256 KiB

A Secret is replaced as a whole, so every write is a compare-and-swap: it names the version it was decided on, and when
that is no longer the newest, whoever wrote since is looked at first. If it was another master, this one is superseded;
if somebody else touched the object (a label), or our own last write went through and its answer was lost, we write
again. A master that is superseded can change nothing, however late it finds out.

Each write costs as much as all of the state and a write in the cluster's etcd. Therefore the pace: see `StateStore`.
The Secret itself is made by the operator; a master may read and patch this one and no other.
"""

import uuid
import zlib
from datetime import timedelta

import msgspec

from shoal.core.errors import StateTooLarge, StateUnavailable, StateUnreadable, Superseded
from shoal.core.ports import Claimed
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.errors import (
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    Unauthorized,
)
from shoal.platforms.kubernetes.objects import SECRETS, Secret

PACE = timedelta(seconds=10)
LIMIT = 256 * 1024
"""Bytes of the compressed state. etcd takes 1.5 MiB in one write; thousands of jobs share it."""
_LARGEST = 64 * 1024 * 1024
"""Bytes that are unpacked: a master never writes more, and a forged state must not fill its memory."""
_TRIES = 8
_records: msgspec.msgpack.Decoder[tuple[bytes, ...]] = msgspec.msgpack.Decoder(tuple[bytes, ...])


class SecretStore:
    """A `StateStore`. `term`: the one that this master was given; None: the next one."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        term: int | None = None,
        holder: str | None = None,
        pace: timedelta = PACE,
    ) -> None:
        self.pace = pace
        self._client = client
        self._namespace, self._name = namespace, name
        self._given = term
        self._holder = holder or uuid.uuid4().hex
        self._term = 0
        self._version = ""
        self._kept: tuple[bytes, ...] = ()
        self._is_whole = False

    async def claim(self) -> Claimed:
        for _ in range(_TRIES):
            found = await self._found()
            held, term = self._held_by(found)
            if held != self._holder:
                term = self._following(term, held)
            records = self._unpacked(found)
            try:
                await self._write(found.metadata.resource_version, term)
            except Conflict:
                continue
            self._term, self._kept, self._is_whole = term, records, True
            return Claimed(term=term, records=records)
        raise StateUnavailable(f"{self._where} changes faster than it can be claimed")

    async def append(self, record: bytes) -> None:
        if not self._is_whole:
            raise StateUnavailable(f"{self._where}: records are missing since the last trouble")
        await self._replace((*self._kept, record))

    async def compact(self, snapshot: bytes) -> None:
        await self._replace((snapshot,))

    async def raise_term(self, term: int) -> None:
        for _ in range(_TRIES):
            try:
                await self._write(self._version, term)
            except Conflict:
                await self._look()
                continue
            self._term = term
            return
        raise StateUnavailable(f"{self._where} changes faster than it can be written")

    async def close(self) -> None:
        pass  # the client is whoever's made it

    # Claiming ---------------------------------------------------------------------------------------------

    def _following(self, term: int, held: str) -> int:
        """The term that this master may take, when the state is another's. Raises `Superseded`."""
        if self._given is None:
            return term + 1
        if term >= self._given:
            raise Superseded(f"{self._where} is master {term}'s ({held}), this is master {self._given}")
        return self._given

    def _held_by(self, found: Secret) -> tuple[str, int]:
        """Who owns the state, and under which term; 0 with a state: it has lost its term (see `raise_term`)."""
        try:
            return found.data.get("holder", b"").decode(), int(found.data.get("term") or b"0")
        except ValueError as exc:
            if found.data.get("state"):
                return "", 0
            raise StateUnreadable(f"{self._where}: its term is no number; nothing was changed") from exc

    def _unpacked(self, found: Secret) -> tuple[bytes, ...]:
        data = found.data.get("state")
        if not data:
            return ()
        try:
            unpacker = zlib.decompressobj()
            plain = unpacker.decompress(data, _LARGEST)
            if not unpacker.eof:
                raise zlib.error("it is cut short or too large")
            return _records.decode(plain)
        except (zlib.error, msgspec.MsgspecError) as exc:
            raise StateUnreadable(f"{self._where} holds no state of a job: {exc}; nothing was changed") from exc

    # Writing ----------------------------------------------------------------------------------------------

    async def _replace(self, records: tuple[bytes, ...]) -> None:
        self._is_whole = False
        state = zlib.compress(msgspec.msgpack.encode(records))
        if len(state) > LIMIT:
            raise StateTooLarge(
                f"the job's state is {len(state) // 1024} KiB, {self._where} takes {LIMIT // 1024}: "
                "fewer datasets, fewer nodes or larger shards make it smaller"
            )
        for _ in range(_TRIES):
            try:
                await self._write(self._version, self._term, state)
            except Conflict:
                await self._look()
                continue
            self._kept, self._is_whole = records, True
            return
        raise StateUnavailable(f"{self._where} changes faster than it can be written")

    async def _look(self) -> None:
        """Somebody has written since. Raises `Superseded` if it was another master."""
        found = await self._found()
        held, term = self._held_by(found)
        if held != self._holder:
            raise Superseded(f"{self._where}: term {self._term} was superseded by {term}")
        self._version = found.metadata.resource_version

    async def _write(self, version: str, term: int, state: bytes | None = None) -> None:
        """Raises `Conflict`, `StateUnavailable`, `StateUnreadable`."""
        data: dict[str, bytes] = {"term": b"%d" % term, "holder": self._holder.encode()}
        if state is not None:
            data["state"] = state
        patch = Merge({"metadata": {"resourceVersion": version}, "data": data})
        try:
            written = await self._client.patch(SECRETS, self._name, patch, namespace=self._namespace)
        except Conflict:
            raise
        except ApiError as exc:
            raise self._trouble(exc) from exc
        self._version = written.metadata.resource_version

    async def _found(self) -> Secret:
        try:
            return await self._client.get(SECRETS, self._name, namespace=self._namespace)
        except ApiError as exc:
            raise self._trouble(exc) from exc

    def _trouble(self, exc: ApiError) -> StateUnavailable | StateUnreadable:
        match exc:
            case NotFound() if not self._term:
                return StateUnreadable(f"{self._where} is not there: the operator makes it with the job ({exc})")
            case Forbidden() | Unauthorized() if not self._term:
                return StateUnreadable(str(exc))
            case _:
                return StateUnavailable(str(exc))

    @property
    def _where(self) -> str:
        return f"Secret {self._namespace}/{self._name}"
