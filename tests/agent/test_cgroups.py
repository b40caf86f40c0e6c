"""What a node may use: the kernel's texts, the hierarchies of both versions, and the tree of processes as it is."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.cgroups import (
    NodeLimits,
    cpu_max,
    cpu_quota,
    least,
    members,
    memory_held,
    memory_max,
    memory_total,
)
from shoal.agent.usage import Stat, look, usage

GIB = 1024**3
amounts = st.integers(1, 10**12)
words = st.text(max_size=40)


@given(words, words)
def test_no_text_makes_a_limit_that_is_not_one(text: str, other: str) -> None:
    for found in (cpu_max(text), cpu_quota(text, other), memory_max(text), memory_total(text)):
        assert found is None or found > 0
    held = memory_held(text, other)
    assert held is None or held >= 0
    assert all(member.path.startswith("/") for member in members(text))


@given(amounts, amounts)
def test_a_quota_is_so_many_cores(quota: int, period: int) -> None:
    assert cpu_max(f"{quota} {period}\n") == cpu_quota(f"{quota}\n", f"{period}\n") == quota / period


@pytest.mark.parametrize("text", ["max 100000\n", "max", "", "0 100000", "-1 100000", "100000 0", "1e5 100000", "½ 1"])
def test_no_quota_is_no_limit(text: str) -> None:
    assert cpu_max(text) is None


@given(amounts, st.integers(0, 10**12))
def test_files_that_the_kernel_would_drop_do_not_count(current: int, idle: int) -> None:
    wanted = max(0, current - idle)
    assert memory_held(f"{current}\n", f"anon 5\ninactive_file {idle}\nactive_file 7\n") == wanted
    assert memory_held(f"{current}\n", f"inactive_file 9\ntotal_inactive_file {idle or 9}\n") == (
        wanted if idle else max(0, current - 9)
    )


def test_version_1_says_no_limit_with_a_very_large_number() -> None:
    assert memory_max("9223372036854771712\n") is None
    assert memory_max("max\n") is None
    assert memory_max("1073741824\n") == GIB


@given(st.lists(st.none() | st.floats(0, 1e9)))
def test_the_least_of_what_is_known_holds(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    assert least(*values) == (min(known) if known else None)


def lay(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MEMINFO = "MemTotal:       16777216 kB\nMemFree: 1 kB\n"


def limits(tmp_path: Path, own: str, files: dict[str, str], *, owns_container: bool = True) -> NodeLimits:
    lay(tmp_path / "proc", {"self/cgroup": own, "meminfo": MEMINFO})
    lay(tmp_path / "sys", files)
    return NodeLimits(owns_container=owns_container, proc=tmp_path / "proc", mount=tmp_path / "sys")


def test_version_2_every_cgroup_above_counts(tmp_path: Path) -> None:
    seen = limits(
        tmp_path,
        "0::/a/b\n",
        {
            "a/b/cpu.max": "max 100000",
            "a/b/memory.max": "max",
            "a/cpu.max": "50000 100000",
            "a/memory.max": str(2 * GIB),
            "a/memory.current": str(GIB),
            "a/memory.stat": "inactive_file 1000\n",
            "memory.max": str(4 * GIB),
            "memory.current": "7",
        },
    ).look()
    assert (seen.cpu_limit, seen.memory_limit, seen.memory_bytes) == (0.5, 2 * GIB, GIB - 1000)


def test_version_2_in_a_container_the_mounts_root_is_the_containers_own(tmp_path: Path) -> None:
    files = {"cpu.max": "150000 100000", "memory.max": str(GIB), "memory.current": "5000"}
    seen = limits(tmp_path, "0::/../kubepods/pod1/x\n", files).look()
    assert (seen.cpu_limit, seen.memory_limit, seen.memory_bytes) == (
        min(1.5, len(os.sched_getaffinity(0))),
        GIB,
        5000,
    )


def test_what_a_container_holds_is_not_the_memory_of_each_of_its_nodes(tmp_path: Path) -> None:
    files = {"memory.max": str(GIB), "memory.current": "5000"}
    seen = limits(tmp_path, "0::/\n", files, owns_container=False).look()
    assert (seen.memory_limit, seen.memory_bytes) == (GIB, None)


def test_version_1_beside_a_version_2_without_controllers(tmp_path: Path) -> None:
    seen = limits(
        tmp_path,
        "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n",
        {
            "memory/job/memory.limit_in_bytes": str(GIB),
            "memory/job/memory.usage_in_bytes": "4096",
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "cpu/job/cpu.cfs_quota_us": "-1",
            "cpu/job/cpu.cfs_period_us": "100000",
            "cpu/cpu.cfs_quota_us": "25000",
            "cpu/cpu.cfs_period_us": "100000",
        },
    ).look()
    assert (seen.cpu_limit, seen.memory_limit, seen.memory_bytes) == (0.25, GIB, 4096)


def test_without_cgroups_the_machine_is_the_limit(tmp_path: Path) -> None:
    seen = limits(tmp_path, "", {}).look()
    assert seen.cpu_limit == len(os.sched_getaffinity(0))
    assert (seen.memory_limit, seen.memory_bytes) == (16 * GIB, None)


def test_a_hierarchy_that_nobody_may_look_into_limits_nothing(tmp_path: Path) -> None:
    lay(tmp_path / "proc", {"self/cgroup": "0::/\n4:memory:/job\n2:cpu:/job\n", "meminfo": MEMINFO})
    lay(tmp_path / "sys", {"memory.max": str(GIB), "cpu.max": "10000 100000"})
    (tmp_path / "sys").chmod(0)
    tmp_path.chmod(0o711)
    look = (
        "import os, pathlib\n"
        "from shoal.agent.cgroups import NodeLimits\n"
        "if os.getuid() == 0: os.setuid(65534)  # root may look into everything\n"
        "print(NodeLimits(proc=pathlib.Path('proc'), mount=pathlib.Path('sys')).look().memory_limit)\n"
    )
    done = subprocess.run([sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (str(16 * GIB), "")


def test_a_limit_that_is_changed_is_seen_and_one_that_is_gone_is_none(tmp_path: Path) -> None:
    node = limits(tmp_path, "0::/a\n", {"a/memory.max": str(GIB), "a/memory.current": "1", "a/cpu.max": "10000 100000"})
    assert node.look().memory_limit == GIB
    lay(tmp_path / "sys", {"a/memory.max": str(3 * GIB)})
    assert node.look().memory_limit == 3 * GIB
    (tmp_path / "sys/a/memory.max").unlink()
    (tmp_path / "sys/a/cpu.max").unlink()
    assert (node.look().memory_limit, node.look().cpu_limit) == (16 * GIB, len(os.sched_getaffinity(0)))


def test_this_machine_has_limits() -> None:
    seen = NodeLimits().look()
    assert seen.cpu_limit is not None
    assert seen.memory_limit is not None
    assert 0 < seen.cpu_limit <= len(os.sched_getaffinity(0))


# The tree of processes -----------------------------------------------------------------------------------


def a_stat(pid: int, parent: int, cpu: float, reaped: float = 0.0) -> Stat:
    return Stat(pid=pid, parent=parent, state="R", cpu_seconds=cpu, memory_bytes=1, reaped_seconds=reaped)


def test_a_child_that_ended_between_two_looks_is_counted_once() -> None:
    before = {s.pid: s for s in (a_stat(1, 0, 5.0), a_stat(2, 1, 3.0))}
    now = {s.pid: s for s in (a_stat(1, 0, 5.5, reaped=4.0 + 0.25),)}  # 2 used another second; 3 lived in between
    assert usage([1], now, before, seconds=1.0)[1].cpu == pytest.approx(0.5 + 1.0 + 0.25)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=12))
def test_no_two_looks_give_a_negative_use(stats: list[tuple[int, int, float, float]]) -> None:
    made = [a_stat(pid + 1, parent, cpu, reaped) for pid, parent, cpu, reaped in stats if parent <= pid]
    before, now = {s.pid: s for s in made[::2]}, {s.pid: s for s in made[1::2]}
    assert all(used.cpu >= 0 for used in usage(list(now), now, before, seconds=1.0).values())


def test_what_short_lived_children_of_a_real_process_use_is_counted() -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    script = f"import subprocess, sys\nprint(flush=True)\ninput()\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
    with subprocess.Popen(
        [sys.executable, "-c", f"{script}print(flush=True)\ninput()"], stdin=-1, stdout=-1, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        before, began = look(), time.monotonic()
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        seconds = time.monotonic() - began
        used = usage([process.pid], look(), before, seconds=seconds)[process.pid]
        process.stdin.close()
    assert used.cpu * seconds >= 0.28


def test_shared_memory_counts_as_what_a_node_holds() -> None:
    """A checkpoint in /dev/shm is memory that nobody can drop: a plan without it would be too small."""
    stat = "anon 200\nfile 800\nshmem 700\ninactive_anon 700\nactive_anon 200\ninactive_file 60\nactive_file 40\n"
    assert memory_held("1000\n", stat) == 940
