"""Scalers of a master in a Pod: how what it decides becomes Pods.

- `ElasticJobScaler` declares: the master's orders stand in the spec of `<job>-auto`, the operator carries them out and
  answers in its status, which Pods there are and how they ended. The master may touch no Pod. This is the default.
- `PodScaler` acts: it creates and deletes the Pods itself, many at once, each tried again with back-off until it is so,
  and watches them. It needs the right to create Pods, which is the right to read every Secret of the namespace.

Both work from what is, not from what happened: `scale` adds to the orders and returns, a loop makes them so, and what
was carried out is no order any more. An API server that is away for an hour delays everything and loses nothing. Both
tell the master's desk what they see, as often as they see it; what the desk knows already changes nothing.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import msgspec

from shoal.api.elasticjob import Accepted, Grant, Role
from shoal.api.fields import MAX_ENTRIES
from shoal.api.meta import ObjectMeta
from shoal.api.resources import Resource, of_spec, to_spec
from shoal.api.scaleplan import PodReport, ScalePlanSpec, ScalePlanStatus
from shoal.core.errors import BadInput, ShoalError, Superseded
from shoal.core.exits import ProcessExit
from shoal.core.job.values import Announced, Given, JobSpec
from shoal.core.nodes import Node, NodeId, NodeStatus
from shoal.core.nodes import Role as NodeRole
from shoal.core.plans import NodeGroupResource, NodeResource, ScalePlan
from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.errors import AlreadyExists, ApiError, Conflict, NotFound, Unavailable
from shoal.platforms.kubernetes.informer import Informer, InformerSettings
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, SCALE_PLANS
from shoal.platforms.kubernetes.objects import PODS, Json, Pod
from shoal.platforms.kubernetes.orders import (
    THERE,
    WORKERS,
    Orders,
    asked,
    node_named,
    node_of,
    ordered,
    pod_name,
    settled,
    sighting,
)
from shoal.platforms.kubernetes.pods import pod_report

log = logging.getLogger("shoal.master")

MANAGER = "shoal-master"
_FAILED = "failed:"
"""How the operator begins what it says of a Pod that it could not replace."""
Understand = Callable[[Json], JobSpec | None]


class Desk(Protocol):
    """What the master wants to hear of its platform. Said again, nothing of it changes anything."""

    def announced(self, nodes: tuple[Announced, ...]) -> None: ...

    def exists(
        self,
        running: frozenset[NodeId],
        ended: Mapping[NodeId, ProcessExit],
        known: frozenset[NodeId] | None = None,
    ) -> None: ...

    def specified(self, spec: JobSpec) -> None: ...

    def granted(self, count: int, *, victims: frozenset[NodeId], who: str) -> None: ...

    def pinned(self, by: Mapping[NodeRole, str]) -> None: ...

    def resources_pinned(self, given: Mapping[NodeRole, Given]) -> None: ...

    def servers_granted(self, count: int, *, are_too_many: bool, victims: frozenset[NodeId]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerSettings:
    backoff: Backoff = field(default_factory=lambda: Backoff(first_seconds=0.2, limit_seconds=10.0))
    """Between tries of what the API server did not do."""
    at_once: int = 16
    """Pods that are created at the same time."""
    goodbye_seconds: float = 30.0
    """What a node whose work is over gets to end by itself; more than its agent gives its processes. A Pod that ends
    keeps its logs and its seat; one that is deleted does not, and a seat that is free is filled again."""
    informer: InformerSettings = field(default_factory=InformerSettings)


class _Plan(msgspec.Struct, frozen=True):
    """The auto plan, as much of it as counts here."""

    metadata: ObjectMeta
    spec: ScalePlanSpec = ScalePlanSpec()
    status: ScalePlanStatus | None = None


class _JobStatus(msgspec.Struct, frozen=True, rename="camel"):
    grant: Grant | None = None
    accepted_at: list[Accepted] | None = None


class _Job(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    status: _JobStatus | None = None


class _Watching:
    """What both scalers do: declare what the master asks for, watch the job's grant, know what is there, tell the desk,
    keep the orders."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        job: str,
        uid: str,
        managed: frozenset[Role] = WORKERS,
        asks: Mapping[Role, int] | None = None,
        beside: Mapping[Role, int] | None = None,
        understand: Understand | None = None,
        settings: ScalerSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`uid`: the job's; one that took its name is none of ours. `managed`: roles whose members the master knows.
        `asks`: how many members of each role the master asks for before it says more in a plan; what users ask for goes
        first. None: what stands in the job's plan stays until the master says so. `beside`: of roles that the master's
        plans never name, how many it asks for with whatever else it does. `understand`: what a job means that has
        changed, None if it means nothing."""
        self.settings = settings or ScalerSettings()
        self._client = client
        self._namespace, self._job, self._uid = namespace, job, uid
        self._managed = managed
        self._rng = rng or random.Random()
        self._desk: Desk | None = None
        self._woken = asyncio.Event()
        self._orders = Orders()
        self._reports: tuple[PodReport, ...] = ()
        self._seen: frozenset[str] = frozenset()
        self._parting: dict[str, float] = {}
        """Pods that are about to end by themselves, and when they are deleted if they have not."""
        self._understand = understand
        self._understood: tuple[int | None, JobSpec | None] = (None, None)
        """The generation of the job that was last looked at, and what it asks for."""
        self._jobs = self._informer(ELASTIC_JOBS, fields=f"metadata.name={job}")
        self._asks = None if asks is None else _asks_for(asks)
        self._beside = _asks_for(beside or {})
        self._auto = f"{job}-auto"
        self._plans = self._informer(SCALE_PLANS, fields=f"metadata.name={self._auto}")
        self._declared: tuple[str, Orders, Json | None] | None = None
        """What stands in the plan, and the uid of that plan."""

    def serve(self, desk: Desk) -> None:
        """Whom to tell. To be called before `run`."""
        self._desk = desk

    # The port -----------------------------------------------------------------------------------------------

    async def start(self, on_exit: Callable[[NodeId, ProcessExit], None]) -> None:
        """Ends of nodes are told to the desk, with everything else that there is."""

    async def scale(self, plan: ScalePlan) -> None:
        if plan.is_ask:
            if plan.node_group_resources:
                self._asks = asks_of(plan.node_group_resources)
            self._orders = asked(self._orders, plan, job=self._job, reports=self._reports)
            self._woken.set()
            return
        before = self._orders
        replaced = {(node.role, node.seat) for node in plan.launch_nodes}
        going = tuple(
            node for node in plan.remove_nodes if (node.role, node.seat) in replaced or not self._may_part(node)
        )
        plan = replace(plan, remove_nodes=going)
        self._orders = ordered(before, plan, job=self._job, reports=self._reports)
        if not self._orders.are_as(before):
            self._woken.set()

    def _may_part(self, node: Node) -> bool:
        """Whether it ends by itself, and still has the time to."""
        if node.status not in (NodeStatus.SUCCEEDED, NodeStatus.FAILED):
            return False
        loop, name = asyncio.get_running_loop(), pod_name(self._job, node.id)
        if name not in self._parting:
            self._parting[name] = loop.time() + self.settings.goodbye_seconds
            loop.call_at(self._parting[name], self._woken.set)
        return loop.time() < self._parting[name]

    async def close(self) -> None:
        """The nodes are the operator's: it ends them when it hears that the job is over."""

    # What is seen -------------------------------------------------------------------------------------------

    def _observe(self, reports: tuple[PodReport, ...]) -> None:
        assert self._desk is not None
        self._reports = reports
        if (spec := self._spec()) is not None:
            self._desk.specified(spec)
        self._seen |= {report.name for report in reports}
        found = sighting(reports, self._managed)
        self._desk.announced(found.announced)
        known = frozenset(node for name in self._seen if (node := node_named(self._job, name)) is not None)
        self._desk.exists(found.running, found.ended, known)
        stamps = self._stamps()
        self._desk.pinned(pinned_by(stamps))
        self._desk.resources_pinned(given_by(stamps))
        grant = self._grant()
        if grant is not None:
            victims = frozenset(
                node for name in grant.victims or () if (node := node_named(self._job, name)) is not None
            )
            self._desk.granted(granted(grant), victims=victims, who="the grant")
            if Role.PS in self._managed:
                self._tell_of_servers(granted(grant, Role.PS), reports, victims, drains=grant.drain_by is not None)
        self._orders = settled(self._orders, reports, seen=self._seen, failed=self._not_moved())

    def _tell_of_servers(
        self, count: int, reports: tuple[PodReport, ...], victims: frozenset[NodeId], *, drains: bool
    ) -> None:
        """Which servers there are may be known before they are granted: only with a time to drain are there too many,
        or when none at all is granted."""
        assert self._desk is not None
        there = {node_of(report) for report in reports if report.role == Role.PS and report.phase in THERE}
        are_too_many = count == 0 or (drains and len(there) > count)
        self._desk.servers_granted(count, are_too_many=are_too_many, victims=victims & there)

    def _grant(self) -> Grant | None:
        job = self._own_job()
        return None if job is None or job.status is None else job.status.grant

    def _stamps(self) -> Sequence[Accepted]:
        job = self._own_job()
        return () if job is None or job.status is None else job.status.accepted_at or ()

    def _spec(self) -> JobSpec | None:
        """What the job asks for; None: nothing that can be understood, so what it asked for before still counts."""
        job, found = self._own_job(), self._jobs.get(self._namespace, self._job)
        if job is None or found is None or self._understand is None:
            return None
        generation, spec = self._understood
        if job.metadata.generation != generation:
            spec = self._understand(found) or spec
            self._understood = (job.metadata.generation, spec)
        return spec

    def _own_job(self) -> _Job | None:
        """The job, if it is there. Raises `Superseded` when another has its name."""
        found = self._jobs.get(self._namespace, self._job)
        if found is None:
            return None
        job = msgspec.convert(found, _Job)
        check_uid(job.metadata.uid, self._uid, f"{self._namespace}/{self._job}")
        return job

    def _informer(self, kind: Any, *, fields: str | None = None, labels: str | None = None) -> Informer[Any]:
        informer: Informer[Any] = Informer(
            self._client,
            kind,
            namespace=self._namespace,
            fields=fields,
            labels=labels,
            settings=self.settings.informer,
        )
        informer.on_change(lambda _: self._woken.set())
        return informer

    # What is declared ---------------------------------------------------------------------------------------

    def _plan(self) -> _Plan | None:
        """The job's plan. One that is another job's, of the same name, is none: ours is gone or not made yet."""
        found = self._plans.get(self._namespace, self._auto)
        plan = None if found is None else msgspec.convert(found, _Plan)
        if plan is None or self._uid not in (owner.uid for owner in plan.metadata.owner_references or ()):
            return None
        return plan

    def _not_moved(self) -> frozenset[str]:
        """Pods whose replacement has failed, by the operator's word about the plan as it is."""
        plan = self._plan()
        if plan is None or plan.status is None or plan.status.observed_generation != plan.metadata.generation:
            return frozenset()
        return frozenset(each.entry for each in plan.status.done or () if (each.outcome or "").startswith(_FAILED))

    async def _declare(self, orders: Orders) -> None:
        """Say what the master asks for, and these orders, in the plan that the operator made for this job; when that is
        there, if it is not yet."""
        plan = self._plan()
        if plan is None:
            return
        uid = plan.metadata.uid or ""
        said = self._asks if self._asks is not None else _declared_asks(plan)
        asks = {**self._beside, **said} if said else None
        declared = self._declared
        if declared is not None and (declared[0], declared[2]) == (uid, asks) and declared[1].are_as(orders):
            return
        spec: Json = {
            "replicaResourceSpecs": asks,
            "createPods": [msgspec.to_builtins(entry) for entry in orders.create.values()],
            "removePods": [{"name": name} for name in sorted(orders.remove)],
            "migratePods": [msgspec.to_builtins(entry) for entry in orders.migrate.values()],
            "reason": orders.reason[:1024],
        }
        metadata = {"name": self._auto, "namespace": self._namespace, "uid": uid}
        body = {"metadata": metadata, "spec": {name: value for name, value in spec.items() if value}}
        await self._client.apply(SCALE_PLANS, body, manager=MANAGER)
        self._declared = (uid, orders, asks)

    async def _pause(self, failures: int) -> None:
        """Wait before the next try, or until there is news."""
        seconds = self.settings.backoff.seconds(failures, self._rng.random())
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            self._woken.set()


