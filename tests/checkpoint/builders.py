"""Small images and folders for the tests."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shoal.checkpoint.folder import LocalFolder, Writer
from shoal.checkpoint.image import Header, lay_out, placed


def an_image(step: int, *, nbytes: int = 100) -> bytes:
    """A checkpoint whose one tensor is filled with the step's number."""
    places = placed([("weight", "uint8", "cpu", (nbytes,), nbytes)])
    header = Header(
        job="test",
        step=step,
        saved_at=float(step),
        signature=("a",),
        batching="",
        tensors=places,
        body=msgspec.msgpack.encode(["dict", "epoch", 3, "model", ["tensor", 0]]),
    )
    layout = lay_out(header)
    return layout.head + bytes([step % 256]) * nbytes


class Crash(BaseException):
    """The machine stops here. No `except OSError` may see it."""


class CrashingFolder(LocalFolder):
    """A directory whose machine stops before the call number `calls`; a write in which it stops is done in part."""

    def __init__(self, path: Path, calls: int, *, part: float = 0.5) -> None:
        super().__init__(path)
        self._left = calls
        self._part = part

    def step(self) -> None:
        if self._left == 0:
            raise Crash
        self._left -= 1

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Writer]:
        self.step()
        with super().create(name) as file:
            yield _CrashingWriter(file, self)

    def replace(self, name: str, data: bytes) -> None:
        super().replace(name, data)  # its parts crash one by one: create, write, finish
        self.step()

    def remove(self, name: str) -> None:
        self.step()
        super().remove(name)

    def write(self, file: Writer, data: memoryview) -> None:
        if self._left == 0:
            file.write(data[: int(len(data) * self._part)])
        self.step()
        file.write(data)


class _CrashingWriter:
    def __init__(self, file: Writer, folder: CrashingFolder) -> None:
        self._file = file
        self._folder = folder

    def write(self, data: memoryview) -> None:
        self._folder.write(self._file, data)

    def finish(self) -> None:
        self._folder.step()
        self._file.finish()
