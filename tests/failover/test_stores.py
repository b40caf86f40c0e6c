"""Real jobs whose state is kept elsewhere: in etcd, on a disk that is full or read-only, in another job's place."""

import base64
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.data.audit import missing, surplus, trained
from tests.e2e.harness import JobRun, shoal_run, shoal_run_words
from tests.failover.test_resume import SHARDS, STAY, power_cut, shoal, until

from shoal.core import journal
from shoal.core import ledger as ledgers
from shoal.core.job import Job
from shoal.stores.etcd import EtcdStore


def master_of(run: JobRun) -> int:
    """The master that serves: the oldest of those that `shoal run` has."""
    children = psutil.Process(run.process.pid).children()
    return min((p for p in children if "master" in p.cmdline()), key=lambda p: p.create_time()).pid


async def kill_master(run: JobRun) -> None:
    pid = master_of(run)
    told = run.output.count("another one takes over")
    os.kill(pid, signal.SIGKILL)
    await until("the next master", lambda: run.output.count("another one takes over") > told, run)
    await run.wait_for("all agents back", lambda s: all(n["connected"] for n in s["nodes"] if n["status"] == "running"))


def pids(state: dict[str, Any]) -> set[int]:
    """The training processes that agents have told of; a master hears of them with the next heartbeat."""
    return {p["pid"] for node in state["nodes"] for p in node["processes"]}


def done(state: dict[str, Any]) -> int:
    return int(state["data"][0]["done"]) if state["data"] else 0


# etcd ----------------------------------------------------------------------------------------------------


def delete(etcd: str, key: str) -> None:
    body = {"key": base64.b64encode(key.encode()).decode()}
    with urllib.request.urlopen(f"{etcd}/v3/kv/deleterange", data=json.dumps(body).encode()) as answer:
        answer.read()


async def kept_in(etcd: str, prefix: str) -> Job:
    store = EtcdStore(etcd, prefix=prefix)
    try:
        job = journal.replay((await store.claim()).records)
    finally:
        await store.close()
    assert job is not None
    return job


async def test_a_job_in_etcd_survives_its_masters_a_lost_term_and_a_power_cut(tmp_path: Path, etcd: str) -> None:
    records, prefix = tmp_path / "records", f"/jobs/{tmp_path.name}"
    records.mkdir()
    store = f"etcd://{etcd.removeprefix('http://')}{prefix}"
    args = ("--log", str(records), "--size", "600", "--seconds", "0.02")
    flags = ("--nnodes", "2", "--store", store)
    async with shoal_run(tmp_path, *flags, script=SHARDS, script_args=args) as run:
        before = await run.wait_for("some records", lambda s: len(pids(s)) == 2 and done(s) >= 40)
        await kill_master(run)
        delete(etcd, f"{prefix}/term")
        await kill_master(run)
        after = await run.wait_for("more records", lambda s: len(pids(s)) == 2 and done(s) >= done(before) + 20)
        assert pids(after) == pids(before)
        assert any("the store had lost its term" in d["reason"] for d in after["decisions"])
        assert not (run.home / "jobs" / "job" / "state").exists()
        await power_cut(run)
    async with shoal_run_words(tmp_path, "--resume", "job") as run:
        assert await run.ended() == 0, run.output
    job = await kept_in(etcd, prefix)
    assert ledgers.is_complete(job.ledger)
    assert ledgers.account_of(job.ledger, "train").count == 600
    counts = trained(records)
    assert missing(counts, "train", epochs=range(1), size=600) == []
    assert surplus(counts) <= 2 * 20


# Disks ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path) -> Callable[[], None]:
    """Take all room; the answer gives it back."""
    with (place / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    return (place / "filler").unlink


def mount_read_only(place: Path) -> Callable[[], None]:
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)

    def give_back() -> None:
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)

    return give_back


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [(fill, "No space left on device"), (mount_read_only, "Read-only file system")],
    ids=["full", "read-only"],
)
async def test_a_job_goes_on_without_its_disk_and_is_kept_again_when_that_is_back(
    tmp_path: Path, small_disk: Path, spoil: Callable[[Path], Callable[[], None]], complaint: str
) -> None:
    script = tmp_path / "stay.py"
    script.write_text(STAY)
    give_back = spoil(small_disk)
    async with shoal_run(tmp_path, "--nnodes", "1", "--store", str(small_disk / "state"), script=script) as run:
        await run.wait_for("a world", lambda state: state["generation"] == 1)
        said = f"cannot be kept: {small_disk / 'state'}"
        await until("the complaint", lambda: said in run.output, run)
        assert complaint in run.output
        assert "training goes on, but if this master dies the job ends" in run.output
        give_back()
        await until("the good news", lambda: "the job's state is kept again" in run.output, run)
        await kill_master(run)
        state = await run.wait_for("the same world", lambda state: state["phase"] == "running")
        assert state["generation"] == 1
        run.process.send_signal(signal.SIGTERM)
        assert await run.ended() == 143
        assert run.output.count(complaint) == 1, run.output


async def test_a_job_whose_disk_is_gone_ends_with_its_master_and_says_so(tmp_path: Path, small_disk: Path) -> None:
    script = tmp_path / "stay.py"
    script.write_text(STAY)
    fill(small_disk)
    async with shoal_run(tmp_path, "--nnodes", "1", "--store", str(small_disk / "state"), script=script) as run:
        await until("the complaint", lambda: "cannot be kept" in run.output, run)
        await run.wait_for("a world", lambda state: state["generation"] == 1)
        os.kill(master_of(run), signal.SIGKILL)
        assert await run.ended() == 1
    assert "job job failed after" in run.output
    assert "SIGKILL" in run.output
    assert "and its state could not be kept" in run.output


# Two jobs in one place -----------------------------------------------------------------------------------


async def test_two_jobs_in_one_state_directory_are_refused_and_the_first_is_not_disturbed(tmp_path: Path) -> None:
    script, place = tmp_path / "stay.py", tmp_path / "state"
    script.write_text(STAY)
    where = ("--nnodes", "1", "--store", str(place))
    async with shoal_run(tmp_path, *where, script=script) as first:
        await first.wait_for("a world", lambda state: state["generation"] == 1)
        before = (place / "journal").read_bytes()
        code, said = await shoal(first.home, "run", "--name", "second", *where, str(script))
        assert code == 1
        assert f"{place} is in use by the master with process id {master_of(first)}" in said
        assert (place / "journal").read_bytes().startswith(before)
        assert ((await first.state()) or {})["phase"] == "running"
        first.process.send_signal(signal.SIGTERM)
        assert await first.ended() == 143
    kept = (place / "journal").read_bytes()
    async with shoal_run_words(tmp_path, *where, "--name", "third", str(script), name="third") as third:
        assert await third.ended() == 1
    assert "holds the state of job job (it is stopped): go on with that one (shoal run --resume job)" in third.output
    assert len((place / "journal").read_bytes()) == len(kept)
