"""`shoal agent`: one node of a job. Started by the local platform, by a Pod, or by hand; people use `shoal run --join`.

`words` writes the command line that `settings` reads back, so the two stand together. What must not be seen in
a process list, the token, comes in the environment: `SHOAL_TOKEN`, or the name of a file in `SHOAL_TOKEN_FILE`.
In a Pod everything does: every flag is also `SHOAL_AGENT_<FLAG>`.
"""

import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.agent.settings import AgentSettings, CheckpointSettings, PrefixStyle, ReconnectSettings, Streams
from shoal.cli.flags import (
    DEFAULT_SIGNALS,
    Flag,
    Given,
    as_choice,
    as_int,
    as_list,
    as_mebibytes,
    as_seconds,
    as_signals,
    read,
    with_defaults,
)
from shoal.core.errors import BadInput

TOKEN, TOKEN_FILE = "SHOAL_TOKEN", "SHOAL_TOKEN_FILE"
PREFIX = "SHOAL_AGENT_"

NODE, PROCESSES, CHECKPOINTS, OUTPUT = "The node", "Its training processes", "Their checkpoints", "Their output"

# fmt: off
FLAGS: tuple[Flag, ...] = (
    Flag(name="master", metavar="URL", group=NODE, help="Where the job's master is: ws://HOST:PORT or wss://HOST:PORT."),
    Flag(name="fingerprint", metavar="sha256:HEX", group=NODE, help="The master's certificate, for wss."),
    Flag(name="fingerprint-file", metavar="FILE", group=NODE, help="The same, in a file: a Secret that is mounted."),
    Flag(name="job", metavar="NAME", group=NODE, help="The job's name."),
    Flag(name="node", metavar="NAME", group=NODE, help="This node's name. Default: the master gives it one."),
    Flag(name="incarnation", metavar="N", default="1", group=NODE, help="Which set of processes of the node this is."),
    Flag(name="address", metavar="ADDR", default="127.0.0.1", group=NODE, help="Where the other nodes reach this one."),
    Flag(name="container", metavar="own|shared", default="shared", group=NODE,
         help="own: no other node is in this container, whose memory is then this node's."),
    Flag(name="master-timeout", metavar="SECONDS", default="60", group=NODE,
         help="How long to go on without a master before giving up."),
    Flag(name="slots", metavar="N", default="1", group=PROCESSES, help="How many training processes."),
    Flag(name="python", metavar="FILE", group=PROCESSES, help="The interpreter that can import torch."),
    Flag(name="role", metavar="NAME", default="default", group=PROCESSES, help="ROLE_NAME for them."),
    Flag(name="seat", metavar="N", default="0", group=PROCESSES, help="The node's place among those of its role."),
    Flag(name="tf-workers", metavar="LIST", group=PROCESSES,
         help="They only read TF_CONFIG: the address of every worker that there can be, by seat."),
    Flag(name="tf-servers", metavar="LIST", group=PROCESSES, help="And of every parameter server."),
    Flag(name="spare-after", metavar="SECONDS", group=PROCESSES,
         help="Start a second process of a parameter server so long after it serves, as a spare. Default: none."),
    Flag(name="run-id", metavar="ID", group=PROCESSES, help="TORCHELASTIC_RUN_ID. Default: the job's name."),
    Flag(name="max-restarts", metavar="N", group=PROCESSES,
         help="TORCHELASTIC_MAX_RESTARTS. Default: the master says."),
    Flag(name="grace", metavar="SECONDS", default="30", group=PROCESSES, help="From SIGTERM to SIGKILL."),
    Flag(name="signals-to-handle", metavar="LIST", default=DEFAULT_SIGNALS, group=PROCESSES,
         help="Signals that end the node gracefully."),
    Flag(name="checkpoint-dir", metavar="DIR|URL", group=CHECKPOINTS,
         help="Where saved states are written. Default: the master says."),
    Flag(name="checkpoint-memory", metavar="MIB", group=CHECKPOINTS,
         help="The most shared memory for checkpoints. Default: what is free."),
    Flag(name="log-dir", metavar="DIR", group=OUTPUT, help="Where log files go. Default: none are written."),
    Flag(name="redirects", metavar="RANK:STD,...", group=OUTPUT, help="Only to files: 1 stdout, 2 stderr, 3 both."),
    Flag(name="tee", metavar="RANK:STD,...", group=OUTPUT, help="To files and to this output."),
    Flag(name="local-ranks-filter", metavar="LIST", group=OUTPUT, help="Show only these local ranks."),
    Flag(name="prefix", metavar="node|role|none", default="node", group=OUTPUT, help="What stands before each line."),
)
# fmt: on


