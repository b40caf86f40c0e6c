"""Client and informer through a proxy that drops, repeats, delays, cuts and refuses."""

from pathlib import Path

import pytest
from tests.cluster.chaos import ROUGH, Chaos, Odds, chaos_in_a_thread
from tests.platforms.kubernetes.builders import QUICK_CLIENT, a_config
from tests.platforms.kubernetes.disorder import survive

from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.config import load
from shoal.platforms.kubernetes.errors import Unavailable
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.objects import CONFIG_MAPS


@pytest.mark.parametrize("seed", range(6))
async def test_a_cache_behind_a_bad_connection_ends_equal_to_the_server(seed: int) -> None:
    async with FakeApiServer(bookmark_seconds=0.05) as server, Client(server.access(), QUICK_CLIENT) as direct:
        async with Chaos(server.access(), seed=seed, odds=ROUGH) as chaos:
            await survive(chaos, direct, "default", seed=seed, steps=150)
        assert len(chaos.faults) > 8, chaos.faults


async def test_a_write_whose_answer_is_lost_is_said_to_be_unknown_and_was_done() -> None:
    async with FakeApiServer() as server, Chaos(server.access(), seed=1, odds=Odds(cut_after=1.0)) as chaos:
        async with Client(chaos.access(), QUICK_CLIENT) as client:
            with pytest.raises(Unavailable) as lost:
                await client.create(CONFIG_MAPS, a_config("a", "default"))
        assert lost.value.outcome_unknown
        assert [each["metadata"]["name"] for each in server.objects(CONFIG_MAPS)] == ["a"]


async def test_a_process_is_killed_right_after_the_write_that_was_named() -> None:
    killed: list[int] = []
    async with (
        FakeApiServer() as server,
        Chaos(server.access(), seed=1) as chaos,
        Client(chaos.access(), QUICK_CLIENT) as client,
    ):
        chaos.kill_after(2, lambda: killed.append(len(server.objects(CONFIG_MAPS))))
        for name in "abc":
            await client.create(CONFIG_MAPS, a_config(name, "default"))
    assert killed == [2]


async def test_in_the_dark_nothing_is_reached_and_afterwards_everything() -> None:
    async with (
        FakeApiServer() as server,
        Chaos(server.access(), seed=1) as chaos,
        Client(chaos.access(), QUICK_CLIENT) as client,
    ):
        chaos.dark()
        with pytest.raises(Unavailable):
            await client.list(CONFIG_MAPS)
        chaos.calm()
        assert (await client.list(CONFIG_MAPS)).items == ()


async def test_a_process_reaches_the_server_through_the_proxys_kubeconfig(tmp_path: Path) -> None:
    async with FakeApiServer(tokens={"t": "admin"}) as server:
        with chaos_in_a_thread(server.access("t"), seed=1) as chaos:
            access = load([chaos.write_kubeconfig(tmp_path / "config")], environment={})
            async with Client(access, QUICK_CLIENT) as client:
                await client.create(CONFIG_MAPS, a_config("a", "default"))
            assert chaos.writes == ["POST /api/v1/namespaces/default/configmaps"]
