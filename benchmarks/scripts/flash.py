"""DLRover's flash checkpoint, timed: for `benchmarks/checkpoint.py`, where `dlrover` is installed.

The same tensors as `saving.py` has, saved to memory only. Without `dlrover-run` its engine starts its own saver
process, as its documentation says; what a save waits for is the same. That process shares this one's standard output,
so the figures go to a file.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--results", type=Path, required=True)
    args = parser.parse_args()
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

    elements = args.mib * (1 << 20) // 4 // 48  # 16 parameters, two moments each
    state = {f"t{i}": torch.randn(elements) for i in range(48)}
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = DdpCheckpointer(folder)
        took = []
        for step in range(1, 10):
            path = os.path.join(folder, f"{step}.pt")
            began = time.perf_counter()
            checkpointer.save_checkpoint(step, state, path, storage_type=StorageType.MEMORY)
            took.append(time.perf_counter() - began)
        checkpointer._engine._shm_handler.unlink()  # it would outlive us
    args.results.write_text(json.dumps({"first": took[0], "later": min(took[1:])}))


if __name__ == "__main__":
    main()
