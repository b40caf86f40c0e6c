"""Checkpoints of a model that lies on parameter servers, restored onto any number of them.

    ckpt-40-v2-worker-0/                 made under another name and renamed when complete
        manifest.json                    which files, how long; how far the data was trained
        variables.index                  TensorFlow's own: where each variable is, with a CRC-32C of each
        variables.data-00000-of-00002    written by the parameter servers themselves

The servers write, so the directory has to be one that servers and workers share. A folder without a good manifest is
nothing. The manifest guards the index and the lengths of the files; the index guards every tensor, and TensorFlow
checks it as it reads. What the optimizer keeps is saved like any variable. Variables are saved whole, by name, so where
their parts lay does not matter.
"""

import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tensorflow.compat.v1 as tf

from shoal.checkpoint.folder import LocalFolder, reason
from shoal.core.errors import ShoalError
from shoal.core.ledger import Checkpoint
from shoal.core.ps.cluster import PSCheckpoint
from shoal.tensorflow.generation import Generation, why

FORMAT = 1
MANIFEST = "manifest.json"
_PREFIX = "variables"
_NAME = re.compile(r"ckpt-(\d+)(?!\d)")
_MOVE = re.compile(r"move-\d")
_UNDER_WAY = re.compile(r".+\.[0-9a-f]{8}\.tmp")


class CheckpointFailed(ShoalError):
    """A checkpoint could not be written or read; the text says which, where and why."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    step: int
    version: int
    """Of the cluster that it was saved from."""
    parts: int
    """Into how many parts large variables were cut, at most."""
    saved_at: float
    fuzzy: bool
    mark: Checkpoint
    """What the model has seen of the job's datasets."""
    files: dict[str, int]
    """All files of it, and how long they are."""
    index_crc32: str
    checksum: str = ""
    """CRC-32 of this manifest with an empty `checksum`."""


@dataclass(frozen=True, slots=True)
class Found:
    path: Path
    manifest: Manifest


# Writing -----------------------------------------------------------------------------------------------------


def save(
    generation: Generation, path: str, *, mark: Checkpoint | None = None, fuzzy: bool = False, saved_at: float
) -> PSCheckpoint:
    """Save a version's state as the folder `path`, which must not be there. Raises `CheckpointFailed`, and then leaves
    nothing."""
    final, mark = Path(path).absolute(), mark or Checkpoint()
    if final.exists():
        raise CheckpointFailed(f"checkpoint {final} is there already")
    waiting = final.with_name(f"{final.name}.{secrets.token_hex(4)}.tmp")
    try:
        step = _have_written(generation, waiting)
        manifest = _describe(
            waiting,
            step=step,
            version=generation.version,
            parts=generation.layout.parts,
            saved_at=saved_at,
            fuzzy=fuzzy,
            mark=mark,
        )
        LocalFolder(waiting).replace(MANIFEST, msgspec.json.encode(manifest))
        os.rename(waiting, final)
        _sync(final.parent)
    except OSError as exc:
        shutil.rmtree(waiting, ignore_errors=True)
        raise CheckpointFailed(
            f"checkpoint directory {final.parent}: the chief cannot write there: {reason(exc)}"
        ) from exc
    except CheckpointFailed:
        shutil.rmtree(waiting, ignore_errors=True)
        raise
    return PSCheckpoint(path=str(final), step=step, version=generation.version, mark=mark, fuzzy=fuzzy)


def _have_written(generation: Generation, folder: Path) -> int:
    """The servers write their variables into this folder. The step they are of."""
    folder.mkdir(parents=True)
    saving = generation.built.saving
    try:
        step = int(generation.session.run(generation.built.train["step"]))
        generation.session.run(saving.save, {saving.path: str(folder / _PREFIX)})
    except tf.errors.OpError as exc:
        raise CheckpointFailed(
            f"checkpoint directory {folder.parent}: a parameter server cannot write there: {why(exc)}"
        ) from exc
    return step


def _describe(folder: Path, **known: Any) -> Manifest:
    files = {entry.name: entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()}
    index = folder / f"{_PREFIX}.index"
    if index.name not in files or len(files) < 2:
        raise CheckpointFailed(
            f"checkpoint directory {folder.parent}: what the parameter servers have written is not here; it must "
            "be a directory that servers and workers share"
        )
    for name in files:
        _sync(folder / name)
    crc32 = f"{zlib.crc32(index.read_bytes()):08x}"
    manifest = Manifest(format=FORMAT, files=files, index_crc32=crc32, **known)
    return msgspec.structs.replace(manifest, checksum=_checksum(manifest))


