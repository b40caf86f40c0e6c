"""Saving the state into the agent's shared memory, and taking it back when nobody alive has it.

`save` lays the state out as an image (`shoal.checkpoint.image`) and copies it into a slot from the agent: that copy is
all that training waits for. Only the source saves: all members hold the same state.

`restore` is a matter of all members of a world in which nobody holds state. Each says what its node has (in the agent's
memory, or in the folder), the one with the newest reads it, checks it and becomes the source; if it turns out to be
damaged, that is told, and the next best is tried. So a checkpoint is restored by whoever can reach it, onto any number
of workers.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from shoal.checkpoint import manifests
from shoal.checkpoint import tree as plain_tree
from shoal.checkpoint.folder import Folder, open_folder
from shoal.checkpoint.image import BadImage, Header, Image, Layout, lay_out, placed
from shoal.checkpoint.manifests import Damaged, Found
from shoal.checkpoint.memory import copy_bytes, mapped, touch
from shoal.torch import tree
from shoal.torch.group import Group
from shoal.torch.takeover import ModelMismatch
from shoal.torch.tree import LEAVES, dtype_name, dtype_named
from shoal.trainer.session import Session
from shoal.wire.local import MemoryCopy, SlotRefused

if TYPE_CHECKING:
    from shoal.torch.state import State

_SLACK = 64
"""Slots are asked for a 64th larger than needed, so that a loop attribute may grow."""


@dataclass(frozen=True, slots=True)
class _InFolder:
    folder: Folder
    found: Found

    @property
    def step(self) -> int:
        return self.found.step


class Checkpoints:
    """Of one state, through one agent. Without an agent nothing is saved, which is told once."""

    def __init__(self, state: "State", session: Session | None) -> None:
        self._state = state
        self._session = session
        self._segments: dict[str, Tensor] = {}
        self._mapping = threading.Lock()
        self._prepared = False
        self._told: set[str] = set()

    # Saving ----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Have the memory for saves made and mapped now, so that already the first costs no more than the copy."""
        if self._session is None:
            return
        self._prepared = True
        layout, _ = self._laid_out()
        self._make_ready(self._session, layout.total + self._state.expected_growth())

    def save(self) -> bool:
        if self._session is None:
            self._tell_once("nothing is saved: this process was not started by `shoal run`")
            return False
        layout, tensors = self._laid_out()
        step = self._state.step
        answer = self._session.slot(_with_slack(layout.total))
        if isinstance(answer, SlotRefused):
            return self._write_through(answer, layout, tensors)
        _copy_into(self._segment(answer.path), layout, tensors)
        self._session.saved(answer.slot, step=step, nbytes=layout.total)
        if not self._prepared:
            self._prepared = True
            # The next save goes to another slot: have it at hand by then.
            threading.Thread(
                target=self._make_ready, args=(self._session, layout.total), name="shoal-prepare", daemon=True
            ).start()
        return True

    def _laid_out(self) -> tuple[Layout, list[tuple[Tensor, tuple[int, int]]]]:
        """The image of the state as it is: its head, and which tensor goes where."""
        state = self._state
        found: list[tuple[str, Any]] = []
        body = plain_tree.packed(state.to_save(), "state", LEAVES, found)
        places = placed(
            [(path, dtype_name(t.dtype), t.device.type, tuple(t.shape), t.numel() * t.itemsize) for path, t in found]
        )
        header = Header(
            job="" if self._session is None else self._session.attached.job,
            step=state.step,
            saved_at=time.time(),
            signature=tuple(state.model_signature()),
            batching=state.batching,
            tensors=places,
            body=msgspec.msgpack.encode(body),
        )
        layout = lay_out(header)
        ends = [(layout.start + p.offset, layout.start + p.offset + p.nbytes) for p in places]
        return layout, [(tensor, place) for (_, tensor), place in zip(found, ends, strict=True) if place[0] < place[1]]

    def _make_ready(self, session: Session, nbytes: int) -> None:
        for path in session.slots(_with_slack(nbytes)):
            self._segment(path)

    def _segment(self, path: str) -> Tensor:
        """The slot as a tensor of bytes, with all its pages at hand. Stays mapped for the next save; slots that are
        gone are let go."""
        with self._mapping:
            if path not in self._segments:
                self._segments = {p: t for p, t in self._segments.items() if os.path.exists(p)}
                memory = mapped(Path(path), write=True)
                touch(memory)
                self._segments[path] = torch.frombuffer(memory, dtype=torch.uint8)
            return self._segments[path]

    def _write_through(
        self, refused: SlotRefused, layout: Layout, tensors: list[tuple[Tensor, tuple[int, int]]]
    ) -> bool:
        """There is no memory for it: training waits for the disk, if there is one."""
        if refused.directory is None:
            return False  # the agent has said why
        assert self._session is not None
        folder = open_folder(refused.directory)
        job = self._session.attached.job
        try:
            with self._state.busy("checkpoint"):
                step = self._state.step
                manifests.write(folder, _parts(layout, tensors), job=job, step=step, saved_at=time.time())
                manifests.prune(folder, keep=refused.keep, written=step)
        except OSError as exc:
            self._tell_once(f"the state cannot be saved to {folder.url}: {exc}; training goes on")
            return False
        return True

    # Restoring -------------------------------------------------------------------------------------------

    def restore(self, group: Group) -> int | None:
        """Agree on the newest checkpoint that can be read, and let its holder read it: that rank, or None."""
        candidates = self._candidates() if self._session is not None and self._session.local_rank == 0 else iter(())
        mine = next(candidates, None)
        loaded = False
        while True:
            claims = _claims(group, None if mine is None else mine.step, loaded)
            newest = max(step for step, _ in claims)
            if newest < 0:
                return None
            giver = next(rank for rank, (step, _) in enumerate(claims) if step == newest)
            if claims[giver][1]:
                return giver
            if giver == group.rank:
                assert mine is not None
                loaded = self._load(mine)
                if not loaded:
                    mine = next(candidates, None)

    def _candidates(self) -> Iterator[MemoryCopy | _InFolder]:
        """What this node could restore, the newest first."""
        assert self._session is not None
        known = self._session.checkpoints()
        found: list[MemoryCopy | _InFolder] = list(known.memory)
        if known.directory is not None:
            folder = open_folder(known.directory)
            try:
                found += (_InFolder(folder, each) for each in manifests.scan(folder, damaged=_tell_damage))
            except OSError as exc:
                _tell(f"checkpoints in {folder.url} cannot be looked at: {exc}")
        found.sort(key=lambda each: (-each.step, isinstance(each, _InFolder)))
        return iter(found)

    def _load(self, candidate: MemoryCopy | _InFolder) -> bool:
        """Take this state over; False, loudly, if it is damaged. Raises `ModelMismatch` if it is of something else."""
        try:
            if isinstance(candidate, _InFolder):
                image = manifests.load(candidate.folder, candidate.found)
                where = f"{candidate.folder.url} ({candidate.found.name})"
            else:
                # Mapped for itself: to have all pages ready for writing, as for a save, costs more than to read them.
                image = Image(memoryview(mapped(Path(candidate.path), write=True)))
                where = "the agent's memory"
        except (Damaged, BadImage, OSError) as exc:
            _tell_damage(exc)
            return False
        header, state = image.header, self._state
        difference = _difference(header.signature, tuple(state.model_signature()))
        if difference is not None:
            raise ModelMismatch(
                f"the checkpoint of step {header.step} in {where} is of another model: {difference}; "
                "give another --checkpoint-dir, or the script that made it"
            )
        if header.batching != state.batching:
            if self._session is not None and self._session.attached.resumed:
                raise ModelMismatch(
                    f"the checkpoint of step {header.step} in {where} was trained with {header.batching}, this script "
                    f"has {state.batching}: a resumed job goes on in the same order (the most workers of --nnodes "
                    "count too); start a new job to change that"
                )
            _tell(f"the checkpoint was trained with {header.batching}, this job has {state.batching}")
        saved = _unpacked(image, state.device)
        # Everything else is copied by whoever takes it over; the slot behind the image will be filled again.
        saved["carried"] = tree.copied(saved["carried"], "carried")
        state.restore_saved(saved)
        _tell(f"restored step {header.step} from {where}")
        return True

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            _tell(line)


