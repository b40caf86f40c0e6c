"""The master of one job: one owner of the job's state, one method that changes it.

`_happen` is the only door: event in, `handle` asked, in the event loop's thread and without awaiting anything. With a
`StateStore` what was decided is recorded before it is acted upon: one task writes what has changed and then carries out
the effects, and whatever happens while it writes goes into the next record. Sends are queued per agent (`Agents`),
plans go to the scaler through a queue with retries (`Plans`).

A store that is away does not stop training: what is decided is done all the same, for a master that follows learns it
from those who did it. Only who is let go for good waits for the record, and not for ever (`waits_for_record`). Versions
of parameter servers do wait as long as it takes (`must_be_recorded`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from shoal.core import journal
from shoal.core.errors import BadInput, Superseded
from shoal.core.exits import ProcessExit
from shoal.core.figures import JobFigures, figures
from shoal.core.job import (
    Event,
    Job,
    JobSettings,
    JobSpec,
    admit,
    asked_again,
    deadline,
    fenced,
    following,
    grants_news,
    handle,
    is_forgotten,
    is_later,
    is_news,
    must_be_recorded,
    named,
    new_job,
    noted,
    plan_refusal,
    reconcile,
    refusal,
    resumed,
    staying,
    taken_over,
    view,
    waits_for_record,
)
from shoal.core.job.handle import Rejected
from shoal.core.job.sizing import bounds
from shoal.core.job.values import (
    AgentDisconnected,
    AgentJoined,
    Announced,
    CountPinned,
    DataAnswered,
    DataAsked,
    DataWoken,
    Effect,
    End,
    Fence,
    Given,
    NodeExited,
    NodesAnnounced,
    PlanAsked,
    ResourcePinned,
    SayWord,
    Scale,
    ScaleAsked,
    ServersGranted,
    SpecChanged,
    StopAsked,
    Tell,
    Ticked,
)
from shoal.core.nodes import NodeId, Role
from shoal.core.optimizing import ResourceOptimizer
from shoal.core.plans import ResourcePlan
from shoal.core.ports import Clock, Scaler, StateStore
from shoal.core.sizing import is_still, look_at
from shoal.core.view import DecisionView, JobPhase, JobView, says_how_many
from shoal.master.agents import Agents
from shoal.master.clock import SystemClock
from shoal.master.http import routes
from shoal.master.keeper import Keeper
from shoal.master.metrics import MasterMetrics
from shoal.master.plans import Plans
from shoal.master.platform import RemoteScaler
from shoal.master.sizer import Sizer
from shoal.master.translate import to_event, to_message
from shoal.master.watch import Watch
from shoal.wire.codec import encode
from shoal.wire.messages import (
    PROTOCOL,
    DataAnswers,
    DataKept,
    FromAgent,
    Hello,
    Refuse,
    StoreSet,
    Welcome,
)
from shoal.wire.platform import JobSeen, PlatformHello, StopOrder
from shoal.wire.server import AgentServer, AgentSocket, Listen, ServerSettings
from shoal.wire.tokens import TokenCheck

log = logging.getLogger("shoal.master")

TICK = timedelta(seconds=0.5)
"""Silence and hangs are looked for this often; known deadlines are met exactly."""
MIN_WAIT = timedelta(milliseconds=1)
"""Between two ticks, also when a deadline has passed and nothing came of it: the event loop never spins."""
ANNOUNCED_SECONDS = 5.0
"""How long an agent is kept at the door whose node the platform has not announced yet: it may be faster than the
announcement. After that it has to knock again."""
_KILLED = 128 + 9
CLAIM_SECONDS = 25.0
"""How long a master that takes over waits for a store that does not answer: less than agents wait for their master."""
ANSWER_SECONDS = 3.0
"""How long somebody who asks for something waits for it to be written down."""


class Begin(StrEnum):
    """How a master begins when its store is not empty, or is."""

    ANYHOW = "anyhow"
    """Go on with the job if its state is there, else begin it."""
    TAKE_OVER = "take-over"
    """Go on with the job whose nodes are still there; that there is no state is an error."""
    RESUME = "resume"
    """Begin the job again, of which nothing runs any more; that there is no state is an error."""


class Master:
    """Runs one job: `start`, then `run` until it has ended."""

    def __init__(
        self,
        spec: JobSpec,
        settings: JobSettings,
        *,
        scaler: Scaler,
        keys: TokenCheck,
        listen: Listen | None = None,
        nodes: int,
        awaited_joins: int = 0,
        clock: Clock | None = None,
        server_settings: ServerSettings | None = None,
        store: StateStore | None = None,
        begin: Begin = Begin.ANYHOW,
        optimizer: ResourceOptimizer | None = None,
    ) -> None:
        """`store`: keep the job's state there, and go on with what is there already; None: it dies with this master.
        `optimizer`: who sizes a job that sizes itself; None: its own statistics do."""
        self._begin = begin
        self._clock = clock or SystemClock()
        self._keeper = None if store is None else Keeper(store, self._clock, changed=self._durability)
        self._undone: list[Effect] = []
        self._held: tuple[Effect, ...] = ()
        """What waits for a store that is away."""
        self._unrecorded = asyncio.Event()
        self._recorded: list[asyncio.Future[None]] = []
        self._unkept: dict[NodeId, int] = {}
        """The newest round of each agent that was answered and is not written down."""
        self._is_awaited = False
        """An agent is about to end and waits for its last word to be written down."""
        self._departing: set[NodeId] = set()
        """Whose last words, of a process at least, are not written down."""
        self._heard_of_nodes = asyncio.Event()
        self._higher_term: tuple[int, str] | None = None
        """The highest term above this master's that somebody has told of, and who did."""
        self.term = 0
        self._scaler = scaler
        self._listeners: list[Callable[[DecisionView], None]] = []
        self._metrics = MasterMetrics()
        self._watch = Watch(settings.optimizer.sample)
        self._sizer = Sizer(optimizer)
        self._agents = Agents()
        self._plans = Plans(scaler)
        self._woken = asyncio.Event()
        self._over = asyncio.Event()
        self._server = AgentServer(
            keys=keys,
            door=self,
            listen=listen or Listen(),
            routes=[*routes(self), *(scaler.routes(self) if isinstance(scaler, RemoteScaler) else ())],
            settings=server_settings,
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
        """Take the job's state over, if there is any, and open the port.

        Raises `BadInput` when the port cannot be had, and what `StateStore.claim` raises; nothing is left open then.
        """
        try:
            await self._take_on()
            await self._server.start()
        except BaseException:
            if self._keeper is not None:
                await self._keeper.close()
            raise

    async def _take_on(self) -> None:
        if self._keeper is not None:
            must_exist = self._begin is not Begin.ANYHOW
            patience = CLAIM_SECONDS if self._begin is Begin.TAKE_OVER else 0.0
            claimed, found = await self._keeper.claim(must_exist=must_exist, patience=patience)
            self.term = claimed.term
            if found is not None:
                self._job, self._first = self._begun_with(found)
                self._watch.taken_on(self._job)
            await self._keeper.keep(self._job)

    def _begun_with(self, found: Job) -> tuple[Job, tuple[Effect, ...]]:
        now, fresh = self._clock.now(), (self._job, self._first)
        if self._begin is Begin.RESUME:
            spec, settings = self._job.spec, self._job.settings
            joins = len(self._job.places)
            nodes = self._job.target - joins
            return resumed(found, spec, settings, nodes=nodes, awaited_joins=joins, term=self.term, now=now)
        if self._begin is Begin.ANYHOW and found.spec.uid != self._job.spec.uid:
            if found.phase is JobPhase.SUCCEEDED:
                return fresh
            how = "its master is lost" if found.ended is None else f"it is {found.phase}"
            raise BadInput(
                f"the store holds the state of job {found.spec.name} ({how}): go on with that one "
                f"(shoal run --resume {found.spec.name}), or give another --store"
            )
        assert self._keeper is not None
        reason = f"master {self.term} took over"
        asked = self._job.spec if self._job.spec.platform_grows else None
        replays = self._keeper.replays
        job = taken_over(found, now, reason=reason, term=self.term, is_replayed=replays, asked=asked)
        return job, asked_again(job)

    async def run(self) -> JobView:
        """Run the job to its end. Whatever happens, nothing of it is left running afterwards.

        Raises `Superseded` when another master has the job: then everything is left to it.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._scaler.start(self._node_exited)
                background = [
                    tasks.create_task(self._tick()),
                    tasks.create_task(self._plans.run()),
                    tasks.create_task(self._size()),
                ]
                if self._keeper is not None:
                    background.append(tasks.create_task(self._record()))
                self._do(self._first)
                if self._job.ended is not None:
                    self._over.set()  # the master before this one died on its last words
                await self._over.wait()
                for task in background:
                    task.cancel()
        except* Superseded as group:
            raise group.exceptions[0] from None
        finally:
            await self._scaler.close()
            await self._server.close()
            if self._keeper is not None:
                await self._keeper.close()
        return self.view()

    def view(self) -> JobView:
        return view(self._job, self._clock.now())

    async def recorded(self) -> None:
        """Wait until the job as it is now is written down: for a master that is about to leave it to the next one."""
        if self._keeper is not None and self._job.ended is None:
            await self._is_recorded()

    async def written_down(self) -> str | None:
        """Wait until what was just asked for is written down, so that the next master knows it. Returns why it is not,
        if it cannot be: it is done all the same."""
        if self._keeper is None:
            return None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.recorded()
        except TimeoutError:
            return self._keeper.trouble or "the store does not answer"
        return self._keeper.trouble

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

    def scale_itself(self, *roles: Role) -> str:
        """Let the optimizer say again how many nodes of these roles there are. Raises `BadInput` for a job that has no
        optimizer, or no such role."""
        spec = self._job.spec
        asked = " ".join(f"{role}=auto" for role in roles)
        if spec.sizing is None:
            raise BadInput(
                f"job {spec.name} does not size itself: it was started without --autoscale, "
                f"so {asked} means nothing to it"
            )
        unknown = [role for role in roles if role not in bounds(spec)]
        if unknown:
            raise BadInput(f"job {spec.name} has no {unknown[0]}, so {asked} means nothing to it")
        for role in roles:
            self._happen(CountPinned(role=role, by=None))
        return "; ".join(says_how_many("the optimizer", role) for role in roles)

    def follow(self, plan: ResourcePlan, *, who: str, victims: frozenset[NodeId] = frozenset()) -> str:
        """Bring the job to where a plan wants it; what it does not say stays as it is. It may come while an earlier one
        is still being followed. Raises `BadInput` with the reason when the job cannot; then nothing of it is done."""
        why_not = plan_refusal(self._job, plan)
        if why_not is not None:
            raise BadInput(why_not)
        self._happen(PlanAsked(plan=plan, who=who, victims=victims))
        return f"asked for: {plan.reason}"

    def stop(self, reason: str, *, grace: timedelta | None = None) -> None:
        """End the job. A second call shortens the grace period."""
        if self._job.ending is not None and grace is not None:
            self._job = replace(self._job, end_by=self._clock.now() + grace)
            self._woken.set()
            self._unrecorded.set()
            return
        self._happen(StopAsked(reason=reason, grace=grace))

    def metrics_text(self) -> bytes:
        return self._metrics.text(self._job, self.figures(with_history=False, with_sparks=False))

    def figures(
        self, *, with_history: bool = True, with_sparks: bool = True, histories_of: Collection[str] = ()
    ) -> JobFigures:
        """What the job uses and how fast it is; with the histories of these nodes."""
        known, now = self._watch.statistics, self._clock.now()
        return figures(
            self._job, known, now, with_history=with_history, with_sparks=with_sparks, histories_of=histories_of
        )

    # Agents (the server's door) ---------------------------------------------------------------------------

    async def hello(self, hello: Hello, socket: AgentSocket) -> Welcome | Refuse | None:
        spec = self._job.spec
        if hello.job != spec.name:
            return Refuse(reason=f"this is the master of job {spec.name}, not of {hello.job}")
        # Where the platform makes the nodes each has the processes that go with its devices, and those may change.
        if hello.slots != spec.nproc and not spec.platform_grows:
            return Refuse(reason=f"job {spec.name} has {spec.nproc} processes per node, this node {hello.slots}")
        if not await self.outranks(hello.term, hello.node or hello.host):
            return None
        node = NodeId(hello.node) if hello.node is not None else None
        if node is not None and self._is_to_be_announced(node) and not await self._is_announced(node):
            return None
        before = self._job
        role = Role.PS if hello.role == Role.PS else Role.WORKER
        self._job, answer = admit(before, node, hello.incarnation, self._clock.now(), role=role)
        if isinstance(answer, Rejected):
            return Refuse(reason=answer.reason)
        if self._job is not before and self._keeper is not None:
            await self._is_recorded()  # a name that was given away stays given away
        self._agents.welcome(answer.node, socket)
        asyncio.get_running_loop().call_soon(self._joined, answer.node, socket, hello)
        settings = self._job.settings
        return Welcome(
            protocol=PROTOCOL,
            job=spec.name,
            node=answer.node,
            incarnation=min(answer.incarnation, hello.incarnation) if hello.node else answer.incarnation,
            sdk=self._job.sdk,
            max_workers=spec.micro_batches,
            heartbeat_seconds=settings.heartbeat.total_seconds(),
            max_restarts=spec.max_restarts,
            command=spec.command,
            term=self.term,
            checkpoint=spec.checkpoint,
            resumed=self._job.resumed > 0,
        )

    def _is_to_be_announced(self, node: NodeId) -> bool:
        """Whether the platform may know of a node that the job does not: because it adds them itself, or because the
        master that asked for it could not write it down."""
        return self._job.spec.platform_grows or (self.term > 1 and is_later(self._job, node))

    async def _is_announced(self, node: NodeId) -> bool:
        """Whether the platform has told of a node, now or in a moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANNOUNCED_SECONDS):
                while not self._is_known(node):
                    await self._heard_of_nodes.wait()
        return self._is_known(node)

    def _is_known(self, node: NodeId) -> bool:
        """Whether `admit` can answer it for good."""
        return node in self._job.nodes or is_forgotten(self._job, node) or self._job.ending is not None

    async def outranks(self, term: int, who: str) -> bool:
        """Whether this master's term is above one that somebody has heard of.

        If it is not, the store is asked: either another master owns the state, and this one must end and says nothing
        more; or the store has lost its term, and this one goes on with a term above all that were heard of.
        """
        if self._keeper is None or term <= self.term:
            return True
        if self._higher_term is None or term > self._higher_term[0]:
            self._higher_term = (term, who)
        await self._is_recorded()
        return term < self.term

    def _joined(self, node: NodeId, socket: AgentSocket, hello: Hello) -> None:
        if not self._agents.speaks_for(node, socket):
            return
        self._happen(
            AgentJoined(
                node=node,
                incarnation=hello.incarnation,
                generation=hello.generation,
                prepared=hello.prepared,
                sdk=hello.sdk,
                pid=hello.pid,
                host=hello.host,
                address=hello.address,
            )
        )

    def message(self, socket: AgentSocket, message: FromAgent) -> None:
        assert socket.node is not None
        node = NodeId(socket.node)
        if not self._agents.speaks_for(node, socket):
            return
        if isinstance(message, StoreSet):
            self._agents.push_store(self._job.rendezvous.committed, node, message)
            return
        servers = self._job.servers
        is_speaker = servers is None or servers.chief == node
        self._watch.heard(node, message, self._clock.now(), is_speaker=is_speaker)
        event = to_event(node, message)
        if event is not None:
            self._happen(event)

    def closed(self, socket: AgentSocket) -> None:
        node = NodeId(socket.node or "")
        if self._agents.speaks_for(node, socket):
            self._agents.forget(node)
            self._happen(AgentDisconnected(node=node))

    # The platform, where it is another process (`RemoteScaler`'s desk) -------------------------------------

    def seen(self) -> JobSeen:
        trouble = self._keeper.trouble if self._keeper is not None else None
        return JobSeen(term=self.term, view=self.view(), trouble=trouble)

    def refuses(self, hello: PlatformHello) -> str | None:
        if hello.job != self._job.spec.name:
            return f"this is the master of job {self._job.spec.name}, not of {hello.job}"
        return None

    def exists(
        self,
        running: frozenset[NodeId],
        ended: Mapping[NodeId, ProcessExit],
        known: frozenset[NodeId] | None = None,
    ) -> None:
        """What there is on the platform; `known`: see `reconcile`."""
        self._job = named(self._job, {*running, *ended, *(known or ())})
        for node, exit in ended.items():
            told = self._job.nodes.get(node)
            if told is not None and (told.is_live or node in self._job.unexplained):
                self._node_exited(node, exit)
        found = reconcile(self._job, running, known=known, reason="the platform came back without them")
        for lost in found.gone:
            self._node_exited(lost.id, ProcessExit(code=_KILLED))
        if not found.plan.is_empty:
            self._decided((Scale(plan=found.plan),))

    def granted(self, count: int, *, victims: frozenset[NodeId], who: str) -> None:
        """The platform gives the job so many nodes; 0 suspends it. Said again, it changes nothing."""
        job = self._job
        if job.ending is None and job.ended is None and (count != job.target or count < len(staying(job))):
            self._happen(ScaleAsked(count=count, who=who, victims=victims))

    def servers_granted(self, count: int, *, are_too_many: bool, victims: frozenset[NodeId]) -> None:
        """The platform wants so many parameter servers there. Said again, it changes nothing."""
        job, said = self._job, ServersGranted(count=count, are_too_many=are_too_many, victims=victims)
        if job.ending is None and job.ended is None and grants_news(job, said):
            self._happen(said)

    def announced(self, nodes: tuple[Announced, ...]) -> None:
        """The platform has added these nodes by itself, or is about to."""
        if any(is_news(self._job, each) for each in nodes):
            self._happen(NodesAnnounced(nodes=nodes))
            self._heard_of_nodes.set()
            self._heard_of_nodes = asyncio.Event()

    def pinned(self, by: Mapping[Role, str]) -> None:
        """Whose asks say how many nodes there are, by role; of the others the optimizer does. Said again, it changes
        nothing."""
        for role in map(Role, bounds(self._job.spec)):
            if self._job.spec.sizing is not None and self._job.sizing.pins.get(role) != by.get(role):
                self._happen(CountPinned(role=role, by=by.get(role)))

    def resources_pinned(self, given: Mapping[Role, Given]) -> None:
        """Whose asks say what each node has, by role, and what. Said again, it changes nothing."""
        for role in map(Role, bounds(self._job.spec)):
            if self._job.spec.sizing is not None and self._job.sizing.given.get(role) != given.get(role):
                self._happen(ResourcePinned(role=role, given=given.get(role)))

    def specified(self, spec: JobSpec) -> None:
        """This is what the user asks for now. Said again, it changes nothing."""
        if self._job.ending is None and self._job.ended is None and following(self._job, spec) != self._job.spec:
            self._happen(SpecChanged(spec=spec))

    def stop_order(self, order: StopOrder) -> None:
        grace = None if order.grace_seconds is None else timedelta(seconds=max(0.0, order.grace_seconds))
        self.stop(order.reason, grace=grace)

    # Everything that happens ------------------------------------------------------------------------------

    def _node_exited(self, node: NodeId, exit: ProcessExit) -> None:
        self._happen(NodeExited(node=node, exit=exit))

    def _happen(self, event: Event) -> None:
        before = self._job
        now = self._clock.now()
        self._job, effects = handle(before, event, now)
        self._metrics.observe(before, event, self._job, now)
        if isinstance(event, DataAsked) and event.round.departed:
            self._is_awaited = True
            self._departing.add(event.node)
        if effects or journal.is_worth_a_look(event):
            self._decided(effects)
        if self._job.decisions is not before.decisions:
            self._announce(before)
        self._woken.set()

    def _decided(self, effects: tuple[Effect, ...]) -> None:
        """Do what was decided; with a store, when it is written down."""
        if self._keeper is None:
            self._do(effects)
            return
        self._undone += effects
        self._unrecorded.set()

    async def _record(self) -> None:
        """Write what has changed, then do what was decided. Ends only by `Superseded`."""
        assert self._keeper is not None
        while True:
            await self._unrecorded.wait()
            self._unrecorded.clear()
            if self._higher_term is not None:
                await self._rise_above(*self._higher_term)
            effects, self._undone = self._undone, []
            waiting, self._recorded = self._recorded, []
            at_once = bool(waiting) or self._is_awaited or not all(_is_about_data(effect) for effect in effects)
            answered, self._unkept, self._is_awaited = self._unkept, {}, False
            if await self._keeper.keep(self._job, at_once=at_once):
                for node, number in answered.items():
                    self._agents.push(node, encode(DataKept(number=number)))
                is_kept = True
                self._departing.clear()
            else:
                self._unkept = answered
                is_kept = False
            self.term = self._keeper.term
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
            self._do(self._ripe(tuple(effects)), is_kept=is_kept)
            if self._keeper.is_in_lasting_trouble:
                self._let_go()

    def _ripe(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """What is to be done now; the rest waits for the store."""
        assert self._keeper is not None
        effects, self._held = (*self._held, *effects), ()
        if self._keeper.may_be_back_soon:
            self._held = tuple(effect for effect in effects if waits_for_record(effect))
        elif self._keeper.is_away:
            self._held = self._unsayable(effects)
        held = set(map(id, self._held))
        return tuple(effect for effect in effects if id(effect) not in held)

    def _unsayable(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """The words that are never said before they are written down, and, for the order matters, those after them."""
        assert self._keeper is not None
        words = [effect for effect in effects if isinstance(effect, Tell) and isinstance(effect.what, SayWord)]
        is_vital = (must_be_recorded(word, self._keeper.written) for word in words)
        first = next((number for number, vital in enumerate(is_vital) if vital), len(words))
        return tuple(words[first:])

    @property
    def _are_words_held(self) -> bool:
        return any(isinstance(effect, Tell) and isinstance(effect.what, SayWord) for effect in self._held)

    def _let_go(self) -> None:
        """Who is about to end does not wait for a store that has been in trouble for long."""
        for node in self._departing & self._unkept.keys():
            self._agents.push(node, encode(DataKept(number=self._unkept[node], is_written=False)))
            self._departing.discard(node)

    async def _rise_above(self, term: int, who: str) -> None:
        """Take a term above one that was heard of. Raises `Superseded` when the store has another owner."""
        assert self._keeper is not None
        self._higher_term = None
        try:
            risen = await self._keeper.raise_term(term + 1)
        except Superseded as exc:
            raise Superseded(f"{who} has spoken to master {term}, this is master {self.term} ({exc})") from exc
        if risen:
            reason = f"the store had lost its term: {who} has spoken to master {term}, this is master {term + 1} now"
            self.term = self._keeper.term
            self._job = noted(fenced(self._job, self.term), reason, self._clock.now())

    async def _is_recorded(self) -> None:
        """Wait until the job as it is now is written down."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._recorded.append(waiter)
        self._unrecorded.set()
        await waiter

    def _durability(self, trouble: str | None) -> None:
        """The state can be kept no more, or again."""
        assert self._keeper is not None
        loss = "the next one has to ask the agents what was decided since" if self._keeper.replays else "the job ends"
        reason = (
            "the job's state is kept again"
            if trouble is None
            else f"the job's state cannot be kept: {trouble}; training goes on, but if this master dies {loss}"
        )
        before, self._job = self._job, noted(self._job, reason, self._clock.now())
        self._announce(before)

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

    def _do(self, effects: tuple[Effect, ...], *, is_kept: bool = True) -> None:
        for effect in effects:
            match effect:
                case Tell(to=(node,), what=DataAnswered(answer=answer)):
                    if not is_kept:
                        self._unkept[node] = answer.number
                    self._agents.push(node, encode(DataAnswers(answer=answer, is_kept=is_kept)))
                case Tell(to=to, what=what):
                    data = encode(to_message(what))
                    for node in to:
                        self._agents.push(node, data)
                case Fence(node=node, reason=reason):
                    self._agents.fence(node, reason)
                case Scale(plan=plan):
                    self._plans.add(plan)
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
            self._watched(now)
            self._happen(Ticked(late=late, are_words_held=self._are_words_held))

    async def _size(self) -> None:
        """Look now and then whether the job should have another size. No fault in that stops the job."""
        while True:
            try:
                await self._look()
            except Exception:
                log.exception("the optimizer could not look at the job; training goes on, and it is tried again")
            await asyncio.sleep(self._job.settings.sizing_interval.total_seconds())

    async def _look(self) -> None:
        look = look_at(self._job, self._watch.statistics, self._clock.now())
        if look is None:
            return
        answer = await self._sizer.answer(look)
        if is_still(self._job, look):  # else the next look is about what has become of it
            self._happen(answer)

    def _watched(self, now: datetime) -> None:
        """Take the sums, and have the statistics written down when they are due. No fault in them stops the job."""
        try:
            self._watch.ticked(self._job, now)
            kept = None if self._keeper is None else self._watch.due(self._job, now, pace=self._keeper.pace)
        except Exception:
            log.exception("the job's statistics are dropped, and begin anew: they cannot be summed up or written down")
            self._watch = Watch(self._job.settings.optimizer.sample)
            return
        if kept is not None and kept != self._job.statistics:
            self._job = replace(self._job, statistics=kept)
            self._unrecorded.set()


def _is_about_data(effect: Effect) -> bool:
    """Nothing but leases, and words about them: agents know what they hold, whoever the master is."""
    return isinstance(effect, Tell) and isinstance(effect.what, DataAnswered | DataWoken)
