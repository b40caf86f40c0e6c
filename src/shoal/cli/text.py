"""Small words for terminals: what may be printed, and how durations and sizes read. Pure."""

import re
from datetime import timedelta

from shoal.core.view import SizingView, says_how_many, says_what_each_has

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links, clipboard
    r"|[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|[ -/]*[0-~])?"  # the two-character ones, and a lone escape
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """`text` without anything that makes a terminal do more than show characters.

    Training output, tracebacks and names come from elsewhere: an escape sequence in them could move the cursor,
    set the title or write to the clipboard. Tabs and newlines stay; of a line that was overwritten by carriage
    returns (a progress bar) the last state stays.
    """
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROL.sub("", _ESCAPE.sub("", "\n".join(lines)))


def clean_line(line: bytes) -> str:
    """One line of training output, fit for a terminal."""
    return clean(line.decode("utf-8", "replace")).replace("\n", " ")


def seconds(value: float) -> str:
    """`12 ms`, `1.4 s`, `3 min 20 s`: three figures are enough for a person."""
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 99.95:
        return f"{value:.1f} s" if value >= 9.995 else f"{value:.2f} s"
    return age(timedelta(seconds=value))


def age(value: timedelta) -> str:
    """`45 s`, `12 min`, `3 h 10 min`, `2 d 4 h`."""
    total = max(0, int(value.total_seconds()))
    days, rest = divmod(total, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes >= 10:
        return f"{minutes} min"
    if minutes:
        return f"{minutes} min {secs} s"
    return f"{secs} s"


def size(value: int) -> str:
    """Bytes in binary units: `312 MiB`."""
    if value < 1024:
        return f"{value} B"
    amount = float(value)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 999.5 or unit == "TiB":
            break
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"


def count(number: int, noun: str) -> str:
    """`1 step`, `3 steps`, `2 processes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def sizing_line(sizing: SizingView) -> str:
    """`running, 2 changes, the last took it from 400 to 610 samples/s (predicted 640): why it has the size it has`"""
    told = [sizing.stage, count(sizing.changes, "change")]
    if sizing.outcomes:
        last = sizing.outcomes[-1]
        promised = "" if last.predicted is None else f" (predicted {last.predicted:.4g})"
        told.append(f"the last took it from {last.before:.4g} to {last.measured:.4g} samples/s{promised}")
    if sizing.confidence is not None:
        told.append(f"its fit has a confidence of {sizing.confidence:.2f}")
    told += [says_how_many(who, role) for role, who in sizing.pins.items()]
    told += [says_what_each_has(who, role) for role, who in sizing.given.items()]
    if sizing.pending is not None:
        told.append(f"{sizing.pending} is under way")
    return clean(f"{', '.join(told)}: {sizing.reason}")
