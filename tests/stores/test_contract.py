"""What every `StateStore` promises, by one suite for all of them."""

import pytest
from tests.stores.conftest import OpenStore

from shoal.core.errors import StateTaken, Superseded


async def test_a_new_job_has_no_records_and_the_first_term(open_store: OpenStore) -> None:
    claimed = await open_store().claim()
    assert (claimed.term, claimed.records, claimed.lost, claimed.trouble) == (1, (), None, None)


async def test_the_next_master_finds_all_records_in_order(open_store: OpenStore) -> None:
    first = open_store()
    await first.claim()
    records = tuple(bytes([number]) * number for number in range(1, 40))
    for record in records:
        await first.append(record)
    await first.close()
    second = open_store()
    claimed = await second.claim()
    assert (claimed.term, claimed.records) == (2, records)
    await second.append(b"more")
    await second.close()
    third = await open_store().claim()
    assert (third.term, third.records) == (3, (*records, b"more"))


async def test_compacting_leaves_one_record_to_which_others_are_added(open_store: OpenStore) -> None:
    first = open_store()
    await first.claim()
    for number in range(20):
        await first.append(b"%d" % number)
    await first.compact(b"all")
    await first.append(b"one more")
    await first.close()
    assert (await open_store().claim()).records == (b"all", b"one more")


async def test_large_and_empty_records_come_back(open_store: OpenStore) -> None:
    first = open_store()
    await first.claim()
    records = (b"", b"\0" * 300_000, b"\n")
    for record in records:
        await first.append(record)
    await first.close()
    assert (await open_store().claim()).records == records


async def test_of_two_masters_at_once_one_can_write(open_store: OpenStore) -> None:
    first, second = open_store(), open_store()
    await first.claim()
    await first.append(b"before")
    try:
        claimed = await second.claim()
    except StateTaken:
        await first.append(b"after")  # whoever is alive keeps it
        return
    assert (claimed.term, claimed.records) == (2, (b"before",))
    with pytest.raises(Superseded):
        await first.append(b"late")
    with pytest.raises(Superseded):
        await first.compact(b"late")
    await second.append(b"mine")
    await second.close()
    assert (await open_store().claim()).records == (b"before", b"mine")


async def test_a_raised_term_is_the_owners_and_the_next_masters_is_above_it(open_store: OpenStore) -> None:
    first = open_store()
    await first.claim()
    await first.append(b"one")
    await first.raise_term(7)
    await first.append(b"two")
    await first.close()
    second = open_store()
    claimed = await second.claim()
    assert (claimed.term, claimed.records) == (8, (b"one", b"two"))
    await second.compact(b"all")
    await second.close()
    third = await open_store().claim()
    assert (third.term, third.records) == (9, (b"all",))


async def test_whoever_was_superseded_cannot_raise_its_term(open_store: OpenStore) -> None:
    first, second = open_store(), open_store()
    await first.claim()
    try:
        await second.claim()
    except StateTaken:
        await first.raise_term(5)  # whoever is alive keeps it
        return
    with pytest.raises(Superseded):
        await first.raise_term(5)
    await second.append(b"mine")


async def test_claiming_again_and_again_loses_nothing(open_store: OpenStore) -> None:
    for number in range(1, 5):
        store = open_store()
        claimed = await store.claim()
        assert claimed.term == number
        assert len(claimed.records) == number - 1
        await store.append(b"%d" % number)
        await store.close()
