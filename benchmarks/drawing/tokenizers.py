"""What the picture tokenizer of a model leaves of a real picture: nothing that is drawn can be better kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmspec import Pipeline
from mmspec.image_ar.pretrain.patches import NAME, Patches


@torch.inference_mode()
def through_codes(pipe: Pipeline, picture: Image.Image) -> Image.Image:
    """A picture as codes, and back, by the tokenizer of a Janus, or by the network that found the codes it learnt."""
    target: Any = pipe.target
    tokenizer, own = target.model.model.vqmodel, Path(target.model.name_or_path)
    side = target.layout.rows * 2 ** (len(tokenizer.config.channel_multiplier) - 1)
    pixels = small(picture, side)
    if (own / NAME).is_file():
        codes = Patches.read(own).codes(pixels, tokenizer.quantize.embedding.weight.float().cpu())
    else:
        codes = tokenizer.encode(pixels.to(target.model.device, target.model.dtype)).image_tokens
    return target.picture(codes.flatten().tolist(), target.layout)


@torch.inference_mode()
def through_latents(pipe: Pipeline, picture: Image.Image) -> Image.Image:
    """A picture as the likeliest continuous tokens, and back, by the VAE of a MAR."""
    target: Any = pipe.target
    model, config = target.model, target.model.config
    side = config.grid * 2 ** (len(model.vae.config.block_out_channels) - 1)
    pixels = small(picture, side).to(model.device, model.dtype)
    tokens = model.vae.encode(pixels).latent_dist.mode().flatten(2).transpose(1, 2)[0] * config.latent_scale
    return target.picture(tokens, list(range(config.length)))


def small(picture: Image.Image, side: int) -> Tensor:
    """[1, 3, side, side] colours in [-1, 1]."""
    shrunk = picture.convert("RGB").resize((side, side), Image.Resampling.BOX)
    return torch.from_numpy(np.asarray(shrunk, dtype=np.float32)).permute(2, 0, 1)[None] / 127.5 - 1


TOKENIZERS: dict[str, Callable[[Pipeline, Image.Image], Image.Image]] = {
    "janus": through_codes,
    "mmspec-mar": through_latents,
}
"""By the type of the model."""
