"""Small parts: selectors, back-off, and how the fake merges."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import BadInput
from shoal.platforms.kubernetes.backoff import Backoff
from shoal.platforms.kubernetes.fake_merge import (
    BadPatch,
    json_patched,
    leaves,
    merged,
    strategically_merged,
    value_at,
    without,
)
from shoal.platforms.kubernetes.selectors import parse_selector, selector, selects

WORDS = st.text("abc", min_size=1, max_size=3)


@given(labels=st.dictionaries(WORDS, WORDS), others=st.dictionaries(WORDS, WORDS))
def test_labels_select_themselves_and_whatever_has_more(labels: dict[str, str], others: dict[str, str]) -> None:
    requirements = parse_selector(selector(labels))
    assert selects(requirements, {**others, **labels})
    assert selects(requirements, others) == all(others.get(key) == value for key, value in labels.items())


@pytest.mark.parametrize("text", ["a b", "in (x)", "a in x", "a=b=c", "a in (b", "=b"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not a label selector"):
        parse_selector(text)


@given(failures=st.integers(1, 10_000), chance=st.floats(0, 1))
def test_a_wait_grows_to_its_limit_and_is_never_nothing(failures: int, chance: float) -> None:
    backoff = Backoff(first_seconds=0.2, limit_seconds=30.0)
    wait = backoff.seconds(failures, chance)
    assert 0.1 <= wait <= 30.0
    assert backoff.seconds(failures + 1, chance) >= wait
    assert backoff.seconds(0, chance) == 0.0


def test_a_back_off_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="0 < first <= limit"):
        Backoff(first_seconds=2.0, limit_seconds=1.0)


JSON = st.recursive(
    st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pqr"), inner, max_size=3),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.sampled_from("pqr"), JSON, max_size=3)


@given(target=OBJECTS, patch=OBJECTS)
def test_merging_twice_is_merging_once_and_leaves_its_arguments_alone(target: Any, patch: Any) -> None:
    before = repr((target, patch))
    once = merged(target, patch)
    assert merged(once, patch) == once
    assert strategically_merged(target, patch) == once  # no list here has a key
    assert repr((target, patch)) == before


@given(OBJECTS)
def test_an_object_without_its_leaves_is_empty(obj: Any) -> None:
    found = dict(leaves(obj))
    assert all(value_at(obj, path) == value for path, value in found.items())
    assert without(obj, [path for path in found if path]) == {}


def test_lists_with_a_key_are_merged_by_it() -> None:
    target = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}
    patch = {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]}
    assert strategically_merged(target, patch) == {
        "containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c"}]
    }
    path = ("containers", ("name", "b"), "image")
    assert without(target, [path]) == {"containers": [{"name": "a", "image": "1"}]}


@given(there=st.lists(st.sampled_from("abc")), off=st.lists(st.sampled_from("abc")))
def test_values_are_taken_out_of_plain_lists_and_nothing_else_is_changed(there: list[str], off: list[str]) -> None:
    target, patch = {"x": {"list": there, "other": 1}}, {"x": {"$deleteFromPrimitiveList/list": off}}
    once = strategically_merged(target, patch)
    assert once["x"].get("list", []) == [each for each in there if each not in off]
    assert once["x"]["other"] == 1
    assert strategically_merged(once, patch) == once
    assert target["x"]["list"] is there


def test_json_patches() -> None:
    target = {"a": [1, 2], "b/c": {"d~": 1}}
    add: list[dict[str, Any]] = [
        {"op": "add", "path": "/a/1", "value": 9},
        {"op": "add", "path": "/a/-", "value": 3},
        {"op": "replace", "path": "/b~1c/d~0", "value": 2},
        {"op": "test", "path": "/a/0", "value": 1},
        {"op": "remove", "path": "/a/0"},
    ]
    assert json_patched(target, add) == {"a": [9, 2, 3], "b/c": {"d~": 2}}
    assert target == {"a": [1, 2], "b/c": {"d~": 1}}
    for bad in (
        {"op": "remove", "path": "/x"},
        {"op": "replace", "path": "/a/7", "value": 1},
        {"op": "move", "path": "/a"},
        {"op": "add", "path": "a", "value": 1},
    ):
        with pytest.raises(BadPatch):
            json_patched(target, [bad])
