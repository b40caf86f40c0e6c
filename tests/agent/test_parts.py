"""The small parts: lines, errors, out-of-memory counters, usage, settings."""

import asyncio
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.environment import environment
from shoal.agent.failures import LONGEST, OomCounter, error_of
from shoal.agent.gpu import Gpus
from shoal.agent.output import LONGEST_LINE, Console, Lines, Route, Stream, printable
from shoal.agent.settings import AgentSettings, ReconnectSettings, Streams
from shoal.agent.usage import Stat, Usage, look, parse, usage
from shoal.core.errors import BadInput
from shoal.core.saving import CheckpointSpec
from shoal.wire.codec import Decoder, encode
from shoal.wire.messages import FromAgent, GpuSeen, Heartbeat


def some_settings(**more: object) -> AgentSettings:
    values: dict[str, object] = {"master": "ws://x", "token": "t", "job": "j", "python": "python", "host": "h", **more}
    return AgentSettings(**values)  # type: ignore[arg-type]


# Lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "lines"),
    [
        pytest.param(b"a\nb\n", [b"a", b"b"], id="lines"),
        pytest.param(b"a\n\nb", [b"a", b"", b"b"], id="blank-lines-are-kept"),
        pytest.param(b"a\r\nb\r\n", [b"a", b"b"], id="windows"),
        pytest.param(b"\r10%\r20%\r30%\n", [b"10%", b"20%", b"30%"], id="progress-bar"),
        pytest.param(b"a\r", [b"a"], id="unfinished"),
    ],
)
def test_lines_come_out_the_same_however_they_are_cut(printed: bytes, lines: list[bytes]) -> None:
    for cut in range(len(printed) + 1):
        splitter = Lines()
        assert splitter.feed(printed[:cut]) + splitter.feed(printed[cut:]) + splitter.end() == lines


@given(st.lists(st.integers(1, LONGEST_LINE), max_size=5))
def test_a_line_without_an_end_is_shown_in_pieces_and_nothing_is_lost(sizes: list[int]) -> None:
    splitter = Lines()
    pieces = [piece for size in sizes for piece in splitter.feed(b"x" * size)] + splitter.end()
    assert sum(map(len, pieces)) == sum(sizes)
    assert all(len(piece) <= LONGEST_LINE for piece in pieces)


@given(st.binary())
def test_nothing_that_a_terminal_obeys_is_shown(line: bytes) -> None:
    shown = printable(line)
    assert not any((ord(c) < 32 and c != "\t") or 127 <= ord(c) < 160 for c in shown)


def test_escape_sequences_go_as_a_whole_and_letters_stay() -> None:
    assert printable("\x1b[1;31mrot\x1b[0m \x1b]0;title\x07ok é 鱼\tx".encode()) == "rot ok é 鱼\tx"


# Consoles ------------------------------------------------------------------------------------------------


async def read_all(fd: int) -> bytes:
    """Read to the end, in a thread, at the pace of the writer."""
    with open(fd, "rb") as pipe:
        return await asyncio.to_thread(pipe.read)


async def print_lines(count: int, console: Console) -> None:
    """As a training process does: it waits when its pipe is full."""
    reading, writing = os.pipe()
    stream = Stream(reading, Route(show=console.line, console=console))

    def write() -> None:
        with open(writing, "w") as pipe:
            pipe.writelines(f"line {i}\n" for i in range(count))

    await asyncio.to_thread(write)
    stream.finish()


async def test_a_console_that_is_read_shows_every_line_of_a_burst() -> None:
    reading, writing = os.pipe()
    console = Console(writing, limit=4096, patience=60.0)
    reader = asyncio.create_task(read_all(reading))
    await print_lines(50_000, console)
    await console.flush(60.0)
    os.close(writing)
    assert (await reader).decode().splitlines() == [f"line {i}" for i in range(50_000)]


async def test_a_console_that_nobody_reads_holds_nobody_up_and_the_lines_it_cost_are_counted() -> None:
    reading, writing = os.pipe()
    console = Console(writing, limit=4096, patience=0.01)
    await print_lines(50_000, console)  # comes to an end
    reader = asyncio.create_task(read_all(reading))
    await console.flush(60.0)
    os.close(writing)
    *shown, last = (await reader).decode().splitlines()
    assert shown == [f"line {i}" for i in range(len(shown))]
    assert last == f"[shoal] {50_000 - len(shown)} lines are not shown: the console was too slow"


