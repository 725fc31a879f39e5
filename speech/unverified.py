"""Every drafted token is emitted without a look at the target's law (as in arXiv 2410.13839). Lossy.

The target still reads the tokens, because the next draft needs its features, and draws the token after them; but it
judges nothing, so tau is undefined.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.contract import Accepted, Draft, Kind, Rule
from mmspec.sampling import Sampler
from mmspec.tree import path_to


class Unverified(Rule):
    """Law: none. Keeps the first chain of a draft to its end, at every temperature."""

    lossless = False
    invariant = invariant_greedy = False
    verifies = False
    takes: tuple[Kind, ...] = ("coupled", "point", "sampled")

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """Keep the deepest path, the first of equals. See `mmspec.contract.Rule`."""
        depth = draft.depth if draft.valid is None else torch.where(draft.valid, draft.depth, -1)
        last = depth.argmax(-1)
        rows = torch.arange(len(last), device=last.device)
        place = (emitted + draft.depth[rows, last])[:, None]
        return path_to(draft, last, sampler.draw(scores[rows, last][:, None], place)[:, 0])
