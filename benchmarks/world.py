"""How long 1,000 agents wait for their world.

A real `Master` in a process of its own, and simulated agents that speak the real protocol over real sockets from a few
client processes. A simulated agent does what a real one does for a world: connects, says Hello and Ready, acknowledges
what is prepared, waits for the commit; then it loses a training process, and later gets it back. What it does not do is
train, or decode for itself bytes that another agent of its client process has decoded already: real agents have a
machine of their own for that, these share the cores with the master.

Two peers. DLRover's master, whose known figures for 1,000 agents on such a machine are 7.0 s as it comes and 3.7 s with
fast polling: not measured here, so a busy machine speaks against us in that row. And the physical limit: a bare aiohttp
server that knows nothing, waits until the same number of messages has come in and broadcasts the same bytes, recorded
from the real master's run before.

Each run has new processes; master and bare server take turns, the table has medians.
"""

import asyncio
import gc
import itertools
import multiprocessing as mp
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from multiprocessing.connection import Connection

import aiohttp
import psutil
from aiohttp import web

from _common import Row, parse_options, progress, report
from shoal.core.exits import ProcessExit
from shoal.core.job import JobSettings, JobSpec
from shoal.core.nodes import NodeId, NodeSeen, ProcessSeen, Trained
from shoal.core.plans import ScalePlan
from shoal.core.world import World
from shoal.master import Master
from shoal.wire.codec import Decoder, encode
from shoal.wire.messages import (
    MAX_MESSAGE,
    PROTOCOL,
    Ack,
    Commit,
    Exited,
    FromMaster,
    Heartbeat,
    Hello,
    Interrupt,
    Pause,
    Prepare,
    Ready,
    Refuse,
)
from shoal.wire.tokens import JobKeys, Purpose

CLIENTS = 4
"""Client processes; the agents are spread over them evenly."""
STORE_BYTES = 128
"""What each agent puts into the bootstrap store: about an address and a key."""
HEARTBEAT_SECONDS = 2.0
PATIENCE_SECONDS = 60.0
"""When a phase has not ended by then, something is broken and the benchmark says so."""
DLROVER_SECONDS = 3.7
DLROVER = "dlrover master, fast polling (a known figure, not of this run; stock: 7.0 s)"
BARE = "bare aiohttp broadcast of the same bytes"


# The master's process ------------------------------------------------------------------------------------


class NoPlatform:
    """A scaler for nodes that come by themselves."""

    async def start(self, on_exit: Callable[[NodeId, ProcessExit], None]) -> None:
        pass

    async def scale(self, plan: ScalePlan) -> None:
        pass

    async def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Address:
    url: str
    token: str


def serve_master(pipe: Connection, agents: int) -> None:
    asyncio.run(_serve_master(pipe, agents))


async def _serve_master(pipe: Connection, agents: int) -> None:
    keys = JobKeys.new("benchmark")
    spec = JobSpec(name="benchmark", uid="benchmark", min_nodes=1, max_nodes=agents)
    settings = JobSettings(suspect_after=timedelta(minutes=10))  # agents that are only waiting send no heartbeats
    master = Master(spec, settings, scaler=NoPlatform(), keys=keys, nodes=agents)
    await master.start()
    running = asyncio.create_task(master.run())
    pipe.send(Address(master.url, keys.token(Purpose.AGENT)))
    await asyncio.to_thread(pipe.recv)
    running.cancel()
    await asyncio.wait([running])


# The bare server's process -------------------------------------------------------------------------------


class Change(StrEnum):
    """What a stage of the bare server's script does to the circle of those it broadcasts to."""

    NONE = "none"
    OUT = "out"
    """The one whose message it was is out."""
    IN = "in"
    """It is in again, from the next stage on."""


@dataclass(frozen=True, slots=True)
class Stage:
    """When so many messages have come in, broadcast this."""

    messages: int
    payload: bytes
    change: Change = Change.NONE


def serve_bare(pipe: Connection, stages: list[Stage]) -> None:
    asyncio.run(_serve_bare(pipe, stages))


