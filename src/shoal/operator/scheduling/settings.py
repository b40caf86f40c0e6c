"""The scheduler's settings as an owner writes them: YAML in one ConfigMap, under the key `settings`.

Every field may be left out. What is written is checked whole, with the field's name and the rule in each complaint;
settings with anything wrong in them are refused as a whole, and those before them stay in force. What looks right is
tried on a small cluster before it is taken: settings under which no round works would stop the scheduler for everybody.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from shoal.api.durations import parse_duration
from shoal.api.fields import Field, IntOrString
from shoal.api.quantities import parse_quantity
from shoal.core.errors import BadInput
from shoal.scheduler.policies import policy
from shoal.scheduler.rows import Host, Job, JobKey, Priority, Quota, Room, Seconds, ServicePod
from shoal.scheduler.settings import Load, SchedulerSettings, ScoreMode, Scores
from shoal.scheduler.snapshot import Snapshot

KEY = "settings"
"""Of the ConfigMap's data."""
Time = str | int | float
_MOST_SECONDS = 30 * 24 * 3600.0


class RoomText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cpu: Annotated[IntOrString, Field("Cores.")] = 0
    memory: Annotated[IntOrString, Field("Bytes.")] = 0
    gpu: Annotated[IntOrString, Field("Devices.")] = 0


class LoadText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    grow: Annotated[float | None, Field("Jobs grow only while no more than this share is asked for.")] = None
    reclaim: Annotated[float | None, Field("Above this share jobs have to shrink; never below `grow`.")] = None


class ScoresText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gpu: Annotated[int | None, Field("A device.")] = None
    core: Annotated[int | None, Field("A core.")] = None
    gibibyte: Annotated[int | None, Field("A GiB of memory.")] = None
    pod: Annotated[int | None, Field("A place for a Pod.")] = None
    mode: Annotated[ScoreMode | None, Field("`price` (these weights) or `dominant-share`.")] = None


class QuotaText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cpu: Annotated[IntOrString | None, Field("Cores.")] = None
    memory: Annotated[IntOrString | None, Field("Bytes.")] = None
    gpu: Annotated[IntOrString | None, Field("Devices.")] = None
    pods: Annotated[int | None, Field("Pods.")] = None


