"""Which slot a save goes to: nothing that was saved is ever overwritten before something newer is complete."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.checkpoint import slots as s


def saved(book: s.Slots, step: int, *, nbytes: int = 10, writer: str = "a", own: bool = True) -> s.Slots:
    """One save, with memory for whatever is asked."""
    book, answer = s.ask(book, writer, nbytes)
    if isinstance(answer, s.Make):
        book = s.made(book, answer, writer)
        number = answer.number
    else:
        assert isinstance(answer, s.Give)
        number = answer.number
    return s.complete(book, number, writer, step=step, length=nbytes, own=own)


def test_two_slots_are_enough_while_the_disk_keeps_up() -> None:
    book = s.Slots()
    for step in range(1, 10):
        book = saved(book, step)
        slot = book.unwritten()
        assert slot is not None
        book = s.read(s.reading(book, slot.number), slot.number, on_disk=True)
    assert len(book.slots) == 2
    assert [slot.step for slot in book.held()] == [9, 8]


def test_saves_that_outrun_the_disk_take_one_more_and_the_newest_is_written_next() -> None:
    book = saved(s.Slots(), 1)
    book = s.reading(book, book.held()[0].number)  # the disk is slow
    for step in (2, 3, 4, 5):
        book = saved(book, step)
    assert len(book.slots) == 3
    newest = book.unwritten()
    assert newest is not None
    assert newest.step == 5
    assert 1 in [slot.step for slot in book.slots], "what is being written must not be overwritten"


def test_a_writer_that_dies_loses_nothing_that_was_saved() -> None:
    book = saved(saved(s.Slots(), 1), 2)
    book, answer = s.ask(book, "a", 10)
    assert isinstance(answer, s.Give)
    book = s.gone(book, "a")
    assert [slot.step for slot in book.held()] == [2]
    late = s.complete(book, answer.number, "a", step=3, length=10)
    assert late == book, "the word of a writer that was given up"


def test_a_larger_state_gets_a_larger_slot() -> None:
    book = saved(saved(s.Slots(), 1), 2)
    book, answer = s.ask(book, "a", 20)
    assert isinstance(answer, s.Make)
    assert answer.instead_of is not None
    book = s.made(book, answer, "a")
    assert [slot.step for slot in book.held()] == [2]
    assert len(book.slots) == 2


def test_without_memory_for_a_second_slot_the_one_on_disk_is_used_again() -> None:
    book = saved(s.Slots(), 1)
    book, answer = s.ask(book, "a", 10)
    assert isinstance(answer, s.Make)
    assert s.not_made(book, answer, "a")[1] == s.NoMemory(), "the only copy may not be overwritten"
    busy = s.reading(book, 0)
    assert s.not_made(busy, answer, "a")[1] == s.Skip()
    assert s.not_made(s.read(busy, 0, on_disk=True), answer, "a")[1] == s.Give(0)


def test_after_a_step_back_the_last_save_counts_though_an_older_one_has_a_higher_step() -> None:
    book = saved(s.Slots(), 120)
    book = s.read(s.reading(book, 0), 0, on_disk=True)
    book = saved(book, 55)
    last = book.unwritten()
    assert last is not None
    assert last.step == 55, "it has to go to disk"
    book, answer = s.ask(book, "a", 10)
    assert answer == s.Give(0), "what nobody went on from makes room"


def test_a_copy_that_arrives_late_leaves_the_newer_save_alone() -> None:
    book = saved(saved(s.Slots(), 12), 9, writer="b", own=False)
    book, _ = s.ask(book, "a", 10)
    assert [slot.step for slot in book.held()] == [12, 9]


def test_a_newer_copy_makes_room_of_the_save_before_it() -> None:
    book = saved(saved(s.Slots(), 8), 9, writer="b", own=False)
    book, answer = s.ask(book, "b", 10)
    assert answer == s.Give(0)


def test_copies_of_other_pasts_never_take_all_the_slots() -> None:
    book = s.Slots()
    for step in (120, 110, 100, 90, 80):
        book = saved(book, step, writer="b", own=False)
    for step in (55, 60, 65):
        book = saved(book, step)
        assert len(book.slots) <= s.MOST
    assert [slot.step for slot in book.standing()] == [120, 80, 65]


def test_without_memory_for_another_slot_what_is_not_the_newest_is_used_again() -> None:
    book = saved(saved(s.Slots(), 9, writer="b", own=False), 8)
    book, answer = s.ask(book, "a", 10)
    assert isinstance(answer, s.Make)
    assert s.not_made(book, answer, "a")[1] == s.Give(1)


def test_ahead_of_time_two_are_made() -> None:
    book = s.Slots()
    while (make := s.ahead(book, 10)) is not None:
        book = s.made(book, make, None)
    assert [slot.nbytes for slot in book.slots] == [10, 10]
    assert s.ahead(saved(book, 1), 10) is None


class Saving(RuleBasedStateMachine):
    """Any order of saves, deaths, writes to disk and shortage of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.book = s.Slots()
        self.writing: dict[str, int] = {}
        self.reading: list[int] = []
        self.content: dict[int, tuple[int, int]] = {}
        """What really is in each slot, save and step: save 0 is rubbish."""
        self.saves = 0
        self.step = 0
        self.disk = 0
        """The last save on disk."""

    @rule(writer=st.sampled_from("ab"), nbytes=st.integers(1, 3), memory=st.booleans())
    def ask(self, writer: str, nbytes: int, memory: bool) -> None:
        self.writing.pop(writer, None)
        self.book, answer = s.ask(self.book, writer, nbytes)
        if isinstance(answer, s.Make):
            if answer.instead_of is not None:
                assert answer.instead_of not in self.reading
                self.content.pop(answer.instead_of)
            if memory:
                self.book = s.made(self.book, answer, writer)
                answer = s.Give(answer.number)
            else:
                self.book, answer = s.not_made(self.book, answer, writer)
        if isinstance(answer, s.Give):
            assert answer.number not in self.reading
            assert answer.number not in self.writing.values()
            self.content[answer.number] = (0, 0)
            self.writing[writer] = answer.number

    @precondition(lambda self: self.writing)
    @rule(data=st.data(), back=st.sampled_from([0, 0, 0, 5]))
    def complete(self, data: st.DataObject, back: int) -> None:
        writer = data.draw(st.sampled_from(sorted(self.writing)))
        number = self.writing.pop(writer)
        self.saves += 1
        self.step = max(1, self.step + 1 - back)
        self.content[number] = (self.saves, self.step)
        self.book = s.complete(self.book, number, writer, step=self.step, length=1)

    @rule(writer=st.sampled_from("ab"))
    def die(self, writer: str) -> None:
        self.writing.pop(writer, None)
        self.book = s.gone(self.book, writer)

    @rule()
    def begin_to_write(self) -> None:
        slot = self.book.unwritten()
        if slot is not None and not self.reading:
            self.book = s.reading(self.book, slot.number)
            self.reading.append(slot.number)

    @precondition(lambda self: self.reading)
    @rule(works=st.booleans())
    def written(self, works: bool) -> None:
        number = self.reading.pop()
        self.book = s.read(self.book, number, on_disk=works)
        if works:
            self.disk = max(self.disk, self.content[number][0])

    @invariant()
    def the_last_save_is_in_memory_or_on_disk(self) -> None:
        last = self.book.last_own()
        in_memory = 0 if last is None else self.content[last.number][0]
        assert max(in_memory, self.disk) == self.saves

    @invariant()
    def what_is_held_is_what_was_saved(self) -> None:
        for slot in self.book.held():
            assert self.content[slot.number][1] == slot.step
        for number in self.reading:
            assert self.content[number][0] > 0

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.book.slots) <= s.MOST


TestSaving = Saving.TestCase
TestSaving.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
