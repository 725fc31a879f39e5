"""Multi-token heads and a Viterbi search: the likeliest joint path through the heads' candidates (arXiv 2410.13839).

Heads guess tokens independently of each other; which of them go together is told by a table of token pairs:

    d_1(c) = log P_1(c) + mu log A[x, c],    d_i(c) = log P_i(c) + max over c' of (d_{i-1}(c') + mu log A[c', c])

over the K best candidates of each head; the best path is drafted. The paper emits it as it is (the rule `unverified`);
here it is a draft like any other, and exact rules stay exact. Under a coupled rule the target's noise is added to each
log P_i, so that the path leans towards what the target is about to draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import LlamaConfig

from mmspec.contract import Draft, Kind, Shape, State
from mmspec.control import CHAINS
from mmspec.drafters.heads import HeadNet
from mmspec.drafters.medusa import Medusa, MedusaHeads
from mmspec.drafters.on_slots import OnSlots
from mmspec.drafters.slots import Last
from mmspec.errors import InputError
from mmspec.tree import chain

SMOOTHING = 0.1
NOBODY = -1
"""Where a token has fewer successors than the table has room for."""


class PairedHeads(MedusaHeads):
    """The heads, and a table A of token pairs in logarithms: the likeliest successors of each token, the rest alike.

    Args: levels, layers: as for `MedusaHeads`. vocab_size: V. kept: successors kept of each token.
    """

    successors: Tensor  # [V, kept] int64
    known: Tensor  # [V, kept]
    others: Tensor  # [V]

    def __init__(self, config: LlamaConfig, levels: int, vocab_size: int, layers: int = 1, kept: int = 64) -> None:
        super().__init__(config, levels, layers)
        kept = min(kept, vocab_size)
        self.settings = {"levels": levels, "vocab_size": vocab_size, "layers": layers, "kept": kept}
        self.register_buffer("successors", torch.zeros(vocab_size, kept, dtype=torch.long))
        self.register_buffer("known", torch.full((vocab_size, kept), -math.log(vocab_size)))
        self.register_buffer("others", torch.full((vocab_size,), -math.log(vocab_size)))

    def count(self, texts: list[list[int]]) -> None:
        """Fill the table from token sequences: counts of pairs, smoothed by adding SMOOTHING to every pair.

        Only pairs that occur are held, so nothing has the size of V x V.
        """
        vocabulary, kept = self.successors.shape
        before, after, times = counted_pairs(texts, vocabulary)
        totals = torch.bincount(before, weights=times, minlength=vocabulary) + SMOOTHING * vocabulary
        place = places_in_rows(before, vocabulary)
        best = place < kept
        before, after, place = before[best], after[best], place[best]
        share = (times[best] + SMOOTHING) / totals[before]
        told = torch.zeros(vocabulary, dtype=torch.double).index_add(0, before, share)
        left = vocabulary - torch.bincount(before, minlength=vocabulary)
        successors = torch.full((vocabulary, kept), NOBODY)
        successors[before, place] = after
        known = torch.zeros(vocabulary, kept)
        known[before, place] = share.log().float()
        self.successors.copy_(successors)
        self.known.copy_(known)
        self.others.copy_(((1 - told).clamp(min=1e-9) / left.clamp(min=1)).log())

    def pairs(self, before: Tensor, after: Tensor) -> Tensor:
        """log A: [B, K] and [B, L] tokens -> [B, K, L]."""
        found = self.successors[before][:, :, None, :] == after[:, None, :, None]  # [B, K, L, kept]
        known = torch.where(found, self.known[before][:, :, None, :], -math.inf).amax(-1)
        return torch.where(found.any(-1), known, self.others[before][:, :, None]).float()


def counted_pairs(texts: list[list[int]], vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs of tokens that occur: first tokens, ascending; second ones, of each first one the most frequent ahead;
    and how often, as float64."""
    ids = [torch.tensor(text, dtype=torch.long) for text in texts]
    keys = torch.cat([torch.zeros(0, dtype=torch.long), *(one[:-1] * vocabulary + one[1:] for one in ids)])
    pairs, times = keys.unique(return_counts=True)
    order = times.argsort(descending=True)
    order = order[(pairs[order] // vocabulary).argsort(stable=True)]
    return pairs[order] // vocabulary, pairs[order] % vocabulary, times[order].double()


def places_in_rows(rows: Tensor, count: int) -> Tensor:
    """[E] ascending numbers of rows, below `count` -> [E] the place of each entry in its row."""
    sizes = torch.bincount(rows, minlength=count)
    return torch.arange(len(rows), device=rows.device) - (sizes.cumsum(0) - sizes)[rows]


@dataclass
class Searching(OnSlots):
    """The search on one request."""

    drafter: Viterbi
    slots: Last

    @property
    def early(self) -> bool:
        """The device searches."""
        return True

    def propose(self, state: State) -> Draft:
        """The best path."""
        assert state.pending is not None
        own, choice = self.drafter, self.choice
        levels = min(state.levels(own.depth), own.most)
        if levels < 1:
            return state.undrafted()
        logits = own.net.guess(self.slots.features, own.head, levels)  # [B, levels, V]
        tokens, confidence = [], []
        for level in range(levels):
            pending = state.pending[:, None, None]  # what stands between is known only once the path is
            token, scores = choice.drawn(logits[:, level, None], state.emitted, level, own.candidates, pending, levels)
            law = scores[:, 0].log_softmax(-1)
            if choice.races:
                law = law + choice.sampler.noise_ahead(state.emitted, level + 1, law.shape[-1])[:, level]
            tokens.append(token[:, 0])
            confidence.append(law.gather(1, token[:, 0]))
        path = best_path(state.pending, tokens, confidence, own.net, own.pull)
        return chain(torch.cat([state.pending[:, None], path], 1), choice.kind)


class Viterbi(Medusa):
    """Drafts one chain. Args: net: `PairedHeads`. depth: most tokens of it. candidates: K. pull: mu, 0 or more."""

    kinds: frozenset[Kind] = frozenset({"point", "coupled"})
    trust = 1.0  # the unverified rule keeps what is drafted
    method = "mtp-viterbi"
    source = "multi-token prediction with Viterbi selection, arXiv 2410.13839"
    noun = "multi-token"
    static = False
    net_class: ClassVar[type[HeadNet]] = PairedHeads
    drafting = Searching

    def __init__(self, net: Any, depth: int = 4, candidates: int = 8, pull: float = 0.3) -> None:
        if candidates < 1 or not pull >= 0:
            raise InputError(f"a Viterbi search needs candidates >= 1 and pull >= 0, got {candidates} and {pull}")
        super().__init__(net, depth=depth, total=depth + 1)
        self.candidates, self.pull = candidates, pull

    def offered(self) -> tuple[Shape, ...]:
        """Chains, as long as there are heads."""
        return tuple(shape for shape in CHAINS if shape.depth <= self.most)

    def save(self, folder: Any) -> dict[str, Any]:
        """See `HeadDrafter.save`."""
        options = {"depth": self.depth, "candidates": self.candidates, "pull": self.pull}
        return {**super().save(folder), "options": options}


def best_path(
    pending: Tensor, tokens: list[Tensor], confidence: list[Tensor], table: PairedHeads, pull: float
) -> Tensor:
    """The path with the greatest sum of confidences and `pull` times the logarithms of its pairs.

    Args: pending: [B]. tokens, confidence: [B, K] for each level. Returns: [B, levels] tokens.
    """
    before, total = pending[:, None], torch.zeros_like(pending[:, None], dtype=torch.float32)
    origins = []
    for token, gain in zip(tokens, confidence, strict=True):
        reached, origin = (total[:, :, None] + pull * table.pairs(before, token)).max(1)  # over the level before
        before, total = token, reached + gain
        origins.append(origin)
    place = total.argmax(-1, keepdim=True)
    path = []
    for token, origin in zip(reversed(tokens), reversed(origins), strict=True):
        path.append(token.gather(1, place))
        place = origin.gather(1, place)
    return torch.cat(path[::-1], 1)
