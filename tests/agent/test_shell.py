"""Whole agents with real training processes, against a master that really forms worlds."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from tests.agent.real_agents import LINK, Agents
from tests.agent.small_master import SmallMaster, a_master

from shoal.agent.settings import ReconnectSettings, Streams
from shoal.wire.messages import (
    Ack,
    Exited,
    Finished,
    Heartbeat,
    Kill,
    Leave,
    Left,
    Pause,
    PeerClosed,
    Progress,
    Ready,
    Resized,
    Stop,
    StoreSet,
    Succeeded,
)

FOREVER = "import time; print('up', flush=True)\nwhile True: time.sleep(60)"


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while is_alive(pid):
            await asyncio.sleep(0.01)


# Plain scripts -------------------------------------------------------------------------------------------


async def test_a_plain_script_gets_torchruns_environment_and_its_success_is_told(
    master: SmallMaster, agents: Agents
) -> None:
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    code = await agents.start(master, script, slots=2, environment={**os.environ, "SHOAL_TOKEN": "secret"})
    assert code == 0
    assert master.all(Ready)[0] == Ready(incarnation=1, steps=(None, None), sdk=False)
    assert master.all(Succeeded) == [Succeeded(incarnation=1)]
    address = master.all(Ack)[0].store["plain/store"].decode()
    for rank in (0, 1):
        env = json.loads(agents.log(rank=rank))
        assert "SHOAL_TOKEN" not in env
        wanted = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "ROLE_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "ROLE_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": address.rpartition(":")[2],
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_RUN_ID": "mnist",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "PYTHONUNBUFFERED": "1",
            "SHOAL_JOB": "mnist",
            "SHOAL_NODE": "worker-0",
        }
        assert {name: env.get(name) for name in wanted} == wanted


async def test_a_failed_plain_process_stops_the_others_and_the_node_starts_again_as_the_next_incarnation(
    master: SmallMaster, agents: Agents
) -> None:
    script = """
import os, time, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["LOCAL_RANK"] == "1":
        raise ValueError("no such dataset")
    time.sleep(60)
"""
    assert await agents.start(master, script, slots=2) == 0
    exited = master.all(Exited)
    assert [(e.incarnation, e.local_rank, e.code) for e in exited] == [(1, 1, 1)]
    assert exited[0].error is not None
    assert exited[0].error.startswith("Traceback")
    assert exited[0].error.endswith("ValueError: no such dataset")
    assert [r.incarnation for r in master.all(Ready)] == [1, 2]
    assert master.all(Succeeded) == [Succeeded(incarnation=2)]


async def test_a_newcomer_makes_plain_processes_start_again_in_the_larger_world(agents: Agents) -> None:
    script = """
import os, signal, sys, time
print("size", os.environ["WORLD_SIZE"], os.environ["RANK"], os.environ["MASTER_PORT"], flush=True)
while os.environ["WORLD_SIZE"] == "1": time.sleep(60)
"""
    async with a_master(nodes=1) as master:
        master.rendezvous = type(master.rendezvous)(
            settings=type(master.rendezvous.settings)(min_nodes=1, max_nodes=2),
            members=master.rendezvous.members,
            unsettled=master.rendezvous.unsettled,
        )
        first = agents.start(master, script)
        await agents.logged("size 1 0")
        master.expect("worker-1")
        second = agents.start(master, script, node="worker-1")
        assert await asyncio.gather(first, second) == [0, 0]
    one, other = agents.log().splitlines()[-1], agents.log(node="worker-1").splitlines()[-1]
    assert one.split()[:3] == ["size", "2", "0"]
    assert other.split()[:3] == ["size", "2", "1"]
    assert one.split()[3] == other.split()[3]
    assert not master.all(Exited)


async def test_torchs_error_file_is_reported(master: SmallMaster, agents: Agents) -> None:
    master.restarts = False
    script = """
import json, os, sys
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "E", "extraInfo": {"py_callstack": "Traceback: the recorded one"}}}, file)
sys.exit(1)
"""
    agents.start(master, script)
    assert (await master.hear(Exited)).error == "Traceback: the recorded one"


async def test_a_command_that_cannot_be_started_is_an_exit_with_127(master: SmallMaster, agents: Agents) -> None:
    master.restarts = False
    agents.start(master, "", command=("/no/such/program",))
    exited = await master.hear(Exited)
    assert exited.code == 127
    assert exited.error is not None
    assert "/no/such/program" in exited.error


# SDK processes -------------------------------------------------------------------------------------------


async def test_processes_that_attach_turn_the_node_into_an_sdk_node_and_keep_their_pids(
    master: SmallMaster, agents: Agents
) -> None:
    script = (
        LINK
        + """
