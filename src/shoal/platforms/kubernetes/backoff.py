"""How long to wait before the next try: longer each time, up to a limit, and never all at the same moment."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    first_seconds: float = 0.2
    """After the first failure. Short: most failures are one lost connection."""
    limit_seconds: float = 30.0
    """Never longer, so that a server that is back after an hour is noticed within half a minute."""
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not (0 < self.first_seconds <= self.limit_seconds and self.factor >= 1):
            raise ValueError(
                f"back-off must satisfy 0 < first <= limit and factor >= 1, got {self.first_seconds} s, "
                f"{self.limit_seconds} s and {self.factor}"
            )

    def seconds(self, failures: int, chance: float) -> float:
        """The wait after so many failures in a row. `chance`, from 0 to 1, spreads it over its upper half."""
        if failures <= 0:
            return 0.0
        steps = min(failures - 1, 64)  # beyond, the power is past every limit and near overflow
        full = min(self.limit_seconds, self.first_seconds * self.factor**steps)
        return full * (0.5 + 0.5 * chance)
