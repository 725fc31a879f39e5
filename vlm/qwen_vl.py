"""Qwen2.5-VL and Qwen3-VL as targets (arXiv 2502.13923, 2511.21631): positions have three axes (M-RoPE).

The slots of a picture take the positions of its grid, time x height x width, so that text after it goes on at a number
smaller than its slot's. The axes of a text token are equal, so the nodes of a tree need only that difference, which is
another one in every row (`RowCache.shift`). Qwen3-VL adds features of several vision layers to its first decoder layers
(DeepStack, arXiv 2406.04334); they concern image slots alone, hence the prompt alone.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.cache import Past
from mmspec.decoder import Decoder, Heard
from mmspec.errors import InputError
from mmspec.vlm.vision import VisionTarget, flat


class Qwen25VL(VisionTarget):
    """A Qwen2.5-VL checkpoint. See `VisionTarget`.

    Pictures: `pixel_values` [patches of all pictures, D] and `image_grid_thw` [pictures, 3]; `mm_token_type_ids` [B, T]
    says where they stand.
    """

    hf = ("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLProcessor")
    extra_inputs = ("pixel_values", "image_grid_thw")

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        self.placeholders = (self.slot, model.config.video_token_id)

    @staticmethod
    def serves(config: PreTrainedConfig) -> bool:
        """Whether the configuration is a Qwen2.5-VL one."""
        return config.model_type == "qwen2_5_vl"

    def arrange(self, inputs: dict[str, Any], rows: list[list[int]]) -> dict[str, Any]:
        """Model inputs with the features of the pictures, and `position_ids`: [3, B, T], or [B, T] without pictures.

        They are always given: the model would otherwise count on from the last request that it saw itself.
        """
        arranged = super().arrange(inputs, rows)
        ids, types = arranged["input_ids"], arranged.pop("mm_token_type_ids", None)
        if "features" not in arranged:
            arranged["position_ids"] = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
            return arranged
        if types is None:
            raise InputError("pictures came without mm_token_type_ids: pass on all that the processor returns")
        model: Any = self.model.model
        grids = inputs["image_grid_thw"].to(ids.device)
        arranged["position_ids"], _ = model.get_rope_index(ids, types, image_grid_thw=grids)
        return arranged


class DeepStacked(Decoder):
    """A decoder whose taps are what enters a layer: transformers notes what the layer before gives, and adds to it what
    DeepStack has for the image slots only then."""

    def _forward(self, inputs: dict[str, Any], cache: Past, taps: tuple[int, ...], **extra: Any) -> Heard:
        heard = super()._forward(inputs, cache, taps, **extra)
        if "mm_encoder_outputs" in inputs:
            slots = inputs["input_ids"] == self.model.config.image_token_id
            levels = inputs["mm_encoder_outputs"]["image"].deepstack_features
            for level, features in enumerate(levels[: self.num_layers - 1], 1):  # the last layer's are added already
                if level in heard.taps:
                    states = heard.taps[level].clone()
                    states[slots] += flat(features).to(states)
                    heard.taps[level] = states
        return heard


class Qwen3VL(Qwen25VL):
    """A Qwen3-VL checkpoint (the dense ones), with the same inputs."""

    hf = ("Qwen3VLForConditionalGeneration", "Qwen3VLProcessor")

    decoder_class = DeepStacked

    @staticmethod
    def serves(config: PreTrainedConfig) -> bool:
        """Whether the configuration is a Qwen3-VL one."""
        return config.model_type == "qwen3_vl"
