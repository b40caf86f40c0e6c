"""The local jobs of this user: one directory each, so that `shoal ps`, `scale`, `logs` and `stop` find them.

    $SHOAL_HOME/jobs/<name>/     0700
        job.json                 the record: who runs it, where it listens, how it ended
        state.json               how it looked in the end
        admin.token agent.token  0600
        master.json              0600, what a master of the job needs to know, its key included
        state/                   the master's journal, unless --store says where that is
        logs/                    what the training processes said

A directory is made complete under another name and renamed into place, and `job.json` is only ever replaced as
a whole: whatever dies at whatever moment, an entry is either there and readable or not there. Whether a job
runs is never written down but observed: its process is there and started when the record says. A record without
a result whose process is gone is `lost`, and can be resumed. A lock file makes claims of names one at a time.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import msgspec

from shoal.core.errors import BadInput, ShoalError
from shoal.core.view import JobPhase, JobView

KEPT = 20
"""Finished jobs whose record and logs are kept."""
PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600
_RECORD = "job.json"
_STATE = "state.json"
_TOLD = "told-lost"
_LOCK = ".lock"


class JobResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """How a job ended."""

    phase: str
    exit_code: int
    reason: str
    ended: datetime


class RunLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A `shoal run` command line as it was understood, for `--resume`."""

    flags: dict[str, str]
    """By name, with underscores; those from the environment too."""
    script: str
    arguments: tuple[str, ...]
    directory: str
    """Where it was typed: what paths are relative to."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """What is written down about one local job."""

    name: str
    uid: str
    pid: int
    pid_started: int
    """The process's start in clock ticks since boot: tells it from a later one with the same number."""
    started: datetime
    command: tuple[str, ...]
    logs: str
    endpoint: str | None = None
    """`host:port` of `--rdzv-endpoint`: how other invocations on this machine find the job's token."""
    url: str | None = None
    """Where its master answers; None: not yet."""
    fingerprint: str | None = None
    """Of the certificate at `url`, if it is TLS."""
    line: RunLine | None = None
    """None: written by a release that could not resume."""
    resumed: int = 0
    """How often it was resumed."""
    result: JobResult | None = None


class JobState(StrEnum):
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """No result, and its process is gone: it was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One job's directory."""

    path: Path
    record: JobRecord

    @property
    def state(self) -> JobState:
        if self.record.result is not None:
            return JobState.ENDED
        is_there = process_started(self.record.pid) == self.record.pid_started
        return JobState.RUNNING if is_there else JobState.LOST

    def token(self, purpose: str) -> str:
        try:
            return (self.path / f"{purpose}.token").read_text(encoding="ascii").strip()
        except OSError as exc:
            raise ShoalError(f"job {self.record.name}: its {purpose} token cannot be read: {exc}") from exc

    def token_path(self, purpose: str) -> Path:
        return self.path / f"{purpose}.token"

    @property
    def can_resume(self) -> bool:
        """It did not run to its end, and what it takes to go on is there. Whether it can be read is another matter."""
        is_through = self.record.result is not None and self.record.result.phase == JobPhase.SUCCEEDED
        line = self.record.line
        if line is None or is_through or self.state is JobState.RUNNING:
            return False
        return "store" in line.flags or (self.state_directory / "journal").exists()

    @property
    def state_directory(self) -> Path:
        return self.path / "state"

    def write_private(self, name: str, data: bytes) -> Path:
        """A file of the job that nobody else can read."""
        _write(self.path / name, data)
        return self.path / name

    def keep_state(self, view: JobView) -> None:
        """Keep how the job looked in the end."""
        _write(self.path / _STATE, msgspec.json.encode(view))

    def kept_state(self) -> JobView | None:
        """How the job looked in the end, if that was kept."""
        try:
            return msgspec.json.decode((self.path / _STATE).read_bytes(), type=JobView)
        except (OSError, msgspec.MsgspecError):
            return None

    @property
    def is_told(self) -> bool:
        """Somebody has been told that this job was lost. A later job of the same name is another one."""
        try:
            return (self.path / _TOLD).read_text(encoding="utf-8") == self.record.uid
        except OSError:
            return False

    def tell(self) -> None:
        """Note that somebody has been told; where that cannot be written, it is told again."""
        with suppress(OSError):
            _write(self.path / _TOLD, self.record.uid.encode())

    def updated(self, **changes: object) -> "Entry":
        """Replace fields of the record, on disk and in the value returned."""
        return self.replaced(msgspec.structs.replace(self.record, **changes))

    def replaced(self, record: JobRecord) -> "Entry":
        """Write another record, and return the entry that has it."""
        _write(self.path / _RECORD, msgspec.json.format(msgspec.json.encode(record), indent=2))
        return replace(self, record=record)


