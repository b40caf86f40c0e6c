"""How one machine is split between the nodes of a job that run on it.

`split` is pure: it takes what the machine has (`Machine`) and answers with one `Share` for each node: disjoint
GPUs, and how many threads a training process may use. `look` asks the machine, without importing torch.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import BadInput

VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine has for training."""

    cores: int
    gpus: tuple[str, ...] = ()
    """As `CUDA_VISIBLE_DEVICES` names them: indices or UUIDs."""
    threads_said: bool = False
    """`OMP_NUM_THREADS` is set: the user decided, nothing is changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one local node gets."""

    nproc: int
    environment: Mapping[str, str]


def split(machine: Machine, *, nproc: int | str, nodes: int, seats: int) -> tuple[Share, ...]:
    """One share for each of the machine's places, at least `nodes`, at most `seats` of them.

    `nodes` start now, `seats` is how many there may ever be. Each process has a GPU of its own where the machine
    has any; if there are too few for `nodes` that is an error, since two processes on one GPU deadlock in NCCL.
    `gpu`, `cpu` and `auto` divide what is there by the places.
    """
    processes = _processes(machine, nproc, seats)
    threads = _threads(machine, nproc=processes, nodes=nodes)
    if not machine.gpus or nproc == "cpu":
        return (Share(nproc=processes, environment=threads),) * seats
    places = min(seats, len(machine.gpus) // processes)
    if places < nodes:
        raise BadInput(
            f"too few GPUs: {nodes} nodes with {processes} training processes each want {nodes * processes}, "
            f"this machine has {len(machine.gpus)}; ask for fewer (--nnodes, --agents, --nproc-per-node), "
            f"or set {VISIBLE}= to train without"
        )
    return tuple(
        Share(
            nproc=processes,
            environment={**threads, VISIBLE: ",".join(machine.gpus[at * processes : (at + 1) * processes])},
        )
        for at in range(places)
    )


def _processes(machine: Machine, nproc: int | str, seats: int) -> int:
    match nproc:
        case int():
            return nproc
        case "gpu" if not machine.gpus:
            raise BadInput("--nproc-per-node gpu: this machine has no GPU (or CUDA_VISIBLE_DEVICES hides them)")
        case "gpu" | "auto" if machine.gpus:
            # At least one each: `split` complains if that is more than there are.
            return max(1, len(machine.gpus) // seats)
    return max(1, machine.cores // seats)


def _threads(machine: Machine, *, nproc: int, nodes: int) -> dict[str, str]:
    """torchrun's rule, 1 for several processes; nodes that share a machine divide its cores."""
    if machine.threads_said:
        return {}
    if nproc > 1:
        return {THREADS: "1"}
    return {THREADS: str(max(1, machine.cores // nodes))} if nodes > 1 else {}


# Asking the machine --------------------------------------------------------------------------------------


def look(environment: Mapping[str, str]) -> Machine:
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        gpus=visible(environment.get(VISIBLE), _all_gpus()),
        threads_said=THREADS in environment,
    )


def visible(setting: str | None, present: tuple[str, ...]) -> tuple[str, ...]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves. As CUDA does, the list ends at the first that is not there."""
    if setting is None:
        return present
    chosen: list[str] = []
    for name in (part.strip() for part in setting.split(",")):
        is_known = name in present if name.isdecimal() else name.startswith(("GPU-", "MIG-"))
        if not is_known or name in chosen:
            break
        chosen.append(name)
    return tuple(chosen) if present else ()


def _all_gpus() -> tuple[str, ...]:
    """Indices of the machine's NVIDIA GPUs: nvidia-smi's word, else the device files."""
    files = sorted(
        int(found[1]) for path in Path("/dev").glob("nvidia*") if (found := re.fullmatch(r"nvidia(\d+)", path.name))
    )
    if not files and shutil.which("nvidia-smi") is None:
        return ()
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return tuple(map(str, range(len(files))))
    return tuple(re.findall(r"^GPU (\d+):", listed, re.MULTILINE))
