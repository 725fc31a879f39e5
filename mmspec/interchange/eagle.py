"""EAGLE, EAGLE-2 and HASS as SafeAILab/EAGLE and its descendants publish them (arXiv 2401.15077, 2406.16858).

    fc.weight [H, 2H], fc.bias [H] unless `bias` is false
    layers.0.self_attn.{q,k,v,o}_proj.weight, the first three with a bias where `qkv_bias` says so
    layers.0.post_attention_layernorm.weight, layers.0.mlp.{gate,up,down}_proj.weight
    embed_tokens.weight [V, H], a frozen copy of the target's

The input of fc is [embedding; feature], as here; the weights of EAGLE and EAGLE-2 are alike, and draft dynamic
trees.
"""

from __future__ import annotations

import logging
from typing import Any

from transformers import LlamaConfig

from mmspec.drafters.eagle import Eagle, EagleHead
from mmspec.interchange.published import (
    CONFIG,
    Published,
    layer_config,
    same_embeddings,
    same_vocabulary,
    sight,
)

logger = logging.getLogger(__name__)

EMBEDDINGS = "embed_tokens.weight"
AS_TOKENS = "image_slots_hold_tokens"
"""A field that is ours, and stands in what is exported here for targets that see: whether the head learnt from the
image token's embedding (true), or from the pictures' own (false). No other project's configuration tells."""
LAYER = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)
BIASES = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
NEEDED = {"fc.weight", *(f"layers.0.{name}" for name in LAYER)}
KNOWN = {*NEEDED, EMBEDDINGS, "fc.bias", *(f"layers.0.{name}" for name in BIASES)}


SEEING = {"mm_vision_tower", "vision_config"}
"""Fields of a configuration that describes eyes: such heads have the same names, and another input (MSD)."""


def is_eagle(names: set[str]) -> bool:
    """Whether these are the names of one layer without an input norm, and nothing else."""
    return names >= NEEDED and names <= KNOWN


def parts(published: Published, target: Any) -> tuple[LlamaConfig, list[tuple[str, str]], list[str]]:
    """What every head of this kind has: the shape of its layer, the names (published and ours), and those among ours
    that are zero where nothing is published for them."""
    published.refuse(num_hidden_layers=1)
    config = layer_config(published, published.config, target, "layers.0.self_attn.q_proj.weight")
    if EMBEDDINGS not in published.tensors:
        same_vocabulary(published, published.config, target)
    same_embeddings(published, target)
    biases = [*BIASES, "self_attn.o_proj.bias"] if config.attention_bias else []
    pairs = [(f"layers.0.{name}", f"layer.{name}") for name in (*LAYER, *biases)]
    zero = ["fc.bias", *(f"layer.{name}" for name in biases[-1:])]
    return config, [("fc.weight", "fc.weight"), ("fc.bias", "fc.bias"), *pairs], zero


class EagleLayout:
    """See `mmspec.interchange.published.Layout`."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """By the names, unless the configuration is that of a model that sees."""
        return is_eagle(names) and not SEEING & set(config)

    @staticmethod
    def read(published: Published, target: Any) -> Eagle:
        """With the default tree of EAGLE-2. Image slots hold the pictures' embeddings, as in the programs of ViSpec and
        MMSpec, which train such heads for models that see; unless the configuration says otherwise."""
        config, pairs, zero = parts(published, target)
        tokens = published.config.get(AS_TOKENS)
        if target.modality == "vlm" and tokens is None:
            logger.warning(
                "the drafter in %s does not say what it read in image slots, and reads the pictures' embeddings, as "
                "heads of EAGLE published for models that see do: if it learnt from the image token's, it drafts worse "
                'than it could, and "%s": true in its %s says so (false, that it did not)',
                published.folder,
                AS_TOKENS,
                CONFIG,
            )
        net = EagleHead(config, **sight(published, published.config, config, target, pictures=not tokens))
        return Eagle(published.fill(net, target, pairs, zero))
