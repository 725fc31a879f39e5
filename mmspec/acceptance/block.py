"""Block verification: a draft is judged as a whole, not token by token (Sun et al., arXiv 2403.10444); of trees this is
traversal verification (arXiv 2505.12398).

Every node has a weight w, the chance that it is kept if nothing that was tried before it is: 1 for node 0, and for a
child v, drawn from q, min(w p(v) / q(v), 1). It is not decided on at once: what hangs from it is tried first. After a
child that was not kept the node goes on with

    r = max(w p - q, 0),   S = sum of r,   w <- S / (S + 1 - w),   p <- r / S,   q <- q without the child, normalised

and when no child is left it is kept with its w. So the first node whose coin says yes, children before parents, ends
what is kept, and the token after it is drawn from what is left of its p. On average at least as much of a chain is kept
as by the ratio rule.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec import noise
from mmspec.acceptance.ratio import check_sampled, without
from mmspec.contract import Accepted, Draft, Kind, Rule
from mmspec.sampling import Sampler
from mmspec.tree import follow, path_to


class Block(Rule):
    """Law: the target's, if the children of each node were drawn from `Draft.q` with noise that no other round uses.

    Deterministic, pruned or re-ranked drafts have no such q and are refused. At temperature 0 every exact rule is the
    greedy comparison.
    """

    lossless = True
    invariant = False
    looks_ahead = True
    takes: tuple[Kind, ...] = ("sampled",)

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """Keep the path to the first node that its coin allows, children first. See `mmspec.contract.Rule`."""
        if sampler.greedy:
            return follow(draft, scores.argmax(-1))
        check_sampled(draft, "block")
        p = scores.softmax(-1)
        # a law that overflowed gives no token any chance: the path ends before what was drawn from it
        q = torch.zeros_like(p) if draft.q is None else draft.q.nan_to_num(0.0)
        chance, left = chances(draft, p, q)
        # one counter per round: coins that said no were looked at, so a later round must not see them again
        coins = noise.uniform(sampler.seeds, noise.ACCEPT, emitted[:, None], draft.size)[:, 0]
        last = torch.where(coins < chance, children_first(draft), draft.size).argmin(-1)
        rows = torch.arange(len(last), device=last.device)
        end = emitted + draft.depth[rows, last]
        token = sampler.draw(left[rows, last, None].log(), end[:, None])[:, 0]
        return path_to(draft, last, token)


def chances(draft: Draft, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The chance [B, N] of every node to be kept once all that hangs from it was not, and the law [B, N, V] of what
    follows it then. Node 0 is always kept.

    Args: p, q: [B, N, V] laws of target and drafter after each node.

    A node's turn is the number of elder siblings that it and its ancestors have, all told. What it needs to know was
    made in the turns before, so that nodes of one turn are weighed together.
    """
    batch, size = draft.tokens.shape
    rows = torch.arange(batch, device=p.device)[:, None]
    real = torch.ones_like(draft.ancestors[:, 0]) if draft.valid is None else draft.valid
    parent = draft.parents.clamp(min=0)
    turn = (draft.ancestors * elder(draft).sum(-1)[:, None]).sum(-1) * real
    weight, left, other = torch.zeros_like(p[..., 0]), p.clone(), q.clone()
    weight[:, 0] = 1.0
    for now in range(int(turn.max()) + 1):
        child = (turn == now) & real & (draft.depth > 0)
        below = other[rows, parent, draft.tokens]
        drawn = child & (below > 0)  # fewer tokens than children had a chance at all
        gain = torch.where(drawn, left[rows, parent, draft.tokens] / torch.where(drawn, below, 1.0), 0.0)
        for level in range(1, draft.levels + 1):
            weighed = (weight.gather(1, parent) * gain).clamp(max=1)
            weight = torch.where(child & (draft.depth == level), weighed, weight)
        row, node = drawn.nonzero(as_tuple=True)
        place = row, parent[row, node]
        weight[place], left[place] = refused(weight[place], left[place], other[place])
        other[place] = without(other[place], draft.tokens[row, node])
    weight[:, 0] = 1.0
    return weight, left


def refused(weight: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The weight [M] and the law [M, V] with which nodes go on after a child that was not kept.

    Args: weight: [M]. p, q: [M, V] the target's law, or what is left of it, and the law that the child was drawn from.
    """
    tiny = torch.finfo(p.dtype).tiny
    rest = (weight[:, None] * p - q).clamp(min=0)
    mass = rest.sum(-1)
    whole = mass + 1 - weight
    kept = torch.where(whole > 0, mass / whole.clamp(min=tiny), 1.0)
    return kept, torch.where(mass[:, None] > 0, rest / mass[:, None].clamp(min=tiny), p)


def elder(draft: Draft) -> Tensor:
    """[B, N, N] bool: [b, i, j] is True if j is a child of the same node as i, and stands before it."""
    return (draft.parents[:, :, None] == draft.parents[:, None, :]).tril(-1)


def children_first(draft: Draft) -> Tensor:
    """[B, N] the place of every node in an order in which all that hangs from a node stands before it, and what hangs
    from its first child before that from the second."""
    hanging = draft.ancestors.sum(1)  # [B, N] nodes at and below each
    before = (elder(draft) * hanging[:, None]).sum(-1)
    return (draft.ancestors * before[:, None]).sum(-1) + hanging - 1
