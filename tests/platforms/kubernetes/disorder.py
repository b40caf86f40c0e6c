"""A story to be told through a bad connection: a client writes, an informer watches, and in the end both are right."""

import asyncio
import random
from dataclasses import replace

from tests.cluster.chaos import Chaos
from tests.platforms.kubernetes.builders import QUICK_CLIENT, QUICK_INFORMER, until

from shoal.platforms.kubernetes.cache import Added, Change, Removed, Updated, by_label
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.errors import AlreadyExists, Conflict, NotFound, TooManyRequests, Unavailable
from shoal.platforms.kubernetes.informer import Informer
from shoal.platforms.kubernetes.objects import CONFIG_MAPS, ConfigMap

Replay = dict[str, str]
"""The objects by name, with a value each, as the told changes leave them."""


async def survive(chaos: Chaos, direct: Client, namespace: str, *, seed: int, steps: int) -> None:
    """`chaos` is the bad way to the server, `direct` the good one."""
    rng = random.Random(seed)
    settings = replace(QUICK_INFORMER, relist_seconds=0.5)
    replay: Replay = {}
    async with Client(chaos.access(), QUICK_CLIENT, rng=random.Random(seed)) as client:
        informer = Informer(
            client,
            CONFIG_MAPS,
            namespace=namespace,
            labels="chaos=1",
            indexers={"x": by_label("x")},
            settings=settings,
            rng=random.Random(seed),
        )
        informer.on_change(lambda change: told(replay, change))
        running = asyncio.create_task(informer.run())
        try:
            await informer.synced()
            for _ in range(steps):
                await one_step(client if rng.random() < 0.7 else direct, informer, namespace, rng)
            chaos.calm()
            true = await truth(direct, namespace)
            await until(lambda: versions(informer) == true)
            assert replay == true
            indexed = {found.metadata.name for value in "012" for found in informer.found("x", value)}
            assert indexed == set(true)
        finally:
            running.cancel()
            await asyncio.wait({running})


async def one_step(client: Client, informer: Informer[ConfigMap], namespace: str, rng: random.Random) -> None:
    """Write something somewhere. After a write that succeeded the cache is at least as new as its answer."""
    name, value = f"c{rng.randrange(6)}", str(rng.randrange(3))
    labels = {"chaos": rng.choice("1112"), "x": value}
    try:
        match rng.randrange(3):
            case 0:
                body = {"metadata": {"name": name, "namespace": namespace, "labels": labels}}
                done = await client.create(CONFIG_MAPS, body)
            case 1:
                patch = Merge({"metadata": {"labels": labels}, "data": {"n": str(rng.random())}})
                done = await client.patch(CONFIG_MAPS, name, patch, namespace=namespace)
            case _:
                await client.delete(CONFIG_MAPS, name, namespace=namespace)
                return
    except (AlreadyExists, NotFound, Conflict, TooManyRequests, Unavailable):
        return
    known = informer.get(namespace, name)
    if known is not None and client is informer.client:
        assert int(known.metadata.resource_version) >= int(done.metadata.resource_version)


def told(replay: Replay, change: Change[ConfigMap]) -> None:
    """Each change fits what was told before: nothing is added twice, nothing unknown changes or goes."""
    name, version = change.object.metadata.name, change.object.metadata.resource_version
    match change:
        case Added():
            assert name not in replay
            replay[name] = version
        case Updated(before=before):
            assert replay[name] == before.metadata.resource_version
            replay[name] = version
        case Removed():
            assert replay.pop(name) == version


async def truth(client: Client, namespace: str) -> dict[str, str]:
    listing = await client.list(CONFIG_MAPS, namespace=namespace, labels="chaos=1")
    return {each.metadata.name: each.metadata.resource_version for each in listing.items}


def versions(informer: Informer[ConfigMap]) -> dict[str, str]:
    return {each.metadata.name: each.metadata.resource_version for each in informer.all()}
