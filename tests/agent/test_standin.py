"""An agent speaks for a script that only reads TF_CONFIG, and stops and starts its process for each version."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.real_agents import Agents
from tests.agent.small_master import a_master

from shoal.agent.standin import Halt, Launch, Say, StandIn, is_free
from shoal.core.nodes import NodeId, Role
from shoal.core.ps.cluster import Fresh, PSCluster, PSServer
from shoal.core.ps.words import Drain, Drained, Go, ModelNamed, PreparedPS, PreparePS, Resumed, ServerReady, ToNode
from shoal.wire.messages import Exited, PSSaid, PSTold

SERVERS, WORKERS = ("127.0.0.1:7001", "127.0.0.1:7002"), ("127.0.0.1:7101", "127.0.0.1:7102")
SCRIPT = """
import json, os, time
config = json.loads(os.environ["TF_CONFIG"])
print("begins with", config["cluster"]["ps"], config["task"], flush=True)
time.sleep(600)
"""


def a_cluster(version: int, *addresses: str) -> PSCluster:
    servers = tuple(PSServer(rank=n, node=NodeId(f"ps-{n}"), address=at) for n, at in enumerate(addresses))
    return PSCluster(version=version, servers=servers, partitions=(), placement=(), source=Fresh())


def a_worker() -> StandIn:
    return StandIn(Role.WORKER, seat=1, servers=SERVERS, workers=WORKERS)


async def test_the_process_is_started_again_with_the_servers_of_each_version(agents: Agents) -> None:
    settings = {"node": "worker-1", "seat": 1, "tf_servers": SERVERS, "tf_workers": WORKERS}
    words: list[ToNode] = [
        PreparePS(cluster=a_cluster(1, SERVERS[0]), chief="worker-0"),
        Go(version=1, chief="worker-0"),
        PreparePS(cluster=a_cluster(2, *SERVERS), chief="worker-0"),
        Drain(version=1, barrier=5, reason="more servers"),
        Go(version=2, chief="worker-0"),
    ]
    async with a_master(sdk=True) as master:
        agents.start(master, SCRIPT, **settings)
        assert isinstance((await master.hear(PSSaid)).word, ModelNamed)
        for word in words[:2]:
            master.say("worker-1", PSTold(word=word))
        await agents.logged(f"begins with ['{SERVERS[0]}'] {{'type': 'worker', 'index': 1}}", node="worker-1")
        for word in words[2:]:
            master.say("worker-1", PSTold(word=word))
        await agents.logged(f"begins with {list(SERVERS)}", node="worker-1")
        said = [each.word for each in master.all(PSSaid)[1:]]
        assert said == [PreparedPS(version=1), Resumed(version=1), PreparedPS(version=2),
                        Drained(barrier=5, step=0), Resumed(version=2)]  # fmt: skip
        assert not master.all(Exited)  # we stopped it


async def test_a_worker_starts_when_its_address_is_free_and_says_so_while_it_is_not(
    agents: Agents, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder, open(tmp_path / "said", "w") as said:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        settings = {"seat": 0, "tf_servers": SERVERS, "tf_workers": (address,), "fds": (1, said.fileno())}
        async with a_master(sdk=True) as master:
            agents.start(master, SCRIPT, **settings)  # type: ignore[arg-type]
            await master.hear(PSSaid)
            master.say("worker-0", PSTold(word=PreparePS(cluster=a_cluster(1, SERVERS[0]), chief="worker-0")))
            master.say("worker-0", PSTold(word=Go(version=1, chief="worker-0")))
            await master.hear(PSSaid, nth=3)
            await master.until(lambda: f"{address} is in use" in (tmp_path / "said").read_text())
            assert not agents.log()
            holder.close()
            await agents.logged("begins with")
            assert not master.all(Exited)


@pytest.mark.parametrize(
    ("leads_to", "free"),
    [
        pytest.param(["127.0.0.1"], True, id="here"),
        pytest.param(["127.0.0.1", "192.0.2.1"], False, id="here-and-to-who-had-it-before"),
        pytest.param(["192.0.2.1"], False, id="elsewhere"),
        pytest.param([], False, id="nowhere-yet"),
    ],
)
def test_a_name_is_free_when_it_leads_here_and_nowhere_else_and_nobody_listens(leads_to: list[str], free: bool) -> None:
    def lookup(_: str, port: int, *, type: int) -> list[Any]:
        if not leads_to:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, type, 0, "", (host, port)) for host in leads_to]

    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"ps-0.mnist-members:{holder.getsockname()[1]}"
        assert not is_free(address, lookup)
    assert is_free(address, lookup) is free


def test_a_server_knows_all_that_there_can_be_and_itself() -> None:
    server = StandIn(Role.PS, seat=1, servers=SERVERS, workers=WORKERS)
    assert server.standing == ServerReady(address=SERVERS[1])
    assert json.loads(server.tf_config()) == {
        "cluster": {"ps": list(SERVERS), "worker": list(WORKERS)},
        "task": {"type": "ps", "index": 1},
    }


@given(st.lists(st.sampled_from(["prepare", "drain", "go", "halted", "renewed"]), max_size=40))
def test_it_is_never_drained_while_its_process_may_run_nor_launched_twice(happenings: list[str]) -> None:
    worker, runs, stops, version, barrier = a_worker(), False, False, 0, 0
    for happening in happenings:
        match happening:
            case "prepare":
                version += 1
                acts = worker.told(PreparePS(cluster=a_cluster(version, *SERVERS), chief="worker-0"))
            case "drain":
                barrier += 1
                acts = worker.told(Drain(version=version, barrier=barrier, reason=""))
            case "go":
                acts = worker.told(Go(version=version, chief="worker-0"))
            case "halted":
                if not stops:
                    continue
                runs = stops = False
                acts = worker.halted()
            case _:
                runs = stops = False
                acts = worker.renewed()
        for act in acts:
            match act:
                case Launch():
                    assert not runs
                    runs = True
                    assert json.loads(worker.tf_config())["task"] == {"type": "worker", "index": 1}
                case Halt():
                    assert runs
                    assert not stops
                    stops = True
                case Say(word=Drained(barrier=at)):
                    assert not runs
                    assert at == barrier
                case Say():
                    pass
