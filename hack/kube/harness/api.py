"""As much of a Kubernetes client as the harness needs: requests, and waiting for what a watch tells.

Tests of Shoal's own client do not use this one, so that neither covers up for the other.
"""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

Object = dict[str, Any]
T = TypeVar("T")

BUSY_S = 60
"""How long a server may be too busy to answer."""
WATCH_S = 2
"""How long one watch lasts, which is how often a waiting test finds out that a component died."""


class ApiError(RuntimeError):
    """The API server said no; `status` is HTTP's code and `reason` Kubernetes' word for it."""

    def __init__(self, call: str, status: int, answer: str) -> None:
        try:
            told = json.loads(answer)
        except ValueError:
            told = {}
        self.status = status
        self.reason: str = told.get("reason", "")
        super().__init__(f"{call}: {status} {told.get('message', answer)}")


class Api:
    """One user's calls. Each opens a connection of its own: slow for a benchmark, and nothing can go stale."""

    def __init__(self, server: str, trust: ssl.SSLContext, check: Callable[[], None] = lambda: None) -> None:
        self.address = urlsplit(server).netloc
        """Host and port."""
        self._trust = trust
        self._check = check

    def get(self, path: str, **parameters: Any) -> Object:
        return self.call("GET", path, **parameters)

    def create(self, path: str, body: Object) -> Object:
        return self.call("POST", path, body)

    def patch(self, path: str, body: Object, kind: str = "merge-patch") -> Object:
        return self.call("PATCH", path, body, content_type=f"application/{kind}+json")

    def delete(self, path: str, **parameters: Any) -> Object:
        return self.call("DELETE", path, **parameters)

    def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = "application/json",
        **parameters: Any,
    ) -> Object:
        """A server that has no time, or has still to set a new kind up (429), is asked again."""
        deadline = time.monotonic() + BUSY_S
        while True:
            connection = self._open(method, path, body, content_type, parameters)
            try:
                response = connection.getresponse()
                answer = response.read().decode()
            finally:
                connection.close()
            if response.status != 429 or time.monotonic() > deadline:
                break
            time.sleep(float(response.headers.get("Retry-After", "1")))
        if response.status >= 300:
            raise ApiError(f"{method} {path}", response.status, answer)
        return json.loads(answer) if response.headers.get_content_type() == "application/json" else {"text": answer}

    def wait(
        self, path: str, until: Callable[[list[Object]], T | None], *, what: str, timeout: float = 60, **parameters: Any
    ) -> T:
        """Wait until `until` returns something true for the objects of a collection, and return that.

        It is asked after the first list and again after every change, so it must be quick and choose nothing.
        """
        deadline = time.monotonic() + timeout
        seen: dict[tuple[str, str], Object] = {}
        version = ""
        while True:
            if not version:
                listed = self.get(path, **parameters)
                version = listed["metadata"]["resourceVersion"]
                seen = {_key(item): item for item in listed["items"]}
                if answer := until(list(seen.values())):
                    return answer
            for event in self._watch(path, version, parameters):
                if event["type"] == "ERROR":
                    version = ""  # too old: list again
                    break
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] == "BOOKMARK":
                    continue
                if event["type"] == "DELETED":
                    seen.pop(_key(event["object"]), None)
                else:
                    seen[_key(event["object"])] = event["object"]
                if answer := until(list(seen.values())):
                    return answer
            self._check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout:g} s: {what}; there is: {_shown(list(seen.values()))}")

    def _watch(self, path: str, version: str, parameters: Mapping[str, Any]) -> Any:
        watching = {**parameters, "watch": "true", "resourceVersion": version, "timeoutSeconds": WATCH_S}
        connection = self._open("GET", path, None, "application/json", watching)
        try:
            response = connection.getresponse()
            if response.status >= 300:
                raise ApiError(f"watch {path}", response.status, response.read().decode())
            for line in response:
                yield json.loads(line)
        finally:
            connection.close()

    def _open(
        self, method: str, path: str, body: Object | None, content_type: str, parameters: Mapping[str, Any]
    ) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(self.address, context=self._trust, timeout=30)
        asked = f"{path}?{urlencode(parameters)}" if parameters else path
        connection.request(method, asked, None if body is None else json.dumps(body), {"Content-Type": content_type})
        return connection


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _shown(items: list[Object]) -> str:
    names = ", ".join(item["metadata"]["name"] for item in items)
    told = [f"{item['metadata']['name']}: {json.dumps(item.get('status', {}))[:2000]}" for item in items[:3]]
    return f"{len(items)} objects: {names}" + "".join(f"\n  {line}" for line in told)
