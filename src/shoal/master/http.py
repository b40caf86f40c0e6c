"""What people and Prometheus can ask a master over plain HTTP."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from aiohttp import web

from shoal.core.errors import BadInput

if TYPE_CHECKING:
    from shoal.master.master import Master

T = TypeVar("T")


class ScaleRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


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
        return await _answer(master, master.scale(asked.worker, who="shoal scale"))

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
