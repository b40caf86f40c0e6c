"""What nodes have and should have: small questions about `NodeResource`."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, replace

from shoal.core.plans import NodeResource


def overlaid(resource: NodeResource, wanted: NodeResource | None) -> NodeResource:
    """What a node should have: all that is said, and of the rest what it has."""
    if wanted is None:
        return resource
    said = {f.name: value for f in fields(wanted) if (value := getattr(wanted, f.name)) is not None}
    return replace(resource, **said)


def usual(resources: Iterable[NodeResource]) -> NodeResource | None:
    """What most nodes have, of several the first; None: there are no nodes."""
    known = Counter(resources)
    return max(known, key=lambda each: known[each], default=None)
