"""A shuffle that needs no list: a seeded bijection of 0..n-1, evaluated where it is needed.

A Feistel network permutes the numbers of the smallest power of two that holds n; a result outside 0..n-1 is put through
again until it falls inside (*cycle walking*). The power of two is less than 2n, so that is at most two rounds on
average. All of it is integer arithmetic below 2**64: the same numbers come out of Python, numpy and any other language.

The permutation of a seed is part of every checkpoint: one that was saved yesterday must find the same order today. The
tests hold golden vectors; a change of any constant here is a change of format.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

_MASK_64 = (1 << 64) - 1
_MASK_32 = (1 << 32) - 1
_MULTIPLY_1 = 0x9E3779B1
_MULTIPLY_2 = 0x85EBCA77
_DOUBLE_ROUNDS = 3
_SMALL_DOUBLE_ROUNDS = 8
_SMALL_BITS = 12
"""A few bits mix slowly, and few records cost little: up to here there are more rounds."""

MAX_SIZE = 1 << 62
"""Indices stay below it, so that they fit a signed 64-bit number everywhere."""

Array = TypeVar("Array")


def derive(seed: int, *parts: int) -> int:
    """A 64-bit seed for one use of `seed`. Seeds whose parts differ have nothing in common."""
    mixed = _splitmix(seed & _MASK_64)
    for part in parts:
        mixed = _splitmix(mixed ^ (part & _MASK_64))
    return mixed


@dataclass(frozen=True, slots=True)
class Permutation:
    """The bijection of 0..size-1 that belongs to a seed."""

    size: int
    seed: int
    _low_bits: int = field(init=False, repr=False, compare=False)
    _masks: tuple[int, int] = field(init=False, repr=False, compare=False)
    _keys: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_SIZE:
            raise ValueError(f"a permutation needs 1 <= size <= 2**62, got {self.size}")
        bits = max(2, (self.size - 1).bit_length())
        low = bits // 2
        rounds = _SMALL_DOUBLE_ROUNDS if bits <= _SMALL_BITS else _DOUBLE_ROUNDS
        words = [derive(self.seed, number) for number in range(rounds)]
        object.__setattr__(self, "_low_bits", low)
        object.__setattr__(self, "_masks", ((1 << (bits - low)) - 1, (1 << low) - 1))
        object.__setattr__(self, "_keys", tuple((word >> 32, word & _MASK_32) for word in words))

    def __call__(self, index: int) -> int:
        """Where `index` goes."""
        self._check(index)
        size = self.size
        index = self._forward(index)
        while index >= size:
            index = self._forward(index)
        return index

    def inverse(self, index: int) -> int:
        """What goes to `index`."""
        self._check(index)
        size = self.size
        index = self._backward(index)
        while index >= size:
            index = self._backward(index)
        return index

    def span(self, start: int, stop: int) -> Iterator[int]:
        """Where start..stop-1 go, one by one."""
        if start < stop:
            self._check(start)
            self._check(stop - 1)
        size, forward = self.size, self._forward
        for number in range(start, stop):
            index = forward(number)
            while index >= size:
                index = forward(index)
            yield index

    def over(self, indices: Array) -> Array:
        """Where a whole array of indices goes: for a one-dimensional numpy array of uint64, without importing numpy."""
        out: Any = self._forward(indices)
        outside = out >= self.size
        while outside.any():
            out[outside] = self._forward(out[outside])
            outside = out >= self.size
        return out  # type: ignore[no-any-return]

    def _forward(self, index: Any) -> Any:
        # The round function is written out: a call would cost as much as the arithmetic. A product of two 32-bit
        # numbers fits 64 bits, so numpy never wraps around where Python would not.
        high_mask, low_mask = self._masks
        high, low = index >> self._low_bits, index & low_mask
        for key_1, key_2 in self._keys:
            mixed = (low ^ key_1) * _MULTIPLY_1 & _MASK_32
            mixed = (mixed ^ mixed >> 15) * _MULTIPLY_2 & _MASK_32
            high = high ^ ((mixed ^ mixed >> 16) & high_mask)
            mixed = (high ^ key_2) * _MULTIPLY_1 & _MASK_32
            mixed = (mixed ^ mixed >> 15) * _MULTIPLY_2 & _MASK_32
            low = low ^ ((mixed ^ mixed >> 16) & low_mask)
        return high << self._low_bits | low

    def _backward(self, index: int) -> int:
        high_mask, low_mask = self._masks
        high, low = index >> self._low_bits, index & low_mask
        for key_1, key_2 in reversed(self._keys):
            mixed = (high ^ key_2) * _MULTIPLY_1 & _MASK_32
            mixed = (mixed ^ mixed >> 15) * _MULTIPLY_2 & _MASK_32
            low ^= (mixed ^ mixed >> 16) & low_mask
            mixed = (low ^ key_1) * _MULTIPLY_1 & _MASK_32
            mixed = (mixed ^ mixed >> 15) * _MULTIPLY_2 & _MASK_32
            high ^= (mixed ^ mixed >> 16) & high_mask
        return high << self._low_bits | low

    def _check(self, index: int) -> None:
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is not in 0..{self.size - 1}")


def _splitmix(x: int) -> int:
    """The finalizer of splitmix64: a bijection of 64-bit numbers in which every input bit reaches every output bit."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)