async def _serve_bare(pipe: Connection, stages: list[Stage]) -> None:
    bare = BareServer(stages)
    app = web.Application()
    app.add_routes([web.get("/agent", bare.agent)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    pipe.send(Address(f"http://127.0.0.1:{runner.addresses[0][1]}", "none"))
    await asyncio.to_thread(pipe.recv)
    await runner.cleanup()


class BareServer:
    def __init__(self, stages: Iterable[Stage]) -> None:
        self._stages = iter(stages)
        self._stage = next(self._stages)
        self._came = 0
        self._circle: set[web.WebSocketResponse] = set()

    async def agent(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=MAX_MESSAGE, compress=False)
        await socket.prepare(request)
        await socket.receive()
        await socket.send_bytes(b"welcome")
        self._circle.add(socket)
        while (await socket.receive()).type is aiohttp.WSMsgType.BINARY:
            await self._message(socket)
        return socket

    async def _message(self, sender: web.WebSocketResponse) -> None:
        self._came += 1
        stage = self._stage
        if self._came < stage.messages:
            return
        self._came = 0
        self._stage = next(self._stages, stage)
        if stage.change is Change.OUT:
            self._circle.discard(sender)
        await asyncio.gather(*(socket.send_bytes(stage.payload) for socket in self._circle))
        if stage.change is Change.IN:
            self._circle.add(sender)


# The agents' processes -----------------------------------------------------------------------------------


class Order(StrEnum):
    """What the benchmark asks of a client process."""

    CONNECT = "connect"
    LOSE = "lose"
    """The first agent loses its training process: the others get a world without it."""
    RETURN = "return"
    """It has a new one: all get a world."""
    WAIT = "wait"
    """All its agents get the next world."""
    TRAIN = "train"
    """Send heartbeats for a while."""
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a client process saw of one phase, in seconds of the machine's monotonic clock."""

    began: float
    connected: float
    """When its last agent had its Welcome."""
    committed: float
    """When its last agent had the committed world."""


@dataclass(slots=True)
class Shared:
    """What the agents of one client process have in common."""

    expected: int = 0
    """How many agents have to see the next commit."""
    arrived: int = 0
    all_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    record: list[bytes] = field(default_factory=list)
    """All that the second agent was sent."""
    _decoder: Decoder[FromMaster] = field(default_factory=lambda: Decoder(FromMaster, limit=MAX_MESSAGE))
    _data: bytes = b""
    _message: FromMaster | None = None
    _ranks: Mapping[str, int] = field(default_factory=dict)

    def decode(self, data: bytes) -> FromMaster:
        if self._message is None or data != self._data:
            self._data, self._message = data, self._decoder.decode(data)
            if isinstance(self._message, Prepare):
                self._ranks = _ranks(self._message.world)
        return self._message

    def rank(self, node: str) -> int:
        return self._ranks[node]

    def expect(self, agents: int) -> None:
        self.expected, self.arrived = agents, 0
        self.all_arrived.clear()

    def arrive(self) -> None:
        self.arrived += 1
        if self.arrived == self.expected:
            self.all_arrived.set()


def _ranks(world: World) -> dict[str, int]:
    return {member.node: member.base_rank for member in world.members}


class SimulatedAgent:
    """One node with one training process that says what it has to for a world, and nothing else."""

    def __init__(self, number: int, shared: Shared, *, recorded: bool) -> None:
        self.node = f"worker-{number}"
        self.welcomed = 0.0
        self.incarnation = 1
        self._beats = 0
        self._number = number
        self._shared = shared
        self._recorded = recorded
        self._step: int | None = None

    async def live(self, session: aiohttp.ClientSession, address: Address) -> None:
        self._socket = await session.ws_connect(
            f"{address.url}/agent",
            headers={"Authorization": f"Bearer {address.token}"},
            max_msg_size=MAX_MESSAGE,
            compress=0,
        )
        hello = Hello(
            protocol=PROTOCOL,
            job="benchmark",
            node=self.node,
            incarnation=1,
            host="benchmark",
            address="127.0.0.1",
            slots=1,
            pid=self._number,
        )
        await self._socket.send_bytes(encode(hello))
        await self._socket.receive_bytes()
        self.welcomed = time.monotonic()
        await self.ready()
        async for frame in self._socket:
            if self._recorded:
                self._shared.record.append(frame.data)
            await self._react(self._shared.decode(frame.data))

    async def _react(self, message: FromMaster) -> None:
        match message:
            case Prepare(world=world):
                store = {f"0/{self._shared.rank(self.node)}": bytes(STORE_BYTES)}
                await self._socket.send_bytes(
                    encode(Ack(incarnation=self.incarnation, generation=world.generation, store=store))
                )
            case Commit():
                self._step = 1
                self._shared.arrive()
            case Pause() | Interrupt():
                await self.ready()
            case Refuse(reason=reason):
                raise RuntimeError(f"{self.node} was refused: {reason}")

    async def ready(self) -> None:
        await self._socket.send_bytes(encode(Ready(incarnation=self.incarnation, steps=(self._step,), sdk=True)))

    async def lose_process(self) -> None:
        exited = Exited(
            incarnation=self.incarnation, local_rank=0, pid=1, code=137, oom=False, error=None, uptime_seconds=100.0
        )
        self.incarnation += 1
        self._step = None
        await self._socket.send_bytes(encode(exited))

    async def heartbeat(self) -> None:
        self._beats += 1
        stat = ProcessSeen(
            local_rank=0,
            pid=1,
            stopped=False,
            cpu=1.0,
            memory_bytes=1 << 30,
            step=1,
            collectives=10,
            busy=None,
            trained=Trained(steps=self._beats, samples=self._beats, step_seconds=self._beats, work_seconds=self._beats),
        )
        node = NodeSeen(cpu_limit=4.0, memory_limit=1 << 34)
        await self._socket.send_bytes(encode(Heartbeat(incarnation=self.incarnation, processes=(stat,), node=node)))


def run_agents(pipe: Connection, numbers: range, address: Address) -> None:
    gc.disable()  # a simulated agent lives for seconds; a collector's pause would count as the master's
    asyncio.run(_run_agents(pipe, numbers, address))


async def _run_agents(pipe: Connection, numbers: range, address: Address) -> None:
    shared = Shared()
    agents = [SimulatedAgent(n, shared, recorded=n == numbers[1]) for n in numbers]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:
        living: list[asyncio.Task[None]] = []
        pipe.send(None)
        while (order := await asyncio.to_thread(pipe.recv)) is not Order.END:
            began = time.monotonic()
            shared.expect(len(agents) - (order is Order.LOSE))
            match order:
                case Order.CONNECT:
                    living = [tasks.create_task(agent.live(session, address)) for agent in agents]
                case Order.LOSE:
                    await agents[0].lose_process()
                case Order.RETURN:
                    await agents[0].ready()
                case Order.WAIT:
                    pipe.send(None)
                case Order.TRAIN:
                    await _train(agents)
                    pipe.send(None)
                    continue
            await shared.all_arrived.wait()
            committed = time.monotonic()
            pipe.send(Phase(began=began, connected=max(agent.welcomed for agent in agents), committed=committed))
        pipe.send(shared.record)
        for task in living:
            task.cancel()


async def _train(agents: list[SimulatedAgent]) -> None:
    """Two heartbeats of each agent, spread evenly as those of real ones are."""
    loop = asyncio.get_running_loop()
    began, gap = loop.time(), HEARTBEAT_SECONDS / len(agents)
    for number, agent in enumerate(itertools.chain(agents, agents)):
        await asyncio.sleep(began + number * gap - loop.time())
        await agent.heartbeat()


# One run -------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Run:
    """Seconds, each of the last of all agents."""

    from_first_connect: float
    from_all_connected: float
    forming_cpu: float
    """The server's CPU seconds from its start to the first world, without its imports."""
    lose: list[float]
    come_back: list[float]
    training_cpu: float | None
    """The server's CPU, as a share of one core, while the agents send nothing but heartbeats."""
    record: list[bytes]


class Child:
    """A process of the benchmark with a pipe to it."""

    def __init__(self, target: Callable[..., None], *args: object) -> None:
        context = mp.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *args), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, what: object) -> None:
        self._pipe.send(what)

    def hear(self) -> object:
        if not self._pipe.poll(PATIENCE_SECONDS):
            raise TimeoutError(f"nothing was heard of {self._process.name} for {PATIENCE_SECONDS:.0f} s")
        return self._pipe.recv()

    def hear_phase(self) -> Phase:
        phase = self.hear()
        assert isinstance(phase, Phase)
        return phase

    def cpu_seconds(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def end(self) -> None:
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def measure(server: Child, agents: int, *, cycles: int, training: bool) -> Run:
    address = server.hear()
    share = agents // CLIENTS
    clients = [Child(run_agents, range(c * share, (c + 1) * share), address) for c in range(CLIENTS)]
    try:
        for client in clients:
            client.hear()
        idle = server.cpu_seconds()
        first = _connect(clients)
        forming_cpu = server.cpu_seconds() - idle
        lose, come_back = [], []
        for _ in range(cycles):
            lose.append(_change(clients, Order.LOSE))
            come_back.append(_change(clients, Order.RETURN))
        training_cpu = _training_cpu(server, clients) if training else None
        for client in clients:
            client.tell(Order.END)
        records = [client.hear() for client in clients]
        server.tell(Order.END)
    finally:
        for child in (*clients, server):
            child.end()
    assert isinstance(records[0], list)
    return Run(
        from_first_connect=max(p.committed for p in first) - min(p.began for p in first),
        from_all_connected=max(p.committed for p in first) - max(p.connected for p in first),
        forming_cpu=forming_cpu,
        lose=lose,
        come_back=come_back,
        training_cpu=training_cpu,
        record=records[0],
    )


def _connect(clients: list[Child]) -> list[Phase]:
    for client in clients:
        client.tell(Order.CONNECT)
    return [client.hear_phase() for client in clients]


def _change(clients: list[Child], order: Order) -> float:
    """Seconds until the last agent has the next world, after the first client makes one necessary."""
    for client in clients[1:]:
        client.tell(Order.WAIT)
    for client in clients[1:]:
        client.hear()
    clients[0].tell(order)
    phases = [client.hear_phase() for client in clients]
    return max(p.committed for p in phases) - phases[0].began


def _training_cpu(server: Child, clients: list[Child]) -> float:
    cpu, began = server.cpu_seconds(), time.monotonic()
    for client in clients:
        client.tell(Order.TRAIN)
    for client in clients:
        client.hear()
    return (server.cpu_seconds() - cpu) / (time.monotonic() - began)


def script(record: list[bytes]) -> list[Stage]:
    """The bare server's script: what a member was told by the master, and after how many messages."""
    stages = []
    decoder: Decoder[FromMaster] = Decoder(FromMaster, limit=MAX_MESSAGE)
    before: FromMaster | None = None
    for payload in record:
        message = decoder.decode(payload)
        match message:
            case Interrupt():
                stages.append(Stage(1, payload, Change.OUT))
            case Pause():
                stages.append(Stage(1, payload, Change.IN))
            case Prepare(world=world):
                joined = isinstance(before, Pause)  # its Ready was what brought the pause about
                stages.append(Stage(world.size - joined, payload))
            case Commit():
                assert isinstance(before, Prepare)
                stages.append(Stage(before.world.size, payload))
        before = message
    return stages


# The benchmark -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    agents: int
    pairs: int
    """How often master and bare server take turns."""
    cycles: int
    """How often, in each run, a process is lost and comes back."""


def compare(scale: Scale) -> list[Row]:
    ours: list[Run] = []
    bare: list[Run] = []
    for number in range(scale.pairs):
        progress(f"{scale.agents:,} agents, pair {number + 1} of {scale.pairs}")
        run = measure(Child(serve_master, scale.agents), scale.agents, cycles=scale.cycles, training=number == 0)
        ours.append(run)
        server = Child(serve_bare, script(run.record))
        bare.append(measure(server, scale.agents, cycles=scale.cycles, training=False))
    return list(_rows(f"{scale.agents:,} agents", ours, bare))


def _rows(who: str, ours: list[Run], bare: list[Run]) -> Iterable[Row]:
    def row(what: str, value: Callable[[Run], float]) -> Row:
        mine, theirs = (statistics.median(value(run) for run in runs) for runs in (ours, bare))
        return Row(case=f"{who}: {what}", value=mine, unit="s", peer=BARE, peer_value=theirs)

    whole = row("first connect until all have the world", lambda run: run.from_first_connect)
    if who.startswith("1,000"):
        yield Row(case=whole.case, value=whole.value, unit="s", peer=DLROVER, peer_value=DLROVER_SECONDS)
    yield whole
    yield row("all connected until all have the world", lambda run: run.from_all_connected)
    yield row("CPU of the server for it", lambda run: run.forming_cpu)
    yield row("a process is lost until the others have the next world", lambda run: statistics.median(run.lose))
    yield row("it comes back until all have the next world", lambda run: statistics.median(run.come_back))
    training = next(run.training_cpu for run in ours if run.training_cpu is not None)
    yield Row(
        case=f"{who}: master's CPU while they train (heartbeats every 2 s)", value=100 * training, unit="% of a core"
    )


def main() -> None:
    options = parse_options(__doc__)
    if options.quick:
        scales = [Scale(agents=200, pairs=3, cycles=3), Scale(agents=1000, pairs=2, cycles=3)]
    else:
        scales = [Scale(agents=200, pairs=7, cycles=5), Scale(agents=1000, pairs=7, cycles=5)]
    rows = [row for scale in scales for row in compare(scale)]
    what = f"agents in {CLIENTS} client processes on this machine, {STORE_BYTES} bytes in the store from each; medians"
    report("world", what, rows, options)


if __name__ == "__main__":
    main()
