"""LlamaGen as target: class-conditional pictures, and how its published weights become a folder.

A prompt is the number of a class, or its name where the folder's configuration has names (`id2label`).

model = LlamaGen(config)
model.load_state_dict(convert(weights, picture_weights, config))
model.generation_config = settings()
model.save_pretrained("llamagen")
"""

from __future__ import annotations

import re
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from mmspec.errors import CheckpointError, UnsupportedError
from mmspec.image_ar.classes import EXAMPLES, Classes, class_numbers
from mmspec.image_ar.layout import Layout
from mmspec.image_ar.target import ImageTarget


class LlamaGenTarget(ImageTarget):
    """A LlamaGen folder. See `CausalTarget`."""

    model_type = "mmspec-llamagen"
    usual_guidance = 4.0
    unit_codes = True
    examples = EXAMPLES

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        config: Any = model.config
        side = config.vq_config.num_patches
        if side != config.grid:
            raise UnsupportedError(
                f"the picture decoder takes {side} x {side} codes, the model draws {config.grid} x {config.grid}: they "
                "must be as many"
            )
        layout = Layout(config.grid, config.grid, config.vocab_size)
        super().__init__(model, model.model.codes, model.lm_head, layout)

    @classmethod
    def model_class(cls, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The class of the model."""
        from mmspec.image_ar.llamagen_model import LlamaGen

        return LlamaGen

    @classmethod
    def processor_class(cls, config: PreTrainedConfig) -> Any:
        """What reads the names of classes."""
        return Classes

    @property
    def vqmodel(self) -> Any:
        """The stock picture tokenizer."""
        return self.model.vqmodel

    def encode(self, processor: Any, texts: list[str], images: list[list[Image.Image]]) -> dict[str, Any]:
        """`input_ids` [B, 1]: classes, by number or name."""
        return {"input_ids": torch.tensor([[n] for n in class_numbers(processor, texts, self.model.config.classes)])}

    def unguided(self, rows: list[list[int]], inputs: dict[str, Any]) -> list[list[int]]:
        """The empty class."""
        return [[self.model.config.classes]] * len(rows)

    def pixels(self, codes: Tensor) -> Tensor:
        """See `ImageTarget.pixels`."""
        return self.vqmodel.decode(codes.flatten(1))[0]


RENAMED = (
    (r"^tok_embeddings\.", "model.codes."),
    (r"^cls_embedding\.embedding_table\.", "model.classes."),
    (r"^norm\.", "model.norm."),
    (r"^output\.", "lm_head."),
    (r"^layers\.(\d+)\.attention\.wo\.", r"model.layers.\1.self_attn.o_proj."),
    (r"^layers\.(\d+)\.feed_forward\.w1\.", r"model.layers.\1.gate_proj."),
    (r"^layers\.(\d+)\.feed_forward\.w3\.", r"model.layers.\1.up_proj."),
    (r"^layers\.(\d+)\.feed_forward\.w2\.", r"model.layers.\1.down_proj."),
    (r"^layers\.(\d+)\.attention_norm\.", r"model.layers.\1.input_norm."),
    (r"^layers\.(\d+)\.ffn_norm\.", r"model.layers.\1.output_norm."),
)
"""Published names of the decoder and ours."""
RENAMED_VQ = (
    (r"^encoder\.conv_blocks\.(\d+)\.res\.", r"encoder.down.\1.block."),
    (r"^encoder\.conv_blocks\.(\d+)\.", r"encoder.down.\1."),
    (r"^decoder\.conv_blocks\.(\d+)\.res\.", r"decoder.up.\1.block."),
    (r"^decoder\.conv_blocks\.(\d+)\.", r"decoder.up.\1."),
    (r"\.mid\.0\.", ".mid.block_1."),
    (r"\.mid\.1\.", ".mid.attn_1."),
    (r"\.mid\.2\.", ".mid.block_2."),
)
"""Published names of the picture tokenizer and those of the stock class."""


def settings() -> GenerationConfig:
    """How a published LlamaGen draws where a request is silent: as in its demo."""
    guidance = LlamaGenTarget.usual_guidance
    return GenerationConfig(do_sample=True, temperature=1.0, top_k=2000, guidance_scale=guidance)


def convert(decoder: dict[str, Tensor], picture: dict[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Our state dict from the published ones of a class-conditional LlamaGen and of its VQ model.

    Raises: CheckpointError: a weight that has no place.
    """
    size = config.hidden_size // config.num_attention_heads
    parts = [count * size for count in (config.num_attention_heads, *[config.num_key_value_heads] * 2)]
    made: dict[str, Tensor] = {}
    for name, weight in decoder.items():
        joint = re.fullmatch(r"layers\.(\d+)\.attention\.wqkv\.weight", name)
        if joint:
            for part, piece in zip("qkv", weight.split(parts), strict=True):
                made[f"model.layers.{joint[1]}.self_attn.{part}_proj.weight"] = piece.contiguous()
        elif name != "freqs_cis" and not name.endswith("uncond_embedding"):
            made[_renamed(name, RENAMED)] = weight
    for name, weight in picture.items():
        if name != "quantize.codebook_used":
            made["vqmodel." + _renamed(name, RENAMED_VQ, strict=False)] = weight
    return made


def _renamed(name: str, table: tuple[tuple[str, str], ...], strict: bool = True) -> str:
    new = name
    for old, ours in table:
        new = re.sub(old, ours, new)
    if strict and new == name:
        raise CheckpointError(f"{name!r} is no weight of a class-conditional LlamaGen: it has no place in the model")
    return new
