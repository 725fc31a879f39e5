"""A small recogniser that judges synthetic speech: samples -> log-mel -> convolutions -> letters, and who speaks.

Letters come by connectionist temporal classification, decoded greedily (CTC, Graves et al. 2006). It has learnt what
espeak-ng says about the synthetic world and nothing else; its own error stands beside every figure that it gives.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.checkpoints import read_model
from mmspec.errors import CheckpointError
from mmspec.safe_files import read_json
from mmspec.speech.audio import Audio, resampled, torchaudio
from mmspec.speech.wer import LETTERS

BLANK = 0
FLOOR = 1e-5  # energies below it are silence
FIGURES = "figures.json"


class ListenerConfig(PreTrainedConfig):
    """rate: samples per second. n_fft, hop, mels: of the spectrogram. width, blocks, kernel: of the convolutions.

    voices: manners of speaking that are told apart. manner: size of a voice's embedding.
    """

    model_type = "mmspec-listener"

    rate: int = 16_000
    n_fft: int = 512
    hop: int = 128
    mels: int = 64
    width: int = 160
    blocks: int = 6
    kernel: int = 15
    voices: int = 36
    manner: int = 48


class Block(nn.Module):
    """A convolution over time within each channel, then a small network across channels, beside a skip connection."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.time = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """x: [B, T, width]; real: [B, T, 1], 0 where a row is padded."""
        mixed = self.time((x * real).transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.gelu(self.up(self.norm(mixed))))


class Listener(PreTrainedModel):
    """Hears letters (`hear`) and voices (`manner_of`). figures: its own errors, as its training measured them."""

    config_class = ListenerConfig
    main_input_name = "mel"
    figures: dict[str, float]

    def __init__(self, config: ListenerConfig) -> None:
        super().__init__(config)
        width = config.width
        self.front = nn.ModuleList(
            [nn.Conv1d(config.mels, width, 5, stride=2, padding=2), nn.Conv1d(width, width, 5, stride=2, padding=2)]
        )
        self.blocks = nn.ModuleList(Block(width, config.kernel) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(width)
        self.letters = nn.Linear(width, 1 + len(LETTERS))
        self.manner = nn.Linear(2 * width, config.manner)
        self.voices = nn.Linear(config.manner, config.voices)
        self.figures = {}
        self.post_init()

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Listener:
        """One that was trained. Raises: CheckpointError: the folder holds none, or a damaged one."""
        place = Path(folder)
        if read_json(place / "config.json").get("model_type") != ListenerConfig.model_type:
            raise CheckpointError(f"{place} holds no listener: train one with mmspec train target valle-listener")
        found: Listener = read_model(cls, place, torch.float32).eval()
        if (place / FIGURES).exists():
            found.figures = read_json(place / FIGURES)
        return found

    def write(self, folder: Path) -> None:
        """Write the folder that `load` reads."""
        self.save_pretrained(folder)
        (folder / FIGURES).write_text(json.dumps(self.figures, indent=2) + "\n", encoding="utf-8")

    def mel(self, samples: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Samples [N] of each row -> log-mel frames [B, mels, T] of mean 0 and spread 1, and frames [B] of each row."""
        rows = [energies(self.config, row) for row in samples]
        rows = [(row - row.mean()) / row.std().clamp(min=1e-3) for row in rows]
        counts = torch.tensor([row.shape[-1] for row in rows], device=self.device)
        width = int(counts.max())
        padded = torch.stack([F.pad(row, (0, width - row.shape[-1])) for row in rows])
        return padded.to(self.device, self.dtype), counts

    def forward(self, mel: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of letters, their frames, and embeddings of the voices.

        Args: mel: [B, mels, T]. counts: [B] frames of each row; what follows them changes nothing.
        Returns: [B, L, 1 + letters], 0 being the blank; [B]; [B, manner] of length 1.
        """
        x = mel
        for layer in self.front:
            x = F.gelu(layer(x * _real(counts, x.shape[-1])[:, None]))
            counts = (counts - 1) // 2 + 1
        x, real = x.transpose(1, 2), _real(counts, x.shape[-1])[..., None].to(mel.dtype)
        manner = x.new_zeros(0)
        for place, block in enumerate(self.blocks):
            if place == len(self.blocks) // 3:  # what is said matters little yet, how it is said still does
                manner = F.normalize(self.manner(_pooled(x, real)), dim=-1)
            x = block(x, real)
        return self.letters(self.norm(x)).float().log_softmax(-1), counts, manner

    @torch.no_grad()
    def take_in(self, audio: Audio) -> tuple[str, Tensor]:
        """What `hear` and `manner_of` say, in one pass."""
        laws, counts, manner = self(*self.mel([resampled(audio, self.config.rate)]))
        return written(laws[0, : int(counts[0])].argmax(-1).tolist()), manner[0]

    def hear(self, audio: Audio) -> str:
        """What is said, in LETTERS."""
        return self.take_in(audio)[0]

    def manner_of(self, audio: Audio) -> Tensor:
        """[manner] of length 1: the cosine of two of them says how alike two voices are."""
        return self.take_in(audio)[1]


def energies(config: ListenerConfig, samples: Tensor) -> Tensor:
    """Samples [N] -> log-mel energies [mels, T], natural logarithms."""
    spectrum = _spectrum(config.rate, config.n_fft, config.hop, config.mels)
    return spectrum(samples.cpu().float()).clamp(min=FLOOR).log()


def written(symbols: list[int]) -> str:
    """The text of a path through the frames: repetitions are one letter, blanks none."""
    kept = [now for before, now in zip([BLANK, *symbols], symbols, strict=False) if now not in (before, BLANK)]
    return " ".join("".join(LETTERS[symbol - 1] for symbol in kept).split())


def symbols(text: str) -> list[int]:
    """The symbols of an `audible` text."""
    return [1 + LETTERS.index(letter) for letter in text]


def _real(counts: Tensor, width: int) -> Tensor:
    """[B, width] True at frames that a row has."""
    return torch.arange(width, device=counts.device) < counts[:, None]


def _pooled(x: Tensor, real: Tensor) -> Tensor:
    """Mean and spread [B, 2 C] of frames [B, T, C] over time."""
    total = real.sum(1)
    mean = (x * real).sum(1) / total
    spread = (((x - mean[:, None]) * real).square().sum(1) / total + 1e-5).sqrt()
    return torch.cat([mean, spread], -1)


@lru_cache(maxsize=4)
def _spectrum(rate: int, n_fft: int, hop: int, mels: int) -> Any:
    return torchaudio().transforms.MelSpectrogram(rate, n_fft, n_fft, hop, n_mels=mels, norm="slaney")
