"""Whoever changes a message must not forget that an older peer reads it."""

import hashlib

import msgspec
import pytest

from shoal.wire.local import LOCAL_PROTOCOL, FromAgentLocal, FromProcess
from shoal.wire.messages import PROTOCOL, FromAgent, FromMaster

SHAPES = {("agent and master", 3): "27ed13144908eb56", ("process and agent", 3): "83290e5282e99eb1"}
"""By protocol, the digest of what its messages have."""


def shape(*unions: object) -> str:
    """Of all messages and what is in them: the names of their fields, and which of them may be left out."""
    _, known = msgspec.json.schema_components(unions)
    fields = {
        name: (sorted(each.get("properties", ())), sorted(each.get("required", ()))) for name, each in known.items()
    }
    return hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "protocol", "unions"),
    [
        pytest.param("agent and master", PROTOCOL, (FromAgent, FromMaster), id="agent-and-master"),
        pytest.param("process and agent", LOCAL_PROTOCOL, (FromProcess, FromAgentLocal), id="process-and-agent"),
    ],
)
def test_messages_with_other_fields_are_of_another_protocol(
    name: str, protocol: int, unions: tuple[object, ...]
) -> None:
    """A peer refuses fields that it does not know, so it must be told before it is sent any. Who has changed a message
    raises the protocol and writes the digest down."""
    assert (name, protocol) in SHAPES, f"protocol {protocol} of {name} has no digest; it would be {shape(*unions)}"
    assert shape(*unions) == SHAPES[name, protocol], f"messages of {name} have changed since protocol {protocol}"
