"""A real node: containerd, kubelet, kube-proxy and a name server, on a machine of its own (`machine.py`).

Pods on it run. They find each other by address, by Service and by name, reach the API server as on any cluster, are
killed when they exceed their memory, and grow in place. Images come from files at hand (`load`), never from a registry.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from . import images
from .api import Api, Object
from .certificates import Authority
from .hosts import readiness
from .machine import START_S, Machine
from .processes import Processes

NAME = "real"

Kubeconfigs = Callable[[str], tuple[Path, Path, Path]]
"""For a node's name: kubelet's, kube-proxy's and the name server's."""


class Node:
    """The node of one cluster. Its machine has to be there before the API server, which listens on the cable to it."""

    def __init__(self, processes: Processes, programs: Path) -> None:
        self.name = NAME
        self.machine = Machine(processes, programs)
        self._processes = processes
        self._programs = programs
        self._data = self.machine.data

    @property
    def address(self) -> str:
        return self.machine.address

    def run(self, *command: str) -> str:
        """What a command prints that runs on the node."""
        return self.machine.run(*command)

    def join(self, api: Api, authority: Authority, kubeconfigs: Kubeconfigs) -> None:
        kubelet, proxy, dns = kubeconfigs(self.name)
        self._start_containerd()
        self._publish_api_server(api)
        self._start_kubelet(authority, kubelet)
        self._start_proxy(proxy)
        self._start_dns(api, dns)
        api.wait(
            "/api/v1/nodes",
            lambda nodes: any(node["metadata"]["name"] == self.name and readiness(node) == "True" for node in nodes),
            what=f"node {self.name} ready",
        )
        for part, url in (
            ("kube-proxy", f"http://{self.address}:10256/healthz"),
            ("coredns", f"http://{self.address}:8181/ready"),
        ):
            self._wait_for(part, url)

    def load(self, image: images.Image) -> str:
        """Bring an image to the node; Pods use it by its name, which is returned."""
        path = self._data / "image.tar"
        images.write_archive(image, path)
        self.run("ctr", "--namespace=k8s.io", "images", "import", str(path))
        path.unlink()
        return image.name

    def _start_containerd(self) -> None:
        networks = self._data / "networks"
        networks.mkdir()
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": self.machine.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        # Point to point, not a bridge: packets between Pods are routed, and so see the rules that make Services work.
        plugins: list[Object] = [{"type": "ptp", "ipMasq": False, "ipam": addresses}]
        (networks / "pods.conflist").write_text(json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}))
        settings = self._data / "containerd.toml"
        settings.write_text(CONTAINERD.format(pause=images.PAUSE, networks=networks))
        self.machine.start("containerd", "containerd", "--config", settings)
        self._wait_for_containerd()
        self.load(images.pause(self._programs / "pause"))
        self.load(images.busybox())

    def _wait_for_containerd(self) -> None:
        until = time.monotonic() + START_S
        while True:
            self._processes.check()
            try:
                plugins = self.run("ctr", "plugins", "list")
            except RuntimeError:
                plugins = ""
            if any("cri" in line.split() and "ok" in line.split() for line in plugins.splitlines()):
                return
            if time.monotonic() > until:
                raise TimeoutError(
                    f"containerd not ready within {START_S} s; its log ends with:\n{self._processes.tail('containerd')}"
                )
            time.sleep(0.05)

    def _start_kubelet(self, authority: Authority, kubeconfig: Path) -> None:
        keys = self._processes.data / "keys"
        serving = authority.server([self.address, self.name])
        (keys / "kubelet.crt").write_bytes(serving.certificate)
        (keys / "kubelet.key").write_bytes(serving.key)
        no_names = self._data / "resolv.conf"
        no_names.touch()
        settings = self._data / "kubelet.json"
        settings.write_text(
            json.dumps(
                {
                    "apiVersion": "kubelet.config.k8s.io/v1beta1",
                    "kind": "KubeletConfiguration",
                    "address": self.address,
                    "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(keys / "ca.crt")}},
                    "tlsCertFile": str(keys / "kubelet.crt"),
                    "tlsPrivateKeyFile": str(keys / "kubelet.key"),
                    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
                    "cgroupDriver": "cgroupfs",
                    "cgroupRoot": f"/{self.machine.name}",
                    "failCgroupV1": False,
                    "enforceNodeAllocatable": [],
                    "failSwapOn": False,
                    # Somebody's full disk is not what a test is about.
                    "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
                    "imageGCHighThresholdPercent": 100,
                    "clusterDNS": [self.address],
                    "clusterDomain": "cluster.local",
                    "resolvConf": str(no_names),
                    # How soon it looks whether a container that was resized has its new size: a minute otherwise.
                    "syncFrequency": "5s",
                    "kubeAPIQPS": 500,
                    "kubeAPIBurst": 1000,
                }
            )
        )
        flags = [
            f"--config={settings}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        ]
        self.machine.start("kubelet", self._programs / "kubelet", *flags)

    def _start_proxy(self, kubeconfig: Path) -> None:
        flags = [
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            "--proxy-mode=nftables",
            f"--cluster-cidr={self.machine.pods}",
            f"--healthz-bind-address={self.address}:10256",
            "--metrics-bind-address=127.0.0.1:10249",
            # These are settings of the whole machine, which are not a node's to change.
            *(
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0s",
                "--conntrack-tcp-timeout-close-wait=0s",
            ),
        ]
        self.machine.start("kube-proxy", self._programs / "kube-proxy", *flags)

    def _start_dns(self, api: Api, kubeconfig: Path) -> None:
        for path, body in dns_role():
            api.create(f"/apis/rbac.authorization.k8s.io/v1/{path}", body)
        settings = self._data / "Corefile"
        settings.write_text(COREFILE.format(address=self.address, kubeconfig=kubeconfig))
        self.machine.start("coredns", self._programs / "coredns", f"-conf={settings}")

    def _publish_api_server(self, api: Api) -> None:
        """Give the Service `kubernetes`, by which Pods know the API server, the address that they can reach."""
        address = urlsplit(f"//{api.address}")
        body: Object = {
            "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": address.port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address.hostname], "conditions": {"ready": True}}],
        }
        api.create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body)

    def _wait_for(self, part: str, url: str) -> None:
        until = time.monotonic() + START_S
        while True:
            self._processes.check()
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    answer.read()
                    return
            except (urllib.error.URLError, OSError):
                if time.monotonic() > until:
                    last = self._processes.tail(part)
                    raise TimeoutError(f"{part} not ready within {START_S} s; its log ends with:\n{last}") from None
                time.sleep(0.05)


CONTAINERD = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
disable_apparmor = true
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{networks}"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""

COREFILE = """\
cluster.local in-addr.arpa {{
    bind {address}
    errors
    ready {address}:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
. {{
    bind {address}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def dns_role() -> list[tuple[str, Object]]:
    """What the name server may see, as paths below the RBAC group and bodies."""
    named: Object = {"metadata": {"name": "system:coredns"}}
    role: Object = {
        **named,
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["services", "pods", "namespaces", "endpoints"],
                "verbs": ["list", "watch"],
            },
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ],
    }
    group = "rbac.authorization.k8s.io"
    binding: Object = {
        **named,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:coredns"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "system:coredns"}],
    }
    return [("clusterroles", role), ("clusterrolebindings", binding)]
