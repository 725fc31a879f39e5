"""What a new model starts from: the parts of `smolvlm-mini`, or of another checkpoint of its kind, that fit it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, SmolVLMForConditionalGeneration, SmolVLMProcessor

from mmspec.checkpoints import bundled, locate, read_model
from mmspec.errors import MismatchError
from mmspec.miniworld import sample
from mmspec.safe_files import read_json
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.smolvlm import SMOLVLM
from mmspec.vlm.pretrain.tokenizer import answer_text, question_text

TEXT = 128


@dataclass(frozen=True)
class Known:
    """A trained checkpoint. name: of its folder. digest: of its weights."""

    name: str
    digest: str
    model: SmolVLMForConditionalGeneration
    tokenizer: PreTrainedTokenizerFast


def read_known(source: str, family: Family) -> Known:
    """The checkpoint that `source` means: a bundled name, a folder, a hub id.

    Raises: MismatchError: it is of another class, not as wide as the family's, or too shallow.
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
    layers, needed = config["text_config"].get("num_hidden_layers", 0), family.stages[-1].layers
    if layers < needed and not family.deepens:
        raise MismatchError(f"{family.name} cannot start from {folder}, which has {layers} layers: it needs {needed}")
    model = read_model(SmolVLMForConditionalGeneration, folder, torch.float32)
    return Known(folder.name, weights_digest(folder), model, SmolVLMProcessor.from_pretrained(folder).tokenizer)


def weights_digest(folder: Path) -> str:
    """What tells the weights of a checkpoint of one file from others."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]


def begun_from(family: Family, known: Known | None) -> str:
    """What a new model has from the checkpoint it starts from, for its card."""
    return f"It starts from {known.name} ({known.digest}): it has {family.known} from there. " if known else ""


def adopt_tower(family: Family, model: PreTrainedModel, known: Known) -> set[str]:
    """Copies what of the vision tower has the same name and shape; returns the names of these weights."""
    tower = model.model.get_submodule(family.tower)
    own, weights = tower.state_dict(), known.model.model.vision_model.state_dict()
    fits = {name: value for name, value in weights.items() if name in own and own[name].shape == value.shape}
    tower.load_state_dict(fits, strict=False)
    return set(fits)


@torch.no_grad()
def adopt_decoder(family: Family, model: PreTrainedModel, known: Known) -> None:
    """Starts decoder and words from the known ones. The family's own tokens lie behind the words."""
    decoder = model.model.get_submodule(family.decoder)
    family.adopt_decoder(decoder, known.model.model.text_model, partial(_text, known.tokenizer))
    words = known.model.get_input_embeddings().weight
    model.get_input_embeddings().weight[: len(words)] = words


def _text(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """What the world asks and answers: [N, TEXT] ids."""
    asked = [qa for index in range(8) for qa in sample("scale", index).qas]
    texts = [question_text(qa.question) + answer_text(qa.answer) for qa in asked]
    ids = torch.tensor([token for row in tokenizer(texts, add_special_tokens=False)["input_ids"] for token in row])
    return ids[: len(ids) // TEXT * TEXT].unflatten(0, (-1, TEXT))
