"""Rotary positions of a drafter's layer that has the three axes of its target's pictures (M-RoPE, arXiv 2409.12191).

Every frequency turns by one axis: time, height or width. A token of text has the same place on all of them, so only
prompts with pictures make a difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


class AxesRotary(LlamaRotaryEmbedding):
    """As Llama's, for places on three axes, too.

    Args: config: as for Llama's. axes: [head size / 2] the axis of each frequency, 0 to 2.
    """

    axes: Tensor

    def __init__(self, config: LlamaConfig, axes: Sequence[int]) -> None:
        super().__init__(config)
        self.register_buffer("axes", torch.tensor([*axes, *axes]), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B, N, head size] at positions [B, N], or [3, B, N]; x: of the dtype that is wanted."""
        cos, sin = super().forward(x, positions)
        if positions.ndim == 2:
            return cos, sin
        chosen = self.axes.expand(1, *cos.shape[1:])
        return cos.gather(0, chosen)[0], sin.gather(0, chosen)[0]


def rotary(config: LlamaConfig, axes: Sequence[int] | None) -> LlamaRotaryEmbedding:
    """The rotary positions of a layer, on three axes if these are told."""
    return LlamaRotaryEmbedding(config) if axes is None else AxesRotary(config, axes)
