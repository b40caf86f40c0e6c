"""`shoal master --kubernetes`: the master of one job, in the Pod that the operator made for it.

What it is the master of stands in its environment (`SHOAL_JOB`, `SHOAL_NAMESPACE`, `SHOAL_TERM`), its tokens and its
certificate in the folder of the mounted Secret, everything else in the ElasticJob itself. `SHOAL_SCALER=pod` lets it
make the job's Pods itself, with what `SHOAL_POD_SETTINGS` says of the operator's settings. It takes the job over from
the master before it, if there was one; when it is told to end (SIGTERM) it writes down what it knows and leaves
everything running: the next one goes on.

Exit codes: as those of `shoal master`, and 143 when it was told to end.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.cli.flags import Given, as_pace
from shoal.cli.log_lines import set_up_by
from shoal.core.errors import BadInput, ShoalError, StateUnavailable, Superseded

if TYPE_CHECKING:
    from shoal.api.elasticjob import ElasticJob
    from shoal.api.jobspec import JobDefaults
    from shoal.core.job import JobSpec
    from shoal.core.nodes import Node
    from shoal.master import Master
    from shoal.platforms.kubernetes.access import Access
    from shoal.platforms.kubernetes.client import Client
    from shoal.platforms.kubernetes.objects import Json
    from shoal.platforms.kubernetes.scaler import ElasticJobScaler, PodScaler
    from shoal.wire.server import Listen
    from shoal.wire.tokens import JobTokens

T = TypeVar("T")

SECRETS = Path("/var/run/shoal")
PORT = 7077
GOODBYE_SECONDS = 5.0
"""How long writing down the last state may take when the Pod is deleted; Kubernetes gives it 10 s in all."""
EXIT_OVER, EXIT_TOLD = 0, 128 + signal.SIGTERM

log = logging.getLogger("shoal.master")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Who this master is."""

    job: str
    namespace: str
    term: int
    uid: str = ""
    """The job's; one that took its name is none of ours."""
    port: int = PORT
    address: str = ""
    """The Pod's; the kubelet asks for its health under it."""
    max_members: int | None = None
    """How many workers a job has at most that does not say; None: as in `JobDefaults`."""
    autoscale_seconds: int | None = None
    """Between two looks at a job that sizes itself; None: as in `JobSettings`."""
    secrets: Path = field(default=SECRETS)
    pod_settings: str | None = None
    """What it takes to make Pods, where this master does (`SHOAL_SCALER=pod`); None: the operator makes them."""

    @property
    def names(self) -> tuple[str, ...]:
        """By what it may be addressed: the Service's names, and the Pod's address."""
        service = f"{self.job}-master"
        inside = f"{service}.{self.namespace}"
        given = (service, inside, f"{inside}.svc", f"{inside}.svc.cluster.local", self.address)
        return tuple(name for name in given if name)


def place_of(environment: Mapping[str, str]) -> Place:
    """Raises `BadInput`."""
    missing = [name for name in ("SHOAL_JOB", "SHOAL_NAMESPACE", "SHOAL_TERM") if not environment.get(name)]
    if missing:
        raise BadInput(f"shoal master --kubernetes: {', '.join(missing)} not set; the operator sets them in its Pod")
    try:
        term, port = int(environment["SHOAL_TERM"]), int(environment.get("SHOAL_PORT") or PORT)
        most = int(environment.get("SHOAL_MAX_MEMBERS") or 0)
    except ValueError as exc:
        names = "SHOAL_TERM, SHOAL_PORT and SHOAL_MAX_MEMBERS"
        raise BadInput(f"shoal master --kubernetes: {names} must be numbers: {exc}") from exc
    return Place(
        job=environment["SHOAL_JOB"],
        namespace=environment["SHOAL_NAMESPACE"],
        term=term,
        uid=environment.get("SHOAL_JOB_UID", ""),
        port=port,
        address=environment.get("SHOAL_POD_IP", ""),
        max_members=most or None,
        autoscale_seconds=_autoscale_seconds(environment.get("SHOAL_AUTOSCALE_EVERY")),
        secrets=Path(environment.get("SHOAL_SECRETS") or SECRETS),
        pod_settings=_pod_settings(environment),
    )


def _autoscale_seconds(text: str | None) -> int | None:
    return as_pace(Given(text=text, source="shoal master --kubernetes: SHOAL_AUTOSCALE_EVERY")) if text else None


