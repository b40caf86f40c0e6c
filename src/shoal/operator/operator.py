"""The operator's loop around `reconcile`: every look is timed, and what it found is counted.

Who wakes it and how many looks run at once is the queue's business; whether it may write at all, the elector's. Both
belong to the platform and come in from outside.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import datetime, timedelta

from shoal.core.errors import Denied, PlatformUnavailable, ShoalError
from shoal.operator.allowances import Allowances
from shoal.operator.metrics import OperatorMetrics
from shoal.operator.ports import Cluster
from shoal.operator.reconcile import Reconciler
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import Key
from shoal.operator.training.ports import TrainingCluster
from shoal.operator.training.reconcile import TrainingReconciler

log = logging.getLogger("shoal.operator")

_AFTER_REFUSAL = 30.0
CURRENT_JOB: ContextVar[str] = ContextVar("current job", default="")
"""Which job a task looks at, or has looked at last: what it logs is about that one."""


class Operator:
    def __init__(
        self,
        cluster: Cluster,
        settings: OperatorSettings,
        *,
        metrics: OperatorMetrics,
        clock: Callable[[], datetime],
        allowances: Allowances | None = None,
    ) -> None:
        self._reconciler = Reconciler(cluster, settings, clock=clock, allowances=allowances, recorded=metrics.recorded)
        self._metrics = metrics

    def begin(self) -> None:
        """This process leads from now on. To be said each time that it does."""
        self._reconciler.begin()

    async def look(self, key: Key) -> float | None:
        """Look at one job. Returns after how many seconds to look again; None: when something happens."""
        return await timed(self._reconciler.reconcile, key, self._metrics, "elasticjob")


class TrainingOperator:
    """The same for TrainingJobs."""

    def __init__(
        self,
        cluster: TrainingCluster,
        settings: OperatorSettings,
        *,
        metrics: OperatorMetrics,
        clock: Callable[[], datetime],
        allowances: Allowances | None = None,
    ) -> None:
        self._reconciler = TrainingReconciler(
            cluster, settings, clock=clock, allowances=allowances, counted=metrics.counted
        )
        self._metrics = metrics

    async def look(self, key: Key) -> float | None:
        return await timed(self._reconciler.reconcile, key, self._metrics, "trainingjob")


async def timed(
    reconcile: Callable[[Key], Awaitable[timedelta | None]], key: Key, metrics: OperatorMetrics, controller: str
) -> float | None:
    """One look, timed and counted."""
    CURRENT_JOB.set(str(key))
    began = time.monotonic()
    result = "error"
    try:
        again = await reconcile(key)
        result = "ok"
    except Denied as exc:  # not even what is wrong could be written down
        result = "refused"
        log.warning("%s: %s; again in %d s", key, exc, _AFTER_REFUSAL)
        return _AFTER_REFUSAL
    except PlatformUnavailable:
        result = "unavailable"
        raise
    except ShoalError:
        result = "refused"
        raise
    finally:
        metrics.looked(result, time.monotonic() - began, controller)
    return None if again is None else max(again, timedelta(0)).total_seconds()
