"""The coupled match: what is emitted is, by construction, what autoregressive decoding emits with the same seed.

The target's token after a node is argmax(log p + g), with noise g that depends only on the seed and on the token's
index in the output; the walk descends as long as that token is among the children. No draft ever decides a token, so
the law is the target's for any drafter, tree or timing (drafter-invariant speculative decoding, arXiv 2408.07978;
exponential races, arXiv 2504.15475), and a drafter may draw with the same noise. At temperature 0 this is the greedy
rule.
"""

from torch import Tensor

from mmspec.contract import Accepted, Draft, Kind, Rule
from mmspec.sampling import Sampler
from mmspec.tree import follow


class Exact(Rule):
    """Law: the sequence equals the one that the autoregressive loop draws with the same seed. Takes any proposal."""

    lossless = True
    invariant = True
    on_device = True
    takes: tuple[Kind, ...] = ("coupled", "point", "sampled")

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """Follow the target's own choices. See `mmspec.contract.Rule`."""
        return follow(draft, choices(draft, scores, sampler, emitted))


def choices(draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Tensor:
    """[B, N] int64: the token that the target emits after each node."""
    return sampler.draw_ahead(scores, emitted, draft.depth, draft.levels)
