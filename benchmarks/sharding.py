"""Leases and reports per second over real sockets, and what a ledger of a billion samples costs.

A *pair* is one shard: leased, trained (for no time at all), reported as complete. The master is the real one in a
process of its own and records every lease in a file before it answers; clients speak to it as agents do, over
WebSockets, each a node with one process. `batched`: a round carries 64 completions and the wish for 64 more, as an
agent with busy processes sends it; `one by one`: a single shard per round.

The same loop on gRPC for Python runs beside it where `grpcio` is installed: one call that takes a report and returns a
task, bytes in and out, against a server, in a process of its own too, that hands out numbers under a lock and records
nothing; its clients are as many threads of one process. Known figures of DLRover's master for
the same loop: 894 pairs/s with 8 clients over gRPC, 242 over HTTP.
"""

import asyncio
import importlib.util
import itertools
import multiprocessing
import os
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import msgspec

from _common import Row, parse_options, progress, report
from shoal.core import ledger as ledgers
from shoal.core.exits import ProcessExit
from shoal.core.job import JobSettings, JobSpec
from shoal.core.ledger import Ask, Checkpoint, DatasetSpec, LeaseSettings, Ledger, Owner, Shuffle
from shoal.core.nodes import NodeId
from shoal.core.plans import ScalePlan
from shoal.core.rounds import Round, owner_of
from shoal.master.master import Master
from shoal.stores.file import FileStore
from shoal.wire.client import connect
from shoal.wire.messages import PROTOCOL, DataAnswers, DataRound, Hello
from shoal.wire.tokens import JobKeys, Purpose

DLROVER = {8: ("DLRover, gRPC (known)", 894.0)}
BATCH = 64
BILLION = 1_000_000_000
SPEC = DatasetSpec(
    name="train",
    size=BILLION,
    shard_size=100,
    epochs=None,
    shuffle=Shuffle.SAMPLES,
    leases=LeaseSettings(max_held=BATCH),
)


def main() -> None:
    options = parse_options(__doc__)
    seconds = 2.0 if options.quick else 10.0
    ours = list(over_the_wire(seconds))
    rows = [*ours, *on_grpc(seconds, ours[-1]), *a_billion()]
    report(
        "sharding", f"{seconds:g} s each, {BATCH} shards in a batched round, a dataset of 10⁹ samples", rows, options
    )


# Over the wire -------------------------------------------------------------------------------------------


def over_the_wire(seconds: float) -> Iterator[Row]:
    for clients, batch in ((1, BATCH), (8, BATCH), (64, BATCH), (8, 1)):
        how = "batched" if batch > 1 else "one by one"
        progress(f"{clients} clients, {how}")
        with a_master(clients) as (url, token):
            pairs = asyncio.run(clients_for(seconds, url, token, clients, batch))
        peer, known = DLROVER.get(clients, (None, None))
        yield Row(
            case=f"{clients} clients, {how}",
            value=pairs / seconds,
            unit="pairs/s",
            peer=peer,
            peer_value=known,
            more_is_better=True,
        )


@contextmanager
def a_master(clients: int) -> Iterator[tuple[str, str]]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run_master, args=(theirs, clients), daemon=True)
    process.start()
    try:
        url, token = ours.recv()
        yield url, token
    finally:
        ours.send(None)
        process.join()


def run_master(pipe: Pipe, clients: int) -> None:
    asyncio.run(_serve(pipe, clients))


async def _serve(pipe: Pipe, clients: int) -> None:
    keys = JobKeys.new("benchmark")
    spec = JobSpec(name="benchmark", uid="benchmark", min_nodes=1, max_nodes=clients)
    settings = JobSettings(suspect_after=timedelta(minutes=10))  # these agents send no heartbeats
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder) / "state")
        master = Master(spec, settings, scaler=NoPlatform(), keys=keys, nodes=clients, store=store)
        await master.start()
        running = asyncio.create_task(master.run())
        pipe.send((master.url, keys.token(Purpose.AGENT)))
        await asyncio.to_thread(pipe.recv)
        running.cancel()
        await asyncio.wait([running])


class NoPlatform:
    """Agents are the benchmark's own."""

    async def start(self, on_exit: Callable[[NodeId, ProcessExit], None]) -> None:
        pass

    async def scale(self, plan: ScalePlan) -> None:
        pass

    async def close(self) -> None:
        pass


async def clients_for(seconds: float, url: str, token: str, clients: int, batch: int) -> int:
    """How many pairs so many clients make in that time."""
    gate = asyncio.Barrier(clients)
    return sum(await asyncio.gather(*(client(n, gate, seconds, url, token, batch) for n in range(clients))))


