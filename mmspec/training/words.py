"""Which words a drafter needs: those that the answers use most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.training.answers import Answered


def common_words(rows: Sequence[Answered], count: int, vocab_size: int) -> Tensor:
    """[words] int64, ascending: the ids that the answers use most, filled up with the first of the others."""
    used = Counter(token for row in rows for token in row.answer)
    most = [token for token, _ in used.most_common(min(count, vocab_size))]
    rest = (token for token in range(vocab_size) if token not in used)
    return torch.tensor(sorted([*most, *(token for token, _ in zip(rest, range(count - len(most)), strict=False))]))