def check_uid(found: str | None, uid: str, job: str) -> None:
    """Raises `Superseded` when the job of that name is another than ours."""
    if found != uid:
        raise Superseded(f"job {job} is another one now ({found}): the one that this master was of ({uid}) is gone")


def pinned_by(stamps: Sequence[Accepted]) -> dict[NodeRole, str]:
    """By role, whose manual ask says how many there are: the last that changed, as the operator counts."""
    found: dict[NodeRole, str] = {}
    for each in _counting(stamps):
        found |= {NodeRole(count.role): _title(each) for count in each.counts or ()}
    return found


def given_by(stamps: Sequence[Accepted]) -> dict[NodeRole, Given]:
    """By role, whose manual ask says what each has, and what: of all that say something the last that changed."""
    found: dict[NodeRole, Given] = {}
    for each in _counting(stamps):
        for said in each.resources or ():
            amounts = asdict(of_spec(said.resource))
            found[NodeRole(said.role)] = Given(_title(each), NodeResource(**amounts))
    return found


def _counting(stamps: Sequence[Accepted]) -> list[Accepted]:
    """The manual asks that count, the last that changed last. The operator gives no two the same stamp."""
    void_before = max((each.at for each in stamps if each.ask == "spec"), default=None)
    counting = [each for each in stamps if void_before is None or each.at >= void_before]
    return sorted(counting, key=lambda each: each.at)


