"""EAGLE-3 as SafeAILab/EAGLE, SpecForge and AngelSlim publish it (arXiv 2503.01840), and as `speculators` does.

    fc.weight [H, taps * H]                      over the target's hidden states, side by side
    midlayer.input_layernorm.weight [H]          of the embedding        (speculators: layers.0. for midlayer.)
    midlayer.hidden_norm.weight [H]              of the feature
    midlayer.self_attn.{q,k,v}_proj.weight [.., 2H], .o_proj.weight, midlayer.post_attention_layernorm.weight
    midlayer.mlp.{gate,up,down}_proj.weight
    norm.weight [H], lm_head.weight [words, H]
    d2t [words] int64, t2d [V] bool              word i stands for the id i + d2t[i]; absent if words = V
    embed_tokens.weight [V, H], optional, a frozen copy of the target's

Tapped by default: the residual streams that enter layers 2, L // 2 and L - 3.

Heads for models that see read the image token's embedding in image slots: so SpecForge, AngelSlim and MMSpec train
them, and vLLM serves them (SGLang with the pictures' embeddings, for which `"image_slots_hold_tokens": false` asks
here). Where `mrope_section` is stated, slot t has the target's positions of x_t on three axes, as AngelSlim trains and
vLLM and SGLang serve; SpecForge makes positions of the text without its first token, which differ in image slots alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.drafters.eagle3 import Eagle3, Eagle3Head, usual_taps
from mmspec.errors import CheckpointError, MismatchError, shorten
from mmspec.interchange.eagle import AS_TOKENS
from mmspec.interchange.published import CONFIG, Published, layer_config, same_embeddings, sight

PREFIXES = ("midlayer.", "layers.0.")
LAYER = {
    "input_layernorm": "embedding_norm",
    "hidden_norm": "feature_norm",
    "self_attn.q_proj": "attention.q_proj",
    "self_attn.k_proj": "attention.k_proj",
    "self_attn.v_proj": "attention.v_proj",
    "self_attn.o_proj": "attention.o_proj",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.up_proj": "mlp.up_proj",
    "mlp.down_proj": "mlp.down_proj",
}
"""The modules of the layer, published -> ours."""
OTHERS = {"fc.weight": "fc.weight", "norm.weight": "norm.weight", "lm_head.weight": "words.weight"}
TAPS = "eagle_aux_hidden_state_layer_ids"


def pairs(prefix: str) -> list[tuple[str, str]]:
    """All names, published and ours, but those of the vocabulary."""
    layer = [(f"{prefix}{theirs}.weight", f"{ours}.weight") for theirs, ours in LAYER.items()]
    return [*OTHERS.items(), *layer]


class Eagle3Layout:
    """See `mmspec.interchange.published.Layout`."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """By the norm of the feature within the first layer, which nothing else has."""
        return any(f"{prefix}hidden_norm.weight" in names for prefix in PREFIXES)

    @staticmethod
    def read(published: Published, target: Any) -> Eagle3:
        """With the default tree."""
        told = published.config
        prefix = next(prefix for prefix in PREFIXES if f"{prefix}hidden_norm.weight" in published.tensors)
        published.refuse(norm_before_fc=False, fc_norm=False)
        if told.get("norm_output"):
            raise MismatchError(
                f"{published.folder / CONFIG} says norm_output = {shorten(told['norm_output'])}; only False is "
                "supported, since a normed state fed back is EAGLE-3.1 (files that SpecForge wrote before September "
                "2026 mean plain EAGLE-3 by it: set it to false in those)"
            )
        shape = told.get("transformer_layer_config", told)
        config = layer_config(published, shape, target, f"{prefix}self_attn.q_proj.weight")
        if config.num_hidden_layers != 1:
            raise MismatchError(f"{published.folder} has {config.num_hidden_layers} layers; only 1 is supported")
        same_embeddings(published, target)
        ids = vocabulary(published, target)
        seen = sight(published, shape, config, target, pictures=not told.get(AS_TOKENS, True))
        net = Eagle3Head(config, taps(published, target), len(ids), bool(told.get("norm_before_residual")), **seen)
        published.tensors["ids"] = ids
        return Eagle3(published.fill(net, target, [*pairs(prefix), ("ids", "ids")]))


def taps(published: Published, target: Any) -> tuple[int, ...]:
    """The hidden states to fuse: as stated, else the usual ones. The field of vLLM and speculators numbers them by the
    layer that a state enters, as here. Ids in `eagle_config` are of both kinds: a list that begins with 1 numbers them
    by the layer that a state leaves (so SGLang tells them apart)."""
    told = published.config
    inner = (told.get("eagle_config") or {}).get(TAPS) or []
    stated = told.get(TAPS) or [tap + (inner[0] == 1) for tap in inner]
    return tuple(stated) if stated else usual_taps(target.num_layers)


def vocabulary(published: Published, target: Any) -> Tensor:
    """[words] the ids of the draft vocabulary."""
    if "lm_head.weight" not in published.tensors:
        raise CheckpointError(f"{published.folder} lacks the tensor lm_head.weight")
    words = len(published.tensors["lm_head.weight"])
    stated = published.config.get("draft_vocab_size", words)
    if stated != words:
        raise MismatchError(f"{published.folder} states a draft vocabulary of {stated}, its lm_head has {words} rows")
    if "d2t" not in published.tensors:
        if words != target.vocab_size:
            raise MismatchError(
                f"{published.folder} has a vocabulary of {words} and no d2t; the target has {target.vocab_size}"
            )
        published.tensors.pop("t2d", None)
        return torch.arange(words)
    ids = published.take("d2t", words).long() + torch.arange(words)
    if "t2d" in published.tensors and not torch.equal(
        published.take("t2d", target.vocab_size).nonzero()[:, 0], ids.sort().values
    ):
        raise CheckpointError(f"d2t and t2d in {published.folder} tell different draft vocabularies")
    if len(ids.unique()) < words or not 0 <= int(ids.min()) <= int(ids.max()) < target.vocab_size:
        raise MismatchError(
            f"d2t in {published.folder} leads to ids from {int(ids.min())} to {int(ids.max())}, each must be one "
            f"of the target's {target.vocab_size}, and none twice"
        )
    return ids
