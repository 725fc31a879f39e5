"""Principled coarse-grained acceptance: exact for groups of tokens that sound alike, not for tokens (arXiv 2511.13732).

A drafted token t ~ q is given an owner k, drawn evenly from the groups that hold t. It stays with the chance
min(1, P(k) / Q(k)), P and Q being the laws of groups that p and q make. After a rejection a group is drawn from
norm(max(P - Q, 0)), and a token of it by its part of p: t ~ p with an even draw k of its owners is taken with the
chance max(0, 1 - Q(k) / P(k)), which looks at one group alone, and drawn again until one is. The group of what is
emitted then has the law P, exactly; inside a group the token follows q where it was drafted. No rule that keeps a
drafted token more often than the ratio rule can be exact for tokens.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import torch
from torch import Tensor

from mmspec import noise
from mmspec.acceptance.ratio import check_sampled, residual
from mmspec.contract import Accepted, Draft, Kind, Rule
from mmspec.errors import InputError, MismatchError
from mmspec.sampling import Sampler
from mmspec.speech.groups import Groups, by_size
from mmspec.tree import follow, is_chain, path_to

TRIES = 128  # draws after a rejection; the law itself, of 65,536 codes, takes as long as hundreds of them
KEPT = 4  # settings whose groups a target keeps: there they take minutes, and a tenth of a gigabyte or more
FINER = 2.0**-23  # between neighbours among the uniform numbers of `mmspec.noise`
MAKING = Lock()
NONE = -1
"""In the place of a token that was not found."""


class PCG(Rule):
    """Law: that of the target for groups, none for tokens, unless every group is one token: then it is the ratio rule.

    Chains only, of tokens sampled from a known q. At temperature 0 the greedy comparison. What is kept may be a code
    that the target's own top-k or top-p rules out, where its group holds one that they do not: the law is of groups.
    Args: size: mean tokens of a group, as a share of the vocabulary of codes; 0 makes every token a group of its own.
    """

    invariant = False
    chains = True
    takes: tuple[Kind, ...] = ("sampled",)

    groups: Groups
    """Those of the target that the rule is bound to."""

    def __init__(self, size: float = 0.004) -> None:
        if not isinstance(size, int | float) or isinstance(size, bool) or not 0 <= size < 1:
            raise InputError(f"pcg acceptance needs a mean group size in [0, 1) of the vocabulary, got {size!r}")
        self.size, self.lossless = size, size == 0

    def bind(self, target: Any) -> None:
        """Make the groups from the target's embeddings, or take those that it has; only codes have company.

        Raises: MismatchError: the target does not say which ids are codes.
        """
        if not hasattr(target, "code_ids"):
            raise MismatchError(
                "pcg acceptance groups the codes of a model that writes them among its words, and "
                f"{type(target).__name__} does not"
            )
        self.groups = kept_groups(target, self.size)

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """Walk down the chain while groups are accepted. See `mmspec.contract.Rule`."""
        if sampler.greedy:
            return follow(draft, scores.argmax(-1))
        check_sampled(draft, "pcg")
        if not is_chain(draft):
            raise MismatchError(
                "the pcg rule needs chains, and this draft is a tree: ask for chains with shape=Shape(depth), take a "
                "drafter that makes them, or use acceptance='ratio'"
            )
        p = scores.softmax(-1)
        rows = torch.arange(len(p), device=p.device)
        last, walking = torch.zeros_like(rows), torch.ones_like(rows, dtype=torch.bool)
        law, found = p[:, 0], torch.full_like(rows, NONE)
        if draft.q is not None:
            positions = emitted[:, None] + torch.arange(draft.size - 1, device=p.device)
            coins = noise.uniform(sampler.seeds, noise.ACCEPT, positions, 2)  # [B, levels, 2]
            for node in range(1, draft.size):
                own, q, token = p[:, node - 1], draft.q[:, node - 1], draft.tokens[:, node]
                real = walking if draft.valid is None else walking & draft.valid[:, node]
                group = owner_of(self.groups, token, coins[:, node - 1, 1])
                ahead, drafted = self.groups.mass(own, group), self.groups.mass(q, group)
                accept = real & (q[rows, token] > 0) & (coins[:, node - 1, 0] * drafted < ahead)
                refused = (real & ~accept).nonzero()[:, 0]  # seldom all rows, and the rest is dear
                if len(refused) and not self.lossless:  # the ratio rule's own token takes no longer
                    tries = uniforms(sampler, refused, positions[refused, node - 1])
                    found[refused] = thinned(self.groups, own[refused], q[refused], tries)
                left = refused[found[refused] == NONE]
                if len(left):
                    law = law.index_put((left,), rest(self.groups, own[left], q[left]))
                law = torch.where(accept[:, None], p[:, node], law)
                last, walking = torch.where(accept, node, last), accept
        token = sampler.draw(law.log()[:, None], (emitted + last)[:, None])[:, 0]
        return path_to(draft, last, torch.where(found == NONE, token, found))


def kept_groups(target: Any, size: float) -> Groups:
    """The groups of a target by their mean size, made once: it keeps those of the last settings."""
    with MAKING:
        kept: dict[Any, Groups] = vars(target).setdefault("groups_of_codes", {})
        place = size, target.embed.weight.device
        if place not in kept:
            codes = set(target.code_ids())
            alone = [token for token in range(target.vocab_size) if token not in codes]
            wanted = max(1.0, size * len(codes))
            within = (wanted * len(codes) + len(alone)) / target.vocab_size  # the mean over all tokens
            groups = by_size(target.embed.weight[: target.vocab_size].detach(), within, alone)
            while len(kept) >= KEPT:
                del kept[next(iter(kept))]
            kept[place] = groups
        return kept[place]


def owner_of(groups: Groups, token: Tensor, coin: Tensor) -> Tensor:
    """A group of each token [..], drawn evenly from its owners with a uniform number [..]."""
    count = groups.sizes[token]
    place = (coin * count).long().clamp(max=count - 1)
    return groups.items[groups.starts[token] + place]


def uniforms(sampler: Sampler, rows: Tensor, positions: Tensor) -> Tensor:
    """[R, TRIES, 4] uniform numbers for `thinned`, of these rows [R] at these positions [R]: the ones behind the two
    with which the position was judged."""
    coins = noise.uniform(sampler.seeds[rows], noise.ACCEPT, positions[:, None], 2 + 4 * TRIES)
    return coins[:, 0, 2:].unflatten(-1, (TRIES, 4))


def thinned(groups: Groups, p: Tensor, q: Tensor, coins: Tensor) -> Tensor:
    """Tokens [R] of the law `rest`, NONE where no try was taken.

    Args: p, q: [R, V]. coins: [R, tries, 4] uniform numbers.
    """
    found = torch.full_like(p[:, 0], NONE, dtype=torch.long)
    below = p.double().cumsum(-1)
    coarse, fine, owner, keep = coins.unbind(-1)
    place = coarse.double() + (fine.double() - 0.5) * FINER  # one number has too few digits for small p
    tokens = torch.searchsorted(below, place * below[:, -1:], right=True)  # [R, tries]
    tried = (tokens, owner_of(groups, tokens, owner), keep)
    for token, group, least in zip(*(each.unbind(1) for each in tried), strict=True):
        ahead, drafted = groups.mass(p, group), groups.mass(q, group)  # of all rows: to take some out copies their laws
        found = torch.where((found == NONE) & (least * ahead < ahead - drafted), token, found)
        if not bool((found == NONE).any()):
            break
    return found


def rest(groups: Groups, p: Tensor, q: Tensor) -> Tensor:
    """The token's law [B, V] after a rejection: a group from norm(max(P - Q, 0)), a token of it by its part of p."""
    return groups.spread(p, residual(groups.masses(p), groups.masses(q)))