class Registry:
    """The jobs under one home directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._jobs = home / "jobs"

    def entries(self) -> tuple[Entry, ...]:
        """All jobs, the oldest first. What is not readable as a job is not one."""
        try:
            names = [path for path in self._jobs.iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return ()
        found = [entry for path in names if (entry := _read(path)) is not None]
        return tuple(sorted(found, key=lambda entry: (entry.record.started, entry.record.name)))

    def find(self, name: str) -> Entry | None:
        return None if "/" in name or name.startswith(".") else _read(self._jobs / name)

    def by_endpoint(self, endpoints: frozenset[str]) -> Entry | None:
        """The running job that owns one of these `host:port`."""
        return next(
            (e for e in self.entries() if e.record.endpoint in endpoints and e.state is JobState.RUNNING),
            None,
        )

    def check_free(self, name: str) -> None:
        """Raise `BadInput` if a job of this name runs."""
        before = self.find(name)
        if before is not None and before.state is JobState.RUNNING:
            raise BadInput(
                f"a job named {name} is running already (process {before.record.pid}): "
                f"choose another --name, or end it with `shoal stop {name}`"
            )

    def reclaim(self, entry: Entry, record: JobRecord, tokens: Mapping[str, str]) -> Entry:
        """A job goes on in its directory, under another process. Raises `BadInput` if somebody was quicker."""
        try:
            with self._locked():
                self.check_free(record.name)
                for purpose, token in tokens.items():
                    _write(entry.token_path(purpose), token.encode("ascii"))
                with suppress(FileNotFoundError):
                    (entry.path / _TOLD).unlink()
                return entry.replaced(record)
        except OSError as exc:
            raise ShoalError(f"job {record.name}: {entry.path} cannot be written: {exc}") from exc

    def claim(self, record: JobRecord, tokens: Mapping[str, str], *, own_logs: bool) -> Entry:
        """Make the directory of a new job. `own_logs`: its logs go there too, and `record.logs` is set accordingly.

        A finished or lost job of the same name makes way; a running one is an error.
        """
        path = self._jobs / record.name
        try:
            return self._claim(path, record, tokens, own_logs=own_logs)
        except OSError as exc:
            raise ShoalError(f"job {record.name}: {self.home} (SHOAL_HOME) cannot be written: {exc}") from exc

    def _claim(self, path: Path, record: JobRecord, tokens: Mapping[str, str], *, own_logs: bool) -> Entry:
        for directory in (self.home, self._jobs):
            directory.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)
        with self._locked():
            self._sweep()
            self.check_free(record.name)
            if path.exists():
                self._remove(path)
            if own_logs:
                record = msgspec.structs.replace(record, logs=str(path / "logs"))
            making = self._jobs / f".new-{secrets.token_hex(6)}"
            making.mkdir(mode=PRIVATE_DIRECTORY)
            for purpose, token in tokens.items():
                _write(making / f"{purpose}.token", token.encode("ascii"))
            _write(making / _RECORD, msgspec.json.format(msgspec.json.encode(record), indent=2))
            making.rename(path)
        return Entry(path=path, record=record)

    def _sweep(self) -> None:
        """Forget the oldest finished jobs beyond those kept, and what a crash left half made. Under the lock."""
        for path in self._jobs.iterdir():
            if path.name.startswith((".new-", ".old-")):
                shutil.rmtree(path, ignore_errors=True)
        done = [entry for entry in self.entries() if entry.state is not JobState.RUNNING]
        for entry in done[: max(0, len(done) - KEPT)]:
            self._remove(entry.path)

    def _remove(self, path: Path) -> None:
        """Gone in one step for readers, whatever happens to the clean-up after it."""
        old = self._jobs / f".old-{secrets.token_hex(6)}"
        path.rename(old)
        shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self._jobs / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def home(environment: Mapping[str, str]) -> Path:
    """`$SHOAL_HOME`, else `~/.shoal`."""
    said = environment.get("SHOAL_HOME")
    return Path(said).absolute() if said else Path.home() / ".shoal"


def process_started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None: no such process (a zombie is none)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command's name stands in parentheses and may hold anything, also parentheses and spaces.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _read(path: Path) -> Entry | None:
    try:
        record = msgspec.json.decode((path / _RECORD).read_bytes(), type=JobRecord)
    except (OSError, msgspec.MsgspecError):
        return None
    return Entry(path=path, record=record) if record.name == path.name else None


def _write(path: Path, data: bytes) -> None:
    """Replace a file as a whole; nobody ever reads half of it, and nobody else reads it at all."""
    making = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        making.rename(path)
    except OSError:
        with suppress(OSError):
            making.unlink()
        raise
