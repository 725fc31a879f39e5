"""How sure the target is: the mean probability of its likeliest token, under the law that verification uses.

Warpers, guidance and history have had their effect on that law. It is taken on autoregressive decoding, so it is the
gauge of how predictable a task is, for every modality.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from torch import Tensor

from mmspec import Pipeline
from mmspec.contract import Accepted, Draft, Rule
from mmspec.drafters.watched import hand_on
from mmspec.sampling import Sampler


class Watching(Rule):
    """Decides as another rule does, and notes the largest probability at node 0 of every round, for columns that of
    every code. tops: of all rounds. Its looks are on the host, so no round is recorded."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.tops: list[float] = []
        self._tell()

    def _tell(self) -> None:
        """Say what the rule says, but for what the looks forbid."""
        hand_on(Rule, self.rule, self)
        self.on_device = False

    def bind(self, target: Any) -> None:
        """See `mmspec.contract.Rule`."""
        self.rule = copy(self.rule)  # another pipeline may have it, too
        self.rule.bind(target)
        self._tell()

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """See `mmspec.contract.Rule`."""
        self.tops += scores[:, 0].softmax(-1).amax(-1).flatten().tolist()
        return self.rule(draft, scores, sampler, emitted)


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
