"""Lengths of time as people write them: `60s`, `5m`, `1h30m`."""

import re
from datetime import timedelta

_DURATION = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?", re.ASCII)


def parse_duration(written: str) -> timedelta:
    found = _DURATION.fullmatch(written)
    if not written or found is None:
        raise ValueError(f"{written[:40]!r} is no duration: write hours, minutes and seconds, such as '90s' or '1h30m'")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)
