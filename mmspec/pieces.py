"""Chunked prefill: a long prompt is read piece by piece, so that memory does not grow with the square of its length.

Image slots that stand side by side stay in one piece, since some models let the slots of an image see each other.
"""

from itertools import pairwise

from torch import Tensor


def spans(slots: Tensor, size: int) -> list[tuple[int, int]]:
    """Where to cut right-padded prompts, for all rows alike.

    A run of slots longer than a piece that begins where the first one would end is read with it: what goes into an
    empty cache is plainly causal and needs no mask. Read for itself the run would need one, which grows with the square
    of its length.

    Args: slots: [B, T] bool, the image slots. size: columns per piece; only a longer run of slots takes more.
    Returns: (start, end) of every piece, in order.
    """
    width = slots.shape[1]
    together = (slots[:, 1:] & slots[:, :-1]).any(0).tolist()  # is column i + 1 in one run with column i?
    free = [column for column in range(1, width) if not together[column - 1]] + [width]
    first = _end(free, 0, size)
    behind = min((column for column in free if column > first), default=first)
    ends = [0, behind if behind - first > size else first]
    while ends[-1] < width:
        ends.append(_end(free, ends[-1], size))
    return list(pairwise(ends))


def _end(free: list[int], start: int, size: int) -> int:
    """Where the piece that begins at `start` ends, of the columns at which it may."""
    later = [column for column in free if column > start]
    return max((column for column in later if column <= start + size), default=later[0])