async def test_the_last_lines_get_through_as_long_as_the_console_takes_some() -> None:
    reading, writing = os.pipe()
    console = Console(writing)
    for i in range(20_000):
        console.line(f"line {i}")
    flushed = asyncio.create_task(console.flush(0.3))
    got = b""
    while not flushed.done():  # each time after a while, and less than there is
        await asyncio.sleep(0.1)
        got += os.read(reading, 65536)
    os.close(writing)
    got += await read_all(reading)
    assert got.decode().splitlines() == [f"line {i}" for i in range(20_000)]


async def test_a_file_takes_everything(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "console", os.O_WRONLY | os.O_CREAT)
    console = Console(fd, limit=100, patience=0.0)
    for i in range(10_000):
        console.line(f"line {i}")
    await console.flush(0.0)
    os.close(fd)
    assert (tmp_path / "console").read_text().splitlines() == [f"line {i}" for i in range(10_000)]


# Why a process ended -------------------------------------------------------------------------------------


def test_the_last_traceback_is_the_error(tmp_path: Path) -> None:
    stderr = (
        b"Traceback (most recent call last):\n  first\nnoise\nTraceback (most recent call last):\n  x\nKeyError: 1\n"
    )
    assert error_of(tmp_path / "none", stderr, code=1) == "Traceback (most recent call last):\n  x\nKeyError: 1"


def test_without_a_traceback_the_last_lines_are_the_error_unless_a_signal_ended_it(tmp_path: Path) -> None:
    stderr = b"usage: train.py\ntrain.py: error: unrecognized arguments: --lrr\n"
    assert error_of(tmp_path / "none", stderr, code=2) == stderr.decode().strip()
    assert error_of(tmp_path / "none", stderr, code=137) is None
    assert error_of(tmp_path / "none", stderr, code=0) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"message": 3}', '{"message": {"extraInfo": 1}}', "[" * 100_000])
def test_a_broken_error_file_is_no_error_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "error.json").write_text(content)
    assert error_of(tmp_path / "error.json", b"the end\n", code=1) == "the end"


