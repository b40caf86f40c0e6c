"""How fast a cluster is simulated: days of it in a second, events and rounds in a second, a trace of a million jobs.

Everything is what `shoal simulate` runs: the production policies through the production actuation, on a virtual clock,
in one process. Three grounds:

- 160 jobs in eight hours on 16 hosts with 4 GPUs, with measured models where the public traces are found (SHOAL_TRACES,
  or ../shared/traces beside the project), else with look-alike models; a round a minute;
- the same number of look-alike jobs with rounds for events, Pods that take their time, failing hosts and a service;
- a plain trace of many short jobs on 128 hosts, read and run under `fifo` with a round every five minutes.

Times are CPU seconds of this process, so that a busy machine does not count. Importing and reading profiles is not in
them; building the tables of measured models on first use is.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `shoal simulate` does: more get into each other's way

import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from _common import Row, parse_options, progress, report
from shoal.scheduler.rows import Room
from shoal.scheduler.settings import SchedulerSettings
from shoal.sim.engine import Simulation
from shoal.sim.policies import scheduler_named
from shoal.sim.pollux.compare import published_workloads
from shoal.sim.pollux.profiles import load_applications
from shoal.sim.pollux.synthetic import synthetic_applications, synthetic_asks
from shoal.sim.pollux.workloads import workload_of
from shoal.sim.report import Run
from shoal.sim.traces import Assumed, read_trace
from shoal.sim.workload import GIBIBYTE, ON_POLLUX_GROUND, ServiceSpec, SimSettings, Workload

T = TypeVar("T")
DAY = 86_400.0
AIM = "the aim"
HOST = Room(cpu=48_000, memory=192 * GIBIBYTE, gpu=4)
BUSY = SimSettings(host_mtbf=20 * DAY)
COARSE = SimSettings(interval=300.0, spacing=300.0)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()
    return work(), time.process_time() - start


def run(workload: Workload, policy: str, settings: SimSettings) -> tuple[Run, float]:
    progress(f"{workload.name} under {policy}")
    return timed(Simulation(workload, scheduler_named(policy, SchedulerSettings()), settings).run)


def rates(name: str, done: Run, seconds: float) -> list[Row]:
    return [
        Row(case=f"{name}: simulated days per second", value=done.simulated_seconds / DAY / seconds, unit="days/s",
            more_is_better=True),
        Row(case=f"{name}: events per second", value=done.events / seconds, unit="1/s", more_is_better=True),
        Row(case=f"{name}: rounds per second", value=done.rounds / seconds, unit="1/s", more_is_better=True),
    ]  # fmt: skip


def pollux_workload() -> tuple[str, Workload]:
    """A published one if it is there."""
    beside = Path(__file__).parents[2] / "shared" / "traces"
    folder = Path(os.environ.get("SHOAL_TRACES", beside)) / "pollux-osdi21"
    if (folder / "applications.json").exists():
        import scipy.interpolate  # noqa: F401  not in the times

        return "Pollux workload-6, 160 jobs", published_workloads(folder, "1.0", load_applications(folder))[5]
    return "160 look-alike jobs, 8 h", look_alike()


def look_alike(*, service: bool = False) -> Workload:
    applications = synthetic_applications()
    made = workload_of("160 look-alike jobs", synthetic_asks(1, 160, applications), applications, (HOST,) * 16)
    services = (ServiceSpec(name="web", each=Room(cpu=2_000, memory=4 * GIBIBYTE, gpu=1), low=2, high=20),)
    return Workload(name=made.name, jobs=made.jobs, hosts=made.hosts, services=services if service else ())


def plain_trace(path: Path, jobs: int) -> None:
    chance = random.Random(1)
    with path.open("w") as file:
        file.write("submit,size,duration\n")
        for _ in range(jobs):
            size = chance.choice((1, 1, 1, 1, 2, 4))
            file.write(f"{chance.random() * jobs * 5:.0f},{size},{chance.expovariate(1 / 600) + 1:.0f}\n")


def main() -> None:
    options = parse_options(__doc__)
    rows: list[Row] = []

    name, workload = pollux_workload()
    for policy in ("cfs", "fifo") if options.quick else ("cfs", "fulfillment", "fifo", "static", "tiresias", "optimus"):
        done, seconds = run(workload, policy, ON_POLLUX_GROUND)
        rows.append(Row(case=f"{name} under {policy}", value=seconds, unit="s", peer=AIM, peer_value=5.0))
        if policy == "cfs":
            rows += rates(f"{name} under cfs", done, seconds)

    done, seconds = run(look_alike(service=True), "cfs", BUSY)
    rows += rates("look-alikes under cfs with events, failures, a service", done, seconds)

    jobs = 50_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        plain_trace(path, jobs)
        progress(f"reading {jobs:,} lines")
        trace, seconds = timed(lambda: read_trace(path, Assumed()))
    rows.append(Row(case=f"reading a trace of {jobs:,} jobs", value=seconds, unit="s"))
    done, seconds = run(Workload(name=f"{jobs:,} plain jobs", jobs=trace.jobs, hosts=(HOST,) * 128), "fifo", COARSE)
    rows.append(Row(case=f"{jobs:,} plain jobs under fifo", value=seconds, unit="s"))
    rows += rates(f"{jobs:,} plain jobs under fifo", done, seconds)
    rows.append(
        Row(case="memory of this process", value=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, unit="MiB")
    )

    report("simulator", "16 hosts with 4 GPUs; 128 for plain jobs; one process, CPU time", rows, options)


if __name__ == "__main__":
    main()
