"""This process as a member of the job: its session with the agent, and the world it is in.

`enter` brings it into the next world and gives it the source's state, `leave` takes it out of one that is over,
`finish` waits for the others at the end. Without an agent it is the only member of a world that never changes.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from shoal.core.world import World
from shoal.torch.checkpoint import Checkpoints
from shoal.torch.forming import enter_world
from shoal.torch.group import Group
from shoal.torch.takeover import give, take
from shoal.trainer.data import Alone
from shoal.trainer.inbox import Inbox
from shoal.trainer.meter import Meter
from shoal.trainer.phases import Change, resized
from shoal.trainer.session import Session
from shoal.wire.local import Report

if TYPE_CHECKING:
    from shoal.torch.state import State


BURIAL_PATIENCE = 2.0
"""Seconds that a process waits in the end for the threads of its groups; one of a frozen peer may take for ever."""


class Member:
    def __init__(self, state: "State", environ: Mapping[str, str]) -> None:
        self._state = state
        self._inbox = Inbox()
        self._holds_state = False
        """It has the job's state in memory: it was in a world and took it over, or gave it."""
        self._change: Change | None = None
        self._old: list[Group] = []
        self._burials: list[threading.Thread] = []
        self._stepped_in = 0
        """The last generation in which this process committed a step."""
        self.group: Group | None = None
        self.world: World | None = None
        self.busy: str | None = None
        self.meter = Meter()
        self.session = Session.from_environment(environ, inbox=self._inbox, progress=self._report)
        self.data = Alone().data if self.session is None else self.session.data
        self.checkpoints = Checkpoints(state, self.session)
        self._source = 0
        """The rank whose state everybody has: the world's source, or who restored a checkpoint in a world without."""
        self.max_workers = 1 if self.session is None else self.session.attached.max_workers

    @property
    def is_source(self) -> bool:
        return self.group is None or self.group.rank == self._source

    def enter(self) -> Group:
        """Come back in the next world, with the source's state. Raises `WorldChanged` if it ends before that."""
        if self.session is None:
            self.group = Group(generation=1, rank=0, size=1, inbox=self._inbox, device=self._state.device)
            return self.group
        if not self._holds_state:
            _warm_up(self._state.device)
        step = self._state.step if self._holds_state else None
        after = 0 if self.world is None else self.world.generation
        self.world, self.group = enter_world(self.session, step=step, after=after, device=self._state.device)
        self._mark(formed=time.monotonic())
        restored = self.checkpoints.restore(self.group) if self.world.step is None else None
        self._source = self.world.source if restored is None else restored
        self._take_over(self.world, self.group)
        self._holds_state = True
        self._mark(restored=time.monotonic())
        self._burials = [burial for burial in self._burials if burial.is_alive()]
        while self._old:  # everybody has come out of the old worlds by now
            self._burials.append(self._old.pop().bury())
        return self.group

    def leave(self, *, lost_steps: int) -> None:
        """The world is over. Its group is kept until the next one stands: closing its connections now could fail a
        collective that a slower member is just completing."""
        now = time.monotonic()
        self.meter.stop()
        if self.group is not None:
            self._old.append(self.group)
            self.group = None
        if self._change is not None:
            self._change = self._change.broken_again(lost_steps=lost_steps)
        else:
            self._change = Change(noticed=self._inbox.noticed_at or now, stopped=now, lost_steps=lost_steps)

    def stepped(self) -> None:
        """A step was committed; the first one in a world is news at once, and ends the change that led to it."""
        session, group = self.session, self.group
        if session is None or group is None or group.generation == self._stepped_in:
            return
        self._stepped_in = group.generation
        session.report()
        if self._change is not None:
            change, self._change = self._change, None
            session.resized(resized(change, generation=group.generation, rank=group.rank, now=time.monotonic()))

    def finish(self) -> None:
        """The training function is through. Raises `WorldChanged` if the others need this member once more."""
        if self.session is not None and self.group is not None:
            self.session.finish(self.group.generation)
            self._burials.append(self.group.bury())
            until = time.monotonic() + BURIAL_PATIENCE
            for burial in self._burials:
                burial.join(max(0.0, until - time.monotonic()))

    @contextmanager
    def busy_with(self, what: str) -> Iterator[None]:
        before, self.busy = self.busy, what
        began = time.monotonic()
        try:
            yield
        finally:
            self.busy = before
            if before is None:
                self.meter.rested(time.monotonic() - began)

    def _take_over(self, world: World, group: Group) -> None:
        state = self._state
        if group.size == 1:
            return
        if group.rank == self._source:
            give(group, state.contents(everything=world.transfer))
        else:
            state.adopt(take(group, self._source, signature=state.signature()))

    def _mark(self, *, formed: float | None = None, restored: float | None = None) -> None:
        if self._change is not None:
            self._change = replace(
                self._change, formed=formed or self._change.formed, restored=restored or self._change.restored
            )

    def _report(self) -> Report | None:
        """In the link's thread: read each thing once, write nothing."""
        group, state = self.group, self._state
        if group is None:
            return None
        return Report(
            generation=group.generation,
            rank=group.rank,
            step=state.step,
            collectives=group.entered,
            busy=self.busy,
            samples=state.samples_done,
            metrics=dict(state.metrics),
            trained=self.meter.trained,
        )


def _warm_up(device: torch.device) -> None:
    """Start what torch starts lazily (autograd's threads, the device's context) before others wait for this process."""
    torch.ones((), device=device, requires_grad=True).mul(2.0).backward()  # type: ignore[no-untyped-call]
