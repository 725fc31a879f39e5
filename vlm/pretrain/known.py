"""What a new model starts from: the parts of `smolvlm-mini`, or of another checkpoint of its kind, that fit it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    SmolVLMForConditionalGeneration,
    SmolVLMProcessor,
)

from mmspec.checkpoints import find_model, read_model
from mmspec.errors import MismatchError
from mmspec.miniworld import sample
from mmspec.safe_files import read_json
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.tokenizer import answer_text, question_text

TEXT = 128


@dataclass(frozen=True)
class Known:
    """A trained checkpoint. name: of its folder. digest: of its weights."""

    name: str
    digest: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


def read_known(source: str, family: Family) -> Known:
    """The checkpoint that `source` means: a bundled name, a folder, a hub id.

    Raises: MismatchError: it is of another class, not as wide as the family's, or too shallow.
    """
    folder = find_model(source)
    config = check_kind(folder, SmolVLMForConditionalGeneration, family.width, f"{family.name} cannot start from")
    layers, needed = config["text_config"].get("num_hidden_layers", 0), family.stages[-1].layers
    if layers < needed and not family.deepens:
        raise MismatchError(f"{family.name} cannot start from {folder}, which has {layers} layers: it needs {needed}")
    model = read_model(SmolVLMForConditionalGeneration, folder, torch.float32)
    return Known(folder.name, file_digest(folder), model, SmolVLMProcessor.from_pretrained(folder).tokenizer)


def read_start(source: str, family: Family) -> tuple[Known, ProcessorMixin]:
    """A finished checkpoint of the family to go on from (a bundled name, a folder, a hub id), and its processor.

    Raises: MismatchError: it is not of the family's class, or not as wide.
    """
    folder = find_model(source)
    check_kind(folder, family.model_class, family.width, f"{family.name} cannot go on from")
    model = read_model(family.model_class, folder, torch.float32)
    processor = family.processor_class.from_pretrained(folder)
    return Known(folder.name, file_digest(folder), model, processor.tokenizer), processor


def check_kind(folder: Path, model_class: type[PreTrainedModel], width: int, refusal: str) -> dict[str, Any]:
    """The configuration of a checkpoint of that class and that hidden size.

    Raises: MismatchError: it is another one; refusal: how the message begins.
    """
    config = read_json(folder / "config.json")
    wanted, found = model_class.config_class.model_type, config.get("text_config", {}).get("hidden_size")
    if config.get("model_type") != wanted or found != width:
        raise MismatchError(
            f"{refusal} {folder}, a {config.get('model_type')} checkpoint with hidden size {found}: it needs a "
            f"{wanted} of hidden size {width}"
        )
    return config


def file_digest(folder: Path) -> str:
    """A short hash of the file with a checkpoint's weights.

    Raises: MismatchError: they are in several files.
    """
    file = folder / "model.safetensors"
    if not file.exists():
        raise MismatchError(
            f"{folder} has no model.safetensors: a checkpoint to begin with has its weights in one file"
        )
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def begun_from(family: Family, known: Known | None, tower: Known | None) -> str:
    """How the training of a new model begins, for its card.

    Args: tower: whose vision tower it begins with.
    """
    if known is None:
        return "Vision tower: dense labels of every patch. Then,"
    own = f"Its vision tower begins as that of {tower.name} ({tower.digest}). " if tower else ""
    return (
        f"It starts from {known.name} ({known.digest}): it has {family.known} from there. {own}Vision "
        "tower: it learns to give the image tokens that this decoder reads. Then,"
    )


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
