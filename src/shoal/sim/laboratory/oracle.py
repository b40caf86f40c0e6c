"""The best size of a job, by trying every one that is allowed. Only the laboratory can do that.

Cores go in halves. Memory is exactly what the job will need at its end, and parameter servers have cores in proportion
to their load: nobody can do better. Where a policy has less freedom the oracle has no more: nodes have so many cores
each, and only their numbers are chosen.
"""

import math

from shoal.core.errors import BadInput
from shoal.sim.laboratory.surface import GIB, PS_BASE, Held, LabJob, spread


def best(job: LabJob, exponent: float, *, each: float | None = None) -> Held:
    """The size with the most speed per cost at the exponent. `each`: cores that every node has."""
    try:
        import numpy as np
    except ImportError as exc:
        raise BadInput("the laboratory needs numpy and scipy: pip install 'shoal[sim]'") from exc
    workers = np.arange(1, job.max_workers + 1, dtype=float)
    cores = np.arange(0.5, job.limits.node_cpu + 0.25, 0.5) if each is None else np.array([each])
    memory = job.worker_needs(1.0)
    limit = math.inf if job.limits.cpu is None else job.limits.cpu
    most = math.inf if job.limits.memory is None else job.limits.memory
    if job.is_ps:
        servers = np.arange(1, job.max_ps + 1, dtype=float)
        w, c, p, s = np.meshgrid(workers, cores, servers, cores, indexing="ij", sparse=True)
        hottest = np.array([max(job.shares(int(count))) * count for count in servers]).reshape(1, 1, -1, 1)
        slower, larger = (1.0, hottest) if each is None else (hottest, 1.0)
        waits = job.second * w / (p * s) * slower + job.third * w / p
        time = job.compute / np.minimum(c, job.parallel) + job.fixed + waits
        mib = w * memory + p * PS_BASE + job.ps_state + job.growth
        held = 10.0 * (w * c + p * s) + mib / GIB
        fits = (w * c + p * s <= limit) & (s * larger <= job.limits.node_cpu) & (mib <= most)
    else:
        w, c = np.meshgrid(workers, cores, indexing="ij", sparse=True)
        time = job.work_of(w) / np.minimum(c, job.parallel) + job.fixed
        time = time + job.second * (w - 1) / w + job.third * np.log2(w)
        held = 10.0 * w * c + w * memory / GIB
        fits = (w * c <= limit) & (w * memory <= most)
    score = np.where(fits, job.samples(w) / (time * (1.0 + job.drift * spread(w))) / held**exponent, -np.inf)
    at = np.unravel_index(int(np.argmax(score)), score.shape)
    count = int(servers[at[2]]) if job.is_ps else 0
    even = float(cores[at[3]]) if job.is_ps else 0.0
    return Held(
        workers=int(workers[at[0]]),
        worker_cpu=float(cores[at[1]]),
        worker_memory=math.ceil(memory),
        ps=count,
        ps_cpu=(even,) * count if each is not None else tuple(even * share * count for share in job.shares(count)),
        ps_memory=math.ceil(job.ps_needs(count, 1.0)) if job.is_ps and each is None else 0,
    )
