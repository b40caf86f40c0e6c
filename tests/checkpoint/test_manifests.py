"""Checkpoints in a folder: a crash at any point leaves what was complete, and damage is always noticed."""

import errno
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.builders import Crash, CrashingFolder, an_image

from shoal.checkpoint import manifests
from shoal.checkpoint.folder import Folder, LocalFolder, open_folder
from shoal.core.errors import BadInput


def write(folder: Folder, step: int, *, keep: int = 2, nbytes: int = 100) -> None:
    image = memoryview(an_image(step, nbytes=nbytes))
    half = len(image) // 2
    manifests.write(folder, [image[:half], image[half:]], job="test", step=step, saved_at=1.0)
    manifests.prune(folder, keep=keep, written=step)


def good(folder: Folder) -> list[int]:
    """The steps that can be restored, the newest first."""
    steps = []
    for found in manifests.scan(folder, damaged=lambda _: None):
        try:
            image = manifests.load(folder, found)
        except manifests.Damaged:
            continue
        assert image.header.step == found.step
        assert set(image.tensor(0)) == {found.step % 256}
        steps.append(found.step)
    return steps


def test_the_last_n_are_kept_and_nothing_else(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    for step in (1, 2, 30, 4):
        write(folder, step)
    assert good(folder) == [30, 4]
    assert len(folder.names()) == 4


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    write(folder, 7, nbytes=10)
    write(folder, 7, nbytes=20)
    (found,) = manifests.scan(folder, damaged=pytest.fail)
    assert len(manifests.load(folder, found).tensor(0)) == 20
    assert sorted(folder.names()) == [found.manifest.data, "step-000000000007.json"], "the data before it is gone"


def test_what_dead_writers_left_is_swept_after_a_while(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    for name in ("step-000000000003-aaaaaaaa.data", ".step-000000000003.json.1.2.tmp", "mine.txt"):
        (tmp_path / name).write_bytes(b"x")
    write(folder, 4)
    assert len(folder.names()) == 5, "somebody may still be writing them"
    for name in os.listdir(tmp_path):
        os.utime(tmp_path / name, (0, 0))
    write(folder, 5)
    assert sorted(n for n in folder.names() if not n.startswith("step-00000000000")) == ["mine.txt"]
    assert good(folder) == [5, 4]


def test_what_was_just_saved_is_kept_whatever_stands_above_it(tmp_path: Path) -> None:
    """Training had to go back: the data of everything above is damaged, which a manifest does not tell."""
    folder = LocalFolder(tmp_path)
    for step in (100, 110, 120):
        write(folder, step)
    for data in tmp_path.glob("*.data"):
        data.write_bytes(b"x")
    for step in (55, 60):
        write(folder, step)
        assert good(folder)[0] == step


def test_damaged_manifests_take_no_good_ones_place(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    for step in (100, 110):
        write(folder, step)
    for manifest in tmp_path.glob("*.json"):
        manifest.write_bytes(b"{}")
    for step in (55, 60, 65):
        write(folder, step)
    assert good(folder) == [65, 60]
    for step in (115, 120):
        write(folder, step)
    assert good(folder) == [120, 115]
    assert len(folder.names()) == 4, "what is older than the last good ones goes, readable or not"


class TroubledFolder(LocalFolder):
    """One of its files cannot be read at the moment."""

    unreadable = ""

    def read(self, name: str) -> bytes:
        if name == self.unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(name)


def test_a_manifest_that_cannot_be_read_at_the_moment_keeps_its_data(tmp_path: Path) -> None:
    folder = TroubledFolder(tmp_path)
    for step in (1, 2):
        write(folder, step)
    for name in os.listdir(tmp_path):
        os.utime(tmp_path / name, (0, 0))
    folder.unreadable = "step-000000000002.json"
    write(folder, 3)
    assert good(LocalFolder(tmp_path)) == [3, 2, 1]


@pytest.mark.parametrize("step", [3, 2], ids=["new", "the-same-again"])
def test_a_crash_at_any_point_of_writing_leaves_a_complete_one(tmp_path: Path, step: int) -> None:
    """Before every call, and in the middle of every write."""
    crashed = 0
    for calls in itertools.count():
        path = tmp_path / str(calls)
        write(LocalFolder(path), 1)
        write(LocalFolder(path), 2)
        try:
            write(CrashingFolder(path, calls), step)
        except Crash:
            crashed += 1
        else:
            break
        assert good(LocalFolder(path)) in ([2, 1], [3, 2, 1], [3, 2])
        write(LocalFolder(path), 4)  # whoever comes next is not disturbed by what is left
        assert good(LocalFolder(path))[0] == 4
    assert crashed > 8
    assert good(LocalFolder(path)) == ([3, 2] if step == 3 else [2, 1])
    assert len(os.listdir(path)) == 4


@given(part=st.floats(0, 1))
def test_data_torn_at_any_byte_is_not_taken_for_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, part: float
) -> None:
    path = tmp_path_factory.mktemp("torn")
    write(LocalFolder(path), 1)
    with pytest.raises(Crash):
        write(CrashingFolder(path, 2, part=part), 2)  # in the second half of the data
    assert good(LocalFolder(path)) == [1]


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans(), manifest=st.booleans())
def test_any_flipped_bit_or_lost_tail_is_noticed_and_the_one_before_it_is_left(
    tmp_path_factory: pytest.TempPathFactory, where: float, bit: int, cut: bool, manifest: bool
) -> None:
    path = tmp_path_factory.mktemp("damaged")
    folder = LocalFolder(path)
    write(folder, 1)
    write(folder, 2)
    (victim,) = path.glob("step-000000000002.json" if manifest else "step-000000000002-*.data")
    data = bytearray(victim.read_bytes())
    at = int(where * len(data))
    if cut:
        del data[at:]
    else:
        data[at] ^= 1 << bit
    before = victim.read_bytes()
    victim.write_bytes(data)
    told: list[manifests.Damaged] = []
    for found in manifests.scan(folder, damaged=told.append):
        if found.step == 2 and not told:
            try:
                manifests.load(folder, found)
            except manifests.Damaged as exc:
                told.append(exc)
    harmless = manifest and bytes(data).split() == before.split()  # white space in the JSON
    assert told or harmless
    assert good(folder)[-1] == 1


def test_directories_that_are_made_survive_a_crash_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    really = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        really(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = LocalFolder(tmp_path / "jobs" / "kept")
    write(folder, 1)
    assert {str(tmp_path), str(tmp_path / "jobs"), folder.url} < set(synced)
    synced.clear()
    write(folder, 2)
    assert str(tmp_path) not in synced, "they were there already"


class FullFolder(LocalFolder):
    """There is room for the data, none for the manifest."""

    def replace(self, name: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    write(LocalFolder(tmp_path), 1)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(OSError, match="No space left"):
        write(FullFolder(tmp_path), 2)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_url_is_a_folder_like_any_other() -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    folder = open_folder("memory://checkpoints/of-a-job")
    for step in (1, 2, 3):
        write(folder, step)
    assert good(folder) == [3, 2]
    assert len(folder.names()) == 4
    for name in folder.names():
        folder.remove(name)
    assert folder.names() == []


@pytest.mark.parametrize("url", ["nonsense://bucket/a"])
def test_a_url_that_nobody_knows_is_refused_with_the_reason(url: str) -> None:
    with pytest.raises(BadInput, match="nonsense"):
        open_folder(url)


def test_a_large_checkpoint_has_a_checksum_for_each_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "CHUNK_BYTES", 1000)
    write(LocalFolder(tmp_path), 5, nbytes=2500)
    (found,) = manifests.scan(LocalFolder(tmp_path), damaged=pytest.fail)
    assert len(found.manifest.crc32) == -(-found.manifest.nbytes // 1000)
    assert good(LocalFolder(tmp_path)) == [5]
