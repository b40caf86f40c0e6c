"""One Kubernetes cluster, made of the real programs, for tests and for people.

The *control plane* (etcd, API server, controller manager, scheduler) is always there and needs no root. On it stand,
when asked for, *simulated hosts* (`hosts.py`: kwok says what a kubelet would say, nothing runs) and a *real node*
(`node.py`: containerd and kubelet, Pods that run; root). All of it belongs to a folder: `logs/` stays, `data/` goes
with the cluster, `users/` has one kubeconfig per user.

RBAC is on. Whoever calls the API server does so as somebody: `kubeconfig` is the administrator's, `user` makes a person
with a client certificate, `service_account` a program with a token.
"""

import base64
import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from . import parts
from .api import Api, ApiError, Object
from .certificates import Authority, Signed, signing_key
from .hosts import Hosts
from .node import Node
from .processes import Processes

LOOPBACK = "127.0.0.1"
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
        self._users = folder / "users"
        self._users.mkdir(exist_ok=True)
        self._authority = Authority()
        self._node = Node(self.processes, self.programs) if node else None
        self._hosts = Hosts(self.processes, self.programs) if simulated_hosts else None
        self.server = ""
        """The API server's address."""

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

    # Who may do what, and how they get in

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self._users / "admin"

    def user(self, name: str, groups: Sequence[str] = ()) -> Path:
        """The kubeconfig of a person, who has a client certificate and may do what roles bound to the name allow."""
        signed = self._authority.client(name, groups)
        credentials = {"client-certificate-data": _base64(signed.certificate), "client-key-data": _base64(signed.key)}
        return self._write_kubeconfig(name, credentials)

    def service_account(
        self, namespace: str, name: str, *, lifetime: timedelta = timedelta(days=1), create: bool = True
    ) -> Path:
        """The kubeconfig of a program, which has a token of its service account (made first, unless it is there)."""
        if create:
            self._make_service_account(namespace, name)
        return self._write_kubeconfig(
            f"{namespace}-{name}", {"token": self.token(namespace, name, lifetime=lifetime)}, namespace
        )

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

    # The control plane

    def _start_control_plane(self) -> None:
        address, services = LOOPBACK, SERVICES
        if self._node is not None:
            address, services = self._node.create(), self._node.services
        etcd, etcd_peers, port = free_ports(3)
        self.server = f"https://{address}:{port}"
        keys = self._write_keys(address, services)
        self.user("admin", ["system:masters"])
        self._api = Api(
            self.server, self._trust_of(self._authority.client("admin", ["system:masters"])), self.processes.check
        )
        self._start_etcd(etcd, etcd_peers)
        self._start_api_server(address, port, f"http://{LOOPBACK}:{etcd}", services, keys)
        self.wait_until_ready()
        self._start_controllers(keys)
        self.api.wait(
            "/api/v1/namespaces/default/serviceaccounts",
            lambda items: any(item["metadata"]["name"] == "default" for item in items),
            what="the controller manager makes the default service account",
        )

    def _start_etcd(self, port: int, peers: int) -> None:
        client, peer = (f"http://{LOOPBACK}:{each}" for each in (port, peers))
        flags = {
            "data-dir": self.processes.data / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",  # a test's state need not survive the machine
            "log-level": "warn",
            "quota-backend-bytes": 8 * 2**30,
        }
        self.processes.start("etcd", [self.programs / "etcd", *as_flags(flags)])

    def _start_api_server(self, address: str, port: int, etcd: str, services: str, keys: Path) -> None:
        flags = {
            "etcd-servers": etcd,
            "bind-address": address,
            "advertise-address": address,
            "secure-port": port,
            "tls-cert-file": keys / "server.crt",
            "tls-private-key-file": keys / "server.key",
            "client-ca-file": keys / "ca.crt",
            "service-cluster-ip-range": services,
            "service-account-key-file": keys / "tokens.key",
            "service-account-signing-key-file": keys / "tokens.key",
            "service-account-issuer": "https://kubernetes.default.svc",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "endpoint-reconciler-type": "none",  # the node says by which address Pods get here
            "kubelet-client-certificate": keys / "kubelet-client.crt",
            "kubelet-client-key": keys / "kubelet-client.key",
            "kubelet-certificate-authority": keys / "ca.crt",
            "kubelet-preferred-address-types": "InternalIP",
        }
        self.processes.start("kube-apiserver", [self.programs / "kube-apiserver", *as_flags(flags)])

    def _start_controllers(self, keys: Path) -> None:
        # Their default of 20 to 50 calls a second would make 500 Pods a matter of half a minute.
        common = {"leader-elect": "false", "secure-port": 0, "kube-api-qps": 1000, "kube-api-burst": 2000}
        manager = {
            **common,
            "kubeconfig": self.user("system:kube-controller-manager"),
            "use-service-account-credentials": "true",
            "service-account-private-key-file": keys / "tokens.key",
            "root-ca-file": keys / "ca.crt",
        }
        scheduler = {**common, "kubeconfig": self.user("system:kube-scheduler")}
        self.processes.start("kube-controller-manager", [self.programs / "kube-controller-manager", *as_flags(manager)])
        self.processes.start("kube-scheduler", [self.programs / "kube-scheduler", *as_flags(scheduler)])

    # Keys and kubeconfigs

    def _write_keys(self, address: str, services: str) -> Path:
        first_service = services.rsplit(".", 1)[0] + ".1"
        names = [
            address,
            LOOPBACK,
            first_service,
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ]
        server = self._authority.server([*names, "kubernetes.default.svc.cluster.local"])
        client = self._authority.client("kube-apiserver", ["system:masters"])
        keys = self.processes.data / "keys"
        keys.mkdir(mode=0o700)
        (keys / "ca.crt").write_bytes(self._authority.certificate)
        (keys / "tokens.key").write_bytes(signing_key())
        for name, signed in (("server", server), ("kubelet-client", client)):
            (keys / f"{name}.crt").write_bytes(signed.certificate)
            (keys / f"{name}.key").write_bytes(signed.key)
        return keys

    def _trust_of(self, signed: Signed) -> ssl.SSLContext:
        """How a client checks the server, and shows who it is itself."""
        context = ssl.create_default_context(cadata=self._authority.certificate.decode())
        with contextlib.ExitStack() as stack:  # OpenSSL reads its own certificate from a file only
            path = self._users / ".admin.pem"
            stack.callback(path.unlink)
            path.touch(mode=0o600)
            path.write_bytes(signed.certificate + signed.key)
            context.load_cert_chain(path)
        return context

    def _kubeconfigs_of_a_node(self, name: str) -> tuple[Path, Path, Path]:
        """Kubelet's, kube-proxy's, and that of the cluster's name server."""
        dns = self.user("system:coredns")
        return self.user(f"system:node:{name}", ["system:nodes"]), self.user("system:kube-proxy"), dns

    def _write_kubeconfig(self, name: str, credentials: Object, namespace: str = "default") -> Path:
        path = self._users / name.replace(":", "-").removeprefix("system-")
        text = json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "clusters": [_named("shoal", "cluster", self._cluster_entry())],
                "users": [_named(name, "user", credentials)],
                "contexts": [_named(name, "context", {"cluster": "shoal", "user": name, "namespace": namespace})],
            },
            indent=2,
        )
        with open(path, "w", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            file.write(text + "\n")
        return path

    def _cluster_entry(self) -> Object:
        return {"server": self.server, "certificate-authority-data": _base64(self._authority.certificate)}

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


def as_flags(flags: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago. All are held until the last is found, so that they differ."""
    with contextlib.ExitStack() as held:
        return [held.enter_context(socket.create_server((LOOPBACK, 0))).getsockname()[1] for _ in range(count)]


def _named(name: str, kind: str, content: Object) -> Object:
    return {"name": name, kind: content}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