async def client(number: int, gate: asyncio.Barrier, seconds: float, url: str, token: str, batch: int) -> int:
    node = f"worker-{number}"
    hello = Hello(
        protocol=PROTOCOL,
        job="benchmark",
        node=node,
        incarnation=1,
        host="here",
        address="127.0.0.1",
        slots=1,
        pid=os.getpid(),
    )
    link = await connect(url, token=token, hello=hello)
    owner = owner_of(node, 0, number, "benchmark")
    answers = aiter(link)
    pairs, held, rounds = 0, (), itertools.count(1)
    await gate.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ask = Ask(owner=owner, dataset="train", completed=held, want=batch)
        await link.send(DataRound(round=Round(number=next(rounds), specs=(SPEC,) if not held else (), asks=(ask,))))
        while not isinstance(message := await anext(answers), DataAnswers):
            pass
        pairs += len(held)
        held = tuple(lease.attempt for lease in message.answer.given[0].leases)
    await link.close()
    return pairs


# The same on gRPC ----------------------------------------------------------------------------------------


def on_grpc(seconds: float, ours: Row) -> Iterator[Row]:
    """Our row for 8 clients, one by one, beside the same on gRPC."""
    if importlib.util.find_spec("grpc") is None:
        progress("grpcio is not installed: its row is left out")
        return
    progress("8 clients, one by one, gRPC")
    ours_end, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run_counter, args=(theirs, 8), daemon=True)
    process.start()
    try:
        pairs = grpc_pairs(ours_end.recv(), seconds, 8)
    finally:
        ours_end.send(None)
        process.join()
    yield replace(ours, peer="a bare counter on gRPC for Python", peer_value=pairs / seconds)


def run_counter(pipe: Pipe, clients: int) -> None:
    """A server that hands out numbers, until told to stop."""
    import grpc

    lock, tasks = threading.Lock(), itertools.count()

    def exchange(request: bytes, context: Any) -> bytes:
        msgspec.msgpack.decode(request)
        with lock:
            return msgspec.msgpack.encode(next(tasks))

    handler = grpc.method_handlers_generic_handler("Data", {"Exchange": grpc.unary_unary_rpc_method_handler(exchange)})
    server = grpc.server(ThreadPoolExecutor(clients))
    server.add_generic_rpc_handlers((handler,))
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    pipe.recv()
    server.stop(None)


def grpc_pairs(port: int, seconds: float, clients: int) -> int:
    import grpc

    def work() -> int:
        pairs, end = 0, time.monotonic() + seconds
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/Data/Exchange")
            while time.monotonic() < end:
                call(msgspec.msgpack.encode(pairs), wait_for_ready=True)
                pairs += 1
        return pairs

    with ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(lambda _: work(), range(clients)))


# A billion samples ---------------------------------------------------------------------------------------


def a_billion() -> Iterator[Row]:
    """Created, with 64 owners that hold 64 shards each, checkpointed, restored."""
    progress("a ledger of 10⁹ samples")
    created, saved, restored, size = _a_life()
    tracemalloc.start()
    _a_life()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    yield Row(case="10⁹ samples: create", value=created * 1000, unit="ms")
    yield Row(case="10⁹ samples: checkpoint, 4096 shards leased", value=saved * 1000, unit="ms")
    yield Row(case="10⁹ samples: restore from it", value=restored * 1000, unit="ms")
    yield Row(case="10⁹ samples: the checkpoint", value=size / 1024, unit="KiB")
    yield Row(case="10⁹ samples: memory at most, all of the above", value=peak / 2**20, unit="MiB")


def _a_life() -> tuple[float, float, float, int]:
    """Seconds to create, checkpoint and restore, and the checkpoint's bytes."""
    now, begin = datetime.now(UTC), time.perf_counter()
    ledger = ledgers.registered(Ledger(), SPEC)
    created = time.perf_counter() - begin
    for number in range(64):
        ask = Ask(owner=Owner(f"worker-{number}.0@1"), dataset="train", want=BATCH)
        ledger, _ = ledgers.exchange(ledger, ask, now)
    begin = time.perf_counter()
    data = msgspec.msgpack.encode(ledgers.checkpoint(ledger))
    saved = time.perf_counter() - begin
    begin = time.perf_counter()
    ledgers.restored(Ledger(), msgspec.msgpack.decode(data, type=Checkpoint))
    return created, saved, time.perf_counter() - begin, len(data)


if __name__ == "__main__":
    main()
