"""What a report was made with, so that its numbers can be judged, and made again: hosts, seeds, policies' settings.

Twice, from the same values: as plain values for JSON, whole, and as lines for people, who want to see what is not as
usual. Whoever makes a `Report` puts both into it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum

from shoal.scheduler.reasons import amount, count
from shoal.scheduler.rows import Room
from shoal.scheduler.settings import SchedulerSettings
from shoal.sim.workload import SimSettings, Workload

NOT_ITS_OWN = ("policy",)
"""Settings that say nothing about how a policy decides."""


# For programs ------------------------------------------------------------------------------------------------------


def plain(value: object) -> object:
    """A value as JSON can hold it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Room):
        return _amounts(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(str(plain(each)) for each in value)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


def hosts_value(hosts: Sequence[Room]) -> list[dict[str, object]]:
    """How many there are of each kind, in the order in which they appear."""
    return [{"count": number, **_amounts(room)} for room, number in Counter(hosts).items()]


def _amounts(room: Room) -> dict[str, int]:
    """Places for Pods only where they are counted."""
    return {name: each for name, each in room._asdict().items() if each or name != "pods"}


def workload_value(workload: Workload) -> dict[str, object]:
    return {
        "name": workload.name,
        "jobs": len(workload.jobs),
        "hosts": hosts_value(workload.hosts),
        "services": plain(workload.services),
    }


# For people --------------------------------------------------------------------------------------------------------


def hosts_text(hosts: Sequence[Room]) -> str:
    """`16 hosts with 4 GPUs, 48 cores, 192 GiB: 64 GPUs in all`"""
    kinds = [f"{count(number, 'host')} with {amount(room)}" for room, number in Counter(hosts).items()]
    gpus, cores = sum(room.gpu for room in hosts), sum(room.cpu for room in hosts) / 1_000
    return f"{'; '.join(kinds)}: {count(gpus, 'GPU') if gpus else f'{cores:g} cores'} in all"


def seeds_text(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def workload_lines(workloads: Sequence[Workload]) -> Iterator[str]:
    """One line for all that have the same hosts and services."""
    grounds: dict[str, list[str]] = {}
    for workload in workloads:
        services = "".join(
            f"; service {each.name}: {each.low} to {each.high} Pods of {amount(each.each)}"
            for each in workload.services
        )
        grounds.setdefault(hosts_text(workload.hosts) + services, []).append(workload.name)
    for text, names in grounds.items():
        yield f"hosts: {text}" if len(grounds) == 1 else f"hosts of {', '.join(names)}: {text}"


def times_text(settings: SimSettings) -> str:
    rounds = f"a round every {settings.interval:g} s"
    rounds += f" and for events, at least {settings.spacing:g} s apart" if settings.reacts else " and at no other time"
    told = [
        rounds,
        f"Pods start in {settings.pod_start:g} s and leave in {settings.grace:g} s",
        f"jobs pause {settings.startup:g} s to start and {settings.resize:g} s to change",
    ]
    if settings.host_mtbf is not None:
        told.append(f"a host fails every {settings.host_mtbf / 3_600:g} h and is away for {settings.host_repair:g} s")
    if settings.interference:
        told.append(f"interference {settings.interference:g}")
    if settings.until is not None:
        told.append(f"until {settings.until:g} s")
    return "; ".join(told)


def policies_lines(policies: Mapping[str, SchedulerSettings | None]) -> Iterator[str]:
    """One line for all with the same settings. None: a baseline that has none."""
    groups: dict[str, list[str]] = {}
    for name, settings in policies.items():
        groups.setdefault("none" if settings is None else _unlike_usual(settings), []).append(name)
    for text, names in groups.items():
        yield f"settings of {', '.join(names)}: {text}"


def _unlike_usual(settings: SchedulerSettings) -> str:
    usual = SchedulerSettings()
    own = [
        f"{each.name} {_short(getattr(settings, each.name))}"
        for each in fields(SchedulerSettings)
        if each.name not in NOT_ITS_OWN and getattr(settings, each.name) != getattr(usual, each.name)
    ]
    return f"{', '.join(own)}; else as by default" if own else "as by default"


def _short(value: object) -> str:
    if isinstance(value, Room):
        return amount(value)
    return f"{value:g}" if isinstance(value, float) else str(plain(value))