def words(settings: AgentSettings) -> tuple[str, ...]:
    """The flags and the command that make an agent with these settings. The token is not among them."""
    said: dict[str, str | None] = {
        "master": settings.master,
        "fingerprint": settings.fingerprint,
        "job": settings.job,
        "node": settings.node,
        "incarnation": str(settings.incarnation),
        "address": settings.address,
        "container": "own" if settings.owns_container else "shared",
        "master-timeout": str(settings.reconnect.master_timeout),
        "slots": str(settings.slots),
        "python": settings.python,
        "role": settings.role,
        "seat": str(settings.seat),
        "tf-workers": ",".join(settings.tf_workers) or None,
        "tf-servers": ",".join(settings.tf_servers) or None,
        "spare-after": None if settings.spare_after is None else str(settings.spare_after),
        "run-id": settings.run_id or None,
        "max-restarts": None if settings.max_restarts is None else str(settings.max_restarts),
        "grace": str(settings.grace),
        "signals-to-handle": ",".join(number.name for number in settings.signals),
        "checkpoint-dir": settings.checkpoint.directory,
        "checkpoint-memory": _mebibytes_text(settings.checkpoint.memory_bytes),
        "log-dir": None if settings.log_dir is None else str(settings.log_dir),
        "redirects": _streams_text(settings.redirects),
        "tee": _streams_text(settings.tee),
        "local-ranks-filter": _ranks_text(settings.console_ranks),
        "prefix": settings.prefix.value,
    }
    flags = tuple(word for name, value in said.items() if value is not None for word in (f"--{name}", value))
    return (*flags, "--", *settings.command) if settings.command else flags


def settings(line: Sequence[str], environment: Mapping[str, str]) -> AgentSettings | None:
    """Read `shoal agent`'s words. None: help was asked for. Raises `BadInput`."""
    said = read(line, environment, FLAGS, PREFIX)
    if said.help:
        return None
    given = with_defaults(said.values, FLAGS)
    command = () if said.script is None else (said.script, *said.arguments)
    log_dir = _text(given, "log_dir")
    max_restarts = given.get("max_restarts")
    return AgentSettings(
        master=_needed(given, "master"),
        token=_token(environment),
        fingerprint=_fingerprint(given),
        job=_needed(given, "job"),
        node=_text(given, "node"),
        incarnation=as_int(given["incarnation"], at_least=1),
        slots=as_int(given["slots"], at_least=1),
        command=command,
        python=_text(given, "python") or training_python(environment, command),
        environment={name: value for name, value in environment.items() if not name.startswith(PREFIX)},
        host=socket.gethostname(),
        address=_needed(given, "address"),
        owns_container=as_choice(given["container"], ("own", "shared")) == "own",
        role=_needed(given, "role"),
        seat=as_int(given["seat"], at_least=0),
        tf_workers=as_list(given["tf_workers"]) if "tf_workers" in given else (),
        tf_servers=as_list(given["tf_servers"]) if "tf_servers" in given else (),
        spare_after=as_seconds(given["spare_after"]) if "spare_after" in given else None,
        run_id=_text(given, "run_id") or "",
        max_restarts=None if max_restarts is None else as_int(max_restarts, at_least=0),
        log_dir=None if log_dir is None else Path(log_dir),
        redirects=_streams(given.get("redirects")),
        tee=_streams(given.get("tee")),
        console_ranks=_ranks(given.get("local_ranks_filter")),
        prefix=PrefixStyle(as_choice(given["prefix"], tuple(PrefixStyle))),
        checkpoint=CheckpointSettings(
            directory=_text(given, "checkpoint_dir"),
            memory_bytes=as_mebibytes(given["checkpoint_memory"]) if "checkpoint_memory" in given else None,
        ),
        grace=as_seconds(given["grace"]),
        reconnect=ReconnectSettings(master_timeout=as_seconds(given["master_timeout"])),
        signals=as_signals(given["signals_to_handle"]),
    )


