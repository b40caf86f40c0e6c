"""An API server in this process, for tests: real HTTP on loopback, the behaviour of `fake_store` behind it.

    async with FakeApiServer() as server:
        server.serve(ELASTIC_JOBS, status=True, scale=("spec.worker.replicas", "status.replicas"))
        client = Client(server.access())

Use it where a test is about *your* code and a real API server would be the same. One contract suite runs against this
one and the real one, so that what it promises is what Kubernetes does. Nothing runs Pods here: a test is the scheduler
and the kubelet, through the same API (`bind`, `finish`), and sets `status` itself.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from shoal.platforms.kubernetes import objects, workloads
from shoal.platforms.kubernetes.access import Access, Identity
from shoal.platforms.kubernetes.errors import Permission
from shoal.platforms.kubernetes.fake_merge import Json, merged, value_at
from shoal.platforms.kubernetes.fake_store import Happened, Refusal, Served, Store, admission
from shoal.platforms.kubernetes.objects import Kind

_encode = msgspec.json.encode
Allow = Callable[[str, Permission], bool]
"""Whether a user may do something."""

SCALE_KIND = {"apiVersion": "autoscaling/v1", "kind": "Scale"}
BUILT_IN: Mapping[Kind[Any], frozenset[str]] = {
    objects.NAMESPACES: frozenset({"status"}),
    objects.PODS: frozenset({"status", "resize", "eviction", "log", "binding"}),
    objects.SERVICES: frozenset(),
    objects.SECRETS: frozenset(),
    objects.CONFIG_MAPS: frozenset(),
    objects.NODES: frozenset({"status"}),
    objects.RESOURCE_QUOTAS: frozenset({"status"}),
    objects.SERVICE_ACCOUNTS: frozenset({"token"}),
    objects.ROLES: frozenset(),
    objects.ROLE_BINDINGS: frozenset(),
    objects.LEASES: frozenset(),
    objects.EVENTS: frozenset(),
    objects.NETWORK_POLICIES: frozenset(),
    objects.POD_DISRUPTION_BUDGETS: frozenset({"status"}),
    objects.ACCESS_REVIEWS: frozenset(),
    workloads.REPLICA_SETS: frozenset({"status"}),
    workloads.STATEFUL_SETS: frozenset({"status"}),
    workloads.JOBS: frozenset({"status"}),
}


class FakeApiServer:
    def __init__(
        self,
        *,
        now: Callable[[], datetime] | None = None,
        tokens: Mapping[str, str] | None = None,
        allow: Allow | None = None,
        bookmark_seconds: float = 1.0,
    ) -> None:
        """`tokens`: users by token; None: everybody is let in, as `admin`. `allow`: None allows everything."""
        self.store = Store(now or (lambda: datetime.now(UTC)))
        self.tokens = tokens
        self.calls: list[tuple[str, str]] = []
        """Verb and resource of every request, watches too, in order."""
        self.logs: dict[tuple[str, str], bytes] = {}
        self.guarded: set[tuple[str, str]] = set()
        """Pods, by namespace and name, that a disruption budget keeps from being evicted."""
        self._allow = allow or (lambda _user, _permission: True)
        self._bookmark_seconds = bookmark_seconds
        self._pages: dict[str, tuple[list[Json], int]] = {}
        self._woken = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.url = ""
        for kind, subresources in BUILT_IN.items():
            self.store.serve(Served(kind=kind, subresources=subresources))
        self.store.changed = self._wake
        self.store.create(self.store.shelf("", "v1", "namespaces"), "", {"metadata": {"name": "default"}})

    async def __aenter__(self) -> "FakeApiServer":
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def access(self, token: str | None = None) -> Access:
        return Access(server=self.url, credentials=_Token(token)) if token else Access(server=self.url)

    # What a test does to it -------------------------------------------------------------------------------

    def serve(
        self,
        kind: Kind[Any],
        *,
        status: bool = True,
        scale: tuple[str, str] | None = None,
        validate: Callable[[Json], Iterable[tuple[str, str]]] | None = None,
        categories: tuple[str, ...] = (),
    ) -> None:
        """Serve a custom kind."""
        names = {name for name, there in (("status", status), ("scale", scale is not None)) if there}
        self.store.serve(
            Served(
                kind=kind,
                subresources=frozenset(names),
                is_custom=True,
                scale=scale,
                validate=validate,
                categories=categories,
            )
        )

    def compact(self) -> None:
        """Forget the history and the pages of lists: watches and lists from before meet 410."""
        self.store.compact()
        self._pages.clear()

    def bind(self, namespace: str, name: str, host: str) -> None:
        """Be the scheduler and the kubelet: the Pod is on a host and runs."""
        self._set(namespace, name, {"spec": {"nodeName": host}}, None)
        self._set(namespace, name, {"status": {"phase": "Running"}}, "status")

    def finish(self, namespace: str, name: str, *, phase: str = "Succeeded") -> None:
        """Be the kubelet: the Pod's processes are over; one that was being deleted is gone now."""
        pods = self.store.shelf("", "v1", "pods")
        self._set(namespace, name, {"status": {"phase": phase}}, "status")
        if "deletionTimestamp" in self.store.get(pods, (namespace, name))["metadata"]:
            self.store.delete(pods, (namespace, name), {"gracePeriodSeconds": 0})

    def objects(self, kind: Kind[Any]) -> list[Json]:
        """What is there, without asking over HTTP."""
        return self.store.listed(self.store.shelf(kind.group, kind.version, kind.plural), None, None, None)

    def _set(self, namespace: str, name: str, change: Json, subresource: str | None) -> None:
        pods = self.store.shelf("", "v1", "pods")
        self.store.patch(pods, (namespace, name), "application/merge-patch+json", change, subresource)

    def _wake(self) -> None:
        self._woken.set()
        self._woken = asyncio.Event()

    # Answering --------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._routed(request)
        except Refusal as refusal:
            return _json(refusal.body, refusal.code)
        except (msgspec.DecodeError, KeyError, AttributeError, TypeError, ValueError) as exc:
            problem = Refusal(400, "BadRequest", f"the server could not understand the request: {exc!r}")
            return _json(problem.body, 400)

    async def _routed(self, request: web.Request) -> web.StreamResponse:
        user = self._user(request)
        parts = request.path.strip("/").split("/")
        match parts:
            case ["version"]:
                return _json({"major": "1", "minor": "35", "gitVersion": "v1.35.0-fake"})
            case ["readyz" | "healthz" | "livez"]:
                return web.Response(text="ok")
            case ["api", version]:
                return self._discovery("", version)
            case ["apis", group, version]:
                return self._discovery(group, version)
            case ["api", version, *rest]:
                return await self._resource(request, user, "", version, rest)
            case ["apis", group, version, *rest]:
                return await self._resource(request, user, group, version, rest)
            case _:
                return web.Response(status=404, text="404 page not found\n")

    def _user(self, request: web.Request) -> str:
        if self.tokens is None:
            return "admin"
        user = self.tokens.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if user is None:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        return user

    def _discovery(self, group: str, version: str) -> web.Response:
        resources = [
            {
                "name": name,
                "kind": served.kind.kind,
                "namespaced": served.kind.namespaced,
                "categories": list(served.categories),
            }
            for served in self.store.served()
            if (served.kind.group, served.kind.version) == (group, version)
            for name in (served.kind.plural, *(f"{served.kind.plural}/{sub}" for sub in sorted(served.subresources)))
        ]
        if not resources:
            return web.Response(status=404, text="404 page not found\n")
        return _json({"kind": "APIResourceList", "resources": resources})

    async def _resource(
        self, request: web.Request, user: str, group: str, version: str, rest: list[str]
    ) -> web.StreamResponse:
        namespace: str | None = None
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        shelf = self.store.shelf(group, version, rest[0])
        name = rest[1] if len(rest) > 1 else None
        subresource = rest[2] if len(rest) > 2 else None
        if subresource is not None and subresource not in shelf.served.subresources:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        self._check(request, user, shelf.served, namespace, name, subresource)
        if name is None:
            return await self._collection(request, shelf, namespace)
        return await self._object(request, shelf, (namespace or "", name), subresource)

    def _check(
        self,
        request: web.Request,
        user: str,
        served: Served,
        namespace: str | None,
        name: str | None,
        subresource: str | None,
    ) -> None:
        verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        reading = "watch" if "watch" in request.query else ("list" if name is None else "get")
        verb = verbs.get(request.method, reading)
        resource = served.kind.plural + (f"/{subresource}" if subresource else "")
        self.calls.append((verb, resource))
        permission = Permission(verb=verb, group=served.kind.group, resource=resource, namespace=namespace)
        if not self._allow(user, permission):
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            raise Refusal(
                403,
                "Forbidden",
                f'{resource} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group '
                f'"{served.kind.group}" {where}',
                kind=served.kind.plural,
                group=served.kind.group,
                name=name or "",
            )

    async def _collection(self, request: web.Request, shelf: Any, namespace: str | None) -> web.StreamResponse:
        match request.method:
            case "GET" if request.query.get("watch") in ("true", "1"):
                return await self._watch(request, shelf, namespace)
            case "GET":
                return self._list(request, shelf, namespace)
            case "POST" if shelf.served.kind.plural == "selfsubjectaccessreviews":
                return self._review(await _body(request), self._user(request))
            case "POST":
                dry = request.query.get("dryRun") == "All"
                return _json(self.store.create(shelf, namespace or "", await _body(request), dry_run=dry), 201)
            case _:
                raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the resource")

    async def _object(
        self, request: web.Request, shelf: Any, key: tuple[str, str], subresource: str | None
    ) -> web.StreamResponse:
        match request.method, subresource:
            case _, "scale":
                return await self._scale(request, shelf, key)
            case "POST", "eviction":
                body = await _body(request)
                if key in self.guarded:
                    why = "Cannot evict pod as it would violate the pod's disruption budget."
                    raise Refusal(429, "TooManyRequests", why)
                self.store.delete(shelf, key, body.get("deleteOptions") or {})
                return _json({"kind": "Status", "status": "Success"}, 201)
            case "POST", "binding":
                body = await _body(request)
                self.bind(*key, body["target"]["name"])
                return _json({"kind": "Status", "status": "Success"}, 201)
            case "POST", "token":
                account = self.store.get(shelf, key)["metadata"]
                status = {"token": f"token-of-{key[1]}-{account['uid']}", "expirationTimestamp": "2099-01-01T00:00:00Z"}
                return _json({**await _body(request), "status": status}, 201)
            case "GET", "log":
                self.store.get(shelf, key)
                return web.Response(body=self.logs.get(key, b""))
            case "GET", None | "status":
                return _json(self.store.get(shelf, key))
            case "PUT", _:
                return _json(self.store.update(shelf, key, await _body(request), subresource))
            case "PATCH", _:
                return await self._patch(request, shelf, key, subresource)
            case "DELETE", None:
                options = await _body(request) if request.can_read_body else {}
                return _json(*_deleted(shelf.served, *self.store.delete(shelf, key, options)))
            case _:
                raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the resource")

    async def _patch(
        self, request: web.Request, shelf: Any, key: tuple[str, str], subresource: str | None
    ) -> web.StreamResponse:
        body, content = await _body(request), request.content_type
        if content != "application/apply-patch+yaml":
            return _json(self.store.patch(shelf, key, content, body, subresource))
        manager = request.query.get("fieldManager")
        if not manager:
            raise Refusal(422, "Invalid", "fieldManager: Required value: is required for apply patch")
        obj, made = self.store.apply(
            shelf,
            key,
            body,
            manager,
            subresource,
            force=request.query.get("force") == "true",
            dry_run=request.query.get("dryRun") == "All",
        )
        return _json(obj, 201 if made else 200)

    async def _scale(self, request: web.Request, shelf: Any, key: tuple[str, str]) -> web.Response:
        obj = self.store.get(shelf, key)
        wanted_path, actual_path = (path.split(".") for path in shelf.served.scale)
        if request.method in ("PUT", "PATCH"):
            change: Json = {wanted_path[-1]: (await _body(request))["spec"]["replicas"]}
            for field in reversed(wanted_path[:-1]):
                change = {field: change}
            obj = self.store.patch(shelf, key, "application/merge-patch+json", change, None)
        meta = {name: obj["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
        spec = {"replicas": _dig(obj, wanted_path)}
        return _json({**SCALE_KIND, "metadata": meta, "spec": spec, "status": {"replicas": _dig(obj, actual_path)}})

    def _review(self, body: Json, user: str) -> web.Response:
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(part for part in (asked.get("resource"), asked.get("subresource")) if part)
        permission = Permission(
            verb=asked["verb"], group=asked.get("group", ""), resource=resource, namespace=asked.get("namespace")
        )
        return _json(merged(body, {"status": {"allowed": self._allow(user, permission)}}), 201)

    # Lists and watches ------------------------------------------------------------------------------------

    def _list(self, request: web.Request, shelf: Any, namespace: str | None) -> web.Response:
        query = request.query
        token = query.get("continue")
        if token:
            if token not in self._pages:
                raise Refusal(410, "Expired", "The provided continue parameter is too old")
            items, version = self._pages.pop(token)
        else:
            items = self.store.listed(shelf, namespace, query.get("labelSelector"), query.get("fieldSelector"))
            version = self.store.version
        limit = int(query.get("limit", "0")) or len(items)
        meta: Json = {"resourceVersion": str(version)}
        if len(items) > limit:
            rest = f"{version}-{len(self._pages)}-{len(items) - limit}"
            self._pages[rest] = (items[limit:], version)
            meta |= {"continue": rest, "remainingItemCount": len(items) - limit}
        if "as=PartialObjectMetadataList" in request.headers.get("Accept", ""):
            bare = [_bare(obj) for obj in items[:limit]]
            return _json({"kind": "PartialObjectMetadataList", "metadata": meta, "items": bare})
        return _json({"kind": f"{shelf.served.kind.kind}List", "metadata": meta, "items": items[:limit]})

    async def _watch(self, request: web.Request, shelf: Any, namespace: str | None) -> web.StreamResponse:
        query = request.query
        admits = admission(namespace, query.get("labelSelector"), query.get("fieldSelector"))
        version = int(query.get("resourceVersion") or self.store.version)
        loop = asyncio.get_running_loop()
        end = loop.time() + float(query.get("timeoutSeconds", "1800"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while loop.time() < end:
            woken = self._woken
            try:
                news = self.store.since(shelf, version)
            except Refusal as refusal:
                await response.write(_line("ERROR", refusal.body))
                break
            shown = [line for each in news if (line := _shown(each, admits)) is not None]
            if shown:
                await response.write(b"".join(shown))
            version = news[-1].version if news else version
            try:
                async with asyncio.timeout_at(min(end, loop.time() + self._bookmark_seconds)):
                    await woken.wait()
            except TimeoutError:
                # Up to here nothing was missed, though it happened to other kinds.
                if not self.store.since(shelf, max(version, self.store.oldest)):
                    version = max(version, self.store.version)
                    if query.get("allowWatchBookmarks") == "true":
                        await response.write(_bookmark(shelf.served.kind, version))
        return response


class _Token:
    def __init__(self, token: str) -> None:
        self._token = token

    async def identity(self) -> Identity:
        return Identity(headers={"Authorization": f"Bearer {self._token}"})

    def refused(self) -> bool:
        return False


def _shown(each: Happened, admits: Callable[[Json], bool]) -> bytes | None:
    """An entry of the history as one watch sees it: what leaves its sight is deleted, what enters is added."""
    was = each.before is not None and admits(each.before)
    now = each.type != "DELETED" and admits(each.object)
    if now:
        return _line("MODIFIED" if was else "ADDED", each.object)
    return _line("DELETED", each.object) if was else None


def _deleted(served: Served, obj: Json, gone: bool) -> tuple[Json, int]:
    """Built-in Pods come back as they were; of most other kinds that are gone only a Status tells."""
    if gone and served.kind.kind not in ("Pod", "Service", "ServiceAccount"):
        details = {"name": obj["metadata"]["name"], "kind": served.kind.plural, "uid": obj["metadata"]["uid"]}
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details}, 200
    return obj, 200


def _line(type_: str, obj: Json) -> bytes:
    return _encode({"type": type_, "object": obj}) + b"\n"


def _bookmark(kind: Kind[Any], version: int) -> bytes:
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    return _line("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta})


def _bare(obj: Json) -> Json:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _dig(obj: Json, path: list[str]) -> int:
    found = value_at(obj, tuple(path))
    return found if isinstance(found, int) else 0


async def _body(request: web.Request) -> Any:
    return msgspec.json.decode(await request.read())


def _json(obj: Any, status: int = 200) -> web.Response:
    return web.Response(body=_encode(obj), status=status, content_type="application/json")
