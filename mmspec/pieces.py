"""Chunked prefill: a long prompt is read piece by piece, so that memory does not grow with the square of its length.

Image slots that stand side by side stay in one piece, since some models let the slots of an image see each other.
"""

from itertools import pairwise

from torch import Tensor


def spans(slots: Tensor, size: int) -> list[tuple[int, int]]:
    """Where to cut right-padded prompts, for all rows alike.

    Args: slots: [B, T] bool, the image slots. size: columns per piece; only a longer run of slots takes more.
    Returns: (start, end) of every piece, in order.
    """
    width = slots.shape[1]
    together = (slots[:, 1:] & slots[:, :-1]).any(0).tolist()  # is column i + 1 in one run with column i?
    free = [column for column in range(1, width) if not together[column - 1]] + [width]
    ends = [0]
    while ends[-1] < width:
        later = [column for column in free if column > ends[-1]]
        ends.append(max((column for column in later if column <= ends[-1] + size), default=later[0]))
    return list(pairwise(ends))
