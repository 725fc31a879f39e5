"""Image slots are positions, not words: the one place where ids are ruled out, above all a drafter's placeholders.

A target may emit such an id, which is then a token like any other. A drafter never proposes one, since it would hardly
be accepted, and a drafter that reads text alone does not read the slots of a prompt.
"""

from collections.abc import Collection
from functools import lru_cache

import torch
from torch import Tensor


def forbid(logits: Tensor, ids: Collection[int]) -> Tensor:
    """Logits [.., V] with some ids, such as placeholders, ruled out before any law is made of them."""
    return rule_out(logits, listed(tuple(ids), logits.device))


def rule_out(logits: Tensor, ids: Tensor | None) -> Tensor:
    """The same with the ids on the device, as `listed` gives them."""
    return logits if ids is None else logits.index_fill(-1, ids, -torch.inf)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # serves requests and trainings
def listed(placeholders: tuple[int, ...], device: torch.device) -> Tensor | None:
    """Their ids, copied to a device once, not in every level of every draft; None if there are none."""
    return torch.tensor(placeholders, device=device) if placeholders else None


def before(run: list[int], placeholders: Collection[int]) -> list[int]:
    """A copied run up to its first placeholder."""
    return next((run[:place] for place, token in enumerate(run) if token in placeholders), run)


def words(ids: list[int], placeholders: Collection[int]) -> list[int]:
    """A prompt without its image slots."""
    return [token for token in ids if token not in placeholders]
