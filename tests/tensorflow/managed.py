"""The master's own decisions over real processes: `shoal.core.ps.manager` says what is to be done, and it is done here.

What a master's shell, its agents and its platform do between them is a few lines: words go through pipes, servers are
forked and killed, the ledger is put back. Nothing is decided here.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from tests.tensorflow.driver import PATIENCE, Ended, Job, Stepped
from tests.tensorflow.nodes import PS, start_ps

from shoal.core import ledger as ledgers
from shoal.core.nodes import NodeId, Role
from shoal.core.plans import NodeGroupResource, ResourcePlan, ScalePlan
from shoal.core.ps import manager
from shoal.core.ps.values import (
    CheckpointKept,
    Effect,
    FailJob,
    PSManager,
    PSSettings,
    RefuseTrainer,
    RestartTrainer,
    RollBackLedger,
    Say,
    Scale,
    Tell,
)
from shoal.core.ps.words import Save

Happening = Callable[..., tuple[PSManager, tuple[Effect, ...]]]


@dataclass
class ManagedJob(Job):
    said: list[str] = field(default_factory=list)
    """The manager's reasons."""
    problems: list[Effect] = field(default_factory=list)
    nodes: dict[NodeId, PS] = field(default_factory=dict)

    def start(self, settings: PSSettings, *trainers: str, servers: int) -> None:
        with self._changed:
            self.manager, effects = manager.new_manager(settings, servers=servers, now=datetime.now(UTC))
            self._do(effects)
        for node in trainers:
            self.start_trainer(node)

    def resize(self, servers: int, why: str) -> None:
        """A plan for so many servers; returns when they are those on which everybody trains."""
        plan = ResourcePlan(node_group_resources={Role.PS: NodeGroupResource(count=servers)}, reason=why)
        self.happens(manager.planned, plan)
        self.wait_until(lambda m: m.change is None and m.current is not None and len(m.current.servers) == servers)

    def kill_server(self) -> NodeId:
        """SIGKILL, as its agent would tell of it."""
        node = max(self.nodes)
        self.nodes.pop(node).kill()
        self.happens(manager.server_lost, node, reason=f"{node} was killed")
        return node

    def happens(self, what: Happening, *args: Any, **kwargs: Any) -> None:
        with self._changed:
            self.manager, effects = what(self.manager, *args, now=datetime.now(UTC), **kwargs)
            self._do(effects)
            self._changed.notify_all()

    def wait_until(self, holds: Callable[[PSManager], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self.manager) or bool(self.problems), PATIENCE), self.said
            assert not self.problems

    def end(self) -> None:
        super().end()
        for server in self.nodes.values():
            server.kill()

    def _heard(self, node: str, word: Any) -> None:
        match word:
            case Stepped():
                return
            case Ended():
                happened = (manager.trainer_gone, (NodeId(node),), {"reason": "it has ended"})
            case _:
                happened = (manager.heard, (NodeId(node), 1, Role.WORKER, word), {})
        what, args, kwargs = happened
        self.happens(what, *args, **kwargs)

    def _do(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Tell(to=to, word=word):
                    if isinstance(word, Save):  # everybody stands still: this is what the model has seen
                        word = msgspec.structs.replace(word, mark=ledgers.checkpoint(self.ledger))
                    for node in to:
                        self.trainers[node].say(word)
                case Scale(plan=plan):
                    threading.Thread(target=self._scale, args=(plan,), daemon=True).start()
                case RollBackLedger(mark=mark):
                    self.ledger, _ = ledgers.restored(self.ledger, mark)
                    for held in self._held.values():
                        held.clear()
                case CheckpointKept(checkpoint=checkpoint):
                    self.checkpoints.append(checkpoint)
                case Say(reason=reason):
                    self.said.append(reason)
                case RestartTrainer() | RefuseTrainer() | FailJob():
                    self.problems.append(effect)

    def _scale(self, plan: ScalePlan) -> None:
        launched = [node.id for node in plan.launch_nodes]
        for name, server in zip(launched, start_ps(len(launched)), strict=True):
            self.nodes[name] = server
            self.happens(manager.server_ready, name, 1, server.address)
        for gone in plan.remove_nodes:
            if gone.id in self.nodes:
                self.nodes.pop(gone.id).kill()
            self.happens(manager.server_lost, gone.id, reason="removed as asked")
