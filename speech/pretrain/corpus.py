"""The spoken corpus: who says which sentence, kept in shards of samples, and later as codes.

A shard is written whole or not at all; a run that was killed goes on with the first one that is missing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
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

    batch: samples per update. Every `WINDOW` batches are put in order of length, and then taken in any order. The last
    batch of an epoch may be short, and is filled up by the first samples of the next one.
    """

    def __init__(self, samples: list[Coded], length: int, seed: int, batch: int) -> None:
        self.batch = batch
        super().__init__(samples, length, seed)

    def order_of(self, epoch: int) -> list[int]:
        """Of an epoch."""
        rng = random.Random(f"{self.seed}/{epoch}/lengths")
        mixed = rng.sample(range(len(self.samples)), len(self.samples))
        begun = -epoch * len(self.samples) % self.batch  # what the last batch of the epoch before lacks
        order = mixed[:begun]
        for window in _parts(mixed[begun:], WINDOW * self.batch):
            batches = _parts(sorted(window, key=lambda index: self.samples[index].codes.shape[1]), self.batch)
            short = batches.pop() if len(window) % self.batch else []  # at the end, or all after it were cut askew
            rng.shuffle(batches)
            order += [index for batch in [*batches, short] for index in batch]
        return order


def _parts(items: list[int], size: int) -> list[list[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def record(texts: list[str], rate: int, folder: Path, seed: int = 0, speak: Say = say) -> list[Utterance]:
    """Every text, spoken by someone whom chance (by seed and place) chooses. What the folder holds is not spoken again,
    but for shards of other sentences or speakers, and for those that do not say of which they are.

    Raises: MismatchError: the folder holds recordings of another seed, rate or manner.
    """
    claim(folder, {"seed": seed, "rate": rate, **MANNER})
    found: list[Utterance] = []
    for start in progress(range(0, len(texts), SHARD), desc="speaking", unit="shard"):
        part = texts[start : start + SHARD]
        who = [anyone(random.Random(f"{seed}/{start + i}")) for i in range(len(part))]
        file = folder / f"{start // SHARD:04d}.npz"
        marks = [mark(text, one) for text, one in zip(part, who, strict=True)]
        if marks_in(file)[: len(part)] != marks:  # it may hold more sentences than are asked for
            spoken = [resampled(speak(text, one), rate).numpy() for text, one in zip(part, who, strict=True)]
            write_shard(file, spoken, marks)
        pcm, ends = read_shard(file)
        ends = ends[: len(part)]
        for text, one, end, begin in zip(part, who, ends, [0, *ends[:-1]], strict=True):
            found.append(Utterance(text, list(VOICES).index(one.name), pcm[begin:end]))
    return found


def mark(text: str, speaker: Speaker) -> str:
    """What an utterance is of: a short hash of the sentence, and of who says it in which rate, pitch and mood."""
    return sha256(repr((text, speaker)).encode()).hexdigest()[:16]


def sound_digest(spoken: list[Utterance]) -> str:
    """A short hash that changes with the sound of any of these utterances."""
    found = sha256()
    for one in spoken:
        found.update(f"{len(one.pcm)}/".encode())
        found.update(one.pcm.numpy().tobytes())
    return found.hexdigest()[:16]


def write_shard(file: Path, spoken: list[np.ndarray], marks: list[str]) -> None:
    """Utterances [N] float32 in one file. marks: of what each of them is."""
    pcm = np.concatenate([np.round(np.clip(one, -1, 1) * 32767).astype(np.int16) for one in spoken])
    ends = np.cumsum([len(one) for one in spoken])
    with whole(file) as draft, draft.open("wb") as stream:  # to a path, numpy would add an ending
        np.savez(stream, pcm=pcm, ends=ends, marks=np.array(marks))


def marks_in(file: Path) -> list[str]:
    """The marks of a shard's utterances; none where there is no shard, or one of before marks."""
    if not file.exists():
        return []
    with np.load(file, allow_pickle=False) as shard:
        return shard["marks"].tolist() if "marks" in shard else []


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
