"""Kangaroo's adapter as Equationliu/Kangaroo publishes it (arXiv 2404.18911).

    layers.0.input_layernorm.weight [H], layers.0.self_attn.{q,k,v,o}_proj.weight, norm.weight [H]

The configuration is that of a Llama layer; after which layer of the target to leave is an argument of the published
program, 2 for Vicuna-7B and 3 for Vicuna-13B. Here it is read from `exit_layer` in config.json.
"""

from __future__ import annotations

from typing import Any

from mmspec.drafters.kangaroo import Adapter, Kangaroo
from mmspec.errors import CheckpointError
from mmspec.interchange.published import CONFIG, Published, layer_config, same_vocabulary

NAMES = {
    "layers.0.input_layernorm.weight": "input_norm.weight",
    "norm.weight": "norm.weight",
    **{f"layers.0.self_attn.{part}_proj.weight": f"attention.{part}_proj.weight" for part in "qkvo"},
}
PUBLISHED = {32: 2, 40: 3}
"""Layers of the target -> exit layer, of the published adapters."""


class KangarooLayout:
    """See `mmspec.interchange.published.Layout`."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """By the names, exactly."""
        return names == set(NAMES)

    @staticmethod
    def read(published: Published, target: Any) -> Kangaroo:
        """With the default tree."""
        published.refuse(num_hidden_layers=1)
        layer = published.config.get("exit_layer", PUBLISHED.get(target.num_layers))
        if not isinstance(layer, int):
            raise CheckpointError(
                f"after which layer of the target the drafter in {published.folder} leaves is not stated, and a target "
                f'of {target.num_layers} layers is none of the published ones: add "exit_layer" to {CONFIG}'
            )
        same_vocabulary(published, published.config, target)
        config = layer_config(published, published.config, target, "layers.0.self_attn.q_proj.weight")
        net = Adapter(config, layer)
        return Kangaroo(published.fill(net, target, NAMES.items()))
