"""`shoal master --training`: what it must be told, and that trainers which come by themselves train together."""

import base64
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.operator.builders import SETTINGS

from shoal.cli.master import EXIT_HOPELESS, main
from shoal.cli.master_training import place_of
from shoal.core.errors import BadInput
from shoal.operator.objects import token_data

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


def test_a_pods_environment_says_who_the_master_is() -> None:
    where = place_of({**GIVEN, "SHOAL_SLOTS": "4", "SHOAL_MAX_RESTARTS": "3"})
    spec = where.spec()
    assert (spec.name, spec.uid, spec.min_nodes, spec.max_nodes, spec.nproc) == ("j", "uid", 1, 2, 4)
    assert spec.platform_grows
    assert "j-master.n.svc" in where.place.names


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} not set"):
        place_of({key: value for key, value in GIVEN.items() if key != name})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"SHOAL_MIN_NODES": "two"}, "must be a number"), ({"SHOAL_MIN_NODES": "3"}, "SHOAL_MIN_NODES <= ")],
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

    def __init__(self, folder: Path, secrets: Path, port: int) -> None:
        self.log, self.secrets = folder / "master.log", secrets
        said = {**GIVEN, "SHOAL_STORE": str(folder / "state"), "SHOAL_MIN_NODES": "2", "SHOAL_SECRETS": str(secrets)}
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

    def joined(self, port: int, *command: str) -> subprocess.Popen[bytes]:
        told = {
            "SHOAL_TOKEN_FILE": str(self.secrets / "agent"),
            "SHOAL_AGENT_MASTER": f"wss://127.0.0.1:{port}",
            "SHOAL_AGENT_FINGERPRINT_FILE": str(self.secrets / "fingerprint"),
            "SHOAL_AGENT_JOB": "j",
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
