"""Local jobs are found by name, whatever died when."""

import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shoal.cli import jobs
from shoal.cli.registry import KEPT, Entry, JobRecord, JobResult, JobState, Registry, home, process_started
from shoal.core.errors import BadInput, ShoalError

START = datetime(2026, 1, 1, tzinfo=UTC)
RESULT = JobResult(phase="succeeded", exit_code=0, reason="all done", ended=START)


def a_record(name: str = "job", *, pid: int | None = None, **changes: object) -> JobRecord:
    pid = os.getpid() if pid is None else pid
    fields: dict[str, object] = {
        "name": name,
        "uid": f"{name}.1",
        "pid": pid,
        "pid_started": process_started(pid) or 1,
        "started": START,
        "command": ("python", "train.py"),
        "logs": "",
    }
    return JobRecord(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "home")


def claim(registry: Registry, record: JobRecord) -> Entry:
    return registry.claim(record, {"admin": "secret-a", "agent": "secret-b"}, own_logs=True)


def test_a_claimed_job_is_found_again(registry: Registry) -> None:
    made = claim(registry, a_record())
    found = registry.find("job")
    assert found == made
    assert found.state is JobState.RUNNING
    assert (found.token("admin"), found.token("agent")) == ("secret-a", "secret-b")
    assert found.record.logs == str(found.path / "logs")


def test_nobody_else_can_read_it(registry: Registry) -> None:
    entry = claim(registry, a_record())
    entry.updated(url="http://127.0.0.1:1")
    for path in (registry.home, entry.path.parent, entry.path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for file in entry.path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_two_jobs_of_one_name_are_refused(registry: Registry) -> None:
    claim(registry, a_record())
    with pytest.raises(BadInput, match=r"job is running already .*--name"):
        claim(registry, a_record())


@pytest.mark.parametrize("why", ["ended", "lost"])
def test_a_name_is_free_again_when_its_job_is_over(registry: Registry, why: str) -> None:
    entry = claim(registry, a_record(pid=a_dead_pid()) if why == "lost" else a_record())
    if why == "ended":
        entry = entry.updated(result=RESULT)
    (entry.path / "logs").mkdir()
    assert entry.state is (JobState.LOST if why == "lost" else JobState.ENDED)
    claim(registry, a_record(uid="job.2"))
    found = registry.find("job")
    assert found is not None
    assert found.record.uid == "job.2"
    assert not (found.path / "logs").exists()


def test_a_recycled_process_number_is_another_process(registry: Registry) -> None:
    assert claim(registry, a_record(pid_started=12)).state is JobState.LOST


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()  # its end of the pipe is closed when it exits
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_started(child.pid) is None
    child.wait()
    child.stdout.close()


def test_half_made_entries_are_nobodys_and_go_away(registry: Registry) -> None:
    claim(registry, a_record("first"))
    jobs = registry.home / "jobs"
    (jobs / ".new-dead").mkdir()
    (jobs / ".old-dead").mkdir()
    (jobs / "empty").mkdir()
    (jobs / "garbage").mkdir()
    (jobs / "garbage" / "job.json").write_bytes(b"{not json")
    assert [entry.record.name for entry in registry.entries()] == ["first"]
    claim(registry, a_record("garbage"))
    assert not list(jobs.glob(".new-*")) + list(jobs.glob(".old-*"))
    assert [entry.record.name for entry in registry.entries()] == ["first", "garbage"]


def test_a_crash_in_the_middle_of_an_update_changes_nothing(registry: Registry) -> None:
    entry = claim(registry, a_record())
    (entry.path / ".job.json.0000").write_bytes(b'{"name": "jo')  # what a killed writer leaves
    assert registry.find("job") == entry


def test_only_the_newest_ended_jobs_are_kept(registry: Registry) -> None:
    for number in range(KEPT + 5):
        record = a_record(f"job-{number}", started=START + timedelta(seconds=number))
        claim(registry, record).updated(result=RESULT)
    claim(registry, a_record("last", started=START + timedelta(days=1)))
    names = [entry.record.name for entry in registry.entries()]
    assert names == [f"job-{number}" for number in range(5, KEPT + 5)] + ["last"]


def test_running_jobs_are_never_cleared_away(registry: Registry) -> None:
    claim(registry, a_record("old"))
    for number in range(KEPT + 3):
        record = a_record(f"job-{number}", started=START + timedelta(seconds=number + 1))
        claim(registry, record).updated(result=RESULT)
    assert registry.find("old") is not None


def test_jobs_are_found_by_endpoint_while_they_run(registry: Registry) -> None:
    claim(registry, a_record("gone", pid=a_dead_pid(), endpoint="localhost:29400"))
    assert registry.by_endpoint(frozenset({"localhost:29400"})) is None
    entry = claim(registry, a_record("here", endpoint="localhost:29400"))
    assert registry.by_endpoint(frozenset({"127.0.0.1:29400", "localhost:29400"})) == entry


@pytest.mark.parametrize("name", ["../job", ".lock", "a/b", ""])
def test_odd_names_find_nothing(registry: Registry, name: str) -> None:
    claim(registry, a_record())
    assert registry.find(name) is None


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ShoalError, match="SHOAL_HOME"):
        claim(Registry(tmp_path / "file" / "home"), a_record())


def test_home_is_what_the_environment_says() -> None:
    assert home({"SHOAL_HOME": "/x"}) == Path("/x")
    assert home({}) == Path.home() / ".shoal"


def test_claims_at_the_same_time_leave_one_winner(registry: Registry) -> None:
    code = (
        "import os, sys, pathlib\n"
        "from datetime import UTC, datetime\n"
        "from shoal.cli.registry import JobRecord, Registry, process_started\n"
        "from shoal.core.errors import BadInput\n"
        "r = JobRecord(name='job', uid='u', pid=os.getpid(), pid_started=process_started(os.getpid()),\n"
        "    started=datetime.now(UTC), command=(), logs='')\n"
        "try: Registry(pathlib.Path(sys.argv[1])).claim(r, {}, own_logs=True); print('won', flush=True)\n"
        "except BadInput: print('lost', flush=True)\n"
        "sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", code, str(registry.home)]
    runs = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [run.stdout.readline().strip() for run in runs if run.stdout]
    for run in runs:
        run.communicate("")
    assert sorted(said) == ["lost", "lost", "lost", "won"]


def a_dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return child.pid


def test_a_lost_job_is_news_until_somebody_was_told(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    claim(registry, a_record(pid=a_dead_pid()))

    def shown(output: str = "table", *, everything: bool = False) -> bool:
        jobs.show(registry, everything=everything, output=output)
        return "lost" in capsys.readouterr().out

    assert [shown("json"), shown("yaml"), shown(), shown(), shown("json")] == [True] * 3 + [False] * 2
    assert shown(everything=True)
    claim(registry, a_record(pid=a_dead_pid(), uid="job.2"))
    assert shown(), "another job of the same name"
