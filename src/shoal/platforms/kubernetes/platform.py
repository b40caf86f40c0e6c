"""A master's own job in the cluster: read it, understand it, report on it.

`read_job` fetches the ElasticJob; `understood` makes of it what the core knows as a job. `Reporter` writes the
master's report, `status.training`, and nothing else of the status: the rest is the operator's.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta

import msgspec

from shoal.api.elasticjob import (
    API_VERSION,
    MAX_METRIC,
    MAX_METRICS,
    MAX_SCORES,
    Decision,
    ElasticJob,
    Figures,
    Metric,
    OptimizeMode,
    Role,
    Score,
    Strategy,
    Training,
)
from shoal.api.jobspec import JobDefaults, normalise
from shoal.api.jobspec import JobSpec as MeantSpec
from shoal.api.kept import why_not_kept
from shoal.api.resources import Resource
from shoal.api.validation import problems
from shoal.core.errors import BadInput
from shoal.core.facts import Limits, OptimizerSettings
from shoal.core.job.values import JobSpec, PSSpec, SelfSizing
from shoal.core.plans import NodeResource
from shoal.core.saving import CheckpointSpec
from shoal.core.view import JobView
from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.errors import (
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    NotServed,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS
from shoal.platforms.kubernetes.objects import Json
from shoal.platforms.kubernetes.orders import WORKERS
from shoal.platforms.kubernetes.scaler import MANAGER, check_uid

log = logging.getLogger("shoal.master")

LOOK_SECONDS = 0.5
"""How often the job is looked at for news."""
EVERY = timedelta(seconds=5)
"""Progress is reported at most so often; a change of phase or world, and a decision, at once."""
FIRST_WORKERS = 2
OOM_ROOM = 2
"""How many times the memory that its user gives it a node may get, where `resourceLimits` has no word of it."""
LONGEST_TEXT, LONGEST_ERROR = 1024, 8192


async def read_job(client: Client, namespace: str, name: str, *, backoff: Backoff | None = None) -> ElasticJob:
    """The job, as soon as the API server can be asked. Raises `BadInput` when asking again cannot help."""
    backoff, failures = backoff or Backoff(limit_seconds=5.0), 0
    while True:
        try:
            found = await client.get(ELASTIC_JOBS, name, namespace=namespace)
            return msgspec.convert(found, ElasticJob)
        except (Unavailable, TooManyRequests) as exc:
            failures += 1
            log.warning("ElasticJob %s/%s cannot be read: %s; trying again", namespace, name, exc)
            await asyncio.sleep(backoff.seconds(failures, random.random()))
        except NotFound as exc:
            raise BadInput(f"there is no ElasticJob {namespace}/{name}: it was deleted, or SHOAL_JOB is wrong") from exc
        except NotServed as exc:
            raise BadInput(
                f"{exc} (`helm install` or `kubectl apply --server-side -f install.yaml` installs it)"
            ) from exc
        except (Forbidden, Unauthorized) as exc:
            raise BadInput(f"{exc}; the operator gives the service account {name}-master this right") from exc
        except msgspec.ValidationError as exc:
            raise BadInput(f"ElasticJob {namespace}/{name} is not one of this release: {exc}") from exc


def managed_roles(job: ElasticJob) -> frozenset[Role]:
    """Roles whose members the job's master knows."""
    return frozenset(Role) if normalise(job).strategy is Strategy.PARAMETER_SERVER else WORKERS


def understood(job: ElasticJob, defaults: JobDefaults | None = None, *, fills_grant: bool = False) -> JobSpec:
    """The job as its master knows it. `fills_grant`: the master makes its Pods. Raises `BadInput`."""
    meant = normalise(job, defaults)
    if Role.WORKER not in meant.roles:
        raise BadInput(f"ElasticJob {meant.name} has no workers")
    worker = meant.worker
    return JobSpec(
        name=meant.name,
        uid=meant.uid,
        min_nodes=max(1, worker.min),
        max_nodes=max(1, worker.min, worker.max, worker.replicas or 0),
        nproc=1 if meant.strategy is Strategy.PARAMETER_SERVER else worker.processes,
        node_unit=meant.node_unit,
        max_restarts=worker.restart_count,
        global_batch=meant.global_batch,
        platform_grows=True,
        fills_grant=fills_grant,
        memory_limit=meant.limits.memory,
        checkpoint=_checkpoint(meant),
        ps=_servers(meant) if meant.strategy is Strategy.PARAMETER_SERVER else None,
        sizing=_sizing(meant),
    )


