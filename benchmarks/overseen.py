"""A rule that decides as another one does, and looks at what it is shown and what it keeps."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import Any

from torch import Tensor

from mmspec.contract import Accepted, Draft, Rule
from mmspec.drafters.watched import hand_on
from mmspec.sampling import Sampler


class Overseen(Rule):
    """Base of such rules. Its looks are on the host, so no round is recorded."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
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
        accepted = self.rule(draft, scores, sampler, emitted)
        self.look(draft, scores, accepted)
        return accepted

    @abstractmethod
    def look(self, draft: Draft, scores: Tensor, accepted: Accepted) -> None:
        """Take note of a round."""
