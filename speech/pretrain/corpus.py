"""The spoken corpus: who says which sentence, kept in shards of samples, and later as codes.

A shard is written whole or not at all; a run that was killed goes on with the first one that is missing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmspec.progress import progress
from mmspec.safe_files import whole
from mmspec.speech.audio import Audio, resampled
from mmspec.speech.codec import MelCodec
from mmspec.speech.pretrain.espeak import VOICES, Speaker, anyone, say
from mmspec.speech.pretrain.living import MANNER
from mmspec.training.folders import claim
from mmspec.training.loop import Epochs

SHARD = 250
WINDOW = 20
Say = Callable[[str, Speaker], Audio]


@dataclass(frozen=True)
class Utterance:
    """text: as the model reads it. speaker: index in VOICES. pcm: [N] int16, which is half the memory."""

    text: str
    speaker: int
    pcm: Tensor

    @property
    def samples(self) -> Tensor:
        """[N] float32 in [-1, 1]."""
        return self.pcm.float() / 32767


@dataclass(frozen=True)
class Coded:
    """The same as codes [K, F]."""

    text: str
    speaker: int
    codes: Tensor


class ByLength(Epochs[Coded]):
    """Samples of which those of one batch are about as long, since a batch is padded to its longest.

    batch: samples per update. Every `WINDOW` batches are put in order of length, and then taken in any order.
    """

    def __init__(self, samples: list[Coded], length: int, seed: int, batch: int) -> None:
        self.batch = batch
        super().__init__(samples, length, seed)

    def order_of(self, epoch: int) -> list[int]:
        """Of an epoch."""
        rng = random.Random(f"{self.seed}/{epoch}/lengths")
        mixed = rng.sample(range(len(self.samples)), len(self.samples))
        order: list[int] = []
        for window in _parts(mixed, WINDOW * self.batch):
            batches = _parts(sorted(window, key=lambda index: self.samples[index].codes.shape[1]), self.batch)
            rng.shuffle(batches)
            order += [index for batch in batches for index in batch]
        return order


def _parts(items: list[int], size: int) -> list[list[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def record(texts: list[str], rate: int, folder: Path, seed: int = 0, speak: Say = say) -> list[Utterance]:
    """Every text, spoken by someone whom chance (by seed and place) chooses. What the folder holds is not spoken again.

    Raises: MismatchError: the folder holds recordings of another seed, rate or manner.
    """
    claim(folder, {"seed": seed, "rate": rate, **MANNER})
    found: list[Utterance] = []
    for start in progress(range(0, len(texts), SHARD), desc="speaking", unit="shard"):
        part = texts[start : start + SHARD]
        who = [anyone(random.Random(f"{seed}/{start + i}")) for i in range(len(part))]
        file = folder / f"{start // SHARD:04d}.npz"
        if not file.exists() or len(read_shard(file)[1]) < len(part):  # fewer sentences were asked for
            spoken = [resampled(speak(text, one), rate).numpy() for text, one in zip(part, who, strict=True)]
            write_shard(file, spoken)
        pcm, ends = read_shard(file)
        ends = ends[: len(part)]
        for text, one, end, begin in zip(part, who, ends, [0, *ends[:-1]], strict=True):
            found.append(Utterance(text, list(VOICES).index(one.name), pcm[begin:end]))
    return found


def write_shard(file: Path, spoken: list[np.ndarray]) -> None:
    """Utterances [N] float32 in one file."""
    pcm = np.concatenate([np.round(np.clip(one, -1, 1) * 32767).astype(np.int16) for one in spoken])
    with whole(file) as draft, draft.open("wb") as stream:  # to a path, numpy would add an ending
        np.savez(stream, pcm=pcm, ends=np.cumsum([len(one) for one in spoken]))


def read_shard(file: Path) -> tuple[Tensor, list[int]]:
    """All samples one after the other, int16, and where each utterance ends."""
    with np.load(file, allow_pickle=False) as shard:
        return torch.from_numpy(shard["pcm"]), shard["ends"].tolist()


def coded(codec: MelCodec, spoken: list[Utterance]) -> list[Coded]:
    """The corpus in codes."""
    return [
        Coded(one.text, one.speaker, codec.encode(one.samples[None])[0])
        for one in progress(spoken, desc="coding", unit="utterance")
    ]
