"""How sure the target is: the mean probability of its likeliest token, under the law that verification uses.

Warpers, guidance and history have had their effect on that law. It is taken on autoregressive decoding, so it is the
gauge of how predictable a task is, for every modality.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mmspec import Pipeline
from mmspec.benchmarks.overseen import Overseen
from mmspec.contract import Accepted, Draft, Rule


class Watching(Overseen):
    """Notes the largest probability at node 0 of every round, for columns that of every code. tops: of all rounds."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.tops: list[float] = []

    def look(self, draft: Draft, scores: Tensor, accepted: Accepted) -> None:
        """See `Overseen`."""
        self.tops += scores[:, 0].softmax(-1).amax(-1).flatten().tolist()


def mean_top(pipe: Pipeline, requests: Sequence[dict[str, Any]]) -> float | None:
    """The gauge over some requests, each the arguments of a call; None if nothing was decoded.

    At temperature 0 it is taken under the plain softmax, as there is no other law.
    """
    watched = pipe.with_drafter("none", acceptance="exact")  # the one that is exact for what this target emits
    rule = Watching(watched.rule)
    watched.rule = rule
    for request in requests:
        watched(**request)
    return sum(rule.tops) / len(rule.tops) if rule.tops else None
