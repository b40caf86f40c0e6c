"""The agent's half of checkpoints: shared memory for its processes' saves, and the way to disk in the background.

`checkpoint.slots` decides which memory a save gets; here it is made, and what was saved is written, one at a time, in a
thread. Training never waits for the disk: a save that comes while an older one is being written waits in memory,
and only the newest of those that wait is written. Whatever goes wrong with memory or disk is told once, and again only
after it had worked in between; training goes on.

The `Saver` is owned by the event loop. The threads only make files and write them.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import psutil

from shoal.agent.settings import CheckpointSettings
from shoal.checkpoint import manifests
from shoal.checkpoint import slots as book
from shoal.checkpoint.folder import open_folder
from shoal.checkpoint.image import BadImage, Image
from shoal.checkpoint.memory import Home, OutOfMemory, mapped
from shoal.core.errors import ShoalError
from shoal.core.saving import CheckpointSpec
from shoal.wire.local import (
    CheckpointAnswer,
    Checkpoints,
    CheckpointsWanted,
    CheckpointWord,
    MemoryCopy,
    Saved,
    SlotGiven,
    SlotRefused,
    SlotsMade,
    SlotsWanted,
    SlotWanted,
)

_RESERVE = 0.05
"""The part of the machine's memory that checkpoints leave alone, whatever is free."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """No slot. Not `for_good`: when something is written there is one again."""

    for_good: bool
    why: str