def test_an_error_is_bounded_and_keeps_its_end(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text(json.dumps({"message": "x" * 100_000 + "end"}))
    error = error_of(tmp_path / "error.json", b"", code=1)
    assert error is not None
    assert len(error) == LONGEST
    assert error.endswith("end")


@pytest.mark.parametrize(
    ("cgroup", "file"),
    [
        pytest.param("0::/job\n", "job/memory.events", id="version-2"),
        pytest.param("0::/outside\n", "memory.events", id="version-2-inside-a-container"),
        pytest.param("4:memory:/job\n0::/\n", "memory/job/memory.oom_control", id="version-1"),
        pytest.param("4:memory:/outside\n", "memory/memory.oom_control", id="version-1-inside-a-container"),
    ],
)
def test_the_kernels_count_of_kills_is_found(tmp_path: Path, cgroup: str, file: str) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
    (tmp_path / "fs" / file).parent.mkdir(parents=True)
    (tmp_path / "fs" / file).write_text("low 0\noom 2\noom_kill 2\n")
    counter = OomCounter(proc=tmp_path / "proc", mount=tmp_path / "fs")
    assert counter.read() == 2


def test_without_a_cgroup_nothing_is_known(tmp_path: Path) -> None:
    assert OomCounter(proc=tmp_path, mount=tmp_path).read() is None


# Usage ---------------------------------------------------------------------------------------------------


def a_stat(pid: int, parent: int, *, cpu: float = 0.0, memory: int = 0, state: str = "S") -> Stat:
    return Stat(pid=pid, parent=parent, state=state, cpu_seconds=cpu, memory_bytes=memory)


def test_usage_counts_the_whole_tree_and_survives_children_that_come_and_go() -> None:
    before = {s.pid: s for s in (a_stat(1, 0, cpu=5.0), a_stat(2, 1, cpu=100.0), a_stat(9, 0, cpu=50.0))}
    now = {
        s.pid: s for s in (a_stat(1, 0, cpu=6.0, memory=10, state="T"), a_stat(3, 1, cpu=1.0, memory=5), a_stat(4, 3))
    }
    assert usage([1, 77], now, before, seconds=2.0) == {1: Usage(cpu=1.0, memory_bytes=15, stopped=True)}


def test_a_process_with_parentheses_in_its_name_is_read() -> None:
    stat = parse("12 (a) b (c)) T 3 " + " ".join(str(n) for n in range(5, 60)))
    assert stat is not None
    assert (stat.pid, stat.parent, stat.state) == (12, 3, "T")
    assert parse("garbage") is None


def test_this_process_is_seen() -> None:
    me = look()[os.getpid()]
    assert me.parent == os.getppid()
    assert me.memory_bytes > 1_000_000


# GPUs ----------------------------------------------------------------------------------------------------


class NVMLError(Exception):
    pass


def a_driver(*uuids: str, broken: str | None = None) -> ModuleType:
    """NVML as far as it is used: a handle is the GPU's UUID."""

    def by_uuid(uuid: str) -> str:
        if uuid not in uuids:
            raise NVMLError
        return uuid

    def by_index(index: int) -> str:
        if index >= len(uuids):
            raise NVMLError
        return uuids[index]

    def utilization(uuid: str) -> SimpleNamespace:
        if uuid == broken:
            raise NVMLError
        return SimpleNamespace(gpu=50, memory=9)

    nvml = ModuleType("pynvml")
    vars(nvml).update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(uuids),
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetMemoryInfo=lambda uuid: SimpleNamespace(used=3, free=4, total=7),
    )
    return nvml


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [(None, ["0", "2"]), ("", []), ("2,1", ["2"]), ("GPU-c, 0", ["GPU-c", "0"]), ("0,9,2", ["0"])],
)
def test_the_gpus_of_the_node_that_answer_are_seen(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, gpus: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", a_driver("GPU-a", "GPU-b", "GPU-c", broken="GPU-b"))
    seen = Gpus(visible).look()
    assert seen == tuple(GpuSeen(gpu=gpu, busy=0.5, memory_bytes=3, memory_total=7) for gpu in gpus)
    beat = Heartbeat(incarnation=1, processes=(), gpus=seen)
    assert Decoder(FromAgent, limit=10_000).decode(encode(beat)) == beat


def test_without_the_library_or_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus(None).look() == ()
    nvml = a_driver("GPU-a")

    def no_driver() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    monkeypatch.setattr(nvml, "nvmlInit", no_driver, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert Gpus(None).look() == ()


# Settings ------------------------------------------------------------------------------------------------


def test_by_default_everything_goes_to_file_and_console() -> None:
    assert some_settings().to_file(0) == some_settings().to_console(0) == Streams.BOTH


def test_tee_wins_over_redirects() -> None:
    settings = some_settings(redirects={0: Streams.BOTH}, tee={0: Streams.STDERR})
    assert settings.to_file(0) == Streams.BOTH
    assert settings.to_console(0) == Streams.STDERR
    assert settings.to_file(1) == Streams.NONE
    assert settings.to_console(1) == Streams.BOTH


def test_the_token_is_not_shown() -> None:
    assert "hidden" not in repr(some_settings(token="hidden"))


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"incarnation": 0}, {"grace": -1.0}, {"address": ""}])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        some_settings(**wrong)


def test_reconnect_delays_must_not_shrink() -> None:
    with pytest.raises(BadInput):
        ReconnectSettings(first_delay=2.0, longest_delay=1.0)


# The environment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fuzzy", "said"), [(True, "1"), (False, None)])
def test_a_process_knows_whether_the_checkpoints_it_makes_are_fuzzy(fuzzy: bool, said: str | None) -> None:
    made = environment(
        some_settings(),
        node="worker-0",
        incarnation=1,
        local_rank=0,
        max_restarts=0,
        socket=Path("s"),
        error_file=Path("e"),
        world=None,
        store={},
        checkpoint=CheckpointSpec(directory="/kept", fuzzy=fuzzy),
    )
    assert made.get("SHOAL_CHECKPOINT_FUZZY") == said
