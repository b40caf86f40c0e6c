"""A process of a job with parameter servers that has no TensorFlow in it: it says and does what one would have to, and
trains by counting. What it is stands in SHOAL_ROLE."""

import os
import signal
import threading
import time
from pathlib import Path

from shoal.core.ledger import DatasetSpec
from shoal.core.ps.cluster import LiveCopy, Partition, PSCheckpoint
from shoal.core.ps.words import (
    CheckpointMade,
    Drain,
    Drained,
    EvaluatorReady,
    Go,
    ModelNamed,
    Move,
    Moved,
    PreparedPS,
    PreparePS,
    Resumed,
    Save,
    SavedPS,
    SaveWanted,
    Scored,
    ServerReady,
    ToNode,
)
from shoal.trainer.data import Shard
from shoal.trainer.inbox import Inbox
from shoal.trainer.meter import Meter
from shoal.trainer.session import Session
from shoal.wire.local import Report

PACE = float(os.environ.get("PACE", "0"))
"""Seconds that each shard takes. Who takes some counts its steps, and tells how many there were."""
CLICKS = DatasetSpec(name="clicks", size=400 if not PACE else 1_000_000, shard_size=10)
FINISH = Path(os.environ["SHOAL_CHECKPOINT_DIR"]).with_name("finish")
"""The last part of the data is trained when this file exists."""
leave = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: leave.set())


class Trainer:
    meter = Meter()

    def __init__(self, session: Session) -> None:
        self.session = session
        self.sources: dict[int, bool] = {}
        self.running = False
        self.version = 0
        self.chief = ""
        self.saved = threading.Event()

    @property
    def is_chief(self) -> bool:
        return self.chief == self.session.attached.node

    def hear(self, wait: float) -> None:
        word = self.session.servers.hear(wait=wait)
        while word is not None:
            self.do(word)
            word = self.session.servers.hear(wait=0 if self.running else wait)

    def do(self, word: ToNode) -> None:
        say = self.session.servers.say
        match word:
            case PreparePS(cluster=cluster):
                self.sources[cluster.version] = isinstance(cluster.source, LiveCopy)
                say(PreparedPS(version=cluster.version))
            case Drain(barrier=barrier):
                self.running = False
                self.session.data.checkpoint()
                say(Drained(barrier=barrier, step=1))
            case Move(version=version, attempt=attempt):
                say(Moved(version=version, attempt=attempt, checksum="", nbytes=8))
            case Save(version=version, barrier=barrier, path=path, mark=mark):
                made = PSCheckpoint(path=path, step=barrier, version=version, mark=mark)
                say(SavedPS(checkpoint=made, barrier=barrier))
                self.saved.set()
            case Go(version=version, chief=chief):
                if version != self.version and not self.sources.get(version, False):
                    self.session.data.forget()
                self.version, self.chief, self.running = version, chief, True
                say(Resumed(version=version))
            case _:
                self.chief = getattr(word, "chief", self.chief)


def _may_train(shard: Shard) -> bool:
    return shard.lease.start < CLICKS.size * 3 // 4 or FINISH.exists()


def train(session: Session) -> None:
    me, data, trained = Trainer(session), session.data, 0
    data.register(CLICKS)
    data.want(CLICKS.name, prefetch=1)
    session.servers.say(ModelNamed(partitions=(Partition(name="w", nbytes=8), Partition(name="b", nbytes=8))))
    while not leave.is_set():
        me.hear(0 if me.running else 0.05)
        shard = data.take(CLICKS.name, wait=False) if me.running else None
        if shard is not None:
            while not shard.is_lost and not leave.is_set() and not _may_train(shard):
                me.hear(0.02)
            if leave.is_set():
                break
            me.meter.begin()
            time.sleep(PACE)
            data.close(shard)
            trained += 1
            me.meter.committed(samples=CLICKS.shard_size, waited=0.0)
            if me.is_chief and trained % (500 if PACE else 5) == 0:
                session.servers.say(SaveWanted(reason="it is time"))
        elif data.has_ended(CLICKS.name):
            break
        elif me.running:
            time.sleep(0.005)
    if me.is_chief and not leave.is_set():
        me.saved.clear()
        session.servers.say(SaveWanted(reason="end"))
        while not me.saved.is_set():
            me.hear(0.05)
    print(f"trained {trained} shards", flush=True)


def progress() -> Report | None:
    trained = Trainer.meter.trained
    if not PACE or not trained.steps:
        return None
    return Report(generation=0, rank=1, step=trained.steps, collectives=0, busy=None, trained=trained)


def main() -> None:
    session = Session.from_environment(os.environ, inbox=Inbox(), progress=progress)
    assert session is not None
    role = os.environ["SHOAL_ROLE"]
    if role == "ps":
        session.servers.say(ServerReady(address=f"127.0.0.1:{os.getpid()}"))
        leave.wait()
        os._exit(0)
    if role == "evaluator":
        session.servers.say(EvaluatorReady())
        while not leave.is_set():
            word = session.servers.hear(wait=0.1)
            if isinstance(word, CheckpointMade):
                session.servers.say(Scored(path=word.path, metrics={"loss": 1.0}))
                if word.final:
                    break
    else:
        train(session)


if __name__ == "__main__":
    main()
