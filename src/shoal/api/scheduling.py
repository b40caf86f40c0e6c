"""What jobs tell the cluster's scheduler, and what it remembers of them: the same fields in every kind of job.

Numbers that are not whole are written as text, as Kubernetes advises; times as times. `v` is written only when `rate`
changes: in between it is `v + rate x (now - at)`.
"""

from datetime import datetime
from typing import Annotated

import msgspec

from shoal.api.fields import DURATION, Field, a_count, a_text

FREEZING_WINDOW = a_text(
    "No voluntary resize for so long after one: `60s`, `5m`, `1h30m`.", min_length=2, max_length=24, pattern=DURATION
)
"""A field of every kind of job's spec."""
DECIMAL = r"^-?[0-9]{1,32}(\.[0-9]{1,32})?(e[+-][0-9]{1,3})?$"


class SchedulingStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the scheduler decided last, and what it has to know when it is started again."""

    target: Annotated[int | None, a_count("Trainers it may have by the last decision; 0: it waits.")] = None
    servers: Annotated[int | None, a_count("Parameter servers beside them.")] = None
    v: Annotated[
        str | None, a_text("Service attained until `at`, divided by the job's weight.", max_length=72, pattern=DECIMAL)
    ] = None
    at: Annotated[datetime | None, Field("When `v` was so.")] = None
    rate: Annotated[str | None, a_text("How much `v` grows in a second.", max_length=72, pattern=DECIMAL)] = None
    settling: Annotated[bool | None, Field("Its last change is not done yet.")] = None
    frozen_until: Annotated[datetime | None, Field("Until then it is not resized without need.")] = None
    asked: Annotated[int | None, a_count("The most it asked for when that was decided.")] = None
    held_to: Annotated[int | None, a_count("It is given no more trainers until `heldUntil`.")] = None
    held_until: Annotated[
        datetime | None, Field("Until then it is not tried again whether Kubernetes finds hosts for more.")
    ] = None
    waiting_since: Annotated[datetime | None, Field("Since when it waits to be admitted.")] = None
    place: Annotated[int | None, a_count("Its place in the queue; 1 is next.", maximum=2**31 - 1)] = None
    code: Annotated[str | None, a_text("Why, in one word.", max_length=64)] = None
    reason: Annotated[str | None, a_text("Why, in a sentence.")] = None
    by: Annotated[str | None, a_text("The operator that has written this.", max_length=320)] = None
