"""What a TrainingJob gets where nobody arbitrates: all that it asks for. For tests, and operators without scheduler."""

from shoal.operator.allowances import Allowance
from shoal.operator.training.snapshot import TrainingSeen
from shoal.scheduler.actuation import Standing


def everything(job: TrainingSeen) -> Allowance | None:
    spec = job.spec
    if spec is None:
        return None
    return Allowance(
        standing=Standing(target=spec.trainer.max),
        servers=spec.pserver.min if spec.pserver else None,
        code="Admitted",
        reason="nobody else decides: it gets what it asks for",
    )
