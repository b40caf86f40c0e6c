"""A job's state in a Secret: what is particular to it. The contract of all stores is tests/stores."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from tests.core.job_builders import Story

from shoal.core import journal
from shoal.core.errors import StateUnavailable, StateUnreadable, Superseded
from shoal.master.clock import SystemClock
from shoal.master.keeper import Keeper
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.errors import Permission
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.objects import SECRETS, ObjectMeta, Secret
from shoal.platforms.kubernetes.store import LIMIT, SecretStore


@dataclass
class Place:
    client: Client
    server: FakeApiServer

    def store(self, term: int | None = None, holder: str | None = None) -> SecretStore:
        return SecretStore(self.client, namespace="default", name="j-state", term=term, holder=holder)

    async def secret(self) -> Secret:
        return await self.client.get(SECRETS, "j-state", namespace="default")


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with FakeApiServer() as server, Client(server.access()) as client:
        await client.create(SECRETS, Secret(metadata=ObjectMeta(name="j-state", namespace="default")))
        yield Place(client, server)


async def test_a_master_takes_the_term_it_was_given(place: Place) -> None:
    assert (await place.store(term=3).claim()).term == 3


async def test_a_master_of_an_older_term_is_refused_however_late_it_comes(place: Place) -> None:
    newer = place.store(term=3)
    await newer.claim()
    with pytest.raises(Superseded, match="master 3"):
        await place.store(term=2).claim()
    with pytest.raises(Superseded):
        await place.store(term=3).claim()
    await newer.compact(b"mine")


async def test_a_claim_whose_answer_was_lost_is_made_again(place: Place) -> None:
    await place.store(term=2, holder="pod-a").claim()
    again = await place.store(term=2, holder="pod-a").claim()
    assert again.term == 2


async def test_somebody_who_touches_the_secret_is_not_another_master(place: Place) -> None:
    store = place.store()
    await store.claim()
    await place.client.patch(SECRETS, "j-state", Merge({"metadata": {"labels": {"a": "b"}}}), namespace="default")
    await store.compact(b"all")
    assert (await place.store().claim()).records == (b"all",)


async def test_a_state_that_is_too_large_is_said_and_a_smaller_one_mends_it(place: Place) -> None:
    store = place.store()
    await store.claim()
    await store.compact(b"small")
    with pytest.raises(StateUnavailable, match=r"300 KiB.*takes 256"):
        await store.compact(os.urandom(300 * 1024))
    with pytest.raises(StateUnavailable, match="missing since"):
        await store.append(b"more")
    await store.compact(b"small again")
    await store.append(b"more")
    assert (await place.store().claim()).records == (b"small again", b"more")
    assert len((await place.secret()).data["state"]) < LIMIT


async def test_a_state_that_is_too_large_with_its_statistics_is_kept_without_them(place: Place) -> None:
    said: list[str | None] = []
    keeper = Keeper(place.store(), SystemClock(), changed=said.append)
    await keeper.claim()
    job = replace(Story(nodes=2).job, error=os.urandom(120 * 1024).hex(), statistics=os.urandom(160 * 1024))
    assert await keeper.keep(job)
    assert (said, keeper.trouble) == ([], None)
    kept = journal.replay((await place.store().claim()).records)
    assert kept == journal.kept(replace(job, statistics=b""))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param({"state": b"\x00garbage"}, "no state of a job", id="garbage"),
        pytest.param({"term": b"many"}, "term is no number", id="term"),
    ],
)
async def test_what_is_not_ours_is_left_as_it_is(place: Place, data: dict[str, bytes], said: str) -> None:
    await place.client.patch(SECRETS, "j-state", Merge({"data": data}), namespace="default")
    with pytest.raises(StateUnreadable, match=said):
        await place.store().claim()
    assert (await place.secret()).data == data


async def test_a_missing_secret_says_who_makes_it() -> None:
    async with FakeApiServer() as server, Client(server.access()) as client:
        with pytest.raises(StateUnreadable, match="the operator makes it"):
            await SecretStore(client, namespace="default", name="j-state").claim()


async def test_a_missing_permission_is_named() -> None:
    def allow(_: str, permission: Permission) -> bool:
        return permission.resource != "secrets"

    async with FakeApiServer(tokens={"t": "jane"}, allow=allow) as server, Client(server.access("t")) as client:
        with pytest.raises(StateUnreadable, match="lacks the permission to get secrets in namespace default"):
            await SecretStore(client, namespace="default", name="j-state").claim()
