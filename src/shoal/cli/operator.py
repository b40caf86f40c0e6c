"""`shoal operator`: the process that turns ElasticJobs into Pods, in a cluster or beside one with a kubeconfig.

Any number of them may run; one leads, the others keep their caches warm. It serves /metrics, /healthz and /readyz.
SIGTERM ends it in good order: what is under way is broken off (the next one repairs it), the lease is given up, events
that wait are written. Every flag is also `SHOAL_OPERATOR_<FLAG>`.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from shoal.cli.flags import Flag, Given, as_choice, as_int, as_list, as_pace, as_seconds, read, with_defaults
from shoal.cli.log_lines import LogFormat, set_up
from shoal.core.errors import BadInput, PlatformUnavailable

if TYPE_CHECKING:
    from shoal.operator.settings import OperatorSettings
    from shoal.platforms.kubernetes.access import Access
    from shoal.platforms.kubernetes.client import Client
    from shoal.platforms.kubernetes.elector import ElectorSettings

log = logging.getLogger("shoal.operator")

T = TypeVar("T")
PREFIX = "SHOAL_OPERATOR_"
_PATIENCE_SECONDS = 2
CLUSTER, JOBS, LEADER, PROCESS = "The cluster", "What jobs get", "Who leads", "The process"

# fmt: off
FLAGS: tuple[Flag, ...] = (
    Flag(name="namespace", short="n", metavar="NAME|all", default="all", group=CLUSTER, help="Whose jobs to run."),
    Flag(name="kubeconfig", metavar="FILE", group=CLUSTER, help="Default: as kubectl finds it, or the Pod's account."),
    Flag(name="context", metavar="NAME", group=CLUSTER, help="Which context of the kubeconfig."),
    Flag(name="skip-checks", group=CLUSTER, help="Start without a look at definitions, permissions, other operators."),
    Flag(name="image", metavar="IMAGE", default="shoal:latest", group=JOBS,
         help="Shoal's own image, of masters and of the agents that are brought along."),
    Flag(name="image-pull-policy", metavar="POLICY", default="IfNotPresent", group=JOBS, help="Of that image."),
    Flag(name="image-pull-secrets", metavar="NAME,...", group=JOBS,
         help="Secrets, in the jobs' namespaces, with which that image is pulled."),
    Flag(name="install-key", metavar="NAME", default="shoal-install-key", group=JOBS,
         help="The Secret with the key that tokens are made from; made when it is missing."),
    Flag(name="silence", metavar="SECONDS", default="60", group=JOBS,
         help="No master answers for so long: failed members are replaced without its word."),
    Flag(name="drain", metavar="SECONDS", default="120", group=JOBS,
         help="What a master gets to drain members that have to leave."),
    Flag(name="ending", metavar="SECONDS", default="30", group=JOBS,
         help="What Pods get to end by themselves when their job is over."),
    Flag(name="pending", metavar="SECONDS", default="900", group=JOBS,
         help="A replacement that does not run after so long is given up; a job whose master is not ready then fails."),
    Flag(name="host-grace", metavar="SECONDS", default="15", group=JOBS,
         help="Kubernetes has not heard of a host for so long: its members are lost, and replaced."),
    Flag(name="master-restarts", metavar="N", default="10", group=JOBS,
         help="So many masters in a row that fail before they are ready end their job."),
    Flag(name="master-frozen", metavar="SECONDS", default="60", group=JOBS,
         help="A master that was ready and answers nobody for so long is ended, and followed by the next."),
    Flag(name="pod-scaler", group=JOBS,
         help="Masters make their workers' Pods themselves; that gives them all Pods and Secrets of a namespace."),
    Flag(name="max-members", metavar="N", default="8", group=JOBS,
         help="Workers or parameter servers at most, where neither max nor resourceLimits says."),
    Flag(name="autoscale-every", metavar="SECONDS", default="30", group=JOBS,
         help="How often jobs that size themselves are looked at, and how long a sample of their speed takes."),
    Flag(name="priority-classes", metavar="high=NAME,low=NAME", group=JOBS,
         help="The PriorityClass of a role's priority."),
    Flag(name="priority-class", metavar="NAME", group=JOBS,
         help="The PriorityClass of every Pod of a job that names no other: below that of services."),
    Flag(name="training-image", metavar="IMAGE", group=JOBS, help="Of TrainingJobs that name none."),
    Flag(name="etcd-image", metavar="IMAGE", default="quay.io/coreos/etcd:v3.5.21", group=JOBS,
         help="Where masters of TrainingJobs keep their state."),
    Flag(name="gpu-resource", metavar="NAME", default="nvidia.com/gpu", group=JOBS,
         help="What Kubernetes calls devices."),
    Flag(name="gpu-type-label", metavar="LABEL", default="nvidia.com/gpu.product", group=JOBS,
         help="The label of hosts that names their kind of device."),
    Flag(name="shared-memory", metavar="SIZE", group=JOBS,
         help="Of a training Pod's /dev/shm. Default: half of its memory limit, if it has one."),
    Flag(name="master-cpu", metavar="CORES", default="100m", group=JOBS, help="What a master asks for."),
    Flag(name="master-memory", metavar="SIZE", default="256Mi", group=JOBS, help="What a master asks for."),
    Flag(name="master-memory-limit", metavar="SIZE", default="1Gi", group=JOBS, help="What a master may have."),
    Flag(name="scheduler-settings", metavar="NAME", default="shoal-scheduler", group=JOBS,
         help="The ConfigMap, beside the lease, with the scheduler's settings; without one the defaults hold."),
    Flag(name="home", metavar="NAMESPACE", group=LEADER,
         help="Where the lease, the install key and the scheduler's settings are. Default: POD_NAMESPACE, or default."),
    Flag(name="lease", metavar="NAME", default="shoal-operator", group=LEADER, help="The lease's name."),
    Flag(name="lease-seconds", metavar="SECONDS", default="15", group=LEADER, help="How long a lease lasts unrenewed."),
    Flag(name="renew-seconds", metavar="SECONDS", default="10", group=LEADER, help="How long a leader trusts it."),
    Flag(name="retry-seconds", metavar="SECONDS", default="2", group=LEADER, help="Between tries."),
    Flag(name="listen", metavar="HOST:PORT", default="127.0.0.1:8080", group=PROCESS,
         help="Where /metrics, /healthz and /readyz are served; port 0: any."),
    Flag(name="workers", metavar="N", default="16", group=PROCESS, help="Jobs that are worked on at once."),
    Flag(name="parallel-writes", metavar="N", default="32", group=PROCESS, help="Pods created or deleted at once."),
    Flag(name="relist-seconds", metavar="SECONDS", default="600", group=PROCESS,
         help="How long an event that was lost on the way can go unnoticed."),
    Flag(name="round-stuck-seconds", metavar="SECONDS", default="600", group=PROCESS,
         help="No round of the scheduler has ended for so long: /healthz fails, and Kubernetes starts it anew."),
    Flag(name="log-format", metavar="text|json", default="text", group=PROCESS,
         help="Of its own log and those of masters: one line per record, with the same keys."),
    Flag(name="log-level", metavar="LEVEL", default="info", group=PROCESS, help="debug, info or warning."),
)
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorConfig:
    """What one operator was told, taken apart and checked."""

    namespace: str | None
    image: str
    image_pull_policy: str
    image_pull_secrets: tuple[str, ...]
    install_key: str
    pod_scaler: bool
    max_members: int
    autoscale_seconds: int
    priority_classes: Mapping[str, str]
    priority_class: str | None
    training_image: str | None
    etcd_image: str
    gpu_resource: str
    gpu_type_label: str
    shared_memory: str | None
    master_cpu: str
    master_memory: str
    master_memory_limit: str
    scheduler_settings: str
    home: str
    lease: str
    identity: str
    lease_seconds: float
    renew_seconds: float
    retry_seconds: float
    host: str
    port: int
    workers: int
    parallel_writes: int
    silence: timedelta
    drain: timedelta
    ending: timedelta
    pending: timedelta
    host_grace: timedelta
    master_restarts: int
    master_frozen: timedelta
    relist_seconds: float
    round_stuck_seconds: float
    checks: bool
    log_format: str

    def settings(self, install_key: bytes) -> "OperatorSettings":
        from shoal.api.jobspec import JobDefaults
        from shoal.operator.settings import JobTimes, OperatorSettings

        return OperatorSettings(
            image=self.image,
            image_pull_policy=self.image_pull_policy,
            image_pull_secrets=self.image_pull_secrets,
            install_key=install_key,
            pod_scaler=self.pod_scaler,
            master_resources={"cpu": self.master_cpu, "memory": self.master_memory},
            master_memory_limit=self.master_memory_limit,
            shared_memory=self.shared_memory,
            gpu_resource=self.gpu_resource,
            gpu_type_label=self.gpu_type_label,
            priority_classes=self.priority_classes,
            priority_class=self.priority_class,
            training_image=self.training_image,
            etcd_image=self.etcd_image,
            defaults=JobDefaults(max_members=self.max_members),
            autoscale_seconds=self.autoscale_seconds,
            operator_namespace=self.home,
            parallel_writes=self.parallel_writes,
            master_restarts=self.master_restarts,
            master_frozen=self.master_frozen,
            log_format=self.log_format,
            times=JobTimes(
                silence=self.silence,
                drain=self.drain,
                ending=self.ending,
                pending=self.pending,
                host_grace=self.host_grace,
            ),
        )

    def election(self) -> "ElectorSettings":
        from shoal.platforms.kubernetes.elector import ElectorSettings

        try:
            return ElectorSettings(
                lease_seconds=self.lease_seconds, renew_seconds=self.renew_seconds, retry_seconds=self.retry_seconds
            )
        except ValueError as exc:
            raise BadInput(f"--lease-seconds, --renew-seconds, --retry-seconds: {exc}") from exc


def main(line: Sequence[str]) -> int:
    said = read(line, os.environ, FLAGS, PREFIX)
    if said.help:
        from shoal.cli.help import print_help

        print_help("shoal operator [FLAGS]", "Run ElasticJobs, ScalePlans and JobResources in a cluster.", FLAGS)
        return 0
    if said.script is not None:
        raise BadInput(f"shoal operator takes flags only, got {said.script!r}")
    given = with_defaults(said.values, FLAGS)
    config = configured(given, os.environ)
    level = as_choice(given["log_level"], ("debug", "info", "warning"))
    from shoal.cli.kube_access import access_from
    from shoal.operator.operator import CURRENT_JOB

    set_up(LogFormat(config.log_format), level=level.upper(), job=CURRENT_JOB.get)

    access = access_from(os.environ, kubeconfig=_text(given, "kubeconfig"), context=_text(given, "context"))
    return asyncio.run(_until_told(config, access))


def configured(given: Mapping[str, Given], environment: Mapping[str, str]) -> OperatorConfig:
    """Raises `BadInput`."""
    namespace = given["namespace"].text
    host, _, port = given["listen"].text.rpartition(":")
    if not host:
        raise BadInput(f"--listen wants HOST:PORT, got {given['listen'].text!r}")
    name = environment.get("POD_NAME") or socket.gethostname()
    return OperatorConfig(
        namespace=None if namespace in ("all", "") else namespace,
        image=given["image"].text,
        image_pull_policy=as_choice(given["image_pull_policy"], ("Always", "IfNotPresent", "Never")),
        image_pull_secrets=as_list(given["image_pull_secrets"]) if "image_pull_secrets" in given else (),
        install_key=given["install_key"].text,
        pod_scaler="pod_scaler" in given,
        max_members=as_int(given["max_members"], at_least=1),
        autoscale_seconds=as_pace(given["autoscale_every"]),
        priority_classes=_priority_classes(given.get("priority_classes")),
        priority_class=_text(given, "priority_class") or None,
        training_image=_text(given, "training_image") or None,
        etcd_image=given["etcd_image"].text,
        gpu_resource=given["gpu_resource"].text,
        gpu_type_label=given["gpu_type_label"].text,
        shared_memory=_quantity(given["shared_memory"]) if given.get("shared_memory") else None,
        master_cpu=_quantity(given["master_cpu"]),
        master_memory=_quantity(given["master_memory"]),
        master_memory_limit=_quantity(given["master_memory_limit"]),
        scheduler_settings=given["scheduler_settings"].text,
        home=_text(given, "home") or environment.get("POD_NAMESPACE") or "default",
        lease=given["lease"].text,
        identity=f"{name}_{secrets.token_hex(4)}",
        lease_seconds=as_seconds(given["lease_seconds"], zero=False),
        renew_seconds=as_seconds(given["renew_seconds"], zero=False),
        retry_seconds=as_seconds(given["retry_seconds"], zero=False),
        host=host.strip("[]"),
        port=as_int(Given(text=port, source="--listen"), at_least=0),
        workers=as_int(given["workers"], at_least=1),
        parallel_writes=as_int(given["parallel_writes"], at_least=1),
        silence=timedelta(seconds=as_seconds(given["silence"])),
        drain=timedelta(seconds=as_seconds(given["drain"])),
        ending=timedelta(seconds=as_seconds(given["ending"])),
        pending=timedelta(seconds=as_seconds(given["pending"], zero=False)),
        host_grace=timedelta(seconds=as_seconds(given["host_grace"])),
        master_restarts=as_int(given["master_restarts"], at_least=1),
        master_frozen=timedelta(seconds=as_seconds(given["master_frozen"], zero=False)),
        relist_seconds=as_seconds(given["relist_seconds"], zero=False),
        round_stuck_seconds=as_seconds(given["round_stuck_seconds"], zero=False),
        checks="skip_checks" not in given,
        log_format=as_choice(given["log_format"], tuple(LogFormat)),
    )


async def _until_told(config: OperatorConfig, access: "Access") -> int:
    """Run until a signal says that it is enough."""
    running = asyncio.create_task(serve(config, access))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    with suppress(asyncio.CancelledError):
        await running
    return 0


async def serve(config: OperatorConfig, access: "Access") -> None:
    """Be one of the operators of a cluster, until cancelled."""
    from shoal.cli.operator_process import OperatorProcess
    from shoal.operator.metrics import OperatorMetrics
    from shoal.platforms.kubernetes.client import Client
    from shoal.platforms.kubernetes.elector import Elector
    from shoal.platforms.kubernetes.installation import check_installation
    from shoal.platforms.kubernetes.room import may_see_hosts
    from shoal.platforms.kubernetes.transport import ClientSettings

    metrics = OperatorMetrics()
    calls = ClientSettings(user_agent="shoal-operator", concurrency=max(32, config.parallel_writes + 8))
    async with Client(access, settings=calls, observe=metrics.called) as client:
        if config.checks:
            await _patiently(
                lambda: check_installation(client, namespace=config.namespace, home=config.home, lease=config.lease)
            )
        install_key = await _patiently(lambda: obtain_install_key(client, config.home, config.install_key))
        elector = Elector(
            client.apart(calls=1),  # a thousand jobs that are waiting must not cost the lease
            name=config.lease,
            namespace=config.home,
            identity=config.identity,
            settings=config.election(),
        )
        sees_hosts = await _patiently(lambda: may_see_hosts(client))
        settings = config.settings(install_key)
        await OperatorProcess(config, client, elector, settings, metrics, sees_hosts=sees_hosts).run()


async def obtain_install_key(client: "Client", namespace: str, name: str) -> bytes:
    """The key that all tokens are made from: the one in the Secret, or a new one that is put there."""
    from shoal.platforms.kubernetes.errors import AlreadyExists, NotFound
    from shoal.platforms.kubernetes.objects import SECRETS, ObjectMeta, Secret

    try:
        found = await client.get(SECRETS, name, namespace=namespace)
    except NotFound:
        made = Secret(
            metadata=ObjectMeta(name=name, namespace=namespace), type="Opaque", data={"key": secrets.token_bytes(32)}
        )
        try:
            found = await client.create(SECRETS, made)
        except AlreadyExists:  # another replica was faster
            found = await client.get(SECRETS, name, namespace=namespace)
    key = found.data.get("key", b"")
    if len(key) < 32:
        raise BadInput(
            f"Secret {namespace}/{name} has no `key` of at least 32 bytes: put back what was there, or delete it: a "
            "new one is made (jobs that exist keep the tokens they have)"
        )
    return key


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the API server has an answer: it may be on its way up as well."""
    while True:
        try:
            return await ask()
        except PlatformUnavailable as exc:
            log.warning("%s; again in %d s", exc, _PATIENCE_SECONDS)
            await asyncio.sleep(_PATIENCE_SECONDS)


def _priority_classes(given: Given | None) -> dict[str, str]:
    from shoal.api.elasticjob import RolePriority

    classes = {}
    for part in () if given is None else as_list(given):
        priority, _, name = part.partition("=")
        if priority not in tuple(RolePriority) or not name:
            raise BadInput(f"--priority-classes wants high=NAME,low=NAME, got {part!r}")
        classes[priority] = name
    return classes


def _quantity(given: Given) -> str:
    from shoal.api.quantities import parse_quantity

    try:
        wrong = parse_quantity(given.text) <= 0
    except ValueError as exc:
        raise BadInput(f"{given.source}: {exc}") from exc
    if wrong:
        raise BadInput(f"{given.source} wants more than nothing, got {given.text!r}")
    return given.text


def _text(given: Mapping[str, Given], key: str) -> str | None:
    return given[key].text if key in given else None
