"""The picture decoder that the stock Chameleon class lacks: from code vectors to colours (VQGAN, arXiv 2012.09841).

The stock class has the encoder, the codebook and the convolution behind it; their published counterpart mirrors the
encoder. It is built here from the encoder's own blocks, under the published names, so that weights need no renaming.
They lie in the model's folder: under `model.vqmodel.decoder.` among the model's own (as in the Anole checkpoint), or in
a file that `save_decoder` wrote from the published picture tokenizer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import interpolate, silu
from transformers.models.chameleon.modeling_chameleon import (
    ChameleonVQVAEEncoderAttnBlock,
    ChameleonVQVAEEncoderResnetBlock,
)

from mmspec.checkpoints import HUB_ID
from mmspec.errors import CheckpointError, one_line
from mmspec.safe_files import whole

FILE = "picture_decoder.safetensors"
INSIDE = "model.vqmodel.decoder."
PUBLISHED = "decoder."


class Level(nn.Module):
    """One resolution: blocks, attention if it has any, and a doubling of the sides unless it is the last one."""

    def __init__(self, config: Any, channels: int, width: int, side: int, last: bool) -> None:
        super().__init__()
        attends = config.attn_type == "vanilla" and side in (config.attn_resolutions or ())
        sizes = [channels] + [width] * config.num_res_blocks
        self.block = nn.ModuleList(ChameleonVQVAEEncoderResnetBlock(config, size, width) for size in sizes)
        self.attn = nn.ModuleList(ChameleonVQVAEEncoderAttnBlock(width) for _ in sizes if attends)
        self.upsample = nn.Identity() if last else Doubled(width)

    def forward(self, states: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, C', 2 h, 2 w]."""
        for place, block in enumerate(self.block):
            states = block(states)
            if len(self.attn):
                states = self.attn[place](states)
        return self.upsample(states)


class Doubled(nn.Module):
    """Twice the side, by repeating and a convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, states: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, C, 2 h, 2 w]."""
        return self.conv(interpolate(states, scale_factor=2.0, mode="nearest"))


class Middle(nn.Module):
    """Blocks around attention at the lowest resolution."""

    def __init__(self, config: Any, width: int) -> None:
        super().__init__()
        self.block_1 = ChameleonVQVAEEncoderResnetBlock(config, width, width)
        self.attn_1 = ChameleonVQVAEEncoderAttnBlock(width) if config.attn_type == "vanilla" else nn.Identity()
        self.block_2 = ChameleonVQVAEEncoderResnetBlock(config, width, width)

    def forward(self, states: Tensor) -> Tensor:
        """[B, C, h, w] -> the same shape."""
        return self.block_2(self.attn_1(self.block_1(states)))


class PictureDecoder(nn.Module):
    """Args: config: the `vq_config` of a Chameleon."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        widths = [config.base_channels * factor for factor in config.channel_multiplier]
        self.conv_in = nn.Conv2d(config.latent_channels, widths[-1], 3, padding=1)
        self.mid = Middle(config, widths[-1])
        above = [*widths[1:], widths[-1]]  # what comes in from the next lower resolution
        self.up = nn.ModuleList(
            Level(config, above[level], width, config.resolution >> level, level == 0)
            for level, width in enumerate(widths)
        )
        self.norm_out = nn.GroupNorm(32, widths[0], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[0], config.in_channels, 3, padding=1)

    def forward(self, states: Tensor) -> Tensor:
        """[B, latent channels, h, w] -> colours [B, 3, H, W] in [-1, 1], about."""
        states = self.mid(self.conv_in(states))
        for level in reversed(self.up):
            states = level(states)
        return self.conv_out(silu(self.norm_out(states)))


def folder_of(name: str) -> Path | None:
    """The folder from which a model was loaded, which of a hub id is the one in the local cache; None where it is not
    here. Nothing is downloaded."""
    if os.path.isdir(name):
        return Path(name)
    if not HUB_ID.fullmatch(name):
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    with suppress(HFValidationError, LocalEntryNotFoundError):
        return Path(snapshot_download(name, allow_patterns=["*.safetensors"], local_files_only=True))
    return None


def read_decoder(folder: Path, config: Any) -> PictureDecoder | None:
    """The decoder whose weights lie in a model's folder; None where there are none.

    Raises: CheckpointError: weights that are damaged, incomplete or of another shape.
    """
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        prefix = "" if file.name == FILE else INSIDE
        try:
            with safe_open(file, "pt") as part:
                names = [name for name in part.keys() if name.startswith(prefix)]  # noqa: SIM118  not a mapping
                weights |= {name.removeprefix(prefix): part.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file} cannot be read: {one_line(error)}") from error
    return _filled(weights, config, str(folder)) if weights else None


def save_decoder(published: Mapping[str, Tensor], folder: Path, config: Any) -> Path:
    """Write the picture decoder of a published VQGAN beside a Chameleon that lacks it.

    Args: published: its state dict; what does not begin with "decoder." is left out. config: the model's `vq_config`.
    Raises: CheckpointError: it does not fit.
    """
    weights = {name.removeprefix(PUBLISHED): weight for name, weight in published.items() if name.startswith(PUBLISHED)}
    made = _filled(weights, config, "the state dict")
    with whole(folder / FILE) as draft:
        save_file({name: weight.contiguous() for name, weight in made.state_dict().items()}, draft)
    return folder / FILE


def _filled(weights: dict[str, Tensor], config: Any, where: str) -> PictureDecoder:
    made = PictureDecoder(config)
    wanted = {name: weight.shape for name, weight in made.state_dict().items()}
    wrong = sorted(
        name for name in {*wanted, *weights} if name not in weights or weights[name].shape != wanted.get(name)
    )
    wrong += [name for name, weight in weights.items() if not wrong and not torch.isfinite(weight).all()]
    if wrong:
        raise CheckpointError(
            f"{where} holds no picture decoder for this model: {len(wrong)} weights are missing, unknown, damaged or "
            f"of another shape, {wrong[0]} among them"
        )
    made.load_state_dict(weights)
    return made.eval()
