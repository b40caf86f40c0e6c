"""Workloads of measured models: the published ones, and whose files look the same.

A line is `name,time,application,num_replicas,batch_size`: what a user asked for, and when. Policies that choose only
how many GPUs a job has keep its total batch and may give it between one GPU and as many as leave the smallest local
batch to each.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from shoal.core.errors import BadInput
from shoal.scheduler.rows import Room
from shoal.sim.pollux.jobs import Ask, Training
from shoal.sim.pollux.profiles import Application
from shoal.sim.workload import GIBIBYTE, TRAINER, JobSpec, Workload

HOSTS = (Room(cpu=48_000, memory=192 * GIBIBYTE, gpu=4),) * 16
"""The published cluster."""
MOST_GPUS = 64
FOLDERS = {"0.5": "workloads-0.5", "1.0": "workloads", "1.5": "workloads-1.5", "realistic": "workloads-realistic"}
"""By load: how many times the jobs of the published workloads."""


def workload_of(
    name: str, asks: Iterable[Ask], applications: Mapping[str, Application], hosts: Sequence[Room] = HOSTS
) -> Workload:
    jobs = tuple(_spec(ask, applications) for ask in sorted(asks, key=lambda ask: ask.submitted))
    return Workload(name=name, jobs=jobs, hosts=tuple(hosts))


def _spec(ask: Ask, applications: Mapping[str, Application]) -> JobSpec:
    application = applications.get(ask.application)
    if application is None:
        known = ", ".join(sorted(applications))
        raise BadInput(f"job {ask.name} is of application {ask.application!r}; there are profiles of {known}")
    return JobSpec(
        name=ask.name,
        submitted=ask.submitted,
        model=partial(Training, ask, application),
        size=ask.gpus,
        min=1,
        max=most_gpus(ask, application),
        each=TRAINER,
        application=ask.application,
    )


def most_gpus(ask: Ask, application: Application) -> int:
    """More would leave less than the smallest local batch to each."""
    limits = application.limits
    own = MOST_GPUS if limits.adaptive_max_gpus is None else limits.adaptive_max_gpus
    return max(1, min(MOST_GPUS, own, ask.batch // limits.min_local))


def published_files(folder: Path, load: str) -> list[Path]:
    """The eight workloads of a load."""
    if load not in FOLDERS:
        raise BadInput(f"there are workloads of load {', '.join(FOLDERS)}, not {load}")
    files = sorted((folder / FOLDERS[load]).glob("workload-*.csv"))
    if not files:
        raise BadInput(f"{folder / FOLDERS[load]} holds no workload-*.csv")
    return files
