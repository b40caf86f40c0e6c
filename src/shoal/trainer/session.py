"""A training process's tie to its agent: words out, words in, and the periodic report.

One per process. The main thread says `ready`, waits in the inbox, and says `finish`; the link's background thread
receives and reports. When the agent is gone the process ends at once: the job has fenced it, and what it would
compute nobody may use.
"""

import os
import sys
import threading
from collections.abc import Callable, Mapping

import msgspec

from shoal.core.errors import Disconnected
from shoal.core.nodes import NodeId, Trained
from shoal.core.ps.words import FromNode, ToNode
from shoal.core.world import World
from shoal.trainer.data import Data
from shoal.trainer.inbox import Inbox, WorldChanged
from shoal.trainer.servers import Voice
from shoal.trainer.spare import wait_until_needed
from shoal.wire.local import (
    SOCKET_VARIABLE,
    Attached,
    CheckpointAnswer,
    Checkpoints,
    CheckpointsWanted,
    DataAnswer,
    DataWord,
    FromAgentLocal,
    LocalAck,
    LocalFinished,
    LocalLink,
    LocalPeerClosed,
    LocalReady,
    LocalResized,
    LocalStoreSet,
    Report,
    Saved,
    SlotGiven,
    SlotRefused,
    SlotsMade,
    SlotsWanted,
    SlotWanted,
)

EXIT_AGENT_GONE = 1


class Session:
    """Attached to the agent whose socket `path` is. `progress` is asked for a report about twice a second."""

    def __init__(self, path: str, *, local_rank: int, inbox: Inbox, progress: Callable[[], Report | None]) -> None:
        self.inbox = inbox
        self.local_rank = local_rank
        self._progress = progress
        self._last_report: Report | None = None
        self._released = False
        self._asking = threading.Lock()
        self.data = Data(self._say)
        self.servers = Voice(self._say)
        self._link = LocalLink(
            path, local_rank=local_rank, handle=self._received, report=self._report, closed=self._agent_gone
        )

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], *, inbox: Inbox, progress: Callable[[], Report | None]
    ) -> "Session | None":
        """The session that an agent's environment asks for; None: this process trains alone. A process that was started
        before it is needed waits here."""
        wait_until_needed(environ)
        path = environ.get(SOCKET_VARIABLE)
        if not path:
            return None
        return cls(path, local_rank=int(environ.get("LOCAL_RANK", "0")), inbox=inbox, progress=progress)

    @property
    def attached(self) -> Attached:
        return self._link.attached

    def rank_in(self, world: World) -> int:
        member = world.member(NodeId(self.attached.node))
        assert member is not None, f"{self.attached.node} was told of generation {world.generation} without being in it"
        return member.base_rank + self.local_rank

    # Words to the agent ----------------------------------------------------------------------------------

    def ready(self, step: int | None) -> None:
        """This process stands still and waits for a world; `step` is the last one it committed."""
        self._link.send(LocalReady(step=step))

    def acknowledge(self, generation: int, store: Mapping[str, bytes]) -> None:
        self._link.send(LocalAck(generation=generation, store=dict(store)))

    def store_set(self, generation: int, key: str, value: bytes) -> None:
        self._link.send(LocalStoreSet(generation=generation, key=key, value=value))

    def peer_closed(self, generation: int, detail: str) -> None:
        """A connection inside the world failed. Said from a collective's own thread, so it must not raise."""
        try:
            self._link.send(LocalPeerClosed(generation=generation, detail=detail[:500]))
        except Disconnected:
            pass  # the agent is gone: the link's thread ends the process

    def report(self) -> None:
        """Tell now where this process is, if that is news."""
        report = self._report()
        if report is not None:
            self._link.send(report)

    def resized(self, report: LocalResized) -> None:
        self._link.send(report)

    # Checkpoints -----------------------------------------------------------------------------------------

    def slot(self, nbytes: int) -> SlotGiven | SlotRefused:
        """Shared memory for one save."""
        answer = self._ask(SlotWanted(nbytes=nbytes))
        assert isinstance(answer, SlotGiven | SlotRefused)
        return answer

    def slots(self, nbytes: int) -> tuple[str, ...]:
        """Have shared memory made for coming saves; where it is."""
        answer = self._ask(SlotsWanted(nbytes=nbytes))
        assert isinstance(answer, SlotsMade)
        return answer.paths

    def saved(self, slot: int, *, step: int, nbytes: int) -> None:
        self._link.send(Saved(slot=slot, step=step, nbytes=nbytes))

    def checkpoints(self) -> Checkpoints:
        answer = self._ask(CheckpointsWanted())
        assert isinstance(answer, Checkpoints)
        return answer

    def heard(self) -> None:
        """Return when the agent has heard all that was said: what it has not read when the process ends is lost."""
        self.checkpoints()  # any question would do: answers come in order

    def _ask(self, question: SlotWanted | SlotsWanted | CheckpointsWanted) -> CheckpointAnswer:
        """The agent's answer. If the agent dies first, so does this process."""
        inbox = self.inbox
        with self._asking:
            self._link.send(question)
            with inbox.changed:
                inbox.changed.wait_for(lambda: inbox.answer is not None)
                answer, inbox.answer = inbox.answer, None
        assert answer is not None
        return answer

    # Waiting ---------------------------------------------------------------------------------------------

    def wait_prepared(self, *, after: int) -> World:
        """The world that is being prepared, as soon as there is one newer than `after`."""
        with self.inbox.changed:
            self.inbox.changed.wait_for(lambda: self.inbox.is_superseded(after))
            assert self.inbox.prepared is not None
            return self.inbox.prepared

    def finish(self, generation: int) -> None:
        """The training function is through: wait until all members' are. Raises `WorldChanged` if the world ends.

        A pause does not count: its members agree on a step, and no step comes any more. Whoever came out for it now
        could cross the release on the way.
        """
        self.report()  # the periodic one may come too late to tell of the last steps
        self._link.send(LocalFinished(generation=generation))
        inbox = self.inbox
        with inbox.changed:
            inbox.changed.wait_for(lambda: inbox.released >= generation or inbox.is_broken(generation))
            if inbox.released < generation:
                raise WorldChanged(inbox.reason)
            self._released = True

    def _say(self, word: DataWord | FromNode) -> None:
        self._link.send(word)

    # In the link's thread --------------------------------------------------------------------------------

    def _received(self, message: FromAgentLocal) -> None:
        if isinstance(message, DataAnswer):
            self.data.received(message)
        elif isinstance(message, ToNode):
            self.servers.received(message)
        else:
            self.inbox.receive(message)

    def _report(self) -> Report | None:
        self.data.flush()
        report = self._progress()
        if report is not None and report.trained is None and self.data.records:
            # Nobody counts its steps, but its data is known.
            counted = Trained(steps=0, samples=self.data.records, step_seconds=0.0, work_seconds=0.0)
            report = msgspec.structs.replace(report, trained=counted)
        if report is None or report == self._last_report:
            return None
        self._last_report = report
        return report

    def _agent_gone(self) -> None:
        if self._released:
            return  # training is over; the script may still be saving its model
        sys.stderr.write("shoal: the agent of this process is gone, the process ends\n")
        sys.stderr.flush()
        os._exit(EXIT_AGENT_GONE)
