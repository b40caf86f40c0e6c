"""`run`: what a script calls. What it then is follows from its role, which its agent has put into the environment.

| role             | what `run` does                                                               |
| ---------------- | ----------------------------------------------------------------------------- |
| none             | trains alone: its own chief, its own and only parameter server                |
| ps               | starts a TensorFlow server, says where, and waits for its end; never returns  |
| worker, chief    | trains; returns when all is trained; told to leave, ends with exit code 77    |
| evaluator        | scores checkpoints until the last one, then ends the process                  |

One script for all of them: what stands before `run` is done by every process, what stands after it only by those that
have trained to the end.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from shoal.core.errors import BadInput
from shoal.core.exits import EXIT_LEFT
from shoal.core.nodes import Role, parsed
from shoal.core.ps.words import FromTrainer, ServerReady, ToNode, ToTrainer
from shoal.tensorflow import evaluator, servers
from shoal.tensorflow.alone import Alone
from shoal.tensorflow.evaluator import Evaluate, HeldOut
from shoal.tensorflow.generation import Step
from shoal.tensorflow.graphs import ModelFunction
from shoal.tensorflow.loop import PARTS, Checkpoints, Load, NotSaved, train
from shoal.tensorflow.member import Member
from shoal.tensorflow.pauses import Pause
from shoal.tensorflow.servers import boot
from shoal.trainer.errorfile import write_error
from shoal.trainer.inbox import Inbox
from shoal.trainer.job import Job
from shoal.trainer.meter import Meter
from shoal.trainer.servers import Voice
from shoal.trainer.session import Session
from shoal.wire.local import (
    CHECKPOINT_DIR_VARIABLE,
    CHECKPOINT_FUZZY_VARIABLE,
    CHECKPOINT_KEEP_VARIABLE,
    CHECKPOINT_SECONDS_VARIABLE,
    ROLE_VARIABLE,
    SERVING,
    Report,
)


def run(
    model: ModelFunction,
    load: Load,
    *,
    batch_size: int,
    dataset: str = "train",
    parts: int = PARTS,
    on_step: Callable[[Step], None] = lambda _: None,
    held_out: Sequence[int] = (),
    evaluate: Evaluate | None = None,
    **data: Any,
) -> None:
    """Train until every record of the dataset is trained, by whomever.

    `model` builds the graph from a batch of placeholders and returns a `Model`; `load` makes a batch of record numbers.
    `parts` is into how many parts a large variable is cut: at least as many as there will be parameter servers, and the
    same for the life of the model. `held_out` are records that an evaluator scores each checkpoint with, by the model's
    loss and metrics; `evaluate` scores them in a way of its own instead. `data` are the words of `Job.dataset`: `size`,
    `shard_size`, `epochs`, `shuffle`, …
    """
    progress = _Progress()
    job = Job(os.environ, inbox=Inbox(), progress=progress.report)
    with job.final():
        session = job.session
        role = role_of(os.environ)
        if session is not None and role is Role.PS:
            _be_server(session, progress)
        if session is not None and role is Role.EVALUATOR:
            scored = (
                evaluate
                or HeldOut(
                    boot(session.attached.address), model, load, held_out, batch_size=batch_size, parts=parts
                ).score
            )
            _be_evaluator(session, scored)
        job.dataset(dataset, **data)
        trainer = _Trainer(model, load, batch_size=batch_size, name=dataset, parts=parts, on_step=on_step)
        if session is None:
            trainer.train_alone(job)
            return
        try:
            is_done = trainer.train(job, session, progress)
        except NotSaved as exc:
            write_error(exc, os.environ)
            _tell(str(exc))
            session.heard()
            raise SystemExit(1) from exc
        session.report()  # of the last steps
        session.heard()
        if not is_done:
            raise SystemExit(EXIT_LEFT)  # nothing of the script that stands after this is for those who leave


def role_of(environ: Mapping[str, str]) -> Role:
    """What this process is for; a worker where nothing is said."""
    text = environ.get(ROLE_VARIABLE, Role.WORKER)
    try:
        return Role(text)
    except ValueError:
        raise BadInput(f"{ROLE_VARIABLE} must be one of {', '.join(Role)}, got {text!r}") from None


def checkpoints_of(environ: Mapping[str, str]) -> Checkpoints:
    """Where the job's checkpoints go, and how often."""
    usual = Checkpoints()
    return Checkpoints(
        directory=environ.get(CHECKPOINT_DIR_VARIABLE) or None,
        seconds=float(environ.get(CHECKPOINT_SECONDS_VARIABLE, usual.seconds)),
        keep=int(environ.get(CHECKPOINT_KEEP_VARIABLE, usual.keep)),
        fuzzy=environ.get(CHECKPOINT_FUZZY_VARIABLE) == "1",
    )


