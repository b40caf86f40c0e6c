"""A job's state in a directory of this machine.

    <directory>/    0700
        journal     0600, see `frames`; replaced as a whole by `claim` and `compact`, else only ever appended to
        lock        held by the master that lives: two masters never write into one directory

Each record is handed to the kernel before `append` returns: the death of this process loses nothing. The disk is
told to keep it right after, in a thread, because what a power cut takes it takes with every process of this machine;
new journals are on the disk before they take the old one's place.
"""

import asyncio
import contextlib
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from shoal.core.errors import StateTaken, StateUnavailable, StateUnreadable
from shoal.core.ports import Claimed
from shoal.stores import frames
from shoal.stores.frames import Kind

JOURNAL = "journal"
LOCK = "lock"
_NEW = ".journal.new"
_PRIVATE_DIRECTORY = 0o700
_PRIVATE_FILE = 0o600


class FileStore:
    pace = timedelta(0)

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: int | None = None
        self._journal: int | None = None
        self._term = 0
        self._broken: str | None = None
        self._disk: ThreadPoolExecutor | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._is_synced = True

    async def claim(self) -> Claimed:
        try:
            self._directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            self._take_lock()
            found = self._read()
        except OSError as exc:
            await self.close()
            raise StateUnavailable(f"{self._directory}: {exc.strerror or exc}") from exc
        except StateUnreadable as exc:
            await self.close()
            raise StateUnreadable(f"{self._directory / JOURNAL} cannot be used: {exc}; nothing was changed") from exc
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="shoal-journal")
        self._term = found.term + 1
        lost = None
        if found.rest:
            lost = f"the last {found.rest} bytes of {self._directory / JOURNAL} are no whole record and were left out"
        try:
            await self._replace(found.records)
        except StateUnavailable as exc:
            return Claimed(term=self._term, records=found.records, lost=lost, trouble=str(exc))
        return Claimed(term=self._term, records=found.records, lost=lost)

    async def append(self, record: bytes) -> None:
        await self._append(frames.frame(Kind.RECORD, record))

    async def _append(self, data: bytes) -> None:
        if self._broken is not None:
            raise StateUnavailable(self._broken)
        assert self._journal is not None
        try:
            while data:  # the disk may take a part
                data = data[os.write(self._journal, data) :]
        except OSError as exc:
            raise self._trouble(exc) from exc
        self._is_synced = False
        self._sync_soon()

    async def compact(self, snapshot: bytes) -> None:
        await self._replace((snapshot,))

    async def raise_term(self, term: int) -> None:
        await self._append(frames.term_frame(term))
        self._term = term

    async def close(self) -> None:
        await self._quiet()
        if self._disk is not None:
            self._disk.shutdown(wait=True)
        for descriptor in (self._journal, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._journal = self._lock = self._disk = None

    # The lock ---------------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        self._lock = os.open(self._directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._lock)
            self._lock = None
            raise StateTaken(f"{self._directory} is in use by the master with process id {owner}") from None
        with contextlib.suppress(OSError):  # only for people; the lock itself needs no room on the disk
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    # The journal ------------------------------------------------------------------------------------------

    def _read(self) -> frames.Journal:
        try:
            data = (self._directory / JOURNAL).read_bytes()
        except FileNotFoundError:
            data = b""
        return frames.read(data)

    async def _replace(self, records: tuple[bytes, ...]) -> None:
        """Write a new journal and put it in the place of the old one: whoever looks sees the one or the other."""
        if self._disk is None:
            raise StateUnavailable(f"{self._directory} was not claimed")
        await self._quiet()
        loop = asyncio.get_running_loop()
        try:
            journal = await loop.run_in_executor(self._disk, self._write_new, frames.written(self._term, records))
        except OSError as exc:
            raise self._trouble(exc) from exc
        if self._journal is not None:
            os.close(self._journal)
        self._journal, self._broken = journal, None

    def _write_new(self, data: bytes) -> int:
        making = self._directory / _NEW
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(making, flags, _PRIVATE_FILE)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
            making.rename(self._directory / JOURNAL)
            _sync_directory(self._directory)
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                making.unlink()
            raise
        return descriptor

    def _trouble(self, exc: OSError) -> StateUnavailable:
        """From now on the journal's end may be half a record: nothing can follow it."""
        self._broken = f"{self._directory / JOURNAL} cannot be written: {exc.strerror or exc}"
        return StateUnavailable(self._broken)

    def _sync_soon(self) -> None:
        """One sync is under way at most; what is written meanwhile is the next one's."""
        if self._syncing is None and self._disk is not None and not self._is_synced:
            assert self._journal is not None
            self._is_synced = True
            loop = asyncio.get_running_loop()
            self._syncing = asyncio.ensure_future(loop.run_in_executor(self._disk, os.fdatasync, self._journal))
            self._syncing.add_done_callback(self._synced)

    def _synced(self, done: "asyncio.Future[None]") -> None:
        self._syncing = None
        if not done.cancelled() and (exc := done.exception()) is not None:
            # The kernel forgets what it could not write: the next append must not hide that.
            self._broken = f"{self._directory / JOURNAL} cannot be written: {exc}"
        elif not done.cancelled():
            self._sync_soon()

    async def _quiet(self) -> None:
        while self._syncing is not None:
            await asyncio.wait([self._syncing])
            await asyncio.sleep(0)  # for `_synced`


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
