"""Images, shared memory and what is left of it."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.builders import an_image

from shoal.checkpoint import tree
from shoal.checkpoint.image import BadImage, Image
from shoal.checkpoint.memory import Home, OutOfMemory, have_pages, mapped, sweep, touch
from shoal.core.errors import ProtocolError


@given(data=st.binary(max_size=200))
def test_bytes_that_are_no_image_are_never_taken_for_one(data: bytes) -> None:
    with pytest.raises(BadImage):
        Image(memoryview(data))


@given(length=st.integers(0, len(an_image(3)) - 1))
def test_a_part_of_an_image_is_none(length: int) -> None:
    with pytest.raises(BadImage):
        Image(memoryview(an_image(3)[:length]))


def test_an_image_may_have_room_behind_it() -> None:
    image = Image(memoryview(an_image(3) + bytes(5000)))
    assert bytes(image.data) == an_image(3)
    assert bytes(image.tensor(0)) == b"\x03" * 100


def test_a_header_that_was_written_over_is_noticed() -> None:
    data = bytearray(an_image(3))
    data[40] ^= 1
    with pytest.raises(BadImage, match="header is damaged"):
        Image(memoryview(data))


def test_what_one_process_writes_another_reads(tmp_path: Path) -> None:
    home = Home(tmp_path)
    path = home.make("0", 10000)
    memory = mapped(path, write=True)
    memory[:3] = b"abc"
    touch(memory)
    assert memory[:3] == b"abc", "touching changes nothing"
    assert mapped(path, write=False)[:3] == b"abc"
    memory.close()
    home.close()
    assert not home.path.exists()


def test_a_segment_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with pytest.raises(OutOfMemory, match="may be used"):
        home.make("0", 10 << 20, available=5 << 20)
    with pytest.raises(OutOfMemory):
        home.make("0", 1 << 60)
    assert sorted(os.listdir(home.path)) == ["lock"]
    home.close()


def test_only_homes_that_nobody_lives_in_are_swept(tmp_path: Path) -> None:
    lived_in, left = Home(tmp_path), Home(tmp_path)
    left.make("0", 1000)
    os.close(left._lock)  # as the kernel does when the agent is killed
    (tmp_path / "another").mkdir()
    assert sweep(tmp_path) == [left.path]
    assert sorted(os.listdir(tmp_path)) == sorted(["another", lived_in.path.name])
    lived_in.close()


def test_a_home_whose_maker_died_is_swept_after_a_while(tmp_path: Path) -> None:
    unfinished = tmp_path / ".shoal-memory-0a1b2c"
    unfinished.mkdir()
    (unfinished / "lock").touch()
    assert sweep(tmp_path) == [], "somebody may still be making it"
    os.utime(unfinished, (0, 0))
    assert sweep(tmp_path) == [unfinished]
    assert os.listdir(tmp_path) == []


def test_pages_are_had_without_changing_them() -> None:
    memory = mmap.mmap(-1, 8 << 20)
    memory[5 << 20] = 7
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for begin, nbytes in ((0, 8 << 20), (100, 5 << 20), (100, 50), (4095, 2)):
        have_pages(address + begin, nbytes)
    assert memory[5 << 20] == 7
    assert not any(memory[: 5 << 20])


TAGS = st.sampled_from(["list", "tuple", "dict", "ordered", "counter", "tensor", "other"])
BODIES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=3), TAGS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.builds(lambda tag, rest: [tag, *rest], TAGS, st.lists(inner))
    ),
    max_leaves=10,
)


@given(body=BODIES)
def test_a_structure_from_elsewhere_is_a_tree_or_a_clear_error(body: object) -> None:
    try:
        tree.unpacked(body, lambda number: ("leaf", number + 0))
    except ProtocolError:
        pass
