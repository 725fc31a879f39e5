"""A Llama decoder said again as a Gemma3 decoder: the matrices stay, and what Gemma3 normalises keeps its usual size.

Gemma3 norms queries, keys and what each sublayer adds, where Llama leaves them as large as they come. Trained decoders
of this size hold them nearly constant, so that a gain of that size computes nearly the same, and training finds the
rest sooner than from nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

NARROWER = 1.702  # silu(x) is nearly this times gelu(x / this)


@torch.no_grad()
def translate(llama: Any, gemma: Any, ids: Tensor) -> None:
    """Overwrites the layers and the last norm of a Gemma3 text model; its embeddings are left alone.

    Args: llama: a Llama text model of the same widths and depth. ids: [N, T] int64, a text on which the sizes of what
        Gemma3 normalises are measured.
    """
    with _sizes(llama) as sizes:
        llama(input_ids=ids, use_cache=False)
    stream = gemma.config.hidden_size**0.5  # by which Gemma3 scales embeddings, and so all that is added to them
    for old, new in zip(llama.layers, gemma.layers, strict=True):
        attention, mlp = new.self_attn, new.mlp
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            getattr(attention, name).weight.copy_(getattr(old.self_attn, name).weight)
        mlp.up_proj.weight.copy_(old.mlp.up_proj.weight)
        mlp.down_proj.weight.copy_(old.mlp.down_proj.weight)
        mlp.gate_proj.weight.copy_(old.mlp.gate_proj.weight / NARROWER)
        gains = {
            new.input_layernorm: old.input_layernorm.weight,
            new.pre_feedforward_layernorm: old.post_attention_layernorm.weight,
            attention.q_norm: sizes[old.self_attn.q_proj],
            attention.k_norm: sizes[old.self_attn.k_proj],
            new.post_attention_layernorm: sizes[old.self_attn.o_proj] * stream,
            new.post_feedforward_layernorm: sizes[old.mlp.down_proj] * stream,
        }
        for norm, gain in gains.items():
            norm.weight.copy_(gain - 1.0)  # Gemma3 stores what a gain is beyond 1
    gemma.norm.weight.copy_(llama.norm.weight - 1.0)


@contextmanager
def _sizes(llama: Any) -> Iterator[dict[nn.Module, Tensor]]:
    """While it is open, the mean root mean square of what each projection gives: per head, where it makes heads."""
    sizes: dict[nn.Module, Tensor] = {}

    def noted(module: nn.Module, _: Any, output: Tensor) -> None:
        heads = output.unflatten(-1, (-1, widths[module]))
        sizes[module] = heads.square().mean(-1).sqrt().mean()

    widths: dict[nn.Module, int] = {}
    for layer in llama.layers:
        attention = layer.self_attn
        widths |= dict.fromkeys((attention.q_proj, attention.k_proj), attention.head_dim)
        widths |= dict.fromkeys((attention.o_proj, layer.mlp.down_proj), llama.config.hidden_size)
    hooks = [module.register_forward_hook(noted) for module in widths]
    try:
        yield sizes
    finally:
        for hook in hooks:
            hook.remove()
