"""Who leads: never two by their own clocks, always somebody in the end, and a higher term each time."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platforms.kubernetes.builders import QUICK_CLIENT, a_config, until

from shoal.platforms.kubernetes.client import Client
from shoal.platforms.kubernetes.elector import (
    Create,
    Elector,
    ElectorSettings,
    Held,
    Record,
    Renew,
    Sight,
    Take,
    Wait,
    decide_move,
    seen,
)
from shoal.platforms.kubernetes.errors import LeaseLost
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.objects import CONFIG_MAPS, LEASES

RULES = ElectorSettings()


def record(holder: str = "a", *, term: int = 3, version: str = "7") -> Record:
    return Record(holder=holder, term=term, seconds=15.0, version=version)


@pytest.mark.parametrize(
    ("found", "holds", "now", "move"),
    [
        pytest.param(None, False, 0.0, Create(), id="no-lease-is-made"),
        pytest.param(record("a"), True, 100.0, Renew(), id="ours-is-renewed-however-late"),
        pytest.param(record("a"), False, 0.0, Take(4), id="ours-from-an-earlier-life-is-taken-anew"),
        pytest.param(record(""), False, 0.0, Take(4), id="one-that-was-given-up-is-taken"),
        pytest.param(record("b"), False, 10.0, Wait("b", 5.0), id="anothers-is-left-alone"),
        pytest.param(record("b"), True, 10.0, Wait("b", 5.0), id="anothers-is-left-alone-by-who-thought-it-held-it"),
        pytest.param(record("b"), False, 15.0, Take(4), id="anothers-that-stood-still-is-taken"),
    ],
)
def test_moves(found: Record | None, holds: bool, now: float, move: object) -> None:
    assert decide_move(Sight(found, 0.0), "a", holds=holds, now=now) == move


def test_time_runs_while_nothing_changes_and_any_change_starts_it_anew() -> None:
    first = seen(None, record(version="1"), 10.0)
    assert seen(first, record(version="1"), 20.0) == first
    assert seen(first, record(version="2"), 20.0) == Sight(record(version="2"), 20.0)


@dataclass
class Candidate:
    name: str
    offset: float
    """Its clock shows something else than everybody's: only differences may matter."""
    sight: Sight | None = None
    held: Held | None = None
    version: str | None = None
    terms: list[int] = field(default_factory=list)

    def leads(self, now: float) -> bool:
        return self.held is not None and now + self.offset < self.held.until


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0.0, 6.0), st.floats(0.0, 6.0), st.booleans()), min_size=1, max_size=80
)


@settings(max_examples=200)
@given(offsets=st.tuples(*[st.floats(-1000, 1000)] * 3), steps=STEPS)
def test_never_do_two_lead_at_once_whatever_is_slow(
    offsets: tuple[float, float, float], steps: list[tuple[int, float, float, bool]]
) -> None:
    """Candidates look and write in any order; between a look and its write time passes, and answers get lost."""
    everybody = [Candidate(name, offset) for name, offset in zip("abc", offsets, strict=True)]
    lease: Record | None = None
    now = 0.0
    for who, before, between, answered in steps:
        me = everybody[who]
        now += before
        began = now + me.offset
        if me.held is not None and began >= me.held.until:
            me.held = None
        me.sight = seen(me.sight, lease, now + me.offset)
        move = decide_move(me.sight, me.name, holds=me.held is not None, now=now + me.offset)
        read = lease
        now += between
        assert sum(each.leads(now) for each in everybody) <= 1
        if isinstance(move, Wait):
            me.held = None
            continue
        if lease != read:
            continue  # the write is refused: somebody was faster
        term = move.term if isinstance(move, Take) else (read.term if read else 0)
        lease = Record(holder=me.name, term=term, seconds=RULES.lease_seconds, version=f"{now}-{who}")
        if answered:
            if not isinstance(move, Renew):
                assert all(term > earlier for each in everybody for earlier in each.terms)
                me.terms.append(term)
            me.sight = seen(me.sight, lease, now + me.offset)
            me.held = Held(began + RULES.renew_seconds, term)
        assert sum(each.leads(now) for each in everybody) <= 1


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="retry < renew < lease"):
        ElectorSettings(lease_seconds=10, renew_seconds=10)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """A clock that jumps when it is looked at."""

    def __init__(self, clock: Clock, *, asked: list[float]) -> None:
        self._clock, self._jumps = clock, asked

    def __call__(self) -> float:
        self._clock.now += self._jumps.pop(0) if self._jumps else 0.0
        return self._clock.now


def elector(client: Client, name: str, clock: Clock) -> Elector:
    rules = ElectorSettings(lease_seconds=15.0, renew_seconds=10.0, retry_seconds=0.02)
    return Elector(client, name="lead", namespace="default", identity=name, settings=rules, clock=clock)