def _title(stamp: Accepted) -> str:
    return stamp.ask.replace("/", " ")


def granted(grant: Grant, role: Role = Role.WORKER) -> int:
    return next((each.count for each in grant.counts or () if each.role == role), 0)


class ElasticJobScaler(_Watching):
    """A `Scaler` that declares `<job>-auto` and reads the operator's answer there."""

    async def run(self) -> None:
        """Keep the orders declared and the desk informed, until cancelled. Raises `Superseded`."""
        try:
            await self._run()
        except* Superseded as group:
            raise group.exceptions[0] from None

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._jobs.run())
            tasks.create_task(self._plans.run())
            await self._jobs.synced()
            await self._plans.synced()
            self._resume()
            failures = 0
            while True:
                self._woken.clear()
                self._observe(self._answer())
                try:
                    await self._declare(self._orders.up_to(MAX_ENTRIES))
                    failures = 0
                    await self._woken.wait()
                except ApiError as exc:
                    failures += 1
                    _complain(f"the plan {self._auto} could not be declared", exc, failures)
                    await self._pause(failures)

    def _resume(self) -> None:
        """What the master before this one had ordered and was not carried out stands until we say otherwise."""
        plan = self._plan()
        if plan is not None:
            create = {entry.name: entry for entry in plan.spec.create_pods or ()}
            remove = frozenset(entry.name for entry in plan.spec.remove_pods or ())
            migrate = {entry.name: entry for entry in plan.spec.migrate_pods or ()}
            declared = Orders(create=create, remove=remove, migrate=migrate)
            self._declared = (plan.metadata.uid or "", declared, _declared_asks(plan))
            self._orders = Orders(
                create={**create, **self._orders.create},
                remove=remove | self._orders.remove,
                migrate={**migrate, **self._orders.migrate},
                reason=self._orders.reason,
            )

    def _answer(self) -> tuple[PodReport, ...]:
        """Without an answer what was last known still is."""
        plan = self._plan()
        return self._reports if plan is None or plan.status is None else tuple(plan.status.pods or ())


