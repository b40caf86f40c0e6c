"""Where the model stands in the datasets that its world deals by itself: part of the state, like its parameters.

Every member holds the same standings and works every step's deal out of them (`shoal.core.ledger.dealing`). A deal
becomes a standing when its step is committed. What is given to newcomers and saved in checkpoints is a ledger's mark of
a few hundred bytes; so the data goes on exactly where the model does, whatever dies, and back with it to a checkpoint.
"""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from shoal.core.errors import BadInput
from shoal.core.ledger import DatasetSpec, DynamicCheckpoint
from shoal.core.ledger.datasets import differences
from shoal.core.ledger.dealing import Deal, Standing, dealt, mark_of, opened, standing_at
from shoal.core.ledger.ledger import MAY_CHANGE


class Standings:
    def __init__(self) -> None:
        self._known: dict[str, Standing] = {}
        self._dealt: dict[str, Standing] = {}
        """Where the world stands if the step under way is committed."""

    def attach(self, spec: DatasetSpec) -> Standing:
        """Use this dataset: from its beginning, or from where the state that was taken over stands in it."""
        known = self._known.get(spec.name)
        if known is None:
            self._known[spec.name] = opened(spec)
        elif changed := differences(known.spec, spec, ignoring=MAY_CHANGE):
            raise BadInput(f"dataset {spec.name} is not the one that the model was trained on: {changed}")
        else:
            self._known[spec.name] = replace(known, spec=spec)
        return self._known[spec.name]

    def of(self, name: str) -> Standing:
        return self._known[name]

    def deal(self, name: str, *, seats: int, size: int) -> Deal | None:
        """The records of the step that begins; None: everything is trained."""
        deal = dealt(self._known[name], seats=seats, size=size)
        if deal is not None:
            self._dealt[name] = deal.after
        return deal

    def committed(self) -> tuple[Standing, ...]:
        """The step is committed: these have moved."""
        moved, self._dealt = self._dealt, {}
        self._known.update(moved)
        return tuple(moved.values())

    def give_up(self) -> None:
        self._dealt = {}

    def entered(self) -> None:
        """A world begins. Whoever was in the last one forgets who read where, as newcomers cannot know it: all must
        deal alike."""
        self._known = {name: standing_at(mark_of(standing)) for name, standing in self._known.items()}

    def contents(self) -> dict[str, bytes]:
        return {name: msgspec.msgpack.encode(mark_of(standing)) for name, standing in self._known.items()}

    def adopt(self, received: Mapping[str, bytes]) -> None:
        """Stand where another member does, or where a checkpoint was taken."""
        self._dealt = {}
        self._known = {
            name: standing_at(msgspec.msgpack.decode(mark, type=DynamicCheckpoint)) for name, mark in received.items()
        }
