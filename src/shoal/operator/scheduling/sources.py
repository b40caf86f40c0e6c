"""Where the scheduler hears of ElasticJobs: their facts, made anew only when an object has changed."""

from collections.abc import Callable, Sequence
from datetime import datetime

from shoal.operator.asks import decide_asks
from shoal.operator.ports import Cluster, Json
from shoal.operator.reading import Reader, read_plan
from shoal.operator.scheduling.elastic import Shaper, elastic_facts
from shoal.operator.scheduling.facts import JobFacts
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import JobSeen


class ElasticJobs:
    """Called, it gives the facts of all ElasticJobs that take part."""

    def __init__(
        self, cluster: Cluster, shape: Shaper, settings: OperatorSettings, *, clock: Callable[[], datetime]
    ) -> None:
        self._cluster, self._shape, self._settings, self._clock = cluster, shape, settings, clock
        self._reader = Reader(settings.defaults)
        self._known: dict[str, tuple[tuple[str, ...], JobFacts | None]] = {}

    def __call__(self) -> Sequence[JobFacts]:
        known, facts = {}, []
        for raw in self._cluster.jobs():
            meta = raw["metadata"]
            uid = str(meta.get("uid", ""))
            plans = self._cluster.plans(meta.get("namespace", ""), meta.get("name", ""))
            versions = tuple(str(each["metadata"].get("resourceVersion")) for each in (raw, *plans))
            before = self._known.get(uid)
            known[uid] = before if before and before[0] == versions else (versions, self._read(raw, plans))
            if (found := known[uid][1]) is not None:
                facts.append(found)
        for uid in self._known.keys() - known.keys():
            self._reader.forget(uid)
        self._known = known
        return facts

    def _read(self, raw: Json, plans: Sequence[Json]) -> JobFacts | None:
        return facts_of(self._reader.job(raw), plans, self._shape, self._settings, now=self._clock())


def facts_of(
    job: JobSeen, plans: Sequence[Json], shape: Shaper, settings: OperatorSettings, *, now: datetime
) -> JobFacts | None:
    asks = None
    if job.spec is not None:
        asks = decide_asks(job.spec, job.memory, [read_plan(plan, job.name) for plan in plans], now=now)
    return elastic_facts(job, asks, shape, settings)