def prune(saved: str, *, keep: int, needed: Collection[str] = ()) -> None:
    """Leave the newest `keep` checkpoints that are good, `saved` and those that are `needed` in any case, and whatever
    is not ours to judge. Raises `CheckpointFailed`; what could be deleted is deleted then.

    Which is newer is told by the number in its name, which only grows: clocks differ, and jump."""
    folder, kept = Path(saved).parent, {Path(path).name for path in (saved, *needed)}
    try:
        numbers = {found.path: _number(found.path) for found in scan(str(folder), damaged=lambda _: None)}
    except OSError as exc:
        raise CheckpointFailed(f"checkpoint directory {folder}: old ones cannot be found: {reason(exc)}") from exc
    ours = sorted((number, path) for path, number in numbers.items() if number is not None)
    kept |= {path.name for _, path in ours[-keep:]}
    old = [path for _, path in ours if path.name not in kept]
    left = [path for path in numbers if _MOVE.match(path.name)]  # by a chief that died; none moves while one saves
    _delete_all([*old, *left])


def _delete_all(paths: Sequence[Path]) -> None:
    failed = []
    for path in paths:
        try:
            delete(path)
        except CheckpointFailed as exc:
            failed.append(exc)
    if failed:
        raise failed[0]


def delete(path: Path) -> None:
    """Raises `CheckpointFailed` when it is still there."""
    try:
        (path / MANIFEST).unlink(missing_ok=True)  # first: without it the rest is nothing
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise CheckpointFailed(f"checkpoint {path} is old and cannot be deleted: {reason(exc)}") from exc


def _number(path: Path) -> int | None:
    """Of the barrier at which it was made; None: it is not one of the regular ones."""
    found = _NAME.match(path.name)
    return None if found is None else int(found[1])


# Reading -----------------------------------------------------------------------------------------------------


def scan(directory: str, *, damaged: Callable[[CheckpointFailed], None]) -> Iterator[Found]:
    """The checkpoints in a directory, the furthest trained first. Damaged ones are told and passed over."""
    try:
        folders = [Path(entry.path) for entry in os.scandir(directory) if entry.is_dir()]
    except FileNotFoundError:
        return
    found = []
    for path in folders:
        if _UNDER_WAY.fullmatch(path.name) or not (path / MANIFEST).exists():
            continue
        try:
            found.append(Found(path, read(str(path))))
        except CheckpointFailed as exc:
            damaged(exc)
    yield from sorted(found, key=lambda each: (-each.manifest.step, -each.manifest.saved_at, each.path.name))


def read(path: str) -> Manifest:
    """The manifest of a checkpoint whose files are all there. Raises `CheckpointFailed`."""
    folder = Path(path)
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except OSError as exc:
        raise CheckpointFailed(f"checkpoint {path}: its manifest cannot be read: {reason(exc)}") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise CheckpointFailed(f"checkpoint {path}: its manifest is damaged: {exc}") from exc
    if manifest.format != FORMAT:
        raise CheckpointFailed(f"checkpoint {path} has format {manifest.format}, known here is {FORMAT}")
    if manifest.checksum != _checksum(manifest):
        raise CheckpointFailed(f"checkpoint {path}: its manifest is damaged: the checksum does not hold")
    _check_files(folder, manifest)
    return manifest


def _check_files(folder: Path, manifest: Manifest) -> None:
    for name, wanted in manifest.files.items():
        try:
            length = (folder / name).stat().st_size
        except OSError as exc:
            raise CheckpointFailed(f"checkpoint {folder}: its file {name} cannot be read: {reason(exc)}") from exc
        if length != wanted:
            raise CheckpointFailed(f"checkpoint {folder}: its file {name} has {length} bytes, {wanted} were written")
    if f"{zlib.crc32((folder / f'{_PREFIX}.index').read_bytes()):08x}" != manifest.index_crc32:
        raise CheckpointFailed(f"checkpoint {folder}: its index differs from what was written")


def restore(generation: Generation, path: str) -> Manifest:
    """Give a version's variables the values of a checkpoint. Raises `CheckpointFailed`."""
    manifest = read(path)
    parts = generation.layout.parts
    if manifest.parts != parts:
        raise CheckpointFailed(
            f"checkpoint {path} was trained with parts={manifest.parts}, this model has parts={parts}: "
            f"the number is a model's for life, say parts={manifest.parts}"
        )
    saving = generation.built.saving
    try:
        generation.session.run(saving.restore, {saving.path: str(Path(path).absolute() / _PREFIX)})
    except tf.errors.OpError as exc:
        raise CheckpointFailed(f"checkpoint {path} cannot be restored: {why(exc)}") from exc
    return manifest


def _checksum(manifest: Manifest) -> str:
    return f"{zlib.crc32(msgspec.json.encode(msgspec.structs.replace(manifest, checksum=''))):08x}"


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
