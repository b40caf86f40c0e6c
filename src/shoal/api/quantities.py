"""Kubernetes quantities: `500m`, `1Gi`, `1e3`, `0.5`.

The grammar is that of Kubernetes' resource package: a decimal number, then one of a binary suffix (Ki to Ei), a
decimal suffix (n, u, m, none, k, M to E) or an exponent (`e3`, `E3`). Values are exact fractions here: 0.1 cores are
a tenth. Whoever needs whole units rounds up, as Kubernetes does, so that something asked for is never nothing.
"""

import math
import re
from fractions import Fraction

MEBIBYTE = 2**20

_NUMBER = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2}|)", re.ASCII
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(written: int | str) -> Fraction:
    """The value of a quantity; ValueError says what is wrong with it."""
    if isinstance(written, bool) or not isinstance(written, int | str):
        raise ValueError(
            f"{written!r} is no quantity: write a whole number, or a string such as '0.5', '500m' or '1Gi'"
        )
    if isinstance(written, int):
        return Fraction(written)
    found = _NUMBER.fullmatch(written)
    if found is None:
        raise ValueError(f"{written[:40]!r} is no quantity: write a number and a unit, such as '0.5', '500m' or '1Gi'")
    number, suffix = found["number"], found["suffix"]
    value = Fraction(number if number[-1] != "." else number[:-1])
    if suffix in _BINARY:
        return value * (1 << _BINARY[suffix])
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    power = Fraction(10 ** abs(exponent))
    return value * power if exponent >= 0 else value / power


def mebibytes(written: int | str, *, bare: int = 1) -> int:
    """Memory or disk in MiB, rounded up. `bare` is what a number without a unit counts, in bytes."""
    value = parse_quantity(written)
    if isinstance(written, int) or written.isdecimal():
        value *= bare
    return math.ceil(value / MEBIBYTE)


def cores(written: int | str) -> float:
    """CPU in cores; Kubernetes knows thousandths of one."""
    return math.ceil(parse_quantity(written) * 1000) / 1000


def format_mebibytes(amount: int) -> str:
    return f"{amount}Mi"


def format_cores(amount: float) -> str:
    milli = math.ceil(round(amount * 1000, 6))
    return f"{milli // 1000}" if milli % 1000 == 0 else f"{milli}m"
