"""The shapes of `mar-mini`: a published MAR made small, whose condition are the words of a caption.

Few diffusion steps, so that the head is cheap beside the network; the last one keeps the noise that the VAE puts into
latents anyway, so that densities of target and drafter overlap more (of 16 numbers, they overlap little even so).
"""

from __future__ import annotations

from typing import Any

from mmspec.image_ar.mar_config import MarConfig

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
