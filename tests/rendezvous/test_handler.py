"""Handlers in this process against a real master: what torchrun's agent would see."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.rendezvous.masters import RunningMaster, StartMaster
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from shoal.core.view import JobPhase
from shoal.torch.rendezvous import ShoalRendezvous, create_handler

pytestmark = pytest.mark.torch

Node = Callable[..., ShoalRendezvous]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes handlers; closes those that a test leaves open."""
    made: list[ShoalRendezvous] = []

    def make(master: RunningMaster, **conf: Any) -> ShoalRendezvous:
        monkeypatch.setenv("SHOAL_TOKEN", conf.pop("token", master.token))
        params = RendezvousParameters(
            backend="shoal",
            endpoint=conf.pop("endpoint", master.endpoint),
            run_id=conf.pop("run_id", "none"),
            min_nodes=1,
            max_nodes=4,
            **conf,
        )
        handler = create_handler()(params)
        assert isinstance(handler, ShoalRendezvous)
        made.append(handler)
        return handler

    return make


async def rendezvous(*handlers: ShoalRendezvous) -> list[RendezvousInfo]:
    return await asyncio.gather(*(asyncio.to_thread(h.next_rendezvous) for h in handlers))


async def close(*handlers: ShoalRendezvous) -> list[bool]:
    return await asyncio.gather(*(asyncio.to_thread(h.shutdown) for h in handlers))


async def until(holds: Callable[[], bool]) -> None:
    """What a handler's thread learns cannot be awaited from here; torchrun's agent polls it too."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


async def test_all_members_get_the_same_world_and_store(start_master: StartMaster, node: Node) -> None:
    master = await start_master(awaited=3)
    handlers = [node(master) for _ in range(3)]
    infos = await rendezvous(*handlers)
    assert sorted(i.rank for i in infos) == [0, 1, 2]
    assert {i.world_size for i in infos} == {3}
    assert len({(i.bootstrap_store_info.master_addr, i.bootstrap_store_info.master_port) for i in infos}) == 1
    infos[0].store.set("greeting", "hello")
    assert [await asyncio.to_thread(i.store.get, "greeting") for i in infos] == [b"hello"] * 3
    assert [h.num_nodes_waiting() for h in handlers] == [0, 0, 0]
    assert await close(*handlers) == [True] * 3


async def test_the_job_succeeds_when_every_node_has(start_master: StartMaster, node: Node) -> None:
    master = await start_master(awaited=2)
    handlers = [node(master) for _ in range(2)]
    await rendezvous(*handlers)
    await close(*handlers)
    assert (await master.ended).phase is JobPhase.SUCCEEDED
    assert all(h.is_closed() for h in handlers)


async def test_a_newcomer_is_announced_and_gets_the_last_rank(start_master: StartMaster, node: Node) -> None:
    master = await start_master(awaited=1)
    old, new = node(master), node(master)
    [first] = await rendezvous(old)
    coming = asyncio.create_task(rendezvous(new))
    await until(lambda: old.num_nodes_waiting() > 0)
    [[second]], [joined] = await asyncio.gather(asyncio.gather(rendezvous(old)), coming)
    assert (second.rank, joined.rank) == (0, 1)
    assert second.world_size == joined.world_size == 2
    assert first.bootstrap_store_info.master_port != second.bootstrap_store_info.master_port
    assert old.num_nodes_waiting() == 0
    await close(old, new)


async def test_a_node_whose_processes_failed_brings_everybody_to_the_next_world(
    start_master: StartMaster, node: Node
) -> None:
    master = await start_master(awaited=2)
    failed, other = node(master), node(master)
    await rendezvous(failed, other)
    again = asyncio.create_task(rendezvous(failed))
    await until(lambda: other.num_nodes_waiting() > 0)
    infos = [*await rendezvous(other), *await again]
    assert {i.world_size for i in infos} == {2}
    await close(failed, other)


async def test_a_lost_node_is_noticed_before_its_peers_processes_fail(start_master: StartMaster, node: Node) -> None:
    master = await start_master(awaited=2)
    stays = node(master)
    coming = asyncio.create_task(rendezvous(stays))
    lost = subprocess.Popen(
        [sys.executable, "-c", ALONE, master.endpoint],
        env={**os.environ, "SHOAL_TOKEN": master.token},
        stdout=subprocess.PIPE,
    )
    try:
        [before] = await coming
        assert before.world_size == 2
        assert lost.stdout is not None
        await asyncio.to_thread(lost.stdout.readline)
    finally:
        lost.kill()
        lost.communicate()
    await until(lambda: stays.num_nodes_waiting() > 0)
    assert await master.says("its agent and its peers' connections closed")
    [after] = await rendezvous(stays)
    assert (after.rank, after.world_size) == (0, 1)
    await close(stays)


ALONE = """
import sys, time
from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from shoal.torch.rendezvous import create_handler
create_handler()(RendezvousParameters("shoal", sys.argv[1], "none", 1, 4)).next_rendezvous()
print("in a world", flush=True)
time.sleep(60)
"""


async def test_a_node_that_is_through_disturbs_nobody(start_master: StartMaster, node: Node) -> None:
    master = await start_master(awaited=2)
    through, trains = node(master), node(master)
    await rendezvous(through, trains)
    await close(through)
    await master.says("its processes ended well")
    await asyncio.sleep(1.2)  # longer than the master gives members that have lost a connection
    assert trains.num_nodes_waiting() == 0
    await close(trains)
    assert (await master.ended).phase is JobPhase.SUCCEEDED


async def test_waiting_in_the_store_ends_with_the_world(start_master: StartMaster, node: Node) -> None:
    master = await start_master(awaited=2)
    waits, leaves = node(master), node(master)
    infos = await rendezvous(waits, leaves)
    never = asyncio.create_task(asyncio.to_thread(infos[0].store.get, "never set"))
    again = asyncio.create_task(rendezvous(leaves))
    with pytest.raises(RuntimeError, match="the world has changed"):
        await never
    await asyncio.gather(again, rendezvous(waits))
    await close(waits, leaves)


async def test_a_node_out_of_restarts_fails_the_job(start_master: StartMaster, node: Node) -> None:
    master = await start_master(awaited=1)
    handler = node(master)
    await rendezvous(handler)

    def torchrun_fails() -> None:
        try:
            raise RuntimeError("train.py: exit 1")
        finally:
            handler.shutdown()

    with pytest.raises(RuntimeError, match="exit 1"):
        await asyncio.to_thread(torchrun_fails)
    view = await master.ended
    assert view.phase is JobPhase.FAILED
    assert view.error is not None
    assert "train.py: exit 1" in view.error


async def test_a_drained_node_ends_well(start_master: StartMaster, node: Node) -> None:
    master = await start_master(awaited=2)
    handlers = [node(master) for _ in range(2)]
    infos = await rendezvous(*handlers)
    stays, goes = sorted(handlers, key=lambda h: infos[handlers.index(h)].rank)
    master.master.scale(1, who="test")
    await until(lambda: all(h.num_nodes_waiting() > 0 for h in handlers))
    going = asyncio.create_task(asyncio.to_thread(exit_code_of, goes))
    [info] = await rendezvous(stays)
    assert info.world_size == 1
    assert await going == 0
    await master.says("it was drained")
    await close(stays)
    assert (await master.ended).phase is JobPhase.SUCCEEDED


def exit_code_of(handler: ShoalRendezvous) -> object:
    """As torchrun's agent and launcher do it: the exception goes out, the handler is shut down on its way."""
    try:
        try:
            handler.next_rendezvous()
        finally:
            handler.shutdown()
    except SystemExit as exc:
        return exc.code
    return None


