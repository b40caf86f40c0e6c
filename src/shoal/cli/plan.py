"""What `shoal run` starts, as values: the job, its patience, its places on this machine, its nodes' settings. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from shoal.agent.settings import AgentSettings, CheckpointSettings, ReconnectSettings, Streams
from shoal.api.jobspec import own_directory
from shoal.cli import devices
from shoal.cli.devices import Share
from shoal.cli.invocation import Alone, HostEndpoint
from shoal.cli.torchrun import Address, RunOptions, Servers, Std
from shoal.core.facts import counts_only
from shoal.core.hang import HangSettings
from shoal.core.job import JobSettings, JobSpec, PSSpec
from shoal.core.job.values import SelfSizing
from shoal.core.nodes import Role
from shoal.core.saving import CheckpointSpec

OWNER_WAIT = 60.0
"""Seconds a node waits for the owner of its endpoint to appear, as long as an agent waits for its master."""
SPARE_AFTER = 10.0
"""Seconds after a parameter server serves until a process is started that waits to take its place: until then its own
start and that of the others, which wait for it, have the machine."""
NEVER = timedelta(days=36500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A job to be hosted here."""

    spec: JobSpec
    settings: JobSettings
    shares: tuple[Share, ...]
    """What each place on this machine has; a node's seat chooses."""
    nodes: int
    """Local nodes to start now."""
    awaited_joins: int
    """Nodes of other invocations that the first world waits for."""


def plan(
    what: Alone | HostEndpoint, options: RunOptions, *, name: str, uid: str, machine: devices.Machine, python: str
) -> Plan:
    nodes = what.agents if isinstance(what, Alone) else 1
    seats = options.max_nodes if isinstance(what, Alone) else 1
    shared_by = seats if options.autoscale else nodes
    shares = devices.split(machine, nproc=options.nproc, nodes=shared_by, seats=seats)
    assert options.program is not None
    checkpoint = _checkpoint(options, name, uid)
    spec = JobSpec(
        name=name,
        uid=uid,
        min_nodes=options.min_nodes,
        max_nodes=options.max_nodes,
        nproc=shares[0].nproc,
        node_unit=options.node_unit,
        max_restarts=options.max_restarts,
        command=options.program.command(python),
        checkpoint=checkpoint,
        ps=None if options.servers is None else _servers(options.servers, checkpoint.directory),
        sizing=SelfSizing() if options.autoscale else None,
    )
    awaited = max(0, options.min_nodes - nodes) if isinstance(what, Alone) else options.max_nodes - nodes
    return Plan(spec=spec, settings=job_settings(options), shares=shares, nodes=nodes, awaited_joins=awaited)


def _checkpoint(options: RunOptions, name: str, uid: str) -> CheckpointSpec:
    """A job with parameter servers has a directory of its own in the one that was given."""
    spec = CheckpointSpec(directory=options.checkpoint_dir, keep=options.keep, replica=options.checkpoint_replica)
    if options.servers is None:
        return spec
    own = None if options.checkpoint_dir is None else own_directory(options.checkpoint_dir, name, uid)
    servers = options.servers
    return replace(spec, directory=own, seconds=servers.checkpoint_seconds, fuzzy=servers.checkpoint_fuzzy)


def _servers(servers: Servers, directory: str | None) -> PSSpec:
    return PSSpec(
        min_servers=servers.min, max_servers=servers.max, evaluator=servers.evaluator, checkpoint_dir=directory
    )


def job_settings(options: RunOptions) -> JobSettings:
    settings = JobSettings(
        last_call=timedelta(seconds=options.last_call),
        grace=timedelta(seconds=options.grace),
        hang=HangSettings(timeout=_hang_timeout(options.hang_timeout)),
        optimizer=counts_only(),
    ).sized_every(options.autoscale_seconds)
    if options.pending_timeout is None:
        return settings
    return replace(settings, pending_timeout=timedelta(seconds=options.pending_timeout))


