"""Trains the reader that judges drawn pictures.

It sees scenes of the synthetic world, spoilt as picture tokenizers spoil them (blurred, noisy, off in colour), and says
for each cell what is there. It never sees what a model has drawn. The same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate
from torch.utils.data import Dataset

from mmspec.checkpoints import replaceable, writing
from mmspec.image_ar.captions import CELLS, GROUNDS
from mmspec.image_ar.pretrain.contents import UNTOLD, contents, mean_loss
from mmspec.image_ar.pretrain.world import Scene, scene
from mmspec.image_ar.reader import Reader, held
from mmspec.pretrain.command import check_counts, parsed, target_parser
from mmspec.pretrain.pixels import normalized
from mmspec.training.card import figure_list, millions
from mmspec.training.folders import claim
from mmspec.training.loop import InOrderTrainer, last_checkpoint, training_arguments

BLURRED = 0.5
NOISE, TINT, CONTRAST = 0.12, 0.08, 0.2

CARD = """# {name}

A reader of {millions:.2f} M parameters that judges pictures of the synthetic world (`mmspec.image_ar.reader`): what
stands in each cell of the 3 x 3 grid, and on which ground. It learnt from {scenes} scenes, spoilt by blur, noise and
tints, and never saw what a model has drawn. Anything else it takes for one of the things it knows.

`mmspec train target janus-reader --out FOLDER --steps {steps} --batch {batch} --rate {rate} --seed {seed}` makes it
again.

## Measured on {held_out} held-out scenes

{figures}
"""


class Labelled(Dataset[dict[str, Tensor]]):
    """`count` scenes as pixels [3, S, S] uint8 and labels: shapes [9], colors [9], ground []."""

    def __init__(self, seed: str, count: int) -> None:
        self.seed, self.count = seed, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        made = scene(self.seed, index)
        shapes, colors = contents(made.seen)
        ground = UNTOLD if made.said.ground is None else GROUNDS.index(made.said.ground)
        return {
            "pixels": made.pixels,
            "shapes": shapes,
            "colors": colors,
            "ground": torch.tensor(ground),
        }


class Lesson(nn.Module):
    """A reader in training: a labelled batch to its loss."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, pixels: Tensor, shapes: Tensor, colors: Tensor, ground: Tensor) -> dict[str, Tensor]:
        """pixels: [B, 3, S, S] uint8; labels as `Labelled` makes them, [B, 9], [B, 9], [B]."""
        seen = normalized(pixels)
        laws = self.reader(spoilt(seen) if self.training else seen)
        parts = [(laws.shapes.flatten(0, 1), shapes.flatten()), (laws.colors.flatten(0, 1), colors.flatten())]
        loss = sum(mean_loss(law, labels) for law, labels in [*parts, (laws.grounds, ground)])
        return {"loss": torch.as_tensor(loss)}


def spoilt(pixels: Tensor) -> Tensor:
    """Pictures [B, 3, S, S] in [-1, 1], each with a tint, a contrast and noise of its own, half of them blurred."""
    batch, device = len(pixels), pixels.device
    blurred = interpolate(avg_pool2d(pixels, 2), scale_factor=2, mode="bilinear", align_corners=False)
    share = (torch.rand(batch, 1, 1, 1, device=device) < BLURRED) * torch.rand(batch, 1, 1, 1, device=device)
    mixed = torch.lerp(pixels, blurred, share)
    gain = 1 + CONTRAST * (2 * torch.rand(batch, 1, 1, 1, device=device) - 1)
    tint = TINT * torch.randn(batch, 3, 1, 1, device=device)
    noise = NOISE * torch.rand(batch, 1, 1, 1, device=device) * torch.randn_like(pixels)
    return (mixed * gain + tint + noise).clamp(-1, 1)


def measure(reader: Reader, scenes: Sequence[Scene]) -> dict[str, float]:
    """How often the reader is right on real pictures: their cells, whole grids, grounds, and captions of which it finds
    everything kept."""
    seen = reader.read([made.picture for made in scenes])
    pairs = list(zip(scenes, seen, strict=True))
    cells = [made.seen.get(cell) == one.things.get(cell) for made, one in pairs for cell in CELLS]
    grounds = [one.ground == made.said.ground for made, one in pairs if made.said.ground is not None]
    return {
        "right_cells": sum(cells) / len(cells),
        "right_grids": sum(one.things == made.seen for made, one in pairs) / len(pairs),
        "right_grounds": sum(grounds) / max(1, len(grounds)),
        "captions_kept": sum(all(held(made.said, one)) for made, one in pairs) / len(pairs),
    }


def parser() -> argparse.ArgumentParser:
    """The options; the defaults take less than ten minutes on two CPU cores."""
    found = target_parser("janus-reader", __doc__, made="reader")
    found.add_argument("--steps", type=int, default=700, help="updates")
    found.add_argument("--batch", type=int, default=64, help="scenes per update")
    found.add_argument("--rate", type=float, default=0.02, help="peak learning rate of matrices")
    found.add_argument("--held-out", type=int, default=500, help="scenes to measure on")
    return found


def main(arguments: Sequence[str]) -> None:
    """Command line."""
    options = parsed(parser(), arguments, partial(check_counts, steps=1, batch=1, held_out=1))
    torch.manual_seed(options.seed)
    replaceable(options.out)
    claim(options.run, {name: getattr(options, name) for name in ("steps", "batch", "rate", "seed")})
    reader = Reader()
    trainer = InOrderTrainer(
        model=Lesson(reader),
        args=training_arguments(
            options.run,
            steps=options.steps,
            batch=options.batch,
            rate=options.rate,
            seed=options.seed,
            use_cpu=not torch.cuda.is_available(),
            save_steps=max(1, min(100, options.steps // 7)),
            dataloader_num_workers=1,
        ),
        train_dataset=Labelled(f"reader/{options.seed}", options.steps * options.batch),
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(options.run))
    export(reader.eval().cpu(), options)


def export(reader: Reader, options: Any) -> None:
    """Write the finished folder; what is measured is what is written."""
    with writing(options.out) as folder:
        reader.write(folder)
        done = Reader.load(folder)
        done.figures = measure(done, [scene("reader-held-out", index) for index in range(options.held_out)])
        done.write(folder)
        card = CARD.format(
            name=options.out.name,
            millions=millions(reader),
            scenes=options.steps * options.batch,
            figures=figure_list(done.figures, 4),
            **vars(options),
        )
        (folder / "README.md").write_text(card, encoding="utf-8")
