"""Partitions lie evenly on the servers there are, and do not move without need."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.ps.cluster import Partition
from shoal.core.ps.placement import EVEN_ENOUGH, placed

models = st.lists(st.integers(0, 50), min_size=1, max_size=30).map(
    lambda sizes: tuple(Partition(name=f"v{n}", nbytes=size) for n, size in enumerate(sizes))
)
ranks_of_servers = st.sets(st.integers(0, 9), min_size=1, max_size=6).map(lambda ranks: tuple(sorted(ranks)))


def named(model: tuple[Partition, ...], placement: tuple[int, ...]) -> dict[str, int]:
    return {p.name: rank for p, rank in zip(model, placement, strict=True)}


@given(models, ranks_of_servers, st.none() | ranks_of_servers)
def test_servers_differ_by_no_more_than_a_partition(
    model: tuple[Partition, ...], ranks: tuple[int, ...], earlier: tuple[int, ...] | None
) -> None:
    before = None if earlier is None else named(model, placed(model, earlier))
    placement = placed(model, ranks, before)
    weights = [max(1, p.nbytes) for p in model]
    load = {rank: sum(w for w, at in zip(weights, placement, strict=True) if at == rank) for rank in ranks}
    assert set(placement) <= set(ranks)
    heaviest = max(load, key=lambda rank: load[rank])
    smallest = min(w for w, at in zip(weights, placement, strict=True) if at == heaviest)
    enough = EVEN_ENOUGH * sum(weights) / len(ranks)
    assert load[heaviest] - min(load.values()) <= max(smallest, enough)


@given(models, ranks_of_servers)
def test_nothing_moves_when_the_servers_stay(model: tuple[Partition, ...], ranks: tuple[int, ...]) -> None:
    first = placed(model, ranks)
    assert placed(model, ranks, named(model, first)) == first


@given(st.integers(1, 8), st.integers(1, 20))
def test_a_server_that_is_added_takes_its_share_and_nobody_else_takes_anything(servers: int, each: int) -> None:
    model = tuple(Partition(name=f"v{n}", nbytes=8) for n in range(servers * (servers + 1) * each))
    before = placed(model, range(servers))
    after = placed(model, range(servers + 1), named(model, before))
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert 0.9 * servers * each <= len(moved) <= servers * each
    assert {new for _, new in moved} == {servers}


def test_a_large_model_moves_little_more_than_the_new_servers_share() -> None:
    model = tuple(Partition(name=f"v{n}", nbytes=(n * 7919) % 10007) for n in range(3000))
    before = placed(model, range(9))
    after = placed(model, range(10), named(model, before))
    moved = sum(p.nbytes for p, old, new in zip(model, before, after, strict=True) if old != new)
    assert moved <= 0.12 * sum(p.nbytes for p in model)


def test_the_same_model_is_placed_the_same_way_every_time() -> None:
    model = tuple(Partition(name=f"v{n}", nbytes=n % 7) for n in range(100))
    assert placed(model, (0, 2, 5)) == placed(model, (5, 0, 2))
