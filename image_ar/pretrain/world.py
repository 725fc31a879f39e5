"""Scenes of the synthetic world with captions: what `janus-mini` learns to draw, from a seed and an index alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from mmspec.image_ar.pretrain.architecture import PIXELS
from mmspec.miniworld.facts import Shapes, Thing
from mmspec.miniworld.render import render
from mmspec.miniworld.scenes import draw_facts
from mmspec.miniworld.talk_shapes import place

MOST_THINGS = 3  # so that every shape and texture can be told at this size
OPENINGS = ("", "a picture of ", "draw ", "an image with ")
GROUNDS = ("on a {} background", "on {}", "in front of a {} background")
JOINTS = (", ", " and ", " , with ")


@dataclass(frozen=True)
class Scene:
    """facts: what is to be seen. caption: what of it is said. pixels: uint8 [3, S, S]."""

    facts: Shapes
    caption: str
    pixels: Tensor


def scene(seed: int | str, index: int) -> Scene:
    """Scene `index` of the data set `seed`."""
    rng = random.Random(f"{seed}/{index}/scene")
    facts = draw_facts(random.Random(f"{seed}/{index}/facts"), "shapes")
    assert isinstance(facts, Shapes)
    some = rng.sample(facts.things, min(len(facts.things), rng.randint(1, MOST_THINGS)))
    facts = replace(facts, things=tuple(sorted(some, key=lambda thing: (thing.row, thing.column))))
    image, _ = render(facts, random.Random(f"{seed}/{index}/render"))
    small = image.convert("RGB").resize((PIXELS, PIXELS), Image.Resampling.LANCZOS)
    return Scene(facts, caption(facts, rng), torch.from_numpy(np.array(small).transpose(2, 0, 1).copy()))


def caption(facts: Shapes, rng: random.Random) -> str:
    """Every thing with its colour, shape and place; size, texture and background only sometimes."""
    things = list(facts.things)
    rng.shuffle(things)
    text = rng.choice(OPENINGS) + rng.choice(JOINTS).join(_phrase(thing, rng) for thing in things)
    return f"{text} {rng.choice(GROUNDS).format(facts.background)}" if rng.random() < 0.8 else text


def _phrase(thing: Thing, rng: random.Random) -> str:
    words = [thing.size] if rng.random() < 0.7 else []
    words += [thing.texture] if thing.texture != "plain" and rng.random() < 0.9 else []
    return f"a {' '.join([*words, thing.color, thing.shape])} at the {place(thing)}"


class Scenes(Dataset[dict[str, Any]]):
    """`count` scenes: their pixels and their captions."""

    def __init__(self, seed: str, count: int) -> None:
        self.seed, self.count = seed, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        made = scene(self.seed, index)
        return {"pixels": made.pixels, "caption": made.caption}


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """pixels [B, 3, S, S] uint8, captions: a list."""
    return {
        "pixels": torch.stack([sample["pixels"] for sample in samples]),
        "captions": [sample["caption"] for sample in samples],
    }


def normalized(pixels: Tensor) -> Tensor:
    """uint8 -> float in [-1, 1], as the picture tokenizer takes them."""
    return pixels.float() / 127.5 - 1.0
