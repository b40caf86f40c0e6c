"""What one decision of the optimizer costs: a large job in stage RUNNING, with all its statistics.

1,000 nodes (960 workers, 40 parameter servers), 10,000 samples of the job's speed over five sizes, 10,000 samples of
what nodes used. Each decision goes through everything: cleaning, the symptoms in turn, the fit, the search for the
best size. Beside the aim stands what cannot be saved: scipy's non-negative least squares alone, on as many equations
as the fit has. The time is this process's CPU time, the median of several decisions, so that a busy machine does not
count.
"""

import random
import statistics
import time
from collections.abc import Callable

from _common import Row, parse_options, progress, report
from shoal.api.elasticjob import Strategy
from shoal.brain.algorithms.local import LocalOptimizer
from shoal.core.facts import JobFacts, Limits, NodeFacts, NodeSample, RoleFacts, SpeedSample
from shoal.core.nodes import Role
from shoal.core.plans import NodeResource
from shoal.core.stages import JobResourceOptimizer, OptimizerState, Stage

AIM_SECONDS = 0.05
NOW = 1_000_000.0
SIZES = ((4, 2), (60, 4), (240, 10), (480, 20), (960, 40))
"""Workers and parameter servers."""


def step_seconds(workers: int, ps: int) -> float:
    return 2.0 / 4.0 + 0.1 * workers / (ps * 4.0) + 0.002 * workers / ps + 0.05


def speeds(count: int, chance: random.Random) -> tuple[SpeedSample, ...]:
    found = []
    for number in range(count):
        workers, ps = SIZES[number * len(SIZES) // count]
        step = step_seconds(workers, ps) * chance.lognormvariate(0.0, 0.03)
        used = 0.1 * workers / ps / step
        found.append(
            SpeedSample(
                at=NOW - 30.0 * (count - 1 - number),
                step_seconds=step,
                samples_per_second=64 * workers / step,
                workers=workers,
                ps=ps,
                worker_cpu=4.0,
                ps_cpu=4.0,
                worker_cpu_used=2.0 / step,
                ps_cpu_used=used,
                ps_busiest=used / 4.0,
            )
        )
    return tuple(found)


def nodes(each: int, chance: random.Random) -> tuple[NodeFacts, ...]:
    workers, ps = SIZES[-1]
    names = [(Role.WORKER, number) for number in range(workers)] + [(Role.PS, number) for number in range(ps)]
    return tuple(
        NodeFacts(
            name=f"{role}-{number}",
            role=role,
            resource=NodeResource(cpu=4.0, memory=8_192),
            since=NOW - 5_000.0,
            samples=tuple(
                NodeSample(NOW - 60.0 * (each - 1 - at), 2.0, 5_000.0 * chance.uniform(0.98, 1.0), 0.5)
                for at in range(each)
            ),
        )
        for role, number in names
    )


def job(samples: int, each: int) -> JobFacts:
    chance = random.Random(1)
    resource = NodeResource(cpu=4.0, memory=8_192)
    return JobFacts(
        job="large",
        strategy=Strategy.PARAMETER_SERVER,
        now=NOW,
        roles={
            Role.WORKER: RoleFacts(count=960, resource=resource, max=2_000),
            Role.PS: RoleFacts(count=40, resource=resource, max=100),
        },
        nodes=nodes(each, chance),
        speeds=speeds(samples, chance),
        changed_at=NOW - 4_000.0,
    )


def seconds(work: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def least_squares() -> Callable[[], object]:
    import numpy as np
    from scipy.optimize import nnls

    chance = np.random.default_rng(1)
    rows, wanted = chance.random((3 * len(SIZES), 4)), chance.random(3 * len(SIZES))
    return lambda: nnls(rows, wanted)


def main() -> None:
    options = parse_options(__doc__)
    times = 5 if options.quick else 40
    walk = JobResourceOptimizer(LocalOptimizer())
    running = OptimizerState(stage=Stage.RUNNING)
    rows = []
    for samples, each in ((1_000, 1), (10_000, 10)):
        progress(f"{samples:,} samples")
        facts = job(samples, each)
        walk.turn(running, facts, Limits())
        taken = seconds(lambda facts=facts: walk.turn(running, facts, Limits()), times)
        case = f"one decision: 1,000 nodes, {samples:,} samples of speed, {1_000 * each:,} of nodes"
        rows.append(Row(case=case, value=1e3 * taken, unit="ms", peer="the aim", peer_value=1e3 * AIM_SECONDS))
    alone = seconds(least_squares(), 20 * times)
    rows.append(Row(case="scipy's nnls alone, on as many equations", value=1e3 * alone, unit="ms"))
    report("optimizer", "a job with 1,000 nodes in stage RUNNING; one process, CPU time", rows, options)


if __name__ == "__main__":
    main()
