"""Shared memory as files: made and owned by an agent, mapped by its training processes.

Pages are allocated when a segment is made (`fallocate`), so a segment that exists can be written to its end: a process
never dies of SIGBUS because the memory ran out half way. A home is locked by the agent that lives in it; a home whose
lock is free was left behind by an agent that was killed together with its guard, and is swept by the next one. So is,
after a while, one that was never finished: its name still begins with a dot.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import shutil
import time
from pathlib import Path

from shoal.core.errors import ShoalError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory is made in it
_PREFIX = "shoal-memory-"
_LOCK = "lock"
_UNFINISHED_SECONDS = 60.0
"""Nobody needs so long from making a home's directory to giving it its name."""
_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_libc.memcpy.restype = None


class OutOfMemory(ShoalError):
    """There is no room for a segment of this size."""


class Home:
    """An agent's private directory of segments (0700), removed with all that is in it by `close`."""

    def __init__(self, root: Path = SHARED_MEMORY) -> None:
        """Raises `OSError` where no directory can be made."""
        name = f"{_PREFIX}{secrets.token_hex(6)}"
        making = root / f".{name}"
        making.mkdir(mode=0o700)
        self._lock = os.open(making / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._closed = False
        self.path = root / name
        making.rename(self.path)  # a sweeper sees it only with the lock held

    def make(self, name: str, nbytes: int, *, available: int | None = None) -> Path:
        """A new segment. `available`: bytes of memory that may be used at all, if known. Raises `OutOfMemory`."""
        if available is not None and nbytes > available:
            raise OutOfMemory(f"{nbytes >> 20} MiB of shared memory wanted, {max(0, available) >> 20} MiB may be used")
        path = self.path / name
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as exc:
            path.unlink()
            if exc.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
                raise OutOfMemory(f"{nbytes >> 20} MiB wanted in {self.path.parent}: {exc.strerror}") from exc
            raise
        finally:
            os.close(fd)
        return path

    def close(self) -> None:
        """Safe to repeat."""
        if not self._closed:
            self._closed = True
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)


def sweep(root: Path = SHARED_MEMORY) -> list[Path]:
    """Remove the homes in `root` that nobody lives in. Returns them."""
    left = [path for path in root.glob(f"{_PREFIX}*") if _is_left(path)]
    left += [path for path in root.glob(f".{_PREFIX}*") if _is_unfinished(path)]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return left


def _is_left(home: Path) -> bool:
    try:
        lock = os.open(home / _LOCK, os.O_RDWR)
    except OSError:
        return False  # another user's, or being removed
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # somebody lives in it
    finally:
        os.close(lock)
    return True


def _is_unfinished(home: Path) -> bool:
    """Whoever was making it died."""
    try:
        found = home.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and time.time() - found.st_mtime > _UNFINISHED_SECONDS


def mapped(path: Path, *, write: bool) -> mmap.mmap:
    """The segment (or file) as memory. Without `write` changes stay private to this process."""
    fd = os.open(path, os.O_RDWR if write else os.O_RDONLY)
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_COPY)
    finally:
        os.close(fd)


def touch(memory: mmap.mmap) -> None:
    """Have every page of a writable mapping at hand, without changing one. Lets other threads run meanwhile."""
    holder = (ctypes.c_char * len(memory)).from_buffer(memory)
    have_pages(ctypes.addressof(holder), len(memory))
    del holder


def copy_bytes(to: int, source: int | bytes, nbytes: int) -> None:
    """To an address, from an address or from bytes, while other threads run. For many small pieces much cheaper than
    slices of buffers or views of tensors."""
    _libc.memcpy(to, source, nbytes)


def have_pages(address: int, nbytes: int) -> None:
    """Have the pages of a writable range at hand, without changing what is in them. Asked for at once they cost less
    than when each is found missing."""
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if length > 0:
        # A kernel before 5.14 does not know the advice: then whoever writes first finds the pages one by one.
        _libc.madvise(begin, length, _MADV_POPULATE_WRITE)
