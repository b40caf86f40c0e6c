"""What Prometheus and the kubelet ask the operator: /metrics, /healthz, /readyz. Nothing here says anything secret."""

from collections.abc import Callable

from aiohttp import web


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
