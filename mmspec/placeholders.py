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
    return rule_out(logits, listed(tuple(ids), logits.shape[-1], logits.device))


def rule_out(logits: Tensor, barred: Tensor | None) -> Tensor:
    """The same with the mask that `listed` gives: compilers fuse it with what is done to the logits besides, and would
    make a kernel of its own of writing to a list of ids."""
    return logits if barred is None else logits.masked_fill(barred, -torch.inf)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # serves requests and trainings
def listed(placeholders: tuple[int, ...], vocabulary: int, device: torch.device) -> Tensor | None:
    """[vocabulary] bool: where they are; None if there are none. It is copied to a device once, not in every level of
    every draft. What is recorded must hold on to it: here it may be forgotten."""
    if not placeholders:
        return None
    barred = torch.zeros(vocabulary, dtype=torch.bool)
    barred[list(placeholders)] = True
    return barred.to(device)


def before(run: list[int], placeholders: Collection[int]) -> list[int]:
    """A copied run up to its first placeholder."""
    return next((run[:place] for place, token in enumerate(run) if token in placeholders), run)


def words(ids: list[int], placeholders: Collection[int], known: int | None = None) -> list[int]:
    """A prompt without its image slots, and for a reader of `known` ids without the others: a language model that
    drafts for its VLM has none for the marks around pictures."""
    return [token for token in ids if (known is None or token < known) and token not in placeholders]