def _pod_settings(environment: Mapping[str, str]) -> str | None:
    scaler = environment.get("SHOAL_SCALER") or "elasticjob"
    if scaler not in ("pod", "elasticjob"):
        raise BadInput(f"shoal master --kubernetes: SHOAL_SCALER is pod or elasticjob, got {scaler!r}")
    if scaler == "elasticjob":
        return None
    if not environment.get("SHOAL_POD_SETTINGS"):
        raise BadInput("shoal master --kubernetes: SHOAL_SCALER=pod needs SHOAL_POD_SETTINGS; the operator sets both")
    return environment["SHOAL_POD_SETTINGS"]


def main(environment: Mapping[str, str]) -> int:
    from shoal.platforms.kubernetes.config import in_cluster

    place = place_of(environment)
    set_up_by(environment, job=f"{place.namespace}/{place.job}")
    return asyncio.run(run(place, in_cluster(environment=environment)))


async def run(place: Place, access: "Access") -> int:
    """Be the master until the job is over, or until told to end. Raises `BadInput`, `Superseded`, `StateUnreadable`."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    try:
        return await _run(place, access, told)
    except ToldToEnd:
        return EXIT_TOLD


async def _run(place: Place, access: "Access", told: asyncio.Event) -> int:
    from shoal.api.jobspec import JobDefaults
    from shoal.core.job import JobSettings
    from shoal.master import Master, SystemClock
    from shoal.platforms.kubernetes.client import Client
    from shoal.platforms.kubernetes.figures import ToldFigures
    from shoal.platforms.kubernetes.platform import Reporter, optimizer_settings, read_job, training_of, understood
    from shoal.platforms.kubernetes.store import SecretStore
    from shoal.platforms.kubernetes.transport import ClientSettings

    clock = SystemClock()
    defaults = JobDefaults() if place.max_members is None else JobDefaults(max_members=place.max_members)
    tokens, listen = tokens_of(place), listen_of(place)
    async with Client(access, settings=ClientSettings(user_agent="shoal-master")) as client:
        job = await unless(told, read_job(client, place.namespace, place.job))
        spec = understood(job, defaults, fills_grant=place.pod_settings is not None)
        if place.uid and place.uid != spec.uid:
            raise Superseded(
                f"job {place.namespace}/{place.job} is another one now: this is a master of the one before"
            )
        scaler = _scaler(place, client, job, spec, defaults)
        settings = JobSettings(optimizer=optimizer_settings(spec))
        master = Master(
            spec,
            settings if place.autoscale_seconds is None else settings.sized_every(place.autoscale_seconds),
            scaler=scaler,
            keys=tokens,
            listen=listen,
            nodes=0,  # as many as granted, when that is heard
            clock=clock,
            store=SecretStore(client, namespace=place.namespace, name=f"{place.job}-state", term=place.term),
        )
        scaler.serve(master)
        told_figures = ToldFigures(lambda: master.figures(with_history=False), clock.now)
        reporter = Reporter(
            client,
            namespace=place.namespace,
            name=place.job,
            uid=spec.uid,
            look=lambda: training_of(master.view(), place.term, told_figures.now()),
            now=clock.now,
        )
        await unless(told, start_patiently(master))
        log.info("master %d of job %s/%s listens on port %d", place.term, place.namespace, place.job, master.port)
        if not await until_over(master, scaler.run(), reporter.run(), told=told):
            return EXIT_TOLD
        await unless(told, reporter.last_word())  # what is not said, the next master says
    return EXIT_OVER


def _scaler(
    place: Place, client: "Client", job: "ElasticJob", spec: "JobSpec", defaults: "JobDefaults"
) -> "ElasticJobScaler | PodScaler":
    """Declares, or where it was told to makes, what the master decides."""
    from shoal.api.labels import JOB_UID
    from shoal.core.job.sizing import bounds
    from shoal.platforms.kubernetes.platform import first_ask, managed_roles, still_understood
    from shoal.platforms.kubernetes.scaler import ElasticJobScaler, PodScaler

    makes_pods = place.pod_settings is not None
    first = first_ask(job, defaults)
    of_job: dict[str, Any] = {
        "namespace": place.namespace,
        "job": place.job,
        "uid": spec.uid,
        "managed": managed_roles(job),
        # The optimizer of a job that sizes itself asks first; what the one before it asked for stays until then. It
        # asks for workers and parameter servers; the other roles come with them.
        "asks": first if spec.sizing is None else None,
        "beside": {}
        if spec.sizing is None
        else {role: count for role, count in first.items() if role not in bounds(spec)},
        "understand": lambda found: still_understood(found, defaults, fills_grant=makes_pods),
    }
    if place.pod_settings is None:
        return ElasticJobScaler(client, **of_job)
    return PodScaler(client, labels=f"{JOB_UID}={spec.uid}", manifest=_maker(place.pod_settings), **of_job)


def _maker(pod_settings: str) -> "Callable[[Json, Node], Json]":
    """Makes the Pods that the operator would make. Raises `BadInput`, now and when no Pod can be made."""
    from shoal.api.elasticjob import API_VERSION, Role
    from shoal.api.resources import Resource
    from shoal.operator.asks import needs_of
    from shoal.operator.memory import Member
    from shoal.operator.pods import member_pod, settings_of
    from shoal.operator.reading import Reader

    settings = settings_of(pod_settings)
    reader = Reader(settings.defaults)

    def made(found: "Json", node: "Node") -> "Json":
        job = reader.job({"apiVersion": API_VERSION, "kind": "ElasticJob", **found})
        role = Role(node.role)
        needs = None if job.spec is None else needs_of(job.spec, role)
        if job.spec is None or needs is None:
            raise BadInput(job.invalid or f"job {job.name} has no {role}")
        amounts = {name: value for name, value in asdict(node.resource).items() if name != "priority"}
        member = Member(
            name=f"{job.name}-{node.id}",
            role=role,
            id=node.number,
            rank=node.seat,
            avoid_hosts=node.avoid_hosts,
        )
        return member_pod(job, job.spec, needs, member, Resource(**amounts).over(needs.resource), settings)

    return made


class ToldToEnd(Exception):
    """Before there was anything to write down, or after it was."""


async def unless(told: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """What the work results in. Raises `ToldToEnd` as soon as this master is told to end, whatever is waited for."""
    working, asked = asyncio.ensure_future(work), asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait([working, asked], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ToldToEnd
        return working.result()
    finally:
        working.cancel()
        asked.cancel()
        await asyncio.gather(working, asked, return_exceptions=True)


async def start_patiently(master: "Master") -> None:
    """Take the job over as soon as its state can be read: a master that began anew would end what trains."""
    delay = 0.2
    while True:
        try:
            await master.start()
        except StateUnavailable as exc:
            log.warning("the job's state cannot be had: %s; trying again", exc)
            await asyncio.sleep(delay)
            delay = min(2 * delay, 5.0)
        else:
            return


async def until_over(master: "Master", *beside: Coroutine[Any, Any, None], told: asyncio.Event) -> bool:
    """Run the job, and these beside it. False: it is not over, but this master was told to end."""
    try:
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(each) for each in beside]
            running, asked = tasks.create_task(master.run()), tasks.create_task(told.wait())
            await asyncio.wait([running, asked], return_when=asyncio.FIRST_COMPLETED)
            is_over = running.done()
            if not is_over:
                log.info("told to end: the job goes on, and the next master takes over")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GOODBYE_SECONDS):
                        await master.recorded()
            for task in (running, asked, *background):
                task.cancel()
    except* ShoalError as group:
        raise group.exceptions[0] from None
    return is_over


def tokens_of(place: Place) -> "JobTokens":
    from shoal.wire.tokens import JobTokens, Purpose

    return JobTokens(
        tokens={purpose: _secret(place, purpose).decode().strip() for purpose in (Purpose.AGENT, Purpose.ADMIN)}
    )


def listen_of(place: Place) -> "Listen":
    from shoal.wire.server import Listen
    from shoal.wire.tls import Certificate

    certificate = Certificate(
        cert_pem=_secret(place, "tls.crt"),
        key_pem=_secret(place, "tls.key"),
        fingerprint=_secret(place, "fingerprint").decode().strip(),
    )
    return Listen(host="0.0.0.0", port=place.port, certificate=certificate, names=place.names)  # noqa: S104


def _secret(place: Place, name: str) -> bytes:
    path = place.secrets / name
    try:
        return path.read_bytes()
    except OSError as exc:
        raise BadInput(
            f"cannot read {path}: {exc.strerror}; Secret {place.job}-token must be mounted at {place.secrets}"
        ) from exc
