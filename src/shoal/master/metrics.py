"""The master's Prometheus metrics: derived from the job's view and the events, kept in a registry of its own."""

from datetime import datetime
from math import nan
from statistics import median

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from shoal import __version__, commit
from shoal.core.figures import JobFigures, NodeFigures
from shoal.core.job import Event, Job, training_nodes
from shoal.core.job.sizing import bounds
from shoal.core.job.values import ResizeTold, Sized
from shoal.core.optimizing import Stage
from shoal.core.plans import ResourcePlan
from shoal.core.view import JobPhase, ResizeView
from shoal.master.causes import UNKNOWN, Causes, failure_of, unnoticed

_DETECT = "detect"
_PHASES = ("drain", "rendezvous", "restore", "first_step")
_PS_PHASES = ("launch", "prepare", "drain", "move", "go")
_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class MasterMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        build = Gauge("shoal_build_info", "The version that runs.", ["version", "commit"], registry=self._registry)
        build.labels(version=__version__, commit=commit()).set(1)
        self._state = Gauge("shoal_jobs", "Jobs by state; a master has one.", ["state"], registry=self._registry)
        self._step = Gauge("shoal_step", "The last step that was reported.", registry=self._registry)
        self._world = Gauge("shoal_world_size", "Training processes in the world.", registry=self._registry)
        self._generation = Gauge("shoal_world_generation", "The world's generation.", registry=self._registry)
        self._causes = Causes()
        self._resizes = Counter(
            "shoal_resizes",
            "Changes of world: which way, what triggered them, and whether all nodes that are wanted are in it.",
            ["direction", "trigger", "result"],
            registry=self._registry,
        )
        self._phases = Histogram(
            "shoal_resize_duration_seconds",
            "What a change of world costs one process, by phase.",
            ["phase"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._ps_version = Gauge(
            "shoal_ps_version", "The version of the parameter servers that trains; 0: none.", registry=self._registry
        )
        self._ps_servers = Gauge("shoal_ps_servers", "Parameter servers of that version.", registry=self._registry)
        self._ps_changes = Counter(
            "shoal_ps_changes",
            "Changes of the parameter servers that have ended, and checkpoints.",
            ["kind", "outcome"],
            registry=self._registry,
        )
        self._ps_phases = Histogram(
            "shoal_ps_change_duration_seconds",
            "How long each phase of a change of the parameter servers took that was not given up.",
            ["kind", "phase"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._failures = Counter(
            "shoal_member_failures", "Lost processes and nodes, by cause.", ["class"], registry=self._registry
        )
        self._lost_steps = Counter(
            "shoal_lost_steps",
            "Steps that processes had begun and gave up, by the failure that made them.",
            ["class"],
            registry=self._registry,
        )
        self._lag = Gauge(
            "shoal_event_loop_lag_seconds", "How late the last tick of the event loop was.", registry=self._registry
        )

        self._rates = {
            "samples_per_second": self._gauge("shoal_samples_per_second", "Samples that the job trains in a second."),
            "steps_per_second": self._gauge("shoal_steps_per_second", "Steps that the job makes in a second."),
            "step_seconds": self._gauge("shoal_step_duration_seconds", "How long a step takes."),
        }
        self._nodes = self._gauge("shoal_nodes", "Nodes that live, by role.", "role")
        self._uses = {
            "cpu": self._gauge("shoal_cpu_cores", "Cores that the nodes use, by role.", "role"),
            "cpu_limit": self._gauge("shoal_cpu_limit_cores", "Cores that they may use: the sum of limits.", "role"),
            "memory_bytes": self._gauge("shoal_memory_bytes", "Memory that the nodes use, by role.", "role"),
            "memory_limit": self._gauge("shoal_memory_limit_bytes", "What they may use: the sum of limits.", "role"),
            "gpu": self._gauge("shoal_gpu_busy", "GPUs that are busy, by role.", "role"),
            "gpus": self._gauge("shoal_gpus", "GPUs that the nodes have, by role.", "role"),
            "gpu_memory_bytes": self._gauge("shoal_gpu_memory_bytes", "GPU memory in use, by role.", "role"),
        }
        self._tightest = self._gauge(
            "shoal_memory_used_ratio",
            "The largest part of its limit that a node's memory has reached, by role.",
            "role",
        )
        self._slowest = self._gauge(
            "shoal_slowest_work_ratio", "The slowest node's work in a step, in parts of the median node's."
        )

        self._changes = Counter(
            "shoal_optimizer_changes",
            "Plans that the job's optimizer made, by algorithm.",
            ["algorithm"],
            registry=self._registry,
        )
        self._stage = self._gauge("shoal_optimizer_stage", "Where a job that sizes itself stands: 1 at one.", "stage")
        self._pinned = self._gauge("shoal_optimizer_pinned", "1: somebody else says how many there are.", "role")
        self._sizes = {
            "predicted": self._gauge(
                "shoal_optimizer_predicted_samples_per_second", "What the last change of size that was judged promised."
            ),
            "measured": self._gauge("shoal_optimizer_measured_samples_per_second", "And what came of it."),
            "prediction_error": self._gauge(
                "shoal_optimizer_prediction_error_ratio",
                "By how much it promised too much, in parts of what came of it.",
            ),
            "gain": self._gauge("shoal_optimizer_gain_ratio", "By how much speed per cost grew with it."),
        }

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, registry=self._registry)

    def observe(self, before: Job, event: Event, after: Job, now: datetime) -> None:
        failure = failure_of(before, event)
        if failure is not None:
            self._failures.labels(failure).inc()
            self._causes.failed(failure)
        for late in unnoticed(before, event, after, now):
            self._phases.labels(_DETECT).observe(late.total_seconds())
            self._causes.failed(UNKNOWN)
        match event:
            case ResizeTold() if event.node in after.continuing:
                for phase in _PHASES:
                    self._phases.labels(phase).observe(getattr(event, phase))
                self._lost_steps.labels(self._causes.of(event.generation)).inc(event.lost_steps)
            case Sized(plan=ResourcePlan(algorithm=algorithm)):
                self._changes.labels(algorithm or "plan").inc()
        known = before.resizes[-1].generation if before.resizes else 0
        for resize in after.resizes[-1:] if after.resizes is not before.resizes else ():
            if resize.generation <= known:
                continue
            self._observe_world(resize, after)
        if after.changes is not before.changes:
            self._observe_servers(before, after)

    def _observe_world(self, resize: ResizeView, job: Job) -> None:
        direction = "up" if resize.after > resize.before else "down" if resize.after < resize.before else "same"
        result = "granted" if training_nodes(job) >= job.target else "trimmed"
        self._resizes.labels(direction, self._causes.changed(resize), result).inc()

    def _observe_servers(self, before: Job, after: Job) -> None:
        """Nothing may happen to more than two of them at once: one ends, another begins."""
        known = {(change.at, change.kind): change.outcome for change in before.changes[-2:]}
        for change in after.changes[-2:]:
            if change.outcome is None or known.get((change.at, change.kind)) is not None:
                continue
            self._ps_changes.labels(change.kind, change.outcome).inc()
            for phase in _PS_PHASES if change.outcome == "done" else ():
                self._ps_phases.labels(change.kind, phase).observe(getattr(change, phase))

    def lag(self, seconds: float) -> None:
        self._lag.set(seconds)

    def text(self, job: Job, now: JobFigures) -> bytes:
        """`now`: what the job uses. A figure that nobody knows is NaN; a role that has no nodes is left out."""
        self._use(now)
        self._size(job)
        for phase in JobPhase:
            self._state.labels(phase).set(phase is job.phase)
        committed = job.rendezvous.committed
        self._step.set(job.gain.step or 0)
        self._world.set(committed.size if committed else training_nodes(job))
        current = None if job.servers is None else job.servers.current
        self._ps_version.set(0 if current is None else current.version)
        self._ps_servers.set(0 if current is None else len(current.servers))
        self._generation.set(committed.generation if committed else 0)
        return generate_latest(self._registry)

    def _size(self, job: Job) -> None:
        if job.spec.sizing is None:
            return
        state = job.sizing.optimizer
        for stage in Stage:
            self._stage.labels(stage).set(stage is state.stage)
        for role in bounds(job.spec):
            self._pinned.labels(role).set(role in job.sizing.pins)
        for name, gauge in self._sizes.items():
            value = getattr(state.outcomes[-1], name) if state.outcomes else None
            gauge.set(nan if value is None else value)

    def _use(self, now: JobFigures) -> None:
        for name, gauge in self._rates.items():
            value = getattr(now, name)
            gauge.set(nan if value is None else value)
        for gauge in (self._nodes, self._tightest, *self._uses.values()):
            gauge.clear()
        roles: dict[str, list[NodeFigures]] = {}
        for node in now.nodes:
            roles.setdefault(node.role, []).append(node)
        for role, nodes in roles.items():
            self._nodes.labels(role).set(len(nodes))
            for name, gauge in self._uses.items():
                known = [value for node in nodes if (value := getattr(node, name)) is not None]
                if known:
                    gauge.labels(role).set(sum(known))
            parts = [n.memory_bytes / n.memory_limit for n in nodes if n.memory_bytes is not None and n.memory_limit]
            if parts:
                self._tightest.labels(role).set(max(parts))
        work = [node.work_seconds for node in now.nodes if node.work_seconds]
        self._slowest.set(max(work) / median(work) if work else nan)
