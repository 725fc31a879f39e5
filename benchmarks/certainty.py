"""How sure the target is: the mean probability of its likeliest token, under the law that verification uses.

Warpers, guidance and history have had their effect on that law. It is taken on autoregressive decoding, so it is the
gauge of how predictable a task is, for every modality.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mmspec import Pipeline
from mmspec.acceptance.exact import Exact
from mmspec.contract import Accepted, Draft
from mmspec.sampling import Sampler


class Watching(Exact):
    """The exact rule, which notes the largest probability at node 0 of every round. tops: of all rounds."""

    def __init__(self) -> None:
        self.tops: list[float] = []

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """See `Exact`."""
        self.tops += scores[:, 0].softmax(-1).amax(-1).tolist()
        return super().__call__(draft, scores, sampler, emitted)


def mean_top(pipe: Pipeline, requests: Sequence[dict[str, Any]]) -> float | None:
    """The gauge over some requests, each the arguments of a call; None if nothing was decoded.

    At temperature 0 it is taken under the plain softmax, as there is no other law.
    """
    rule = Watching()
    watched = pipe.with_drafter("none", acceptance=rule)
    for request in requests:
        watched(**request)
    return sum(rule.tops) / len(rule.tops) if rule.tops else None
