"""Speculative sampling by the ratio p/q, for chains and for trees of children sampled without replacement.

Chain: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318. Tree: the recursive rule of EAGLE,
arXiv 2401.15077: try the children in order; after a rejection continue with norm(max(p - q, 0)) and take the child out
of q. What is emitted when no child is left is drawn from the last residual, the bonus after a leaf from the warped p.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec import noise
from mmspec.contract import Accepted, Draft, Kind, Rule
from mmspec.errors import MismatchError
from mmspec.sampling import Sampler
from mmspec.tree import children, follow, path_to


class Ratio(Rule):
    """Law: the target's, if the children of each node were drawn from `Draft.q` with independent noise.

    Pruned or re-ranked drafts have no such q and are refused; so are deterministic ones, for which `match` decides the
    same. Subclasses that take "point" accept these: the q of each child is then a point mass. At temperature 0 every
    exact rule is the greedy comparison.
    """

    lossless = True
    invariant = False
    takes: tuple[Kind, ...] = ("sampled",)

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """Walk from node 0, accepting children by p/q. See `mmspec.contract.Rule`."""
        if sampler.greedy:
            return follow(draft, scores.argmax(-1))
        if draft.kind != "point" or "point" not in self.takes:
            check_sampled(draft, "ratio")
        p = scores.softmax(-1)
        rows = torch.arange(p.shape[0], device=p.device)
        here, alive = torch.zeros_like(rows), torch.ones_like(rows, dtype=torch.bool)
        law = p[:, 0].clone()
        if draft.size > 1:
            offspring = children(draft)
            levels, width = draft.levels, offspring.shape[-1]
            positions = emitted[:, None] + torch.arange(levels, device=p.device)
            coins = noise.uniform(sampler.seeds, noise.ACCEPT, positions, width)  # [B, levels, width]
            for level in range(levels):
                if not alive.any():  # most rounds end far above the deepest node
                    break
                options = offspring[rows, here]
                q = None if draft.q is None else draft.q[rows, here]
                reached, law = try_children(draft, here, options, p, law, q, coins[:, level], alive, self)
                alive, here = reached != here, reached
        end = emitted + draft.depth[rows, here]
        token = sampler.draw(law.log()[:, None], end[:, None])[:, 0]
        return path_to(draft, here, token)

    def grant(self, law: Tensor, q: Tensor, token: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """What target and drafter give a drafted token; it is kept with the first over the second as its chance.

        Args: law, q: [B, V]. token: [B]. depth: [B] drafted tokens that were kept before it.
        Returns: [B] and [B]. Relaxed rules raise the first.
        """
        rows = torch.arange(len(token), device=token.device)
        return law[rows, token], q[rows, token]

    def rest(self, law: Tensor, q: Tensor, depth: Tensor) -> Tensor:
        """The law [B, V] to go on with after a rejection."""
        return residual(law, q)


def try_children(
    draft: Draft,
    here: Tensor,
    options: Tensor,
    p: Tensor,
    law: Tensor,
    q: Tensor | None,
    coins: Tensor,
    alive: Tensor,
    rule: Ratio,
) -> tuple[Tensor, Tensor]:
    """One level of the walk.

    Args:
        here: [B] current node. options: [B, K] its children, -1 padded. p: [B, N, V] target law at every node.
        law: [B, V] target law at `here`. q: [B, V] law of its children; None where each one was chosen without any
            draw, so that its own q is a point mass. coins: [B, K] uniforms.
        alive: [B] rows that are still walking. rule: what it grants a token, and what follows a rejection.

    Returns: [B] the node reached (`here` if no child was accepted) and [B, V] the law to go on with: p at the accepted
        child, or the last residual.
    """
    rows = torch.arange(p.shape[0], device=p.device)
    reached, trying, depth = here, alive, draft.depth[rows, here]
    for child, coin in zip(options.unbind(1), coins.unbind(1), strict=True):
        trying = trying & (child >= 0)
        if not trying.any():
            break
        node = child.clamp(min=0)
        token = draft.tokens[rows, node]
        own = torch.zeros_like(law).scatter(1, token[:, None], 1.0) if q is None else q
        tried = trying & (own[rows, token] > 0)  # fewer tokens than children had a chance at all
        granted, taken = rule.grant(law, own, token, depth)
        accept = tried & (coin * taken < granted)
        reject = tried & ~accept
        if reject.any():  # most tokens are kept, and a residual costs a pass over the vocabulary
            law = torch.where(reject[:, None], rule.rest(law, own, depth), law)
            q = None if q is None else torch.where(reject[:, None], without(q, token), q)
        law = torch.where(accept[:, None], p[rows, node], law)
        reached = torch.where(accept, child, reached)
        trying = trying & ~accept
    return reached, law


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(p - q, 0)) over the last dimension; p itself where that is zero everywhere (p = q, up to rounding)."""
    rest = (p - q).clamp(min=0)
    mass = rest.sum(-1, keepdim=True)
    return torch.where(mass > 0, rest / mass.clamp(min=torch.finfo(p.dtype).tiny), p)


def without(q: Tensor, token: Tensor) -> Tensor:
    """q [B, V] with token [B] taken out and the rest normalised (zeros if nothing is left)."""
    rest = q.scatter(-1, token[:, None], 0.0)
    return rest / rest.sum(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)


def check_sampled(draft: Draft, rule: str) -> None:
    """Raise MismatchError for drafted tokens without the law that they were drawn from. rule: whose name it says."""
    if draft.size > 1 and (draft.kind != "sampled" or draft.q is None):
        raise MismatchError(
            f"the {rule} rule needs children sampled from a known q, this draft is of kind {draft.kind!r}; "
            "use acceptance='exact' or 'match'"
        )
