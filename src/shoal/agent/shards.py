"""The agent's desk for data: what its processes hold, what they have said, and what has to go to the master next.

No input or output here: `said`, `woken`, `answered`, `departed` and `reconnected` are told what happened, `next_round`
answers what to send, and `letters` what to pass on to processes.

One round is under way at a time. What a process reports stays in its book until a round that carried it was answered
and the master has written it down, so a master that dies with it in its hands costs nothing: it is said again, and the
ledger knows by the attempt whether it has counted it. A book also knows what its owner holds; after a reconnection both
sides compare. The book of a process that has ended is kept for as long.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from shoal.core.ledger import Ask, DatasetSpec, Lease, Owner, Progress, Verdict, Wake
from shoal.core.rounds import DatasetRefusal, Departure, Extent, Given, Holding, Restore, Round, RoundAnswer, Stand
from shoal.wire.local import (
    DataAnswer,
    DatasetNamed,
    DatasetUnusable,
    DataWord,
    LedgerMark,
    LedgerPut,
    LedgerWanted,
    ShardsGiven,
    ShardsSaid,
    StreamSaid,
    WorldStands,
)

Key = tuple[Owner, str]


@dataclass(slots=True)
class Book:
    """One process and one dataset."""

    wanted: int = 0
    epoch: int | None = None
    held: dict[int, Lease] = field(default_factory=dict)
    """Given, and not known to be completed or lost."""
    completed: dict[int, None] = field(default_factory=dict)
    """Trained, and not known to be counted. In order."""
    progress: dict[int, int] = field(default_factory=dict)
    counted: dict[int, tuple[int, Lease]] = field(default_factory=dict)
    """Completed and heard in that round, but not known to be written down: another master may not know of it."""
    reported: dict[int, int] = field(default_factory=dict)
    """Progress that was heard, of what is held: another master may not know of it."""
    waiting: bool = False
    """It was told to wait: there is nothing to ask for until it is woken."""
    news: bool = False
    """Something in it has not been said yet."""

    @property
    def missing(self) -> int:
        """How many more shards it wants."""
        return 0 if self.waiting else max(0, self.wanted - len(self.held.keys() - self.completed.keys()))

    def say_again(self) -> None:
        """Whoever is the master now may know nothing of what was not written down."""
        self.held = {attempt: lease for attempt, (_, lease) in self.counted.items()} | self.held
        self.completed = dict.fromkeys(self.counted) | self.completed
        self.progress = {a: n for a, n in self.reported.items() if a not in self.completed} | self.progress
        self.waiting, self.news = False, True


class Desk:
    def __init__(self) -> None:
        self._books: dict[Key, Book] = {}
        self._specs: dict[tuple[Owner, str], DatasetSpec] = {}
        self._unsaid: list[DatasetSpec] = []
        self._departures: list[Departure] = []
        self._ended: list[tuple[int, Departure, dict[Key, Book]]] = []
        """Of processes that have ended: the round that said so, and what of them is not known to be written down."""
        self._marks: dict[Owner, None] = {}
        """Who wants a checkpoint of the ledger and has none."""
        self._restores: dict[Owner, Restore] = {}
        self._extents: dict[Extent, None] = {}
        """How far streams go, as far as no round that carried it was answered."""
        self._heard_extents: dict[Extent, int] = {}
        """Answered in that round, and not known to be written down."""
        self._stands: dict[Key, Stand] = {}
        """Where worlds stand, as far as no round that carried it was answered; only the last word of each counts."""
        self._heard_stands: dict[Key, tuple[int, Stand]] = {}
        """Answered in that round, and not known to be written down."""
        self._sent: Round | None = None
        """The one that was not answered yet."""
        self._number = 0
        self._compare = False
        """The next round tells who there is, and what everybody holds."""
        self._letters: list[tuple[Owner, DataAnswer]] = []
        self._when_heard: list[tuple[int, Callable[[], None]]] = []
        """What to do, and the round that must be answered and written down first."""
        self._let_go = 0
        """The round up to which nobody has to wait."""

    # What happened ----------------------------------------------------------------------------------------

    def said(self, owner: Owner, word: DataWord) -> None:
        match word:
            case DatasetNamed(spec=spec):
                self._specs[owner, spec.name] = spec
                self._unsaid.append(spec)
            case ShardsSaid():
                book = self._books.setdefault((owner, word.dataset), Book())
                if word.epoch != book.epoch or word.want != book.wanted:
                    book.waiting = False
                book.epoch, book.wanted, book.news = word.epoch, word.want, True
                for report in word.progress:
                    book.progress[report.attempt] = report.done
                for attempt in word.completed:
                    book.completed[attempt] = None
                    book.progress.pop(attempt, None)
            case StreamSaid(extent=extent):
                self._grew(extent)
            case WorldStands(generation=generation, step=step, mark=mark):
                self._stands[owner, mark.spec.name] = Stand(owner=owner, generation=generation, step=step, mark=mark)
            case LedgerWanted():
                self._marks[owner] = None
            case LedgerPut(number=number, mark=mark):
                self._restores[owner] = Restore(owner=owner, number=number, mark=mark)

    def _grew(self, extent: Extent) -> None:
        """What is known of a partition's growth is in the furthest word; where it ends must be said as it was."""
        passed = _grown_before(self._extents, extent)
        if not extent.closed:
            extent = max(*passed, extent, key=lambda e: e.until) if passed else extent
            for each in passed:
                del self._extents[each]
        self._extents[extent] = None

    def departed(self, owner: Owner, *, charged: bool, reason: str) -> None:
        """A process has ended. What it said last is said before that."""
        mine = [key for key in self._books if key[0] == owner]
        for key in mine:
            self._books[key].wanted, self._books[key].news = 0, True
        if mine or self._has_words_of(owner):  # a master that hears of an end writes at once what was said before it
            self._departures.append(Departure(owner=owner, charged=charged, reason=reason))
        self._specs = {key: spec for key, spec in self._specs.items() if key[0] != owner}
        self._marks.pop(owner, None)
        self._restores.pop(owner, None)

    def _has_words_of(self, owner: Owner) -> bool:
        """Something of it, or of streams, is not known to be written down."""
        stands = any(key[0] == owner for key in (*self._stands, *self._heard_stands))
        return stands or bool(self._extents or self._heard_extents)

    def woken(self, wakes: tuple[Wake, ...]) -> None:
        for wake in wakes:
            book = self._books.get((wake.owner, wake.dataset))
            if book is not None:
                book.waiting, book.news = False, True

    def reconnected(self) -> None:
        """There is a master again, perhaps another one: whatever was on its way, in either direction, may be lost."""
        self._sent = None
        self._unsaid = list(dict.fromkeys(self._specs.values()))
        ended, self._ended = self._ended, []
        self._departures = [departure for _, departure, _ in ended] + self._departures
        for _, _, books in ended:
            self._books = books | self._books
        self._compare = True
        for book in self._books.values():
            book.say_again()
        heard, self._heard_extents = self._heard_extents, {}
        for extent in heard:
            self._grew(extent)
        self._stands = {key: stand for key, (_, stand) in self._heard_stands.items()} | self._stands
        self._heard_stands = {}

    def kept(self, number: int) -> None:
        """What was said in the rounds up to this one is written down: no master will have to hear it again."""
        for book in self._books.values():
            book.counted = {a: counted for a, counted in book.counted.items() if counted[0] > number}
        self._ended = [ended for ended in self._ended if ended[0] > number]
        self._heard_extents = {e: first for e, first in self._heard_extents.items() if first > number}
        self._heard_stands = {key: heard for key, heard in self._heard_stands.items() if heard[0] > number}
        self.let_go(number)

    def let_go(self, number: int) -> None:
        """Nobody need wait any more for what was said in the rounds up to this one to be written down."""
        self._let_go = max(self._let_go, number)
        heard = [act for first, act in self._when_heard if first <= number]
        self._when_heard = [(first, act) for first, act in self._when_heard if first > number]
        for act in heard:
            act()

    def answered(self, answer: RoundAnswer, *, is_kept: bool = True) -> None:
        if self._sent is None or answer.number != self._sent.number:
            return  # of a connection that is no more
        sent, self._sent = self._sent, None
        for owner, dataset, attempt in answer.void:
            self._lost((owner, dataset), (attempt,))
        for ask in sent.asks:
            self._counted(ask, answer.number)
        for refusal in answer.unusable:  # before anything is given that they might take for theirs
            self._unusable(refusal)
        wanted = {(ask.owner, ask.dataset) for ask in sent.asks if ask.want}
        for given in answer.given:
            self._given(given, asked=(given.owner, given.dataset) in wanted)
        self._noted(sent, refused={refusal.dataset for refusal in answer.unusable})
        self._marked(sent, answer)
        for departure in sent.departed:
            books = {key: book for key, book in self._books.items() if key[0] == departure.owner}
            self._ended.append((answer.number, departure, books))
        gone = {departure.owner for departure in sent.departed}
        del self._departures[: len(sent.departed)]
        self._books = {key: book for key, book in self._books.items() if key[0] not in gone}
        if sent.restores:  # such a round leaves the rest for the next one
            self._when_heard = [(max(number, sent.number + 1), act) for number, act in self._when_heard]
        if is_kept:
            self.kept(answer.number)

    def _noted(self, sent: Round, *, refused: set[str]) -> None:
        """Words about streams and worlds were heard. Those that were refused are not said again: whoever said them
        ends, and they would end whoever comes after."""
        for extent in sent.extents:
            self._extents.pop(extent, None)
            if extent.dataset not in refused:
                for each in () if extent.closed else _grown_before(self._heard_extents, extent):
                    del self._heard_extents[each]
                self._heard_extents[extent] = sent.number
        for stand in sent.stands:
            key = (stand.owner, stand.mark.spec.name)
            if self._stands.get(key) is stand:
                del self._stands[key]
            if stand.mark.spec.name not in refused:
                self._heard_stands[key] = (sent.number, stand)

    def when_heard(self, act: Callable[[], None]) -> None:
        """Do it when the master has heard, answered and written down all that was said until now; at once if it has.
        What others say from now on is not waited for."""
        number = self._number + self._has_news
        if self.is_quiet or number <= self._let_go:
            act()
        else:
            self._when_heard.append((number, act))

    @property
    def is_quiet(self) -> bool:
        if self._sent is not None or self._has_news or self._ended or self._heard_extents or self._heard_stands:
            return False
        return not any(book.counted for book in self._books.values())

    @property
    def _has_news(self) -> bool:
        """There is something for the next round to say."""
        words = self._unsaid, self._departures, self._marks, self._restores, self._extents, self._stands
        return self._compare or any(words) or bool(self._with_news())

    # What is to be done -----------------------------------------------------------------------------------

    def letters(self) -> list[tuple[Owner, DataAnswer]]:
        """What to pass on to processes, once."""
        letters, self._letters = self._letters, []
        return letters

    def next_round(self) -> Round | None:
        """What to send now; None: nothing, or the answer to the last one is still awaited."""
        if self._sent is not None:
            return None
        if not self._has_news:
            return None
        self._number += 1
        holding = tuple(
            Holding(owner=owner, dataset=dataset, leases=tuple(book.held.values()))
            for (owner, dataset), book in self._books.items()
            if self._compare
        )
        round = Round(
            number=self._number,
            specs=tuple(dict.fromkeys(self._unsaid)),
            extents=tuple(self._extents),
            stands=tuple(self._stands.values()),
            roll_call=self._compare,
            holding=holding,
            restores=tuple(self._restores.values()),
        )
        if not self._restores:
            round = self._with_asks(round)
        self._unsaid, self._compare = [], False
        self._sent = round
        return round

    def _with_asks(self, round: Round) -> Round:
        """Not in a round that restores: so every lease that a process gets before it hears of that is void, and every
        one that it gets afterwards is not."""
        news = self._with_news()
        for key in news:
            self._books[key].news = False
        return replace(
            round,
            asks=tuple(self._ask(key) for key in news),
            departed=tuple(self._departures),
            marks=tuple(self._marks),
        )

    def _with_news(self) -> list[Key]:
        return [key for key, book in self._books.items() if book.news]

    def _ask(self, key: Key) -> Ask:
        book = self._books[key]
        return Ask(
            owner=key[0],
            dataset=key[1],
            completed=tuple(book.completed),
            progress=tuple(Progress(attempt, done) for attempt, done in book.progress.items()),
            want=book.missing,
            epoch=book.epoch,
        )

    # Answers ----------------------------------------------------------------------------------------------

    def _counted(self, ask: Ask, number: int) -> None:
        """What the round carried has been heard, whether it counts or not."""
        book = self._books.get((ask.owner, ask.dataset))
        if book is None:
            return
        for attempt in ask.completed:
            book.completed.pop(attempt, None)
            book.reported.pop(attempt, None)
            if (lease := book.held.pop(attempt, None)) is not None:
                book.counted[attempt] = (number, lease)
        for report in ask.progress:
            if report.attempt in book.held:
                book.reported[report.attempt] = report.done
            if book.progress.get(report.attempt) == report.done:
                del book.progress[report.attempt]

    def _given(self, given: Given, *, asked: bool) -> None:
        key = (given.owner, given.dataset)
        book = self._books.get(key)
        if book is None:
            return
        self._lost(key, tuple(refusal.attempt for refusal in given.refused))
        for lease in given.leases:
            book.held[lease.attempt] = lease
        if asked:  # who only reports goes on waiting
            book.waiting = given.verdict is Verdict.WAIT
        ended = given.verdict is Verdict.END and book.wanted > 0 and not book.news
        if ended:
            book.wanted = 0
        if given.leases or ended:
            self._tell(key, leases=given.leases, ended=ended)

    def _lost(self, key: Key, attempts: tuple[int, ...]) -> None:
        book = self._books.get(key)
        # What was said again may well have been counted before; its process is through with it in any case.
        news = () if book is None else tuple(a for a in attempts if a not in book.counted)
        if book is None or not news:
            return
        for attempt in news:
            if book.held.pop(attempt, None) is not None:
                book.news = True  # so many more are wanted now
            book.progress.pop(attempt, None)
            book.reported.pop(attempt, None)
        self._tell(key, lost=news)

    def _unusable(self, refusal: DatasetRefusal) -> None:
        owners = [owner for owner, name in (*self._specs, *self._books) if name == refusal.dataset]
        for owner in dict.fromkeys(owners):
            self._letters.append((owner, DatasetUnusable(dataset=refusal.dataset, reason=refusal.reason)))

    def _marked(self, sent: Round, answer: RoundAnswer) -> None:
        problems = dict(answer.refused)
        for restore in sent.restores:
            if self._restores.get(restore.owner) is restore:
                del self._restores[restore.owner]
                self._compare = True  # what was held before is void
                self._letters.append((restore.owner, LedgerMark(problem=problems.get(restore.owner))))
        for owner in sent.marks:
            if owner in self._marks:
                del self._marks[owner]
                self._letters.append((owner, LedgerMark(mark=answer.mark)))

    def _tell(
        self, key: Key, *, leases: tuple[Lease, ...] = (), lost: tuple[int, ...] = (), ended: bool = False
    ) -> None:
        owner, dataset = key
        epoch = self._books[key].epoch
        self._letters.append((owner, ShardsGiven(dataset=dataset, leases=leases, lost=lost, ended=ended, epoch=epoch)))


def _grown_before(known: Iterable[Extent], extent: Extent) -> list[Extent]:
    """What is known of the growth of the same partition."""
    place = (extent.dataset, extent.partition)
    return [e for e in known if (e.dataset, e.partition) == place and not e.closed]