def asks_of(groups: Mapping[str, NodeGroupResource]) -> Json:
    """What is asked of each role, as it stands in a plan: `replicaResourceSpecs`."""
    found: Json = {}
    for role, group in groups.items():
        amounts = {name: value for name, value in asdict(group.node_resource).items() if name != "priority"}
        resource = msgspec.to_builtins(to_spec(Resource(**amounts)))
        found[str(role)] = {"replicas": group.count, **({"resource": resource} if resource else {})}
    return found


def _asks_for(counts: Mapping[Role, int]) -> Json:
    return asks_of({role: NodeGroupResource(count=count) for role, count in counts.items()})


def _declared_asks(plan: _Plan) -> Json | None:
    """What stands in the plan already."""
    specs = plan.spec.replica_resource_specs
    return None if specs is None else msgspec.to_builtins(specs)


class PodScaler(_Watching):
    """A `Scaler` that creates and deletes Pods itself. Of `<job>-auto` it needs only the counts that it asks for.

    It obeys the grant: no more Pods at a time than that, whatever is ordered; the rest waits. One Pod replaces another
    as soon as that one is deleted or has ended.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        job: str,
        uid: str,
        labels: str,
        manifest: Callable[[Json, Node], Json],
        report: Callable[[Pod], PodReport | None] = pod_report,
        managed: frozenset[Role] = WORKERS,
        asks: Mapping[Role, int] | None = None,
        beside: Mapping[Role, int] | None = None,
        understand: Understand | None = None,
        settings: ScalerSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`labels` select the job's Pods. `manifest` makes the Pod of a node from the ElasticJob as it is now, or
        raises `BadInput`; `report` says what a Pod tells of its node, None if it is no node's."""
        super().__init__(
            client,
            namespace=namespace,
            job=job,
            uid=uid,
            managed=managed,
            asks=asks,
            beside=beside,
            understand=understand,
            settings=settings,
            rng=rng,
        )
        self._pods: Informer[Pod] = self._informer(PODS, labels=labels)
        self._manifest = manifest
        self._report = report
        self._nodes: dict[str, Node] = {}
        self._tried: dict[str, int] = {}

    async def scale(self, plan: ScalePlan) -> None:
        self._nodes |= {pod_name(self._job, node.id): node for node in plan.launch_nodes}
        await super().scale(plan)

    async def run(self) -> None:
        """Make the orders so and keep the desk informed, until cancelled. Raises `Superseded`."""
        try:
            await self._run()
        except* Superseded as group:
            raise group.exceptions[0] from None

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for informer in (self._jobs, self._plans, self._pods):
                tasks.create_task(informer.run())
            for informer in (self._jobs, self._plans, self._pods):
                await informer.synced()
            failures = 0
            while True:
                self._woken.clear()
                self._observe(self._reported())
                asked = await self._ask(failures)
                failures = failures + 1 if await self._act() or not asked else 0
                if failures:
                    await self._pause(failures)
                else:
                    await self._woken.wait()

    async def _ask(self, failures: int) -> bool:
        """Keep the counts declared. The orders are carried out here: none stands in the plan."""
        try:
            await self._declare(Orders())
        except ApiError as exc:
            _complain(f"the plan {self._auto} could not be declared", exc, failures + 1)
            return False
        return True

    def _reported(self) -> tuple[PodReport, ...]:
        ours = sorted((pod for pod in self._pods.all() if self._owns(pod)), key=lambda pod: pod.metadata.name)
        found = (self._report(pod) for pod in ours)
        return tuple(report for report in found if report is not None)

    def _owns(self, pod: Pod) -> bool:
        return any(owner.controller and owner.uid == self._uid for owner in pod.metadata.owner_references)

    async def _act(self) -> bool:
        """Carry out what can be, side by side. Whether something has to be tried again."""
        deleted = await self._each(self._delete, sorted(self._orders.remove))
        created = await self._each(self._create, self._affordable())
        return not all([*deleted, *created])

    async def _each(self, do: Callable[[str], Awaitable[bool]], names: Sequence[str]) -> list[bool]:
        gate = asyncio.Semaphore(self.settings.at_once)

        async def one(name: str) -> bool:
            async with gate:
                return await do(name)

        async with asyncio.TaskGroup() as tasks:
            doing = [tasks.create_task(one(name)) for name in names]
        return [task.result() for task in doing]

    def _affordable(self) -> Sequence[str]:
        """The Pods that may be created now, the oldest orders first."""
        grant, found = self._grant(), list[str]()
        if grant is None:
            return []
        for role in self._managed:
            there = sum(1 for report in self._reports if report.role == role and report.phase in THERE)
            named = [name for name in self._orders.create if name in self._nodes]
            mine = [name for name in named if self._nodes[name].role.value == role.value]
            found += mine[: max(0, granted(grant, role) - there)]
        return sorted(found, key=list(self._orders.create).index)

    async def _create(self, name: str) -> bool:
        entry, job = self._orders.create.get(name), self._jobs.get(self._namespace, self._job)
        if entry is None or job is None or job["metadata"]["uid"] != self._uid:
            return True  # called off, or the job is gone
        # An agent knows the name of its Pod, the entry that of the machine under it.
        node = replace(self._nodes[name], avoid_hosts=frozenset(entry.avoid_hosts or ()))
        try:
            await self._client.create(PODS, self._manifest(job, node))
        except AlreadyExists as exc:
            there = await self._look(name)
            if there is None or not self._owns(there):
                return self._not_made(name, exc)
        except (ApiError, BadInput) as exc:
            return self._not_made(name, exc)
        self._tried.pop(name, None)
        return True

    def _not_made(self, name: str, why: ShoalError) -> bool:
        self._tried[name] = self._tried.get(name, 0) + 1
        _complain(f"Pod {name} could not be created", why, self._tried[name])
        return False

    async def _look(self, name: str) -> Pod | None:
        """A Pod of which we may know less than the server. None: it is gone, or cannot be had now."""
        try:
            return await self._pods.refresh(self._namespace, name)
        except ApiError:
            return None

    async def _delete(self, name: str) -> bool:
        known = self._pods.get(self._namespace, name)
        if known is None:
            if name not in self._seen:
                self._orders = replace(self._orders, remove=self._orders.remove - {name})
            return True
        if known.metadata.deletion_timestamp is not None:
            return True
        try:
            await self._client.delete(PODS, name, namespace=self._namespace, uid=known.metadata.uid)
        except (NotFound, Conflict):
            await self._look(name)  # gone, or another of that name: not what was meant
        except ApiError as exc:
            _complain(f"Pod {name} could not be deleted", exc, 1)
            return False
        return True


def _complain(what: str, exc: ShoalError, failures: int) -> None:
    """Once at first and then less and less often; an API server that is away is no error of anybody here."""
    if failures & (failures - 1) == 0:
        level = logging.INFO if isinstance(exc, Unavailable) and failures < 4 else logging.WARNING
        log.log(level, "%s: %s; trying again", what, exc)
