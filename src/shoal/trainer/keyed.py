"""Random streams that do not depend on who computes: a seed from (seed, step, logical micro-batch)."""

_MASK = (1 << 64) - 1


def stream_seed(seed: int, step: int, micro_batch: int) -> int:
    """A 64-bit seed, well mixed: neighbours in any of the three arguments share nothing."""
    mixed = _mix(seed & _MASK)
    mixed = _mix(mixed ^ (step & _MASK))
    return _mix(mixed ^ (micro_batch & _MASK))


def _mix(x: int) -> int:
    """The finalizer of splitmix64: a bijection of 64-bit numbers in which every input bit reaches every output bit."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