async def test_a_lease_that_ran_out_in_the_middle_is_noticed_before_the_next_write() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        clock, begun = Clock(), asyncio.Event()
        mine = elector(client, "a", clock)
        fenced = client.fenced(mine.check)
        refused: list[LeaseLost] = []

        async def reconcile() -> None:
            await fenced.create(CONFIG_MAPS, a_config("first", "default"))
            clock.now += 11.0  # the machine was suspended, say
            try:
                await fenced.create(CONFIG_MAPS, a_config("second", "default"))
            except LeaseLost as exc:
                refused.append(exc)
            begun.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(mine.run(reconcile))
        await begun.wait()
        assert len(refused) == 1
        assert [each["metadata"]["name"] for each in server.objects(CONFIG_MAPS)] == ["first"]
        running.cancel()
        await asyncio.wait({running})


async def test_a_lease_that_took_longer_to_get_than_it_lasts_is_not_led_with() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        clock, led = Clock(), asyncio.Event()
        slow = Slow(clock, asked=[0.0, 0.0, 11.0])  # this process stood still while it wrote
        mine = Elector(
            client,
            name="lead",
            namespace="default",
            identity="a",
            settings=ElectorSettings(lease_seconds=15.0, renew_seconds=10.0, retry_seconds=0.02),
            clock=slow,
        )

        async def lead() -> None:
            assert mine.is_leader()
            led.set()

        await mine.run(lead)
        assert led.is_set()
        (stored,) = server.objects(LEASES)
        assert stored["spec"]["leaseTransitions"] >= 1, "the first one was not led with"


async def test_who_loses_the_lease_is_cancelled_and_campaigns_again() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        clock = Clock()
        mine = elector(client, "a", clock)
        ended: list[int] = []

        async def lead() -> None:
            term = mine.term
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(term)

        running = asyncio.create_task(mine.run(lead))
        await until(mine.is_leader)
        (stored,) = server.objects(LEASES)
        shelf = server.store.shelf("coordination.k8s.io", "v1", "leases")
        stolen = {
            "spec": {"holderIdentity": "thief", "leaseTransitions": stored["spec"].get("leaseTransitions", 0) + 1}
        }
        server.store.patch(shelf, ("default", "lead"), "application/merge-patch+json", stolen, None)
        await until(lambda: ended == [0])
        assert not mine.is_leader()
        assert mine.holder == "thief"
        clock.now += 16.0  # the thief says no more
        await until(mine.is_leader)
        assert mine.term >= 2  # more, if the jump of the clock has eaten the first one
        running.cancel()
        await asyncio.wait({running})
        assert server.objects(LEASES)[0]["spec"]["holderIdentity"] == ""  # given up on the way out


async def test_a_leader_cut_off_from_the_server_stops_leading_by_its_own_clock() -> None:
    clock = Clock()
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        mine = elector(client, "a", clock)
        ended = asyncio.Event()

        async def lead() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        running = asyncio.create_task(mine.run(lead))
        await until(mine.is_leader)
        server.tokens = {}  # nobody is let in any more
        clock.now += 10.0
        assert not mine.is_leader()
        await ended.wait()
        running.cancel()
        await asyncio.wait({running})


async def test_when_leading_ends_so_does_the_campaign_and_what_it_raised_is_not_lost() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:

        async def ends() -> None:
            return None

        async def breaks() -> None:
            raise TypeError("a bug")

        await elector(client, "a", Clock()).run(ends)
        with pytest.raises(TypeError, match="a bug"):
            await elector(client, "b", Clock()).run(breaks)
        assert server.objects(LEASES)[0]["spec"]["holderIdentity"] == ""


async def test_it_tells_for_how_long_nothing_was_tried_as_when_what_it_leads_does_not_end() -> None:
    async with FakeApiServer() as server, Client(server.access(), QUICK_CLIENT) as client:
        clock, may_end, told = Clock(), asyncio.Event(), asyncio.Event()
        mine = elector(client, "a", clock)
        clock.now += 30.0
        assert mine.idle_seconds() == 30.0

        async def lead() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                told.set()
                await may_end.wait()

        running = asyncio.create_task(mine.run(lead))
        try:
            await until(mine.is_leader)
            assert mine.idle_seconds() == 0.0
            shelf = server.store.shelf("coordination.k8s.io", "v1", "leases")
            stolen = {"spec": {"holderIdentity": "thief"}}
            server.store.patch(shelf, ("default", "lead"), "application/merge-patch+json", stolen, None)
            await asyncio.wait_for(told.wait(), 60)
            clock.now += 100.0
            assert mine.idle_seconds() == 100.0
            may_end.set()
            await until(lambda: mine.idle_seconds() == 0.0)
        finally:
            may_end.set()
            running.cancel()
            await asyncio.wait({running})
