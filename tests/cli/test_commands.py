"""The real command in real processes: small scripts without torch, every kind of end, nothing left running."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

WAIT = 180
"""Seconds after which a test gives up; nothing here takes nearly so long."""

HELLO = """
import os, sys
print("hello from", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], os.environ["TORCHELASTIC_RUN_ID"])
assert not any("TOKEN" in name for name in os.environ)
"""
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("heard SIGTERM", flush=True))
print("up", flush=True)
while True:
    time.sleep(0.1)
"""
STAYS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


class Run:
    """A `shoal` in the background whose output can be waited for."""

    def __init__(self, words: list[str], environment: dict[str, str], cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=cwd,
        )
        self.text = ""
        self._grew = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grew:
                self.text += line
                self._grew.notify_all()
        with self._grew:
            self._grew.notify_all()

    def wait_for(self, pattern: str, times: int = 1) -> list[str]:
        def seen() -> bool:
            return len(re.findall(pattern, self.text)) >= times or not self._reader.is_alive()

        with self._grew:
            self._grew.wait_for(seen, WAIT)
            found = re.findall(pattern, self.text)
        assert len(found) >= times, f"{pattern!r} not said:\n{self.text}"
        return found

    def end(self) -> int:
        code = self.process.wait(WAIT)
        self._reader.join(WAIT)
        return code


class Shell:
    """A directory with scripts, a SHOAL_HOME, and everything that was started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "PET_"))}
        self.mark = f"shoal-test-{folder.name}-{os.getpid()}"
        self.environment = kept | {"SHOAL_HOME": str(folder / "home"), "MARK": self.mark}
        self.runs: list[Run] = []

    def script(self, text: str, name: str = "train.py") -> str:
        (self.folder / name).write_text(text)
        return name

    def start(self, *words: str, **environment: str) -> Run:
        self.runs.append(Run(list(words), self.environment | environment, self.folder))
        return self.runs[-1]

    def call(self, *words: str, **environment: str) -> tuple[int, str]:
        run = self.start(*words, **environment)
        return run.end(), run.text

    def left_over(self) -> list[str]:
        """Processes that this shell's commands started, directly or not, and that still run."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if f"MARK={self.mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append((path / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    for run in made.runs:
        if run.process.poll() is None:
            run.process.kill()
        run.end()
        if run.process.stdout is not None:
            run.process.stdout.close()
    assert wait_until_none(made) == []


def wait_until_none(shell: Shell) -> list[str]:
    """What is killed by the kernel after its parent needs a moment to be gone."""
    import time

    until = time.monotonic() + 10
    while (left := shell.left_over()) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, io, contextlib\n"
        "from shoal.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    assert main(sys.argv[1:]) == 0\n"
        "heavy = {'aiohttp', 'torch', 'psutil', 'asyncio', 'cryptography', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    for words in (["--help"], ["run", "--help"], ["agent", "--help"], ["ps", "--help"]):
        subprocess.run([sys.executable, "-c", code, *words], check=True, timeout=WAIT)


def test_a_job_runs_to_its_end_and_is_remembered(shell: Shell) -> None:
    words = ["--nnodes", "2", "--name", "mine", "--rdzv-id", "r7", shell.script(HELLO), "--nnodes", "9"]
    code, text = shell.call("run", *words)
    assert code == 0, text
    for rank in range(2):
        assert f"hello from {rank} of 2 ['--nnodes', '9'] r7" in text
    assert "shoal: job mine succeeded" in text
    code, text = shell.call("ps", "-a", "-o", "json")
    (job,) = json.loads(text)
    assert (code, job["name"], job["phase"], job["result"]["exit_code"]) == (0, "mine", "succeeded", 0)
    code, text = shell.call("logs", "mine", "--node", "worker-1")
    assert (code, "hello from" in text) == (0, True)


