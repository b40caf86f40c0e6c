"""`shoal run` reads torchrun's command line: both spellings, PET_ variables, and nothing after the script."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.flags import Flag
from shoal.cli.run_flags import FLAGS
from shoal.cli.torchrun import Address, Program, RunOptions, Servers, Std, parse
from shoal.core.errors import BadInput


def options(*words: str, **environment: str) -> RunOptions:
    found = parse(words, environment)
    assert found is not None
    return found


# One value for each flag that takes one, and what it becomes. Flags without a value are listed with "".
VALUES: dict[str, tuple[str, str, object]] = {
    "nnodes": ("2:4", "max_nodes", 4),
    "nproc-per-node": ("3", "nproc", 3),
    "node-unit": ("1", "node_unit", 1),
    "name": ("mine", "name", "mine"),
    "standalone": ("", "standalone", True),
    "role": ("trainer", "role", "trainer"),
    "max-restarts": ("0", "max_restarts", 0),
    "hang-timeout": ("90", "hang_timeout", 90.0),
    "last-call": ("1.5", "last_call", 1.5),
    "grace": ("5", "grace", 5.0),
    "shutdown-timeout": ("7", "grace", 7.0),
    "signals-to-handle": ("SIGUSR1", "signals", (signal.SIGUSR1,)),
    "rdzv-endpoint": ("h:1", "endpoint", Address(host="h", port=1)),
    "master-addr": ("h", "endpoint", Address(host="h", port=29500)),
    "rdzv-id": ("run7", "run_id", "run7"),
    "rdzv-conf": ("last_call_timeout=9", "last_call", 9.0),
    "local-addr": ("10.0.0.1", "local_address", "10.0.0.1"),
    "log-dir": ("/logs", "log_dir", "/logs"),
    "local-ranks-filter": ("0,2", "local_ranks", frozenset({0, 2})),
    "plain-output": ("", "plain", True),
    "no-live": ("", "plain", True),
    "listen": ("0.0.0.0:7", "listen", Address(host="0.0.0.0", port=7)),
    "port": ("123", "port", 123),
    "token-file": ("-", "token_file", "-"),
    "checkpoint-dir": ("kept", "checkpoint_dir", "kept"),
    "keep": ("5", "keep", 5),
    "checkpoint-replica": ("", "checkpoint_replica", True),
    "checkpoint-memory": ("64", "checkpoint_memory", 64 << 20),
}
TAKES = {flag.name: flag for flag in FLAGS}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("way", ["dashes", "underscores", "equals", "environment"])
def test_every_way_to_say_a_flag_says_the_same(name: str, way: str) -> None:
    value, field, expected = VALUES[name]
    flag = TAKES[name]
    match way:
        case "environment":
            found = options("train.py", **{flag.variable: value or "1"})
        case "equals" if value:
            found = options(f"--{name}={value}", "train.py")
        case _:
            spelling = flag.spellings[-1] if way == "underscores" else flag.spelling
            found = options(spelling, *([value] if value else []), "train.py")
    assert getattr(found, field) == expected


WITH_OTHERS = (
    "join",
    "fingerprint",
    "agents",
    "ps",
    "evaluator",
    "tf-config",
    "checkpoint-every",
    "checkpoint-fuzzy",
    "no-ps-spare",
    "autoscale",
    "autoscale-every",
)
BY_THEMSELVES = [flag for flag in FLAGS if flag.name not in WITH_OTHERS]


@pytest.mark.parametrize("flag", BY_THEMSELVES, ids=lambda flag: flag.name)
def test_every_flag_is_taken_and_what_has_no_effect_is_named(flag: Flag) -> None:
    value, _, _ = VALUES.get(flag.name, (flag.default or "x", "", None))
    found = options(flag.spelling, *([value] if flag.metavar else []), "train.py")
    named = [warning for warning in found.warnings if warning.startswith(flag.spelling)]
    assert bool(named) == (flag.inert is not None or flag.name in ("master-port", "node-rank"))


def test_a_job_finds_its_size_itself_only_where_there_is_one_to_find() -> None:
    found = options("--nnodes", "1:4", "--autoscale", "train.py")
    assert found.autoscale
    with pytest.raises(BadInput, match="--autoscale wants --nnodes MIN:MAX to choose from, got 2 and no other"):
        options("--nnodes", "2", "--autoscale", "train.py")


def test_how_often_a_job_is_looked_at_is_an_even_number_of_seconds_and_only_of_jobs_that_size_themselves() -> None:
    words = ("--nnodes", "1:4", "--autoscale", "--autoscale-every")
    assert (options(*words, "4", "t.py").autoscale_seconds, options("t.py").autoscale_seconds) == (4, 30)
    for wrong in ("2", "5", "302", "-4", "4.0", "soon", "nan", ""):
        with pytest.raises(BadInput, match="--autoscale-every wants an even number of seconds from 4 to 300, got"):
            options(*words, wrong, "t.py")
    with pytest.raises(BadInput, match="--autoscale-every is for --autoscale, which was not given"):
        options("--nnodes", "1:4", "--autoscale-every", "10", "t.py")


@pytest.mark.torch
def test_torchs_own_flags_are_all_known() -> None:
    run = pytest.importorskip("torch.distributed.run")
    theirs = {s for action in run.get_args_parser()._actions for s in action.option_strings}
    ours = {s for flag in FLAGS for s in flag.spellings} | {"-h", "--help"}
    assert theirs <= ours


@pytest.mark.parametrize("words", [("-r", "3"), ("-r3",), ("--redirects=3",), ("-r=3",)])
def test_short_flags(words: tuple[str, ...]) -> None:
    assert options(*words, "train.py").redirects.of(5) == Std.ALL


def test_streams_by_local_rank() -> None:
    tee = options("-t", "0:1,1:2", "train.py").tee
    assert [tee.of(rank) for rank in range(3)] == [Std.OUT, Std.ERR, Std.NONE]


@given(st.lists(st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])), max_size=6))
def test_what_follows_the_script_is_never_touched(arguments: list[str]) -> None:
    program = options("--nnodes", "2", "train.py", *arguments).program
    assert program == Program(script="train.py", arguments=tuple(arguments))


def test_our_flags_after_the_script_are_the_scripts() -> None:
    found = options("train.py", "--nnodes", "7", "--help", "--", "-x")
    assert found.max_nodes == 1
    assert found.program is not None
    assert found.program.arguments == ("--nnodes", "7", "--help", "--", "-x")


def test_two_dashes_end_our_flags() -> None:
    program = options("--nnodes", "2", "--", "-odd.py", "a").program
    assert program == Program(script="-odd.py", arguments=("a",))


def test_a_flag_wins_over_its_variable() -> None:
    assert options("--nnodes", "2", "t.py", PET_NNODES="5").max_nodes == 2


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("0", False), ("", False)])
def test_switches_in_the_environment(text: str, expected: bool) -> None:
    assert options("t.py", PET_STANDALONE=text).standalone is expected


def test_help_is_asked_for_anywhere_before_the_script() -> None:
    assert parse(["--nnodes", "2", "-h"], {}) is None


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (Program(script="t.py", arguments=("a",)), ("py", "-u", "t.py", "a")),
        (Program(script="pkg.train", module=True), ("py", "-u", "-m", "pkg.train")),
        (Program(script="./go", no_python=True, arguments=("x",)), ("./go", "x")),
    ],
)
def test_what_a_training_process_runs(program: Program, command: tuple[str, ...]) -> None:
    assert program.command("py") == command


def test_defaults_are_torchruns_but_for_restarts() -> None:
    found = options("t.py")
    assert (found.min_nodes, found.max_nodes, found.nproc, found.max_restarts) == (1, 1, 1, 3)
    assert found.endpoint is None
    assert not found.warnings


@pytest.mark.parametrize(
    ("words", "endpoint", "owns"),
    [
        pytest.param(["--rdzv-endpoint", "h"], Address(host="h", port=29400), None, id="c10d-port"),
        pytest.param(["--rdzv-endpoint", "[::1]:5"], Address(host="::1", port=5), None, id="v6"),
        pytest.param(["--master-addr", "h", "--master-port", "9"], Address(host="h", port=9), None, id="master"),
        pytest.param(["--master-addr", "h", "--node-rank", "0"], Address(host="h", port=29500), True, id="rank-0"),
        pytest.param(["--master-addr", "h", "--node-rank", "2"], Address(host="h", port=29500), False, id="rank-2"),
        pytest.param(
            ["--rdzv-endpoint", "h:1", "--rdzv-conf", "is_host=false"], Address(host="h", port=1), False, id="is-host"
        ),
        pytest.param(["--standalone", "--rdzv-endpoint", "h:1"], None, None, id="standalone-wins"),
    ],
)
def test_endpoints(words: list[str], endpoint: Address | None, owns: bool | None) -> None:
    found = options(*words, "t.py")
    assert (found.endpoint, found.owns_endpoint) == (endpoint, owns)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "no script"),
        (["--nnodes"], "wants a value"),
        (["--nnodes", "0", "t.py"], "1 <= MIN <= MAX, got 0:0"),
        (["--nnodes", "3:2", "t.py"], "got 3:2"),
        (["--nnodes", "a:b", "t.py"], "N or MIN:MAX, got 'a:b'"),
        (["--nproc-per-node", "0", "t.py"], "auto, cpu or gpu, got '0'"),
        (["--nproc_per_node=many", "t.py"], "got 'many'"),
        (["--standalone=1", "t.py"], "takes no value"),
        (["--nodes", "3", "t.py"], "did you mean --nnodes"),
        (["--max-restarts", "-1", "t.py"], "at least 0, got -1"),
        (["--max-restarts", "x", "t.py"], "whole number, got 'x'"),
        (["--grace", "nan", "t.py"], "got nan"),
        (["-r", "4", "t.py"], "0 to 3"),
        (["--local-ranks-filter", "a", "t.py"], "0,1,2"),
        (["--signals-to-handle", "SIGNONE", "t.py"], "SIGNONE"),
        (["--signals-to-handle", "SIGKILL", "t.py"], "nobody can handle SIGKILL"),
        (["--rdzv-conf", "novalue", "t.py"], "KEY=VALUE"),
        (["--rdzv-endpoint", "h:port", "t.py"], "HOST[:PORT]"),
        (["--rdzv-endpoint", "h:99999", "t.py"], "up to 65535"),
        (["--master-addr", "h:1", "t.py"], "without a port"),
        (["--name", "Mine!", "t.py"], "a-z, 0-9"),
        (["--name", "../x", "t.py"], "a-z, 0-9"),
        (["--agents", "3", "--nnodes", "2", "t.py"], "at most the 2"),
        (["--agents", "1", "--nnodes", "2:3", "t.py"], "--listen"),
        (["--node-unit", "3", "--nnodes", "1:2", "t.py"], "multiple of --node-unit 3"),
        (["-m", "--no-python", "t.py"], "contradict"),
        (["--join", "h:1", "--listen", "h", "t.py"], "contradict"),
        (["--join", "h", "t.py"], "HOST:PORT"),
        (["--fingerprint", "sha256:00", "t.py"], "--join"),
        (["--join", "h:1", "--fingerprint", "sha256:00"], "64 hexadecimal"),
        (["--listen", "h:1", "--port", "2", "t.py"], "both name a port"),
        (["--grace", "1", "--shutdown-timeout", "2", "t.py"], "contradict"),
        (["--strategy", "ring", "t.py"], "one of allreduce, ps, got 'ring'"),
        (["--strategy", "ps", "--ps", "0", "t.py"], "--ps wants 1 <= MIN <= MAX, got 0:0"),
        (["--strategy", "ps", "--ps", "3:2", "t.py"], "got 3:2"),
        (["--ps", "2", "t.py"], "--ps is for --strategy ps"),
        (["--strategy", "allreduce", "--evaluator", "t.py"], "--evaluator is for --strategy ps"),
        (["--strategy", "ps", "--nproc-per-node", "2", "t.py"], "one process"),
        (["--strategy", "ps", "--listen", "h", "t.py"], "one machine"),
        (["--strategy", "ps", "--evaluator", "t.py"], "--checkpoint-dir"),
        (["--strategy", "ps", "--checkpoint-every", "0", "t.py"], "above 0"),
        (["--checkpoint-fuzzy", "t.py"], "--checkpoint-fuzzy is for --strategy ps"),
        (["--strategy", "ps", "--tf-config", "--checkpoint-fuzzy", "t.py"], "saves by itself"),
        (["--tf-config", "t.py"], "--tf-config is for --strategy ps"),
        (["--strategy", "ps", "--tf-config", "--evaluator", "t.py"], "contradict"),
    ],
)
def test_wrong_words_are_told_what_is_wanted(words: list[str], complaint: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(words, {})
    assert complaint in str(caught.value)


def test_parameter_servers_are_asked_for_by_their_strategy() -> None:
    words = ("--ps", "1:3", "--evaluator", "--checkpoint-dir", "kept", "--checkpoint-every", "5", "--checkpoint-fuzzy")
    found = options("--strategy", "ps", *words, "t.py")
    assert found.servers == Servers(min=1, max=3, evaluator=True, checkpoint_seconds=5.0, checkpoint_fuzzy=True)
    assert options("--strategy", "ps", "t.py").servers == Servers()
    assert options("t.py").servers is None


def test_a_complaint_about_the_environment_names_the_variable() -> None:
    with pytest.raises(BadInput, match="PET_NNODES"):
        options("t.py", PET_NNODES="x")


def test_joining_needs_no_script() -> None:
    found = options("--join", "h:1", "--fingerprint", "SHA256:" + ":".join(["AB"] * 32))
    assert found.program is None
    assert found.fingerprint == "sha256:" + "ab" * 32
