"""The scheduler's settings while it runs: what the ConfigMap says now, or what it last said that made sense.

That outlives the process: the last text that made sense is kept elsewhere (`keep`), and an operator that starts with a
ConfigMap that it must refuse, or cannot read, goes on with it (`recall`). Otherwise a restart would drop all quotas.
"""

import logging
from collections.abc import Callable
from typing import Any

from shoal.core.errors import BadInput
from shoal.operator.metrics import OperatorMetrics
from shoal.operator.scheduling.settings import KEY, read_settings
from shoal.scheduler.settings import SchedulerSettings

log = logging.getLogger("shoal.operator")


class LiveSettings:
    """Called, it gives the settings that hold."""

    def __init__(
        self,
        *,
        parse: Callable[[str], Any],
        policies: frozenset[str],
        metrics: OperatorMetrics | None = None,
        keep: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`parse` reads YAML, and raises `ValueError`. `keep` is given each text that made sense."""
        self._parse, self._policies, self._metrics, self._keep = parse, policies, metrics, keep
        self._settings = SchedulerSettings()
        self._made_sense = False

    def __call__(self) -> SchedulerSettings:
        return self._settings

    def hear(self, data: dict[str, str] | None) -> str | None:
        """What the ConfigMap holds now; None: there is none, so the defaults hold. Returns why it was refused."""
        try:
            new = self._read(data or {})
        except BadInput as exc:
            log.warning("the scheduler's settings are refused, the ones before stay: %s", exc)
            self._say(valid=False)
            return str(exc)
        if new != self._settings:
            log.info("the scheduler's settings are new: policy %s, a round every %g s", new.policy, new.interval)
        self._settings, self._made_sense = new, True
        self._keep((data or {}).get(KEY, ""))
        self._say(valid=True)
        return None

    @property
    def made_sense(self) -> bool:
        """Whether it has ever heard any that did."""
        return self._made_sense

    def recall(self, text: str | None) -> None:
        """What an earlier process last took. It holds until something newer makes sense."""
        if self._made_sense or text is None:
            return
        try:
            self._settings = self._read({KEY: text})
        except BadInput as exc:
            log.warning("the scheduler's last settings are no longer understood, the defaults hold: %s", exc)
            return
        log.warning("the scheduler's settings are those of before this start: policy %s", self._settings.policy)

    def _read(self, data: dict[str, str]) -> SchedulerSettings:
        unknown = sorted(set(data) - {KEY})
        if unknown:
            raise BadInput(f"the ConfigMap has one key, `{KEY}`, with YAML in it; got {', '.join(unknown)}")
        try:
            document = self._parse(data.get(KEY, ""))
        except ValueError as exc:
            raise BadInput(f"`{KEY}` is no YAML: {exc}") from exc
        return read_settings(document, policies=self._policies)

    def _say(self, *, valid: bool) -> None:
        if self._metrics is not None:
            self._metrics.settings_are_valid(valid)