print("pid", os.getpid())
prepared, commit = world(None)
print("world", prepared.generation, sorted(commit.store))
link.send(Report(generation=prepared.generation, rank=prepared.members[0].base_rank + rank, step=7, collectives=3,
                 busy=None, samples=70, metrics={"loss": 0.5}))
link.send(LocalStoreSet(generation=prepared.generation, key=f"late{rank}", value=b"x"))
link.send(LocalResized(generation=prepared.generation, rank=rank, drain=0.0, rendezvous=0.0, restore=0.0,
                       first_step=0.0, lost_steps=0))
get(StorePush)
link.send(LocalFinished(generation=prepared.generation))
get(Release)
"""
    )
    assert await agents.start(master, script, slots=2) == 0
    readies = master.all(Ready)
    assert [(r.sdk, r.steps) for r in readies] == [(False, (None, None)), (True, (None, None))]
    assert master.all(Ack)[-1].store == {"key0": b"blob", "key1": b"blob"}
    assert [(p.step, p.samples, p.metrics) for p in master.all(Progress)] == [(7, 70, {"loss": 0.5})]
    assert {s.key for s in master.all(StoreSet)} == {"late0", "late1"}
    assert len(master.all(Resized)) == 2
    assert [f.generation for f in master.all(Finished)] == [2]
    assert "world 2 ['key0', 'key1']" in agents.log()
    assert agents.log().count("pid") == 1, "the process was not started again"


async def test_a_dead_sdk_process_is_replaced_and_the_live_one_is_interrupted_and_rejoins(agents: Agents) -> None:
    script = (
        LINK
        + """
print("pid", os.getpid())
step = None
while True:
    prepared, commit = world(step)
    print("world", prepared.generation, flush=True)
    step = 5
    if rank == 1 and prepared.generation == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if prepared.generation > 1:
        break
    print("interrupt", get(Interrupt).generation)
"""
    )
    script = "import signal\n" + script
    async with a_master(sdk=True) as master:
        assert await agents.start(master, script, slots=2) == 0
        exited = await master.hear(Exited)
        assert (exited.local_rank, exited.code, exited.oom) == (1, 137, False)
        assert [(r.incarnation, r.steps) for r in master.all(Ready)] == [(1, (None, None)), (2, (5, None))]
    assert "interrupt 1" in agents.log()
    assert agents.log().count("pid") == 1, "the live process was not restarted"
    assert "pid" in agents.log(incarnation=2, rank=1)


async def test_a_pause_reaches_the_processes_and_their_steps_come_back(agents: Agents) -> None:
    script = (
        LINK
        + """
prepared, _ = world(None)
print("pause", get(Pause).generation)
prepared, _ = world(12)
"""
    )
    async with a_master(sdk=True) as master:
        agent = agents.start(master, script)
        world = await master.committed(1)
        master.say("worker-0", Pause(generation=world.generation, reason="worker-1 to join"))
        assert await agent == 0
        assert [r.steps for r in master.all(Ready)] == [(None,), (12,)]


async def test_a_process_that_leaves_a_world_alone_brings_the_others_out(agents: Agents) -> None:
    script = (
        LINK
        + """
prepared, _ = world(None)
if rank == 1:
    get(Interrupt)
world(3)
"""
    )
    async with a_master(sdk=True) as master:
        assert await agents.start(master, script, slots=2) == 0
        assert master.all(PeerClosed)[0].generation == 1
        assert master.all(Ready)[-1].steps == (3, 3)


async def test_garbage_on_the_socket_closes_that_connection_only(agents: Agents) -> None:
    script = (
        """