# Roles -------------------------------------------------------------------------------------------------------


def _be_server(session: Session, progress: "_Progress") -> NoReturn:
    """Its reports say nothing but that it is there: if they stop, its agent ends it."""
    server = boot(session.attached.address)
    progress.is_server = True
    session.servers.say(ServerReady(address=server.address))
    servers.serve(threading.Event())


def _be_evaluator(session: Session, score: Evaluate) -> NoReturn:
    evaluator.serve(session.servers, score, _tell)
    session.heard()
    raise SystemExit(0)


class _Trainer:
    def __init__(
        self,
        model: ModelFunction,
        load: Load,
        *,
        batch_size: int,
        name: str,
        parts: int,
        on_step: Callable[[Step], None],
    ) -> None:
        self._model, self._load, self._on_step = model, load, on_step
        self._batch_size, self._name, self._parts = batch_size, name, parts

    def train_alone(self, job: Job) -> None:
        server = boot()
        train(
            self._model,
            self._load,
            name=self._name,
            batch_size=self._batch_size,
            parts=self._parts,
            on_step=self._on_step,
            data=job.data,
            server=server,
            coordinator=Alone(server.address),
            worker=None,
        )

    def train(self, job: Job, session: Session, progress: "_Progress") -> bool:
        """False: it was told to leave before all was trained."""
        name = parsed(session.attached.node)
        assert name is not None, f"{session.attached.node} is no node's name"
        checkpoints = checkpoints_of(os.environ)
        if checkpoints.directory is None:
            _tell("no checkpoints are made (--checkpoint-dir): if a parameter server is lost, so is the job")
        leave = threading.Event()

        def told_to_leave() -> None:
            leave.set()
            session.servers.wake()

        _on_sigterm(told_to_leave)

        def on_step(step: Step) -> None:
            progress.stepped(step)
            self._on_step(step)

        def on_pause(pause: Pause) -> None:
            if progress.is_chief:
                _tell(str(pause))

        return train(
            self._model,
            self._load,
            name=self._name,
            batch_size=self._batch_size,
            parts=self._parts,
            on_step=on_step,
            on_pause=on_pause,
            data=job.data,
            server=boot(session.attached.address),
            coordinator=_Linked(session),
            worker=name[1],
            checkpoints=checkpoints,
            leave=leave,
            meter=progress.meter,
            joined=progress.joined,
        )


class _Linked:
    """A `Coordinator`: the master, by way of the agent."""

    def __init__(self, session: Session) -> None:
        self.node = session.attached.node
        self._voice: Voice = session.servers

    def say(self, word: FromTrainer) -> None:
        self._voice.say(word)

    def hear(self, *, wait: float | None) -> ToTrainer | None:
        word: ToNode | None = self._voice.hear(wait=wait)
        return word if isinstance(word, ToTrainer) else None


class _Progress:
    """What a process tells of itself twice a second. Written by the training thread, read by the link's."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.is_server = False
        self._member: Member | None = None
        self._last: Step | None = None
        self._said = 0

    @property
    def is_chief(self) -> bool:
        return self._member is not None and self._member.is_chief

    def joined(self, member: Member) -> None:
        self._member = member

    def stepped(self, step: Step) -> None:
        self._last = step

    def report(self) -> Report | None:
        self._said += 1
        if self.is_server:
            return Report(generation=0, rank=1, step=None, collectives=self._said, busy=SERVING)
        last = self._last
        if last is None:
            return None
        return Report(
            generation=0,
            rank=0 if self.is_chief else 1,  # the chief speaks for the job
            step=last.step,
            collectives=0,
            busy=None,
            metrics={"loss": last.loss, **last.metrics},
            trained=self.meter.trained,
        )


def _on_sigterm(act: Callable[[], None]) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: act())


def _tell(line: str) -> None:
    sys.stderr.write(f"shoal: {line}\n")
    sys.stderr.flush()
