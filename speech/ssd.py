"""SSD: the draft model is made of the target's own upper layers below a few of its own (arXiv 2505.15380).

Its first layers and its output head are trained, starting from the target's; embeddings, upper layers and the last norm
are the target's weights, shared in memory and not stored. It drafts a chain, token by token, with a cache of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.drafters.independent import Independent
from mmspec.drafters.precision import placed
from mmspec.errors import CheckpointError, InputError


class SSD(Independent):
    """Drafts with a shortened target.

    Args: model: what `shortened` makes. length: tokens drafted per round (the paper's best is 3).
    """

    method = "ssd"
    source = "SSD, arXiv 2505.15380"
    fits = ("model_type", "hidden_size", "vocab_size", "num_layers", "tokenizer")

    def __init__(self, model: LlamaForCausalLM, length: int = 3) -> None:
        super().__init__(model, length)

    def bind(self, target: Any) -> None:
        """Besides, learn which ids the target never emits; they are read like any other, and never proposed."""
        super().bind(target)
        self.placeholders = target.unsaid

    def heard(self, ids: list[int]) -> list[int]:
        """The whole prompt."""
        return ids

    def save(self, folder: Path) -> dict[str, Any]:
        """Write what is not the target's; returns what `drafter.json` must say beside it."""
        model = self.decoder.model
        save_file(own_weights(model), folder / "model.safetensors")
        layers = {"own": model.config.own_layers, "shared": model.config.shared_layers}
        return {"options": {"length": self.length}, "layers": layers}

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> SSD:
        """The counterpart of `save`, on the device and in the dtype of `target`, whose layers it takes."""
        model = shortened(target.speaker, **description["layers"])
        weights = load_file(folder / "model.safetensors")
        if unlike := weights.keys() ^ own_weights(model).keys():  # the others are the target's memory
            raise CheckpointError(f"the weights in {folder} are incomplete, or not its own: {min(unlike)}")
        model.load_state_dict(weights, strict=False)
        return cls(model, **description["options"])


def shortened(speaker: LlamaForCausalLM, own: int, shared: Sequence[int]) -> LlamaForCausalLM:
    """A Llama of `own` layers, which begin as copies of the first ones of `speaker`, below its layers `shared`.

    What is the target's shares its memory and takes no gradient; the output head begins as a copy.
    Raises: InputError: layers that the target does not have, or none.
    """
    count = speaker.config.num_hidden_layers
    if not 1 <= own <= count or not all(0 <= layer < count for layer in shared):
        raise InputError(f"the target has {count} layers: own={own} and shared={list(shared)} do not fit")
    values = speaker.config.to_dict() | {"num_hidden_layers": own + len(shared), "tie_word_embeddings": False}
    values.pop("layer_types", None)
    config = LlamaConfig.from_dict(values)
    config.own_layers, config.shared_layers = own, list(shared)
    config._attn_implementation = "sdpa"
    model = placed(LlamaForCausalLM(config), speaker.device, speaker.dtype).eval()
    borrowed = [(model.model.embed_tokens, speaker.model.embed_tokens), (model.model.norm, speaker.model.norm)]
    borrowed += [(model.model.layers[own + i], speaker.model.layers[j]) for i, j in enumerate(shared)]
    for mine, theirs in borrowed:
        mine.load_state_dict(theirs.state_dict(), assign=True)
        mine.requires_grad_(False)
    for i in range(own):
        model.model.layers[i].load_state_dict(speaker.model.layers[i].state_dict())
    model.lm_head.load_state_dict(speaker.get_output_embeddings().state_dict())
    return model


def own_weights(model: LlamaForCausalLM) -> dict[str, Tensor]:
    """The weights that are not the target's, by name."""
    mine = tuple(f"model.layers.{layer}." for layer in range(model.config.own_layers))
    return {name: weight for name, weight in model.state_dict().items() if name.startswith((*mine, "lm_head."))}


def upper_layers(count: int) -> list[int]:
    """The layers of the target's upper quarter, at least one (the paper takes 6 of 24)."""
    taken = max(1, round(count / 4))
    return list(range(count - taken, count))
