"""What places keep: nothing of it is lost while nobody takes them, and nobody gets less than the role has."""

from hypothesis import given
from hypothesis import strategies as st
from tests.operator.builders import NOW

from shoal.api.elasticjob import Role
from shoal.api.resources import Resource
from shoal.operator.asks import ROLES, Asks, Wanted
from shoal.operator.crew import Crew, pod_name
from shoal.operator.memory import Member, Memory
from shoal.operator.seats import coming_back, left_behind

ranks = st.integers(0, 5)
resources = st.builds(
    Resource, cpu=st.one_of(st.none(), st.integers(1, 8).map(float)), memory=st.one_of(st.none(), st.integers(1, 9))
)
seats = st.dictionaries(st.tuples(st.sampled_from(ROLES), ranks), resources.filter(lambda each: not each.is_silent))


def a_memory(members: dict[int, Resource], kept: dict[tuple[Role, int], Resource]) -> Memory:
    """Workers at these ranks."""
    made = [
        Member(name=pod_name("j", Role.WORKER, rank), role=Role.WORKER, id=rank, rank=rank, resource=resource)
        for rank, resource in members.items()
    ]
    return Memory(members=tuple(made), next_id={Role.WORKER: 100}, seats=kept)


@given(st.dictionaries(ranks, resources), seats, st.sets(ranks))
def test_who_leaves_leaves_it_to_the_place_and_who_stays_keeps_it(
    members: dict[int, Resource], kept: dict[tuple[Role, int], Resource], leaving: set[int]
) -> None:
    memory = a_memory(members, kept)
    crew = Crew("j", memory, (), now=NOW)
    for member in crew.members:
        if member.rank in leaving:
            crew.leave(member, "it has to")
    left = left_behind(memory, crew)
    for rank, resource in members.items():
        expected = resource if rank in leaving and not resource.is_silent else None
        assert left.get((Role.WORKER, rank)) == expected
    others = {seat: each for seat, each in kept.items() if seat[0] is not Role.WORKER or seat[1] not in members}
    assert others.items() <= left.items()
    assert not any(each.is_silent for each in left.values())


@given(seats, st.one_of(st.none(), st.integers(1, 9)))
def test_nobody_comes_back_with_less_memory_than_it_had_or_than_the_role_has(
    kept: dict[tuple[Role, int], Resource], now: int | None
) -> None:
    wanted = Resource(memory=now)
    back = coming_back(kept, Asks(roles={role: Wanted(resource=wanted) for role in ROLES}, accepted=()))
    assert back.keys() == kept.keys()
    for seat, resource in back.items():
        assert resource.cpu == kept[seat].cpu
        assert (resource.over(wanted).memory or 0) == max(kept[seat].memory or 0, now or 0)
