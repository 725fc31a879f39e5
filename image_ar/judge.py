"""What benchmarks ask about pictures: whether they keep their captions, and how far they are from other pictures.

Pictures are read by a small network (`mmspec.image_ar.reader`) in the folder `reader` beside the model, in the one that
comes with mmspec if the model does, too, or wherever one is told; how often it is right on real pictures comes along,
since no fidelity means anything without it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import Tensor

from mmspec.checkpoints import bundled
from mmspec.errors import InputError
from mmspec.image_ar.captions import Said
from mmspec.image_ar.reader import Reader, held
from mmspec.safe_files import read_lines

BESIDE = "reader"
SEED = "test"
"""Of the held-out captions; no training data has it."""


@dataclass(frozen=True)
class Asked:
    """A caption. said: what it states; picture: the real one. None for captions from a user's file."""

    prompt: str
    said: Said | None = None
    picture: Image.Image | None = None


class Judge:
    """Marks pictures. Args: reader: see above."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    @classmethod
    def find(cls, model: Path | None, reader: str | os.PathLike[str] | None = None) -> Judge | None:
        """The judge with the reader in a folder, else with the one beside the model; None if there is none. Models that
        come with mmspec share the one that comes with it.

        Raises: CheckpointError: the folder that was named holds no reader.
        """
        if reader is not None:
            return cls(Reader.load(reader))
        if model is None:
            return None
        homes, shipped = [model], bundled().values()
        if any(map(model.samefile, shipped)):
            homes += shipped
        found = [home / BESIDE for home in homes if (home / BESIDE).is_dir()]
        return cls(Reader.load(found[0])) if found else None

    @property
    def own_figures(self) -> dict[str, float]:
        """How often the reader is right on real pictures that it has not seen, shares in [0, 1]."""
        return self.reader.figures

    @staticmethod
    def captions(count: int, file: str | os.PathLike[str] | None = None, start: int = 0) -> list[Asked]:
        """Captions: lines of a file, or held-out ones of the synthetic world, from number `start` on.

        Raises: InputError: the file cannot be read, or has too few lines.
        """
        if file is None:
            from mmspec.image_ar.pretrain.world import scene

            scenes = [scene(SEED, index) for index in range(start, start + count)]
            return [Asked(made.caption.text, made.said, made.picture) for made in scenes]
        lines = read_lines(file)
        if len(lines) < start + count:
            raise InputError(f"{file} holds {len(lines)} captions, one a line; {start + count} are asked for")
        return [Asked(line) for line in lines[start : start + count]]

    def facts(self, asked: Sequence[Asked], pictures: Sequence[Image.Image]) -> list[list[bool]] | None:
        """Of every picture, which of the facts that its caption states hold; None for captions that state none."""
        said = [one.said for one in asked if one.said is not None]
        if len(said) < len(asked):
            return None
        return [held(one, seen) for one, seen in zip(said, self.reader.read(pictures), strict=True)]

    def features(self, pictures: Sequence[Image.Image]) -> Tensor:
        """[N, F] float64, by which sets of pictures are compared."""
        return self.reader.features(pictures)
