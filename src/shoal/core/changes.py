"""What changed between two values of one dataclass, as bytes; and the later value from the earlier one and those bytes.

A patch says only what is new: of a mapping the entries that were put and dropped, of a tuple the part that was not
there before, of a dataclass inside (also as a mapping's value) its own patch, of anything else the whole. Values that
were not touched are the same objects before and after (`replace` keeps them), so finding a change costs one look at
each entry and no more.

Exact in every respect that anybody can observe: also the order of mappings, which is the order in which things came.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T")
Clean = Callable[[Any], Any]

_encoder = msgspec.msgpack.Encoder()


class Patch(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """By name of field."""

    whole: dict[str, msgspec.Raw] = {}
    put: dict[str, list[tuple[msgspec.Raw, msgspec.Raw]]] = {}
    drop: dict[str, list[msgspec.Raw]] = {}
    tail: dict[str, tuple[int, int, msgspec.Raw]] = {}
    """Of the tuple before: how many to skip, how many to keep; then what follows."""
    inner: dict[str, "Patch"] = {}
    entries: dict[str, list[tuple[msgspec.Raw, "Patch"]]] = {}
    """Of a mapping to dataclasses, the entries that were there before and have changed."""

    @property
    def touched(self) -> frozenset[str]:
        return frozenset((*self.whole, *self.put, *self.drop, *self.tail, *self.inner, *self.entries))


class Differ(Generic[T]):
    """Patches for one frozen dataclass.

    `clean`: for fields that are mappings, what of an entry is worth keeping; the rest of it never makes a patch.
    `deep`: fields, here or inside, that hold a dataclass or None: of these, too, only what changed inside is told.
    """

    def __init__(
        self, kind: type[T], *, clean: Mapping[str, Clean] | None = None, deep: frozenset[str] = frozenset()
    ) -> None:
        self._whole: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        self._mappings: dict[str, _Entries] = {}
        self._tuples: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        self._inner: dict[str, Differ[Any]] = {}
        hints = get_type_hints(kind)
        for field in fields(kind):  # type: ignore[arg-type]
            name, hint = field.name, hints[field.name]
            if get_origin(hint) in (Mapping, dict):
                self._mappings[name] = _Entries(*get_args(hint), clean=(clean or {}).get(name), deep=deep)
            elif get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
                self._tuples[name] = msgspec.msgpack.Decoder(hint)
            elif isinstance(hint, type) and is_dataclass(hint):
                self._inner[name] = Differ(hint, deep=deep)
            elif name in deep:
                self._inner[name] = Differ(_unless_none(hint), deep=deep)
            # A mapping or tuple may also be told as a whole.
            self._whole[name] = msgspec.msgpack.Decoder(hint)

    def cleaned(self, value: T) -> T:
        """The value without what is not worth keeping."""
        changes = {
            name: {key: entries.clean(entry) for key, entry in getattr(value, name).items()}
            for name, entries in self._mappings.items()
            if entries.clean is not None
        }
        return replace(value, **changes) if changes else value  # type: ignore[type-var]

    def between(self, before: T, after: T) -> Patch | None:
        """What makes `after` of `before`; None: nothing does."""
        patch = Patch(whole={}, put={}, drop={}, tail={}, inner={}, entries={})
        for name in self._whole:
            old, new = getattr(before, name), getattr(after, name)
            if old is new:
                continue
            if name in self._mappings:
                self._mappings[name].between(name, old, new, patch)
            elif name in self._tuples:
                _tail(name, old, new, patch)
            elif name in self._inner and old is not None and new is not None:
                inner = self._inner[name].between(old, new)
                if inner is not None:
                    patch.inner[name] = inner
            elif old != new:
                patch.whole[name] = _raw(new)
        return patch if patch.touched else None

    def applied(self, before: T, patch: Patch) -> T:
        """Raises `msgspec.ValidationError` or `KeyError` when the patch is not one of this dataclass."""
        changes: dict[str, Any] = {name: self._whole[name].decode(value) for name, value in patch.whole.items()}
        for name in {**patch.put, **patch.drop, **patch.entries}:
            changes[name] = self._mappings[name].applied(
                getattr(before, name), patch.put.get(name, ()), patch.drop.get(name, ()), patch.entries.get(name, ())
            )
        for name, (skip, keep, rest) in patch.tail.items():
            kept = getattr(before, name)[skip : skip + keep]
            changes[name] = (*kept, *self._tuples[name].decode(rest))
        for name, inner in patch.inner.items():
            changes[name] = self._inner[name].applied(getattr(before, name), inner)
        return replace(before, **changes)  # type: ignore[type-var]


def _unless_none(hint: Any) -> Any:
    """What a field of type `X | None` holds when it holds something."""
    (kind,) = (each for each in get_args(hint) if each is not type(None))
    return kind


class _Entries:
    """One field that is a mapping."""

    def __init__(self, key: Any, value: Any, *, clean: Clean | None, deep: frozenset[str]) -> None:
        self.clean = clean
        self._key = msgspec.msgpack.Decoder(key)
        self._value = msgspec.msgpack.Decoder(value)
        self._inner: Differ[Any] | None = None
        if clean is None and isinstance(value, type) and is_dataclass(value):
            self._inner = Differ(value, deep=deep)

    def between(self, name: str, old: Mapping[Any, Any], new: Mapping[Any, Any], patch: Patch) -> None:
        if list(old) == list(new):
            moved: frozenset[Any] = frozenset()
        else:
            # An entry that was dropped and came again stands at the end now: it is put anew.
            staying = [key for key in old if key in new]
            moved = frozenset(staying) if list(new)[: len(staying)] != staying else frozenset()
        dropped = [key for key in old if key not in new or key in moved]
        put = [(key, value) for key, value in new.items() if key in moved or self._is_new(old, key, value)]
        if dropped:
            patch.drop[name] = [_raw(key) for key in dropped]
        if self._inner is not None:
            entries = [
                (key, self._inner.between(old[key], value)) for key, value in put if key in old and key not in moved
            ]
            put = [(key, value) for key, value in put if key not in old or key in moved]
            changed = [(_raw(key), inner) for key, inner in entries if inner is not None]
            if changed:
                patch.entries[name] = changed
        if put:
            patch.put[name] = [(_raw(key), _raw(self.clean(value) if self.clean else value)) for key, value in put]

    def _is_new(self, old: Mapping[Any, Any], key: Any, value: Any) -> bool:
        if key not in old:
            return True
        known = old[key]
        if known is value:
            return False
        if self._inner is not None:
            return True  # its own patch says whether anything is
        return bool(self.clean(known) != self.clean(value) if self.clean is not None else known != value)

    def applied(
        self,
        old: Mapping[Any, Any],
        put: Iterable[tuple[msgspec.Raw, msgspec.Raw]],
        drop: Iterable[msgspec.Raw],
        entries: Iterable[tuple[msgspec.Raw, Patch]],
    ) -> dict[Any, Any]:
        dropped = {self._key.decode(key) for key in drop}
        new = {key: value for key, value in old.items() if key not in dropped}
        new.update((self._key.decode(key), self._value.decode(value)) for key, value in put)
        for raw, inner in entries:
            key = self._key.decode(raw)
            assert self._inner is not None
            new[key] = self._inner.applied(new[key], inner)
        return new


def _tail(name: str, old: tuple[Any, ...], new: tuple[Any, ...], patch: Patch) -> None:
    """Tuples grow at the end and are cut at the front."""
    if old == new:
        return
    skip = next((at for at, value in enumerate(old) if new and value is new[0]), len(old))
    keep = 0
    for known, value in zip(old[skip:], new, strict=False):
        if known is not value:
            break
        keep += 1
    patch.tail[name] = (skip, keep, _raw(new[keep:]))


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(value))
