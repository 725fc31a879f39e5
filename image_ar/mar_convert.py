"""How the published weights of MAR become a folder: names of the VAE's parts, and sizes.

model = Mar(published("base"))
weights = torch.load("checkpoint-last.pth", weights_only=True)["model_ema"]
model.load_state_dict(convert(weights, torch.load("kl16.ckpt", weights_only=True)["model"]))
model.generation_config = settings("base")
model.save_pretrained("mar-base")
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor
from transformers import GenerationConfig

from mmspec.errors import CheckpointError, unknown_name
from mmspec.image_ar.mar_config import MarConfig

SIZES: dict[str, dict[str, Any]] = {
    "base": {"hidden_size": 768, "layers": 12, "heads": 12, "head_layers": 6, "head_width": 1024, "guidance": 2.9},
    "large": {"hidden_size": 1024, "layers": 16, "heads": 16, "head_layers": 8, "head_width": 1280, "guidance": 3.0},
    "huge": {"hidden_size": 1280, "layers": 20, "heads": 16, "head_layers": 12, "head_width": 1536, "guidance": 3.2},
}
"""The published sizes, and the guidance with which each draws best."""
VAE: dict[str, Any] = {
    "block_out_channels": (128, 128, 256, 256, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4 + ("AttnDownEncoderBlock2D",),
    "up_block_types": ("UpDecoderBlock2D",) * 5,
    "layers_per_block": 2,
    "latent_channels": 16,
}
"""The published VAE, KL-16, for `AutoencoderKL`."""

OURS = re.compile(
    r"class_emb\.weight|fake_latent|mask_token|z_proj(_ln)?\.\w+|(encoder|decoder|diffusion)_pos_embed_learned"
    r"|(encoder|decoder)_(norm|embed)\.\w+|(encoder|decoder)_blocks\.\d+\..+|diffloss\.net\..+"
)
"""Published names of the model, which are ours, too."""
RENAMED = (
    (r"\.down\.(\d+)\.block\.", r".down_blocks.\1.resnets."),
    (r"\.down\.(\d+)\.attn\.", r".down_blocks.\1.attentions."),
    (r"\.down\.(\d+)\.downsample\.", r".down_blocks.\1.downsamplers.0."),
    (r"\.up\.(\d+)\.block\.", r".up_blocks.\1.resnets."),
    (r"\.up\.(\d+)\.upsample\.", r".up_blocks.\1.upsamplers.0."),
    (r"\.mid\.block_1\.", ".mid_block.resnets.0."),
    (r"\.mid\.block_2\.", ".mid_block.resnets.1."),
    (r"\.mid\.attn_1\.", ".mid_block.attentions.0."),
    (r"(attentions\.\d+)\.norm\.", r"\1.group_norm."),
    (r"(attentions\.\d+)\.([qkv])\.", r"\1.to_\2."),
    (r"(attentions\.\d+)\.proj_out\.", r"\1.to_out.0."),
    (r"\.nin_shortcut\.", ".conv_shortcut."),
    (r"\.norm_out\.", ".conv_norm_out."),
)
"""Published names of the VAE's parts and those of diffusers."""


def published(size: str) -> MarConfig:
    """The configuration of a published MAR. Raises: UnknownNameError: no such size."""
    if size not in SIZES:
        raise unknown_name("size", size, SIZES)
    shape = SIZES[size]
    return MarConfig(
        vae_config=VAE,
        hidden_size=shape["hidden_size"],
        num_attention_heads=shape["heads"],
        encoder_layers=shape["layers"],
        decoder_layers=shape["layers"],
        head_layers=shape["head_layers"],
        head_width=shape["head_width"],
    )


def settings(size: str) -> GenerationConfig:
    """How a published MAR draws where a request is silent."""
    return GenerationConfig(do_sample=True, temperature=1.0, guidance_scale=SIZES[size]["guidance"])


def convert(model: dict[str, Tensor], picture: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict from the published ones of a MAR and of its VAE.

    Raises: CheckpointError: a weight that has no place.
    """
    made = {}
    for name, weight in model.items():
        if not OURS.fullmatch(name):
            raise CheckpointError(f"{name!r} is no weight of a MAR: it has no place in the model")
        made[name] = weight
    levels = 1 + max(
        (int(found[1]) for name in picture if (found := re.match(r"decoder\.up\.(\d+)\.", name))), default=0
    )
    for name, weight in picture.items():
        if name.startswith("loss."):  # what the VAE was trained against
            continue
        if name.partition(".")[0] not in ("encoder", "decoder", "quant_conv", "post_quant_conv"):
            raise CheckpointError(f"{name!r} is no weight of the VAE: it has no place in the model")
        new = name
        for old, ours in RENAMED:
            new = re.sub(old, ours, new)
        new = re.sub(
            r"up_blocks\.(\d+)", lambda found: f"up_blocks.{levels - 1 - int(found[1])}", new
        )  # outermost last
        one_by_one = ".attentions." in new and weight.ndim == 4
        made[f"vae.{new}"] = weight[:, :, 0, 0] if one_by_one else weight
    return made
