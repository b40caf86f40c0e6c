"""Leases, reports, late reports, deaths, deadlines, reconnections, checkpoints and restores in any order.

The model is a second reading of the rules, in sets of positions instead of cursors: what is counted, who holds what,
what is in TODO in which order. After every step the ledger's account must be the model's, to the position.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.ledger.builders import LEASE_TIME, NOW, a_dataset

from shoal.core.ledger import (
    Ask,
    Checkpoint,
    Lease,
    Ledger,
    Owner,
    Progress,
    Shuffle,
    Verdict,
    Wake,
    account_of,
    checkpoint,
    deadline,
    exchange,
    fenced,
    is_complete,
    lost,
    order_of,
    poisons,
    reconnected,
    records,
    registered,
    restored,
    ticked,
)
from shoal.core.ledger.intervals import merged

OWNERS = [Owner(f"worker-{n}") for n in range(3)]
owners = st.sampled_from(OWNERS)


@dataclass
class Model:
    """What ought to be true. Shards are their (start, stop) on the line."""

    epoch: int = 0
    counted: set[int] = field(default_factory=set)
    """Positions of this epoch that are trained by the account."""
    live: dict[int, tuple[Owner, Lease]] = field(default_factory=dict)
    """The leases that count, as the model knows their progress and deadline, by attempt."""
    front: list[set[int]] = field(default_factory=list)
    """Shards that came back, the latest first; those of one event in one set."""
    fresh: int = 0
    failures: dict[int, int] = field(default_factory=dict)
    poisoned: bool = False

    def mine(self, owner: Owner) -> list[Lease]:
        return [lease for _, (holder, lease) in sorted(self.live.items()) if holder == owner]

    def count(self, positions: range) -> None:
        assert not self.counted & set(positions), "a record counted twice"
        self.counted |= set(positions)


class LedgerMachine(RuleBasedStateMachine):
    @initialize(
        size=st.integers(1, 24),
        shard=st.integers(1, 6),
        epochs=st.integers(1, 3),
        shuffle=st.sampled_from(Shuffle),
        drop_last=st.booleans(),
        max_attempts=st.integers(1, 3),
    )
    def begin(self, size: int, shard: int, epochs: int, shuffle: Shuffle, drop_last: bool, max_attempts: int) -> None:
        self.spec = a_dataset(
            size,
            min(size, shard),
            epochs=epochs,
            shuffle=shuffle,
            drop_last=drop_last,
            max_attempts=max_attempts,
            seed=9,
        )
        self.ledger = registered(Ledger(), self.spec)
        self.now: datetime = NOW
        self.model = Model()
        self.known: dict[Owner, dict[int, Lease]] = {owner: {} for owner in OWNERS}
        """What each owner was ever leased and has not completed: also what was taken from it meanwhile."""
        self.waiting: set[Owner] = set()
        self.saved: list[tuple[bytes, Model]] = []
        self.floor = 0
        self.term = 0
        self.woken: tuple[Wake, ...] = ()
        self.begin_epoch(0)

    # What happens ---------------------------------------------------------------------------------------------

    @rule(owner=owners, want=st.integers(0, 4), data=st.data())
    def ask_anything(self, owner: Owner, want: int, data: st.DataObject) -> None:
        """Any mixture of completions and progress, current, late and false, and a wish."""
        reports = self.some_of(owner, data)
        completed = tuple(a for a in reports if data.draw(st.booleans()))
        progress = tuple(
            Progress(a, data.draw(st.integers(-1, self.length(self.known[owner][a]) + 1)))
            for a in reports
            if a not in completed
        )
        self.ask(owner, want, completed, progress)

    @rule(owner=owners, want=st.integers(1, 4))
    def take_more(self, owner: Owner, want: int) -> None:
        self.ask(owner, want)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), share=st.floats(0, 1))
    def work(self, data: st.DataObject, share: float) -> None:
        """Somebody gets on with what it holds; its reports may overtake one another."""
        attempt = data.draw(st.sampled_from(sorted(self.model.live)))
        owner, lease = self.model.live[attempt]
        self.ask(owner, 0, (), (Progress(attempt, round(share * self.length(lease))),))

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), want=st.integers(0, 2))
    def finish_one(self, data: st.DataObject, want: int) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.model.live)))
        self.ask(self.model.live[attempt][0], want, (attempt,))

    @precondition(lambda self: any(a not in self.model.live for known in self.known.values() for a in known))
    @rule(data=st.data(), completes=st.booleans())
    def report_late(self, data: st.DataObject, completes: bool) -> None:
        late = [(o, a) for o, known in self.known.items() for a in sorted(known) if a not in self.model.live]
        owner, attempt = data.draw(st.sampled_from(late))
        self.ask(owner, 0, (attempt,) if completes else (), () if completes else (Progress(attempt, 1),))

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def crash_at_work(self, data: st.DataObject) -> None:
        self.die(self.model.live[data.draw(st.sampled_from(sorted(self.model.live)))][0], True)

    @rule(owner=owners)
    def leave(self, owner: Owner) -> None:
        self.die(owner, False)

    def die(self, owner: Owner, charged: bool) -> None:
        self.ledger, woken = lost(self.ledger, owner, charged=charged, reason="it died")
        self.waiting.discard(owner)
        self.give_back([lease.attempt for lease in self.model.mine(owner)], blamed=charged)
        self.expect_woken(woken)

    @rule(seconds=st.integers(0, 200))
    def time_passes(self, seconds: int) -> None:
        self.now += LEASE_TIME * seconds / 60
        due = deadline(self.ledger)
        self.ledger, woken = ticked(self.ledger, self.now)
        gone: list[int] = []
        blamed: list[int] = []
        for owner in OWNERS:
            mine = self.model.mine(owner)
            passed = [lease.attempt for lease in mine if lease.deadline <= self.now]
            if passed and passed[0] == mine[0].attempt:
                passed = [lease.attempt for lease in mine]
                blamed.append(passed[0])
            gone += passed
        assert not gone or (due is not None and due <= self.now)
        self.give_back(gone, blamed=blamed)
        self.expect_woken(woken)

    @rule(owner=owners, data=st.data())
    def reconnect(self, owner: Owner, data: st.DataObject) -> None:
        """It claims what it likes of all it ever had."""
        claims = (
            data.draw(st.lists(st.sampled_from(sorted(self.known[owner])), unique=True)) if self.known[owner] else []
        )
        held = {lease.attempt for lease in self.model.mine(owner)}
        self.ledger, answer = reconnected(self.ledger, owner, "train", [self.known[owner][a] for a in claims], self.now)
        self.give_back(sorted(held - set(claims)), blamed=False)
        kept = sorted(a for a in sorted(claims, reverse=True) if self.adopt(owner, a))
        for place, attempt in enumerate(kept, 1):
            lease = replace(self.model.live[attempt][1], deadline=self.now + LEASE_TIME * place)
            self.model.live[attempt] = (owner, lease)
        assert [lease.attempt for lease in answer.kept] == kept
        assert {refusal.attempt for refusal in answer.refused} == set(claims) - set(kept)
        self.turn_epoch()
        self.expect_woken(answer.woken)

    @rule()
    def save(self) -> None:
        model = deepcopy(self.model)
        if model.live:
            open_shards = {lease.start for _, lease in model.live.values() if lease.done < self.length(lease)}
            model.front = [open_shards, *model.front] if open_shards else model.front
            model.live = {}
        model.failures, model.poisoned = {}, False
        self.saved.append((msgspec.msgpack.encode(checkpoint(self.ledger)), model))

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), anew=st.booleans())
    def restore(self, data: st.DataObject, anew: bool) -> None:
        """Back to any checkpoint, in this ledger or in a new one (whose workers are new too)."""
        saved, model = data.draw(st.sampled_from(self.saved))
        mark = msgspec.msgpack.decode(saved, type=Checkpoint)
        if anew:
            self.ledger, self.waiting = Ledger(), set()
            self.known = {owner: {} for owner in OWNERS}
        self.ledger, woken = restored(self.ledger, mark)
        assert {wake.owner for wake in woken} == self.waiting
        self.waiting = set()
        self.floor = self.ledger.dynamic["train"].attempts
        self.model = deepcopy(model)
        self.turn_epoch()

    @rule()
    def fail_over(self) -> None:
        """Another master reads the whole ledger and goes on."""
        self.term += 1
        ledger = msgspec.msgpack.decode(msgspec.msgpack.encode(self.ledger), type=Ledger)
        assert ledger == self.ledger
        self.ledger = fenced(ledger, self.term)

    def ask(
        self, owner: Owner, want: int, completed: tuple[int, ...] = (), progress: tuple[Progress, ...] = ()
    ) -> None:
        ask = Ask(owner=owner, dataset="train", completed=completed, progress=progress, want=want)
        self.ledger, answer = exchange(self.ledger, ask, self.now)
        wrong = {a for a in completed if not self.complete(owner, a)}
        wrong |= {p.attempt for p in progress if not self.progress(owner, p)}
        assert {refusal.attempt for refusal in answer.refused} == wrong
        self.turn_epoch()
        if want:
            self.waiting.discard(owner)
        for lease in answer.leases:
            self.lease(owner, lease)
        assert len(answer.leases) <= want
        self.check_verdict(owner, want, answer.verdict, len(answer.leases))
        self.expect_woken(answer.woken)

    def some_of(self, owner: Owner, data: st.DataObject) -> list[int]:
        """Some of all attempts it ever had and has not completed, in any order."""
        known = sorted(self.known[owner])
        return data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []

    # What must be true ----------------------------------------------------------------------------------------

    @invariant()
    def account_is_the_models(self) -> None:
        account = account_of(self.ledger, "train")
        assert account.epoch == self.model.epoch
        assert account.done == (merged((p, p + 1) for p in self.model.counted),)
        assert account.line == self.line

    @invariant()
    def end_is_said_when_all_is_complete(self) -> None:
        assert is_complete(self.ledger) == self.over()
        assert bool(poisons(self.ledger)) == self.model.poisoned

    @invariant()
    def nobody_waits_who_could_go_on(self) -> None:
        assert set(self.ledger.dynamic["train"].waiting) == self.waiting
        assert not self.waiting or not (self.todo() or self.over() or self.model.poisoned)

    @invariant()
    def the_state_is_as_small_as_what_is_in_flight(self) -> None:
        mark = checkpoint(self.ledger).dynamic[0]
        assert len(mark.open_shards) <= len(self.model.live) + sum(map(len, self.model.front))

    def teardown(self) -> None:
        """Everybody dies; one that never fails finishes the job: nothing is missing, nothing came twice."""
        if not hasattr(self, "spec") or self.model.poisoned:
            return
        for owner in OWNERS:
            self.ledger, _ = lost(self.ledger, owner, charged=False, reason="the end")
            self.give_back([lease.attempt for lease in self.model.mine(owner)], blamed=False)
        while True:
            ask = Ask(owner=Owner("last"), dataset="train", want=3)
            self.ledger, answer = exchange(self.ledger, ask, self.now)
            if answer.verdict is Verdict.END:
                break
            assert answer.leases
            for lease in answer.leases:
                self.lease(Owner("last"), lease)
            done = Ask(owner=Owner("last"), dataset="train", completed=tuple(x.attempt for x in answer.leases))
            self.ledger, answer = exchange(self.ledger, done, self.now)
            assert not answer.refused
            for attempt in done.completed:
                assert self.complete(Owner("last"), attempt)
            self.turn_epoch()
        assert self.over()
        account = account_of(self.ledger, "train")
        trained = sorted(records(self.spec, account.epoch, account.done[0]))
        assert len(trained) == self.line
        assert self.spec.drop_last or trained == list(range(self.spec.records))

    # The model's own rules --------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        order = order_of(self.spec, epoch)
        self.line = order.length
        self.starts = [order.bounds(n)[0] for n in range(order.shards)]
        self.model = replace(self.model, epoch=epoch, fresh=0, failures={}, counted=set())

    def turn_epoch(self) -> None:
        order = order_of(self.spec, self.model.epoch)
        self.line, self.starts = order.length, [order.bounds(n)[0] for n in range(order.shards)]
        if len(self.model.counted) == self.line and not self.model.live and self.model.epoch + 1 < self.spec.epochs:
            self.begin_epoch(self.model.epoch + 1)

    def over(self) -> bool:
        last = self.model.epoch + 1 == self.spec.epochs
        return last and len(self.model.counted) == self.line and not self.model.live

    def todo(self) -> bool:
        return bool(self.model.front) or self.model.fresh < len(self.starts)

    @staticmethod
    def length(lease: Lease) -> int:
        return lease.stop - lease.start

    def complete(self, owner: Owner, attempt: int) -> bool:
        self.known[owner].pop(attempt, None)
        holder, lease = self.model.live.get(attempt, (None, None))
        if holder != owner or lease is None:
            return False
        del self.model.live[attempt]
        self.model.count(range(lease.start + lease.done, lease.stop))
        return True

    def progress(self, owner: Owner, report: Progress) -> bool:
        holder, lease = self.model.live.get(report.attempt, (None, None))
        if holder != owner or lease is None or not 0 <= report.done <= self.length(lease):
            return False
        if report.done > lease.done:
            self.model.count(range(lease.start + lease.done, lease.start + report.done))
            until = max(lease.deadline, self.now + LEASE_TIME)
            self.model.live[report.attempt] = (owner, replace(lease, done=report.done, deadline=until))
        return True

    def lease(self, owner: Owner, lease: Lease) -> None:
        """It must be the front of TODO, at the progress that the account has, under a number never used."""
        assert lease.epoch == self.model.epoch
        assert not self.model.poisoned
        if self.model.front:
            assert lease.start in self.model.front[0], "not the front of TODO"
            self.take(lease.start)
        else:
            assert lease.start == self.starts[self.model.fresh]
            self.model.fresh += 1
        assert set(range(lease.start, lease.start + lease.done)) <= self.model.counted
        assert not self.model.counted & set(range(lease.start + lease.done, lease.stop))
        assert lease.attempt > max([self.floor, *self.model.live, *(a for k in self.known.values() for a in k)])
        assert lease.deadline == self.now + LEASE_TIME * (len(self.model.mine(owner)) + 1)
        self.model.live[lease.attempt] = (owner, lease)
        self.known.setdefault(owner, {})[lease.attempt] = lease

    def take(self, start: int) -> None:
        self.model.front = [rest for group in self.model.front if (rest := group - {start})]

    def give_back(self, attempts: list[int], *, blamed: bool | list[int]) -> None:
        """`blamed`: the first one, or these."""
        back: set[int] = set()
        guilty = blamed if isinstance(blamed, list) else attempts[:1] if blamed else []
        for attempt in attempts:
            _, lease = self.model.live.pop(attempt)
            if lease.done == self.length(lease):
                continue
            back.add(lease.start)
            if attempt in guilty:
                self.model.failures[lease.start] = self.model.failures.get(lease.start, 0) + 1
                self.model.poisoned |= self.model.failures[lease.start] >= self.spec.leases.max_attempts
        if back:
            self.model.front.insert(0, back)
        self.turn_epoch()

    def adopt(self, owner: Owner, attempt: int) -> bool:
        claim = self.known[owner][attempt]
        if self.model.live.get(attempt, (None,))[0] == owner:
            return True
        shard = set(range(claim.start, claim.stop))
        others = [a for a, (_, lease) in self.model.live.items() if lease.start == claim.start]
        is_open = bool(others) or not shard <= self.model.counted
        if attempt <= self.floor or claim.epoch != self.model.epoch or not is_open or max(others, default=0) > attempt:
            return False
        for other in others:
            del self.model.live[other]
        self.take(claim.start)
        self.model.live[attempt] = (owner, replace(claim, done=len(shard & self.model.counted)))
        return True

    def check_verdict(self, owner: Owner, want: int, verdict: Verdict, leased: int) -> None:
        if self.model.poisoned:
            assert verdict is Verdict.POISONED
        elif self.over():
            assert verdict is Verdict.END
        elif leased or not want:
            assert verdict is Verdict.GO
        else:
            assert verdict is Verdict.WAIT
            assert self.model.live
            self.waiting.add(owner)

    def expect_woken(self, woken: tuple[Wake, ...]) -> None:
        expected = self.waiting if self.todo() or self.over() or self.model.poisoned else set()
        assert {wake.owner for wake in woken} == expected
        self.waiting = self.waiting - expected


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=150, stateful_step_count=30)
