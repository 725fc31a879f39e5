"""Block verification: a drafted chain is judged as a whole, not token by token (Sun et al., arXiv 2403.10444).

With w_0 = 1 and w_i = min(w_{i-1} p(x_i) / q(x_i), 1), a chain of length L ends no earlier than at its token i with
chance h_i = S_i / (S_i + 1 - w_i), where S_i = sum over v of max(w_i p(v) - q(v), 0) after token i, and h_L = w_L. The
longest prefix whose coin says yes is kept, even if a shorter one's said no, so at least as much is accepted as by the
ratio rule, on average. What follows is drawn from norm(max(w_i p - q, 0)), or from p after the whole chain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec import noise
from mmspec.acceptance.ratio import residual
from mmspec.contract import Accepted, Draft, Kind, Rule
from mmspec.errors import MismatchError
from mmspec.sampling import Sampler
from mmspec.tree import follow, is_chain, path_to


class Block(Rule):
    """Law: the target's, if every token of the chain was drawn from `Draft.q` with noise that no other round uses.

    Trees are refused, so drafters are asked for chains. At temperature 0 every exact rule is the greedy comparison, and
    takes trees, too.
    """

    lossless = True
    invariant = False
    looks_ahead = True
    chains = True
    takes: tuple[Kind, ...] = ("sampled",)

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """Keep the longest prefix that its coin allows. See `mmspec.contract.Rule`."""
        if sampler.greedy:
            return follow(draft, scores.argmax(-1))
        check_chain(draft, "block")
        p = scores.softmax(-1)
        # a law that overflowed gives no token any chance: the chain ends before what was drawn from it
        q = torch.zeros_like(p) if draft.q is None else draft.q.nan_to_num(0.0)
        batch, size = draft.tokens.shape
        rows, nodes = torch.arange(batch, device=p.device), torch.arange(size, device=p.device)
        length = torch.full_like(rows, size - 1) if draft.valid is None else draft.valid.sum(-1) - 1
        weight, chance = block_chances(p, q, draft.tokens, length)
        # one counter per round: coins that said no were looked at, so a later round must not see them again
        coins = noise.uniform(sampler.seeds, noise.ACCEPT, emitted[:, None], size)[:, 0]
        last = torch.where(coins < chance, nodes, 0).amax(-1)
        rest = residual(weight[rows, last, None] * p[rows, last], q[rows, last])
        law = torch.where((last == length)[:, None], p[rows, last], rest)
        token = sampler.draw(law.log()[:, None], (emitted + last)[:, None])[:, 0]
        return path_to(draft, last, token)


def block_chances(p: Tensor, q: Tensor, tokens: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """The weights w and chances h of every prefix.

    Args: p, q: [B, N, V] laws of target and drafter after each node. tokens: [B, N], the pending token first.
        length: [B] drafted tokens of each row; nodes behind them are padding.
    Returns: [B, N] w_i and [B, N] h_i, both 1 for node 0, which is always kept.
    """
    drawn = tokens[:, 1:, None]
    above, below = p[:, :-1].gather(2, drawn)[..., 0], q[:, :-1].gather(2, drawn)[..., 0]
    tiny = torch.finfo(p.dtype).tiny
    gains = torch.where(below > 0, above / below.clamp(min=tiny), 0.0)
    weights = [torch.ones_like(p[:, 0, 0])]
    for gain in gains.unbind(1):
        weights.append((weights[-1] * gain).clamp(max=1))
    weight = torch.stack(weights, 1)
    rest = (weight[..., None] * p - q).clamp(min=0).sum(-1)
    whole = rest + 1 - weight
    chance = torch.where(whole > 0, rest / whole.clamp(min=tiny), 1.0)
    node = torch.arange(tokens.shape[1], device=tokens.device)
    chance = torch.where(node == length[:, None], weight, chance).masked_fill(node > length[:, None], 0.0)
    chance[:, 0] = 1.0
    return weight, chance


def check_chain(draft: Draft, rule: str) -> None:
    """Raise MismatchError for a tree, or for drafted tokens without the law that they were drawn from.

    rule: whose name the message says.
    """
    if draft.size > 1 and (draft.kind != "sampled" or draft.q is None):
        raise MismatchError(
            f"the {rule} rule needs tokens sampled from a known q, this draft is of kind {draft.kind!r}; "
            "use acceptance='exact' or 'match'"
        )
    if not is_chain(draft):
        raise MismatchError(
            f"the {rule} rule needs chains, and this draft is a tree: ask for chains with shape=Shape(depth), take a "
            "drafter that makes them, or use acceptance='ratio'"
        )
