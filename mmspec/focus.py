"""Looking at a model's attention weights while it reads, whatever attention it runs with.

Fast attention does not return its weights. A hook on an attention module hears what the module was called with, and
asks the same module once more by the eager rule; the model's own output is not touched. What comes out would be large
(a number per head and pair of positions), so it is computed and handed over a few positions at a time, and reduced at
once.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from mmspec.cache import additive
from mmspec.errors import UnsupportedError

Note = Callable[[int, Tensor], None]
"""note(layer, weights [B, heads, N, K]): N of the new positions over all K so far, new ones included. In every forward
all of them are told, in their order, in portions of at most AT_ONCE."""
AT_ONCE = 256
NAME = "mmspec_watched_portions"
EAGER = "eager_attention_forward"


@contextmanager
def watching(model: Any, layers: Sequence[int], note: Note) -> Iterator[None]:
    """While the block runs, every forward of the model tells `note` the attention weights of some decoder layers.

    Requests that others make of the same model at the same time are not heard: those of other threads.

    Args: layers: indices from 0. Raises: UnsupportedError: the decoder has no attention modules under the usual
    names.
    """
    found = getattr(model.get_decoder(), "layers", None)
    attentions: list[Any] = (
        [getattr(found[layer], "self_attn", None) for layer in layers] if found is not None else [None]
    )
    if None in attentions:
        raise UnsupportedError(f"{type(model).__name__} does not show where its attention is (layers[i].self_attn)")
    hooks = [
        module.register_forward_hook(_asking(layer, note), with_kwargs=True)
        for layer, module in zip(layers, attentions, strict=True)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _asking(layer: int, note: Note) -> Callable[..., None]:
    own = get_ident()

    def hook(module: nn.Module, given: tuple[Any, ...], *more: Any) -> None:
        if get_ident() != own:  # torch may call it without `named` where its own thread removes it meanwhile
            return
        named: dict[str, Any] = more[0]
        eager: Any = copy.copy(module)  # the same weights
        eager.config = copy.copy(module.config)
        eager.config._attn_implementation = NAME
        eager.note = partial(note, layer)
        cache = named.get("past_key_values")
        kept = cache.layers[layer] if cache is not None and layer < len(cache.layers) else None  # else it has no keys
        with torch.no_grad():
            eager.forward(*given, **{**named, "past_key_values": _Kept(kept) if kept else None})

    return hook


def _in_portions(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """The module's own eager attention, as transformers calls it, whose weights are told to `module.note`.

    Args: query: [B, heads, N, D]. key, value: [B, kv heads, K, D]. attention_mask: [B or 1, heads or 1, N, K], bool or
        additive; None is causal.
    """
    files = (vars(sys.modules[kind.__module__]) for kind in type(module).__mro__)
    eager: Any = next((each[EAGER] for each in files if EAGER in each), None)
    if eager is None:
        raise UnsupportedError(f"{type(module).__name__} has no eager attention, so its weights cannot be looked at")
    size, found = query.shape[2], []
    for start in range(0, size, AT_ONCE):
        some = query[:, :, start : start + AT_ONCE]
        if attention_mask is None:
            seen = torch.ones(some.shape[2], key.shape[2], dtype=torch.bool, device=key.device)
            mask = seen.tril(key.shape[2] - size + start)[None, None]
        else:
            mask = attention_mask[:, :, start : start + AT_ONCE]
        mask = additive(mask, query.dtype) if mask.dtype == torch.bool else mask
        out, weights = eager(module, some, key, value, mask, **more)
        module.note(weights)
        found.append(out)
    return torch.cat(found, 1), None


AttentionInterface.register(NAME, _in_portions)


class _Kept:
    """A cache that was updated already: it says what it holds."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def update(self, keys: Tensor, values: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
        """All keys and values of the layer."""
        return self.layer.keys, self.layer.values


class Focus:
    """How much attention each position of a prompt gets: the mean over heads and over the prompt's positions.

    Args: lengths: real positions per row; what stands behind them does not look.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths
        self.sums: Tensor | None = None  # [B, K]
        self.read = 0

    def note(self, layer: int, weights: Tensor) -> None:
        """See `watching`; of one layer."""
        size = weights.shape[2]
        place = self.read + torch.arange(size, device=weights.device)
        looks = place < torch.tensor(self.lengths, device=weights.device)[:, None]
        sums = (weights.float().mean(1) * looks[..., None]).sum(1)
        if self.sums is not None:
            sums[:, : self.sums.shape[1]] += self.sums
        self.sums, self.read = sums, self.read + size

    def mean(self) -> Tensor:
        """[B, T] float32."""
        assert self.sums is not None
        return self.sums / torch.tensor(self.lengths, device=self.sums.device)[:, None]
