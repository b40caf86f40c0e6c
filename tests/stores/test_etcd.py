"""The etcd store beyond the contract: what it says when etcd is not there, or holds something else."""

import asyncio
import base64
import json
import urllib.request

import aiohttp
import pytest
from aiohttp import web

from shoal.core.errors import BadInput, StateUnavailable, StateUnreadable, Superseded
from shoal.stores.etcd import EtcdStore


def put(etcd: str, key: str, value: str) -> None:
    body = {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value.encode()).decode()}
    with urllib.request.urlopen(f"{etcd}/v3/kv/put", data=json.dumps(body).encode()) as answer:
        answer.read()


def delete(etcd: str, key: str) -> None:
    body = {"key": base64.b64encode(key.encode()).decode()}
    with urllib.request.urlopen(f"{etcd}/v3/kv/deleterange", data=json.dumps(body).encode()) as answer:
        answer.read()


async def test_many_masters_claim_at_once_and_each_has_a_term_of_its_own(etcd: str) -> None:
    stores = [EtcdStore(etcd, prefix="/many") for _ in range(8)]
    terms = [claimed.term for claimed in await asyncio.gather(*(store.claim() for store in stores))]
    assert sorted(terms) == list(range(1, 9))
    newest = stores[terms.index(8)]
    await newest.append(b"mine")
    for store in stores:
        if store is not newest:
            with pytest.raises(Superseded, match=r"was superseded by 8"):
                await store.append(b"not mine")
        await store.close()


async def test_jobs_with_names_that_begin_alike_do_not_see_each_other(etcd: str) -> None:
    one, other = EtcdStore(etcd, prefix="/jobs/a"), EtcdStore(etcd, prefix="/jobs/a0")
    await one.claim()
    await other.claim()
    await other.append(b"other")
    await one.append(b"one")
    await one.compact(b"all of one")
    again = EtcdStore(etcd, prefix="/jobs/a0")
    assert (await again.claim()).records == (b"other",)
    for store in (one, other, again):
        await store.close()


async def test_a_record_that_etcd_does_not_take_is_said_and_mended_by_a_snapshot(etcd: str) -> None:
    store = EtcdStore(etcd, prefix="/large")
    await store.claim()
    with pytest.raises(StateUnavailable, match="too large"):
        await store.append(b"x" * 2_000_000)
    with pytest.raises(StateUnavailable, match="missing"):
        await store.append(b"small")
    await store.compact(b"small")
    await store.append(b"more")
    await store.close()
    again = EtcdStore(etcd, prefix="/large")
    assert (await again.claim()).records == (b"small", b"more")
    await again.close()


async def test_a_term_that_is_no_number_is_left_alone(etcd: str) -> None:
    put(etcd, "/foreign/term", "poem")
    store = EtcdStore(etcd, prefix="/foreign")
    with pytest.raises(StateUnreadable, match="is no number"):
        await store.claim()
    await store.close()


@pytest.mark.parametrize("term", [None, "poem"], ids=["gone", "no-number"])
async def test_records_without_a_readable_term_are_taken_over(etcd: str, term: str | None) -> None:
    prefix = f"/lost-term/{term}"
    first = EtcdStore(etcd, prefix=prefix)
    for _ in range(3):
        await first.claim()
    await first.append(b"one")
    delete(etcd, f"{prefix}/term")
    if term is not None:
        put(etcd, f"{prefix}/term", term)
    second = EtcdStore(etcd, prefix=prefix)
    claimed = await second.claim()
    assert (claimed.term, claimed.records) == (1, (b"one",))
    await second.raise_term(4)
    with pytest.raises(Superseded):
        await first.append(b"late")
    for store in (first, second):
        await store.close()


async def test_no_etcd_is_said() -> None:
    store = EtcdStore("http://127.0.0.1:9", prefix="/x")
    with pytest.raises(StateUnavailable, match=r"etcd at http://127.0.0.1:9/x does not answer"):
        await store.claim()
    await store.close()


@pytest.mark.parametrize("where", ["etcd://", "etcd://host:1", "etcd://host:1/", "http://host:1/x"])
def test_an_address_that_is_none_is_refused(where: str) -> None:
    with pytest.raises(BadInput, match="etcd://HOST:PORT/PREFIX"):
        EtcdStore.at(where)


class SlowRoad:
    """A proxy before etcd. One message is held up, and arrives later, whoever still waits for its answer."""

    def __init__(self, etcd: str) -> None:
        self._etcd = etcd
        self._is_next_held = False
        self._release = asyncio.Event()
        self._held: asyncio.Task[tuple[int, bytes]] | None = None

    def hold_next(self) -> None:
        self._is_next_held = True

    async def release(self) -> None:
        """Let it arrive, and wait until it has."""
        assert self._held is not None
        self._release.set()
        await self._held

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._pass)
        self._session = aiohttp.ClientSession()
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _pass(self, request: web.Request) -> web.Response:
        body = await request.read()
        held, self._is_next_held = self._is_next_held, False
        task = asyncio.create_task(self._forward(request.path, body, held=held))
        if held:
            self._held = task
        status, said = await asyncio.shield(task)
        return web.Response(status=status, body=said, content_type="application/json")

    async def _forward(self, path: str, body: bytes, *, held: bool) -> tuple[int, bytes]:
        if held:
            await self._release.wait()
        async with self._session.post(f"{self._etcd}{path}", data=body) as answer:
            return answer.status, await answer.read()


@pytest.mark.parametrize("late_first", [False, True], ids=["after-it", "before-it"])
async def test_a_write_that_was_given_up_does_not_come_after_the_one_that_took_its_place(
    etcd: str, late_first: bool
) -> None:
    road = SlowRoad(etcd)
    async with road as slow:
        hasty = EtcdStore(slow, prefix=f"/late/{late_first}", timeout=0.5)
        await hasty.claim()
        await hasty.compact(b"snapshot-0")
        road.hold_next()
        with pytest.raises(StateUnavailable, match="does not answer"):
            await hasty.append(b"change-1")
        if late_first:
            await road.release()
        await hasty.compact(b"snapshot-2")
        await road.release()
        again = EtcdStore(etcd, prefix=f"/late/{late_first}")
        assert (await again.claim()).records == (b"snapshot-2",)
        await again.close()
        await hasty.close()
