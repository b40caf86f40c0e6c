"""One Kubernetes cluster, made of the real programs, for tests and for people.

The *control plane* (etcd, API server, controller manager, scheduler) is always there and needs no root. On it stand,
when asked for, *simulated hosts* (`hosts.py`: kwok says what a kubelet would say, nothing runs) and a *real node*
(`node.py`: containerd and kubelet, Pods that run; root). All of it belongs to a folder: `logs/` stays, `data/` goes
with the cluster, `users/` has one kubeconfig per user.

RBAC is on. Whoever calls the API server does so as somebody: `kubeconfig` is the administrator's, `user` makes a person
with a client certificate, `service_account` a program with a token.
"""

import re
import subprocess
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from . import parts
from .api import Api, ApiError, Object
from .certificates import Authority
from .control_plane import LOOPBACK, ControlPlane
from .hosts import Hosts
from .node import Node
from .processes import Processes
from .users import Users

ADMINISTRATORS = ["system:masters"]
SERVICES = "10.96.0.0/16"
"""The Services' addresses where there is no node to bring packets to them."""

START_S = 120


class Cluster:
    """A running cluster, from `with Cluster(folder)` to the end of the block, or of this process if that comes first.

    `kept` makes one that outlives this process; `tear_down(folder)` takes it down.
    """

    def __init__(self, folder: Path, *, simulated_hosts: bool = False, node: bool = False, kept: bool = False) -> None:
        if node:
            parts.for_a_node()
        wanted = ["kube", *(["kwok"] if simulated_hosts else []), *(["coredns", "pause"] if node else [])]
        self.programs = parts.built(*wanted)
        self.folder = folder
        self.processes = Processes(folder, kept=kept)
        self._authority = Authority()
        self._users = Users(folder / "users", self._authority)
        self._node = Node(self.processes, self.programs) if node else None
        self._hosts = Hosts(self.processes, self.programs) if simulated_hosts else None

    def __enter__(self) -> "Cluster":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._start_control_plane()
        if self._hosts is not None:
            self._hosts.start(self.api, self.kubeconfig)
        if self._node is not None:
            self._node.join(self.api, self._authority, self._kubeconfigs_of_a_node)

    def stop(self) -> None:
        self.processes.stop()

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._users.server

    # Who may do what, and how they get in

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self._users.folder / "admin"

    def user(self, name: str, groups: Sequence[str] = ()) -> Path:
        """The kubeconfig of a person, who has a client certificate and may do what roles bound to the name allow."""
        return self._users.with_certificate(name, groups)

    def service_account(
        self, namespace: str, name: str, *, lifetime: timedelta = timedelta(days=1), create: bool = True
    ) -> Path:
        """The kubeconfig of a program, which has a token of its service account (made first, unless it is there)."""
        if create:
            self._make_service_account(namespace, name)
        token = self.token(namespace, name, lifetime=lifetime)
        return self._users.with_token(f"{namespace}-{name}", token, namespace)

    def token(self, namespace: str, name: str, *, lifetime: timedelta = timedelta(days=1)) -> str:
        """A token of an existing service account, by TokenRequest (10 minutes is the least the server agrees to)."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": int(lifetime.total_seconds())},
        }
        return str(self.api.create(path, asked)["status"]["token"])

    # What tests do all the time

    @property
    def api(self) -> Api:
        """The administrator's calls."""
        return self._api

    @property
    def hosts(self) -> Hosts:
        """The simulated hosts."""
        assert self._hosts is not None, "this cluster was started without simulated hosts"
        return self._hosts

    @property
    def node(self) -> Node:
        """The real node."""
        assert self._node is not None, "this cluster was started without a real node"
        return self._node

    def namespace(self, name: str) -> str:
        """A namespace made of any text, ready for Pods: its default service account is there."""
        name = re.sub("[^a-z0-9]+", "-", name.lower())[:50].strip("-")
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.api.wait(
            f"/api/v1/namespaces/{name}/serviceaccounts",
            lambda items: any(item["metadata"]["name"] == "default" for item in items),
            what=f"the default service account of namespace {name}",
        )
        return name

    def kubectl(self, *words: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """What kubectl prints; raises with what it complains about."""
        command = [str(self.programs / "kubectl"), f"--kubeconfig={kubeconfig or self.kubeconfig}", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def wait_for_pod(self, namespace: str, name: str, phase: str = "Running", *, timeout: float = 60) -> Object:
        """Wait until a Pod is in this phase, and for Running also ready."""

        def reached(items: list[Object]) -> Object | None:
            return next((item for item in items if is_in_phase(item, phase)), None)

        path = f"/api/v1/namespaces/{namespace}/pods"
        return self.api.wait(
            path, reached, what=f"Pod {name} {phase}", timeout=timeout, fieldSelector=f"metadata.name={name}"
        )

    def wait_until_ready(self) -> None:
        """Wait until the API server answers, as after a restart of it."""
        until = time.monotonic() + START_S
        while True:  # there is nobody yet who could tell us
            try:
                self.api.get("/readyz")
                return
            except (OSError, ApiError) as error:
                self.processes.check()
                if time.monotonic() > until:
                    last = self.processes.tail("kube-apiserver")
                    raise TimeoutError(
                        f"API server not ready within {START_S} s: {error}; its log ends with:\n{last}"
                    ) from None
            time.sleep(0.05)

    def _start_control_plane(self) -> None:
        address, services = LOOPBACK, SERVICES
        if self._node is not None:
            self._node.machine.create()
            address, services = self._node.machine.outer_address, self._node.machine.services
        plane = ControlPlane(self.processes, self.programs, self._authority, address=address, services=services)
        self._users.server = plane.server
        self.user("admin", ADMINISTRATORS)
        self._api = Api(plane.server, self._users.trust("admin", ADMINISTRATORS), self.processes.check)
        plane.start_api_server()
        self.wait_until_ready()
        plane.start_controllers(self._users)
        self.api.wait(
            "/api/v1/namespaces/default/serviceaccounts",
            lambda items: any(item["metadata"]["name"] == "default" for item in items),
            what="the controller manager makes the default service account",
        )

    def _kubeconfigs_of_a_node(self, name: str) -> tuple[Path, Path, Path]:
        """Kubelet's, kube-proxy's, and that of the cluster's name server."""
        dns = self.user("system:coredns")
        return self.user(f"system:node:{name}", ["system:nodes"]), self.user("system:kube-proxy"), dns

    def _make_service_account(self, namespace: str, name: str) -> None:
        try:
            self.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise


def is_in_phase(pod: Object, phase: str) -> bool:
    """Whether a Pod is in this phase; Running counts when it is ready as well."""
    status = pod.get("status", {})
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    return bool(status.get("phase") == phase and (ready or phase != "Running"))
