"""Shoal as its users run it: with the limits, settings and beginnings that production has, from the same functions.

In a cluster workers are all alike, those of parameter servers do not tell waiting from computing, and nobody tells the
optimizer what a host has: a plan with a node that no host has room for is not granted. With `resourceLimits` cores and
memory are planned. Without, and on one machine, nodes have what their hosts let them have, here four cores
each, and only their numbers are chosen.
"""

from dataclasses import replace

import msgspec

from shoal.api.elasticjob import API_VERSION, ElasticJob
from shoal.core.facts import JobFacts, Limits, counts_only
from shoal.core.job.sizing import begins
from shoal.core.job.values import JobSpec, PSSpec, SelfSizing
from shoal.core.plans import ResourcePlan
from shoal.master.sizer import local_optimizer
from shoal.platforms.kubernetes.platform import optimizer_settings, understood
from shoal.sim.laboratory.bench import Place, Sizer
from shoal.sim.laboratory.policies import ShoalSizer, StaticSizer
from shoal.sim.laboratory.surface import GIB, Held, LabJob

EACH = 4.0
"""Cores of a node that is given nothing."""
CORES, GIB_FOR_A_CORE = 256.0, 8
"""What `resourceLimits` says where the job has no limit of its own, and the memory that it has beside the cores."""

IN_A_CLUSTER = Place(tells_waits=False, checks_hosts=True)
COUNTED = Place(tells_waits=False, each=EACH)


def limited(job: LabJob) -> LabJob:
    """The job with `resourceLimits` for cores and memory."""
    cores = job.limits.cpu or CORES
    return replace(job, limits=replace(job.limits, cpu=cores, memory=int(cores * GIB_FOR_A_CORE * GIB)))


def counted(job: LabJob) -> LabJob:
    """The job, of which memory is the hosts' affair, and the number of nodes all that may be limited."""
    return replace(job, limits=Limits(), worker_memory=0.0, ps_state=0.0, growth=0.0)


def on_one_host(job: LabJob) -> LabJob:
    """The same, with no other host that could be slower."""
    return replace(counted(job), straggler=None)


def in_a_cluster(job: LabJob, best: Held) -> Sizer:
    spec = job_in_a_cluster(job)
    assert spec.sizing is not None
    return ShoalSizer(spec.sizing.limits, optimizer_settings(spec), local_optimizer(spec))


def job_in_a_cluster(job: LabJob) -> JobSpec:
    """What its master makes of an ElasticJob that states nothing but its limits and how many nodes it may have."""
    amounts = {"cpu": job.limits.cpu, "memory": None if job.limits.memory is None else f"{job.limits.memory}Mi"}
    command = {"containers": [{"name": "main", "image": "train", "command": ["train"]}]}
    written = {
        "apiVersion": API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": job.name, "namespace": "default", "uid": job.name},
        "spec": {
            "resourceLimits": {name: str(amount) for name, amount in amounts.items() if amount is not None},
            "worker": {"min": 1, "max": job.max_workers, "template": {"spec": command}},
        },
    }
    return replace(understood(msgspec.convert(written, ElasticJob)), ps=_servers(job))


def on_one_machine(job: LabJob, best: Held) -> Sizer:
    spec = JobSpec(
        name=job.name, uid=job.name, min_nodes=1, max_nodes=job.max_workers, ps=_servers(job), sizing=SelfSizing()
    )
    begun = begins(platform_grows=False).optimizer
    return _Begun(job, ShoalSizer(Limits(), counts_only(), local_optimizer(spec), begun))


def _servers(job: LabJob) -> PSSpec | None:
    return PSSpec(min_servers=1, max_servers=job.max_ps) if job.is_ps else None


class _Begun:
    """A job that somebody has started with the fewest nodes."""

    watches = True

    def __init__(self, job: LabJob, sizer: ShoalSizer) -> None:
        servers = 1 if job.is_ps else 0
        fewest = Held(workers=1, worker_cpu=EACH, worker_memory=0, ps=servers, ps_cpu=(EACH,) * servers)
        self._first, self._sizer = StaticSizer(fewest, "as it was started"), sizer

    def look(self, facts: JobFacts) -> ResourcePlan | None:
        return self._sizer.look(facts) if facts.workers.count else self._first.look(facts)
