"""`shoal master`: the master of one job, as a process of its own. Started and watched by `shoal run`; in a cluster by
the operator, as `shoal master --kubernetes` (see `master_pod`) or `--training` (see `master_training`).

Everything it needs stands in a private file, `MasterConfig`, so that any number of masters can be started for one
job, one after the other; nothing secret is in argv. A master waits for its turn: it has imported everything when it
reads from standard input how to begin (`Turn`), so a spare one is ready within milliseconds.

Exit codes:

| code | meaning                                                                             |
| ---- | ----------------------------------------------------------------------------------- |
| 0    | the job is over and the platform has been told; or standard input closed before the turn came |
| 2    | another master would fare no better: the state is somebody else's, unreadable, gone |
| 3    | superseded: another master has the job                                              |
| else | it died; another one can take over                                                  |
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.cli.flags import Flag, Given, as_list, read
from shoal.core.errors import (
    BadInput,
    ShoalError,
    StateTaken,
    StateUnavailable,
    StateUnreadable,
    Superseded,
)
from shoal.core.job import JobSettings, JobSpec

if TYPE_CHECKING:
    from shoal.core.ports import StateStore
    from shoal.wire.server import Listen

EXIT_OVER, EXIT_HOPELESS, EXIT_SUPERSEDED = 0, 2, 3
STATE = "Its state"

# fmt: off
FLAGS: tuple[Flag, ...] = (
    Flag(name="config", metavar="FILE", group=STATE, help="What job it is the master of (written by shoal run)."),
    Flag(name="store", metavar="DIR|URL", group=STATE,
         help="Where the job's state is kept: a directory, or etcd://HOST:PORT/PREFIX."),
    Flag(name="kubernetes", group=STATE, help="In a Pod: the job, its state and its tokens are the cluster's."),
    Flag(name="training", group=STATE, help="In a Pod of a TrainingJob: its state is in etcd, and trainers join."),
    Flag(name="sockets", metavar="LIST", group=STATE, help="Descriptors of sockets that listen already."),
)
# fmt: on


class Turn(StrEnum):
    """One line on standard input."""

    NEW = "new"
    """Begin the job: it has no state yet, or what the master before this one left, of which nobody has heard."""
    TAKE_OVER = "take-over"
    """Go on with the job's state; that there is none is an error."""
    RESUME = "resume"
    """Begin the job again from its state: nothing of it runs any more. That there is none is an error."""


class MasterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A master's job. Holds the job's key: readable by its owner only."""

    spec: JobSpec
    settings: JobSettings
    uid: str
    install_key: bytes
    host: str
    port: int
    cert_pem: bytes | None
    key_pem: bytes | None
    fingerprint: str | None
    names: tuple[str, ...]
    nodes: int
    awaited_joins: int

    def listen(self, sockets: tuple[int, ...]) -> "Listen":
        from shoal.wire.server import Listen
        from shoal.wire.tls import Certificate

        certificate = None
        if self.cert_pem is not None and self.key_pem is not None and self.fingerprint is not None:
            certificate = Certificate(cert_pem=self.cert_pem, key_pem=self.key_pem, fingerprint=self.fingerprint)
        return Listen(host=self.host, port=self.port, certificate=certificate, names=self.names, sockets=sockets)


def words(config: Path, store: str, sockets: Sequence[int]) -> tuple[str, ...]:
    """The command line of a master."""
    return ("master", "--config", str(config), "--store", store, "--sockets", ",".join(map(str, sockets)))


def main(line: Sequence[str]) -> int:
    said = read(line, {}, FLAGS)
    if said.help:
        from shoal.cli.help import print_help

        print_help("shoal master --config FILE --store DIR", "The master of one job.", FLAGS)
        return 0
    if "kubernetes" in said.values:
        from shoal.cli import master_pod

        return _with_exit_codes(lambda: master_pod.main(os.environ))
    if "training" in said.values:
        from shoal.cli import master_training

        return _with_exit_codes(lambda: master_training.main(os.environ))
    config = _config(Path(_needed(said.values, "config")))
    store = open_store(_needed(said.values, "store"))
    sockets = tuple(map(int, as_list(said.values["sockets"]))) if "sockets" in said.values else ()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    import asyncio

    # All that a master needs is imported now, before its turn comes.
    from shoal import master
    from shoal.wire import tokens

    _ = (master, tokens)
    turn = sys.stdin.readline().strip()
    if turn not in tuple(Turn):
        return EXIT_OVER
    return _with_exit_codes(lambda: asyncio.run(_run(config, store, sockets, Turn(turn))))


def _with_exit_codes(act: Callable[[], int]) -> int:
    try:
        return act()
    except Superseded as exc:
        return _say(exc, EXIT_SUPERSEDED)
    except (BadInput, StateTaken, StateUnreadable, StateUnavailable) as exc:
        return _say(exc, EXIT_HOPELESS)


async def _run(config: MasterConfig, store: "StateStore", sockets: tuple[int, ...], turn: Turn) -> int:
    from shoal.master import Begin, Master, RemoteScaler
    from shoal.wire.tokens import JobKeys

    master = Master(
        config.spec,
        config.settings,
        scaler=RemoteScaler(),
        keys=JobKeys(uid=config.uid, install_key=config.install_key),
        listen=config.listen(sockets),
        nodes=config.nodes,
        awaited_joins=config.awaited_joins,
        store=store,
        begin={Turn.NEW: Begin.ANYHOW, Turn.TAKE_OVER: Begin.TAKE_OVER, Turn.RESUME: Begin.RESUME}[turn],
    )
    await master.start()
    await master.run()
    return EXIT_OVER


def open_store(where: str) -> "StateStore":
    """A directory, or `etcd://HOST:PORT/PREFIX`. Raises `BadInput` for anything else."""
    if where.startswith(("etcd://", "etcds://")):
        from shoal.stores.etcd import EtcdStore

        return EtcdStore.at(where)
    if "://" in where:
        raise BadInput(f"a store is a directory or etcd://HOST:PORT/PREFIX, got {where!r}")
    from shoal.stores.file import FileStore

    return FileStore(Path(where))


def _config(path: Path) -> MasterConfig:
    try:
        return msgspec.json.decode(path.read_bytes(), type=MasterConfig)
    except (OSError, msgspec.MsgspecError) as exc:
        raise BadInput(f"shoal master: {path} is no configuration of a master: {exc}") from exc


def _needed(values: Mapping[str, Given], key: str) -> str:
    if key not in values:
        raise BadInput(f"shoal master wants --{key}")
    return values[key].text


def _say(exc: ShoalError, code: int) -> int:
    print(exc, file=sys.stderr)
    return code
