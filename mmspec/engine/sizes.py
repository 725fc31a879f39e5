"""The few sizes at which things are made ready, so that nothing is compiled or captured twice."""

from collections.abc import Sequence


def padded(count: int, sizes: Sequence[int]) -> int:
    """The size that serves that many: the least of the ascending `sizes` that does, or else a power of two."""
    return next((size for size in sizes if size >= count), 1 << (count - 1).bit_length())
