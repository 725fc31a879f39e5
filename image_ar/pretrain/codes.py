"""Stage 1: the picture tokenizer, a VQ autoencoder on the stock `JanusVQVAE`.

Codes are unit vectors. The stock class looks for the nearest code of raw vectors and decodes normalised ones; with a
normalised codebook both are the same. Codes are found by a network of single patches, see
`mmspec.image_ar.patches`. Those that no patch uses any more are put where patches are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, l1_loss, mse_loss, normalize
from transformers.models.janus.modeling_janus import JanusVQVAE

from mmspec.image_ar.patches import Patches, nearest
from mmspec.image_ar.pretrain.architecture import CODE_SIZE, PATCH
from mmspec.pretrain.pixels import normalized

COMMITMENT = 0.25
TONES, SALIENT = 2.0, 8.0
"""Weight of the mean colour of a patch, and how much more of one that stands out: things are a twentieth of a picture,
and rough grounds would drown their colours."""
MEMORY = 0.98  # of how often each code is used
UNUSED = 0.03  # share of an even use below which a code is moved


class Autoencoder(nn.Module):
    """A picture tokenizer in training: pixels to their reconstruction loss. The stock encoder is left as it is."""

    def __init__(self, vq: JanusVQVAE) -> None:
        super().__init__()
        self.vq = vq.requires_grad_(True)
        self.patches = Patches(PATCH, CODE_SIZE)
        for part in (vq.encoder, vq.quant_conv):
            part.requires_grad_(False)
        codes = vq.quantize.embedding
        with torch.no_grad():
            codes.weight.copy_(normalize(torch.randn_like(codes.weight), dim=-1))
        self.register_buffer("use", torch.ones(codes.num_embeddings))
        self.use: Tensor

    def forward(self, pixels: Tensor, **_: Any) -> dict[str, Tensor]:
        """pixels: [B, 3, S, S] uint8. Returns the loss, and the reconstruction in [-1, 1]."""
        wanted = normalized(pixels)
        states = self.patches(wanted)
        flat = states.detach().flatten(0, 2)
        if self.training:
            self._tend(nearest(flat, self.book), flat)  # before the codes are part of a graph
        book = self.book
        chosen = book[nearest(flat, book)].view(states.shape)
        fit = mse_loss(chosen, states.detach()) + COMMITMENT * mse_loss(states, chosen.detach())
        passed = (states + (chosen - states).detach()).permute(0, 3, 1, 2)
        made = self.vq.decoder(self.vq.post_quant_conv(passed))
        return {"loss": pixel_loss(made, wanted) + fit, "made": made}

    @property
    def book(self) -> Tensor:
        """[V, d] unit vectors of the codes."""
        return normalize(self.vq.quantize.embedding.weight, dim=-1)

    @torch.no_grad()
    def _tend(self, chosen: Tensor, states: Tensor) -> None:
        """Remember which codes are used; move those that are not onto states of this batch."""
        weight = self.vq.quantize.embedding.weight
        counts = torch.bincount(chosen, minlength=len(weight)).float()
        self.use.lerp_(counts * (len(weight) / len(chosen)), 1 - MEMORY)
        lost = self.use < UNUSED
        count = int(lost.sum())
        if count:
            weight[lost] = states[torch.randint(len(states), (count,), device=states.device)]
            self.use[lost] = 1.0

    @torch.no_grad()
    def finish(self) -> JanusVQVAE:
        """The tokenizer with a normalised codebook, as the stock class wants it."""
        weight = self.vq.quantize.embedding.weight
        weight.copy_(normalize(weight, dim=-1))
        return self.vq.eval()


def pixel_loss(made: Tensor, wanted: Tensor) -> Tensor:
    """How far pictures [B, 3, S, S] are from those wanted: pixels, steps between neighbouring ones, mean colours."""
    steps = sum((l1_loss(made.diff(dim=axis), wanted.diff(dim=axis)) for axis in (2, 3)), made.new_zeros(()))
    return l1_loss(made, wanted) + mse_loss(made, wanted) + steps + tones(made, wanted)


def tones(made: Tensor, wanted: Tensor) -> Tensor:
    """The error of the mean colours of patches, most of all of those unlike the picture's most usual one."""
    made, wanted = avg_pool2d(made, PATCH), avg_pool2d(wanted, PATCH)
    usual = wanted.flatten(2).median(-1).values[:, :, None, None]
    salience = (wanted - usual).abs().amax(1, keepdim=True)
    return TONES * ((1 + SALIENT * salience) * (made - wanted).abs()).mean()
