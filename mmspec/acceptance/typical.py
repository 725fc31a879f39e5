"""Typical acceptance: keep drafted tokens that the target finds likely enough (Medusa, arXiv 2401.10774). Lossy.

A token is likely enough if p(x) > min(epsilon, delta exp(-H(p))), H being the entropy of p: where the target is sure,
only likely tokens pass, where it is not, many do. The deepest path of such tokens is kept, the likelier one of equals.
The token after it is drawn from the target's law, so every round emits at least one token that is the target's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.contract import Accepted, Draft, Kind, Rule
from mmspec.errors import InputError
from mmspec.sampling import Sampler
from mmspec.tree import follow, path_to, wholly


class Typical(Rule):
    """Law: none; what is emitted leans towards what the drafter proposes. At temperature 0 the greedy comparison.

    Args: epsilon: probability above which a token always passes, in (0, 1]. delta: share of exp(-H) that is enough,
        positive; the paper's values unless told, which recommends about sqrt(epsilon) for it.
    """

    lossless = False
    invariant = False
    takes: tuple[Kind, ...] = ("point", "sampled", "coupled")

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        if not 0 < epsilon <= 1 or not delta > 0:
            raise InputError(
                f"typical acceptance needs epsilon in (0, 1] and a positive delta, got {epsilon} and {delta}"
            )
        self.epsilon, self.delta = epsilon, delta

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """Keep the deepest path of likely tokens. See `mmspec.contract.Rule`."""
        if sampler.greedy:
            return follow(draft, scores.argmax(-1))
        p = scores.softmax(-1)
        enough = (self.delta * (-torch.special.entr(p).sum(-1)).exp()).clamp(max=self.epsilon)  # [B, N]
        above = draft.parents.clamp(min=0)
        rows = torch.arange(len(above), device=above.device)
        likely = p[rows[:, None], above, draft.tokens]  # [B, N], of every node under its parent's law
        passes = likely > enough.gather(1, above)
        likely[:, 0] = 1.0
        depth = torch.where(wholly(draft, passes), draft.depth, -1)
        logs = likely.clamp(min=torch.finfo(p.dtype).tiny).log()
        total = (draft.ancestors.to(logs.dtype) * logs[:, None, :]).sum(-1)
        last = torch.where(depth == depth.amax(-1, keepdim=True), total, -torch.inf).argmax(-1)
        token = sampler.draw(scores[rows, last][:, None], (emitted + draft.depth[rows, last])[:, None])[:, 0]
        return path_to(draft, last, token)
