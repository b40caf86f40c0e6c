"""The agent's half of checkpoints, with real shared memory and real directories: full, read-only, slow and closed."""

import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.checkpoint.builders import an_image

from shoal.agent.saver import Saver
from shoal.agent.settings import CheckpointSettings
from shoal.checkpoint import manifests
from shoal.checkpoint.folder import open_folder
from shoal.checkpoint.memory import Home, mapped
from shoal.core.saving import CheckpointSpec
from shoal.wire.local import (
    CheckpointAnswer,
    Checkpoints,
    CheckpointsWanted,
    Saved,
    SlotGiven,
    SlotRefused,
    SlotsMade,
    SlotsWanted,
    SlotWanted,
)

MIB = 1 << 20


class Node:
    """A saver with its memory, and the training processes that speak to it."""

    def __init__(self, home: Home | None, wanted: CheckpointSpec, *, memory_bytes: int | None = None) -> None:
        self.notes: list[str] = []
        self._answers: asyncio.Queue[CheckpointAnswer] = asyncio.Queue()
        self.saver = Saver(
            CheckpointSettings(memory_bytes=memory_bytes),
            home=home,
            tell=lambda _, answer: self._answers.put_nowait(answer),
            note=self.notes.append,
        )
        self.saver.told(wanted)

    async def ask(self, message: SlotWanted | SlotsWanted | CheckpointsWanted, rank: int = 0) -> CheckpointAnswer:
        self.saver.said(rank, message)
        return await self._answers.get()

    async def slot(self, nbytes: int, rank: int = 0) -> SlotGiven:
        answer = await self.ask(SlotWanted(nbytes=nbytes), rank)
        assert isinstance(answer, SlotGiven), answer
        return answer

    async def save(self, step: int, *, nbytes: int = 100, rank: int = 0, data: bytes | None = None) -> None:
        """As a training process does it."""
        image = an_image(step, nbytes=nbytes) if data is None else data
        slot = await self.slot(len(image), rank)
        with mapped(Path(slot.path), write=True) as memory:
            memory[: len(image)] = image
        self.saver.said(rank, Saved(slot=slot.slot, step=step, nbytes=len(image)))

    async def written(self) -> None:
        """Until all that was saved is on disk, or cannot be brought there."""
        done = asyncio.Event()
        self.saver.when_written(done.set)
        await done.wait()

    async def in_memory(self) -> list[int]:
        """The steps that a process could restore."""
        answer = await self.ask(CheckpointsWanted())
        assert isinstance(answer, Checkpoints)
        return [copy.step for copy in answer.memory]


MakeNode = Callable[..., Awaitable[Node]]


@pytest.fixture
async def a_node(tmp_path: Path) -> AsyncIterator[MakeNode]:
    nodes: list[Node] = []

    async def make(directory: Path | str | None, *, keep: int = 3, memory_bytes: int | None = None) -> Node:
        wanted = CheckpointSpec(directory=None if directory is None else str(directory), keep=keep)
        nodes.append(Node(Home(tmp_path), wanted, memory_bytes=memory_bytes))
        return nodes[-1]

    yield make
    for node in nodes:
        await node.saver.close()


def on_disk(directory: Path | str) -> list[int]:
    """The steps that are there, each checked to its last byte; whatever else is there is an error."""
    folder = open_folder(str(directory))
    found = list(manifests.scan(folder, damaged=pytest.fail))
    for each in found:
        assert set(manifests.load(folder, each).tensor(0)) == {each.step % 256}
    assert len(folder.names()) == 2 * len(found), "a manifest and its data for each, and nothing else"
    return [each.step for each in found]


# The usual course ----------------------------------------------------------------------------------------


async def test_what_a_process_saves_is_in_memory_at_once_and_then_on_disk(a_node: MakeNode, tmp_path: Path) -> None:
    node = await a_node(tmp_path / "kept")
    await node.save(5)
    assert await node.in_memory() == [5]
    await node.written()
    assert on_disk(tmp_path / "kept") == [5]
    assert node.notes == []


async def test_the_last_n_are_kept(a_node: MakeNode, tmp_path: Path) -> None:
    node = await a_node(tmp_path / "kept", keep=2)
    for step in (1, 2, 3, 4):
        await node.save(step)
        await node.written()
    assert on_disk(tmp_path / "kept") == [4, 3]


async def test_a_step_that_is_saved_again_is_there_once_as_it_was_saved_last(a_node: MakeNode, tmp_path: Path) -> None:
    node = await a_node(tmp_path / "kept")
    await node.save(7, nbytes=100)
    await node.written()
    await node.save(7, nbytes=200)
    await node.written()
    assert on_disk(tmp_path / "kept") == [7]
    folder = open_folder(str(tmp_path / "kept"))
    (found,) = manifests.scan(folder, damaged=pytest.fail)
    assert len(manifests.load(folder, found).tensor(0)) == 200


