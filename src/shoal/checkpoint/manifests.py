"""Checkpoints in a folder: how one is written so that a crash at any byte leaves the ones before it, and how the newest
good one is found.

    step-000000000040.json               the manifest: which data, how long, the checksum of each chunk
    step-000000000040-3fa2b1c4.data      the image, written before it under a name used once

The data is written and synced, then the manifest is put in place, in one step. A data file that no manifest names is
nothing: left by a crash, or just being written. A manifest whose own checksum or whose data's checksums do not hold is
damaged: it is told, and the checkpoint before it is used. CRC-32 for each 4 MiB: what has to be found is a torn write
or a rotten bit, not an enemy, and a training node's cores have better things to do than SHA-256.
"""

import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from shoal.checkpoint.folder import Folder, reason
from shoal.checkpoint.image import BadImage, Image
from shoal.core.errors import ShoalError

FORMAT = 1
CHUNK_BYTES = 4 << 20
_WRITE_BYTES = 4 << 20
STALE_SECONDS = 3600.0
"""A data file without manifest that nobody wrote to for so long belongs to a writer that died."""

_MANIFEST = re.compile(r"step-(\d{12,})\.json")
_DATA = re.compile(r"step-(\d{12,})-[0-9a-f]+\.data|\.step-.*\.tmp")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One complete checkpoint."""

    format: int
    job: str
    step: int
    saved_at: float
    data: str
    """The name of the data file."""
    nbytes: int
    chunk_bytes: int
    crc32: tuple[str, ...]
    """Of each chunk, in hexadecimal."""
    checksum: str = ""
    """CRC-32 of this manifest with an empty `checksum`."""


class Damaged(ShoalError):
    """This checkpoint cannot be used; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that says it is complete. Its data has not been looked at."""

    name: str
    step: int
    manifest: Manifest


# Writing -------------------------------------------------------------------------------------------------


def write(folder: Folder, parts: Iterable[memoryview], *, job: str, step: int, saved_at: float) -> Manifest:
    """Write one image, given in parts, and put its manifest in place, over one of the same step that may be there.
    Raises `OSError` and leaves what was there."""
    name = f"step-{step:012d}"
    data = f"{name}-{secrets.token_hex(4)}.data"
    try:
        nbytes, sums = _write_data(folder, data, parts)
        manifest = Manifest(
            format=FORMAT,
            job=job,
            step=step,
            saved_at=saved_at,
            data=data,
            nbytes=nbytes,
            chunk_bytes=CHUNK_BYTES,
            crc32=tuple(f"{value:08x}" for value in sums),
        )
        manifest = msgspec.structs.replace(manifest, checksum=_checksum(manifest))
        before = _data_named_by(folder, f"{name}.json")
        folder.replace(f"{name}.json", msgspec.json.format(msgspec.json.encode(manifest), indent=0))
    except OSError:
        _remove_quietly(folder, data)
        raise
    if before is not None:
        _remove_quietly(folder, before)
    return manifest


def prune(folder: Folder, *, keep: int, written: int) -> None:
    """Remove what is older than the newest `keep` checkpoints, and what dead writers left.

    Never the one of step `written`, which was saved just now: where training had to go back its step is below others
    that cannot be used. Only manifests that can be read count, and one that cannot be read at the moment (a disk in
    trouble, a newer format) keeps its data: it may be good. Manifests go before their data.
    """
    names = folder.names()
    steps = {_step_of(name): name for name in names if _MANIFEST.fullmatch(name)}
    data = {found.step: found.manifest.data for found in scan(folder, _newest_first(names), damaged=lambda _: None)}
    newest = sorted(data, reverse=True)[:keep]
    oldest = newest[-1] if len(newest) == keep else 0
    doomed = {step for step in steps if step < oldest and step != written}
    for step in doomed:
        folder.remove(steps[step])
    named = {data[step] for step in data if step not in doomed}
    unread = steps.keys() - data.keys() - doomed
    for name in names:
        matched = _DATA.fullmatch(name)
        if matched is None or name in named:
            continue
        of = None if matched[1] is None else int(matched[1])
        if of in doomed or (of not in unread and (folder.age(name) or 0.0) > STALE_SECONDS):
            folder.remove(name)


def _write_data(folder: Folder, name: str, parts: Iterable[memoryview]) -> tuple[int, list[int]]:
    """Checksums are computed in a thread beside the writing: both leave the interpreter to others."""
    sums = _Sums()
    with ThreadPoolExecutor(1, "shoal-checksum") as pool, folder.create(name) as file:
        waiting = []
        for part in parts:
            waiting.append(pool.submit(sums.update, part))
            for begin in range(0, len(part), _WRITE_BYTES):
                file.write(part[begin : begin + _WRITE_BYTES])
        file.finish()
        for each in waiting:
            each.result()
    return sums.nbytes, sums.finished()


class _Sums:
    """CRC-32 of each chunk of a run of bytes that comes in parts."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._done: list[int] = []
        self._running = 0

    def update(self, part: memoryview) -> None:
        part = part.cast("B")
        while part:
            room = CHUNK_BYTES - self.nbytes % CHUNK_BYTES
            piece, part = part[:room], part[room:]
            self._running = zlib.crc32(piece, self._running)
            self.nbytes += len(piece)
            if self.nbytes % CHUNK_BYTES == 0:
                self._done.append(self._running)
                self._running = 0

    def finished(self) -> list[int]:
        return [*self._done, self._running] if self.nbytes % CHUNK_BYTES else self._done


