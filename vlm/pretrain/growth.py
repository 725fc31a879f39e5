"""A shallow decoder becomes a deep one that computes the same, and is then trained on.

A shallow model learns where to look in a third of the time. The layers put between its own pass on what they get, until
training finds a use for them (arXiv 1511.05641, function-preserving deepening).
"""

import copy

import torch
from transformers import SmolVLMForConditionalGeneration


def places(layers: int, deep: int) -> list[int]:
    """Where each of the `layers` lies among `deep` of them: evenly, the last one last."""
    return [(index + 1) * deep // layers - 1 for index in range(layers)]


def deepened(model: SmolVLMForConditionalGeneration, layers: int) -> SmolVLMForConditionalGeneration:
    """A model of `layers` decoder layers with the logits of `model`; new layers add nothing yet."""
    config = copy.deepcopy(model.config)
    kept = places(config.text_config.num_hidden_layers, layers)
    config.text_config.num_hidden_layers = layers
    deep = SmolVLMForConditionalGeneration(config)
    with torch.no_grad():
        for layer in deep.model.text_model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    weights = {}
    for name, value in model.state_dict().items():
        before, found, after = name.partition("text_model.layers.")
        index, _, rest = after.partition(".")
        weights[f"{before}{found}{kept[int(index)]}.{rest}" if found else name] = value
    deep.load_state_dict(weights, strict=False)
    return deep
