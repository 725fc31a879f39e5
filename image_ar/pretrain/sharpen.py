"""Stage 2: the picture tokenizer's decoder learns to draw shapes that can be told apart; its codes stay as they are.

By pixels alone corners melt: a star becomes a cross, a circle a square. So pictures are compared as a network that
knows the shapes sees them, too (perceptual loss, arXiv 1603.08155, as in VQGAN, arXiv 2012.09841). That network, the
critic, learns from scenes of its own; the reader that judges what models draw is another, which this never asks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers.models.janus.modeling_janus import JanusVQVAE

from mmspec.image_ar.patches import Patches
from mmspec.image_ar.pretrain.codes import pixel_loss
from mmspec.image_ar.reader import Reader
from mmspec.pretrain.pixels import normalized

LOOKS = 1.0
"""Weight of how the critic tells two pictures apart."""


class Sharpener(nn.Module):
    """Pixels to the loss of a decoder. What finds the codes, these themselves and the critic are frozen."""

    def __init__(self, vq: JanusVQVAE, patches: Patches, critic: Reader) -> None:
        super().__init__()
        self.patches = patches.requires_grad_(False)
        self.vq, self.critic = vq.requires_grad_(False), Critic(critic)
        for part in (vq.post_quant_conv, vq.decoder):
            part.requires_grad_(True)

    def forward(self, pixels: Tensor, **_: Any) -> dict[str, Tensor]:
        """pixels: [B, 3, S, S] uint8. Returns the loss, and the reconstruction in [-1, 1]."""
        wanted = normalized(pixels)
        with torch.no_grad():
            codes = self.patches.codes(wanted, self.vq.quantize.embedding.weight)
        made = self.vq.decode(codes)
        return {"loss": pixel_loss(made, wanted) + LOOKS * self.critic(made, wanted), "made": made}


class Critic(nn.Module):
    """How far pictures look from those wanted to a network that is frozen, and stays so: its running means must not
    move."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Critic:
        """It never learns."""
        return super().train(False)

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        """A scalar, of pictures [B, 3, S, S]."""
        return unlikeness(self.reader, made, wanted)


def unlikeness(critic: Reader, made: Tensor, wanted: Tensor) -> Tensor:
    """How far pictures [B, 3, S, S] are from those wanted as a critic sees them: mean squared distance of the
    directions of its features, summed over its stages."""
    with torch.no_grad():
        seen = critic.stages(wanted)
    pairs = zip(critic.stages(made), seen, strict=True)
    each = [(normalize(mine, dim=1) - normalize(other, dim=1)).square().sum(1).mean() for mine, other in pairs]
    return torch.stack(each).sum()
