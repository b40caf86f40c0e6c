"""What a TrainingJob gets where nobody arbitrates: all that it asks for. For tests, and operators without scheduler."""

from shoal.api.trainingspec import TrainingSpec
from shoal.operator.allowances import Allowance
from shoal.operator.training.snapshot import TrainingSeen
from shoal.scheduler.actuation import Standing


def everything(job: TrainingSeen) -> Allowance | None:
    spec = job.spec
    if spec is None:
        return None
    return Allowance(
        standing=Standing(target=spec.trainer.max),
        servers=_servers(spec),
        code="Admitted",
        reason="nobody else decides: it gets what it asks for",
    )


def _servers(spec: TrainingSpec) -> int | None:
    if spec.pserver is None:
        return None
    return spec.pserver.max if spec.servers_follow else spec.pserver.min