def training_python(environment: Mapping[str, str], command: Sequence[str] = ()) -> str:
    """The interpreter of training processes: torchrun's `PYTHON_EXEC`, else the one that the command begins with, else
    our own. An agent that was brought into a Pod has one of its own, which knows nothing of torch."""
    path = environment.get("PATH")
    if environment.get("PYTHON_EXEC"):
        return environment["PYTHON_EXEC"]
    if command and Path(command[0]).name.startswith("python"):
        return shutil.which(command[0], path=path) or command[0]
    is_brought = (Path(sys.prefix) / "bin" / "shoal").is_file() and sys.prefix == sys.base_prefix
    return (shutil.which("python3", path=path) if is_brought else None) or sys.executable


def main(line: Sequence[str]) -> int:
    """`shoal agent`. The exit code is the agent's."""
    made = settings(line, dict(os.environ))
    if made is None:
        from shoal.cli.help import print_help

        print_help("shoal agent [FLAGS] [-- COMMAND of a training process]", "One node of a job.", FLAGS)
        return 0
    import asyncio

    from shoal import agent

    return asyncio.run(agent.run(made))


def _text(given: Mapping[str, Given], key: str) -> str | None:
    return given[key].text if key in given else None


def _needed(given: Mapping[str, Given], key: str) -> str:
    if key not in given or not given[key].text:
        raise BadInput(f"shoal agent wants --{key.replace('_', '-')}")
    return given[key].text


def _fingerprint(given: Mapping[str, Given]) -> str | None:
    file = given.get("fingerprint_file")
    if "fingerprint" in given or file is None:
        return _text(given, "fingerprint")
    try:
        return Path(file.text).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as exc:
        raise BadInput(f"{file.source}: {file.text} cannot be read: {exc}") from exc


def _token(environment: Mapping[str, str]) -> str:
    if environment.get(TOKEN):
        return environment[TOKEN].strip()
    path = environment.get(TOKEN_FILE)
    if not path:
        raise BadInput(f"an agent wants the job's token in {TOKEN}, or in a file named by {TOKEN_FILE}")
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as exc:
        raise BadInput(f"{TOKEN_FILE}: {path} cannot be read: {exc}") from exc


def _streams_text(streams: Mapping[int, Streams] | None) -> str | None:
    return ",".join(f"{rank}:{int(std)}" for rank, std in sorted(streams.items())) if streams else None


def _streams(given: Given | None) -> dict[int, Streams] | None:
    if given is None:
        return None
    found = {}
    for part in as_list(given):
        rank, _, std = part.partition(":")
        if not rank.isdecimal() or std not in ("0", "1", "2", "3"):
            raise BadInput(f"{given.source} wants LOCAL_RANK:0-3 with commas, got {given.text!r}")
        found[int(rank)] = Streams(int(std))
    return found


def _mebibytes_text(nbytes: int | None) -> str | None:
    return None if nbytes is None else str(nbytes >> 20)


def _ranks_text(ranks: frozenset[int] | None) -> str | None:
    return None if ranks is None else ",".join(map(str, sorted(ranks)))


def _ranks(given: Given | None) -> frozenset[int] | None:
    if given is None:
        return None
    parts = as_list(given)
    if not all(part.isdecimal() for part in parts):
        raise BadInput(f"{given.source} wants local ranks with commas, got {given.text!r}")
    return frozenset(map(int, parts))
