"""A small reader that judges drawn pictures: what stands in each cell of the 3 x 3 grid, and on which ground.

A residual network of timm, trained from nothing (no pretrained weights), whose features are averaged over each cell.
It has learnt the pictures of the synthetic world (`mmspec.image_ar.pretrain.world`) and nothing else; how often it is
wrong on held-out ones is kept with it and stands beside every figure that it gives.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from mmspec.errors import CheckpointError, one_line, require
from mmspec.image_ar.captions import CELLS, GROUNDS, INKS, Cell, Kind, Said, kept
from mmspec.image_ar.pictures import to_pixels
from mmspec.miniworld.facts import SHAPES
from mmspec.safe_files import read_json

PIXELS = 64
CHANNELS = (24, 48, 64, 96)
KIND, WEIGHTS = "mmspec-reader", "model.safetensors"
BATCH = 64


@dataclass(frozen=True)
class Seen:
    """What a picture shows: things by cell, and the ground."""

    things: dict[Cell, Kind]
    ground: str


@dataclass(frozen=True)
class Laws:
    """What the network says of B pictures, as logits: shapes [B, 9, 1 + shapes] with "nothing" first, colors
    [B, 9, colours], grounds [B, grounds]."""

    shapes: Tensor
    colors: Tensor
    grounds: Tensor


class Reader(nn.Module):
    """Pictures -> what they show. figures: how often it is right on held-out pictures, as its training measured it.

    Args: channels: of the four stages; the last number is the size of the features.
    """

    def __init__(self, channels: Sequence[int] = CHANNELS) -> None:
        super().__init__()
        self.channels = tuple(channels)
        self.trunk = _trunk(self.channels)
        width = self.channels[-1]
        self.shapes, self.colors = nn.Linear(width, 1 + len(SHAPES)), nn.Linear(width, len(INKS))
        self.grounds = nn.Linear(width, len(GROUNDS))
        self.figures: dict[str, float] = {}

    def forward(self, pixels: Tensor) -> Laws:
        """pixels: [B, 3, 64, 64] in [-1, 1]."""
        cells = self._cells(pixels)
        return Laws(self.shapes(cells), self.colors(cells), self.grounds(cells.mean(1)))

    @torch.no_grad()
    def features(self, pictures: Sequence[Image.Image]) -> Tensor:
        """[N, F] float64, by which sets of pictures are compared: cell features, averaged over a picture."""
        return torch.cat([self._cells(part).mean(1).double() for part in _batches(pictures)])

    @torch.no_grad()
    def read(self, pictures: Sequence[Image.Image]) -> list[Seen]:
        """What is in each picture."""
        return [seen for part in _batches(pictures) for seen in _named(self(part))]

    def stages(self, pixels: Tensor) -> list[Tensor]:
        """What each stage of the network makes of pictures [B, 3, 64, 64] in [-1, 1]: maps [B, C, h, w]."""
        return self.trunk.forward_intermediates(pixels, intermediates_only=True)  # type: ignore[operator, no-any-return]

    def _cells(self, pixels: Tensor) -> Tensor:
        """[B, 9, F] features of the cells, row by row."""
        return adaptive_avg_pool2d(self.trunk(pixels), 3).flatten(2).transpose(1, 2)

    def write(self, folder: Path) -> None:
        """Write weights (bfloat16), configuration and figures into a folder."""
        told = {"model_type": KIND, "channels": self.channels, "figures": self.figures}
        (folder / "config.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        half = {name: value.to(torch.bfloat16) if value.is_floating_point() else value
                for name, value in self.state_dict().items()}  # fmt: skip
        save_file(half, folder / WEIGHTS)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Reader:
        """What `write` wrote. Raises: CheckpointError: the folder holds no reader, or a damaged one."""
        place = Path(folder)
        told = read_json(place / "config.json")
        if told.get("model_type") != KIND:
            raise CheckpointError(
                f"{place} holds no reader of pictures: train one with mmspec train target janus-reader"
            )
        try:
            found = cls(told["channels"])
            found.load_state_dict({name: value.float() for name, value in load_file(place / WEIGHTS).items()})
        except (OSError, SafetensorError, RuntimeError, KeyError, TypeError) as error:
            raise CheckpointError(f"the reader in {place} is damaged: {one_line(error)}") from error
        found.figures = dict(told.get("figures", {}))
        return found.eval().requires_grad_(False)


def held(said: Said, seen: Seen) -> list[bool]:
    """Which of the facts that a caption states hold in a picture: those of `kept`, and the ground if it is told."""
    return kept(said, seen.things) + ([] if said.ground is None else [seen.ground == said.ground])


def pixels_of(pictures: Sequence[Image.Image]) -> Tensor:
    """[N, 3, 64, 64] in [-1, 1]."""
    return torch.cat([to_pixels(picture, PIXELS) for picture in pictures])


def _batches(pictures: Sequence[Image.Image]) -> list[Tensor]:
    return [pixels_of(pictures[start : start + BATCH]) for start in range(0, len(pictures), BATCH)]


def _named(laws: Laws) -> list[Seen]:
    """The likeliest of everything."""
    found = []
    rows = zip(laws.shapes.argmax(-1).tolist(), laws.colors.argmax(-1).tolist(), laws.grounds.argmax(-1).tolist(),
               strict=True)  # fmt: skip
    for shapes, colors, ground in rows:
        things = {
            cell: Kind(INKS[color], SHAPES[shape - 1])
            for cell, shape, color in zip(CELLS, shapes, colors, strict=True)
            if shape
        }
        found.append(Seen(things, GROUNDS[ground]))
    return found


def _trunk(channels: tuple[int, ...]) -> nn.Module:
    """A residual network with a block per stage; its last map has an eighth of the picture's side."""
    settings: dict[str, Any] = {
        "channels": channels,
        "stem_width": 16,
        "num_classes": 0,
        "global_pool": "",
        "output_stride": 8,
    }
    return require("timm", "image").create_model("resnet10t", pretrained=False, **settings)
