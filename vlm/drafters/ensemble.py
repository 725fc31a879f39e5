"""In-batch ensembles: one small VLM reads the prompt in several ways, and the mixture of what it says is drafted.

IbED (ICLR 2025 workshop on sparsity) mixes with fixed weights, TABED (arXiv 2601.20357) with weights found at test
time. The members differ in what stands for a picture:

    multimodal  the target's embeddings of all its image slots.
    pooled      their means over squares of two by two (over four in a row, where the slots make no square).
    text        nothing.
    caption     a caption that the drafter itself wrote when the request began.

Their prompts are rows of one batch, so every step of a draft is one forward of the drafter, whatever their number.
The law of a token is q = sum_j w_j q_j over the members' warped laws, and it is this q that the draft declares: a
rule that divides by q would not be exact with the law of one member.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.contract import Accepted, Draft, Kind, State, Verified
from mmspec.drafters.independent import Writing
from mmspec.errors import InputError, MismatchError
from mmspec.placeholders import forbid
from mmspec.sampling import Sampler
from mmspec.tree import chain
from mmspec.vlm.drafters.eyes import Eyes
from mmspec.vlm.drafters.grafted import Massv

MEMBERS = ("multimodal", "pooled", "text", "caption")
REQUEST, WORDS = "Describe this picture in one sentence.", 24
"""What the drafter is asked for a caption, and how many tokens it may take."""
MOST = 64
"""Tokens of a law that a search for weights looks at."""


class Ibed(Massv):
    """Drafts a chain with a mixture of members.

    Args: net: the model that all of them are. length: tokens drafted per round. members: at least two of MEMBERS.
        weights: of the members, positive, normalised here; equal if not given.
    Raises: InputError: unknown members, or weights that do not fit them.
    """

    method = "ibed"
    source = "IbED, ICLR 2025 workshop (in-batch ensemble drafting)"
    kin = ("tabed", "massv", "spec-llava")

    def __init__(
        self,
        net: Eyes,
        length: int = 4,
        members: Sequence[str] = ("multimodal", "pooled", "text"),
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(net, length)
        self.members = tuple(members)
        known = set(self.members) & set(MEMBERS)
        if not 2 <= len(self.members) == len(known):
            raise InputError(
                f"an ensemble has two or more of the members {', '.join(MEMBERS)}, each once; got {list(members)}"
            )
        given = [1.0] * len(self.members) if weights is None else [float(weight) for weight in weights]
        if len(given) != len(self.members) or not all(0 < weight < float("inf") for weight in given):
            raise InputError(
                f"an ensemble of {len(self.members)} members needs as many positive weights, got {weights}"
            )
        self.weights = tuple(weight / sum(given) for weight in given)
        self.target: Any = None

    def save(self, folder: Any) -> dict[str, Any]:
        """See `Massv`."""
        options = {"length": self.length, "members": list(self.members), "weights": list(self.weights)}
        return {**super().save(folder), "options": options}

    def bind(self, target: Any) -> None:
        """See `Massv`."""
        super().bind(target)
        self.target = target
        if "caption" in self.members and not getattr(target.processor, "chat_template", None):
            raise MismatchError(
                "the caption member writes a prompt of its own: it needs a processor with a chat template"
            )

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Chorus:
        """Read every member's prompts, all in one forward."""
        seen = self.net.pictures(state, self.placeholders)
        texts = [ids[:-1] for ids in state.ids]
        captions = self.captions(texts, seen) if "caption" in self.members else [[] for _ in texts]
        prompts = [
            self.net.prompt(ids, here, self.placeholders, member, caption)
            for member in self.members
            for ids, here, caption in zip(texts, seen, captions, strict=True)
        ]
        cache = self.absorb(prompts)
        return Chorus(
            self,
            sampler,
            kind,
            cache,
            [ids[-1:] for ids in state.ids],
            weights=torch.tensor(self.weights, device=cache.device).expand(len(texts), -1),
        )

    def captions(self, texts: list[list[int]], seen: list[Tensor]) -> list[list[int]]:
        """What the drafter says about each prompt's pictures, greedily; nothing where there are none."""
        tokenizer, template = self.target.processor.tokenizer, self.target.processor
        turns = [{"role": "user", "content": [{"type": "text", "text": REQUEST}]}]
        said = template.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        asked = tokenizer(REQUEST + said.partition(REQUEST)[2], add_special_tokens=False)["input_ids"]
        ends = {*self.target.ends()}
        prompts = []
        for ids, slots in zip(texts, seen, strict=True):
            stop = max((place + 1 for place, token in enumerate(ids) if token in self.placeholders), default=0)
            shown = self.net.prompt(ids[:stop], slots, self.placeholders)
            prompts.append(torch.cat([shown, self.net.words(asked)]))
        cache = self.absorb([prompt[:-1] for prompt in prompts])
        found: list[list[int]] = [[] for _ in texts]
        tokens = torch.tensor([asked[-1:]] * len(texts), device=cache.device)
        for _ in range(WORDS):
            steps = chain(tokens)
            logits = self.decoder.extend(cache, tokens, steps.depth, steps.ancestors).logits[:, -1]
            cache.commit(1, [[0]] * len(texts))
            tokens = forbid(logits, self.placeholders).argmax(-1, keepdim=True)
            for words, token in zip(found, tokens[:, 0].tolist(), strict=True):
                if not ends & {*words}:
                    words.append(token)
        return [
            [token for token in words if token not in ends] if len(slots) else []
            for words, slots in zip(found, seen, strict=True)
        ]