def _checkpoint(meant: MeantSpec) -> CheckpointSpec:
    """How often, how many, and how. Where, stands in the Pods."""
    usual = CheckpointSpec()
    return CheckpointSpec(
        seconds=usual.seconds if meant.checkpoint_seconds is None else meant.checkpoint_seconds,
        keep=usual.keep if meant.checkpoint_keep is None else meant.checkpoint_keep,
        fuzzy=meant.checkpoint_fuzzy,
    )


def _sizing(meant: MeantSpec) -> SelfSizing | None:
    """How the job's optimizer may size it; None: it is for users to say."""
    if meant.optimize_mode is OptimizeMode.MANUAL:
        return None
    limits, usual = meant.limits, Limits()
    given = {role: meant.roles[role].resource for role in (Role.WORKER, Role.PS) if role in meant.roles}
    most_cpu = max(each.cpu or 0.0 for each in given.values())
    most_memory = max(each.memory or 0 for each in given.values())
    return SelfSizing(
        limits=Limits(
            cpu=limits.cpu,
            memory=limits.memory,
            node_cpu=max(usual.node_cpu, most_cpu) if limits.cpu is None else limits.cpu,
            # Who runs out of what was given is given more, and nobody has said that there is none.
            node_memory=max(usual.node_memory, OOM_ROOM * most_memory) if limits.memory is None else limits.memory,
        ),
        resource=NodeResource(**asdict(given[Role.WORKER])),
        ps_resource=NodeResource(**asdict(given.get(Role.PS, Resource()))),
    )


def optimizer_settings(spec: JobSpec) -> OptimizerSettings:
    """How a job is sized in a cluster. Nodes are given cores and memory to begin with where the job's limits say how
    much there is; without that nobody here knows what fits a host, and a guess that fits none would keep the job from
    starting at all."""
    limits = spec.sizing.limits if spec.sizing is not None else Limits()
    usual = OptimizerSettings()
    return OptimizerSettings(
        start_workers=FIRST_WORKERS,
        start_cpu=usual.start_cpu if limits.cpu is not None else None,
        start_memory=usual.start_memory if limits.memory is not None else None,
        canary=False,  # an ask is for a role as a whole
    )


def _servers(meant: MeantSpec) -> PSSpec:
    """What the job has besides its workers. How many servers there are is the grant's to say."""
    needs = meant.roles.get(Role.PS)
    if needs is None:
        raise BadInput(f"ElasticJob {meant.name} trains with parameter servers and has no template for them")
    return PSSpec(
        min_servers=max(1, needs.min),
        max_servers=max(1, needs.min, needs.max, needs.replicas or 0),
        chief=Role.CHIEF in meant.roles,
        evaluator=Role.EVALUATOR in meant.roles,
        checkpoint_dir=meant.checkpoint_dir,
        fleeting=why_not_kept(meant),
    )


def still_understood(found: Json, defaults: JobDefaults | None = None, *, fills_grant: bool = False) -> JobSpec | None:
    """What a job asks for that has changed; None: it is not valid any more. The operator says so in its status."""
    found = {"apiVersion": API_VERSION, "kind": "ElasticJob", **found}
    wrong = problems(found)
    if wrong:
        log.warning("the job as it is now is not valid (%s): what it asked for before still counts", wrong[0])
        return None
    try:
        return understood(msgspec.convert(found, ElasticJob), defaults, fills_grant=fills_grant)
    except (BadInput, msgspec.ValidationError) as exc:
        log.warning("the job as it is now is not understood (%s): what it asked for before still counts", exc)
        return None


