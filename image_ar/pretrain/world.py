"""Scenes of the synthetic world with captions: what `janus-mini` learns to draw, from a seed and an index alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from mmspec.image_ar.captions import GROUND, GROUNDS, NOBODY, Caption, Cell, Kind, Said, draw_groups, tell
from mmspec.image_ar.pretrain.architecture import PIXELS, SIDE, build_tokenizer
from mmspec.image_ar.pretrain.contents import questions
from mmspec.miniworld.facts import Mark, Shapes, Thing
from mmspec.miniworld.render import render

SIZE = {"large": (84, 96)}  # of the 320 pixels of the canvas: five codes wide, so that every shape can be told
GRAIN = ((SIDE, 11.0), (2 * SIDE, 8.0), (PIXELS, 4.0))
"""Side and spread of the noise that makes grounds and inks rough: no code follows surely from those before it."""
LEARNT = 600  # captions that the words are taken from


@dataclass(frozen=True)
class Scene:
    """said, caption: what is told. seen: what stands in which cell. pixels: uint8 [3, S, S].

    owners: [side, side] int, whose every patch is: the index of a group, GROUND, or NOBODY where the caption does not
    tell that it will be. questions: as in `mmspec.image_ar.pretrain.contents`.
    """

    said: Said
    caption: Caption
    seen: dict[Cell, Kind]
    pixels: Tensor
    owners: Tensor
    questions: Tensor

    @property
    def picture(self) -> Image.Image:
        """The pixels as a picture."""
        return Image.fromarray(self.pixels.permute(1, 2, 0).numpy())


def scene(seed: int | str, index: int) -> Scene:
    """Scene `index` of the data set `seed`."""
    rng = random.Random(f"{seed}/{index}/scene")
    said = draw_groups(rng)
    seen = {cell: group.kind for group in said.groups for cell in group.cells}
    things = [Thing(kind.shape, kind.color, "plain", "large", *cell) for cell, kind in sorted(seen.items())]
    facts = Shapes(tuple(things), said.ground or rng.choice(GROUNDS))
    image, marks = render(facts, random.Random(f"{seed}/{index}/render"), SIZE)
    small = np.asarray(image.convert("RGB").resize((PIXELS, PIXELS), Image.Resampling.BOX), dtype=np.float32)
    rough = small + _grain(np.random.default_rng(rng.getrandbits(64)))[:, :, None]
    pixels = torch.from_numpy(np.clip(rough, 0, 255).astype(np.uint8).transpose(2, 0, 1).copy())
    return Scene(said, tell(said, rng), seen, pixels, *_labels(said, seen, things, marks, image.width))


def _grain(rng: np.random.Generator) -> np.ndarray:
    """[S, S] noise of brightness: coarse, middle and fine."""
    whole = np.zeros((PIXELS, PIXELS), dtype=np.float32)
    for side, spread in GRAIN:
        noise = Image.fromarray(rng.normal(0.0, spread, (side, side)).astype(np.float32))
        whole += np.asarray(noise.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR))
    return whole


def _labels(
    said: Said, seen: dict[Cell, Kind], things: list[Thing], marks: tuple[Mark, ...], width: int
) -> tuple[Tensor, Tensor]:
    """Owners, and the labels of questions. Patches belong to the thing whose box covers their middle. Where a caption
    does not say the place, the first patch of a thing comes by chance, and only those right of or below another of its
    own are told."""
    tops: dict[Cell, int] = {}
    owners = np.full((SIDE, SIDE), NOBODY if said.ground is None else GROUND)
    boxes = [mark.box for mark in marks if mark.kind == "shape"]
    group_of = {cell: index for index, group in enumerate(said.groups) for cell in group.cells}
    middles = (np.arange(SIDE) + 0.5) * width / SIDE
    for thing, (left, top, right, bottom) in zip(things, boxes, strict=True):
        index = group_of[thing.row, thing.column]
        columns = np.nonzero((middles > left) & (middles < right))[0]
        rows = np.nonzero((middles > top) & (middles < bottom))[0]
        owners[np.ix_(rows, columns)] = index
        if not said.groups[index].placed:
            owners[rows[0], columns[0]] = NOBODY
        tops[thing.row, thing.column] = int(rows[0] * SIDE + columns[-1])
    return torch.from_numpy(owners), questions(seen, tops)


def learnt_words() -> PreTrainedTokenizerFast:
    """The words of all models of these scenes, from captions that are for nothing else."""
    return build_tokenizer(scene("tokenizer", index).caption.text for index in range(LEARNT))


class Scenes(Dataset[Scene]):
    """`count` scenes."""

    def __init__(self, seed: str, count: int) -> None:
        self.seed, self.count = seed, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Scene:
        return scene(self.seed, index)


def collate(scenes: list[Scene]) -> dict[str, Any]:
    """pixels [B, 3, S, S] uint8, captions: a list of `Caption`, owners [B, side, side], questions [B, questions,
    side * side]."""
    return {
        "pixels": torch.stack([one.pixels for one in scenes]),
        "captions": [one.caption for one in scenes],
        "owners": torch.stack([one.owners for one in scenes]),
        "questions": torch.stack([one.questions for one in scenes]),
    }