def _hang_timeout(seconds: float | None) -> timedelta | None:
    if seconds is None:
        return None
    return timedelta(seconds=seconds) if seconds else NEVER


def node_settings(
    options: RunOptions,
    *,
    job: str,
    nproc: int,
    master: str,
    token: str,
    fingerprint: str | None,
    address: str,
    log_dir: Path | None,
    python: str,
    host: str,
    environment: Mapping[str, str],
    checkpoint_dir: str | None = None,
) -> AgentSettings:
    """The settings that all nodes of this invocation share. The name of a node and its command come later.

    `checkpoint_dir`: only where it is not the job's, which the master tells."""
    hidden = {rank: options.redirects.of(rank) & ~options.tee.of(rank) & Std.ALL for rank in range(nproc)}
    return AgentSettings(
        master=re.sub(r"^http", "ws", master),
        token=token,
        fingerprint=fingerprint,
        job=job,
        slots=nproc,
        command=options.program.command(python) if options.program is not None else (),
        python=python,
        environment=environment,
        host=host,
        address=address,
        role=options.role,
        spare_after=SPARE_AFTER if options.servers is not None and options.servers.spare else None,
        run_id=options.run_id if options.run_id != "none" else job,
        log_dir=log_dir,
        redirects={rank: Streams(int(std)) for rank, std in hidden.items()} if any(hidden.values()) else None,
        tee={rank: Streams.BOTH & ~Streams(int(std)) for rank, std in hidden.items()} if any(hidden.values()) else None,
        console_ranks=options.local_ranks,
        checkpoint=CheckpointSettings(
            directory=checkpoint_dir,
            memory_bytes=options.checkpoint_memory,
        ),
        grace=options.grace,
        signals=options.signals,
        reconnect=ReconnectSettings(master_timeout=options.pending_timeout or OWNER_WAIT),
    )


def node_environment(spec: JobSpec, role: Role) -> dict[str, str]:
    """What the processes of a node are told by their environment: in a job with parameter servers, what they are."""
    if spec.ps is None:
        return {}
    directory = spec.ps.checkpoint_dir
    return {"SHOAL_ROLE": role.value, **({} if directory is None else {"SHOAL_CHECKPOINT_DIR": directory})}


def usual_environment(spec: JobSpec) -> dict[str, str]:
    """What processes of this job have in their environment if the user has not said otherwise: TensorFlow's lines of
    level INFO and WARNING drown what the job itself prints, and each change of the servers makes more of them: steps
    that are rehearsed, connections that end."""
    return {} if spec.ps is None else {"TF_CPP_MIN_LOG_LEVEL": "2"}


def open_ports_line(interfaces: Sequence[str]) -> str:
    """What somebody must know before TensorFlow runs on a machine with these interfaces."""
    return (
        "TensorFlow listens on all interfaces of this machine, without a password and without encryption "
        f"({', '.join(interfaces)}): whoever reaches its ports can read and write the model and files as you; "
        "use a firewall, or a network you trust"
    )


def default_name(stem: str, suffix: str) -> str:
    """`train-3fa2` from the script's name: what a directory and a label can be."""
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:30].strip("-")
    return f"{slug or 'job'}-{suffix}"


def endpoint_name(options: RunOptions) -> str:
    """The name that all invocations at one endpoint come to by themselves: from `--name` or `--rdzv-id`."""
    if options.name is not None:
        return options.name
    run_id = options.run_id if options.run_id != "none" else ""
    assert options.endpoint is not None
    return default_name(run_id or "job", str(options.endpoint.port))


def join_lines(master: Address, *, fingerprint: str, token_file: str, nproc: int) -> tuple[str, ...]:
    """What to type elsewhere. The token is in a file, never in the line."""
    size = f" --nproc-per-node {nproc}" if nproc != 1 else ""
    return (
        "to join from another machine or shell:",
        f"  SHOAL_TOKEN=$(cat {shlex.quote(token_file)}) shoal run --join {master} --fingerprint {fingerprint}{size}",
        "  (elsewhere: copy that file there first, readable by you only, and give it with --token-file)",
    )
