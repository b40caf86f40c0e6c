"""What may change in a job that has begun: its bounds, its budgets, its limits.

Its name, its command and where its checkpoints go may not. How many processes a node has may only while there is no
node: those that are there have as many as they were started with. The same for the micro-batches of a step: all members
must count alike, so a higher maximum of nodes makes no larger batch of a job that trains.
"""

import sys
from dataclasses import replace

from shoal.core.job.servers import settings_of
from shoal.core.job.values import Job, JobSettings, JobSpec, PSSpec
from shoal.core.world import WorldSettings

_WORDS = {
    "min_nodes": "at least {} nodes",
    "max_nodes": "at most {} nodes",
    "node_unit": "nodes in units of {}",
    "max_restarts": "{} restarts for each seat",
    "memory_limit": "at most {} MiB of memory for all nodes",
    "nproc": "{} processes per node",
    "global_batch": "{} micro-batches in a step",
    "fills_grant": "its master launches its nodes: {}",
    "sizing": "it sizes itself within other limits",
    "ps": "{0.min_servers} to {0.max_servers} parameter servers",
}
_NONE = {
    "sizing": "it does not size itself",
    "memory_limit": "no limit of memory",
    "global_batch": "as many micro-batches in a step as there can be processes",
}


def world_settings(spec: JobSpec, settings: JobSettings) -> WorldSettings:
    return WorldSettings(
        min_nodes=spec.min_nodes,
        # Where the platform decides how many there are, its grant is the limit, and may grow beyond what was said.
        max_nodes=sys.maxsize if spec.platform_grows else spec.max_nodes,
        node_unit=spec.node_unit,
        last_call=settings.last_call,
    )


def following(job: Job, asked: JobSpec) -> JobSpec:
    """The job's spec when this is what is asked for now."""
    has_nodes = any(node.is_live for node in job.nodes.values())
    return replace(
        job.spec,
        min_nodes=asked.min_nodes,
        max_nodes=asked.max_nodes,
        node_unit=asked.node_unit,
        max_restarts=asked.max_restarts,
        memory_limit=asked.memory_limit,
        nproc=job.spec.nproc if has_nodes else asked.nproc,
        global_batch=_batch(job.spec, asked) if has_nodes else asked.global_batch,
        fills_grant=asked.fills_grant,
        sizing=asked.sizing,
        ps=_servers(job.spec.ps, asked.ps),
    )


def _servers(ps: PSSpec | None, asked: PSSpec | None) -> PSSpec | None:
    """The bounds may change; whether there are parameter servers at all, and all else about them, may not."""
    if ps is None or asked is None:
        return ps
    low, high = asked.min_servers, asked.max_servers
    first = None if ps.servers is None else min(max(ps.servers, low), high)
    return replace(ps, min_servers=low, max_servers=high, servers=first)


def _batch(spec: JobSpec, asked: JobSpec) -> int | None:
    """What keeps the steps of a job that trains as they are."""
    return spec.global_batch if asked.max_nodes == spec.max_nodes else spec.micro_batches


def respecified(job: Job, asked: JobSpec) -> Job:
    """The job as it goes on with what is asked for now. What seats have spent of their budgets stays spent."""
    spec = following(job, asked)
    if spec == job.spec:
        return job
    m = job.servers
    return replace(
        job,
        spec=spec,
        servers=None if m is None else replace(m, settings=settings_of(spec, job.settings)),
        rendezvous=replace(job.rendezvous, settings=world_settings(spec, job.settings)),
        budgets={seat: replace(budget, limit=spec.max_restarts) for seat, budget in job.budgets.items()},
    )


def difference(before: JobSpec, after: JobSpec) -> str:
    """What has changed, in words."""
    changed = [name for name in _WORDS if getattr(before, name) != getattr(after, name)]
    said = {name: getattr(after, name) for name in changed}
    return ", ".join(_NONE[name] if value is None else _WORDS[name].format(value) for name, value in said.items())
