"""The master of one job: one owner of the job's state, one method that changes it.

`_happen` is the only door: event in, `handle` asked, effects carried out, in the event loop's thread and without
awaiting anything. Sends are queued per agent; plans go to the scaler through a queue with retries.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import assert_never

from shoal.core.errors import BadInput, PlatformUnavailable
from shoal.core.exits import ProcessExit
from shoal.core.job import Event, Job, JobSettings, JobSpec, admit, deadline, handle, new_job, refusal, view
from shoal.core.job.handle import Rejected
from shoal.core.job.values import (
    AgentDisconnected,
    AgentJoined,
    Effect,
    End,
    Fence,
    NodeExited,
    Scale,
    ScaleAsked,
    StopAsked,
    Tell,
    Ticked,
)
from shoal.core.nodes import NodeId
from shoal.core.plans import ScalePlan
from shoal.core.ports import Clock, Scaler
from shoal.core.view import DecisionView, JobView
from shoal.master.http import routes
from shoal.master.metrics import MasterMetrics
from shoal.master.translate import to_event, to_message
from shoal.wire.codec import encode
from shoal.wire.messages import PROTOCOL, FromAgent, Hello, Refuse, StorePush, StoreSet, Welcome
from shoal.wire.server import AgentServer, AgentSocket, Listen, ServerSettings
from shoal.wire.tokens import JobKeys

log = logging.getLogger("shoal.master")

TICK = timedelta(seconds=0.5)
"""Silence and hangs are looked for this often; known deadlines are met exactly."""
MIN_WAIT = timedelta(milliseconds=1)
"""Between two ticks, also when a deadline has passed and nothing came of it: the event loop never spins."""
RETRY_SECONDS = (0.1, 0.3, 1.0, 3.0)
"""Between tries of a plan that the platform could not carry out; the last one repeats."""


class SystemClock:
    """The wall clock at the start, and from then on time that neither jumps nor runs while the machine sleeps."""

    def __init__(self) -> None:
        self._start = datetime.now(UTC)
        self._ticks = time.monotonic()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=time.monotonic() - self._ticks)


class Master:
    """Runs one job: `start`, then `run` until it has ended."""

    def __init__(
        self,
        spec: JobSpec,
        settings: JobSettings,
        *,
        scaler: Scaler,
        keys: JobKeys,
        listen: Listen | None = None,
        nodes: int,
        awaited_joins: int = 0,
        clock: Clock | None = None,
        server_settings: ServerSettings | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._scaler = scaler
        self._listeners: list[Callable[[DecisionView], None]] = []
        self._metrics = MasterMetrics()
        self._agents: dict[NodeId, AgentSocket] = {}
        self._plans: asyncio.Queue[tuple[ScalePlan, int]] = asyncio.Queue()
        self._woken = asyncio.Event()
        self._over = asyncio.Event()
        self._server = AgentServer(
            keys=keys, door=self, listen=listen or Listen(), routes=routes(self), settings=server_settings
        )
        self._job, self._first = new_job(
            spec, settings, nodes=nodes, awaited_joins=awaited_joins, now=self._clock.now()
        )

    # For whoever runs it ----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        """Open the port. Raises `BadInput` when it cannot be had."""
        await self._server.start()

    async def run(self) -> JobView:
        """Run the job to its end. Whatever happens, nothing of it is left running afterwards."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._scaler.start(self._node_exited)
                background = [tasks.create_task(self._tick()), tasks.create_task(self._carry_out_plans())]
                self._do(self._first)
                await self._over.wait()
                for task in background:
                    task.cancel()
        finally:
            await self._scaler.close()
            await self._server.close()
        return self.view()

    def view(self) -> JobView:
        return view(self._job, self._clock.now())

    def on_decision(self, listener: Callable[[DecisionView], None]) -> None:
        """Call `listener` for every decision from now on."""
        self._listeners.append(listener)

    def scale(self, count: int, *, who: str) -> str:
        """Ask for so many nodes. Raises `BadInput` with the reason when the job cannot have them."""
        why_not = refusal(self._job, count)
        if why_not is not None:
            raise BadInput(why_not)
        self._happen(ScaleAsked(count=count, who=who))
        return f"{count} nodes asked for"

    def stop(self, reason: str, *, grace: timedelta | None = None) -> None:
        """End the job. A second call shortens the grace period."""
        if self._job.ending is not None and grace is not None:
            self._job = replace(self._job, end_by=self._clock.now() + grace)
            self._woken.set()
            return
        self._happen(StopAsked(reason=reason, grace=grace))

    def metrics_text(self) -> bytes:
        return self._metrics.text(self._job)

    # Agents (the server's door) ---------------------------------------------------------------------------

    def hello(self, hello: Hello, socket: AgentSocket) -> Welcome | Refuse:
        spec = self._job.spec
        if hello.job != spec.name:
            return Refuse(reason=f"this is the master of job {spec.name}, not of {hello.job}")
        if hello.slots != spec.nproc:
            return Refuse(reason=f"job {spec.name} has {spec.nproc} processes per node, this node {hello.slots}")
        now = self._clock.now()
        node = NodeId(hello.node) if hello.node is not None else None
        self._job, answer = admit(self._job, node, hello.incarnation, now)
        if isinstance(answer, Rejected):
            return Refuse(reason=answer.reason)
        earlier = self._agents.get(answer.node)
        if earlier is not None:
            earlier.end()
        socket.node = answer.node
        self._agents[answer.node] = socket
        asyncio.get_running_loop().call_soon(self._joined, answer.node, socket, hello)
        settings = self._job.settings
        return Welcome(
            protocol=PROTOCOL,
            job=spec.name,
            node=answer.node,
            incarnation=min(answer.incarnation, hello.incarnation) if hello.node else answer.incarnation,
            sdk=self._job.sdk,
            max_workers=spec.max_nodes * spec.nproc,
            heartbeat_seconds=settings.heartbeat.total_seconds(),
            max_restarts=spec.max_restarts,
            command=spec.command,
        )

    def _joined(self, node: NodeId, socket: AgentSocket, hello: Hello) -> None:
        if self._agents.get(node) is not socket:
            return
        self._happen(
            AgentJoined(
                node=node,
                incarnation=hello.incarnation,
                generation=hello.generation,
                pid=hello.pid,
                host=hello.host,
                address=hello.address,
            )
        )

    def message(self, socket: AgentSocket, message: FromAgent) -> None:
        assert socket.node is not None
        node = NodeId(socket.node)
        if self._agents.get(node) is not socket:
            return  # fenced, or superseded by a newer connection of the same node
        if isinstance(message, StoreSet):
            self._push_store(node, message)
            return
        event = to_event(node, message)
        if event is not None:
            self._happen(event)

    def closed(self, socket: AgentSocket) -> None:
        node = NodeId(socket.node or "")
        if self._agents.get(node) is socket:
            del self._agents[node]
            self._happen(AgentDisconnected(node=node))

    def _push_store(self, node: NodeId, message: StoreSet) -> None:
        """A key for the bootstrap store of the running world goes to all its members."""
        committed = self._job.rendezvous.committed
        if committed is None or committed.generation != message.generation or committed.member(node) is None:
            return
        data = encode(StorePush(generation=message.generation, store={message.key: message.value}))
        for member in committed.members:
            if (agent := self._agents.get(member.node)) is not None:
                agent.push(data)

    # Everything that happens ------------------------------------------------------------------------------

    def _node_exited(self, node: NodeId, exit: ProcessExit) -> None:
        self._happen(NodeExited(node=node, exit=exit))

    def _happen(self, event: Event) -> None:
        before = self._job
        self._job, effects = handle(before, event, self._clock.now())
        self._metrics.observe(before, event, self._job)
        self._do(effects)
        if self._job.decisions is not before.decisions:
            self._announce(before)
        self._woken.set()

    def _announce(self, before: Job) -> None:
        known = before.decisions[-1] if before.decisions else None
        fresh: list[DecisionView] = []
        for decision in reversed(self._job.decisions):
            if decision is known:
                break
            fresh.append(decision)
        for decision in reversed(fresh):
            log.info("%s", decision.reason)
            for listener in self._listeners:
                listener(decision)

    def _do(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Tell(to=to, what=what):
                    data = encode(to_message(what))
                    for node in to:
                        if (agent := self._agents.get(node)) is not None:
                            agent.push(data)
                case Fence(node=node, reason=reason):
                    if (agent := self._agents.pop(node, None)) is not None:
                        agent.push(encode(Refuse(reason=reason)))
                        agent.end()
                case Scale(plan=plan):
                    self._plans.put_nowait((plan, 0))
                case End():
                    self._over.set()
                case _:
                    assert_never(effect)

    async def _tick(self) -> None:
        routine = self._clock.now() + TICK
        while not self._over.is_set():
            self._woken.clear()
            due = min(deadline(self._job) or routine, routine)
            wait = (due - self._clock.now()).total_seconds()
            if wait > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._woken.wait()
                        continue  # something happened: the deadline may be another one now
            else:
                await asyncio.sleep(MIN_WAIT.total_seconds())
            now = self._clock.now()
            late = max(timedelta(0), now - due)
            self._metrics.lag(late.total_seconds())
            routine = now + TICK
            self._happen(Ticked(late=late))

    async def _carry_out_plans(self) -> None:
        """In order; a plan that fails comes again later, behind the others. Plans name nodes, so order is no matter."""
        loop = asyncio.get_running_loop()
        while True:
            plan, tries = await self._plans.get()
            try:
                await self._scaler.scale(plan)
            except PlatformUnavailable as exc:
                delay = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
                log.warning("plan %r: %s; trying again in %g s", plan.reason, exc, delay)
                loop.call_later(delay, self._plans.put_nowait, (plan, tries + 1))
