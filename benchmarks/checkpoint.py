"""What a checkpoint costs.

`save`: how long training stands still, through the real `shoal run`, agent and shared memory, beside the plain copy of
the same tensors into memory that has been touched before, `torch.save` (to a file, not synced) and the blocking part of
`torch.distributed.checkpoint.async_save`. The state is that of Adam: a third parameters, two thirds moments.

`restore`: what a new process waits for when the agent still has the state in its memory, beside the same plain copy,
and beside a copy into new memory: two thirds of what a new process restores into has to be touched for the first time.

`persist`: bytes per second of writing an image with checksums, manifest and syncs, beside writing and syncing the same
bytes. Both to the same disk, taking turns.

Of everything that is repeated the best counts: what else the machine does is not the question.
"""

import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import Row, parse_options, progress, report
from shoal.checkpoint import manifests
from shoal.checkpoint.folder import LocalFolder

SCRIPT = Path(__file__).with_name("scripts") / "saving.py"
MEMCPY = "plain copy, pages touched"


def measured(folder: Path, mib: int, *, prepare: bool, peers: bool) -> dict[str, Any]:
    results = folder / f"results-{prepare}.json"
    words = [*(["--prepare"] if prepare else []), *(["--peers", "--restores", "4"] if peers else [])]
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "shoal",
            "run",
            "--max-restarts",
            "0",
            SCRIPT,
            "--mib",
            str(mib),
            "--results",
            results,
            *words,
        ],
        env={**os.environ, "SHOAL_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    if run.returncode:
        raise SystemExit(f"the run failed:\n{run.stdout}")
    found: dict[str, Any] = json.loads(results.read_text())
    return found


def persist_rates(folder: Path, mib: int, rounds: int) -> tuple[float, float]:
    """Bytes per second of a checkpoint, and of the bare bytes."""
    memory = mmap.mmap(-1, mib << 20)
    block = os.urandom(1 << 20)
    for begin in range(0, len(memory), len(block)):
        memory[begin : begin + len(block)] = block
    image = memoryview(memory)
    ours: list[float] = []
    bare: list[float] = []
    for number in range(rounds):
        began = time.perf_counter()
        _write_bare(folder / f"bare-{number}", image)
        bare.append(len(image) / (time.perf_counter() - began))
        (folder / f"bare-{number}").unlink()
        began = time.perf_counter()
        manifests.write(LocalFolder(folder / "kept"), [image], job="benchmark", step=number, saved_at=0.0)
        ours.append(len(image) / (time.perf_counter() - began))
        shutil.rmtree(folder / "kept")
    return max(ours), max(bare)


def _write_bare(path: Path, data: memoryview) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while data:
            data = data[os.write(fd, data[: 4 << 20]) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def main() -> None:
    options = parse_options(__doc__)
    mib, rounds = (192, 3) if options.quick else (1024, 5)
    folder = Path(tempfile.mkdtemp(prefix="shoal-benchmark-"))
    try:
        progress("saving, prepared, beside torch")
        prepared = measured(folder, mib, prepare=True, peers=True)
        progress("saving, not prepared")
        unprepared = measured(folder, mib, prepare=False, peers=False)
        progress("writing to disk")
        ours, bare = persist_rates(folder, mib, rounds)
    finally:
        shutil.rmtree(folder)
    memcpy = prepared["memcpy"]
    rows = [
        Row(case="save, first after prepare()", value=prepared["first"], unit="s", peer=MEMCPY, peer_value=memcpy),
        Row(case="save, later ones", value=prepared["later"], unit="s", peer=MEMCPY, peer_value=memcpy),
        Row(
            case="save, first without prepare()",
            value=unprepared["first"],
            unit="s",
            peer=MEMCPY,
            peer_value=unprepared["memcpy"],
        ),
        Row(
            case="save, second without prepare()",
            value=unprepared["second"],
            unit="s",
            peer=MEMCPY,
            peer_value=unprepared["memcpy"],
        ),
        Row(case="save", value=prepared["later"], unit="s", peer="torch.save", peer_value=prepared["torch_save"]),
        Row(
            case="save",
            value=prepared["later"],
            unit="s",
            peer="torch.distributed.checkpoint async",
            peer_value=prepared["dcp_async"],
        ),
        Row(
            case="restore from memory, same process",
            value=prepared["back"],
            unit="s",
            peer=MEMCPY,
            peer_value=memcpy,
        ),
        Row(
            case="restore from memory, new process",
            value=min(prepared["restores"]),
            unit="s",
            peer=MEMCPY,
            peer_value=memcpy,
        ),
        Row(
            case="restore from memory, new process",
            value=min(prepared["restores"]),
            unit="s",
            peer="plain copy into new memory",
            peer_value=prepared["fresh"],
        ),
        Row(
            case="persist",
            value=ours / 1e6,
            unit="MB/s",
            peer="write and fsync",
            peer_value=bare / 1e6,
            more_is_better=True,
        ),
    ]
    report("checkpoint", f"a state of {prepared['bytes'] / 2**20:,.0f} MiB", rows, options)


if __name__ == "__main__":
    main()
