"""Layers that keep a running state in the place of keys and values: short convolutions, linear attention such as the
gated delta rule (arXiv 2412.06464), state spaces such as Mamba 2 (2405.21060).

Nothing can be cropped from such a state. So what it was before the last forward is kept, and what each of these layers
read in it: where a row keeps only the first of its nodes, the layer reads these once more, from the state before. That
costs the layer's own products for the nodes that are kept, and nothing where all are, as in plain steps. Each branch of
a tree would need a state of its own: models with such layers take chains.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

KINDS = {"linear_attention", "conv"}
"""Types of such layers in configurations."""
SERVED = {
    "bamba", "granitemoehybrid", "lfm2", "lfm2_moe", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
}  # fmt: skip
"""Model types whose layers read several tokens from a state on as they read one (not Nemotron-H, which bounds its steps
only there), and keep it as `Running` expects."""


class Running(LinearAttentionLayer):
    """The states of one layer: the last inputs of its convolution [B, C, kernel size], and what it sums up [B, heads,
    ..], if it does. A forward replaces them; none that is held is changed in place.

    before: the states before the forwards since it was last told what is kept. call: the layer's module, the name of
    its argument for the cache, and what it read in them, [B, N, H]; None where there were none. marked: see
    `RowCache.mark`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.record_past = True  # else a single token changes the state in place
        self.before: list[Tensor] = []
        self.call: tuple[nn.Module, str, Tensor] | None = None
        self.marked: list[Tensor] = []

    @property
    def states(self) -> list[Tensor]:
        """Those that there are."""
        return [state for state in (self.conv_states[0], self.recurrent_states[0]) if state is not None]

    def begin(self, states: list[Tensor]) -> None:
        """Go on from these states."""
        for held, state in zip((self.conv_states, self.recurrent_states), states, strict=False):
            held[0] = state
        self.has_previous_state[0] = bool(states)

    def hear(self, module: nn.Module, name: str, hidden: Tensor) -> None:
        """Take note of a forward that begins."""
        kept = self.states
        if hidden.shape[1] == 1 and len(kept) > 1:
            self.recurrent_states[0] = kept[1].clone()  # Mamba 2 adds a single token in place
        if self.call is None:
            self.before = kept
        else:
            hidden = torch.cat([self.call[2], hidden], 1)
        self.call = module, name, hidden

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> Tensor:
        """The convolution's inputs, those of the state before them."""
        assert conv_kernel_size is not None
        past = self.conv_states[0]
        whole = conv_states if past is None else torch.cat([past, conv_states], -1)
        short = max(0, conv_kernel_size - whole.shape[-1])
        self.conv_states[0] = F.pad(whole, (short, 0))[..., -conv_kernel_size:].clone()  # a view would keep the prompt
        self.has_previous_state[0] = True
        return whole

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """The state itself."""
        self.recurrent_states[0] = recurrent_states
        return recurrent_states

    def crop(self, tokens_to_remove: int) -> None:
        """Nothing: see `keep`."""

    def keep(self, kept: list[int]) -> None:
        """Let each row's state be the one after the first nodes since this was last called. kept: how many, of each."""
        if self.call is None:
            return
        (module, name, hidden), before, after = self.call, self.before, self.states
        self.before, self.call = [], None
        if all(count == hidden.shape[1] for count in kept):
            return
        parts, order = [], []
        for count in set(kept):
            rows = [row for row, own in enumerate(kept) if own == count]
            order += rows
            whole = count == hidden.shape[1]
            part = [state[rows] for state in (after if whole else before)]
            parts.append(part if whole or not count else again(module, name, hidden[rows, :count], part))
        back = torch.tensor(order, device=hidden.device).argsort()
        self.begin([torch.cat(states)[back] for states in zip(*parts, strict=True)])


def layers_for(kinds: list[str]) -> list[Any]:
    """The layers of an empty cache. kinds: type of every layer of a model."""
    return [Running() if kind in KINDS else DynamicLayer() for kind in kinds]


def again(module: nn.Module, name: str, hidden: Tensor, states: list[Tensor]) -> list[Tensor]:
    """The states after a layer has read `hidden` [B, N, H] from other states on."""
    running, cache = Running(), DynamicCache()
    running.begin(states)
    cache.layers = [running] * (module.layer_idx + 1)  # type: ignore[operator]
    module(hidden, **{name: cache})
    return running.states


def listen(decoder: Any, layers: Collection[int]) -> None:
    """Let the `Running` states of every cache hear what these layers of a decoder read; other caches hear nothing."""
    for place in layers:
        for part in decoder.layers[place].children():
            told = _tell in part._forward_pre_hooks.values()  # copies of a model have it already
            if getattr(part, "layer_idx", None) == place and not told:
                part.register_forward_pre_hook(_tell, with_kwargs=True)


def _tell(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
    for name, cache in kwargs.items():
        layer = cache.layers[module.layer_idx] if isinstance(cache, Cache) and cache.layers else None
        if isinstance(layer, Running):
            layer.hear(module, name, args[0] if args else kwargs["hidden_states"])
