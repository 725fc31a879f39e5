"""Training of the codec: mel distance and commitment by gradients, codebooks by moving averages (arXiv 1711.00937).

An entry that is hardly ever chosen is moved to a latent of the batch, or half of a codebook would lie idle.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.speech.codec import MelCodec
from mmspec.speech.pretrain.corpus import Utterance

DECAY, IDLE, COMMITMENT = 0.98, 0.3, 0.25
CROP_S = 1.0


class CodecLearner(nn.Module):
    """The codec with the moving averages of its codebooks: how often each entry is chosen, and the sum of what for."""

    counts: Tensor  # [K, codebook_size]
    sums: Tensor  # [K, codebook_size, D]

    def __init__(self, codec: MelCodec) -> None:
        super().__init__()
        self.codec = codec
        for book in codec.books:
            book.requires_grad_(False)
        size = (codec.config.codebooks, codec.config.codebook_size)
        self.register_buffer("counts", torch.zeros(size))
        self.register_buffer("sums", torch.zeros(*size, codec.config.latent))

    def loss(self, position: Tensor, rows: list[Utterance]) -> Tensor:
        """A scalar, of one random second of each utterance. position: [B] of the samples in the run."""
        generator = torch.Generator().manual_seed(int(position[0]))
        mel = self.codec.log_mel(torch.stack([self._crop(row.samples, generator) for row in rows]))
        latent = self.codec.encoder(mel)
        codes, sums = self.codec.quantise(latent.detach())
        self._move(latent.detach(), codes, sums, generator)
        heard = latent + (sums[:, -1] - latent).detach()
        return F.l1_loss(self.codec.decoder(heard), mel) + COMMITMENT * F.mse_loss(latent, sums[:, -1])

    def _crop(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        length = int(CROP_S * self.codec.config.rate)
        if len(samples) <= length:
            return F.pad(samples, (0, length - len(samples)))
        start = int(torch.randint(0, len(samples) - length, (1,), generator=generator))
        return samples[start : start + length]

    @torch.no_grad()
    def _move(self, latent: Tensor, codes: Tensor, sums: Tensor, generator: torch.Generator) -> None:
        """Move every entry towards the mean of what chose it; latent [B, D, F], codes [B, K, F], sums [B, K, D, F]."""
        for k, book in enumerate(self.codec.books):
            left = latent - sums[:, k - 1] if k else latent  # what codebook k had to stand for
            vectors, chosen = left.transpose(1, 2).reshape(-1, left.shape[1]), codes[:, k].reshape(-1)
            counts, totals = torch.zeros_like(self.counts[k]), torch.zeros_like(self.sums[k])
            counts.index_add_(0, chosen, torch.ones_like(chosen, dtype=counts.dtype))
            totals.index_add_(0, chosen, vectors)
            self.counts[k].lerp_(counts, 1 - DECAY)
            self.sums[k].lerp_(totals, 1 - DECAY)
            idle = self.counts[k] < IDLE * self.counts[k].mean()
            fresh = vectors[torch.randint(0, len(vectors), (len(idle),), generator=generator)]
            self.counts[k] = torch.where(idle, self.counts[k].mean(), self.counts[k])
            self.sums[k] = torch.where(idle[:, None], fresh * self.counts[k][:, None], self.sums[k])
            book.weight.copy_(self.sums[k] / self.counts[k][:, None].clamp(min=1e-6))


@torch.no_grad()
def scale(codec: MelCodec, spoken: list[Utterance]) -> None:
    """Set mean and spread of the log-mel values from some utterances."""
    codec.config.mean, codec.config.spread = 0.0, 1.0
    values = torch.cat([codec.log_mel(one.samples[None]).flatten() for one in spoken[:64]])
    codec.config.mean, codec.config.spread = float(values.mean()), float(values.std())


@torch.no_grad()
def mel_distance(codec: MelCodec, spoken: list[Utterance]) -> float:
    """Mean absolute distance of log-mel values (natural logarithms) between utterances and their resynthesis."""
    distances = []
    for one in spoken:
        mel = codec.log_mel(one.samples[None])
        distances.append(float((codec.mel_of(codec.encode(one.samples[None])) - mel).abs().mean()))
    return codec.config.spread * sum(distances) / len(distances)
