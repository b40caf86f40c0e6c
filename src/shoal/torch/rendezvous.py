"""`torchrun --rdzv-backend=shoal`: torchrun's agents meet at a Shoal master.

    SHOAL_TOKEN=… torchrun --rdzv-backend=shoal --rdzv-endpoint=HOST:PORT --nnodes 1:4 train.py

A master must run at the endpoint; each torchrun is one node of its job. torchrun keeps its own way of doing things: it
watches its processes, counts its restarts, and polls its handler. What changes is who decides on worlds: the master,
which pushes them. How the two meet:

    torchrun                          master
    next_rendezvous() ──Ready──▶      closes the round at once when everybody it expects is there
                      ◀─Prepare──     group rank 0 opens a fresh TCPStore and tells its address in its Ack
    RendezvousInfo    ◀─Commit───     the same store for agents and processes, never for two generations
    num_nodes_waiting() > 0  ◀── Pause (somebody joins or leaves), Interrupt (somebody is gone)
    shutdown()  ──▶ Succeeded, or Exited when torchrun's restarts are used up, or Left

`rendezvous_settings` reads what torchrun was told, `rendezvous_member` is the pure half, `rendezvous_link` the thread
that speaks with the master, `rendezvous_peers` notices a lost node, `rendezvous_store` is the agents' store. This
module is imported by every torchrun on a machine that has Shoal, so aiohttp waits until a handler is made.
"""

import logging
import os
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import DistError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousHandlerCreator,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from shoal.core.errors import BadInput
from shoal.torch.rendezvous_member import Ending, Formed, Over
from shoal.torch.rendezvous_store import GenerationStore

if TYPE_CHECKING:
    from shoal.torch.rendezvous_link import MasterLink
    from shoal.torch.rendezvous_settings import HandlerSettings

log = logging.getLogger("shoal.torch.rendezvous")

BACKEND = "shoal"
STORE_SECONDS = 10.0
"""How long a node tries to reach the store of its world. Its host listens before anybody hears of it, so only one that
has just died is not reached."""
UNIFORM = "TORCH_ELASTIC_WORKER_IDENTICAL"
"""torchrun's word for: all nodes have as many processes, so that ranks follow without asking the others."""


def create_handler() -> RendezvousHandlerCreator:
    """The entry point `torchrun.handlers`: torchrun calls it without arguments for what makes a handler."""
    return _make


def _make(params: RendezvousParameters) -> "ShoalRendezvous":
    from shoal.torch.rendezvous_link import MasterLink
    from shoal.torch.rendezvous_settings import read_settings
    from shoal.wire.client import connect

    settings = read_settings(params, os.environ)
    if settings.is_uniform:
        # Ranks are then known with the world: nobody waits for a peer that dies before it has told its size.
        os.environ.setdefault(UNIFORM, "1")
    link = MasterLink(
        settings,
        connect=lambda hello: connect(
            settings.url, token=settings.token, hello=hello, fingerprint=settings.fingerprint
        ),
        open_store=lambda: _open_store(settings.address),
    )
    return ShoalRendezvous(settings, link)


class ShoalRendezvous(RendezvousHandler):
    """One node's handler. torchrun's agent calls it from one thread."""

    def __init__(self, settings: "HandlerSettings", link: "MasterLink") -> None:
        self._settings = settings
        self._link = link
        self._is_closed = False
        self._outer_error = sys.exc_info()[1]

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._settings.run_id

    @property
    def use_agent_store(self) -> bool:
        """Processes bootstrap in the store that the agent of group rank 0 hosts: it outlives rank 0's process."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        deadline = time.monotonic() + self._settings.join_timeout
        while True:
            formed = self._next_world(deadline)
            try:
                store = self._store_of(formed)
            except DistError as exc:
                log.warning("world %d: its store at %s is gone: %s", formed.world.generation, formed.store, exc)
                continue  # with its host; the master is told and makes another world
            return self._info(formed, store)

    def num_nodes_waiting(self) -> int:
        """Above 0: come to the next rendezvous. How many others come too is the master's business."""
        self._check_open()
        return 0 if self._link.member.change is None else 1

    def is_closed(self) -> bool:
        return self._is_closed or self._link.member.over is not None

    def set_closed(self) -> None:
        """This node is through with the job. The job ends when all members of its last world are."""
        self._close(None)

    def shutdown(self) -> bool:
        """torchrun ends, whichever way: it says no more than that. Called while its error, if any, is on its way out.

        Not called when torchrun is ended by a signal; the master then sees the connection close.
        """
        error = sys.exc_info()[1]
        return self._close(None if error is self._outer_error else f"{type(error).__name__}: {error}")

    def _next_world(self, deadline: float) -> Formed:
        self._check_open()
        try:
            formed = self._link.next_world(max(0.0, deadline - time.monotonic()))
        except TimeoutError as exc:
            raise RendezvousTimeoutError(
                f"job {self._settings.job}: no world within {self._settings.join_timeout:g} s (join_timeout in "
                f"--rdzv-conf); the master at {self._settings.url} waits for more nodes, or is away"
            ) from exc
        if formed is None:
            self._check_open()
        assert formed is not None
        return formed

    def _store_of(self, formed: Formed) -> Store:
        if formed.rank == 0:
            hosted = self._link.hosted
            assert hosted is not None
            return hosted
        host, port = _host_and_port(formed.store)
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=STORE_SECONDS))

    def _info(self, formed: Formed, store: Store) -> RendezvousInfo:
        world = formed.world
        log.info("world %d: node %d of %d", world.generation, formed.rank, len(world.members))
        host, port = _host_and_port(formed.store)
        return RendezvousInfo(
            GenerationStore(store, self._why_over),
            formed.rank,
            len(world.members),
            RendezvousStoreInfo(master_addr=host, master_port=port),
        )

    def _why_over(self) -> str | None:
        member = self._link.member
        return member.over.reason if member.over is not None else member.change

    def _check_open(self) -> None:
        over = self._link.member.over
        if over is not None:
            _raise(self._settings, over)
        if self._is_closed:
            raise RendezvousClosedError(f"job {self._settings.job}: this node has left it")

    def _close(self, error: str | None) -> bool:
        if self._is_closed:
            return True
        self._is_closed = True
        return self._link.say_end(error)


def _raise(settings: "HandlerSettings", over: Over) -> NoReturn:
    said = f"job {settings.job}: {over.reason}"
    match over.how:
        case Ending.CLOSED:
            raise RendezvousClosedError(said)
        case Ending.UNREACHABLE:
            raise RendezvousConnectionError(said)
        case Ending.DRAINED:
            # Leaving because one was asked to is success. torchrun's own RendezvousGracefulExitError would do if
            # its launcher did not trip over the missing result (torch 2.13: an AttributeError, exit code 1).
            log.warning("%s; this node leaves", said)
            raise SystemExit(0)


def _open_store(address: str) -> TCPStore:
    """A store server in this process; it ends when it is let go."""
    try:
        return TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=STORE_SECONDS))
    except DistError as exc:
        raise BadInput(f"--local-addr: no store can be reached at {address}, by which others know this node") from exc


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
