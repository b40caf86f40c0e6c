"""`python -m hack.kube.harness up | down`: a cluster that stays until it is told to go, for people."""

import argparse
import os
import shutil
import sys
from pathlib import Path

from . import shoal, teardown
from .cluster import Cluster
from .parts import Unavailable

FOLDER = Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state")) / "shoal" / "cluster"

SIMULATED = {"key": "simulated", "value": "true", "effect": "NoSchedule"}
"""Keeps Pods that are meant to run off hosts where nothing does; those that are meant to be there tolerate it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.kube.harness", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the cluster lives (default: %(default)s)")
    commands = parser.add_subparsers(required=True)
    starting = commands.add_parser("up", help="start a cluster and leave it running")
    starting.add_argument(
        "--hosts", type=int, default=10, help="simulated hosts with 8 GPUs each (default: %(default)s)"
    )
    starting.add_argument("--no-node", action="store_true", help="no node that runs Pods, also as root")
    starting.add_argument("--bare", action="store_true", help="do not install Shoal")
    starting.add_argument(
        "--apply", action="append", type=Path, default=[], metavar="FILE", help="manifests to install"
    )
    starting.set_defaults(run=up)
    commands.add_parser("down", help="take it down").set_defaults(run=down)
    chosen = parser.parse_args()
    try:
        return int(chosen.run(chosen))
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1


def up(chosen: argparse.Namespace) -> int:
    if teardown.processes_of(chosen.folder):
        print(f"A cluster runs already in {chosen.folder}; `make cluster-down` ends it.", file=sys.stderr)
        return 1
    teardown.tear_down(chosen.folder)
    shutil.rmtree(chosen.folder, ignore_errors=True)
    chosen.folder.mkdir(parents=True)
    has_node = os.geteuid() == 0 and not chosen.no_node
    cluster = Cluster(chosen.folder, simulated_hosts=True, node=has_node, kept=True)
    try:
        cluster.start()
        cluster.hosts.add(chosen.hosts, gpus=8, taints=[SIMULATED] if has_node else [])
        job = None if chosen.bare else shoal.install(cluster, chosen.folder, has_node=has_node)
        for manifests in chosen.apply:
            cluster.kubectl("apply", "--server-side", "-f", str(manifests))
    except BaseException:
        cluster.stop()
        raise
    print(told(cluster, chosen.hosts, has_node, job))
    return 0


def told(cluster: Cluster, hosts: int, has_node: bool, job: Path | None) -> str:
    """What people want to know about the cluster that is now there."""
    lines = [f"A cluster is up, with {hosts} simulated hosts (8 GPUs each; their Pods do nothing)"]
    if has_node:
        lines[0] += " and one node that runs Pods."
        lines.append("Pods go to the real node unless they tolerate the taint `simulated`.")
    else:
        lines[0] += ". For a node that runs Pods, start it as root."
    lines.append(running(cluster, has_node, job))
    lines += [
        "",
        f"  export KUBECONFIG={cluster.kubeconfig}",
        f"  export PATH={cluster.programs}:$PATH",
        "  kubectl get nodes",
        *trying(job, has_node),
        "",
        f"Logs are in {cluster.processes.logs}. To end it: make cluster-down",
    ]
    return "\n".join(lines)


def running(cluster: Cluster, has_node: bool, job: Path | None) -> str:
    """What there is of Shoal."""
    if job is None:
        return "Shoal is not installed."
    if has_node:
        return f"Shoal is installed: its operator runs in Pods of namespace {shoal.NAMESPACE}."
    log = cluster.processes.logs / f"{shoal.OPERATOR}.log"
    return f"Shoal's definitions are installed; its operator runs as a process of this machine (log: {log})."


def trying(job: Path | None, has_node: bool) -> list[str]:
    """What to type next with Shoal."""
    if job is None:
        return []
    shoal_command = Path(sys.executable).with_name("shoal")
    if not has_node:
        return [
            f"  export PATH={shoal_command.parent}:$PATH",
            f"  shoal submit {job}         # two workers that do nothing",
            "  shoal get; shoal why cnn",
            "  kubectl scale ej/cnn --replicas=3",
            "  kubectl delete pod cnn-worker-0        # another takes its place",
        ]
    return [
        f"  export PATH={shoal_command.parent}:$PATH",
        f"  shoal submit {job}         # trains a small CNN in Pods",
        "  shoal get; shoal why cnn; shoal logs cnn -f",
        "  kubectl scale ej/cnn --replicas=3",
        "  kubectl delete pod cnn-worker-0        # training goes on",
    ]


def down(chosen: argparse.Namespace) -> int:
    was_running = bool(teardown.processes_of(chosen.folder))
    teardown.tear_down(chosen.folder)
    print("The cluster is down." if was_running else f"No cluster runs in {chosen.folder}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
