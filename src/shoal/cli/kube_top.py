"""`shoal top` for a job in a cluster: from its status, which its master writes twice a minute."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import yaml

from shoal.api.elasticjob import ElasticJob
from shoal.cli.kube_jobs import Cluster
from shoal.cli.text import clean
from shoal.core.errors import ShoalError
from shoal.core.figures import JobFigures
from shoal.core.view import ENDED
from shoal.platforms.kubernetes.errors import NotFound, Unavailable
from shoal.platforms.kubernetes.figures import heard
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS

EVERY_SECONDS = 5.0


def top(name: str, *, once: bool, output: str, node: str | None) -> Callable[[Cluster], Awaitable[None]]:
    async def do(cluster: Cluster) -> None:
        found = await look(cluster, name, node)
        if output == "json":
            print(json.dumps(msgspec.to_builtins(found), indent=2))
        elif output == "yaml":
            print(yaml.safe_dump(msgspec.to_builtins(found), sort_keys=False, allow_unicode=True), end="")
        else:
            await _show(cluster, name, node, found, once=once)

    return do


async def _show(cluster: Cluster, name: str, node: str | None, found: JobFigures, *, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from shoal.cli.top import FIXED_LINES, picture, print_once

    console = Console(highlight=False)
    if once or not console.is_terminal:
        print_once(found, now=datetime.now(UTC))
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            room = max(3, console.height - FIXED_LINES)
            live.update(picture(found, room=room, now=datetime.now(UTC)), refresh=True)
            if found.phase in ENDED:
                return
            await asyncio.sleep(EVERY_SECONDS)
            with suppress(Unavailable):
                found = await look(cluster, name, node)


async def look(cluster: Cluster, name: str, node: str | None) -> JobFigures:
    """What the job's status tells. Raises `ShoalError` when that is nothing, with the reason."""
    try:
        job = msgspec.convert(await cluster.client.get(ELASTIC_JOBS, name, namespace=cluster.namespace), ElasticJob)
    except NotFound as exc:
        raise ShoalError(f"no ElasticJob named {clean(name)} in namespace {cluster.namespace}") from exc
    except msgspec.ValidationError as exc:
        raise ShoalError(f"job {clean(name)}: it is not as this release of Shoal knows jobs: {exc}") from exc
    training = job.status.training if job.status is not None else None
    found = None if training is None else heard(name, training)
    if found is None:
        raise ShoalError(
            f"job {clean(name)} has told no figures yet: its master does half a minute after it began; "
            f"`shoal why {clean(name)}` tells what it waits for"
        )
    if node is None:
        return found
    listed = tuple(each for each in found.nodes if each.node == node)
    if not listed:
        known = ", ".join(each.node for each in found.nodes) or "none"
        raise ShoalError(f"job {clean(name)} tells nothing of a node named {clean(node)}; it does of: {known}")
    return replace(found, nodes=listed)
