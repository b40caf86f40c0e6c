"""What an informer knows, whatever order it is told in."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.platforms.kubernetes.builders import a_config

from shoal.platforms.kubernetes.cache import (
    Added,
    Cache,
    Change,
    Removed,
    Updated,
    by_label,
    by_owner,
    is_newer,
    key_of,
)
from shoal.platforms.kubernetes.objects import ConfigMap, ObjectMeta, OwnerReference

NAMES = st.sampled_from("abc")


def at(
    version: int | str, *, name: str = "a", uid: str = "u1", generation: int | None = None, **labels: str
) -> ConfigMap:
    meta = ObjectMeta(
        name=name, namespace="n", uid=uid, resource_version=str(version), generation=generation, labels=labels
    )
    return ConfigMap(meta)


class Telling(RuleBasedStateMachine):
    """A server that changes, and a cache that hears of it by events (late, twice, out of order or never), by lists
    that were made at some moment, and by what its own process wrote."""

    @initialize()
    def start(self) -> None:
        self.cache: Cache[ConfigMap] = Cache({"x": by_label("x")})
        self.version = 10
        self.server: dict[str, ConfigMap] = {}
        self.events: list[tuple[str, ConfigMap]] = []
        self.lists: list[tuple[int, list[ConfigMap]]] = []
        self.written: dict[str, int] = {}
        self.told: dict[str, ConfigMap] = {}

    def hear(self, *changes: Change[ConfigMap] | None) -> None:
        for change in changes:
            match change:
                case None:
                    continue
                case Added(object=obj):
                    assert obj.metadata.name not in self.told
                    self.told[obj.metadata.name] = obj
                case Updated(before=before, object=obj):
                    assert self.told[obj.metadata.name] == before
                    self.told[obj.metadata.name] = obj
                case Removed(object=obj):
                    assert self.told.pop(obj.metadata.name) == obj

    @rule(name=NAMES, value=st.sampled_from("12"), by_us=st.booleans())
    def write(self, name: str, value: str, by_us: bool) -> None:
        self.version += 1
        before = self.server.get(name)
        uid = before.metadata.uid if before else f"uid-{self.version}"
        obj = at(self.version, name=name, uid=uid, x=value)
        self.server[name] = obj
        self.events.append(("saw", obj))
        if by_us:
            self.written[uid] = self.version
            self.hear(self.cache.saw(obj))

    @rule(name=NAMES, by_us=st.booleans())
    def delete(self, name: str, by_us: bool) -> None:
        if name not in self.server:
            return
        self.version += 1
        last = self.server.pop(name)
        meta = msgspec.structs.replace(last.metadata, resource_version=str(self.version))
        self.events.append(("end", ConfigMap(meta)))
        if by_us:
            self.hear(self.cache.saw_end(("n", name), last.metadata.uid))

    @rule(data=st.data())
    def an_event_arrives(self, data: st.DataObject) -> None:
        if not self.events:
            return
        index = data.draw(st.integers(0, len(self.events) - 1))
        what, obj = self.events[index]
        if data.draw(st.booleans(), label="only once"):
            del self.events[index]
        if what == "saw":
            self.hear(self.cache.saw(obj))
        else:
            self.hear(self.cache.saw_end(key_of(obj), obj.metadata.uid, obj.metadata.resource_version))

    @rule()
    def an_event_is_lost(self) -> None:
        if self.events:
            self.events.pop()

    @rule()
    def a_list_is_made(self) -> None:
        self.lists.append((self.version, list(self.server.values())))

    @rule()
    def a_list_arrives(self) -> None:
        if self.lists:
            version, objects = self.lists.pop()
            self.hear(*self.cache.saw_all(objects, str(version)))

    @rule()
    def a_fresh_list_settles_everything(self) -> None:
        self.hear(*self.cache.saw_all(list(self.server.values()), str(self.version)))
        assert {obj.metadata.name: obj for obj in self.cache.all()} == self.server

    @invariant()
    def nothing_is_older_than_what_we_wrote(self) -> None:
        for obj in self.cache.all():
            assert int(obj.metadata.resource_version) >= self.written.get(obj.metadata.uid, 0)

    @invariant()
    def the_changes_told_add_up_to_the_cache(self) -> None:
        assert self.told == {obj.metadata.name: obj for obj in self.cache.all()}

    @invariant()
    def the_index_finds_exactly_what_is_there(self) -> None:
        found = [obj for value in "12" for obj in self.cache.found("x", value)]
        assert sorted(key_of(obj) for obj in found) == sorted(key_of(obj) for obj in self.cache.all())
        assert all(obj in self.cache.found("x", obj.metadata.labels["x"]) for obj in self.cache.all())


Telling.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestTelling = Telling.TestCase


def test_a_late_event_of_a_deleted_object_wakes_nothing_up() -> None:
    cache: Cache[ConfigMap] = Cache()
    cache.saw(at(1))
    cache.saw_end(("n", "a"), "u1", "3")
    assert cache.saw(at(2)) is None
    assert len(cache) == 0


def test_an_object_that_left_a_selector_comes_back_in_a_later_version() -> None:
    cache: Cache[ConfigMap] = Cache()
    cache.saw(at(1))
    cache.saw_end(("n", "a"), "u1", "3")
    assert cache.saw(at(4)) == Added(at(4))


def test_the_end_of_an_older_object_of_the_same_name_does_not_end_the_newer() -> None:
    cache: Cache[ConfigMap] = Cache()
    cache.saw(at(1, uid="old"))
    cache.saw(at(5, uid="new"))
    assert cache.saw_end(("n", "a"), "old", "4") is None
    assert cache.all() == [at(5, uid="new")]


def test_who_had_the_name_before_is_gone_when_a_later_one_of_that_name_is_out_of_sight() -> None:
    cache: Cache[ConfigMap] = Cache()
    cache.saw(at(15, uid="u1"))
    gone = cache.saw_end(("n", "a"), "u2", "23")
    assert isinstance(gone, Removed)
    assert cache.saw(at(16, uid="u1")) is None, "a late event of the one before"


def test_a_list_does_not_remove_what_was_written_after_it_was_made() -> None:
    cache: Cache[ConfigMap] = Cache()
    cache.saw(at(9))
    assert cache.saw_all([], "8") == []
    assert cache.saw_all([], "10") == [Removed(at(9))]


def test_the_ends_that_are_remembered_are_bounded() -> None:
    cache: Cache[ConfigMap] = Cache(remembered=2)
    for number in range(5):
        cache.saw_end(("n", "a"), f"u{number}", "7")
    assert cache.saw(at(3, uid="u4")) is None
    assert cache.saw(at(3, uid="u0")) is not None


def test_versions_that_are_no_numbers_are_judged_by_generation() -> None:
    one, two = at("x-1", generation=1).metadata, at("x-2", generation=2).metadata
    assert is_newer(two, one)
    assert not is_newer(one, two)
    assert not is_newer(one, one)
    assert is_newer(at("y").metadata, at("x").metadata)  # nobody can tell: what was heard last


def test_objects_are_found_by_their_owners() -> None:
    cache: Cache[ConfigMap] = Cache({"owner": by_owner})
    owner = OwnerReference("v1", "Pod", "p", "uid-of-p")
    cache.saw(a_config("a", "n", owner=owner))
    assert len(cache.found("owner", "uid-of-p")) == 1
    assert cache.found("owner", "other") == []
