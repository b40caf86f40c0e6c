"""A training script that knows nothing of Shoal: plain torch.distributed over gloo, until a file appears.

All ranks agree on the end, so that nobody is left alone in a collective.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
assert (rank, size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
enough = Path(sys.argv[1])
announced = False
while True:
    here = torch.tensor([1.0, float(enough.exists())])
    dist.all_reduce(here)
    assert here[0] == size, f"{here[0]} ranks took part, {size} are in the world"
    if not announced:
        print(f"trains {rank}/{size}", flush=True)
        announced = True
    if here[1]:
        break
    time.sleep(0.02)
dist.destroy_process_group()
print(f"done {rank}/{size}", flush=True)
