"""What a new model starts from: the parts of `smolvlm-mini`, or of another checkpoint of its kind, that fit it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast, SmolVLMForConditionalGeneration, SmolVLMProcessor

from mmspec.checkpoints import bundled, locate, read_model
from mmspec.errors import MismatchError
from mmspec.safe_files import read_json
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.smolvlm import SMOLVLM


@dataclass(frozen=True)
class Known:
    """A trained checkpoint. name: of its folder. digest: of its weights."""

    name: str
    digest: str
    model: SmolVLMForConditionalGeneration
    tokenizer: PreTrainedTokenizerFast


def read_known(source: str, family: Family) -> Known:
    """The checkpoint that `source` means: a bundled name, a folder, a hub id.

    Raises: MismatchError: it is of another class, or as wide as none of the family's.
    """
    found = bundled()
    folder = found.get(source) or locate("model", source, list(found))
    config = read_json(folder / "config.json")
    width = config.get("text_config", {}).get("hidden_size")
    if config.get("model_type") != "smolvlm" or width != family.width:
        raise MismatchError(
            f"{family.name} cannot start from {folder}, a {config.get('model_type')} checkpoint with hidden size "
            f"{width}: it needs one like {SMOLVLM.name}, of hidden size {family.width}"
        )
    model = read_model(SmolVLMForConditionalGeneration, folder, torch.float32)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]
    return Known(folder.name, digest, model, SmolVLMProcessor.from_pretrained(folder).tokenizer)


def adopt_tower(family: Family, model: PreTrainedModel, known: Known) -> set[str]:
    """Copies what agrees of the vision tower; returns the names of these weights."""
    tower = model.model.get_submodule(family.tower)
    return _adopt(tower, known.model.model.vision_model.state_dict())


@torch.no_grad()
def adopt_words(family: Family, model: PreTrainedModel, known: Known) -> None:
    """Copies the words, and the decoder where the family keeps it. The family's own tokens lie behind the words."""
    if family.keeps_decoder:
        _adopt(model.model.get_submodule(family.decoder), known.model.model.text_model.state_dict())
    words = known.model.get_input_embeddings().weight
    model.get_input_embeddings().weight[: len(words)] = words


def _adopt(module: nn.Module, weights: Mapping[str, Tensor]) -> set[str]:
    """Copies weights that the module has under the same name and in the same shape."""
    own = module.state_dict()
    fits = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    module.load_state_dict(fits, strict=False)
    return set(fits)
