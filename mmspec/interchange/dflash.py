"""DFlash as z-lab publishes it (arXiv 2602.06036), and as `speculators` does.

    fc.weight [H, taps * H], hidden_norm.weight [H], norm.weight [H]
    layers.{i}.{input_layernorm,post_attention_layernorm}.weight, layers.{i}.self_attn.{q,k,v,o}_proj.weight,
    layers.{i}.self_attn.{q,k}_norm.weight, layers.{i}.mlp.{gate,up,down}_proj.weight
    embed_tokens.weight [V, H], lm_head.weight [words, H], d2t, t2d: optional, frozen copies of the target's

A masked slot is the embedding of `mask_token_id`. z-lab numbers its taps by the layer that a state leaves
(`target_layer_ids`), speculators by the layer that it enters (`aux_hidden_state_layer_ids`), which is ours.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config

from mmspec.drafters.dflash import BlockNet, DFlash
from mmspec.errors import CheckpointError, MismatchError, shorten
from mmspec.interchange.published import (
    CONFIG,
    Published,
    layer_config,
    same_embeddings,
    same_head,
    same_vocabulary,
    warn_of_axes,
)

EMBEDDINGS, HEAD = "embed_tokens.weight", "lm_head.weight"
FULL = "full_attention"
OTHER_ATTENTION = ("causal", "use_swa", "attention_sink_bias")
"""Settings in `dflash_config` that ask for another attention than that of the paper."""


def pairs(net: BlockNet) -> list[tuple[str, str]]:
    """All names, published and ours: but for one they are the same. The masked slot has none of its own."""
    renamed = {"context_norm.weight": "hidden_norm.weight"}
    return [(renamed.get(name, name), name) for name in net.state_dict()]


class DFlashLayout:
    """See `mmspec.interchange.published.Layout`."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """By the norm of the context."""
        return {"fc.weight", "hidden_norm.weight"} <= names

    @staticmethod
    def read(published: Published, target: Any) -> DFlash:
        """With the default tree."""
        told = published.config
        own = told.get("dflash_config") or {}
        published.refuse(sample_from_anchor=False, sliding_window_non_causal=False)
        shape = told.get("transformer_layer_config", told)
        asked = {name: own.get(name) for name in OTHER_ATTENTION}
        asked["use_sliding_window"] = shape.get("use_sliding_window")
        for name, value in asked.items():
            if value:
                raise MismatchError(
                    f"{published.folder / CONFIG} says {name} = {shorten(value)}; drafters without it are supported"
                )
        kinds = set(shape.get("layer_types") or [FULL])
        if kinds != {FULL}:
            raise MismatchError(
                f"the layers of {published.folder} are {', '.join(sorted(kinds))}; only {FULL} is known"
            )
        config = layer_config(published, shape, target, "layers.0.self_attn.q_proj.weight", Qwen3Config)
        warn_of_axes(published, shape, target)
        block = told.get("block_size") or own.get("block_size")
        mask = told.get("mask_token_id", own.get("mask_token_id"))
        taps = told.get("aux_hidden_state_layer_ids") or [tap + 1 for tap in own.get("target_layer_ids") or []]
        if not isinstance(block, int) or not isinstance(mask, int) or not taps:
            raise CheckpointError(f"{published.folder / CONFIG} does not state block_size, mask_token_id and layer ids")
        net = BlockNet(config, taps, block)
        published.tensors["mask"] = masked(published, target, mask)
        words(published, shape, target)
        return DFlash(published.fill(net, target, pairs(net)))


def masked(published: Published, target: Any, mask: int) -> Tensor:
    """[H] what stands in a masked slot; the table it comes from must else be the target's."""
    table = published.tensors.get(EMBEDDINGS)
    own = target.embed.weight
    if not 0 <= mask < (len(own) if table is None else len(table)):
        raise MismatchError(f"mask_token_id {mask} in {published.folder} is no id of the target, which has {len(own)}")
    if table is None:
        return target.embed(torch.tensor([mask], device=own.device))[0].detach().cpu()
    return table[mask] * same_embeddings(published, target, but=mask)


def words(published: Published, shape: dict[str, Any], target: Any) -> None:
    """Take the output head and its vocabulary, which must be the target's or a part of it: the target's own drafts."""
    kept = published.tensors.pop("t2d", None)
    published.tensors.pop("d2t", None)
    if HEAD not in published.tensors:
        same_vocabulary(published, shape, target)
        return
    partial = kept is not None and bool(kept.any()) and len(published.tensors[HEAD]) < len(target.head.weight)
    same_head(published, target, HEAD, kept.nonzero()[:, 0] if partial and kept is not None else None)
