"""The least time that a step can take, from the dimensions of a model and two ceilings of the card.

A forward of N nodes reads every weight once and multiplies it N times, and reads the keys and values of what it
attends to: T = max(weights / BW, FLOP / F) + max(KV / BW, attention FLOP / (F / 2)). Attention reaches about half of
the rate of large products. Embedding rows are not counted, the output head is. A drafted round can be no faster than

    S = tau / (T(N) / T(1) + depth * T(draft step) / T(1))

times plain decoding: the roofline cap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HALF = 2
"""Bytes of a weight, key or value in bfloat16."""


@dataclass(frozen=True)
class Card:
    """bandwidth: bytes per second of a copy, read and written. flops: of a large bfloat16 product, per second."""

    bandwidth: float
    flops: float
    source: str


H200 = Card(4.3e12, 790e12, "rates of one NVIDIA H200, as measured before: 4.3 TB/s, 790 TFLOP/s")


@dataclass(frozen=True)
class Dims:
    """What of a decoder's configuration decides its bytes. sliding: how many of its layers see `window` positions."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    window: int = 0
    sliding: int = 0

    @classmethod
    def of(cls, config: Any) -> Dims:
        """From a transformers configuration."""
        layers = config.num_hidden_layers
        window = getattr(config, "sliding_window", None) or 0
        kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * layers
        sliding = kinds.count("sliding_attention")
        return cls(
            layers=layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocabulary=config.vocab_size,
            window=window if sliding else 0,
            sliding=sliding,
        )

    @property
    def layer_weights(self) -> int:
        """Parameters of a layer's products: q, k, v, o and the three of a gated MLP."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def weights(self) -> int:
        """Parameters that a step reads, the output head included."""
        return self.layers * self.layer_weights + self.vocabulary * self.hidden

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a step reads."""
        return HALF * self.weights

    def attended(self, length: int) -> int:
        """Positions that a step reads, summed over the layers."""
        near = min(length, self.window) if self.window else 0
        return (self.layers - self.sliding) * length + self.sliding * near

    def kv_bytes(self, length: int) -> int:
        """Bytes of keys and values that a step reads after `length` tokens."""
        return self.attended(length) * 2 * self.kv_heads * self.head_dim * HALF

    def flop(self, nodes: int) -> int:
        """Operations of the products of a forward of that many nodes."""
        return 2 * nodes * self.weights

    def attention_flop(self, nodes: int, length: int) -> int:
        """Operations of attention: scores and the mix of values."""
        return 4 * nodes * self.heads * self.head_dim * self.attended(length)


def step_seconds(dims: Dims, nodes: int, length: int, card: Card, rows: int = 1) -> float:
    """The floor of a forward of `nodes` nodes after `length` committed tokens, for each of `rows` rows."""
    products = max(dims.weight_bytes / card.bandwidth, rows * dims.flop(nodes) / card.flops)
    read = rows * dims.kv_bytes(length) / card.bandwidth
    return products + max(read, rows * dims.attention_flop(nodes, length) / (card.flops / 2))


def draft_seconds(dims: Dims, length: int, card: Card, vocabulary: int | None = None, rows: int = 1) -> float:
    """The floor of one step of an EAGLE head: fc of twice the width, one layer, the output head, one layer's keys.

    Args: vocabulary: words of the head that drafting reads; None for all. rows: of the batch.
    """
    words = dims.vocabulary if vocabulary is None else vocabulary
    weights = 2 * dims.hidden**2 + dims.layer_weights + words * dims.hidden
    kv = rows * length * 2 * dims.kv_heads * dims.head_dim * HALF
    return (HALF * weights + kv) / card.bandwidth
