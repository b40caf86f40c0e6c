"""Where checkpoints are kept: a directory, or a URL for which fsspec knows a file system.

A folder is flat: names and bytes. Large files are written once and never changed; they count only when something that
names them is put in place (`replace`), so they need no rename of their own. Errors of the system come out as `OSError`
(a full disk, a directory that cannot be written), and whoever writes decides what that means.
"""

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from shoal.core.errors import BadInput

_READ_BYTES = 16 << 20
_START_BYTES = 16 << 20
_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def reason(exc: OSError) -> str:
    """What the system says, without the number and without the path, which whoever tells it has named already."""
    return exc.strerror or str(exc) or type(exc).__name__


class Writer(Protocol):
    def write(self, data: memoryview) -> None: ...

    def finish(self) -> None:
        """All bytes are where a crash of the machine cannot take them."""


class Folder(Protocol):
    """Every call may raise `OSError`; a name that is not there `FileNotFoundError`."""

    url: str
    """For people and for messages."""

    def names(self) -> list[str]: ...

    def create(self, name: str) -> contextlib.AbstractContextManager[Writer]:
        """A new large file. Left without `finish` it may be there in part, or not at all."""
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Put a small file in place, whole, over one that may be there; after return it survives a crash."""

    def read(self, name: str) -> bytes: ...

    def load(self, name: str) -> memoryview:
        """A large file, as memory that the caller may write to without changing the file."""

    def remove(self, name: str) -> None:
        """Safe when it is not there."""

    def length(self, name: str) -> int:
        """In bytes."""
        ...

    def age(self, name: str) -> float | None:
        """Seconds since it was last written to; None: not known."""


def open_folder(url: str) -> Folder:
    """The folder of a path or URL. Raises `BadInput` for a URL that nothing here can open."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return LocalFolder(Path(url))
    if scheme == "file":
        return LocalFolder(Path(rest))
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError as exc:
        raise BadInput(f"checkpoint directory {url}: {scheme}:// needs fsspec, install shoal[fsspec]") from exc
    try:
        files, path = fsspec.core.url_to_fs(url)
    except Exception as exc:  # a protocol that is unknown or without its package, or what a client says of its settings
        raise BadInput(f"checkpoint directory {url}: {_said(exc)}") from exc
    return UrlFolder(url, files, path)


class LocalFolder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.url = str(self.path)

    def names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Writer]:
        self._make()
        fd = os.open(self.path / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            yield _LocalWriter(fd)
        finally:
            os.close(fd)

    def replace(self, name: str, data: bytes) -> None:
        waiting = f".{name}.{os.getpid()}.{time.monotonic_ns()}.tmp"
        try:
            with self.create(waiting) as file:
                file.write(memoryview(data))
                file.finish()
            os.replace(self.path / waiting, self.path / name)
        except OSError:
            self.remove(waiting)
            raise
        _sync(self.path)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def load(self, name: str) -> memoryview:
        with (self.path / name).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def length(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def age(self, name: str) -> float | None:
        try:
            return time.time() - (self.path / name).stat().st_mtime
        except FileNotFoundError:
            return None

    def _make(self) -> None:
        """The directory, and those above it that are missing, so that they survive a crash."""
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        for path in missing:
            _sync(path.parent)


def _sync(directory: Path) -> None:
    """The names in a directory are part of what must survive."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class _LocalWriter:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._written = self._started = 0

    def write(self, data: memoryview) -> None:
        while data:
            count = os.write(self._fd, data)
            data = data[count:]
            self._written += count
        if self._written - self._started >= _START_BYTES:
            # Let the disk begin while we go on: otherwise all of its work is left to `finish`.
            _libc.sync_file_range(self._fd, self._started, self._written - self._started, _SYNC_FILE_RANGE_WRITE)
            self._started = self._written

    def finish(self) -> None:
        os.fsync(self._fd)


class UrlFolder:
    """Any file system of fsspec. An object appears whole or not at all, so `replace` needs no rename."""

    def __init__(self, url: str, files: Any, path: str) -> None:
        self.url = url
        self._files = files
        self._path = path.rstrip("/")

    def names(self) -> list[str]:
        try:
            with _translated():
                return [name.rpartition("/")[2] for name in self._files.ls(self._path, detail=False, refresh=True)]
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Writer]:
        with _translated():
            self._files.makedirs(self._path, exist_ok=True)
            file = self._files.open(self._at(name), "wb")
        try:
            yield _UrlWriter(file)
        finally:
            with _translated():
                file.close()

    def replace(self, name: str, data: bytes) -> None:
        with _translated():
            self._files.makedirs(self._path, exist_ok=True)
            self._files.pipe_file(self._at(name), data)

    def read(self, name: str) -> bytes:
        with _translated():
            data: bytes = self._files.cat_file(self._at(name))
            return data

    def load(self, name: str) -> memoryview:
        with _translated(), self._files.open(self._at(name), "rb") as file:
            memory = memoryview(bytearray(self._files.size(self._at(name))))
            done = 0
            while part := file.read(_READ_BYTES):
                memory[done : done + len(part)] = part
                done += len(part)
            return memory[:done]

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), _translated():
            self._files.rm_file(self._at(name))

    def length(self, name: str) -> int:
        with _translated():
            return int(self._files.size(self._at(name)))

    def age(self, name: str) -> float | None:
        with _translated():
            try:
                return time.time() - float(self._files.modified(self._at(name)).timestamp())
            except (FileNotFoundError, NotImplementedError, AttributeError):
                return None

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"


class _UrlWriter:
    """What is written is there when the file is closed."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: memoryview) -> None:
        with _translated():
            self._file.write(data)

    def finish(self) -> None:
        with _translated():
            self._file.flush()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Each client library behind fsspec has errors of its own: here they become the system's."""
    try:
        yield
    except OSError:
        raise
    except Exception as exc:
        raise OSError(_said(exc)) from exc


def _said(exc: Exception) -> str:
    return str(exc) or type(exc).__name__
