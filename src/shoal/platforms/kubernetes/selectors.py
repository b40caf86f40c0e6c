"""Label selectors: the text that the server takes, and the same question asked of labels at hand."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from shoal.core.errors import BadInput


class Operator(StrEnum):
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def admits(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:  # as the server has it: an object without the label is admitted
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.ABSENT:
                return self.key not in labels


_SET = re.compile(r"^(\S+)\s+(in|notin)\s*\(([^()]*)\)$")
_EQUAL = re.compile(r"^([^=!\s]+)\s*(==|=|!=)\s*([^=!\s]*)$")
_KEY = re.compile(r"^(!?)\s*([^=!\s(),]+)$")
_COMMA = re.compile(r",(?![^()]*\))")  # but not one inside parentheses


def parse_selector(text: str | None) -> tuple[Requirement, ...]:
    """`a=b,c!=d,e in (f,g),h,!i` as requirements that must all hold; None or empty: everything."""
    if not text or not text.strip():
        return ()
    return tuple(_requirement(part.strip()) for part in _COMMA.split(text))


def selects(requirements: tuple[Requirement, ...], labels: Mapping[str, str]) -> bool:
    return all(requirement.admits(labels) for requirement in requirements)


def selector(labels: Mapping[str, str]) -> str:
    """The text that selects exactly the objects with all of these labels."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _requirement(text: str) -> Requirement:
    if found := _SET.match(text):
        values = frozenset(value.strip() for value in found[3].split(","))
        return Requirement(found[1], Operator(found[2]), values)
    if found := _EQUAL.match(text):
        operator = Operator.NOT_IN if found[2] == "!=" else Operator.IN
        return Requirement(found[1], operator, frozenset({found[3]}))
    if found := _KEY.match(text):
        return Requirement(found[2], Operator.ABSENT if found[1] else Operator.EXISTS)
    raise BadInput(f"not a label selector: {text!r}; wanted key=value, key!=value, key in (a,b), key or !key")
