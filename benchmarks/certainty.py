"""How sure the target is: the mean probability of its likeliest token, under the law that verification uses.

Warpers, guidance and history have had their effect on that law. It is taken on autoregressive decoding, so it is the
gauge of how predictable a task is, for every modality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mmspec import Pipeline
from mmspec.contract import Accepted, Draft
from mmspec.sampling import Sampler


@dataclass
class Watching:
    """A rule that notes the largest probability at node 0 of every round, for columns that of every code; everything
    else is the rule's own. tops: of all rounds."""

    on_device = False  # it reads on the host
    rule: Any
    tops: list[float] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """See `mmspec.contract.Rule`."""
        self.tops += scores[:, 0].softmax(-1).amax(-1).flatten().tolist()
        return self.rule(draft, scores, sampler, emitted)


def mean_top(pipe: Pipeline, requests: Sequence[dict[str, Any]]) -> float | None:
    """The gauge over some requests, each the arguments of a call; None if nothing was decoded.

    At temperature 0 it is taken under the plain softmax, as there is no other law.
    """
    watched = pipe.with_drafter("none", acceptance="exact")  # the one that is exact for what this target emits
    watched.rule = rule = Watching(watched.rule)
    for request in requests:
        watched(**request)
    return sum(rule.tops) / len(rule.tops) if rule.tops else None