def _checksum(manifest: Manifest) -> str:
    return f"{zlib.crc32(msgspec.json.encode(msgspec.structs.replace(manifest, checksum=''))):08x}"


def _data_named_by(folder: Folder, name: str) -> str | None:
    """The data of a manifest that is about to be replaced; None: there is none, or it is damaged."""
    try:
        return _manifest(folder, name).data
    except Damaged:
        return None


def _remove_quietly(folder: Folder, name: str) -> None:
    try:
        folder.remove(name)
    except OSError:
        pass  # the folder is in trouble; a later writer sweeps


# Reading -------------------------------------------------------------------------------------------------


def scan(folder: Folder, names: Sequence[str] | None = None, *, damaged: Callable[[Damaged], None]) -> Iterator[Found]:
    """The checkpoints of a folder, the newest first. Damaged manifests are told and passed over."""
    if names is None:
        names = _newest_first(folder.names())
    for name in names:
        try:
            manifest = _manifest(folder, name)
        except Damaged as exc:
            damaged(exc)
        else:
            yield Found(name.removesuffix(".json"), manifest.step, manifest)


def load(folder: Folder, found: Found) -> Image:
    """The checkpoint's image, every byte of it checked. Raises `Damaged`."""
    where, manifest = f"{folder.url}: {found.name}", found.manifest
    try:
        data = folder.load(manifest.data)
    except OSError as exc:
        raise _unreadable(folder, found, exc) from exc
    _check_length(folder, found, len(data))
    for number, wanted in enumerate(manifest.crc32):
        begin = number * manifest.chunk_bytes
        if f"{zlib.crc32(data[begin : begin + manifest.chunk_bytes]):08x}" != wanted:
            raise Damaged(f"{where}: its data differs from what was written, at byte {begin} or after")
    try:
        return Image(data)
    except BadImage as exc:
        raise Damaged(f"{where}: {exc}") from exc


def look(folder: Folder, found: Found) -> None:
    """See that the checkpoint's data is there, as long as it was written; it is not read. Raises `Damaged`."""
    try:
        length = folder.length(found.manifest.data)
    except OSError as exc:
        raise _unreadable(folder, found, exc) from exc
    _check_length(folder, found, length)


def _unreadable(folder: Folder, found: Found, exc: OSError) -> Damaged:
    return Damaged(f"{folder.url}: {found.name}: its data {found.manifest.data} cannot be read: {reason(exc)}")


def _check_length(folder: Folder, found: Found, length: int) -> None:
    if length != (wanted := found.manifest.nbytes):
        raise Damaged(f"{folder.url}: {found.name}: its data has {length} bytes, {wanted} were written")


def _manifest(folder: Folder, name: str) -> Manifest:
    where = f"{folder.url}: {name}"
    try:
        manifest = msgspec.json.decode(folder.read(name), type=Manifest)
    except OSError as exc:
        raise Damaged(f"{where} cannot be read: {reason(exc)}") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise Damaged(f"{where} is damaged: {exc}") from exc
    if manifest.format != FORMAT:
        raise Damaged(f"{where} has format {manifest.format}, known here is {FORMAT}")
    chunks = -(-manifest.nbytes // manifest.chunk_bytes) if manifest.chunk_bytes > 0 else -1
    named = _DATA.fullmatch(manifest.data) is not None  # a name in this folder, not a path to somewhere else
    if manifest.checksum != _checksum(manifest) or len(manifest.crc32) != chunks or not named:
        raise Damaged(f"{where} is damaged: its checksum does not hold")
    return manifest


def _newest_first(names: Iterable[str]) -> list[str]:
    """The manifests among these."""
    return sorted((name for name in names if _MANIFEST.fullmatch(name)), key=_step_of, reverse=True)


def _step_of(name: str) -> int:
    matched = _MANIFEST.fullmatch(name)
    assert matched is not None
    return int(matched[1])
