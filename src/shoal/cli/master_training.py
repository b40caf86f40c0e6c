"""`shoal master --training`: the master of a TrainingJob, in a Pod of its ReplicaSet `{job}-master`.

It knows nothing of Kubernetes. What it is the master of stands in its environment, its tokens and certificate in the
folder of the mounted Secret, the job's state in etcd (`SHOAL_STORE`). Trainers are made by a batch Job, parameter
servers by a ReplicaSet; they join by themselves, as many as come, and the master gives each a name. When one is gone
its Pod's replacement joins in its place. A parameter server whose Pod is told to end says so, and is let go when no
version needs it. A master that dies is started again by its ReplicaSet and goes on from what stands in etcd.

Exit codes: as those of `shoal master`, and 143 when it was told to end.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.log_lines import set_up_by
from shoal.cli.master_pod import (
    EXIT_OVER,
    EXIT_TOLD,
    PORT,
    SECRETS,
    Place,
    ToldToEnd,
    listen_of,
    start_patiently,
    tokens_of,
    unless,
    until_over,
)
from shoal.core.errors import BadInput

if TYPE_CHECKING:
    from shoal.core.exits import ProcessExit
    from shoal.core.job import JobSpec, PSSpec
    from shoal.core.nodes import NodeId
    from shoal.core.plans import ScalePlan
    from shoal.core.saving import CheckpointSpec

log = logging.getLogger("shoal.master")

_NEEDED = ("SHOAL_JOB", "SHOAL_JOB_UID", "SHOAL_NAMESPACE", "SHOAL_STORE", "SHOAL_MIN_NODES", "SHOAL_MAX_NODES")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlace:
    """Who this master is."""

    place: Place
    store: str
    min_nodes: int
    max_nodes: int
    slots: int
    max_restarts: int
    min_servers: int = 0
    """0: it has no parameter servers that join."""
    max_servers: int = 0
    checkpoint_path: str | None = None
    checkpoint_seconds: int | None = None
    """None: as usual; so is the next."""
    checkpoint_keep: int | None = None
    checkpoint_fuzzy: bool = False

    def spec(self) -> "JobSpec":
        from shoal.core.job import JobSpec

        directory = self.checkpoint_dir
        return JobSpec(
            name=self.place.job,
            uid=self.place.uid,
            checkpoint=self._checkpoint(directory),
            ps=self._servers(directory) if self.min_servers else None,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            nproc=self.slots,
            max_restarts=self.max_restarts,
            platform_grows=True,
            called="tj",
        )

    @property
    def checkpoint_dir(self) -> str | None:
        """Where the job's checkpoints go."""
        if self.checkpoint_path is None or not self.min_servers:
            return self.checkpoint_path
        from shoal.api.jobspec import own_directory

        return own_directory(self.checkpoint_path, self.place.job, self.place.uid)

    def _checkpoint(self, directory: str | None) -> "CheckpointSpec":
        from shoal.core.saving import CheckpointSpec

        usual = CheckpointSpec()
        return CheckpointSpec(
            directory=directory,
            seconds=usual.seconds if self.checkpoint_seconds is None else self.checkpoint_seconds,
            keep=usual.keep if self.checkpoint_keep is None else self.checkpoint_keep,
            fuzzy=self.checkpoint_fuzzy,
        )

    def _servers(self, directory: str | None) -> "PSSpec":
        from shoal.core.job import PSSpec

        least, most = self.min_servers, max(self.min_servers, self.max_servers)
        return PSSpec(min_servers=least, max_servers=most, checkpoint_dir=directory, joins=True)


def place_of(environment: Mapping[str, str]) -> TrainingPlace:
    """Raises `BadInput`."""
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing:
        raise BadInput(f"shoal master --training: {', '.join(missing)} not set; the operator sets them in its Pod")

    def number(name: str, default: int = 0) -> int:
        try:
            return int(environment.get(name) or default)
        except ValueError as exc:
            raise BadInput(f"shoal master --training: {name} must be a number: {exc}") from exc

    def perhaps(name: str) -> int | None:
        return number(name) if environment.get(name) else None

    place = Place(
        job=environment["SHOAL_JOB"],
        namespace=environment["SHOAL_NAMESPACE"],
        term=0,
        uid=environment["SHOAL_JOB_UID"],
        port=number("SHOAL_PORT", PORT),
        address=environment.get("SHOAL_POD_IP", ""),
        secrets=Path(environment.get("SHOAL_SECRETS") or SECRETS),
    )
    found = TrainingPlace(
        place=place,
        store=environment["SHOAL_STORE"],
        min_nodes=number("SHOAL_MIN_NODES"),
        max_nodes=number("SHOAL_MAX_NODES"),
        slots=number("SHOAL_SLOTS", 1),
        max_restarts=number("SHOAL_MAX_RESTARTS"),
        min_servers=number("SHOAL_MIN_SERVERS"),
        max_servers=number("SHOAL_MAX_SERVERS"),
        checkpoint_path=environment.get("SHOAL_CHECKPOINT_PATH") or None,
        checkpoint_seconds=perhaps("SHOAL_CHECKPOINT_SECONDS"),
        checkpoint_keep=perhaps("SHOAL_CHECKPOINT_KEEP"),
        checkpoint_fuzzy=environment.get("SHOAL_CHECKPOINT_FUZZY") == "1",
    )
    if not 1 <= found.min_nodes <= found.max_nodes:
        raise BadInput(
            "shoal master --training: 1 <= SHOAL_MIN_NODES <= SHOAL_MAX_NODES is wanted, "
            f"got {found.min_nodes} and {found.max_nodes}"
        )
    if found.min_servers < 0 or (found.min_servers and found.slots != 1):
        raise BadInput(
            "shoal master --training: with parameter servers SHOAL_SLOTS must be 1 and SHOAL_MIN_SERVERS not below 0, "
            f"got {found.slots} and {found.min_servers}"
        )
    return found


def main(environment: Mapping[str, str]) -> int:
    where = place_of(environment)
    set_up_by(environment, job=f"{where.place.namespace}/{where.place.job}")
    return asyncio.run(run(where))


async def run(where: TrainingPlace) -> int:
    """Be the master until the job is over, or until told to end. Raises `BadInput`, `Superseded`, `StateUnreadable`."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    try:
        return await _run(where, told)
    except ToldToEnd:
        return EXIT_TOLD


async def _run(where: TrainingPlace, told: asyncio.Event) -> int:
    from shoal.cli.master import open_store
    from shoal.core.job import JobSettings
    from shoal.master import Master

    place = where.place
    master = Master(
        where.spec(),
        JobSettings(),
        scaler=Joining(),
        keys=tokens_of(place),
        listen=listen_of(place),
        nodes=0,  # as many as join
        store=open_store(where.store),
    )
    await unless(told, start_patiently(master))
    log.info("master of job %s/%s listens on port %d", place.namespace, place.job, master.port)
    return EXIT_OVER if await until_over(master, told=told) else EXIT_TOLD


class Joining:
    """A `Scaler` whose nodes come by themselves and are somebody else's to end."""

    async def start(self, on_exit: "Callable[[NodeId, ProcessExit], None]") -> None:
        """Nobody reports the end of a node but the node itself."""

    async def scale(self, plan: "ScalePlan") -> None:
        """A node that has to go is told by the master; nobody is launched."""

    async def close(self) -> None:
        """Its Pods are the batch Job's and the ReplicaSet's."""
