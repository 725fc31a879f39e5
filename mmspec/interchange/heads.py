"""Medusa and Hydra heads as FasterDecoding/Medusa and zankner/Hydra publish them (arXiv 2401.10774, 2402.05109).

    Medusa    {i}.{j}.linear.{weight,bias}          block j of head i
              {i}.{layers}.weight [V, H]            its projection
    Hydra     hydra_mlp.{i}.{j}.linear.{weight,bias}, of the first block also .res_connection.{weight,bias}, whose
              input is [feature; embeddings since], (i + 2) H wide
              hydra_lm_head.{i}.{weight,bias}
    Hydra++   the same with a dropout before every module, which shifts the numbers: hydra_mlp.{i}.{2j + 1},
              hydra_lm_head.{i}.1; and prefix_embeding_layer.*, a Llama model of one layer of the target's shape

Published as pickles: `mmspec convert` makes safetensors of them, under the same names. How many heads there are, the
weights tell, since published Medusa configurations name another number.
"""

from __future__ import annotations

from typing import Any

from mmspec.drafters.hydra import Hydra, HydraHeads, HydraPlus, PrefixedHeads
from mmspec.drafters.layer import head_config
from mmspec.drafters.medusa import Medusa, MedusaHeads
from mmspec.drafters.static import Shares
from mmspec.errors import CheckpointError
from mmspec.interchange.published import Published, same_embeddings

PREFIX = "prefix_embeding_layer"  # sic
PARAMETERS = ("weight", "bias")
FALLING = ((0.5, 2.2), (0.35, 1.6), (0.2, 1.2), (0.12, 1.4))
SHARES: Shares = tuple(tuple(round(first / rank**power, 4) for rank in range(1, 11)) for first, power in FALLING)
"""Of published heads, fitted: the best tree of 64 nodes has 58 of the 63 in Medusa's own, `mc_sim_7b_63`."""


class MedusaLayout:
    """See `mmspec.interchange.published.Layout`."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """By the configuration."""
        return "medusa_num_heads" in config

    @staticmethod
    def read(published: Published, target: Any) -> Medusa:
        """As many levels as there are heads."""
        levels, layers = heads(published, 0), int(published.config.get("medusa_num_layers", 1))
        net = MedusaHeads(head_config(target), levels, layers, projected=True)
        pairs = [
            (f"{level}.{layer}.linear.{name}", f"heads.{level}.{layer}.linear.{name}")
            for level in range(levels)
            for layer in range(layers)
            for name in PARAMETERS
        ]
        pairs += [(f"{level}.{layers}.weight", f"projections.{level}.weight") for level in range(levels)]
        return Medusa(published.fill(net, target, pairs), shares=SHARES)


class HydraLayout:
    """See `mmspec.interchange.published.Layout`."""

    @staticmethod
    def recognises(config: dict[str, Any], names: set[str]) -> bool:
        """By the configuration."""
        return "hydra_num_heads" in config

    @staticmethod
    def read(published: Published, target: Any) -> Hydra:
        """Hydra, or Hydra++ if the heads stand behind a layer."""
        published.refuse(grounded_heads=True, hidden_state_offset=0)
        arch = published.config.get("hydra_head_arch", "mlp")
        if arch not in ("mlp", "prefix-mlp"):
            raise CheckpointError(f"{published.folder} is of the type {arch!r}; mlp and prefix-mlp are supported")
        plus = arch == "prefix-mlp"
        levels, layers = heads(published, 1), int(published.config.get("hydra_num_layers", 1))
        net = (PrefixedHeads if plus else HydraHeads)(head_config(target), levels, layers, projected=True)
        pairs = []
        for level in range(levels):
            last = ".1" if plus else ""
            pairs += [(f"hydra_lm_head.{level}{last}.{name}", f"projections.{level}.{name}") for name in PARAMETERS]
            for layer in range(layers):
                theirs = f"hydra_mlp.{level}.{2 * layer + 1 if plus else layer}"
                modules = {"linear": "linear", **({"res_connection": "skip"} if layer == 0 else {})}
                pairs += [
                    (f"{theirs}.{module}.{name}", f"heads.{level}.{layer}.{ours}.{name}")
                    for module, ours in modules.items()
                    for name in PARAMETERS
                ]
        if plus:
            same_embeddings(published, target, f"{PREFIX}.embed_tokens.weight")
            published.tensors.pop(f"{PREFIX}.layers.0.self_attn.rotary_emb.inv_freq", None)  # of older transformers
            pairs += [
                (f"{PREFIX}.layers.0.{n.removeprefix('layer.')}", n) for n in net.state_dict() if n[:6] == "layer."
            ]
            pairs += [(f"{PREFIX}.norm.weight", "norm.weight")]
        return (HydraPlus if plus else Hydra)(published.fill(net, target, pairs), shares=SHARES)


def heads(published: Published, place: int) -> int:
    """How many heads the tensors' names number. place: which part of a name is the number of its head."""
    numbers = {name.split(".")[place] for name in published.tensors if not name.startswith(PREFIX)}
    if not numbers or not all(number.isdecimal() for number in numbers):
        raise CheckpointError(f"{published.folder} holds no numbered heads, but {shortest(published)}")
    return 1 + max(map(int, numbers))


def shortest(published: Published) -> str:
    """A tensor's name, for messages."""
    return min(published.tensors, default="nothing")
