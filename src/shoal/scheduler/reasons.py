"""The sentences that go with decisions: what decided, with the numbers."""

from shoal.scheduler.rows import Room
from shoal.scheduler.scores import GIBIBYTE


def amount(room: Room) -> str:
    """`2 GPUs, 4.5 cores, 16 GiB, 3 Pods`; what is zero is left out."""
    told = []
    if room.gpu:
        told.append(f"{room.gpu} GPU{'s' if room.gpu != 1 else ''}")
    if room.cpu:
        told.append(f"{room.cpu / 1_000:g} core{'s' if room.cpu != 1_000 else ''}")
    if room.memory:
        told.append(f"{room.memory / GIBIBYTE:.3g} GiB")
    if room.pods > 1 or (room.pods and not told):  # of one Pod it goes without saying
        told.append(count(room.pods, "Pod"))
    return ", ".join(told) or "nothing"


def quantity(kind: str, number: int) -> str:
    """So much of one kind: `4.5 cores`, `0 GPUs`."""
    match kind:
        case "cpu":
            return f"{number / 1_000:g} cores"
        case "memory":
            return f"{number / GIBIBYTE:.4g} GiB"
        case "gpu":
            return count(number, "GPU")
        case _:
            return count(number, "Pod")


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