class Saver:
    """`tell` answers a process, `note` tells people. `home` None: this machine has no shared memory to use."""

    def __init__(
        self,
        settings: CheckpointSettings,
        *,
        home: Home | None,
        tell: Callable[[int, CheckpointAnswer], None],
        note: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._directory = settings.directory
        self._keep = CheckpointSpec().keep
        self._home = home
        self._tell = tell
        self._note = note
        self._slots = book.Slots()
        self._asking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._making = ThreadPoolExecutor(1, "shoal-memory")
        self._writing = ThreadPoolExecutor(1, "shoal-persist")
        self._busy = False
        self._gave_up = 0
        """The order of the last image that could not be written: it is not tried again, the next one is."""
        self._told: dict[str, str] = {}
        self._saved: Callable[[], None] = lambda: None
        self._waiting: list[Callable[[], None]] = []
        self._closed = False

    def told(self, wanted: CheckpointSpec) -> None:
        """The job says where saved states go and how many are kept; the node's own word about the place wins."""
        self._directory = self._settings.directory or wanted.directory
        self._keep = wanted.keep

    # What processes say ----------------------------------------------------------------------------------

    def said(self, local_rank: int, message: CheckpointWord) -> None:
        match message:
            case SlotWanted() | SlotsWanted():
                self._spawn(self._answer(local_rank, message))
            case Saved(slot=slot, step=step, nbytes=nbytes):
                self._slots = book.complete(self._slots, slot, _writer(local_rank), step=step, length=nbytes)
                self._write_next()
                self._saved()
            case CheckpointsWanted():
                copies = tuple(
                    MemoryCopy(path=str(self._path(s.number)), step=s.step)
                    for s in self._slots.held()
                    if s.step is not None
                )
                self._tell(local_rank, Checkpoints(memory=copies, directory=self._directory))
            case _:
                assert_never(message)

    def process_gone(self, local_rank: int) -> None:
        """What it was filling will never be complete."""
        self._slots = book.gone(self._slots, _writer(local_rank))

    def when_written(self, act: Callable[[], None]) -> None:
        """Do it as soon as all that was saved is on disk, or cannot be brought there: at once if so."""
        if self._busy or self._next() is not None:
            self._waiting.append(act)
        else:
            act()

    async def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._making.shutdown(wait=False, cancel_futures=True)
        self._writing.shutdown(wait=False, cancel_futures=True)
        if self._home is not None:
            self._home.close()

    # For replicas ----------------------------------------------------------------------------------------

    def on_saved(self, act: Callable[[], None]) -> None:
        """Do it whenever a process has saved."""
        self._saved = act

    def take_last(self, *, after: int) -> book.Slot | None:
        """This node's last image, if its order is above `after`. It stays as it is until `give_back`."""
        slot = self._slots.last_own()
        if slot is None or slot.order <= after:
            return None
        self._slots = book.reading(self._slots, slot.number)
        return slot

    def give_back(self, number: int) -> None:
        self._slots = book.read(self._slots, number)

    def image(self, number: int) -> tuple[memoryview, int]:
        """The bytes of a complete image, and its step."""
        slot = self._slots.slot(number)
        assert slot is not None
        assert slot.step is not None
        return self.memory(number, slot.length), slot.step

    def memory(self, number: int, nbytes: int) -> memoryview:
        return memoryview(mapped(self._path(number), write=True))[:nbytes]

    async def room(self, writer: str, nbytes: int) -> int | None:
        """A slot for another node's image; None: there is no memory."""
        if nbytes <= 0:
            return None
        async with self._asking:
            answer = await self._slot(writer, nbytes)
        return answer.slot if isinstance(answer, SlotGiven) else None

    def filled(self, number: int, writer: str, *, step: int, nbytes: int) -> bool:
        """The writer has filled it; whether that counts."""
        before = self._slots
        self._slots = book.complete(before, number, writer, step=step, length=nbytes, own=False)
        return self._slots is not before

    def writer_gone(self, writer: str) -> None:
        self._slots = book.gone(self._slots, writer)

    # Memory ----------------------------------------------------------------------------------------------

    async def _answer(self, local_rank: int, message: SlotWanted | SlotsWanted) -> None:
        async with self._asking:
            if isinstance(message, SlotWanted):
                answer = await self._slot(_writer(local_rank), message.nbytes)
                self._tell(local_rank, answer if isinstance(answer, SlotGiven) else self._refused(answer))
            else:
                await self._make_ahead(message.nbytes)
                paths = tuple(str(self._path(slot.number)) for slot in self._slots.slots)
                self._tell(local_rank, SlotsMade(paths=paths))

    async def _slot(self, writer: str, nbytes: int) -> "SlotGiven | _Refusal":
        """A slot for one image, made if need be."""
        answer: book.Answer
        why = "the disk does not keep up"
        self._slots, answer = book.ask(self._slots, writer, nbytes)
        if isinstance(answer, book.Make):
            try:
                await self._make(answer)
            except OutOfMemory as exc:
                why = str(exc)
                self._slots, answer = book.not_made(self._slots, answer, writer)
            else:
                self._slots = book.made(self._slots, answer, writer)
                answer = book.Give(answer.number)
        if isinstance(answer, book.Give):
            return SlotGiven(slot=answer.number, path=str(self._path(answer.number)))
        return _Refusal(for_good=isinstance(answer, book.NoMemory), why=why)

    def _refused(self, refusal: "_Refusal") -> SlotRefused:
        """Tell people that a save finds no memory, and the process what to do."""
        directory, keep = self._directory, self._keep
        if not refusal.for_good:
            self._tell_once("skip", f"a save is left out, all memory for checkpoints is in use: {refusal.why}")
            return SlotRefused(reason=refusal.why, directory=None, keep=keep)
        rest = (
            "and no --checkpoint-dir is given: nothing is saved"
            if directory is None
            else f"so that saves go straight to {directory}, which training waits for"
        )
        self._tell_once("memory", f"no shared memory for checkpoints ({refusal.why}), {rest}")
        return SlotRefused(reason=refusal.why, directory=directory, keep=keep)

    async def _make_ahead(self, nbytes: int) -> None:
        while (make := book.ahead(self._slots, nbytes)) is not None:
            try:
                await self._make(make)
            except OutOfMemory:
                self._slots = book.removed(self._slots, make.instead_of)
                return  # a save that finds no room says so
            self._slots = book.made(self._slots, make, None)

    async def _make(self, make: book.Make) -> None:
        if make.instead_of is not None:
            self._path(make.instead_of).unlink(missing_ok=True)
        home = self._home
        if home is None:
            raise OutOfMemory(f"{self._settings.shared_memory} cannot be used")
        usable = usable_bytes()
        if self._settings.memory_bytes is not None:
            used = sum(slot.nbytes for slot in self._slots.slots if slot.number != make.instead_of)
            usable = min(usable, self._settings.memory_bytes - used)
        loop = asyncio.get_running_loop()
        name = str(make.number)
        await loop.run_in_executor(self._making, lambda: home.make(name, make.nbytes, available=usable))

    def _path(self, number: int) -> Path:
        assert self._home is not None
        return self._home.path / str(number)

    # Disk ------------------------------------------------------------------------------------------------

    def _next(self) -> book.Slot | None:
        """What should be on disk and is not."""
        slot = self._slots.unwritten()
        if slot is None or self._directory is None or slot.order == self._gave_up:
            return None
        return slot

    def _write_next(self) -> None:
        slot = self._next()
        if self._busy or self._closed or slot is None:
            return
        self._busy = True
        self._slots = book.reading(self._slots, slot.number)
        self._spawn(self._write(slot))

    async def _write(self, slot: book.Slot) -> None:
        loop = asyncio.get_running_loop()
        written = False
        try:
            await loop.run_in_executor(self._writing, self._written, self._path(slot.number))
            written = True
            self._told.pop("disk", None)
        except (OSError, ShoalError) as exc:
            self._tell_once(
                "disk",
                f"the checkpoint of step {slot.step} cannot be written to {self._directory}: "
                f"{str(exc) or type(exc).__name__}; training goes on, the next save is tried again",
            )
        finally:  # whatever it was: the slot can be used again, and who waits for the disk waits no longer
            self._slots = book.read(self._slots, slot.number, on_disk=written)
            if not written:
                self._gave_up = slot.order
            self._busy = False
            self._write_next()
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        if self._busy:
            return
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()

    def _written(self, path: Path) -> None:
        """In a thread: write one image."""
        assert self._directory is not None
        memory = mapped(path, write=True)
        try:
            image = Image(memoryview(memory))
        except BadImage as exc:
            raise ShoalError(f"what a process saved is no checkpoint: {exc}") from exc
        header = image.header
        folder = open_folder(self._directory)
        manifests.write(folder, [image.data], job=header.job, step=header.step, saved_at=header.saved_at)
        manifests.prune(folder, keep=self._keep, written=header.step)

    # Words and tasks -------------------------------------------------------------------------------------

    def _tell_once(self, what: str, line: str) -> None:
        if what not in self._told:
            self._told[what] = line
            self._note(line)

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def usable_bytes() -> int:
    """How much memory may be taken without pushing the machine, or this container, over its edge."""
    memory = psutil.virtual_memory()
    free = memory.available - int(memory.total * _RESERVE)
    limit = _number(Path("/sys/fs/cgroup/memory.max"))
    used = _number(Path("/sys/fs/cgroup/memory.current"))
    if limit is not None and used is not None:
        free = min(free, limit - used - int(limit * _RESERVE))
    return max(0, free)


def _number(path: Path) -> int | None:
    """What a control file says; None: no limit, or no such file."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _writer(local_rank: int) -> str:
    return f"local rank {local_rank}"