async def test_after_a_step_back_what_is_saved_goes_to_disk_too(a_node: MakeNode, tmp_path: Path) -> None:
    node = await a_node(tmp_path / "kept", keep=2)
    for step in (110, 120, 55, 60):
        await node.save(step)
        await node.written()
    assert on_disk(tmp_path / "kept") == [120, 110, 60]


async def test_without_a_directory_nothing_is_waited_for(a_node: MakeNode) -> None:
    node = await a_node(None)
    await node.save(1)
    await node.written()
    assert await node.in_memory() == [1]


async def test_memory_for_two_saves_is_made_ahead(a_node: MakeNode) -> None:
    node = await a_node(None)
    made = await node.ask(SlotsWanted(nbytes=MIB))
    assert isinstance(made, SlotsMade)
    assert [os.stat(path).st_size for path in made.paths] == [MIB, MIB]
    assert (await node.slot(MIB)).path in made.paths


# Processes that die --------------------------------------------------------------------------------------


async def test_what_a_dead_process_left_half_filled_is_nothing(a_node: MakeNode, tmp_path: Path) -> None:
    node = await a_node(tmp_path / "kept")
    await node.save(1)
    half = await node.slot(1000)
    Path(half.path).write_bytes(an_image(2)[:50])
    node.saver.process_gone(0)
    node.saver.said(0, Saved(slot=half.slot, step=2, nbytes=1000))  # still in the socket when it died
    assert await node.in_memory() == [1]
    await node.written()
    assert on_disk(tmp_path / "kept") == [1]


async def test_what_is_no_image_is_told_and_not_written(a_node: MakeNode, tmp_path: Path) -> None:
    node = await a_node(tmp_path / "kept")
    await node.save(3, data=b"x" * 5000)
    await node.written()
    assert not (tmp_path / "kept").exists()
    assert len(node.notes) == 1
    assert "what a process saved is no checkpoint" in node.notes[0]


async def test_another_nodes_copy_is_kept_in_memory_and_not_written(a_node: MakeNode, tmp_path: Path) -> None:
    node = await a_node(tmp_path / "kept")
    image = an_image(9)
    number = await node.saver.room("worker-7", len(image))
    assert number is not None
    node.saver.memory(number, len(image))[:] = image
    node.saver.filled(number, "worker-7", step=9, nbytes=len(image))
    await node.save(8)
    assert await node.in_memory() == [9, 8]
    await node.written()
    assert on_disk(tmp_path / "kept") == [8]


# Too little memory ---------------------------------------------------------------------------------------


async def test_without_shared_memory_the_process_is_sent_to_the_disk_and_it_is_told_once(tmp_path: Path) -> None:
    node = Node(None, CheckpointSpec(directory=str(tmp_path), keep=2))
    for _ in range(2):
        answer = await node.ask(SlotWanted(nbytes=1000))
        assert isinstance(answer, SlotRefused)
        assert (answer.directory, answer.keep) == (str(tmp_path), 2)
    assert len(node.notes) == 1
    assert f"saves go straight to {tmp_path}, which training waits for" in node.notes[0]
    await node.saver.close()


async def test_with_neither_memory_nor_disk_nothing_is_saved_and_it_is_told(a_node: MakeNode) -> None:
    node = await a_node(None, memory_bytes=MIB)
    answer = await node.ask(SlotWanted(nbytes=2 * MIB))
    assert isinstance(answer, SlotRefused)
    assert answer.directory is None
    assert "nothing is saved" in node.notes[0]


# A slow disk ---------------------------------------------------------------------------------------------


class GatedFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A file system whose large files are opened only while its gate is."""

    protocol = "gated"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    gate = threading.Event()
    waiting = threading.Event()

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if "w" in mode:
            self.waiting.set()
            self.gate.wait()
        return super()._open(path, mode, **kwargs)


@pytest.fixture
def slow_disk() -> Iterator[str]:
    fsspec.register_implementation("gated", GatedFileSystem, clobber=True)
    GatedFileSystem.store.clear()
    GatedFileSystem.gate.clear()
    GatedFileSystem.waiting.clear()
    yield "gated://kept"
    GatedFileSystem.gate.set()


async def test_saves_go_on_while_an_older_one_is_being_written_and_the_newest_follows(
    a_node: MakeNode, slow_disk: str
) -> None:
    node = await a_node(slow_disk)
    await node.save(1)
    await asyncio.to_thread(GatedFileSystem.waiting.wait)
    for step in range(2, 8):
        await node.save(step)
    assert (await node.in_memory())[0] == 7
    GatedFileSystem.gate.set()
    await node.written()
    assert on_disk(slow_disk) == [7, 1], "what was not the newest any more is not written"
    assert node.notes == []


async def test_a_save_that_finds_all_memory_in_use_is_left_out_and_the_next_one_is_not(
    a_node: MakeNode, slow_disk: str
) -> None:
    node = await a_node(slow_disk, memory_bytes=5 * MIB // 2)
    await node.save(1, nbytes=MIB)
    await asyncio.to_thread(GatedFileSystem.waiting.wait)
    await node.save(2, nbytes=MIB)
    for _ in range(2):
        assert isinstance(await node.ask(SlotWanted(nbytes=MIB + 5000)), SlotRefused)
    assert len(node.notes) == 1
    assert "a save is left out" in node.notes[0]
    GatedFileSystem.gate.set()
    await node.written()
    await node.save(4, nbytes=MIB)
    await node.written()
    assert on_disk(slow_disk) == [4, 2, 1]


async def test_closing_while_one_is_being_written_does_not_wait_and_leaves_no_half_of_it(
    a_node: MakeNode, slow_disk: str
) -> None:
    node = await a_node(slow_disk)
    GatedFileSystem.gate.set()
    await node.save(1)
    await node.written()
    GatedFileSystem.gate.clear()
    GatedFileSystem.waiting.clear()
    await node.save(2)
    await asyncio.to_thread(GatedFileSystem.waiting.wait)
    writer = next(thread for thread in threading.enumerate() if thread.name.startswith("shoal-persist"))
    await node.saver.close()
    assert on_disk(slow_disk) == [1]
    GatedFileSystem.gate.set()
    await asyncio.to_thread(writer.join)
    assert on_disk(slow_disk) == [2, 1], "its memory was still mapped: the writer could end its work"


# A disk in trouble ---------------------------------------------------------------------------------------

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """A small file system of its own, mounted with these options."""
    mounted: list[Path] = []

    def make(options: str) -> Path:
        path = tmp_path / f"mount-{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


async def test_a_full_disk_is_told_once_and_training_goes_on_until_there_is_room(
    a_node: MakeNode, mount: Mount
) -> None:
    disk = mount("size=3m")
    kept = disk / "kept"
    node = await a_node(kept)
    await node.save(1, nbytes=MIB)
    await node.written()
    filler = disk / "filler"
    filler.write_bytes(bytes(MIB))
    for step in (2, 3):
        await node.save(step, nbytes=MIB + MIB // 2)
        await node.written()
        assert on_disk(kept) == [1], "what was there is left, and nothing of what did not fit"
        assert (await node.in_memory())[0] == step
    assert len(node.notes) == 1
    assert f"step 2 cannot be written to {kept}: [Errno 28] No space left on device" in node.notes[0]
    assert "training goes on, the next save is tried again" in node.notes[0]
    filler.unlink()
    await node.save(4, nbytes=MIB)
    await node.written()
    assert on_disk(kept) == [4, 1]
    await node.save(5, nbytes=2 * MIB)
    await node.written()
    assert len(node.notes) == 2, "it had worked in between"


async def test_a_directory_that_cannot_be_written_is_told_and_memory_still_has_it(
    a_node: MakeNode, mount: Mount
) -> None:
    disk = mount("size=1m,ro")
    node = await a_node(disk / "kept")
    await node.save(1)
    await node.written()
    assert len(node.notes) == 1
    assert "Read-only file system" in node.notes[0]
    assert await node.in_memory() == [1]


class ForbiddenFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A store whose client library has errors of its own, as those behind fsspec do."""

    protocol = "forbidden"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        raise RuntimeError("403 Forbidden")


async def test_an_error_of_a_client_library_is_told_as_one_of_the_disk(a_node: MakeNode) -> None:
    fsspec.register_implementation("forbidden", ForbiddenFileSystem, clobber=True)
    node = await a_node("forbidden://kept")
    await node.save(1)
    await node.written()
    assert len(node.notes) == 1
    assert "step 1 cannot be written to forbidden://kept: 403 Forbidden" in node.notes[0]


async def test_nobody_waits_for_a_write_that_ended_in_a_way_nobody_foresaw(a_node: MakeNode, tmp_path: Path) -> None:
    errors: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: errors.append(str(about.get("exception"))))
    node = await a_node(tmp_path / "kept")
    slot = await node.slot(1000)
    os.truncate(slot.path, 0)  # it belongs to the process too; nothing can be mapped of it now
    node.saver.said(0, Saved(slot=slot.slot, step=1, nbytes=1000))
    await node.written()
    await node.save(2, nbytes=2000)
    await node.written()
    assert on_disk(tmp_path / "kept") == [2], "the next save is written"
    assert errors == ["cannot mmap an empty file"], "a bug is told, not hidden"
