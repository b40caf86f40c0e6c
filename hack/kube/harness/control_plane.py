"""The control plane: etcd, API server, controller manager and scheduler, each with the flags that matter for tests."""

import contextlib
import socket
from pathlib import Path
from typing import Any

from .certificates import Authority, signing_key
from .processes import Processes
from .users import Users, write_secret

LOOPBACK = "127.0.0.1"


class ControlPlane:
    """Starts the four programs. The API server listens at `address`, the rest on loopback only."""

    def __init__(
        self, processes: Processes, programs: Path, authority: Authority, *, address: str, services: str
    ) -> None:
        self._processes = processes
        self._programs = programs
        self._address = address
        self._services = services
        self._etcd, self._etcd_peers, self._port = free_ports(3)
        self._keys = processes.data / "keys"
        self._write_keys(authority)

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://{self._address}:{self._port}"

    def start_api_server(self) -> None:
        """Start etcd and the API server, which waits for it by itself."""
        self._start("etcd", self._etcd_flags())
        self._start("kube-apiserver", self._api_server_flags())

    def start_controllers(self, users: Users) -> None:
        # Their default of 20 to 50 calls a second would make 500 Pods a matter of half a minute.
        common = {"leader-elect": "false", "secure-port": 0, "kube-api-qps": 1000, "kube-api-burst": 2000}
        manager = {
            **common,
            "kubeconfig": users.with_certificate("system:kube-controller-manager"),
            "use-service-account-credentials": "true",
            "service-account-private-key-file": self._keys / "tokens.key",
            "root-ca-file": self._keys / "ca.crt",
        }
        self._start("kube-controller-manager", manager)
        self._start("kube-scheduler", {**common, "kubeconfig": users.with_certificate("system:kube-scheduler")})

    def _etcd_flags(self) -> dict[str, Any]:
        client, peer = (f"http://{LOOPBACK}:{each}" for each in (self._etcd, self._etcd_peers))
        return {
            "data-dir": self._processes.data / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",  # a test's state need not survive the machine
            "log-level": "warn",
            "quota-backend-bytes": 8 * 2**30,
        }

    def _api_server_flags(self) -> dict[str, Any]:
        keys = self._keys
        return {
            "etcd-servers": f"http://{LOOPBACK}:{self._etcd}",
            "bind-address": self._address,
            "advertise-address": self._address,
            "secure-port": self._port,
            "tls-cert-file": keys / "server.crt",
            "tls-private-key-file": keys / "server.key",
            "client-ca-file": keys / "ca.crt",
            "service-cluster-ip-range": self._services,
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

    def _write_keys(self, authority: Authority) -> None:
        first_service = self._services.rsplit(".", 1)[0] + ".1"
        inside = [f"kubernetes{rest}" for rest in ("", ".default", ".default.svc", ".default.svc.cluster.local")]
        signed = {
            "server": authority.server([self._address, LOOPBACK, first_service, "localhost", *inside]),
            "kubelet-client": authority.client("kube-apiserver", ["system:masters"]),
        }
        self._keys.mkdir(mode=0o700)
        write_secret(self._keys / "ca.crt", authority.certificate)
        write_secret(self._keys / "tokens.key", signing_key())
        for name, each in signed.items():
            write_secret(self._keys / f"{name}.crt", each.certificate)
            write_secret(self._keys / f"{name}.key", each.key)

    def _start(self, name: str, flags: dict[str, Any]) -> None:
        self._processes.start(name, [self._programs / name, *(f"--{flag}={value}" for flag, value in flags.items())])


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago. All are held until the last is found, so that they differ."""
    with contextlib.ExitStack() as held:
        return [held.enter_context(socket.create_server((LOOPBACK, 0))).getsockname()[1] for _ in range(count)]
