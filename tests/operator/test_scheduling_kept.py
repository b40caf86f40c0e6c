"""What a round takes over from the one before is what it would have worked out anew."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.hosts import Amounts, Demand, HostSeen, Placement, Taint, Toleration
from shoal.operator.scheduling.kept import Kept
from shoal.scheduler.rows import Host, Job, JobKey, Room
from shoal.scheduler.snapshot import Snapshot

hosts = st.builds(
    HostSeen,
    name=st.sampled_from("abcd"),
    capacity=st.just(Amounts(1)),
    labels=st.dictionaries(st.sampled_from(("kind", "zone")), st.sampled_from("12"), max_size=2),
    taints=st.sampled_from(((), (Taint("dedicated"),))),
)
placements = st.builds(
    Placement,
    st.lists(
        st.tuples(st.builds(Demand, st.sampled_from(("kind", "zone")), st.just("In"), st.just(("1",)))), max_size=2
    ).map(tuple),
    st.sampled_from(((), (Toleration("dedicated", "Exists"),))),
)
rounds = st.lists(
    st.tuples(st.lists(hosts, unique_by=lambda host: host.name), st.lists(placements, max_size=5)), max_size=5
)


@given(rounds)
def test_who_admits_whom_is_what_the_placements_say(story: list[tuple[list[HostSeen], list[Placement]]]) -> None:
    kept = Kept()
    for seen, asked in story:
        found = kept.admitted(seen, asked)
        for host in seen:
            bits = [placement.admits(host) for placement in dict.fromkeys(asked)]
            assert found[host.name] == sum(admits << number for number, admits in enumerate(bits))


def test_a_host_that_did_not_change_is_not_asked_again() -> None:
    asked: list[str] = []

    class Watched(Placement):
        def admits(self, host: HostSeen) -> bool:
            asked.append(host.name)
            return True

    kept, placement = Kept(), Watched()
    a, b = HostSeen(name="a", capacity=Amounts(1)), HostSeen(name="b", capacity=Amounts(1))
    kept.admitted([a, b], [placement])
    kept.admitted([a, b], [placement])
    assert asked == ["a", "b"]
    kept.admitted([a, HostSeen(name="b", capacity=Amounts(2))], [placement])
    assert asked == ["a", "b", "b"]


def test_placements_that_nobody_asks_for_are_forgotten() -> None:
    kept, host = Kept(), HostSeen(name="a", capacity=Amounts(1))
    for number in range(500):
        own = Placement(((Demand("metadata.name", "In", (f"h-{number}",)),),))
        assert kept.admitted([host], [own]) == {"a": 0}
    assert len(kept._placements) < 100


rows = st.tuples(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)),
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 2)),
)


@given(st.lists(rows, max_size=6))
def test_a_kept_snapshot_is_one_that_was_made_anew(story: list[tuple[dict[str, int], dict[str, int]]]) -> None:
    kept = Kept()
    for machines, sizes in story:
        there = [Host(name=name, capacity=Room(8_000, 8, gpu)) for name, gpu in machines.items()]
        jobs = [
            Job(key=JobKey("default", name), each=Room(1_000), max=4, target=size, placed={"a": size} if size else {})
            for name, size in sizes.items()
        ]
        found = kept.snapshot(there, jobs, (), {}, 1.0)
        anew = Snapshot.of(there, jobs, (), {}, 1.0)
        assert found == anew
        assert found.columns().hosts.tolist() == anew.columns().hosts.tolist()
        assert str(found.columns().jobs.tolist()) == str(anew.columns().jobs.tolist()), "nan is in them"
