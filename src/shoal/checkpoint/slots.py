"""Which slot of shared memory a save goes to: a value and the decisions about it. Pure.

    FREE ──give──▶ WRITING ──told complete──▶ HELD ──superseded──▶ FREE
                      └── its writer is gone, or asks again ──▶ FREE

A slot that is being read (written to disk, sent to another agent) is never given out. What is held is kept until a
later image supersedes it, so that a process killed in the middle of a copy loses nothing that was saved; with one
exception: there is no memory for another slot, and it is on disk or not the newest.

Of this node's own images the last one counts, whatever its step: where training had to go back, what was saved before
is of a past that nobody went on from. Of other nodes' copies, which may arrive late, the last one and the newest count.
Two slots are enough while the disk keeps up; when saves outrun it one or
two more are made, so that training need not wait.
"""

from dataclasses import dataclass, replace

MOST = 4
"""The newest, the one being written to disk, the one being sent away, and the one being filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    number: int
    nbytes: int
    writer: str | None = None
    """Who is filling it."""
    step: int | None = None
    """What it holds, complete; None: nothing."""
    length: int = 0
    order: int = 0
    """Grows with every complete image: of two with the same step the later one counts."""
    readers: int = 0
    on_disk: bool = False
    own: bool = True
    """Filled by a process of this node; False: another agent's replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    slots: tuple[Slot, ...] = ()
    next_number: int = 0
    next_order: int = 1

    def held(self) -> list[Slot]:
        """What can be restored from, the newest first."""
        held = [s for s in self.slots if s.step is not None]
        return sorted(held, key=_age, reverse=True)

    def last_own(self) -> Slot | None:
        """What a process of this node saved last."""
        return max((s for s in self.held() if s.own), key=lambda s: s.order, default=None)

    def standing(self) -> list[Slot]:
        """What no later image supersedes, the newest first: one, in the usual course, and never more than three."""
        held = self.held()
        copies = [s for s in held if not s.own]
        counting = (self.last_own(), max(copies, key=lambda s: s.order, default=None), next(iter(copies), None))
        standing = [s for s in held if s in counting]
        return [s for s in standing if not any(t.order > s.order and _age(t) > _age(s) for t in standing)]

    def slot(self, number: int) -> Slot | None:
        return next((s for s in self.slots if s.number == number), None)

    def unwritten(self) -> Slot | None:
        """This node's last image, if it is not on disk; None: all that matters is."""
        last = self.last_own()
        return None if last is None or last.on_disk else last


@dataclass(frozen=True, slots=True)
class Give:
    """The writer may fill this slot."""

    number: int


@dataclass(frozen=True, slots=True)
class Make:
    """Make slot `number` with at least `nbytes`, after removing slot `instead_of`; then `made` or `not_made`."""

    number: int
    nbytes: int
    instead_of: int | None


@dataclass(frozen=True, slots=True)
class Skip:
    """Not this time: all slots are in use and there is no memory for another."""


@dataclass(frozen=True, slots=True)
class NoMemory:
    """There will never be enough memory for two copies."""


Answer = Give | Make | Skip | NoMemory


def ask(book: Slots, writer: str, nbytes: int) -> tuple[Slots, Give | Make | Skip]:
    """Somebody wants to save so many bytes."""
    book = gone(book, writer)
    free = _free(book)
    fitting = next((s for s in free if s.nbytes >= nbytes), None)
    if fitting is not None:
        return _given(book, fitting, writer), Give(fitting.number)
    if free or len(book.slots) < MOST:
        return book, Make(book.next_number, nbytes, free[0].number if free else None)
    return book, Skip()


def made(book: Slots, make: Make, writer: str | None) -> Slots:
    """The slot was made, for this writer or (None) ahead of time."""
    book = removed(book, make.instead_of)
    slot = Slot(number=make.number, nbytes=make.nbytes, writer=writer)
    return replace(book, slots=(*book.slots, slot), next_number=max(book.next_number, make.number + 1))


def not_made(book: Slots, make: Make, writer: str) -> tuple[Slots, Give | Skip | NoMemory]:
    """There was no memory for it. What was to be replaced is gone all the same."""
    book = removed(book, make.instead_of)
    if any(s.readers or (s.writer is not None and s.writer != writer) for s in book.slots):
        return book, Skip()
    standing = book.standing()
    spare = [s for s in reversed(standing) if s.on_disk or s is not standing[0]]
    fitting = next((s for s in spare if s.nbytes >= make.nbytes), None)
    if fitting is not None:
        return _given(book, fitting, writer), Give(fitting.number)
    return book, NoMemory()


def ahead(book: Slots, nbytes: int) -> Make | None:
    """What to make so that the next two saves of this size find a slot."""
    if sum(s.nbytes >= nbytes for s in book.slots) >= 2 or len(book.slots) >= MOST:
        return None
    small = next((s for s in _free(book) if s.nbytes < nbytes), None)
    return Make(book.next_number, nbytes, None if small is None else small.number)


def complete(book: Slots, number: int, writer: str, *, step: int, length: int, own: bool = True) -> Slots:
    """The writer says that the slot holds a complete image. Ignored if the slot is not the writer's."""
    slot = book.slot(number)
    if slot is None or slot.writer != writer or not 0 < length <= slot.nbytes:
        return book
    full = replace(slot, writer=None, step=step, length=length, order=book.next_order, own=own, on_disk=False)
    return replace(_put(book, full), next_order=book.next_order + 1)


def gone(book: Slots, writer: str) -> Slots:
    """The writer died, detached, or wants to begin again: what it was filling is nothing."""
    return replace(book, slots=tuple(replace(s, writer=None) if s.writer == writer else s for s in book.slots))


def reading(book: Slots, number: int) -> Slots:
    slot = book.slot(number)
    return book if slot is None else _put(book, replace(slot, readers=slot.readers + 1))


def read(book: Slots, number: int, *, on_disk: bool = False) -> Slots:
    """Somebody has read it to the end, or given up."""
    slot = book.slot(number)
    if slot is None:
        return book
    return _put(book, replace(slot, readers=slot.readers - 1, on_disk=slot.on_disk or on_disk))


def removed(book: Slots, number: int | None) -> Slots:
    return replace(book, slots=tuple(s for s in book.slots if s.number != number))


def _age(slot: Slot) -> tuple[int, int]:
    """The later the larger."""
    return (slot.step or 0, slot.order)


def _free(book: Slots) -> list[Slot]:
    """What may be filled, the largest first."""
    standing = book.standing()
    free = [s for s in book.slots if s.writer is None and not s.readers and s not in standing]
    return sorted(free, key=lambda s: -s.nbytes)


def _given(book: Slots, slot: Slot, writer: str) -> Slots:
    return _put(book, replace(slot, writer=writer, step=None, on_disk=False))


def _put(book: Slots, slot: Slot) -> Slots:
    return replace(book, slots=tuple(slot if s.number == slot.number else s for s in book.slots))
