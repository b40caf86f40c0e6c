"""`shoal agent`'s command line says everything but the token."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.agent.settings import AgentSettings, PrefixStyle, ReconnectSettings, Streams
from shoal.cli import agent
from shoal.core.errors import BadInput

FULL = AgentSettings(
    master="wss://10.0.0.1:7",
    token="t0ken",
    fingerprint="sha256:" + "0" * 64,
    job="job",
    node="worker-3",
    incarnation=2,
    slots=4,
    command=("python", "-u", "t.py", "--nnodes", "3", "--", "x"),
    python="/opt/python",
    host="here",
    address="10.0.0.2",
    owns_container=True,
    role="trainer",
    run_id="run",
    spare_after=2.5,
    max_restarts=0,
    log_dir=Path("/logs"),
    redirects={0: Streams.STDOUT},
    tee={0: Streams.STDERR, 1: Streams.BOTH},
    console_ranks=frozenset({0, 1}),
    prefix=PrefixStyle.ROLE,
    grace=3.5,
    reconnect=ReconnectSettings(master_timeout=7.0),
    signals=(signal.SIGTERM, signal.SIGUSR1),
)
SPARE = AgentSettings(master="ws://h:1", token="t0ken", job="job", python="python", host="here")


@pytest.mark.parametrize("settings", [FULL, SPARE], ids=["full", "spare"])
def test_what_is_written_is_read_back(settings: AgentSettings) -> None:
    environment = {"SHOAL_TOKEN": "t0ken", "HOME": "/root"}
    found = agent.settings(agent.words(settings), environment)
    assert found is not None
    assert replace(found, host="here", environment={}) == settings
    assert found.environment == environment


def test_the_token_is_never_on_the_command_line() -> None:
    assert "t0ken" not in " ".join(agent.words(FULL))


def test_the_token_comes_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    found = agent.settings(agent.words(SPARE), {"SHOAL_TOKEN_FILE": str(tmp_path / "token")})
    assert found is not None
    assert found.token == "t0ken"


@pytest.mark.parametrize(
    ("words", "environment", "complaint"),
    [
        ([], {"SHOAL_TOKEN": "x"}, "--master"),
        (["--master", "ws://h"], {"SHOAL_TOKEN": "x"}, "--job"),
        (["--master", "ws://h", "--job", "j"], {}, "SHOAL_TOKEN"),
        (["--master", "ws://h", "--job", "j"], {"SHOAL_TOKEN_FILE": "/no/such"}, "/no/such"),
        (["--slots", "0", "--master", "ws://h", "--job", "j"], {"SHOAL_TOKEN": "x"}, "--slots"),
        (["--prefix", "odd", "--master", "ws://h", "--job", "j"], {"SHOAL_TOKEN": "x"}, "node, role, none"),
    ],
)
def test_wrong_words(words: list[str], environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(BadInput) as caught:
        agent.settings(words, environment)
    assert complaint in str(caught.value)


def test_in_a_pod_everything_comes_in_the_environment_and_stops_at_the_agent() -> None:
    environment = {
        "SHOAL_AGENT_MASTER": "wss://mnist-master.team.svc:7417",
        "SHOAL_AGENT_JOB": "mnist",
        "SHOAL_AGENT_NODE": "worker-3",
        "SHOAL_AGENT_SLOTS": "2",
        "SHOAL_AGENT_CONTAINER": "own",
        "SHOAL_TOKEN": "t0ken",
        "PATH": "/nowhere",
    }
    made = agent.settings(("--slots", "4", "--", "/opt/conda/bin/python3", "train.py"), environment)
    assert made is not None
    assert (made.master, made.node, made.slots) == ("wss://mnist-master.team.svc:7417", "worker-3", 4)
    assert made.owns_container
    assert made.python == "/opt/conda/bin/python3"
    assert not any(name.startswith("SHOAL_AGENT_") for name in made.environment)


def test_a_node_that_shoal_run_starts_in_a_pod_shares_its_container_whatever_the_environment_says() -> None:
    made = agent.settings(agent.words(SPARE), {"SHOAL_AGENT_CONTAINER": "own", "SHOAL_TOKEN": "t0ken"})
    assert made is not None
    assert not made.owns_container


def test_a_bad_value_in_the_environment_is_named_by_its_variable() -> None:
    environment = {
        "SHOAL_AGENT_MASTER": "ws://h:1",
        "SHOAL_AGENT_JOB": "j",
        "SHOAL_AGENT_SLOTS": "x",
        "SHOAL_TOKEN": "t",
    }
    with pytest.raises(BadInput, match="SHOAL_AGENT_SLOTS wants a whole number"):
        agent.settings((), environment)


def test_the_fingerprint_may_come_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "fingerprint").write_text("sha256:ab\n")
    said = {"SHOAL_TOKEN": "t", "SHOAL_AGENT_FINGERPRINT_FILE": str(tmp_path / "fingerprint")}
    made = agent.settings(["--master", "wss://m:1", "--job", "j"], said)
    assert made is not None
    assert made.fingerprint == "sha256:ab"
    with pytest.raises(BadInput, match="cannot be read"):
        agent.settings(["--master", "wss://m:1", "--job", "j", "--fingerprint-file", str(tmp_path / "none")], said)