class Tabed(Ibed):
    """The same, its weights chosen at test time, for each request by itself."""

    method = "tabed"
    source = "TABED, arXiv 2601.20357"
    kin = ("ibed", "massv", "spec-llava")

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Chorus:
        """See `Ibed`."""
        chorus = super().begin(state, sampler, kind)
        chorus.search = Search(grid(len(self.members)).to(chorus.cache.device), len(state.ids))
        return chorus


@dataclass
class Chorus(Writing):
    """An ensemble on one request. The rows of the cache are the members, and within each the rows of the batch.

    weights: [B, J]. laws: of the draft at hand, per step [J, B, V]. search: of better weights, or None.
    """

    weights: Tensor = field(kw_only=True)
    laws: list[Tensor] = field(default_factory=list)
    search: Search | None = None

    @property
    def members(self) -> int:
        """J."""
        return self.weights.shape[1]

    def propose(self, state: State) -> Draft:
        """See `Writing`."""
        self.laws = []
        return super().propose(state)

    def _read(self, tokens: Tensor, counts: list[int]) -> Tensor:
        return super()._read(tokens.repeat(self.members, 1), counts * self.members)

    def _step(self, token: Tensor) -> Tensor:
        return super()._step(token.repeat(self.members))

    def _move(self, by: list[int]) -> None:
        super()._move(by * self.members)

    def _scores(self, logits: Tensor, path: Tensor) -> Tensor:
        """The logarithm of the mixture; logits: [J * B, V]."""
        each = [super(Chorus, self)._scores(one, path).softmax(-1) for one in logits.chunk(self.members)]
        self.laws.append(torch.stack(each))
        return torch.einsum("bj,jbv->bv", self.weights, self.laws[-1]).log()

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """See `Writing`; what the target said is held against what each member said."""
        if self.search is not None and draft is self.drafted and self.laws:
            p = self.sampler.warp(draft, verified.logits)[:, : len(self.laws)].softmax(-1)
            reached = torch.arange(p.shape[1], device=p.device) < accepted.count[:, None]
            self.search.see(p, torch.stack(self.laws, 2), reached)
            self.weights = self.search.best(self.weights)
        super().observe(state, draft, verified, accepted)


class Search:
    """The weights with which the mixture would have said most often what the target says; of equals, those closest
    to it.

    Sums over all verified positions, so nothing has to be remembered: for every point of a grid of weights, how
    often its likeliest token was the target's, and KL(p || mixture). Both look at the MOST likeliest tokens of every
    law alone.

    Args: points: [G, J]. batch: rows, each with sums of its own.
    """

    def __init__(self, points: Tensor, batch: int) -> None:
        self.points = points
        self.hits, self.distance = points.new_zeros(2, batch, len(points))

    def see(self, p: Tensor, laws: Tensor, reached: Tensor) -> None:
        """Take note of a round. p: [B, n, V] of the target. laws: [J, B, n, V] of the members. reached: [B, n]
        bool."""
        most = min(MOST, p.shape[-1])
        shown = torch.cat([p.topk(most, -1).indices, *laws.topk(most, -1).indices], -1)  # [B, n, C]; p's come first
        members = torch.stack([law.gather(-1, shown) for law in laws], 2)  # [B, n, J, C]
        mixed = torch.einsum("gj,bnjc->bngc", self.points, members)
        said = shown[:, :, None].expand(*mixed.shape).gather(-1, mixed.argmax(-1, keepdim=True))[..., 0]
        hit = said == p.argmax(-1, keepdim=True)
        true = p.gather(-1, shown)[..., None, :most]
        apart = (true * (true.clamp(min=1e-9) / mixed[..., :most].clamp(min=1e-9)).log()).sum(-1)
        self.hits += (hit & reached[..., None]).sum(1)
        self.distance += (apart * reached[..., None]).sum(1)

    def best(self, before: Tensor) -> Tensor:
        """[B, J]; rows that have seen nothing keep what they had before."""
        top = self.hits == self.hits.amax(1, keepdim=True)
        chosen = self.points[self.distance.masked_fill(~top, torch.inf).argmin(1)]
        return torch.where((self.distance != 0).any(1, keepdim=True), chosen, before)


def grid(members: int, parts: int = 10) -> Tensor:
    """[G, J] all weights that are multiples of 1 / parts and add up to one."""
    cuts = itertools.combinations(range(parts + members - 1), members - 1)
    stops = torch.tensor([(-1, *cut, parts + members - 1) for cut in cuts])
    return (stops.diff(dim=1) - 1) / parts