class SettingsText(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Names are those of the fields of `SchedulerSettings`, in camel case; times are `60s`, `5m`, or seconds."""

    policy: Annotated[str | None, Field("Who decides: `cfs`, or `fulfillment`.")] = None
    interval: Annotated[Time | None, Field("A round at least this often.")] = None
    spacing: Annotated[Time | None, Field("And never two within this: events that come together are one round.")] = None
    round_timeout: Annotated[
        Time | None, Field("A round that takes longer is said to fail, on the jobs too, until it has ended.")
    ] = None
    weights: Annotated[
        dict[Priority, int] | None, Field("By priority: shares of what jobs compete for. Those not named stay.")
    ] = None
    base_weight: Annotated[int | None, Field("The weight at which a second of service counts as one.")] = None
    scores: Annotated[ScoresText | None, Field("What a second of each resource costs, about as rents compare.")] = None
    horizon: Annotated[Time | None, Field("How far ahead the cost of a size is looked at.")] = None
    start_debit: Annotated[Time | None, Field("What a newcomer is charged in advance.")] = None
    lag_cap: Annotated[Time | None, Field("A job that waited is never thought to be owed more than this.")] = None
    freezing_window: Annotated[
        Time | None, Field("No voluntary resize of a job for so long after one, where it does not say.")
    ] = None
    max_moves: Annotated[
        int | None, Field("Voluntary moves in one round, or a tenth of all trainers, whichever is more.")
    ] = None
    fairness_margin: Annotated[
        float | None, Field("How much fairer a move must make things, beyond not turning the order round.")
    ] = None
    reserve_after: Annotated[Time | None, Field("The first in the queue gets a reservation after this.")] = None
    max_wait: Annotated[Time | None, Field("After this a waiting job takes room from any job above its minimum.")] = (
        None
    )
    cpu: Annotated[LoadText | None, Field("How full cores may be.")] = None
    memory: Annotated[LoadText | None, Field("How full memory may be.")] = None
    gpu: Annotated[LoadText | None, Field("How full devices may be.")] = None
    cpu_per_gpu: Annotated[IntOrString | None, Field("Cores that each device needs beside it.")] = None
    optimistic_cpu: Annotated[bool | None, Field("Start CPU jobs although their gang does not fit.")] = None
    service_priority_floor: Annotated[
        int | None, Field("Pods that are no job's, with at least this priority, are services: training gives way.")
    ] = None
    service_headroom: Annotated[RoomText | None, Field("Room that growing jobs leave free for services.")] = None
    headroom_by_hour: Annotated[
        list[RoomText] | None, Field("24 rooms that replace `serviceHeadroom` by the hour (UTC).")
    ] = None
    max_starting_masters: Annotated[
        int | None, Field("Jobs not yet admitted that may hold a master Pod, in the order of the queue.")
    ] = None
    priorities: Annotated[
        list[str] | None,
        Field("The namespaces whose jobs may have a priority above Normal; `*`: all. Others' count as Normal."),
    ] = None
    quotas: Annotated[
        dict[str, QuotaText] | None, Field("By namespace, beside its ResourceQuotas; the smaller limit holds.")
    ] = None


_TIMES = (
    "interval",
    "spacing",
    "round_timeout",
    "horizon",
    "start_debit",
    "lag_cap",
    "freezing_window",
    "reserve_after",
    "max_wait",
)
_AT_LEAST: Mapping[str, float] = {
    "interval": 0.1,
    "spacing": 0,
    "round_timeout": 1,
    "horizon": 1,
    "base_weight": 1,
    "max_moves": 0,
    "fairness_margin": 0,
    "max_starting_masters": 0,
}
_MOST = 10**9
"""Of numbers that are multiplied with amounts, or count something."""
_AT_MOST = ("base_weight", "max_moves", "fairness_margin", "max_starting_masters", "service_priority_floor")
_MOST_AMOUNT = 2**60
_MOST_CPU_PER_GPU = 10**6


def read_settings(written: Any, *, policies: frozenset[str]) -> SchedulerSettings:
    """The settings of what a YAML document holds; nothing in it: the defaults. Raises `BadInput`."""
    try:
        text = msgspec.convert({} if written is None else written, SettingsText)
        settings = _settings(text, policies)
        _try_out(settings)
        return settings
    except (msgspec.ValidationError, ValueError, ArithmeticError) as exc:
        raise BadInput(str(exc)) from exc


def _try_out(settings: SchedulerSettings) -> None:
    """A round with a host, a job that runs, one that waits, and a service Pod. Raises `ValueError` if it fails."""
    each = Room(cpu=2_000, memory=2**30, gpu=1)
    runs = Job(key=JobKey("default", "runs"), each=each, max=4, target=1, placed={"host": 1}, running=1)
    waits = Job(key=JobKey("default", "waits"), each=each, max=4)
    service = ServicePod(namespace="default", name="service", each=each)
    host = Host(name="host", capacity=Room(cpu=16_000, memory=2**36, gpu=4))
    snapshot = Snapshot.of([host], [runs, waits], [service], settings.quotas)
    try:
        policy(settings.policy)(snapshot, 0.0, settings)
    except Exception as exc:
        raise ValueError(f"no round works with these settings: {type(exc).__name__}: {exc}") from exc


def _settings(text: SettingsText, policies: frozenset[str]) -> SchedulerSettings:
    given: dict[str, Any] = {
        name: value for name in SettingsText.__struct_fields__ if (value := getattr(text, name)) is not None
    }
    base = SchedulerSettings()
    for name in _TIMES:
        if name in given:
            given[name] = _seconds(given[name], _camel(name))
    for name, least in _AT_LEAST.items():
        if name in given and given[name] < least:
            raise ValueError(f"{_camel(name)} must be at least {least:g}, got {given[name]:g}")
    for name in _AT_MOST:
        if name in given and not abs(given[name]) <= _MOST:
            raise ValueError(f"{_camel(name)} must be at most {_MOST}, got {given[name]}")
    if given.get("policy", base.policy) not in policies:
        raise ValueError(f"policy: there is no {given['policy']!r}; there are {', '.join(sorted(policies))}")
    if text.weights is not None:
        given["weights"] = {**base.weights, **text.weights}
        if not all(1 <= each <= _MOST for each in given["weights"].values()):
            raise ValueError(f"weights must be between 1 and {_MOST}")
    if text.scores is not None:
        given["scores"] = _scores(base.scores, text.scores)
    for kind in ("cpu", "memory", "gpu"):
        if kind in given:
            given[kind] = _load(getattr(base, kind), given[kind], kind)
    if text.cpu_per_gpu is not None:
        given["cpu_per_gpu"] = _amount(text.cpu_per_gpu, 1_000, "cpuPerGpu")
        if given["cpu_per_gpu"] > _MOST_CPU_PER_GPU:
            raise ValueError(f"cpuPerGpu must be at most {_MOST_CPU_PER_GPU // 1_000} cores, got {text.cpu_per_gpu}")
    if text.service_headroom is not None:
        given["service_headroom"] = _room(text.service_headroom, "serviceHeadroom")
    if text.headroom_by_hour is not None:
        given["headroom_by_hour"] = tuple(_room(each, "headroomByHour") for each in text.headroom_by_hour)
        if len(text.headroom_by_hour) not in (0, 24):
            raise ValueError(f"headroomByHour wants 24 rooms or none, got {len(text.headroom_by_hour)}")
    if text.priorities is not None:
        given["priorities"] = frozenset(text.priorities)
    if text.quotas is not None:
        given["quotas"] = {name: _quota(each, f"quotas.{name}") for name, each in text.quotas.items()}
    settings = replace(base, **given)
    if settings.spacing > settings.interval:
        raise ValueError(f"spacing ({settings.spacing:g} s) must not be above interval ({settings.interval:g} s)")
    return settings


def _scores(base: Scores, text: ScoresText) -> Scores:
    given = {name: value for name in ScoresText.__struct_fields__ if (value := getattr(text, name)) is not None}
    scores = replace(base, **given)
    prices = (scores.gpu, scores.core, scores.gibibyte, scores.pod)
    if min(prices) < 0 or not any(prices):
        raise ValueError("scores must not be negative, and not all 0")
    if max(prices) > _MOST:
        raise ValueError(f"scores must be at most {_MOST}")
    return scores


def _load(base: Load, text: LoadText, name: str) -> Load:
    grow = base.grow if text.grow is None else text.grow
    reclaim = max(base.reclaim, grow) if text.reclaim is None else text.reclaim
    if not 0 < grow <= reclaim <= 10:
        raise ValueError(f"{name} must satisfy 0 < grow <= reclaim <= 10, got {grow:g} and {reclaim:g}")
    return Load(grow=grow, reclaim=reclaim)


def _room(text: RoomText, name: str) -> Room:
    return Room(
        cpu=_amount(text.cpu, 1_000, f"{name}.cpu"),
        memory=_amount(text.memory, 1, f"{name}.memory"),
        gpu=_amount(text.gpu, 1, f"{name}.gpu"),
    )


def _quota(text: QuotaText, name: str) -> Quota:
    if text.pods is not None and not 0 <= text.pods <= _MOST:
        raise ValueError(f"{name}.pods must be between 0 and {_MOST}, got {text.pods}")
    return Quota(
        cpu=None if text.cpu is None else _amount(text.cpu, 1_000, f"{name}.cpu"),
        memory=None if text.memory is None else _amount(text.memory, 1, f"{name}.memory"),
        gpu=None if text.gpu is None else _amount(text.gpu, 1, f"{name}.gpu"),
        pods=text.pods,
    )


def _amount(written: int | str, units: int, name: str) -> int:
    try:
        amount = math.ceil(parse_quantity(written) * units)
    except ValueError as exc:
        raise ValueError(f"{name}: {exc}") from exc
    if amount < 0:
        raise ValueError(f"{name} must not be negative, got {written}")
    if amount > _MOST_AMOUNT:
        raise ValueError(f"{name} is more than can be counted: {written}")
    return amount


def _seconds(written: Time, name: str) -> Seconds:
    try:
        found = parse_duration(written).total_seconds() if isinstance(written, str) else float(written)
    except ValueError as exc:
        raise ValueError(f"{name}: {exc}") from exc
    if not 0 <= found <= _MOST_SECONDS:
        raise ValueError(f"{name} must be between 0 and 30 days, got {written}")
    return found


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