import os, socket
for garbage in (b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\x00\\x00\\x00\\x03abc", b"\\xff" * 64):
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(os.environ["SHOAL_AGENT_SOCKET"])
    raw.sendall(garbage)
    try:
        assert raw.recv(100) == b""
    except ConnectionResetError:
        pass
    raw.close()
"""
        + LINK
        + "world(None)"
    )
    async with a_master(sdk=True) as master:
        assert await agents.start(master, script) == 0


async def test_a_stranger_is_refused_and_a_child_of_a_training_process_is_not(agents: Agents, tmp_path: Path) -> None:
    refused = tmp_path / "refused"
    child = LINK + "world(None)"
    script = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {child!r}]))"
    show = "import os; print(os.environ['SHOAL_AGENT_SOCKET'], flush=True)\n"
    async with a_master(sdk=True) as master:
        wait = f"import time\nwhile not os.path.exists({str(refused)!r}): time.sleep(0.02)\n"
        agent = agents.start(master, show + wait + script)
        path = (await agents.logged("sock")).split()[0]
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
        stranger = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            LINK,
            env={**os.environ, "SHOAL_AGENT_SOCKET": path, "LOCAL_RANK": "0"},
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await stranger.communicate()
        assert b"Refused: it is no training process of this node" in err
        refused.touch()
        assert await agent == 0


async def test_a_hanging_process_writes_its_stacks_and_is_killed(agents: Agents) -> None:
    script = "import faulthandler, signal; faulthandler.register(signal.SIGUSR2, all_threads=True)\n" + LINK
    script += "world(None); time.sleep(60)"
    async with a_master(sdk=True, restarts=False) as master:
        agents.start(master, script)
        await master.committed(1)
        await master.hear(Heartbeat)
        master.say("worker-0", Kill(incarnation=1, local_ranks=(0,), dump_first=True, reason="it hangs"))
        exited = await master.hear(Exited)
        assert exited.code == 137
    assert "Current thread" in agents.log(stream="stderr")


async def test_a_plain_process_is_not_asked_for_its_stacks(master: SmallMaster, agents: Agents) -> None:
    master.restarts = False
    agents.start(master, FOREVER)
    await agents.logged("up")
    master.say("worker-0", Kill(incarnation=1, local_ranks=(0,), dump_first=True, reason="it hangs"))
    assert (await master.hear(Exited)).code == 137


# Heartbeats and output -----------------------------------------------------------------------------------


async def test_heartbeats_tell_what_the_process_tree_uses_and_whether_it_is_stopped(
    master: SmallMaster, agents: Agents
) -> None:
    agents.start(master, "print('up', flush=True)\nwhile True: pass")
    await agents.logged("up")
    await master.until(lambda: any(p.cpu > 0.05 and p.memory_bytes for h in master.all(Heartbeat) for p in h.processes))
    pid = master.all(Heartbeat)[-1].processes[0].pid
    assert not any(p.stopped for h in master.all(Heartbeat) for p in h.processes)
    os.kill(pid, signal.SIGSTOP)
    await master.until(lambda: any(p.stopped for h in master.all(Heartbeat) for p in h.processes))
    assert master.all(Heartbeat)[-1].processes[0].stopped


async def test_lines_are_prefixed_with_node_and_rank_and_tamed_for_the_terminal(
    master: SmallMaster, agents: Agents
) -> None:
    reading, writing = os.pipe()
    script = r"print('plain'); print('\x1b[2Jred\x07'); print('no newline', end='')"
    assert await agents.start(master, script, fds=(writing, writing)) == 0
    os.close(writing)
    with open(reading, "rb") as pipe:
        shown = pipe.read().decode()
    assert shown == "[worker-0 rank 0] plain\n[worker-0 rank 0] red\n[worker-0 rank 0] no newline\n"
    assert agents.log() == "plain\n\x1b[2Jred\x07\nno newline", "the file has every byte"


async def test_redirected_streams_and_filtered_ranks_stay_off_the_console(master: SmallMaster, agents: Agents) -> None:
    reading, writing = os.pipe()
    script = "import os, sys; print('out', os.environ['RANK']); print('err', os.environ['RANK'], file=sys.stderr)"
    code = await agents.start(
        master,
        script,
        slots=3,
        fds=(writing, writing),
        redirects={0: Streams.STDERR, 1: Streams.BOTH},
        console_ranks=frozenset({0, 1}),
    )
    assert code == 0
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read() == b"[worker-0 rank 0] out 0\n"
    assert agents.log(stream="stderr") == "err 0\n"
    assert agents.log() == "", "neither redirected nor teed: no file"
    assert agents.log(rank=1) == "out 1\n"


async def test_neither_a_closed_console_nor_a_full_disk_stops_training(master: SmallMaster, agents: Agents) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    logs = agents.directory / "logs" / "worker-0" / "1" / "0"
    logs.mkdir(parents=True)
    (logs / "stdout.log").symlink_to("/dev/full")
    script = "for i in range(20000): print('a line of training output', i)"
    assert await agents.start(master, script, fds=(writing, writing)) == 0
    os.close(writing)


async def test_a_console_that_nobody_reads_does_not_stop_training(master: SmallMaster, agents: Agents) -> None:
    reading, writing = os.pipe()
    script = "for i in range(50000): print('a line of training output that fills pipes', i)"
    assert await agents.start(master, script, fds=(writing, writing), flush_wait=0.1) == 0
    assert agents.log().count("\n") == 50000
    os.close(writing)
    os.close(reading)


async def test_success_is_told_after_the_last_line_was_shown(master: SmallMaster, agents: Agents) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    script = "for i in range(5000): print('a line of training output that fills pipes', i)"
    agent = agents.start(master, script, fds=(writing, writing), flush_wait=30.0)
    shown = b""
    while not master.all(Succeeded):
        await asyncio.sleep(0.05)
        with contextlib.suppress(BlockingIOError):
            shown += os.read(reading, 65536)
    with contextlib.suppress(BlockingIOError):
        shown += os.read(reading, 65536)
    assert shown.count(b"\n") == 5000
    assert await agent == 0
    os.close(writing)
    os.close(reading)


# The end -------------------------------------------------------------------------------------------------


async def test_leave_gives_the_grace_period_and_says_left(master: SmallMaster, agents: Agents) -> None:
    script = """
import signal, sys, time
def stop(*_): print("checkpointed", flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
time.sleep(60)
"""
    agent = agents.start(master, script)
    await agents.logged("up")
    master.say("worker-0", Leave(reason="scaled down", grace_seconds=10))
    assert await agent == 0
    assert "checkpointed" in agents.log()
    assert master.all(Left) == [Left(incarnation=1)]
    assert not master.all(Succeeded)


async def test_stop_kills_what_ignores_sigterm_when_the_grace_period_is_over(
    master: SmallMaster, agents: Agents
) -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER
    agent = agents.start(master, script)
    await agents.logged("up")
    master.say("worker-0", Stop(reason="the job is over", grace_seconds=0.1))
    assert await agent == 0


async def test_a_process_that_left_makes_the_agent_end_with_77(master: SmallMaster, agents: Agents) -> None:
    master.restarts = False
    agent = agents.start(master, "import sys; sys.exit(77)")
    assert (await master.hear(Exited)).code == 77
    master.say("worker-0", Leave(reason="it left", grace_seconds=1))
    assert await agent == 77


async def test_a_processs_children_do_not_outlive_it(master: SmallMaster, agents: Agents) -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    assert await agents.start(master, script) == 0
    await gone(int(agents.log().split()[0]))


# The master ----------------------------------------------------------------------------------------------


async def test_training_goes_on_while_the_connection_is_lost_and_the_standing_is_said_again(agents: Agents) -> None:
    script = (
        LINK
        + """
prepared, _ = world(None)
print("up", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
link.send(LocalFinished(generation=prepared.generation))
get(Release)
"""
    )
    flag = agents.directory / "go"
    async with a_master(sdk=True) as master:
        command = (sys.executable, "-c", script, str(flag))
        agent = agents.start(master, "", command=command)
        await agents.logged("up")
        await master.close()
        flag.touch()
        await asyncio.sleep(0.2)  # the process finishes while nobody listens
        assert not master.all(Finished)
        await master.open()
        assert await agent == 0
        again = master.hellos[-1]
        assert (again.node, again.incarnation, again.generation, again.sdk) == ("worker-0", 1, 1, True)
        assert again.prepared == 1
        assert await master.hear(Finished) == Finished(incarnation=1, generation=1)


async def test_an_exit_that_nobody_heard_is_told_after_the_reconnect(agents: Agents) -> None:
    async with a_master() as master:
        agent = agents.start(
            master,
            "import os, time, sys\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': time.sleep(0.3); sys.exit(5)",
        )
        await master.committed(1)
        await master.close()
        await asyncio.sleep(0.6)
        assert not master.all(Exited)
        await master.open()
        assert await agent == 0
        assert [e.code for e in master.all(Exited)] == [5]


async def test_without_a_master_for_too_long_the_agent_stops_its_processes_and_ends(
    master: SmallMaster, agents: Agents
) -> None:
    reconnect = ReconnectSettings(first_delay=0.01, longest_delay=0.05, master_timeout=0.3)
    agent = agents.start(master, FOREVER, reconnect=reconnect)
    await agents.logged("up")
    await master.close()
    assert await agent == 1


async def test_a_refused_agent_ends_with_76(master: SmallMaster, agents: Agents) -> None:
    master.refusal = "worker-0 is fenced"
    assert await agents.start(master, FOREVER) == 76


async def test_a_wrong_token_ends_the_agent_with_76(master: SmallMaster, agents: Agents) -> None:
    assert await agents.start(master, FOREVER, token="wrong") == 76


async def test_a_node_that_joins_by_itself_takes_the_name_it_is_given(agents: Agents) -> None:
    async with a_master(nodes=0) as master:
        master.expect("worker-0")
        assert await agents.start(master, "print('hi')", node=None) == 0
        assert master.hellos[0].node is None
        assert agents.log(node="worker-0") == "hi\n"