def _claims(group: Group, step: int | None, loaded: bool) -> list[tuple[int, bool]]:
    """What every rank has: its step (-1: none), and whether it has taken that over already."""
    said = torch.zeros(group.size, dtype=torch.int64, device=group.device)
    said[group.rank] = 0 if step is None else 2 * (step + 1) + loaded
    if group.size > 1:
        group.start(said)
        group.drain()
    return [(value // 2 - 1, value % 2 == 1) for value in said.tolist()]


def _copy_into(memory: Tensor, layout: Layout, tensors: list[tuple[Tensor, tuple[int, int]]]) -> None:
    """Fill a slot with an image. What is plain bytes already is copied as such: no view of the slot is made for it."""
    copy_bytes(memory.data_ptr(), layout.head, len(layout.head))
    for tensor, (begin, end) in tensors:
        if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            copy_bytes(memory.data_ptr() + begin, tensor.data_ptr(), end - begin)
        else:
            memory[begin:end].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _unpacked(image: Image, device: torch.device) -> Any:
    """The tree of an image; its tensors share the image's memory where they can."""

    def leaf(number: int) -> Tensor:
        place = image.header.tensors[number]
        dtype = dtype_named(place.dtype)
        raw = image.tensor(number)
        tensor = (
            torch.frombuffer(raw, dtype=dtype).view(place.shape)
            if place.nbytes
            else torch.empty(place.shape, dtype=dtype)
        )
        return tensor.to(device) if place.device == device.type else tensor

    return plain_tree.unpacked(msgspec.msgpack.decode(image.header.body), leaf)


def _parts(layout: Layout, tensors: list[tuple[Tensor, tuple[int, int]]]) -> Iterator[memoryview]:
    """The image in pieces, for a writer. Each tensor is brought into the form of its bytes when its turn comes."""
    yield memoryview(layout.head)
    at = layout.start
    for tensor, (begin, end) in tensors:
        if begin > at:
            yield memoryview(bytes(begin - at))
        raw = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield raw.data
        at = end


def _difference(theirs: tuple[str, ...], ours: tuple[str, ...]) -> str | None:
    if theirs == ours:
        return None
    place = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours)))
    there = theirs[place] if place < len(theirs) else "nothing more"
    here = ours[place] if place < len(ours) else "nothing more"
    return f"it has {there} where this script has {here}"


def _with_slack(nbytes: int) -> int:
    return nbytes + nbytes // _SLACK + 65536


def _tell(line: str) -> None:
    sys.stderr.write(f"shoal: {line}\n")
    sys.stderr.flush()


def _tell_damage(exc: Exception) -> None:
    _tell(f"WARNING: a checkpoint is damaged and not used, the one before it is: {exc}")
