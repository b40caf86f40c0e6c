"""`shoal run`'s command line: torchrun's flags and ours, read into one frozen `RunOptions`.

Pure: nothing here looks at the machine. What a job becomes of these options on this machine stands in
`invocation` (who hosts, who joins) and `devices` (who gets which GPUs).
"""

import os.path
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import TypeVar

from shoal.cli.flags import (
    DEFAULT_SIGNALS,
    CommandLine,
    Given,
    as_choice,
    as_int,
    as_list,
    as_mebibytes,
    as_pace,
    as_seconds,
    as_signals,
    read,
)
from shoal.cli.run_flags import (
    DEFAULT_AUTOSCALE_SECONDS,
    DEFAULT_CHECKPOINT_SECONDS,
    DEFAULT_ENDPOINT_PORT,
    DEFAULT_GRACE,
    DEFAULT_KEEP,
    DEFAULT_LAST_CALL,
    DEFAULT_MASTER_PORT,
    DEFAULT_MAX_RESTARTS,
    FLAGS,
)
from shoal.core.errors import BadInput

T = TypeVar("T")


class Std(IntFlag):
    """Standard streams, counted as torchrun does."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Which streams of which local rank: `3`, or `0:1,1:2`."""

    everyone: Std = Std.NONE
    by_local_rank: Mapping[int, Std] = field(default_factory=dict)

    def of(self, local_rank: int) -> Std:
        return self.by_local_rank.get(local_rank, self.everyone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    host: str
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What the user wants to run."""

    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    no_python: bool = False
    run_path: bool = False

    def command(self, python: str) -> tuple[str, ...]:
        """The training process's command line."""
        if self.run_path:
            code = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
            return (python, "-u", "-c", code, self.script, *self.arguments)
        if self.no_python:
            return (self.script, *self.arguments)
        return (python, "-u", *(("-m",) if self.module else ()), self.script, *self.arguments)

    @property
    def stem(self) -> str:
        """A short name for people: `train` for `-m pkg.train` and for `dir/train.py`."""
        return self.script.rpartition(".")[2] if self.module else os.path.splitext(os.path.basename(self.script))[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Parameter servers, as they were asked for."""

    min: int = 1
    max: int = 1
    evaluator: bool = False
    tf_config: bool = False
    """The script only reads TF_CONFIG."""
    checkpoint_seconds: float = DEFAULT_CHECKPOINT_SECONDS
    checkpoint_fuzzy: bool = False
    spare: bool = True
    """Beside each server a process waits to take its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One `shoal run` command line, checked. `None` is "not said"."""

    program: Program | None
    """None only with `join`: the job's own command is used."""
    name: str | None = None
    min_nodes: int = 1
    max_nodes: int = 1
    nproc: int | str = 1
    """A number, or `auto`, `cpu`, `gpu`: resolved on the machine (`devices`)."""
    agents: int | None = None
    autoscale: bool = False
    """The job's optimizer says how many nodes there are."""
    autoscale_seconds: int = DEFAULT_AUTOSCALE_SECONDS
    """Between two looks of it."""
    node_unit: int = 1
    standalone: bool = False
    role: str = "default"
    servers: Servers | None = None
    """None: workers train in step (`--strategy allreduce`)."""

    max_restarts: int = DEFAULT_MAX_RESTARTS
    hang_timeout: float | None = None
    """Seconds; 0 is off, None automatic."""
    last_call: float = DEFAULT_LAST_CALL
    pending_timeout: float | None = None
    grace: float = DEFAULT_GRACE
    signals: tuple[signal.Signals, ...] = ()
    store: str | None = None

    checkpoint_dir: str | None = None
    keep: int = DEFAULT_KEEP
    checkpoint_replica: bool = False
    checkpoint_memory: int | None = None
    """Bytes; None: what is free."""

    endpoint: Address | None = None
    """Of `--rdzv-endpoint` or `--master-addr`. None: this machine alone."""
    owns_endpoint: bool | None = None
    """Said by `--node-rank` or `is_host`; None: whoever can bind it."""
    run_id: str = "none"
    local_address: str | None = None

    log_dir: str | None = None
    redirects: Streams = field(default_factory=Streams)
    tee: Streams = field(default_factory=Streams)
    local_ranks: frozenset[int] | None = None
    """The local ranks that are shown; None: all."""
    plain: bool = False

    listen: Address | None = None
    port: int | None = None
    join: Address | None = None
    fingerprint: str | None = None
    token_file: str | None = None

    warnings: tuple[str, ...] = ()
    """What was given and has no effect, one sentence each."""


HELP = None
"""What `parse` answers when help was asked for."""


def parse(words: Sequence[str], environment: Mapping[str, str]) -> RunOptions | None:
    """Read `shoal run`'s words. None (`HELP`): help was asked for. Raises `BadInput`."""
    line = read(words, environment, FLAGS)
    return HELP if line.help else options_of(line)


def options_of(line: CommandLine) -> RunOptions:
    """Make sense of a command line that was taken apart. Raises `BadInput`."""
    given = dict(line.values)
    if "standalone" in given:
        given = {key: value for key, value in given.items() if key not in _IGNORED_STANDALONE}
    _refuse_contradictions(given)
    conf = _rendezvous_conf(given.get("rdzv_conf"))
    min_nodes, max_nodes = _range(given.get("nnodes"))
    endpoint = _endpoint(given)
    options = RunOptions(
        program=_program(line, given),
        name=_name(given.get("name")),
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        nproc=_nproc(given.get("nproc_per_node")),
        agents=_int(given, "agents", at_least=1),
        autoscale="autoscale" in given,
        autoscale_seconds=as_pace(given["autoscale_every"])
        if "autoscale_every" in given
        else DEFAULT_AUTOSCALE_SECONDS,
        node_unit=_int(given, "node_unit", at_least=1) or 1,
        standalone="standalone" in given,
        role=_text(given, "role") or "default",
        servers=_servers(given),
        max_restarts=_first(_int(given, "max_restarts", at_least=0), default=DEFAULT_MAX_RESTARTS),
        hang_timeout=_seconds(given, "hang_timeout"),
        last_call=_first(_seconds(given, "last_call"), conf.last_call, default=DEFAULT_LAST_CALL),
        pending_timeout=conf.pending_timeout,
        grace=_first(_seconds(given, "grace"), _seconds(given, "shutdown_timeout"), default=DEFAULT_GRACE),
        signals=as_signals(given.get("signals_to_handle") or Given(text=DEFAULT_SIGNALS, source="--signals-to-handle")),
        store=_text(given, "store"),
        checkpoint_dir=_text(given, "checkpoint_dir"),
        keep=_first(_int(given, "keep", at_least=1), default=DEFAULT_KEEP),
        checkpoint_replica="checkpoint_replica" in given,
        checkpoint_memory=as_mebibytes(given["checkpoint_memory"]) if "checkpoint_memory" in given else None,
        endpoint=endpoint,
        owns_endpoint=_ownership(given, conf) if endpoint is not None else None,
        run_id=_text(given, "rdzv_id") or "none",
        local_address=_text(given, "local_addr"),
        log_dir=_text(given, "log_dir"),
        redirects=_streams(given.get("redirects")),
        tee=_streams(given.get("tee")),
        local_ranks=_ranks(given.get("local_ranks_filter")),
        plain="plain_output" in given or "no_live" in given,
        listen=_address(given.get("listen")),
        port=_port(given.get("port")),
        join=_address(given.get("join"), port_needed=True),
        fingerprint=_fingerprint(given.get("fingerprint")),
        token_file=_text(given, "token_file"),
        warnings=(*_inert(given, endpoint), *conf.warnings),
    )
    _refuse_impossible(options, given)
    return options


_IGNORED_STANDALONE = frozenset(
    {"rdzv_endpoint", "rdzv_backend", "rdzv_id", "rdzv_conf", "master_addr", "master_port", "node_rank"}
)
"""As in torchrun: `--standalone` makes these void."""

_CONTRADICTIONS: tuple[tuple[str, str, str], ...] = (
    ("module", "no_python", "a module is run by python"),
    ("module", "run_path", "a module has no path"),
    ("join", "listen", "a node either hosts the job or joins it"),
    ("join", "standalone", "a job that is alone joins nobody"),
    ("join", "rdzv_endpoint", "both say where the master is"),
    ("join", "master_addr", "both say where the master is"),
    ("join", "agents", "one invocation with --join is one node"),
    ("join", "autoscale", "the host of the job says how many nodes it has"),
    ("rdzv_endpoint", "autoscale", "each invocation there is one node, which nobody can start for you"),
    ("master_addr", "autoscale", "each invocation there is one node, which nobody can start for you"),
    ("join", "name", "the job there has its name already"),
    ("join", "port", "only the host of a job has a port"),
    ("join", "store", "the host of the job keeps its state"),
    ("resume", "join", "the host of a job resumes it, nodes join again"),
    ("resume", "name", "a resumed job has its name already"),
    ("listen", "rdzv_endpoint", "the endpoint's owner listens there already"),
    ("listen", "master_addr", "the endpoint's owner listens there already"),
    ("rdzv_endpoint", "agents", "one invocation with an endpoint is one node"),
    ("rdzv_endpoint", "port", "the endpoint has the port"),
    ("master_addr", "agents", "one invocation with an endpoint is one node"),
    ("master_addr", "port", "the endpoint has the port"),
    ("grace", "shutdown_timeout", "both say the same thing"),
    ("tf_config", "evaluator", "a script that only reads TF_CONFIG is told of no checkpoint"),
    ("tf_config", "checkpoint_fuzzy", "a script that only reads TF_CONFIG saves by itself"),
)


def _refuse_contradictions(given: Mapping[str, Given]) -> None:
    for one, other, why in _CONTRADICTIONS:
        if one in given and other in given:
            raise BadInput(f"{given[one].source} and {given[other].source} contradict each other: {why}")
    if "fingerprint" in given and "join" not in given:
        raise BadInput(f"{given['fingerprint'].source} is for --join, which was not given")
    if "autoscale_every" in given and "autoscale" not in given:
        raise BadInput(f"{given['autoscale_every'].source} is for --autoscale, which was not given")


def _refuse_impossible(options: RunOptions, given: Mapping[str, Given]) -> None:
    if options.agents is not None and options.agents > options.max_nodes:
        raise BadInput(
            f"{given['agents'].source} wants at most the {options.max_nodes} of --nnodes, got {options.agents}"
        )
    alone = options.endpoint is None and options.listen is None and options.join is None
    if alone and options.agents is not None and options.agents < options.min_nodes:
        raise BadInput(
            f"{given['agents'].source} wants at least the {options.min_nodes} of --nnodes, got {options.agents}: "
            "nobody else can join; give --listen to let others in"
        )
    if options.servers is not None and options.servers.evaluator and options.checkpoint_dir is None:
        raise BadInput("--evaluator scores checkpoints: give --checkpoint-dir too")
    if options.autoscale and options.min_nodes == options.max_nodes:
        raise BadInput(
            f"{given['autoscale'].source} wants --nnodes MIN:MAX to choose from, got {options.min_nodes} and no other"
        )
    if options.max_nodes // options.node_unit * options.node_unit < options.min_nodes:
        raise BadInput(
            f"no multiple of --node-unit {options.node_unit} lies in --nnodes {options.min_nodes}:{options.max_nodes}"
        )
    if options.listen is not None and options.listen.port is not None and options.port is not None:
        raise BadInput(f"--listen {options.listen} and --port {options.port} both name a port: give one")


# The parts of a command line -----------------------------------------------------------------------------


def _program(line: CommandLine, given: Mapping[str, Given]) -> Program | None:
    if line.script is None:
        if "join" in given:
            return None
        raise BadInput("no script given: shoal run [FLAGS] SCRIPT [ARGUMENTS of the script]")
    return Program(
        script=line.script,
        arguments=line.arguments,
        module="module" in given,
        no_python="no_python" in given,
        run_path="run_path" in given,
    )


def _range(given: Given | None) -> tuple[int, int]:
    if given is None:
        return 1, 1
    found = re.fullmatch(r"\s*(\d+)\s*(?::\s*(\d+)\s*)?", given.text)
    if found is None:
        raise BadInput(f"{given.source} wants N or MIN:MAX, got {given.text!r}")
    low, high = int(found[1]), int(found[2] or found[1])
    if not 1 <= low <= high:
        raise BadInput(f"{given.source} wants 1 <= MIN <= MAX, got {low}:{high}")
    return low, high


_ONLY_WITH_SERVERS = ("ps", "evaluator", "tf_config", "checkpoint_every", "checkpoint_fuzzy", "no_ps_spare")
_NOT_WITH_SERVERS: tuple[tuple[str, str], ...] = (
    ("nproc_per_node", "a node of such a job has one process; ask for more nodes"),
    ("node_unit", "its workers form no worlds"),
    ("checkpoint_replica", "its model is on the servers, not in the workers' memory"),
    ("checkpoint_memory", "its checkpoints are written by the servers"),
    ("rdzv_endpoint", "it runs on one machine, or in a cluster"),
    ("master_addr", "it runs on one machine, or in a cluster"),
    ("listen", "it runs on one machine, or in a cluster"),
    ("join", "it runs on one machine, or in a cluster"),
)


def _servers(given: Mapping[str, Given]) -> Servers | None:
    strategy = as_choice(given["strategy"], ("allreduce", "ps")) if "strategy" in given else "allreduce"
    if strategy == "allreduce":
        for key in _ONLY_WITH_SERVERS:
            if key in given:
                raise BadInput(f"{given[key].source} is for --strategy ps: where workers train in step there is none")
        return None
    for key, why in _NOT_WITH_SERVERS:
        if key in given and given[key].text != "1":
            raise BadInput(f"{given[key].source} and --strategy ps contradict each other: {why}")
    low, high = _range(given.get("ps"))
    return Servers(
        min=low,
        max=high,
        evaluator="evaluator" in given,
        tf_config="tf_config" in given,
        checkpoint_seconds=as_seconds(given["checkpoint_every"], zero=False)
        if "checkpoint_every" in given
        else DEFAULT_CHECKPOINT_SECONDS,
        checkpoint_fuzzy="checkpoint_fuzzy" in given,
        spare="no_ps_spare" not in given and "tf_config" not in given,
    )


def _nproc(given: Given | None) -> int | str:
    if given is None:
        return 1
    if given.text in ("auto", "cpu", "gpu"):
        return given.text
    try:
        number = int(given.text)
    except ValueError:
        number = 0
    if number < 1:
        raise BadInput(f"{given.source} wants a number of at least 1, auto, cpu or gpu, got {given.text!r}")
    return number


def _name(given: Given | None) -> str | None:
    if given is None:
        return None
    check_name(given.text, given.source)
    return given.text


def check_name(name: str, source: str) -> None:
    """A job's name is a directory's and a label's: short, no surprises."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", name):
        raise BadInput(
            f"{source} wants at most 40 of a-z, 0-9 and -, first and last a letter or digit, got {name[:60]!r}"
        )


def _endpoint(given: Mapping[str, Given]) -> Address | None:
    if "rdzv_endpoint" in given and given["rdzv_endpoint"].text:
        address = _address(given["rdzv_endpoint"])
        assert address is not None
        return address if address.port is not None else Address(host=address.host, port=DEFAULT_ENDPOINT_PORT)
    if "master_addr" in given:
        address = _address(given["master_addr"])
        assert address is not None
        if address.port is not None:
            raise BadInput(
                f"{given['master_addr'].source} wants a host without a port, got {given['master_addr'].text!r}"
            )
        return Address(host=address.host, port=_port(given.get("master_port")) or DEFAULT_MASTER_PORT)
    return None


def _ownership(given: Mapping[str, Given], conf: "_Conf") -> bool | None:
    if conf.is_host is not None:
        return conf.is_host
    if "node_rank" in given and "rdzv_endpoint" not in given:
        return as_int(given["node_rank"], at_least=0) == 0
    return None


def _address(given: Given | None, *, port_needed: bool = False) -> Address | None:
    """`host`, `host:port`, `[v6]`, `[v6]:port`, or a bare IPv6 address."""
    if given is None:
        return None
    text = given.text.strip()
    found = re.fullmatch(r"\[([0-9A-Fa-f:.%\w]+)\](?::(\d+))?|([^\s:\[\]/]+)(?::(\d+))?", text)
    if found is not None:
        host, port = found[1] or found[3], found[2] or found[4]
    elif text.count(":") > 1 and re.fullmatch(r"[0-9A-Fa-f:.]+", text):
        host, port = text, None
    else:
        raise BadInput(f"{given.source} wants {'HOST:PORT' if port_needed else 'HOST[:PORT]'}, got {given.text!r}")
    if port is None:
        if port_needed:
            raise BadInput(f"{given.source} wants HOST:PORT, got {given.text!r}")
        return Address(host=host)
    return Address(host=host, port=_port(Given(text=port, source=given.source)))


def _port(given: Given | None) -> int | None:
    if given is None:
        return None
    port = as_int(given, at_least=0)
    if port > 65535:
        raise BadInput(f"{given.source} wants a port up to 65535, got {port}")
    return port


def _streams(given: Given | None) -> Streams:
    if given is None or not given.text:
        return Streams()
    if re.fullmatch(r"[0-3]", given.text):
        return Streams(everyone=Std(int(given.text)))
    by_rank: dict[int, Std] = {}
    for part in given.text.split(","):
        found = re.fullmatch(r"\s*(\d+):([0-3])\s*", part)
        if found is None:
            raise BadInput(f"{given.source} wants 0 to 3, or LOCAL_RANK:0-3 with commas, got {given.text!r}")
        by_rank[int(found[1])] = Std(int(found[2]))
    return Streams(by_local_rank=by_rank)


def _ranks(given: Given | None) -> frozenset[int] | None:
    if given is None or not given.text:
        return None
    parts = as_list(given)
    if not parts or not all(part.isdecimal() for part in parts):
        raise BadInput(f"{given.source} wants local ranks with commas (0,1,2), got {given.text!r}")
    return frozenset(map(int, parts))


def _fingerprint(given: Given | None) -> str | None:
    if given is None:
        return None
    digits = given.text.strip().lower().removeprefix("sha256:").replace(":", "")
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise BadInput(f"{given.source} wants sha256: and 64 hexadecimal digits, got {given.text!r}")
    return f"sha256:{digits}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conf:
    """What `--rdzv-conf` says that means something here."""

    is_host: bool | None = None
    last_call: float | None = None
    pending_timeout: float | None = None
    warnings: tuple[str, ...] = ()


def _rendezvous_conf(given: Given | None) -> _Conf:
    pairs: dict[str, Given] = {}
    for part in as_list(given) if given is not None else ():
        key, equals, value = part.partition("=")
        if not key or not equals or given is None:
            raise BadInput(f"--rdzv-conf wants KEY=VALUE with commas, got {part!r}")
        pairs[key.strip()] = Given(text=value.strip(), source=f"{given.source} {key.strip()}")
    pending = pairs.pop("join_timeout", None) or pairs.pop("timeout", None)
    pairs.pop("timeout", None)
    last_call = pairs.pop("last_call_timeout", None)
    is_host = pairs.pop("is_host", None)
    return _Conf(
        is_host=None if is_host is None else as_choice(is_host, ("true", "false", "1", "0")) in ("true", "1"),
        last_call=None if last_call is None else as_seconds(last_call),
        pending_timeout=None if pending is None else as_seconds(pending, zero=False),
        warnings=tuple(f"{value.source} has no effect: the rendezvous is Shoal's" for value in pairs.values()),
    )


def _inert(given: Mapping[str, Given], endpoint: Address | None) -> tuple[str, ...]:
    """One sentence for each flag that was given and changes nothing."""
    said = [
        f"{given[flag.key].source} has no effect: {flag.inert}" for flag in FLAGS if flag.inert and flag.key in given
    ]
    if endpoint is None:
        said += [
            f"{given[key].source} has no effect without --master-addr or --rdzv-endpoint"
            for key in ("master_port", "node_rank")
            if key in given
        ]
    return tuple(said)


def _text(given: Mapping[str, Given], key: str) -> str | None:
    return given[key].text or None if key in given else None


def _int(given: Mapping[str, Given], key: str, *, at_least: int) -> int | None:
    return as_int(given[key], at_least=at_least) if key in given else None


def _seconds(given: Mapping[str, Given], key: str) -> float | None:
    return as_seconds(given[key]) if key in given else None


def _first(*values: T | None, default: T) -> T:
    """The first that was said."""
    return next((value for value in values if value is not None), default)