def first_ask(job: ElasticJob, defaults: JobDefaults | None = None) -> dict[Role, int]:
    """How many members of each role the master asks for when nobody has said, before anything is known of the job.

    Two workers: a job that can lose one, and the least that tells how it scales. In manual mode nothing is asked for.
    """
    meant = normalise(job, defaults)
    if meant.optimize_mode is OptimizeMode.MANUAL:
        return {}
    asked = {}
    for role, needs in meant.roles.items():
        wanted = FIRST_WORKERS if role is Role.WORKER else 1
        unit = meant.node_unit if role is Role.WORKER else 1
        most = max(needs.max // unit * unit, unit)
        asked[role] = min(max(-(-max(wanted, needs.min) // unit) * unit, unit), most)
    return asked


def training_of(view: JobView, term: int, figures: Figures | None = None) -> Training:
    """The master's report."""
    last = view.decisions[-1] if view.decisions else None
    return Training(
        phase=str(view.phase),
        reason=_cut(view.reason),
        term=term,
        world=view.generation,
        world_size=view.world_size,
        members=sum(1 for node in view.nodes if any(process.rank is not None for process in node.processes)),
        step=view.step,
        samples=view.samples,
        sdk=view.sdk,
        restarts=view.restarts,
        error=None if view.error is None else view.error[-LONGEST_ERROR:],
        last_decision=None if last is None else Decision(reason=_cut(last.reason), at=last.at),
        figures=figures,
        scores=_scores(view) or None,
    )


def _scores(view: JobView) -> list[Score]:
    """The last of them. Names are the script's, and values may be anything that it has computed."""
    return [
        Score(
            step=step,
            metrics=[
                Metric(name=name[:MAX_METRIC], value=f"{value:.6g}")
                for name, value in sorted(metrics.items())[:MAX_METRICS]
            ]
            or None,
        )
        for step, metrics in (view.servers.scores[-MAX_SCORES:] if view.servers is not None else ())
    ]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


class Reporter:
    """Writes `status.training` by server-side apply, as the only manager of that field."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        uid: str,
        look: Callable[[], Training],
        now: Callable[[], datetime],
        backoff: Backoff | None = None,
    ) -> None:
        """`uid`: of the job that is reported on; a job that took its name is none of ours."""
        self._client = client
        self._namespace, self._name, self._uid = namespace, name, uid
        self._look, self._now = look, now
        self._backoff = backoff or Backoff(limit_seconds=10.0)
        self._said: Training | None = None
        self._said_at: datetime | None = None

    async def run(self) -> None:
        """Report until cancelled. Trouble is said and tried again: nothing of the job depends on it.

        Raises `Superseded` when another job has the name: the one that this master was of is gone.
        """
        failures = 0
        while True:
            report = self._look()
            if self._is_due(report):
                failures = 0 if await self._say(report, failures) else failures + 1
            await asyncio.sleep(LOOK_SECONDS if not failures else self._backoff.seconds(failures, 1.0))

    async def last_word(self) -> None:
        """Report until it is accepted: how the job ended must not be lost. Returns also when the job is gone.
        Raises `Superseded` as `run` does."""
        failures = 0
        while not await self._say(self._look(), failures):
            failures += 1
            await asyncio.sleep(self._backoff.seconds(failures, 1.0))

    def _is_due(self, report: Training) -> bool:
        said = self._said
        if said is None or self._said_at is None:
            return True
        if report == said:
            return False
        news = ("phase", "world", "last_decision", "error", "sdk")
        return (
            any(getattr(report, name) != getattr(said, name) for name in news) or self._now() - self._said_at >= EVERY
        )

    async def _say(self, report: Training, failures: int) -> bool:
        body = {
            "metadata": {"name": self._name, "namespace": self._namespace, "uid": self._uid},
            "status": {"training": msgspec.to_builtins(report)},
        }
        try:
            await self._client.apply(ELASTIC_JOBS, body, manager=MANAGER, subresource="status")
        except NotFound:
            log.warning("ElasticJob %s/%s is gone: nobody to report to", self._namespace, self._name)
        except ApiError as exc:
            if isinstance(exc, Conflict):
                await self._check_name()
            if failures & (failures - 1) == 0:
                log.warning("the report could not be written: %s; trying again", exc)
            return False
        self._said, self._said_at = report, self._now()
        return True

    async def _check_name(self) -> None:
        """Raises `Superseded` if another job has the name."""
        with contextlib.suppress(ApiError):
            found = await self._client.get(ELASTIC_JOBS, self._name, namespace=self._namespace)
            check_uid(found["metadata"]["uid"], self._uid, f"{self._namespace}/{self._name}")
