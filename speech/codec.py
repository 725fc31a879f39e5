"""A small neural codec: log-mel frames in residual vector quantisation, spoken by Griffin-Lim. 1.4 M parameters.

samples -> log-mel -> convolutions (one halves the rate) -> K codebooks, each on what the ones before left over
(SoundStream, arXiv 2107.03312) -> a mirrored decoder -> log-mel -> magnitudes -> phases by Griffin-Lim. There is no
neural vocoder: it sounds like a robot, and trains in minutes on a CPU.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.speech.audio import torchaudio

FLOOR = 1e-4  # magnitudes below it are silence


class MelCodecConfig(PreTrainedConfig):
    """rate: samples per second. n_fft, hop, mels: of the spectrogram. width, latent: channels inside, and of a code.

    codebooks: K. codebook_size: codes of each. iterations: of Griffin-Lim. mean, spread: of the log-mel values.
    """

    model_type = "mmspec-mel-codec"

    rate: int = 16_000
    n_fft: int = 1024
    hop: int = 256
    mels: int = 80
    width: int = 192
    latent: int = 32
    codebooks: int = 4
    codebook_size: int = 256
    iterations: int = 32
    mean: float = -4.0
    spread: float = 3.0


class Block(nn.Module):
    """Two convolutions over time beside a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.GELU(), nn.Conv1d(width, width, 5, padding=2), nn.GELU(), nn.Conv1d(width, width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, T] -> the same."""
        return x + self.inner(x)


class MelCodec(PreTrainedModel):
    """Samples to codes and back. A frame of codes stands for `samples_per_frame` samples."""

    config_class = MelCodecConfig
    books: Any  # a ModuleList of K embeddings
    main_input_name = "samples"

    def __init__(self, config: MelCodecConfig) -> None:
        super().__init__(config)
        width, latent = config.width, config.latent
        self.encoder = nn.Sequential(
            nn.Conv1d(config.mels, width, 5, padding=2),
            Block(width),
            nn.Conv1d(width, width, 4, stride=2, padding=1),
            Block(width),
            nn.Conv1d(width, latent, 1),
        )
        self.books = nn.ModuleList(nn.Embedding(config.codebook_size, latent) for _ in range(config.codebooks))
        self.decoder = nn.Sequential(
            nn.Conv1d(latent, width, 5, padding=2),
            Block(width),
            nn.ConvTranspose1d(width, width, 4, stride=2, padding=1),
            Block(width),
            nn.Conv1d(width, config.mels, 5, padding=2),
        )
        self.post_init()

    @property
    def samples_per_frame(self) -> int:
        """Samples that one frame of codes stands for."""
        return 2 * self.config.hop

    @property
    def frames_per_second(self) -> float:
        """Frames of codes per second."""
        return self.config.rate / self.samples_per_frame

    def log_mel(self, samples: Tensor) -> Tensor:
        """Samples [B, N] -> normalised log-mel frames [B, mels, T], an even number of them; the end is padded."""
        config = self.config
        samples = F.pad(samples, (0, -samples.shape[-1] % self.samples_per_frame))
        margin = (config.n_fft - config.hop) // 2  # so that frame i is centred on its own hop samples
        padded = F.pad(samples, (margin, config.n_fft - config.hop - margin))
        window = torch.hann_window(config.n_fft, device=samples.device, dtype=samples.dtype)
        spectrum = torch.stft(padded, config.n_fft, config.hop, window=window, center=False, return_complex=True)
        mels = filters(config.rate, config.n_fft, config.mels).to(samples) @ spectrum.abs()
        return (mels.clamp(min=FLOOR).log() - config.mean) / config.spread

    def quantise(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Latents [B, D, F] -> codes [B, K, F], and the sums [B, K, D, F] of the first 1, 2, ... K chosen entries."""
        rest, total = latent.transpose(1, 2), torch.zeros_like(latent.transpose(1, 2))
        codes, sums = [], []
        for book in self.books:
            code = torch.cdist(rest, book.weight[None]).argmin(-1)  # [B, F]
            rest, total = rest - book(code), total + book(code)
            codes.append(code)
            sums.append(total.transpose(1, 2))
        return torch.stack(codes, 1), torch.stack(sums, 1)

    @torch.no_grad()
    def encode(self, samples: Tensor) -> Tensor:
        """Samples [B, N] -> codes [B, K, F]; F is N / samples_per_frame, rounded up."""
        return self.quantise(self.encoder(self.log_mel(samples)))[0]

    @torch.no_grad()
    def middle(self, k: int, law: Tensor) -> Tensor:
        """The codes [B, F] of codebook k that are nearest to the mean of a law [B, F, codes]: the least squared error.

        The likeliest code is worse where several similar ones share the law.
        """
        entries = self.books[k].weight
        return torch.cdist(law.to(entries) @ entries, entries[None]).argmin(-1)

    @torch.no_grad()
    def mel_of(self, codes: Tensor) -> Tensor:
        """Codes [B, K, F] -> normalised log-mel frames [B, mels, 2 F]."""
        latent = sum(book(codes[:, k]) for k, book in enumerate(self.books)).transpose(1, 2)
        return self.decoder(latent)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, K, F] -> samples [B, F * samples_per_frame], float32 in [-1, 1]. Repeatable."""
        return self.speak(self.mel_of(codes))

    def speak(self, mel: Tensor) -> Tensor:
        """Normalised log-mel frames [B, mels, T] -> samples [B, T * hop]. Phases by Griffin-Lim, from zero phase."""
        config = self.config
        magnitudes = (mel.float() * config.spread + config.mean).clamp(max=8.0).exp()
        inverse = inverse_filters(config.rate, config.n_fft, config.mels).to(magnitudes)
        spectrum = (inverse @ magnitudes).clamp(min=0)
        window = torch.hann_window(config.n_fft, device=mel.device)
        samples = torchaudio().functional.griffinlim(
            F.pad(spectrum, (0, config.n_fft // config.hop), mode="replicate"),
            window,
            config.n_fft,
            config.hop,
            config.n_fft,
            power=1.0,
            n_iter=config.iterations,
            momentum=0.99,
            length=None,
            rand_init=False,
        )
        centred = F.pad(samples, (config.hop // 2, 0))  # frame 0 has its centre there, not at sample 0
        return centred[:, : mel.shape[-1] * config.hop].clamp(-1, 1)


@lru_cache(maxsize=4)
def filters(rate: int, n_fft: int, mels: int) -> Tensor:
    """[mels, n_fft // 2 + 1] the mel filters."""
    return (
        torchaudio().functional.melscale_fbanks(n_fft // 2 + 1, 0.0, rate / 2, mels, rate, norm="slaney").T.contiguous()
    )


@lru_cache(maxsize=4)
def inverse_filters(rate: int, n_fft: int, mels: int) -> Tensor:
    """[n_fft // 2 + 1, mels] their pseudo-inverse."""
    return torch.linalg.pinv(filters(rate, n_fft, mels))
