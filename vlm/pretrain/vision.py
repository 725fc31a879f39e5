"""Stage 1: dense pretraining of the vision tower, so that it knows letters, colours and edges before a word is learnt.

Every patch, and again every image token behind the connector, is asked which character stands in each of its quarter
cells and which colours, shapes, textures and sizes overlap it. The probes are thrown away; tower and connector stay.
"""

import string
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from mmspec.miniworld import sample
from mmspec.miniworld.facts import COLORS, SHAPES, SIZES, TEXTURES, Mark
from mmspec.pretrain.places import place_loss
from mmspec.vlm.pretrain.architecture import CANVAS, SIDE
from mmspec.vlm.pretrain.family import Family

PATCHES = SIDE * 2  # attributes are located on a grid of 16 x 16 cells of 20 canvas pixels
CELLS = SIDE * 4  # characters on one of 32 x 32
CHARACTERS = {char: index + 1 for index, char in enumerate(string.ascii_letters + string.digits + "%.,:-")}
ATTRIBUTES = {
    (kind, value): index
    for index, (kind, value) in enumerate(
        [("color", value) for value in COLORS]
        + [("shape", value) for value in SHAPES]
        + [("texture", value) for value in TEXTURES]
        + [("size", value) for value in SIZES]
    )
}
EMPTY_WEIGHT = 0.1  # most cells hold no character
POSITIVE_WEIGHT = 3.0


def dense_labels(marks: tuple[Mark, ...]) -> tuple[np.ndarray, np.ndarray]:
    """What the picture shows where.

    Returns: the character of each cell [32, 32] (0 = none) and the attributes that cover a quarter of each patch
        [16, 16, attributes].
    """
    characters = np.zeros((CELLS, CELLS), dtype=np.int64)
    attributes = np.zeros((PATCHES, PATCHES, len(ATTRIBUTES)), dtype=np.float32)
    edges = np.arange(PATCHES + 1) * (CANVAS / PATCHES)
    for mark in marks:
        left, top, right, bottom = mark.box
        if mark.kind == "char":
            row, column = (int((low + high) / 2 * CELLS / CANVAS) for low, high in ((top, bottom), (left, right)))
            if 0 <= row < CELLS and 0 <= column < CELLS:
                characters[row, column] = CHARACTERS.get(mark.value, 0)
        elif (mark.kind, mark.value) in ATTRIBUTES:
            across = np.clip(np.minimum(edges[1:], right) - np.maximum(edges[:-1], left), 0, None)
            down = np.clip(np.minimum(edges[1:], bottom) - np.maximum(edges[:-1], top), 0, None)
            covered = np.outer(down, across) > 0.25 * (CANVAS / PATCHES) ** 2
            attributes[..., ATTRIBUTES[mark.kind, mark.value]][covered] = 1.0
    return characters, attributes


class LabelledPictures(Dataset[dict[str, Tensor]]):
    """Pictures with dense labels, drawn when asked for."""

    def __init__(self, seed: str, length: int, pixels: Callable[[Image.Image], Tensor]) -> None:
        self.seed, self.length, self.pixels = seed, length, pixels

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        drawn = sample(self.seed, index)
        characters, attributes = dense_labels(drawn.marks)
        return {
            "pixels": self.pixels(drawn.image),
            "characters": torch.from_numpy(characters),
            "attributes": torch.from_numpy(attributes),
        }


def patched(grid: Tensor, size: int) -> Tensor:
    """[B, size * n, size * n, ...] -> [B, n * n, size * size, ...]: what lies inside each larger square."""
    batch, side = grid.shape[0], grid.shape[1] // size
    split = grid.reshape(batch, side, size, side, size, *grid.shape[3:])
    return split.transpose(2, 3).reshape(batch, side * side, size * size, *grid.shape[3:])


