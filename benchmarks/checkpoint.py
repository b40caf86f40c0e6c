"""What a checkpoint costs.

`save`: how long training stands still, through the real `shoal run`, agent and shared memory, beside the plain copy of
the same tensors into memory that has been touched before, `torch.save` (to a file, not synced) and the blocking part of
`torch.distributed.checkpoint.async_save`; where `dlrover` is installed, also DLRover's flash checkpoint into memory
(`scripts/flash.py`). The state is that of Adam: a third parameters, two thirds moments.

`restore`: what a process waits for when the agent still has the state in its memory, beside the same plain copy. For
a new process also beside the plain copy that it would have to make at least, in that very process: its model is there,
but two thirds of what is restored, the moments, go into memory that nobody has touched yet.

`persist`: bytes per second of writing an image with checksums, manifest and syncs, beside writing and syncing the same
bytes. Both to the same disk, taking turns.

Of everything that is repeated the best counts: what else the machine does is not the question.
"""

import importlib.util
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
RUNS = 3
"""There is one first save in a run, and one second; each kind of run is made so often."""


def measured(folder: Path, mib: int, *, prepare: bool, peers: bool) -> dict[str, Any]:
    results = folder / "results.json"
    results.unlink(missing_ok=True)
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


def flash(folder: Path, mib: int) -> dict[str, float] | None:
    """DLRover's seconds, first and later saves; None: it is not installed."""
    if importlib.util.find_spec("dlrover") is None:
        progress("dlrover is not installed: its row is left out")
        return None
    progress("DLRover's flash checkpoint")
    results = folder / "flash.json"
    subprocess.run(
        [sys.executable, SCRIPT.with_name("flash.py"), "--mib", str(mib), "--results", results],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=600,
    )
    found: dict[str, float] = json.loads(results.read_text())
    return found


def best(runs: list[dict[str, Any]], what: str) -> float:
    return float(min(run[what] for run in runs))


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
        beside = measured(folder, mib, prepare=True, peers=True)
        progress("saving, prepared")
        prepared = [beside, *(measured(folder, mib, prepare=True, peers=False) for _ in range(RUNS - 1))]
        progress("saving, not prepared")
        unprepared = [measured(folder, mib, prepare=False, peers=False) for _ in range(RUNS)]
        theirs = flash(folder, mib)
        progress("writing to disk")
        ours, bare = persist_rates(folder, mib, rounds)
    finally:
        shutil.rmtree(folder)
    memcpy = best([*prepared, *unprepared], "memcpy")
    later = best([*prepared, *unprepared], "later")
    restored, into_new = min(beside["restores"]), min(beside["into_new"])
    first = best(prepared, "first")
    rows = [
        *(
            Row(case=f"save, {what}", value=value, unit="s", peer=MEMCPY, peer_value=memcpy)
            for what, value in (
                ("first after prepare()", first),
                ("first without prepare()", best(unprepared, "first")),
                ("second without prepare()", best(unprepared, "second")),
                ("later ones", later),
            )
        ),
        *(
            Row(case="save, later ones", value=later, unit="s", peer=peer, peer_value=beside[name])
            for peer, name in (("torch.save", "torch_save"), ("torch.distributed.checkpoint async", "dcp_async"))
        ),
        *(
            Row(case=f"save, {what}", value=value, unit="s", peer="DLRover's flash checkpoint", peer_value=theirs[name])
            for what, value, name in (("first after prepare()", first, "first"), ("later ones", later, "later"))
            if theirs is not None
        ),
        *(
            Row(case=f"restore from memory, {who}", value=value, unit="s", peer=peer, peer_value=against)
            for who, value, peer, against in (
                ("same process", beside["back"], MEMCPY, memcpy),
                ("new process", restored, MEMCPY, memcpy),
                ("new process", restored, "plain copy, two thirds into new memory", into_new),
            )
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
    report("checkpoint", f"a state of {beside['bytes'] / 2**20:,.0f} MiB", rows, options)


if __name__ == "__main__":
    main()