def test_a_script_that_fails_fails_the_job_with_its_traceback(shell: Shell) -> None:
    code, text = shell.call("run", "--nnodes", "2", shell.script("raise RuntimeError('boom')"))
    assert code == 1
    assert "exit 1" in text
    assert "RuntimeError: boom" in text


def test_looking_at_scaling_and_stopping_a_running_job(shell: Shell) -> None:
    words = ("--nnodes", "1:3", "--agents", "2", "--autoscale", "--name", "mine")
    job = shell.start("run", *words, shell.script(STAYS))
    job.wait_for(r"\] up", 2)
    code, text = shell.call("ps", "-o", "json")
    (seen,) = json.loads(text)
    assert (code, seen["phase"], seen["state"]["world_size"]) == (0, "running", 2)
    assert shell.call("scale", "worker=9")[0] == 1
    assert shell.call("run", "--name", "mine", "train.py")[0] == 2
    code, text = shell.call("scale", "mine", "worker=3")
    assert code == 0, text
    job.wait_for("3 processes")
    assert "shoal scale worker=3 says how many workers there are" in shell.call("why", "mine")[1]
    code, text = shell.call("scale", "mine", "worker=auto")
    assert (code, text) == (0, "mine: the optimizer says how many workers there are\n")
    code, text = shell.call("logs", "--rank", "0")
    assert (code, text) == (0, "up\n" * text.count("up\n"))
    code, text = shell.call("stop", "mine", "--now")
    assert (code, text) == (0, "mine: stopped\n")
    assert job.end() == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_job(shell: Shell, number: signal.Signals, code: int) -> None:
    job = shell.start("run", "--nnodes", "2", shell.script(STAYS))
    job.wait_for(r"\] up", 2)
    job.process.send_signal(number)
    assert job.end() == code
    assert f"shoal: {number.name}: stopping within 30 s; once more kills at once" in job.text


def test_a_second_signal_kills(shell: Shell) -> None:
    job = shell.start("run", "--nnodes", "2", "--grace", "600", shell.script(STUBBORN))
    job.wait_for(r"\] up", 2)
    job.process.send_signal(signal.SIGINT)
    job.wait_for("heard SIGTERM", 2)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130


def test_nothing_survives_a_killed_shoal_run(shell: Shell) -> None:
    job = shell.start("run", "--nnodes", "2", "--name", "mine", shell.script(STUBBORN))
    job.wait_for(r"\] up", 2)
    job.process.kill()
    assert job.end() == -signal.SIGKILL
    assert wait_until_none(shell) == []
    code, text = shell.call("ps", "-o", "json")
    assert (code, json.loads(text)[0]["phase"]) == (0, "lost")
    assert "is not running: it is lost" in shell.call("scale", "mine", "worker=1")[1]


def test_a_second_shell_joins_by_invitation(shell: Shell) -> None:
    host = shell.start("run", "--nnodes", "2", "--agents", "1", "--listen", "127.0.0.1", shell.script(HELLO))
    (line,) = host.wait_for(r"shoal run (--join .*)\n")
    assert "agent.token" in host.text
    (token,) = (shell.folder / "home" / "jobs").glob("*/agent.token")
    wrong = re.sub(r"sha256:.", "sha256:0", line) if "sha256:0" not in line else re.sub("sha256:.", "sha256:1", line)
    code, text = shell.call("run", *wrong.split(), "--token-file", str(token))
    assert (code, "another certificate" in text) == (1, True), text
    code, text = shell.call("run", *line.split(), SHOAL_TOKEN=(token.parent / "admin.token").read_text())
    assert (code, "not this job's agent token" in text) == (1, True), text
    code, text = shell.call("run", *line.split())
    assert (code, "SHOAL_TOKEN" in text) == (2, True), text
    code, text = shell.call("run", *line.split(), "--token-file", str(token))
    assert (code, "of 2" in text) == (0, True), text
    assert host.end() == 0
    assert token.read_text() not in host.text


