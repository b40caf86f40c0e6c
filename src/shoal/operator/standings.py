"""What the scheduler remembers of a job, on its way into the job's status and back.

A status is read when an operator begins to lead; from then on the scheduler's own memory is the newer, unless somebody
else has written. What is written must be what is read back, or every look would find something to write: times are kept
to the microsecond, and what differs only in who says it is not said again.
"""

import math
from datetime import UTC, datetime

import msgspec

from shoal.api.fields import MAX_TEXT
from shoal.api.scheduling import SchedulingStatus
from shoal.operator.allowances import Allowance
from shoal.scheduler.actuation import Standing
from shoal.scheduler.rows import Attained, Seconds


def to_status(allowance: Allowance, written: SchedulingStatus | None = None) -> SchedulingStatus:
    """`written`: what the status has now."""
    standing = allowance.standing
    found = SchedulingStatus(
        target=standing.target,
        servers=allowance.servers,
        v=repr(float(standing.attained.v)),
        at=moment(standing.attained.at),
        rate=repr(float(standing.attained.rate)),
        settling=standing.settling or None,
        frozen_until=moment(standing.frozen_until) if standing.frozen_until else None,
        asked=standing.asked or None,
        held_to=standing.held_to or None,
        held_until=moment(standing.held_until) if standing.held_until else None,
        waiting_since=None if standing.waiting_since is None else moment(standing.waiting_since),
        place=allowance.place,
        code=allowance.code or None,
        reason=allowance.reason[:MAX_TEXT] or None,
        by=allowance.by or None,
    )
    is_known = written is not None and msgspec.structs.replace(found, by=written.by) == written
    return written if written is not None and is_known else found


def of_status(written: SchedulingStatus | None) -> Standing | None:
    """None: the scheduler has not met the job, or nobody can read what it wrote."""
    if written is None or written.target is None or written.v is None or written.at is None:
        return None
    try:
        attained = Attained(v=float(written.v), at=seconds(written.at), rate=float(written.rate or 0))
    except ValueError:
        return None
    if not (math.isfinite(attained.v) and math.isfinite(attained.rate)):
        return None
    return Standing(
        target=written.target,
        attained=attained,
        waiting_since=None if written.waiting_since is None else seconds(written.waiting_since),
        settling=bool(written.settling),
        frozen_until=0.0 if written.frozen_until is None else seconds(written.frozen_until),
        asked=written.asked or 0,
        held_to=written.held_to or 0,
        held_until=0.0 if written.held_until is None else seconds(written.held_until),
    )


def moment(at: Seconds) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def seconds(at: datetime) -> Seconds:
    return at.timestamp()
