"""What people and Prometheus can ask a master over plain HTTP."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
from aiohttp import web

from shoal.core.errors import BadInput
from shoal.core.nodes import Role
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan

if TYPE_CHECKING:
    from shoal.master.master import Master

T = TypeVar("T")


Nodes = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one node should have; what is not said stays as it is."""

    cpu: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    memory: Annotated[int, msgspec.Meta(gt=0, lt=2**40)] | None = None
    """MiB."""


class ScaleRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it, or nothing when a part cannot be."""

    worker: Nodes | Literal["auto"] | None = None
    """auto: as the job's optimizer finds best, and nothing else then."""
    ps: Nodes | Literal["auto"] | None = None
    chief: Nodes | None = None
    evaluator: Nodes | None = None
    migrate: Annotated[dict[str, Wanted], msgspec.Meta(max_length=1000)] = {}
    """Nodes by name that are to have something else: each is replaced, and goes when the other is there."""
    replace: Annotated[tuple[str, ...], msgspec.Meta(max_length=1000)] = ()
    """Nodes by name that are to be replaced as they are, on other hosts."""

    def plan(self) -> ResourcePlan:
        counts = {Role.WORKER: self.worker, Role.PS: self.ps, Role.CHIEF: self.chief, Role.EVALUATOR: self.evaluator}
        wanted = {role: count for role, count in counts.items() if isinstance(count, int)}
        words = [f"{role}={count}" for role, count in wanted.items()]
        words += [f"{name} to other resources" for name in self.migrate]
        words += [f"{name} to another host" for name in self.replace]
        if not words:
            raise BadInput("/scale: what is wanted? Say worker=N, ps=N, migrate or replace")
        return ResourcePlan(
            node_group_resources={role: NodeGroupResource(count=count) for role, count in wanted.items()},
            node_resources={name: NodeResource(cpu=w.cpu, memory=w.memory) for name, w in self.migrate.items()},
            replace_nodes=self.replace,
            reason=", ".join(words),
        )


class StopRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str = "stopped over HTTP"
    grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=86400)] | None = None


def routes(master: "Master") -> list[web.RouteDef]:
    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=master.metrics_text(), content_type="text/plain", charset="utf-8")

    async def state(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(master.view()), content_type="application/json")

    async def stats(request: web.Request) -> web.Response:
        wanted = frozenset(request.query.getall("node", ()))
        return web.Response(
            body=msgspec.json.encode(master.figures(histories_of=wanted)), content_type="application/json"
        )

    async def scale(request: web.Request) -> web.Response:
        asked = await _body(request, ScaleRequest)
        roles = [role for role, count in ((Role.WORKER, asked.worker), (Role.PS, asked.ps)) if count == "auto"]
        if roles:
            if msgspec.structs.replace(asked, **dict.fromkeys(roles)) != ScaleRequest():
                words = " ".join(f"{role}=auto" for role in roles)
                raise BadInput(f"/scale: {words} gives counts back to the optimizer; ask for nothing else beside it")
            return await _answer(master, master.scale_itself(*roles))
        if isinstance(asked.worker, int) and asked == ScaleRequest(worker=asked.worker):
            return await _answer(master, master.scale(asked.worker, who="shoal scale"))
        return await _answer(master, master.follow(asked.plan(), who="shoal scale"))

    async def stop(request: web.Request) -> web.Response:
        asked = await _body(request, StopRequest)
        grace = None if asked.grace_seconds is None else timedelta(seconds=asked.grace_seconds)
        master.stop(asked.reason[:200], grace=grace)
        return await _answer(master, "stopping")

    return [
        web.get("/healthz", healthz),
        web.get("/metrics", metrics),
        web.get("/state", state),
        web.get("/stats", stats),
        web.post("/scale", scale),
        web.post("/stop", stop),
    ]


async def _answer(master: "Master", said: str) -> web.Response:
    """When it is written down: what somebody was told outlives this master. If it cannot be, that is told too."""
    trouble = await master.written_down()
    if trouble is not None:
        said += f"; it cannot be written down ({trouble}), so ask again if the job's master is lost before it can"
    return web.json_response({"said": said})


async def _body(request: web.Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.MsgspecError as exc:
        raise BadInput(f"{request.path}: {exc}") from exc
