"""A real node on this machine: containerd, kubelet, kube-proxy and a name server, in namespaces of their own.

The node has its own network, mounts and process ids, as a virtual machine would. So its links, packet filter rules and
mounts cannot touch the machine's, two clusters can run side by side, and all of it is gone when the first process of
the namespaces is (`teardown.py`). Root is needed to make them, and nothing else of the machine is changed: even `/run`,
`/var/lib` and `/var/log` are covered.

One virtual cable joins node and machine; over it go the range `10.N.0.0/16`, which holds the node, its Pods and its
Services, and nothing else: the node has no other way out, so no packet of a Pod leaves this machine. The API server
listens at the machine's end of it.

    10.N.0.0/17    Pods             10.N.255.1  this machine, the API server
    10.N.128.0/20  Services         10.N.255.2  the node, its name server
"""

import json
import os
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from . import images, teardown
from .api import Api, Object
from .certificates import Authority
from .hosts import readiness
from .parts import Unavailable
from .processes import Processes

NAME = "real"
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_S = 60

Kubeconfigs = Callable[[str], tuple[Path, Path, Path]]
"""For a node's name: kubelet's, kube-proxy's and the name server's."""


class Node:
    """The node of one cluster. `create` makes the empty machine, `join` the node on it."""

    def __init__(self, processes: Processes, programs: Path) -> None:
        self.name = NAME
        self._processes = processes
        self._programs = programs
        self._id = teardown.name_of(processes.folder)
        self._data = processes.data / "node"
        self._network = ""

    @property
    def address(self) -> str:
        return f"{self._network}.255.2"

    @property
    def services(self) -> str:
        return f"{self._network}.128.0/20"

    def create(self) -> str:
        """Make the namespaces and the cable to them; returns the address of this machine's end."""
        namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        outer = self._processes.start("node", ["unshare", *namespaces, self._programs / "pause"])
        self._init = self._first_process(outer)
        self._cover_folders()
        self._network = self._connect()
        _make_cgroups(self._id)
        return f"{self._network}.255.1"

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

    def run(self, *command: str) -> str:
        """What a command prints that runs on the node."""
        done = subprocess.run([*self._entering(), *command], capture_output=True, text=True, env=_environment())
        if done.returncode != 0:
            raise RuntimeError(f"on the node: {shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def load(self, image: images.Image) -> str:
        """Bring an image to the node; Pods use it by its name, which is returned."""
        path = self._data / "image.tar"
        images.write_archive(image, path)
        self.run("ctr", "--namespace=k8s.io", "images", "import", str(path))
        path.unlink()
        return image.name

    # The machine

    def _first_process(self, outer: int) -> int:
        until = time.monotonic() + START_S
        children = Path(f"/proc/{outer}/task/{outer}/children")
        while True:
            self._processes.check()
            for child in children.read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == "pause":
                    return int(child)
            if time.monotonic() > until:
                raise TimeoutError(
                    f"the node's namespaces were not there after {START_S} s: {self._processes.tail('node')}"
                )
            time.sleep(0.005)

    def _cover_folders(self) -> None:
        """Let everything that would be written into the system's folders go into the cluster's."""
        (self._data / "empty").mkdir(parents=True)
        lines = ["mount --make-rshared /", "mount -t tmpfs tmpfs /run"]
        for folder in ("/var/lib", "/var/log"):
            upper, work = (self._data / f"{kind}{folder.replace('/', '-')}" for kind in ("upper", "work"))
            upper.mkdir()
            work.mkdir()
            lines.append(f"mount -t overlay overlay -o lowerdir={folder},upperdir={upper},workdir={work} {folder}")
        for name in ("kubelet", "containerd"):  # not on the overlay: layers cannot be stacked on layers
            (self._data / name).mkdir()
            lines += [f"mkdir -p /var/lib/{name}", f"mount --bind {self._data / name} /var/lib/{name}"]
        lines += ["ip link set lo up", "echo 1 >/proc/sys/net/ipv4/ip_forward"]
        self.run("sh", "-ec", "\n".join(lines))

    def _connect(self) -> str:
        """Lay the cable and claim a range that nobody on this machine uses; returns its first two numbers."""
        _ip("link", "add", self._id, "type", "veth", "peer", "name", "eth0", "netns", str(self._init))
        _ip("link", "set", self._id, "up")
        used = {route["dst"] for route in json.loads(_ip("-json", "route", "show", "table", "all"))}
        for number in range(100, 250):
            network = f"10.{number}"
            if any(destination.startswith(f"{network}.") for destination in used):
                continue
            _ip("address", "add", f"{network}.255.1/30", "dev", self._id)
            self.run("sh", "-ec", f"ip address replace {network}.255.2/30 dev eth0; ip link set eth0 up")
            try:
                _ip("route", "add", f"{network}.0.0/16", "via", f"{network}.255.2")
            except RuntimeError:  # somebody else was quicker
                _ip("address", "del", f"{network}.255.1/30", "dev", self._id)
                self.run("ip", "address", "flush", "dev", "eth0")
                continue
            # Services have to be routed somewhere before the packet filter sends them where they belong.
            self.run("ip", "route", "add", f"{network}.128.0/20", "via", f"{network}.255.1")
            return network
        raise Unavailable("a real node needs a free range 10.N.0.0/16, N from 100 to 249")

    # The node on it

    def _start_containerd(self) -> None:
        networks = self._data / "networks"
        networks.mkdir()
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": f"{self._network}.0.0/17"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        # Point to point, not a bridge: packets between Pods are routed, and so see the rules that make Services work.
        plugins: list[Object] = [{"type": "ptp", "ipMasq": False, "ipam": addresses}]
        (networks / "pods.conflist").write_text(json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}))
        settings = self._data / "containerd.toml"
        settings.write_text(CONTAINERD.format(pause=images.PAUSE, networks=networks))
        self._start("containerd", "containerd", "--config", settings)
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
                    "cgroupRoot": f"/{self._id}",
                    "failCgroupV1": False,
                    "enforceNodeAllocatable": [],
                    "failSwapOn": False,
                    # Somebody's full disk is not what a test is about.
                    "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
                    "imageGCHighThresholdPercent": 100,
                    "clusterDNS": [self.address],
                    "clusterDomain": "cluster.local",
                    "resolvConf": str(no_names),
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
        self._start("kubelet", self._programs / "kubelet", *flags)

    def _start_proxy(self, kubeconfig: Path) -> None:
        flags = [
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            "--proxy-mode=nftables",
            f"--cluster-cidr={self._network}.0.0/17",
            f"--healthz-bind-address={self.address}:10256",
            "--metrics-bind-address=127.0.0.1:10249",
            # These are settings of the whole machine, which are not a node's to change.
            *(
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0s",
                "--conntrack-tcp-timeout-close-wait=0s",
            ),
        ]
        self._start("kube-proxy", self._programs / "kube-proxy", *flags)

    def _start_dns(self, api: Api, kubeconfig: Path) -> None:
        for path, body in dns_role():
            api.create(f"/apis/rbac.authorization.k8s.io/v1/{path}", body)
        settings = self._data / "Corefile"
        settings.write_text(COREFILE.format(address=self.address, kubeconfig=kubeconfig))
        self._start("coredns", self._programs / "coredns", f"-conf={settings}")

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

    def _start(self, name: str, *command: str | Path) -> None:
        self._processes.start(name, [*self._entering(), *command], {"PATH": SEARCHED})

    def _entering(self) -> list[str]:
        return ["nsenter", f"--target={self._init}", "--mount", "--net", "--pid", "--wd=/", "--"]

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


def _make_cgroups(name: str) -> None:
    """The control groups under which the kubelet puts those of Pods; it wants the uppermost to be there."""
    if (teardown.CGROUPS / "cgroup.controllers").exists():
        top = teardown.CGROUPS / name
        top.mkdir(exist_ok=True)
        wanted = " ".join(f"+{controller}" for controller in (top / "cgroup.controllers").read_text().split())
        (top / "cgroup.subtree_control").write_text(wanted)
        return
    for hierarchy in teardown.CGROUPS.iterdir():
        if hierarchy.is_symlink() or not (hierarchy / "cgroup.procs").exists():
            continue
        (hierarchy / name).mkdir(exist_ok=True)
        for inherited in ("cpuset.cpus", "cpuset.mems"):  # which start empty, and then let nobody in
            if (hierarchy / inherited).exists():
                (hierarchy / name / inherited).write_text((hierarchy / inherited).read_text())


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, env=_environment())
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": SEARCHED}
