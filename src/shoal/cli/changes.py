"""Changes of a job's parameter servers, in words and cells. Pure, and light: `shoal describe` answers at once."""

from shoal.cli.text import clean, seconds
from shoal.core.view import JobView, PSChangeView

CHANGE_TITLES = ("version", "servers", "launch", "prepare", "drain", "move", "go")


def change_cells(change: PSChangeView) -> tuple[str, ...]:
    """Under `CHANGE_TITLES`."""
    return (
        "" if change.version is None else str(change.version),
        f"{change.before} → {change.after}",
        *(seconds(spent) for spent in (change.launch, change.prepare, change.drain, change.move, change.go)),
    )


def change_why(change: PSChangeView) -> str:
    state = "" if change.outcome == "done" else f"{change.outcome or change.phase}: "
    return f"{change.kind}, {state}{clean(change.reason)}"


def changes_of(view: JobView) -> tuple[PSChangeView, ...]:
    """Of the parameter servers; pauses for checkpoints are left out, there may be many."""
    told = view.servers.changes if view.servers is not None else ()
    return tuple(change for change in told if change.kind != "save")