class Sight(nn.Module):
    """Vision tower and connector of a model."""

    def __init__(self, family: Family, model: PreTrainedModel) -> None:
        super().__init__()
        self.family = family
        for part in (family.tower, family.connector):
            self.add_module(part, model.model.get_submodule(part))

    def patches(self, pixels: Tensor) -> Tensor:
        """What the tower makes of pictures: [B, patches * patches, V], row by row."""
        return self.family.see(self.get_submodule(self.family.tower), pixels)

    def tokens(self, patches: Tensor) -> Tensor:
        """What the connector makes of them: [B, slots, D]."""
        return self.get_submodule(self.family.connector)(patches)

    def forward(self, pixels: Tensor) -> Tensor:
        """The image tokens of all squares of pictures, row by row: [B, slots, D]."""
        return self.tokens(self.patches(pixels))

    @torch.no_grad()
    def resize(self, factor: float) -> None:
        """Makes image tokens so many times as large."""
        for weight in self.family.last(self.get_submodule(self.family.connector)):
            weight.mul_(factor)


class DenseProbe(nn.Module):
    """Vision tower and connector of a model, with linear probes on patches and on image tokens."""

    def __init__(self, family: Family, model: PreTrainedModel) -> None:
        super().__init__()
        self.family, self.sight = family, Sight(family, model)
        width, text_width = model.config.vision_config.hidden_size, model.config.text_config.hidden_size
        classes = len(CHARACTERS) + 1
        self.patch_characters = nn.Linear(width, (CELLS // family.patches) ** 2 * classes)
        self.patch_attributes = nn.Linear(width, (PATCHES // family.patches) ** 2 * len(ATTRIBUTES))
        self.token_characters = nn.Linear(text_width, (CELLS // SIDE) ** 2 * classes)
        self.token_attributes = nn.Linear(text_width, (PATCHES // SIDE) ** 2 * len(ATTRIBUTES))
        weight = torch.ones(classes)
        weight[0] = EMPTY_WEIGHT
        self.register_buffer("class_weight", weight, persistent=False)
        self.class_weight: Tensor

    def forward(self, pixels: Tensor, characters: Tensor, attributes: Tensor) -> dict[str, Any]:
        """The sum of the four probe losses and that of the places."""
        patches = self.sight.patches(pixels)
        tokens = self.sight.tokens(patches)
        tokens = tokens * torch.rsqrt(tokens.square().mean(-1, keepdim=True) + 1e-6)  # as the decoder sees them
        classes, count = len(CHARACTERS) + 1, len(ATTRIBUTES)
        fine = patched(characters, CELLS // self.family.patches)
        coarse = patched(characters, CELLS // SIDE)
        fine_logits = self.patch_characters(patches).reshape(-1, classes)
        coarse_logits = self.token_characters(tokens).reshape(-1, classes)
        positive = torch.full((count,), POSITIVE_WEIGHT, device=pixels.device)
        near = patched(attributes, PATCHES // self.family.patches)
        far = patched(attributes, PATCHES // SIDE)
        losses = (
            cross_entropy(fine_logits, fine.reshape(-1), self.class_weight)
            + cross_entropy(coarse_logits, coarse.reshape(-1), self.class_weight)
            + binary_cross_entropy_with_logits(
                self.patch_attributes(patches).unflatten(-1, (-1, count)), near, pos_weight=positive
            )
            + binary_cross_entropy_with_logits(
                self.token_attributes(tokens).unflatten(-1, (-1, count)), far, pos_weight=positive
            )
        )
        return {"loss": losses + place_loss(self.family.views(tokens))}


def match_scale(family: Family, model: PreTrainedModel, pixels: Tensor) -> None:
    """Rescales the connector so that image tokens enter the decoder as large as word embeddings do."""
    sight = Sight(family, model)
    with torch.no_grad():
        tokens = sight(pixels)
        words = model.get_input_embeddings()(torch.arange(model.config.text_config.vocab_size))
        factor = float(words.square().mean().sqrt() / tokens.square().mean().sqrt())
    sight.resize(factor)


def word_scale(model: PreTrainedModel) -> float:
    """How much larger words enter the decoder than they are stored."""
    words = model.get_input_embeddings()
    with torch.no_grad():
        return float(words(torch.arange(len(words.weight))).norm() / words.weight.norm())
