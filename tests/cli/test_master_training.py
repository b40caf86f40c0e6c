"""`shoal master --training`: what it must be told, and that trainers which come by themselves train together."""

import base64
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.operator.builders import SETTINGS
from tests.operator.training.builders import a_job

from shoal.api.trainingjob import TrainingRole
from shoal.cli.master import EXIT_HOPELESS, main
from shoal.cli.master_training import place_of
from shoal.core.errors import BadInput
from shoal.core.job import PSSpec
from shoal.core.saving import CheckpointSpec
from shoal.operator.objects import token_data
from shoal.operator.training.objects import pod_template

GIVEN = {
    "SHOAL_JOB": "j",
    "SHOAL_JOB_UID": "uid",
    "SHOAL_NAMESPACE": "n",
    "SHOAL_STORE": "etcd://j-etcd.n.svc:2379/uid",
    "SHOAL_MIN_NODES": "1",
    "SHOAL_MAX_NODES": "2",
}
_PORT = re.compile(r"listens on port (\d+)")
PATIENCE = 60.0
TRAIN_PS = Path(__file__).parents[1] / "master" / "train_ps.py"
"""It ends when there is a file `finish` beside its checkpoints."""


def test_a_pods_environment_says_who_the_master_is() -> None:
    where = place_of({**GIVEN, "SHOAL_SLOTS": "4", "SHOAL_MAX_RESTARTS": "3"})
    spec = where.spec()
    assert (spec.name, spec.uid, spec.min_nodes, spec.max_nodes, spec.nproc) == ("j", "uid", 1, 2, 4)
    assert spec.platform_grows
    assert "j-master.n.svc" in where.place.names


def test_it_is_told_of_parameter_servers_that_join_and_where_checkpoints_go() -> None:
    told = {"SHOAL_MIN_SERVERS": "2", "SHOAL_MAX_SERVERS": "5", "SHOAL_CHECKPOINT_PATH": "/kept/"}
    spec = place_of({**GIVEN, **told}).spec()
    assert spec.ps == PSSpec(min_servers=2, max_servers=5, checkpoint_dir="/kept/j.uid", joins=True)
    assert spec.checkpoint.directory == "/kept/j.uid"
    assert place_of({**GIVEN, "SHOAL_CHECKPOINT_PATH": "/kept"}).spec().checkpoint.directory == "/kept"


@pytest.mark.parametrize("pserver", [None, {"min-instance": 2}])
def test_what_a_job_says_of_its_checkpoints_reaches_its_nodes(pserver: dict[str, int] | None) -> None:
    def meant(**written: object) -> CheckpointSpec:
        job = a_job(master={}, pserver=pserver, checkpoint={"path": "/kept", **written})
        assert job.spec is not None
        (container,) = pod_template(job, job.spec, TrainingRole.MASTER, SETTINGS)["spec"]["containers"]
        told = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        return replace(place_of(told).spec().checkpoint, directory=None)

    assert meant() == CheckpointSpec()
    assert meant(everySeconds=60, keep=7, fuzzy=True) == CheckpointSpec(seconds=60, keep=7, fuzzy=True)


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} not set"):
        place_of({key: value for key, value in GIVEN.items() if key != name})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"SHOAL_MIN_NODES": "two"}, "must be a number"),
        ({"SHOAL_MIN_NODES": "3"}, "SHOAL_MIN_NODES <= "),
        ({"SHOAL_CHECKPOINT_KEEP": "all"}, "SHOAL_CHECKPOINT_KEEP must be a number"),
        ({"SHOAL_MIN_SERVERS": "1", "SHOAL_SLOTS": "2"}, "SHOAL_SLOTS must be 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        place_of({**GIVEN, **wrong})


def test_another_master_would_fare_no_better_without_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GIVEN:
        monkeypatch.delenv(name, raising=False)
    assert main(["--training"]) == EXIT_HOPELESS


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    for name, data in token_data("uid", SETTINGS).items():
        (folder / name).write_bytes(base64.b64decode(data))
    return folder


class Master:
    """The process, and agents that join it."""

    def __init__(self, folder: Path, secrets: Path, port: int, **more: str) -> None:
        self.log, self.secrets = folder / "master.log", secrets
        said = {**GIVEN, "SHOAL_STORE": str(folder / "state"), "SHOAL_MIN_NODES": "2", "SHOAL_SECRETS": str(secrets)}
        said |= more
        with self.log.open("ab") as out:
            words = [sys.executable, "-m", "shoal", "master", "--training"]
            environment = {**os.environ, **said, "SHOAL_PORT": str(port)}
            self.process = subprocess.Popen(words, env=environment, stdout=out, stderr=out)

    def port(self) -> int:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.process.poll() is None:
            if found := _PORT.findall(self.log.read_text()):
                return int(found[-1])
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())

    def until(self, said: str) -> None:
        """Until it has said this."""
        until = time.monotonic() + PATIENCE
        while said not in self.log.read_text():
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)

    def joined(self, port: int, *command: str, role: str = "worker") -> subprocess.Popen[bytes]:
        told = {
            "SHOAL_TOKEN_FILE": str(self.secrets / "agent"),
            "SHOAL_AGENT_MASTER": f"wss://127.0.0.1:{port}",
            "SHOAL_AGENT_FINGERPRINT_FILE": str(self.secrets / "fingerprint"),
            "SHOAL_AGENT_JOB": "j",
            "SHOAL_AGENT_ROLE": role,
        }
        words = [sys.executable, "-m", "shoal", "agent", "--", *command]
        return subprocess.Popen(words, env={**os.environ, **told}, stdout=subprocess.PIPE)


