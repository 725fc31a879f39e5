"""Kangaroo: the target's own first layers and a small adapter draft, the whole target verifies (arXiv 2404.18911).

The residual stream that enters layer E, after the token x_t, goes through one attention block without an MLP and a
norm; the target's frozen output head makes that the law of x_{t+1}. Unlike a feature of the last layer it exists for
drafted tokens, too: E layers give it, so nothing has to be estimated.

The shallow layers run as a model of the target's class over the target's own modules, and on the target's own cache:
what it holds of its first E layers is what they would compute. Draft nodes are appended there and dropped before
verification. A public forward starts at the embeddings, so verification computes the shallow layers of the drafted
nodes again; that costs E of L layers of every verification, which the method as published does not pay. Its stop at
low confidence is left to the size of the tree, since a stop within a draft would wait for the device at every level.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm, LlamaRotaryEmbedding

from mmspec.cache import RowCache
from mmspec.causal_state import CausalState
from mmspec.contract import Draft, State
from mmspec.drafters.growing import Above
from mmspec.drafters.heads import HeadNet
from mmspec.drafters.on_slots import OnSlots, SlotDrafter
from mmspec.drafters.slots import Slots, beyond
from mmspec.errors import MismatchError
from mmspec.targets import CausalTarget


class Adapter(HeadNet):
    """An attention block without an MLP. exit_layer: E, the number of shallow layers it stands on."""

    def __init__(self, config: LlamaConfig, exit_layer: int) -> None:
        super().__init__(config, exit_layer=exit_layer)
        self.input_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = LlamaAttention(config, layer_idx=0)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, features: Tensor, positions: Tensor, mask: Tensor | None, cache: Any = None) -> Tensor:
        """Shallow features [B, N, H] at positions [B, N] -> what enters the output head, [B, N, H].

        mask: additive [B, 1, N, K], or None for plain causal attention without a past.
        """
        attended, _ = self.attention(
            hidden_states=self.input_norm(features),
            position_embeddings=self.rotary(features, positions),
            attention_mask=mask,
            past_key_values=cache,
        )
        return self.norm(features + attended)


@dataclass
class Jumping(OnSlots):
    """Kangaroo on one request.

    depth: [B, M] of the nodes that were forwarded since `cache`, the view of the target's, was taken.
    """

    drafter: Kangaroo
    slots: Slots
    cache: RowCache = field(init=False)
    depth: Tensor = field(init=False)

    def propose(self, state: State) -> Draft:
        """Draft from the pending token on, then take everything back out of both caches."""
        assert isinstance(state, CausalState)
        committed = state.cache
        self.cache = committed.first(self.drafter.net.settings["exit_layer"])
        self.depth = torch.zeros(len(committed.lengths), 0, dtype=torch.long, device=committed.device)
        draft = self.drafter.tree(state, self.choice, self._expand)
        self.slots.forget()
        self.cache.commit(self.depth.shape[1], [[]] * len(committed.lengths))
        return draft

    def _expand(self, level: int, tokens: Tensor, origin: Tensor, above: Above) -> Tensor:
        """See `mmspec.drafters.growing.Expand`. The pending token is forwarded, too, so it is one more node above."""
        nodes = above()
        seen = torch.cat([nodes.new_ones(*nodes.shape[:2], 1), nodes], -1)
        self.depth = torch.cat([self.depth, torch.full_like(tokens, level)], 1)
        if level == 0:
            self.slots.read(self.forwards[0])
        inputs = self.drafter.target.decoder.placed(self.cache, tokens, self.depth, seen)
        features = self.drafter.shallow(**inputs, past_key_values=self.cache.hf, use_cache=True).last_hidden_state
        positions, mask = beyond(self.slots.cache, level, seen, features.dtype)
        return self.drafter.head(self.drafter.net(features, positions, mask, self.slots.cache.hf))


class Kangaroo(SlotDrafter):
    """Drafts with the target's first layers and an `Adapter`."""

    method = "kangaroo"
    source = "Kangaroo, arXiv 2404.18911"
    noun = "Kangaroo"
    net_class: ClassVar[type[HeadNet]] = Adapter
    drafting = Jumping
    shallow: nn.Module

    def taps(self, target: Any) -> tuple[int, ...]:
        """The residual stream that enters layer E."""
        return (self.net.settings["exit_layer"],)

    def bind(self, target: Any) -> None:
        """Share the target's head and its first layers."""
        if not isinstance(target, CausalTarget):
            raise MismatchError(f"Kangaroo runs the first layers of a causal HF model, not of {type(target).__name__}")
        check_layers(target)
        super().bind(target)
        (layers,) = self.taps(target)
        if not 0 < layers < target.num_layers:
            raise MismatchError(f"Kangaroo leaves after 1 to {target.num_layers - 1} layers here, not after {layers}")
        self.shallow = first_layers(target.model.get_decoder(), layers)


def check_layers(target: Any) -> None:
    """Raise MismatchError unless the first layers of a target run alone: its decoder calls them `layers`, and the norm
    behind them `norm`, as most do (others, such as GPT-2 or Phi, would draft from features that nobody learnt), and it
    has one stream: of several, as in Gemma 3n, a tap is one, and what leaves a decoder is made of all;
    nor may layers keep a running state, of which what was drafted could not be taken back."""
    decoder = target.model.get_decoder()
    usual = isinstance(getattr(decoder, "layers", None), nn.ModuleList) and hasattr(decoder, "norm")
    if not usual or target.chains or getattr(decoder.config, "altup_num_inputs", 1) > 1:
        raise MismatchError(f"Kangaroo cannot run the first layers of {type(decoder).__name__} alone")


def first_layers(decoder: Any, count: int) -> nn.Module:
    """The decoder over its own first layers, without the last norm; no module is copied. Its configuration still counts
    all layers, which the vectors per layer of each id in small Gemma 4 go by."""
    shallow: Any = copy.copy(decoder)
    shallow._modules = dict(decoder._modules)
    shallow.layers = nn.ModuleList(list(decoder.layers)[:count])
    shallow.norm = nn.Identity()
    return shallow
