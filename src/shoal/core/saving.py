"""What a job wants done with the states that its training processes save: one value that every node is told."""

from dataclasses import dataclass

from shoal.core.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """What becomes of the states that training processes save, on every node alike."""

    directory: str | None = None
    """A directory or URL that all nodes can reach; None: states stay in the agents' memory."""
    keep: int = 3
    """How many are left in the directory."""
    replica: bool = False
    """Keep a copy of the newest one in a second agent's memory as well."""
    seconds: float = 600.0
    """How often the chief of a job with parameter servers saves the model. Where steps are together the script says."""

    fuzzy: bool = False
    """Those of a job with parameter servers are saved while training goes on, but for the last one."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise BadInput(f"seconds between checkpoints must be above 0, got {self.seconds:g}")
        if self.keep < 1:
            raise BadInput(f"at least one checkpoint must be kept, got {self.keep}")