@pytest.fixture
def master(tmp_path: Path, secrets: Path) -> Iterator[Master]:
    master = Master(tmp_path, secrets, 0)
    yield master
    if master.process.poll() is None:
        master.process.send_signal(signal.SIGKILL)
    master.process.wait()


def test_trainers_join_by_themselves_and_the_master_ends_with_them(master: Master) -> None:
    port = master.port()
    command = ("/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    agents = [master.joined(port, *command) for _ in range(2)]
    said = b"".join(agent.communicate(timeout=PATIENCE)[0] for agent in agents)
    assert b"rank 0 of 2" in said
    assert b"rank 1 of 2" in said
    assert [agent.returncode for agent in agents] == [0, 0]
    assert master.process.wait(PATIENCE) == 0, master.log.read_text()


def test_one_that_is_told_to_end_leaves_everything_to_the_next(master: Master) -> None:
    master.port()
    master.process.send_signal(signal.SIGTERM)
    assert master.process.wait(PATIENCE) == 128 + signal.SIGTERM


@pytest.fixture
def with_servers(tmp_path: Path, secrets: Path) -> Iterator[Master]:
    told = {"SHOAL_MIN_NODES": "1", "SHOAL_MIN_SERVERS": "1", "SHOAL_MAX_SERVERS": "2"}
    master = Master(tmp_path, secrets, 0, SHOAL_CHECKPOINT_PATH=str(tmp_path / "kept"), **told)
    yield master
    if master.process.poll() is None:
        master.process.send_signal(signal.SIGKILL)
    master.process.wait()


@pytest.mark.slow  # that a server is gone counts after ten seconds
def test_parameter_servers_join_hand_over_when_they_are_told_to_end_and_are_replaced(
    with_servers: Master, tmp_path: Path
) -> None:
    master, port = with_servers, with_servers.port()
    command = (sys.executable, str(TRAIN_PS))
    agents = [master.joined(port, *command, role="ps"), master.joined(port, *command)]
    try:
        master.until("version 1: 1 parameter server ")
        agents.append(master.joined(port, *command, role="ps"))
        master.until("version 2: 2 parameter servers ")
        first, _, second = agents

        first.send_signal(signal.SIGTERM)
        master.until("ps-0 has to go")
        master.until("version 3: 1 parameter server ")
        assert first.wait(PATIENCE) == 0, "it ended because it was let go"

        second.send_signal(signal.SIGKILL)
        agents.append(master.joined(port, *command, role="ps"))
        master.until("version 4: 1 parameter server ")
        assert "ps-1: disconnected" in master.log.read_text()

        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "finish").touch()
        assert agents[1].wait(PATIENCE) == 0
        assert agents[3].wait(PATIENCE) == 0
        assert master.process.wait(PATIENCE) == 0, master.log.read_text()
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGKILL)
            agent.communicate()


def test_trainers_of_a_job_that_fails_do_not_end_well(tmp_path: Path, secrets: Path) -> None:
    master = Master(tmp_path, secrets, 0, SHOAL_MIN_NODES="1")
    try:
        agent = master.joined(master.port(), "/bin/sh", "-c", "exit 3")
        said, _ = agent.communicate(timeout=PATIENCE)
        assert agent.returncode == 78, said
        assert master.process.wait(PATIENCE) == 0, master.log.read_text()
    finally:
        if master.process.poll() is None:
            master.process.send_signal(signal.SIGKILL)
        master.process.wait()
