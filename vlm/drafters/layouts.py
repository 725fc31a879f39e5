"""Drafters that see, as other projects publish them (see `mmspec.interchange`).

MSD       Lyn-Lucy/MSD: the names of an EAGLE head, the configuration of a model that sees
ViSpec    KangJialiang/ViSpec: an EAGLE head's, and imadpt.q [queries, heads, head_dim],
          imadpt.{k,v}_proj.weight (with a bias where `qkv_bias` says so), imadpt.o_proj.weight,
          img_fc.weight [H, 2H] over [feature; global feature], img_fc.bias
DREAM     SAI-Lab-NYU/DREAM: layers.{0,2} are decoder layers (the first without an input norm), layers.1.cross_attn.*
          with layers.1.cross_attn_{attn,mlp}_gate the block between them, norm.weight; no fc

Published DREAM drafters have a slot for the first token of a text, which sees all features of the prompt alike. In a
tree a node sees the estimates on its own path; the released program lets it see those of other branches, too.
"""

from __future__ import annotations

from typing import Any

from mmspec.errors import MismatchError, shorten
from mmspec.interchange.eagle import BIASES, EMBEDDINGS, LAYER, SEEING, is_eagle, parts
from mmspec.interchange.published import (
    THREE_AXES,
    Published,
    layer_config,
    same_embeddings,
    same_vocabulary,
    stated_rope,
)
from mmspec.vlm.drafters.dream import Dream, DreamNet
from mmspec.vlm.drafters.msd import Msd, MsdHead
from mmspec.vlm.drafters.vispec import ViSpec, ViSpecHead

ADAPTOR = {
    "imadpt.q": "adaptor.queries",
    "imadpt.k_proj.weight": "adaptor.keys.weight",
    "imadpt.v_proj.weight": "adaptor.values.weight",
    "imadpt.k_proj.bias": "adaptor.keys.bias",
    "imadpt.v_proj.bias": "adaptor.values.bias",
    "imadpt.o_proj.weight": "adaptor.out.weight",
    "img_fc.weight": "inject.weight",
    "img_fc.bias": "inject.bias",
}
"""Published -> ours."""
BETWEEN = {
    **{f"layers.1.cross_attn.{part}.weight": f"across.{part}.weight" for part in ("q_proj", "k_proj", "v_proj")},
    **{f"layers.1.cross_attn.{part}.weight": f"across.{part}.weight" for part in ("o_proj", "q_norm", "k_norm")},
    **{f"layers.1.mlp.{part}_proj.weight": f"across.mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
    "layers.1.input_layernorm.weight": "across.norm.weight",
    "layers.1.post_attention_layernorm.weight": "across.mlp_norm.weight",
    "layers.1.cross_attn_attn_gate": "across.attention_gate",
    "layers.1.cross_attn_mlp_gate": "across.mlp_gate",
    "norm.weight": "norm.weight",
}
"""The same, for DREAM's block between the layers and what stands behind them."""


class MsdLayout:
    """See `mmspec.interchange.published.Layout`."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """By the names of an EAGLE head in the company of eyes."""
        return is_eagle(names) and bool(SEEING & set(config))

    @staticmethod
    def read(published: Published, target: Any) -> Msd:
        """With the default tree.

        Raises: MismatchError: its image slots were placed on three axes, as Qwen-VL's are.
        """
        rope = stated_rope(published.config)
        if rope.get("mrope_section") or THREE_AXES in (rope.get("rope_type"), rope.get("type")):
            raise MismatchError(
                f"the drafter in {published.folder} places image slots on three axes ({shorten(rope)}); an MSD drafter "
                "reads them one after the other here"
            )
        config, pairs, zero = parts(published, target)
        return Msd(published.fill(MsdHead(config), target, pairs, zero))


class ViSpecLayout:
    """See `mmspec.interchange.published.Layout`."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """By the queries of the adaptor."""
        return "imadpt.q" in names

    @staticmethod
    def read(published: Published, target: Any) -> ViSpec:
        """With the default tree; how many queries there are, the weights tell."""
        config, pairs, zero = parts(published, target)
        net = ViSpecHead(config, len(published.tensors["imadpt.q"]))
        biases = ["adaptor.keys.bias", "adaptor.values.bias", "inject.bias"]
        return ViSpec(published.fill(net, target, [*pairs, *ADAPTOR.items()], [*zero, *biases]))


class DreamLayout:
    """See `mmspec.interchange.published.Layout`."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """By the gates."""
        return "layers.1.cross_attn_attn_gate" in names

    @staticmethod
    def read(published: Published, target: Any) -> Dream:
        """With the default tree. All image slots are read: the released program leaves none out."""
        config = layer_config(published, published.config, target, "layers.0.self_attn.q_proj.weight")
        if EMBEDDINGS not in published.tensors:
            same_vocabulary(published, published.config, target)
        same_embeddings(published, target)
        net = DreamNet(config, keep=1.0, opening=True)
        for name in ("layers.1.cross_attn.k_proj.weight", "layers.1.cross_attn.v_proj.weight"):
            heads = published.take(name, config.num_key_value_heads * config.head_dim, config.hidden_size)
            groups = config.num_attention_heads // config.num_key_value_heads  # ours has as many as there are queries
            published.tensors[name] = (
                heads.unflatten(0, (-1, config.head_dim)).repeat_interleave(groups, 0).flatten(0, 1)
            )
        biases = [*BIASES, "self_attn.o_proj.bias"] if config.attention_bias else []
        pairs = [*BETWEEN.items(), ("layers.2.input_layernorm.weight", "above.input_layernorm.weight")]
        for theirs, ours in (("layers.0", "below"), ("layers.2", "above")):
            pairs += [(f"{theirs}.{name}", f"{ours}.{name}") for name in (*LAYER, *biases)]
        zero = [f"{ours}.{name}" for ours in ("below", "above") for name in biases[-1:]]
        return Dream(published.fill(net, target, pairs, zero))
