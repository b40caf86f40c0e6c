"""Between the wire and the core: messages become events, commands become messages. One case each."""

from typing import assert_never

from shoal.core import world
from shoal.core.exits import ProcessExit
from shoal.core.job import values as core
from shoal.core.nodes import NodeId
from shoal.wire import messages as wire


def to_event(node: NodeId, message: wire.FromAgent) -> core.Event | None:
    """The event that a message stands for; None: it is not the core's business."""
    match message:
        case wire.Heartbeat():
            return core.HeartbeatSeen(node=node, incarnation=message.incarnation, processes=message.processes)
        case wire.Ready():
            return core.NodeReady(node=node, incarnation=message.incarnation, steps=message.steps, sdk=message.sdk)
        case wire.Ack():
            return core.NodeAcked(
                node=node,
                incarnation=message.incarnation,
                generation=message.generation,
                store=message.store,
            )
        case wire.Finished():
            return core.NodeFinished(node=node, incarnation=message.incarnation, generation=message.generation)
        case wire.PeerClosed():
            return core.PeerLost(
                node=node,
                incarnation=message.incarnation,
                generation=message.generation,
                detail=message.detail,
            )
        case wire.Progress():
            return core.StepGained(
                node=node,
                incarnation=message.incarnation,
                generation=message.generation,
                step=message.step,
                samples=message.samples,
                metrics=message.metrics,
            )
        case wire.Resized():
            return core.ResizeTold(
                node=node,
                generation=message.generation,
                drain=message.drain,
                rendezvous=message.rendezvous,
                restore=message.restore,
                first_step=message.first_step,
                lost_steps=message.lost_steps,
            )
        case wire.Exited():
            return core.ProcessExited(
                node=node,
                incarnation=message.incarnation,
                local_rank=message.local_rank,
                exit=ProcessExit(
                    code=message.code,
                    oom=message.oom,
                    error=message.error,
                    uptime_seconds=message.uptime_seconds,
                ),
            )
        case wire.Succeeded():
            return core.NodeSucceeded(node=node, incarnation=message.incarnation)
        case wire.Left():
            return core.NodeLeft(node=node)
        case wire.Going():
            return core.NodeGoing(node=node)
        case wire.DataRound(round=said):
            return core.DataAsked(node=node, round=said)
        case wire.PSSaid(incarnation=incarnation, word=word):
            return core.WordSaid(node=node, incarnation=incarnation, word=word)
        case wire.Hello() | wire.StoreSet():
            return None
        case _:
            assert_never(message)


def to_message(command: core.Command) -> wire.FromMaster:
    match command:
        case world.Prepare(world=prepared):
            return wire.Prepare(world=prepared)
        case world.Commit(world=committed, store=store):
            return wire.Commit(generation=committed.generation, store=dict(store))
        case world.Pause(generation=generation, reason=reason):
            return wire.Pause(generation=generation, reason=reason)
        case world.Interrupt(generation=generation, reason=reason):
            return wire.Interrupt(generation=generation, reason=reason)
        case world.Release(generation=generation):
            return wire.Release(generation=generation)
        case world.Dismiss():
            return wire.Leave(reason="the job was scaled down", grace_seconds=0.0)
        case core.RestartNode():
            return wire.Restart(incarnation=command.incarnation, sdk=command.sdk, reason=command.reason)
        case core.KillProcesses():
            return wire.Kill(
                incarnation=command.incarnation,
                local_ranks=command.local_ranks,
                dump_first=True,
                reason=command.reason,
            )
        case core.DumpStacks():
            return wire.DumpStacks(incarnation=command.incarnation, local_ranks=command.local_ranks)
        case core.LeaveNode():
            return wire.Leave(reason=command.reason, grace_seconds=command.grace.total_seconds())
        case core.StopNode():
            grace = command.grace.total_seconds()
            return wire.Stop(reason=command.reason, grace_seconds=grace, has_failed=command.has_failed)
        case core.DataAnswered(answer=answer):
            return wire.DataAnswers(answer=answer)
        case core.DataWoken(wakes=wakes):
            return wire.DataWakes(wakes=wakes)
        case core.SayWord(word=word):
            return wire.PSTold(word=word)
        case _:
            assert_never(command)
