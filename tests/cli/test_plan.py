"""From options to what is started."""

from datetime import timedelta

import pytest

from shoal.agent.settings import Streams
from shoal.cli.devices import Machine
from shoal.cli.invocation import Alone, HostEndpoint
from shoal.cli.plan import (
    Plan,
    default_name,
    endpoint_name,
    job_settings,
    join_lines,
    node_settings,
    open_ports_line,
    plan,
    usual_environment,
)
from shoal.cli.torchrun import Address, RunOptions, parse
from shoal.core.facts import OptimizerSettings
from shoal.core.job import PSSpec

LOOPBACK = Address(host="127.0.0.1", port=0)


def options(*words: str) -> RunOptions:
    found = parse([*words, "t.py", "a"], {})
    assert found is not None
    return found


def planned(what: Alone | HostEndpoint, *words: str) -> Plan:
    return plan(what, options(*words), name="j", uid="j.1", machine=Machine(cores=4), python="py")


def test_a_job_alone() -> None:
    found = planned(Alone(listen=LOOPBACK, agents=3, invites=False), "--nnodes", "2:3", "--nproc-per-node", "2")
    assert (found.nodes, found.awaited_joins, len(found.shares)) == (3, 0, 3)
    assert (found.spec.min_nodes, found.spec.max_nodes, found.spec.nproc) == (2, 3, 2)
    assert found.spec.command == ("py", "-u", "t.py", "a")


def test_how_often_a_job_is_looked_at_says_how_long_everything_takes_that_waits_for_samples() -> None:
    usual = job_settings(options("--nnodes", "1:4", "--autoscale"))
    assert usual.optimizer == OptimizerSettings(start_cpu=None, start_memory=None, canary=False)
    found = job_settings(options("--nnodes", "1:4", "--autoscale", "--autoscale-every", "6"))
    assert found.sizing_interval == timedelta(seconds=6)
    assert (found.optimizer.sample, found.optimizer.settle, found.optimizer.cool_down) == (6, 12.0, 24.0)
    assert (found.optimizer.hot_seconds, found.optimizer.trim_after) == (24.0, 120.0)
    assert (found.optimizer.horizon, found.optimizer.granted_within) == (3600.0, 60.0), "these are not about samples"


def test_a_job_with_parameter_servers() -> None:
    words = ("--strategy", "ps", "--nnodes", "1:4", "--ps", "2:3", "--evaluator", "--checkpoint-dir", "/kept")
    found = planned(
        Alone(listen=LOOPBACK, agents=2, invites=False), *words, "--checkpoint-every", "7", "--checkpoint-fuzzy"
    )
    assert found.nodes == 2
    assert found.spec.ps == PSSpec(min_servers=2, max_servers=3, evaluator=True, checkpoint_dir="/kept/j.1")
    checkpoint = found.spec.checkpoint
    assert (checkpoint.directory, checkpoint.seconds, checkpoint.fuzzy) == ("/kept/j.1", 7.0, True)


@pytest.mark.parametrize(
    ("what", "awaited"),
    [
        (HostEndpoint(listen=LOOPBACK, shared=False), 3),
        (Alone(listen=LOOPBACK, agents=1, invites=True), 1),
    ],
)
def test_nodes_that_come_by_themselves_are_waited_for(what: Alone | HostEndpoint, awaited: int) -> None:
    found = planned(what, "--nnodes", "2:4", "--listen", "h")
    assert (found.nodes, found.awaited_joins) == (1, awaited)


def test_patience_is_the_users() -> None:
    settings = job_settings(
        options("--grace", "2", "--last-call", "9", "--hang-timeout", "70", "--rdzv-conf", "join_timeout=33")
    )
    assert (settings.grace, settings.last_call) == (timedelta(seconds=2), timedelta(seconds=9))
    assert (settings.hang.timeout, settings.pending_timeout) == (timedelta(seconds=70), timedelta(seconds=33))
    assert job_settings(options()).hang.timeout is None
    off = job_settings(options("--hang-timeout", "0")).hang.timeout
    assert off is not None
    assert off > timedelta(days=1000)


@pytest.mark.parametrize(
    ("words", "file", "console"),
    [
        pytest.param([], [3, 3], [3, 3], id="all-to-both"),
        pytest.param(["-r", "3"], [3, 3], [0, 0], id="only-to-files"),
        pytest.param(["-r", "1"], [3, 3], [2, 2], id="stdout-only-to-files"),
        pytest.param(["-r", "3", "-t", "0:1"], [3, 3], [1, 0], id="tee-wins"),
        pytest.param(["--local-ranks-filter", "1"], [3, 3], [0, 3], id="filtered"),
    ],
)
def test_files_have_everything_and_the_terminal_what_is_wanted(
    words: list[str], file: list[int], console: list[int]
) -> None:
    settings = node_settings(
        options(*words),
        job="j",
        nproc=2,
        master="https://h:1",
        token="t",
        fingerprint=None,
        address="127.0.0.1",
        log_dir=None,
        python="py",
        host="here",
        environment={},
    )
    assert settings.master == "wss://h:1"
    assert [settings.to_file(rank) for rank in range(2)] == list(map(Streams, file))
    assert [settings.to_console(rank) for rank in range(2)] == list(map(Streams, console))


@pytest.mark.parametrize(
    ("stem", "name"),
    [("train", "train-1a"), ("My Train_2", "my-train-2-1a"), ("---", "job-1a"), ("x" * 80, "x" * 30 + "-1a")],
)
def test_names_from_scripts(stem: str, name: str) -> None:
    assert default_name(stem, "1a") == name


def test_all_invocations_at_one_endpoint_come_to_the_same_name() -> None:
    words = ["--nnodes", "2", "--rdzv-endpoint", "h:29400", "--rdzv-id", "Run 7"]
    assert endpoint_name(options(*words)) == endpoint_name(options(*words, "--node-rank", "1")) == "run-7-29400"


def test_the_join_line_names_the_tokens_file_and_never_the_token() -> None:
    text = "\n".join(
        join_lines(Address(host="10.0.0.1", port=7), fingerprint="sha256:ab", token_file="/a b/agent.token", nproc=2)
    )
    assert "SHOAL_TOKEN=$(cat '/a b/agent.token')" in text
    assert "shoal run --join 10.0.0.1:7 --fingerprint sha256:ab --nproc-per-node 2" in text


def test_what_every_process_has_in_its_environment_unless_the_user_says_otherwise() -> None:
    servers = planned(Alone(listen=LOOPBACK, agents=1, invites=False), "--strategy", "ps", "--ps", "2")
    assert usual_environment(servers.spec) == {"TF_CPP_MIN_LOG_LEVEL": "2"}
    assert usual_environment(planned(Alone(listen=LOOPBACK, agents=1, invites=False)).spec) == {}


def test_the_line_about_open_ports_names_the_interfaces_and_what_may_happen() -> None:
    line = open_ports_line(["eth0", "wlan0"])
    assert "listens on all interfaces" in line
    assert "eth0, wlan0" in line
    assert "whoever reaches its ports can read and write the model and files" in line
