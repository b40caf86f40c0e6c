"""The master's Prometheus metrics: derived from the job's view and the events, kept in a registry of its own."""

from math import nan
from statistics import median

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from shoal import __version__, commit
from shoal.core.exits import failure_class
from shoal.core.figures import JobFigures, NodeFigures
from shoal.core.job import Event, Job
from shoal.core.job.values import NodeExited, ProcessExited, ResizeTold
from shoal.core.view import JobPhase

_PHASES = ("drain", "rendezvous", "restore", "first_step")
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
        self._resizes = Counter("shoal_resizes", "Changes of world.", ["direction"], registry=self._registry)
        self._phases = Histogram(
            "shoal_resize_duration_seconds",
            "What a change of world costs one process, by phase.",
            ["phase"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._failures = Counter(
            "shoal_member_failures", "Lost processes and nodes, by cause.", ["class"], registry=self._registry
        )
        self._lost_steps = Counter(
            "shoal_lost_steps", "Steps that processes had begun and gave up.", registry=self._registry
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

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(name, meaning, labels, registry=self._registry)

    def observe(self, before: Job, event: Event, after: Job) -> None:
        match event:
            case ProcessExited() if (event.node, event.incarnation, event.local_rank) in before.hanging:
                self._failures.labels("hang").inc()
            case ProcessExited(exit=exit) | NodeExited(exit=exit) if exit.code != 0:
                self._failures.labels(failure_class(exit)).inc()
            case ResizeTold() if event.node in after.continuing:
                for phase in _PHASES:
                    self._phases.labels(phase).observe(getattr(event, phase))
                self._lost_steps.inc(event.lost_steps)
        known = before.resizes[-1].generation if before.resizes else 0
        for resize in after.resizes[-1:] if after.resizes is not before.resizes else ():
            if resize.generation <= known:
                continue
            direction = "up" if resize.after > resize.before else "down" if resize.after < resize.before else "same"
            self._resizes.labels(direction).inc()

    def lag(self, seconds: float) -> None:
        self._lag.set(seconds)

    def text(self, job: Job, now: JobFigures) -> bytes:
        """`now`: what the job uses. A figure that nobody knows is NaN; a role that has no nodes is left out."""
        self._use(now)
        for phase in JobPhase:
            self._state.labels(phase).set(phase is job.phase)
        committed = job.rendezvous.committed
        self._step.set(job.gain.step or 0)
        self._world.set(committed.size if committed else 0)
        self._generation.set(committed.generation if committed else 0)
        return generate_latest(self._registry)

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
