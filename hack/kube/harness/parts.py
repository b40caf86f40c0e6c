"""What a tier needs of the machine. What is missing is built or installed where that can be done, and else named."""

import os
import shutil
import subprocess
from pathlib import Path

BUILD = Path(__file__).parents[1] / "build"

PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "iptables": "iptables",
    "nft": "nftables",
    "conntrack": "conntrack",
    "/bin/busybox": "busybox-static",
    "ip": "iproute2",
}
"""What a real node runs besides Kubernetes: the file or command that shows it is there, and Debian's package of it."""


class Unavailable(Exception):
    """This machine cannot run a tier; the message says what would change that."""


def built(*parts: str) -> Path:
    """The folder with these parts, built first if need be."""
    if shutil.which("go") is None:
        raise Unavailable("a real Kubernetes is built with Go, which is not installed (install Go 1.25 or newer)")
    build = subprocess.run([BUILD, *parts], stdout=subprocess.PIPE, text=True)
    if build.returncode != 0:
        raise Unavailable(f"{BUILD} {' '.join(parts)} failed (see above)")
    return Path(build.stdout.strip())


def for_a_node() -> None:
    """Make sure that this machine can be a node: root, and Debian's packages (installed if missing)."""
    if os.geteuid() != 0:
        raise Unavailable("a real node needs root (run it again as root)")
    missing = [package for thing, package in PACKAGES.items() if shutil.which(thing) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise Unavailable(f"a real node needs {', '.join(missing)}, by their names in Debian")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", *missing]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise Unavailable(f"a real node needs {', '.join(missing)}, and {' '.join(command[:2])} failed: {last}")
