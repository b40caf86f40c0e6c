"""A job's figures in its status: `status.training.figures`, and back.

The status is how people see a job in a cluster: whoever may read the job may see it, and nobody needs a way to the
master's port, which only the job's own Pods may reach. It is written at most twice a minute, for each write is one in
the cluster's etcd; and of many nodes only those are listed that use most of what they may.

Numbers are quantities in strings, as Kubernetes has them. Its schemas frown on floats.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from shoal.api.elasticjob import Figures, Training
from shoal.api.elasticjob import NodeFigures as ToldNode
from shoal.api.quantities import parse_quantity
from shoal.core.figures import SPARK, JobFigures, NodeFigures
from shoal.core.nodes import parsed
from shoal.core.view import JobPhase

EVERY = timedelta(seconds=30)
MOST_NODES = 64


class ToldFigures:
    """The figures as they are told: taken anew when they have grown old, and the same in between."""

    def __init__(self, look: Callable[[], JobFigures], now: Callable[[], datetime]) -> None:
        self._look, self._now = look, now
        self._told: Figures | None = None
        self._at: datetime | None = None

    def now(self) -> Figures | None:
        now = self._now()
        if self._at is None:
            self._at = now  # nothing is known in the first moments
        if now - self._at >= EVERY:
            self._told, self._at = told(self._look()), now
        return self._told


def told(job: JobFigures) -> Figures:
    """What the status says."""
    listed = sorted(job.nodes, key=_fullness, reverse=True)[:MOST_NODES]
    nodes = [_told_node(node) for node in sorted(listed, key=lambda node: (not node.ranks, node.ranks, node.node))]
    return Figures(
        at=job.at.replace(microsecond=0),
        samples_per_second=_text(job.samples_per_second),
        steps_per_second=_text(job.steps_per_second),
        step_seconds=_text(job.step_seconds),
        cpu=_text(job.cpu),
        memory=_mebibytes(job.memory_bytes),
        gpu=_text(job.gpu),
        speeds=[_text(speed or 0.0) or "0" for speed in job.recent_speed[-SPARK:]] or None,
        nodes=nodes or None,
        left_out=len(job.nodes) - len(nodes) or None,
    )


def _fullness(node: NodeFigures) -> float:
    """The largest part of a limit that it uses."""
    parts = ((node.cpu, node.cpu_limit), (node.memory_bytes, node.memory_limit))
    return max((used / limit for used, limit in parts if used is not None and limit), default=0.0)


def _told_node(node: NodeFigures) -> ToldNode:
    return ToldNode(
        name=node.node,
        rank=node.ranks[0] if node.ranks else None,
        processes=len(node.ranks) or None,
        cpu=_text(node.cpu),
        cpu_limit=_text(node.cpu_limit),
        memory=_mebibytes(node.memory_bytes),
        memory_limit=_mebibytes(node.memory_limit),
        gpu=_text(node.gpu),
        gpus=node.gpus or None,
        samples_per_second=_text(node.samples_per_second),
        step_seconds=_text(node.step_seconds),
        work_seconds=_text(node.work_seconds),
    )


def _text(value: float | None) -> str | None:
    """Three figures behind the point are enough for a person, six for a short step."""
    if value is None:
        return None
    digits = 3 if value >= 1 else 6
    return f"{min(value, 1e15):.{digits}f}".rstrip("0").rstrip(".") or "0"


def _mebibytes(value: float | None) -> str | None:
    return None if value is None else f"{round(min(value, 2**60) / 2**20)}Mi"


def heard(name: str, training: Training) -> JobFigures | None:
    """What a job's status tells; None: its master has told nothing yet."""
    figures = training.figures
    if figures is None:
        return None
    phase = training.phase if training.phase in tuple(JobPhase) else JobPhase.STARTING
    return JobFigures(
        job=name,
        phase=JobPhase(phase),
        at=figures.at or datetime.fromtimestamp(0, UTC),
        step=training.step,
        samples=training.samples,
        world_size=training.world_size or 0,
        samples_per_second=_number(figures.samples_per_second),
        steps_per_second=_number(figures.steps_per_second),
        step_seconds=_number(figures.step_seconds),
        cpu=_number(figures.cpu),
        memory_bytes=_number(figures.memory),
        gpu=_number(figures.gpu),
        recent_speed=tuple(map(_number, figures.speeds or ())),
        nodes=_heard_nodes(figures.nodes or ()),
    )


def _heard_nodes(nodes: Sequence[ToldNode]) -> tuple[NodeFigures, ...]:
    found = []
    for node in nodes:
        role = parsed(node.name)
        ranks = () if node.rank is None else tuple(range(node.rank, node.rank + min(node.processes or 1, 1024)))
        found.append(
            NodeFigures(
                node=node.name,
                role=role[0] if role is not None else "",
                ranks=ranks,
                status="running",
                cpu=_number(node.cpu),
                cpu_limit=_number(node.cpu_limit),
                memory_bytes=_number(node.memory),
                memory_limit=_number(node.memory_limit),
                gpu=_number(node.gpu),
                gpus=node.gpus or 0,
                samples_per_second=_number(node.samples_per_second),
                step_seconds=_number(node.step_seconds),
                work_seconds=_number(node.work_seconds),
            )
        )
    return tuple(found)


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(parse_quantity(text))
    except ValueError:
        return None  # nobody of ours wrote that
