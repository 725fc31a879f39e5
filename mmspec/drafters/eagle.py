"""EAGLE: one decoder layer over the target's last features drafts a dynamic tree (arXiv 2401.15077, 2406.16858).

In the shifted frame, slot t holds the token x_{t+1} and the feature f_t (the target's final hidden state, the tensor
that enters its head): z = fc([E(x_{t+1}); f_t]), one decoder layer without input norm gives an estimate of f_{t+1}, and
the target's own frozen head turns that into the law of x_{t+2}. While drafting, the estimate takes the place of f.

The tree grows level by level (EAGLE-2): every level keeps the `width` most confident nodes and proposes their top-k;
the best `total - 1` candidates are verified. What confidence means depends on the kind of proposal asked for:

    point    log q, plain top-k (EAGLE-2).
    coupled  top-k of log q + g with the target's noise g; the confidence is their softmax.
    sampled  children drawn without replacement; the confidence is a constant of the rank, because a choice that looked
             at the draws would change the law of the ratio rule. The tree is then a static one (EAGLE-1).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from mmspec.cache import RowCache
from mmspec.contract import Accepted, Draft, Kind, Needs, State, Verified
from mmspec.control import TREES
from mmspec.errors import CheckpointError, InputError, MismatchError
from mmspec.placeholders import forbid
from mmspec.sampling import Sampler
from mmspec.tree import best, root

RANK_CONFIDENCE = (-0.35, -1.9, -2.9, -3.5, -4.0, -4.4, -4.7, -5.0)
"""Log-confidence by rank for sampled children: about .70, .15, .055, .03, ... of being the accepted one."""


class EagleHead(nn.Module):
    """The trained part: fc and one decoder layer. Embeddings and output head are the target's.

    Args: config: the shape of the layer (`hidden_size` is the target's).
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        config._attn_implementation = "sdpa"
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layer = LlamaDecoderLayer(config, layer_idx=0)
        self.layer.input_layernorm = nn.Identity()
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(
        self, embeddings: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None, cache: Any = None
    ) -> Tensor:
        """Estimate the next features.

        Args:
            embeddings: [B, N, H] of the tokens x_{t+1}. features: [B, N, H] f_t or estimates.
            positions: [B, N]. mask: additive [B, 1, N, K], or None for plain causal attention without a past.
        Returns: [B, N, H].
        """
        z = self.fc(torch.cat([embeddings, features], -1))
        return self.layer(
            z,
            attention_mask=mask,
            position_embeddings=self.rotary(z, positions),
            past_key_values=cache,
            use_cache=cache is not None,
        )


class Eagle:
    """Drafts with an `EagleHead`.

    Args:
        head: the trained layer. depth: levels of the tree. width: nodes expanded per level.
        top_k: children proposed per node. total: nodes verified, the pending token included.
        sharpness: exponent of the coupled confidence; larger trusts the drafter's log q + g more.
    """

    kinds: frozenset[Kind] = frozenset({"point", "sampled", "coupled"})
    shapes = TREES
    trained = True
    method = "eagle2"
    source = "EAGLE-2, arXiv 2406.16858"
    fits = ("model_type", "hidden_size", "vocab_size", "num_layers", "tokenizer")

    def __init__(
        self,
        head: EagleHead,
        depth: int = 5,
        width: int = 4,
        top_k: int = 4,
        total: int = 16,
        sharpness: float = 1.0,
    ) -> None:
        if min(depth, width, top_k) < 1 or total < 2:
            raise InputError(
                "an EAGLE tree needs depth, width and top_k >= 1 and total >= 2, got "
                f"{depth}, {width}, {top_k} and {total}"
            )
        self.net = head.eval()
        self.depth, self.width, self.top_k, self.total, self.sharpness = depth, width, top_k, total, sharpness
        self.needs = Needs()
        self.target: Any = None

    def bind(self, target: Any) -> None:
        """Share the target's embeddings and head."""
        if self.net.config.hidden_size != target.hidden_size:
            raise MismatchError(
                f"the EAGLE head was made for features of size {self.net.config.hidden_size}, the target has "
                f"{target.hidden_size}"
            )
        self.target = target
        self.needs = Needs(taps=(target.num_layers,))

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the head's weights; returns what `drafter.json` must say to build it again."""
        save_file(self.net.state_dict(), folder / "model.safetensors")
        names = ("depth", "width", "top_k", "total", "sharpness")
        return {"options": {name: getattr(self, name) for name in names}, "config": self.net.config.to_dict()}

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> Eagle:
        """The counterpart of `save`, on the device and in the dtype of `target`."""
        head = EagleHead(LlamaConfig.from_dict(description["config"]))
        weights = load_file(folder / "model.safetensors")
        for name, weight in weights.items():
            if not weight.isfinite().all():
                raise CheckpointError(f"the weights in {folder} are damaged: {name} is not finite")
        head.load_state_dict(weights)
        return cls(head.to(target.model.device, target.model.dtype), **description["options"])

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Growing:
        """Queue the prompt's features; they are read with the first proposal."""
        lengths = [len(ids) - 1 for ids in state.ids]
        width = max(lengths)
        device = state.prompt_length.device
        following = torch.tensor(
            [ids[1:] + [0] * (width - n) for ids, n in zip(state.ids, lengths, strict=True)], device=device
        )
        features = state.prompt_taps[self.target.num_layers]
        return Growing(self, sampler, kind, RowCache(len(lengths), device), [(following, features, lengths)])


@dataclass
class Growing:
    """EAGLE on one request.

    waiting: slots that wait to be read, from the prompt and from every round since the last proposal: tokens [B, M],
        features [B, M, H], and how many are real in each row.
    """

    drafter: Eagle
    sampler: Sampler
    kind: Kind
    cache: RowCache
    waiting: list[tuple[Tensor, Tensor, list[int]]]

    def propose(self, state: State) -> Draft:
        """Read the waiting slots with their true features, then grow the tree on estimates."""
        assert state.pending is not None
        levels = state.levels(self.drafter.depth)
        if levels < 1:
            return root(state.pending)
        own = self.drafter
        width, top_k, total = own.width, own.top_k, own.total
        if state.shape is not None:
            width, top_k, total = state.shape.width, state.shape.width, state.shape.total
        feature = self._read()[:, None]  # [B, 1, H], the estimate at the pending token's slot
        batch, device = feature.shape[0], feature.device
        rows = torch.arange(batch, device=device)[:, None]
        parent = torch.full((batch, 1), -1, device=device)  # candidate index of each frontier node
        score = torch.zeros(batch, 1, device=device)
        # which of the nodes forwarded so far lie on the path to each frontier node
        above = torch.zeros(batch, 1, 0, dtype=torch.bool, device=device)
        grown: list[tuple[Tensor, ...]] = []  # tokens, parents, scores and depth of each level's candidates
        laws: list[tuple[Tensor, Tensor]] = []  # frontier nodes and the law of their children, if these are sampled
        count = 0
        for level in range(levels):
            children, confidence, law = self._children(feature, state.emitted, level, top_k)  # [B, F, k]
            token, sums = children.flatten(1), (score[..., None] + confidence).flatten(1)
            grown.append(
                (token, parent[..., None].expand_as(children).flatten(1), sums, torch.full_like(token, level + 1))
            )
            if law is not None:
                laws.append((parent, law))
            if level + 1 == levels:
                break
            keep = min(width, token.shape[1])
            score, chosen = sums.topk(keep, dim=-1)
            parent, origin = chosen + count, chosen // children.shape[-1]
            count += token.shape[1]
            itself = torch.eye(keep, dtype=torch.bool, device=device).expand(batch, keep, keep)
            above = torch.cat([above[rows, origin], itself], -1)
            feature = self._forward(token.gather(1, chosen), feature[rows, origin], level, above)
        self.cache.commit(self.cache.width - max(self.cache.lengths), [[]] * batch)
        tokens, parents, scores, depth = (torch.cat(part, 1) for part in zip(*grown, strict=True))
        draft, place = best(tokens, parents, scores, depth, state.pending, total, self.kind)
        if laws:
            draft.q = torch.zeros(batch, draft.size, laws[0][1].shape[-1], device=device)
            for parent, law in reversed(laws):  # node 0 last: what was not selected was placed there
                draft.q[rows, place.gather(1, parent % place.shape[1])] = law
        return draft

    def _read(self) -> Tensor:
        """Forward the waiting slots; returns [B, H], the estimate at each row's last one."""
        tokens, features, counts = joined(self.waiting)
        batch, width = tokens.shape
        device = tokens.device
        depth = torch.arange(width, device=device).expand(batch, width)
        causal = torch.ones(width, width, dtype=torch.bool, device=device).tril().expand(batch, width, width)
        positions = self.cache.positions() + depth
        mask = self.cache.mask(causal, depth, features.dtype)
        net, target = self.drafter.net, self.drafter.target
        out = net(target.embed(tokens), features, positions, mask, self.cache.hf)
        self.cache.commit(width, [list(range(count)) for count in counts])
        self.waiting = []
        return out[torch.arange(batch, device=device), torch.tensor(counts, device=device) - 1]

    def _forward(self, tokens: Tensor, features: Tensor, level: int, ancestors: Tensor) -> Tensor:
        """Estimates [B, F, H] for frontier nodes at depth level + 1, whose parents' estimates are `features`."""
        positions = (self.cache.positions() + level).expand(tokens.shape)
        mask = self.cache.mask(ancestors, positions, features.dtype)
        return self.drafter.net(self.drafter.target.embed(tokens), features, positions, mask, self.cache.hf)

    def _children(
        self, feature: Tensor, emitted: Tensor, level: int, top_k: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Children of nodes with estimates [B, F, H]: tokens, log-confidence [B, F, k], and q for sampled ones."""
        target, sampler = self.drafter.target, self.sampler
        scores = sampler.shape(forbid(target.head(feature), target.placeholders))
        k = min(top_k, scores.shape[-1])
        if self.kind == "sampled" and not sampler.greedy:
            g = sampler.draft_noise(emitted, level, feature.shape[1], scores.shape[-1])
            token = (scores + g).topk(k, dim=-1).indices
            prior = torch.tensor([RANK_CONFIDENCE[min(rank, 7)] for rank in range(k)], device=feature.device)
            return token, prior.expand(token.shape), scores.softmax(-1)
        if self.kind == "coupled" and not sampler.greedy:
            g = sampler.target_noise(emitted[:, None] + level, scores.shape[-1])
            scores = (scores + g) * self.drafter.sharpness
        confidence, token = scores.log_softmax(-1).topk(k, dim=-1)
        return token, confidence, None

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Queue the accepted nodes with their true features, whoever drafted them."""
        assert accepted.next is not None
        rows = torch.arange(accepted.path.shape[0], device=accepted.path.device)
        counts = [len(path) for path in accepted.paths]
        path = accepted.path[:, : max(counts)]
        features = verified.taps[self.drafter.target.num_layers][rows[:, None], path]
        tokens = draft.tokens.gather(1, path).roll(-1, 1)
        tokens[rows, accepted.count - 1] = accepted.next
        self.waiting.append((tokens, features, counts))


def joined(waiting: list[tuple[Tensor, Tensor, list[int]]]) -> tuple[Tensor, Tensor, list[int]]:
    """Several rounds' slots as one: tokens [B, M], features [B, M, H], counts; each row's real slots without gaps."""
    if len(waiting) == 1:
        return waiting[0]
    tokens, features = (torch.cat(part, 1) for part in list(zip(*waiting, strict=True))[:2])
    device = tokens.device
    real = torch.cat(
        [
            torch.arange(part.shape[1], device=device) < torch.tensor(n, device=device)[:, None]
            for part, _, n in waiting
        ],
        1,
    )
    counts = [sum(some) for some in zip(*(n for _, _, n in waiting), strict=True)]
    order = real.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : max(counts)]
    return tokens.gather(1, order), features.gather(1, order[..., None].expand(-1, -1, features.shape[-1])), counts
