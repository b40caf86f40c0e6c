"""The informer's loop: lists, watches, and what it does when either fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.platforms.kubernetes.builders import QUICK_CLIENT, QUICK_INFORMER, a_config, until

from shoal.platforms.kubernetes.cache import Added, Change, Removed, key_of
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.errors import Permission
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.informer import Informer
from shoal.platforms.kubernetes.objects import CONFIG_MAPS, ConfigMap


@asynccontextmanager
async def running(informer: Informer[Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(informer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled(), task.exception()


def names(informer: Informer[ConfigMap]) -> list[str]:
    return sorted(each.metadata.name for each in informer.all())


async def test_deletions_missed_while_the_version_was_compacted_are_found_by_the_next_list() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        other = Client(server.access(), QUICK_CLIENT)
        for name in "abc":
            await other.create(CONFIG_MAPS, a_config(name, "default"))
        informer = Informer(client, CONFIG_MAPS, settings=QUICK_INFORMER)
        changes: list[Change[ConfigMap]] = []
        async with running(informer):
            await informer.synced()
            informer.on_change(changes.append)
            shelf = server.store.shelf("", "v1", "configmaps")
            server.store.delete(shelf, ("default", "b"), {})  # in one go: no watch can see it in between
            server.store.create(shelf, "default", {"metadata": {"name": "d"}})
            server.compact()
            await until(lambda: names(informer) == ["a", "c", "d"])
        assert informer.lists == 2
        told = {type(change): change.object.metadata.name for change in changes}
        assert told == {Removed: "b", Added: "d"}
        await other.close()


async def test_bookmarks_carry_the_version_past_other_kinds_writes() -> None:
    async with FakeApiServer(bookmark_seconds=0.01) as server, Client(server.access(), QUICK_CLIENT) as client:
        settings = replace(QUICK_CLIENT, watch_seconds=1.0)  # watches are asked to end every second or sooner
        async with Client(server.access(), settings) as watcher:
            informer = Informer(watcher, CONFIG_MAPS, settings=QUICK_INFORMER)
            async with running(informer):
                await informer.synced()
                for _ in range(5):
                    server.store.create(
                        server.store.shelf("", "v1", "secrets"), "default", {"metadata": {"generateName": "s-"}}
                    )
                version = str(server.store.version)
                await until(lambda: informer.version == version)
                server.compact()
                watches = server.calls.count(("watch", "configmaps"))
                await until(lambda: server.calls.count(("watch", "configmaps")) > watches)
                await client.create(CONFIG_MAPS, a_config("a", "default"))
                await until(lambda: names(informer) == ["a"])
            assert informer.lists == 1  # nothing was missed, so nothing was listed again


async def test_a_forbidden_list_is_said_and_tried_again() -> None:
    allowed = False

    def allow(_user: str, _permission: Permission) -> bool:
        return allowed

    async with FakeApiServer(allow=allow) as server, Client(server.access(), QUICK_CLIENT) as client:
        informer = Informer(client, CONFIG_MAPS, settings=QUICK_INFORMER)
        heard: list[bool] = []
        informer.on_hearing(heard.append)
        async with running(informer):
            await until(lambda: informer.trouble is not None)
            assert informer.trouble is not None
            assert set(heard) == {False}
            assert "list configmaps cluster-wide" in informer.trouble
            assert not informer.has_synced
            assert informer.staleness() is None
            allowed = True
            await informer.synced()
            assert informer.trouble is None
            assert heard[-1]


async def test_a_lost_event_is_found_by_the_periodic_list() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        informer = Informer(client, CONFIG_MAPS, settings=replace(QUICK_INFORMER, relist_seconds=0.2))
        async with running(informer):
            await informer.synced()
            shelf = server.store.shelf("", "v1", "configmaps")
            server.store.create(shelf, "default", {"metadata": {"name": "a"}})
            shelf.history.clear()  # before any watch could tell
            await until(lambda: names(informer) == ["a"])


async def test_a_later_list_reads_only_what_is_not_known_yet() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        shelf = server.store.shelf("", "v1", "configmaps")
        for name in "abc":
            server.store.create(shelf, "default", {"metadata": {"name": name}})
        informer = Informer(client, CONFIG_MAPS, settings=replace(QUICK_INFORMER, relist_seconds=0.2))
        async with running(informer):
            await informer.synced()
            server.store.delete(shelf, ("default", "c"), {})
            server.store.update(shelf, ("default", "b"), {"metadata": {"name": "b"}, "data": {"x": "1"}}, None)
            server.store.create(shelf, "default", {"metadata": {"name": "d"}, "data": {"x": "2"}})
            shelf.history.clear()  # before any watch could tell
            await until(lambda: names(informer) == ["a", "b", "d"])
            fetched = server.calls.count(("list", "configmaps")) - informer.lists
            assert fetched >= 2, "b and d are not fetched each by itself"
            assert [each.data for each in sorted(informer.all(), key=key_of)] == [{}, {"x": "1"}, {"x": "2"}]


async def test_with_a_selector_what_we_write_is_held_to_it() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        informer = Informer(client, CONFIG_MAPS, namespace="default", labels="w=1", settings=QUICK_INFORMER)
        async with running(informer):
            await informer.synced()
            await client.create(CONFIG_MAPS, a_config("a", "default"))
            assert names(informer) == []
            for value, known in (("1", ["a"]), ("2", []), ("1", ["a"])):
                patch = Merge({"metadata": {"labels": {"w": value}}})
                await client.patch(CONFIG_MAPS, "a", patch, namespace="default")
                assert names(informer) == known


async def test_doubt_about_one_object_is_settled_by_asking() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        informer = Informer(client, CONFIG_MAPS, settings=QUICK_INFORMER)  # not running: it hears of nothing
        shelf = server.store.shelf("", "v1", "configmaps")
        server.store.create(shelf, "default", {"metadata": {"name": "a"}})
        assert informer.get("default", "a") is None
        assert await informer.refresh("default", "a") is not None
        assert names(informer) == ["a"]
        server.store.delete(shelf, ("default", "a"), {})
        assert await informer.refresh("default", "a") is None
        assert names(informer) == []


async def test_a_server_that_went_away_leaves_the_cache_as_it_was_and_stale() -> None:
    async with FakeApiServer() as server:
        client = Client(server.access(), QUICK_CLIENT)
        informer = Informer(client, CONFIG_MAPS, settings=QUICK_INFORMER)
        await client.create(CONFIG_MAPS, a_config("a", "default"))
        task = asyncio.create_task(informer.run())
        await informer.synced()
    await until(lambda: informer.trouble is not None)
    assert names(informer) == ["a"]
    first = informer.staleness()
    assert first is not None
    await until(lambda: (informer.staleness() or 0.0) > first)
    task.cancel()
    await asyncio.wait({task})
    await client.close()
