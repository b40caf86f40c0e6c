"""The file store: whatever is left of the file, what is read is a prefix; whatever is wrong is said."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.core.errors import StateTaken, StateUnavailable, StateUnreadable
from shoal.stores import FileStore, frames
from shoal.stores.frames import Kind

records = st.lists(st.binary(max_size=40), max_size=8).map(tuple)


@given(records, st.integers(1, 2**40))
def test_a_journal_is_read_as_it_was_written(written: tuple[bytes, ...], term: int) -> None:
    data = frames.written(term, written)
    read = frames.read(data)
    assert (read.term, read.records, read.end, read.rest) == (term, written, len(data), 0)


@given(records)
@example((b"one", b"", b"three"))
def test_a_crash_after_every_byte_leaves_a_prefix(written: tuple[bytes, ...]) -> None:
    data = frames.written(7, written)
    longest = 0
    for end in range(len(data) + 1):
        read = frames.read(data[:end])
        assert read.records == written[: len(read.records)]
        assert read.end + read.rest == end
        assert len(read.records) >= longest
        longest = len(read.records)
    assert longest == len(written)


@given(records, st.data())
def test_a_wrong_byte_ends_what_is_read_and_makes_nothing_up(written: tuple[bytes, ...], data: st.DataObject) -> None:
    good = frames.written(7, written)
    at = data.draw(st.integers(len(frames.HEADER), len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    read = frames.read(bytes(bad))
    assert read.records == written[: len(read.records)]
    assert read.end <= at
    assert read.rest > 0


@given(st.binary(max_size=80))
def test_what_is_no_journal_is_refused_or_empty(data: bytes) -> None:
    try:
        read = frames.read(data)
    except StateUnreadable:
        return
    assert read.records == ()


async def written(directory: Path, *appended: bytes) -> Path:
    store = FileStore(directory)
    await store.claim()
    for record in appended:
        await store.append(record)
    await store.close()
    return directory / "journal"


async def test_a_torn_tail_is_left_out_told_and_written_over(tmp_path: Path) -> None:
    journal = await written(tmp_path, b"one", b"two", b"three")
    journal.write_bytes(journal.read_bytes()[:-2])
    store = FileStore(tmp_path)
    claimed = await store.claim()
    assert claimed.records == (b"one", b"two")
    assert claimed.lost is not None
    assert "no whole record" in claimed.lost
    await store.append(b"four")
    await store.close()
    again = FileStore(tmp_path)
    claimed = await again.claim()
    await again.close()
    assert (claimed.records, claimed.lost) == ((b"one", b"two", b"four"), None)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"shoal journal 2\nwhatever", "it has version 2, this release reads 1"),
        (b"#!/bin/sh\necho precious\n", "it is not a journal of Shoal"),
    ],
    ids=["newer", "foreign"],
)
async def test_a_journal_that_is_not_for_us_is_refused_and_left_alone(
    tmp_path: Path, data: bytes, complaint: str
) -> None:
    (tmp_path / "journal").write_bytes(data)
    with pytest.raises(StateUnreadable, match=complaint):
        await FileStore(tmp_path).claim()
    assert (tmp_path / "journal").read_bytes() == data


async def test_a_second_master_in_one_directory_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import asyncio, sys; from pathlib import Path; from shoal.stores import FileStore\n"
            f"async def main():\n store = FileStore(Path({str(tmp_path)!r}))\n await store.claim()\n"
            " await store.append(b'mine')\n print('up', flush=True)\n sys.stdin.read()\nasyncio.run(main())",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == b"up\n"
        with pytest.raises(StateTaken, match=f"in use by the master with process id {holder.pid}"):
            await FileStore(tmp_path).claim()
    finally:
        holder.kill()
        holder.communicate()
    store = FileStore(tmp_path)
    assert (await store.claim()).records == (b"mine",)
    await store.close()


async def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    journal = await written(tmp_path / "state", b"one")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert journal.stat().st_mode & 0o777 == 0o600


@contextmanager
def small_disk(path: Path, *options: str) -> Iterator[None]:
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", ",".join(("size=64k", *options)), "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system wants root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


async def append_many(store: FileStore, count: int) -> None:
    for _ in range(count):
        await store.append(b"y" * 1000)


def fill(path: Path) -> None:
    """Until there is no room any more."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


async def test_a_full_disk_is_said_loses_nothing_and_can_be_mended(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk"):
        store = FileStore(tmp_path / "disk" / "state")
        await store.claim()
        await store.append(b"first")
        (tmp_path / "disk" / "state" / "filler").write_bytes(b"x" * 40_000)
        with pytest.raises(StateUnavailable, match="No space left on device"):
            await append_many(store, 100)
        with pytest.raises(StateUnavailable):
            await store.append(b"small, but after a hole")
        (tmp_path / "disk" / "state" / "filler").unlink()
        await store.compact(b"all")
        await store.append(b"again")
        await store.close()
        again = FileStore(tmp_path / "disk" / "state")
        assert (await again.claim()).records == (b"all", b"again")
        await again.close()


async def test_what_is_on_a_full_disk_can_still_be_taken_over(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk"):
        journal = await written(tmp_path / "disk" / "state", b"one", b"two")
        with pytest.raises(OSError, match="No space"):
            fill(tmp_path / "disk" / "filler")
        before = journal.read_bytes()
        store = FileStore(tmp_path / "disk" / "state")
        claimed = await store.claim()
        assert claimed.records == (b"one", b"two")
        assert claimed.trouble is not None
        assert "No space left on device" in claimed.trouble
        assert journal.read_bytes() == before
        with pytest.raises(StateUnavailable):
            await store.append(b"three")
        await store.close()


async def test_a_read_only_disk_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk"):
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        with pytest.raises(StateUnavailable, match="Read-only file system"):
            await FileStore(tmp_path / "disk" / "state").claim()


async def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateUnavailable, match="file/state: Not a directory"):
        await FileStore(tmp_path / "file" / "state").claim()


def test_frames_tell_terms_from_records() -> None:
    data = frames.written(3, (b"a",)) + frames.term_frame(4) + frames.frame(Kind.RECORD, b"b")
    read = frames.read(data)
    assert (read.term, read.records) == (4, (b"a", b"b"))
