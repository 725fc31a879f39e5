"""Drafters that see, as other projects publish them (see `mmspec.interchange`).

MSD       Lyn-Lucy/MSD: the names of an EAGLE head, the configuration of a model that sees
ViSpec    KangJialiang/ViSpec: an EAGLE head's, and imadpt.q [queries, heads, head_dim],
          imadpt.{k,v}_proj.weight (with a bias where `qkv_bias` says so), imadpt.o_proj.weight,
          img_fc.weight [H, 2H] over [feature; global feature], img_fc.bias
DREAM     SAI-Lab-NYU/DREAM: known, and refused
"""

from __future__ import annotations

from typing import Any

from mmspec.errors import UnsupportedError
from mmspec.interchange.eagle import SEEING, is_eagle, parts
from mmspec.interchange.published import Published
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


class MsdLayout:
    """See `mmspec.interchange.published.Layout`."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """By the names of an EAGLE head in the company of eyes."""
        return is_eagle(names) and bool(SEEING & set(config))

    @staticmethod
    def read(published: Published, target: Any) -> Msd:
        """With the default tree."""
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
        net = ViSpecHead(config, len(published.tensors["imadpt.q"]), direct=True)
        biases = ["adaptor.keys.bias", "adaptor.values.bias", "inject.bias"]
        return ViSpec(published.fill(net, target, [*pairs, *ADAPTOR.items()], [*zero, *biases]))


class DreamLayout:
    """See `mmspec.interchange.published.Layout`."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """By the gates."""
        return "layers.1.cross_attn_attn_gate" in names

    @staticmethod
    def read(published: Published, target: Any) -> Any:
        """Raise UnsupportedError: other slots."""
        raise UnsupportedError(
            f"{published.folder} is a published DREAM drafter: its layers read a slot for the first token of a text, "
            "which looks at all features at once, and the drafter here has no such slot; train one with "
            "mmspec train drafter --method dream"
        )
