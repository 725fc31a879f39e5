"""The shapes of `mar-mini`: a published MAR made small, whose condition are the words of a caption.

Few diffusion steps, so that the head is cheap beside the network; the last one keeps the noise that the VAE puts into
latents anyway, which is what makes densities of target and drafter overlap.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.image_ar.mar_config import MarConfig
from mmspec.image_ar.mar_model import Mar

GRID, CHANNELS, SLOTS = 8, 16, 36
GUIDANCE = 2.0
VAE: dict[str, Any] = {
    "block_out_channels": (16, 32, 48, 64),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "latent_channels": CHANNELS,
    "norm_num_groups": 8,
    "mid_block_add_attention": False,  # a token is to tell of its own part of a picture
}
TARGET = {"hidden_size": 128, "num_attention_heads": 4, "layers": 7, "head_layers": 3, "head_width": 160}
DRAFTER = {"hidden_size": 96, "num_attention_heads": 3, "layers": 2, "head_layers": 2, "head_width": 128}


def mar_config(words: int, latent_scale: float, shape: dict[str, int], vae: bool) -> MarConfig:
    """Args: words: how many the tokenizer knows. shape: TARGET or DRAFTER. vae: whether it brings one."""
    return MarConfig(
        vae_config=VAE if vae else None,
        grid=GRID,
        channels=CHANNELS,
        classes=words,
        captions=True,
        buffer=SLOTS,
        hidden_size=shape["hidden_size"],
        num_attention_heads=shape["num_attention_heads"],
        encoder_layers=shape["layers"],
        decoder_layers=shape["layers"],
        head_layers=shape["head_layers"],
        head_width=shape["head_width"],
        reveal_steps=32,
        diffusion_steps=4,
        spacing="trailing",
        prediction="sample",
        least_variance=0.01,
        latent_scale=latent_scale,
    )


@torch.no_grad()
def begin(model: Mar) -> Mar:
    """Where learning begins: places are waves along the slots, the rows and the columns, words are as loud as these.

    With the published start, small noise, what blocks add drowns the places before they are learnt.
    """
    slots, grid, size = model.config.buffer, model.config.grid, model.config.hidden_size
    lines = waves(grid, size // 2)
    squares = torch.cat([lines.repeat_interleave(grid, 0), lines.repeat(grid, 1)], -1)
    places = torch.cat([waves(slots, size), squares])
    for weight in (model.encoder_pos_embed_learned, model.decoder_pos_embed_learned):
        weight.copy_(places)
    model.diffusion_pos_embed_learned.copy_(squares)
    nn.init.normal_(model.class_emb.weight)
    return model


def waves(count: int, size: int) -> Tensor:
    """[count, size] sines and cosines of places on a line, from the shortest wave that tells neighbours apart to one
    that is longer than the line."""
    lengths = 4.0 * (count / 2) ** torch.linspace(0, 1, size // 2)
    angles = 2 * math.pi * torch.arange(count)[:, None] / lengths
    return torch.cat([angles.sin(), angles.cos()], -1)