def test_who_joined_by_invitation_may_go_and_the_others_go_on(shell: Shell) -> None:
    script = "import os, time\nprint(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\ntime.sleep(600)\n"
    host = shell.start(
        "run", "--nnodes", "1:2", "--agents", "1", "--name", "mine", "--listen", "127.0.0.1", shell.script(script)
    )
    (line,) = host.wait_for(r"shoal run (--join .*)\n")
    host.wait_for("0 of 1")
    guest = shell.start(
        "run", *line.split(), "--token-file", str(shell.folder / "home" / "jobs" / "mine" / "agent.token")
    )
    guest.wait_for("1 of 2")
    guest.process.send_signal(signal.SIGINT)
    assert guest.end() == 130
    host.wait_for("0 of 1", 2)
    host.wait_for("it left by itself")
    assert "restart" not in host.text
    assert shell.call("stop", "mine", "--now")[0] == 0


def test_invocations_at_one_endpoint_are_one_job(shell: Shell) -> None:
    words = ["run", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{a_free_port()}"]
    runs = [shell.start(*words, shell.script(HELLO)) for _ in range(2)]
    assert [run.end() for run in runs] == [0, 0], [run.text for run in runs]
    said = "".join(run.text for run in runs)
    assert {"hello from 0 of 2", "hello from 1 of 2"} <= set(re.findall(r"hello from \d of \d", said))
    assert said.count("succeeded after") == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run"], "no script given"),
        (["run", "nowhere.py"], "no such script: nowhere.py"),
        (["run", "--nope", "x.py"], "unknown flag --nope"),
        (["run", "--nnodes", "x", "x.py"], "--nnodes wants N or MIN:MAX"),
        (["run", "--no-python", "no-such-program"], "no-such-program"),
        (["run", "--nproc-per-node", "gpu", "train.py"], "no GPU"),
        (["run", "--join", "h:1", "--token-file", "/no/file"], "/no/file"),
        (["run", "--nnodes", "2", "--rdzv-endpoint", "no-such-host.invalid:1", "train.py"], "no-such-host.invalid"),
        (["scale", "job", "worker=0"], "at least 1"),
        (["scale", "job"], "wants [JOB] worker=N"),
        (["scale", "job", "--ps", "0"], "ps= wants a number of at least 1, or auto, got '0'"),
        (["scale", "job", "ps=2", "--ps", "3"], "ps= is said twice"),
        (["scale", "job", "chief=2"], "by role worker or ps, got 'chief'"),
        (["scale", "job", "ps-1.cpu=nan"], "cores above 0, got 'nan'"),
        (["scale", "job", "ps-1.disk=1"], "ps-1.cpu=N or ps-1.memory=MIB"),
        (["run", "--strategy", "ps", "--checkpoint-dir", f"{__file__}/kept", __file__], "cannot be written to"),
        (["run", "--strategy", "ps", "--checkpoint-dir", "s3://kept", __file__], "must be a directory"),
        (["agent"], "--master"),
        (["ps", "-o", "xml"], "wanted one of table, json, yaml"),
        (["swim"], "swim"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_answered_with_2(shell: Shell, words: list[str], complaint: str) -> None:
    shell.script(HELLO)
    code, text = shell.call(*words, CUDA_VISIBLE_DEVICES="")
    assert code == 2
    assert complaint in text
    assert "Traceback" not in text


def test_a_port_in_use_is_named(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        code, text = shell.call("run", "--port", port, shell.script(HELLO))
    assert (code, f"port {port}" in text) == (2, True), text


def test_unknown_jobs_are_answered_with_1_and_the_known_ones(shell: Shell) -> None:
    assert shell.call("stop")[0] == 1
    job = shell.start("run", "--name", "mine", shell.script(STAYS))
    job.wait_for(r"\] up")
    code, text = shell.call("stop", "yours")
    assert (code, text) == (1, "shoal: no job named yours; running: mine\n")
    job.process.send_signal(signal.SIGTERM)
    job.end()


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
