"""What Prometheus and the kubelet ask the operator: /metrics, /healthz, /readyz. Nothing here says anything secret."""

import math
from collections.abc import Callable

from aiohttp import web

STALLED_SECONDS = 60.0
"""Nothing that is done every second or two takes so long."""


def why_unhealthy(
    *,
    loop_idle: float,
    elector_idle: float,
    lease_seconds: float,
    round_idle: float | None = None,
    round_patience: float = math.inf,
) -> str | None:
    """Why this process is of no use any more and had better be started anew. `loop_idle`, `elector_idle`, `round_idle`:
    seconds since a tick of the event loop, since somebody tried for the lease, and since a round of the scheduler ended
    (None: another process makes them). A server that does not answer is no reason, nor is a round that fails: it would
    fail again."""
    most = max(STALLED_SECONDS, 4 * lease_seconds)
    if loop_idle > most:
        return f"the event loop has not come round for {loop_idle:.0f} s"
    if elector_idle > most:
        return f"the lease has not been tried for since {elector_idle:.0f} s"
    if round_idle is not None and round_idle > round_patience:
        return f"no round of the scheduler has come to an end for {round_idle:.0f} s"
    return None


def application(
    *, metrics: Callable[[], bytes], unhealthy: Callable[[], str | None], unready: Callable[[], str | None]
) -> web.Application:
    """`unhealthy` and `unready` say why, or None when all is well."""

    async def serve_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), content_type="text/plain", charset="utf-8")

    async def serve_health(_: web.Request) -> web.Response:
        return _answer(unhealthy())

    async def serve_readiness(_: web.Request) -> web.Response:
        return _answer(unready())

    app = web.Application()
    app.add_routes(
        [
            web.get("/metrics", serve_metrics),
            web.get("/healthz", serve_health),
            web.get("/readyz", serve_readiness),
        ]
    )
    return app


def _answer(why_not: str | None) -> web.Response:
    return web.Response(text="ok\n") if why_not is None else web.Response(text=f"{why_not}\n", status=503)
