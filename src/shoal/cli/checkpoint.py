"""`shoal checkpoint ls`, `inspect` and `verify`: what a folder of checkpoints holds, and whether it is whole.

Nothing of what is read is executed or unpickled, so a folder from anywhere can be looked at; torch is not needed.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from shoal.checkpoint import manifests, tree
from shoal.checkpoint.folder import Folder, LocalFolder, open_folder, reason
from shoal.checkpoint.image import Image
from shoal.checkpoint.manifests import Damaged, Found
from shoal.cli.text import clean, count, size
from shoal.core.errors import BadInput, ProtocolError, ShoalError

TITLES = ("CHECKPOINT", "STEP", "SIZE", "SAVED", "JOB")
_LONGEST_VALUE = 100
_NAME = re.compile(r"(?:step-)?(\d+)(?:\.json|-[0-9a-f]+\.data)?")
"""How people may write a checkpoint: its step, its name, or one of its files."""


def ls(directory: str, *, as_json: bool) -> None:
    """List what the manifests say, the newest first. Whether the data is there is looked at, but it is not read."""
    folder = _opened(directory)
    found = list(_whole(folder))
    if as_json:
        rows = [{"name": f.name, **msgspec.to_builtins(f.manifest)} for f in found]
        print(json.dumps([{k: v for k, v in row.items() if k not in ("crc32", "checksum")} for row in rows], indent=2))
        return
    if not found:
        print(f"no checkpoints in {clean(folder.url)}")
        return
    _print_table([TITLES, *(_row(f) for f in found)])


def inspect(directory: str, name: str | None) -> None:
    """Show what is in one checkpoint: its values, and the names, types and shapes of its tensors."""
    folder = _opened(directory)
    found = _chosen(folder, name)
    image = manifests.load(folder, found)
    header = image.header
    print(f"{found.name}: step {header.step} of job {clean(header.job)}, saved {_when(header.saved_at)}")
    said = [f"{count(len(header.tensors), 'tensor')}, {size(found.manifest.nbytes)}", clean(header.batching)]
    print("; ".join(filter(None, said)))
    for path, value in _values(image):
        print(f"  {clean(path)} = {clean(value)}")
    tensors = [
        (clean(t.name), t.dtype, "x".join(map(str, t.shape)) or "scalar", size(t.nbytes)) for t in header.tensors
    ]
    _print_table([("TENSOR", "TYPE", "SHAPE", "SIZE"), *tensors])


def verify(directory: str) -> int:
    """Read every byte and check it. Returns the exit code: 1 if something is damaged, or nothing is there."""
    folder = _opened(directory)
    damaged: list[Damaged] = []
    good = 0
    for found in _scan(folder, damaged.append):
        try:
            manifests.load(folder, found)
        except Damaged as exc:
            damaged.append(exc)
        else:
            good += 1
            print(f"{found.name}: good ({size(found.manifest.nbytes)})")
    for each in damaged:
        print(f"DAMAGED {clean(str(each))}")
    if not good and not damaged:
        print(f"no checkpoints in {clean(folder.url)}")
    return 0 if good and not damaged else 1


def _opened(directory: str) -> Folder:
    """The folder. A local one must be there: who looks at checkpoints expects some, and may have mistyped."""
    if not directory:
        raise BadInput("wanted the directory of checkpoints, got an empty word")
    folder = open_folder(directory)
    if isinstance(folder, LocalFolder):
        path = folder.path
        try:
            is_file, is_there = path.is_file(), path.exists()
        except OSError as exc:
            raise ShoalError(f"{folder.url} cannot be read: {reason(exc)}") from exc
        if is_file:
            raise BadInput(f"{folder.url} is a file, wanted the directory of checkpoints (perhaps {path.parent})")
        if not is_there:
            raise BadInput(f"there is no directory {folder.url}")
    return folder


def _scan(folder: Folder, damaged: Callable[[Damaged], None]) -> Iterator[Found]:
    try:
        yield from manifests.scan(folder, damaged=damaged)
    except OSError as exc:
        raise ShoalError(f"{folder.url} cannot be read: {reason(exc)}") from exc


def _whole(folder: Folder) -> Iterator[Found]:
    """Those that look whole; of the others it is told why."""
    for found in _scan(folder, _tell_damaged):
        try:
            manifests.look(folder, found)
        except Damaged as exc:
            _tell_damaged(exc)
        else:
            yield found


def _tell_damaged(exc: Damaged) -> None:
    """Beside the answer, not in it: that may be read by a program."""
    print(f"DAMAGED {clean(str(exc))}", file=sys.stderr)


def _chosen(folder: Folder, name: str | None) -> Found:
    """The one with this name or step, however it is written; the newest that looks whole if none is asked for."""
    found = list(_whole(folder))
    if not found:
        raise ShoalError(f"no checkpoints in {folder.url}")
    if name is None:
        return found[0]
    wanted = _NAME.fullmatch(name)
    chosen = next((f for f in found if wanted is not None and f.step == int(wanted[1])), None)
    if chosen is None:
        known = ", ".join(f.name for f in found)
        raise ShoalError(f"no checkpoint {name} in {folder.url}; there are: {known}")
    return chosen


def _values(image: Image) -> Iterator[tuple[str, str]]:
    """What is in it besides tensors, by path."""
    try:
        state = tree.unpacked(msgspec.msgpack.decode(image.header.body), lambda number: _Tensor())
    except (msgspec.MsgspecError, ProtocolError) as exc:
        raise ShoalError(f"its structure cannot be read: {exc}") from exc
    yield from _leaves(state, "state")


class _Tensor:
    """Stands where a tensor is."""


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case _Tensor():
            pass
        case dict():
            for key, item in value.items():
                yield from _leaves(item, f"{path}[{key!r}]")
        case list() | tuple() if any(isinstance(item, dict | list | tuple | _Tensor) for item in value):
            for number, item in enumerate(value):
                yield from _leaves(item, f"{path}[{number}]")
        case _:
            text = repr(value)
            yield path, text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _row(found: Found) -> tuple[str, ...]:
    manifest = found.manifest
    return found.name, str(manifest.step), size(manifest.nbytes), _when(manifest.saved_at), clean(manifest.job)


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "at no possible time"


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