async def test_a_stopped_job_closes_the_rendezvous(start_master: StartMaster, node: Node) -> None:
    master = await start_master(awaited=1)
    handler = node(master)
    await rendezvous(handler)
    master.master.stop("enough of it")
    await until(handler.is_closed)
    with pytest.raises(RendezvousClosedError, match="job mnist: enough of it"):
        handler.num_nodes_waiting()
    await close(handler)
    assert (await master.ended).phase is JobPhase.STOPPED


async def test_no_world_in_time_is_said_and_does_not_fail_the_job(start_master: StartMaster, node: Node) -> None:
    master = await start_master(nodes=(2, 4))
    handler = node(master, join_timeout=1)
    with pytest.raises(RendezvousTimeoutError, match="no world within 1 s"):
        await rendezvous(handler)
    await close(handler)
    await master.says("it left by itself")
    assert master.master.view().phase is JobPhase.STARTING


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        pytest.param({"token": "bW5pc3QuMGExYjJj" * 4}, "not this job's agent token", id="wrong-token"),
        pytest.param({"run_id": "imagenet"}, "master of job mnist, not of imagenet", id="another-job"),
        pytest.param({"nproc": 2}, "1 processes per node, this node 2", id="another-number-of-processes"),
    ],
)
async def test_a_refused_node_is_told_why(start_master: StartMaster, node: Node, conf: Any, said: str) -> None:
    master = await start_master()
    handler = node(master, **conf)
    with pytest.raises(RendezvousClosedError, match=said):
        await rendezvous(handler)
    await close(handler)


async def test_no_master_at_the_endpoint_is_given_up_after_a_while(
    start_master: StartMaster, node: Node, unused_tcp_port: int
) -> None:
    handler = node(await start_master(), endpoint=f"127.0.0.1:{unused_tcp_port}", master_timeout=1)
    with pytest.raises(RendezvousConnectionError, match="no master at"):
        await rendezvous(handler)
    assert await close(handler) == [True]
