"""Families whose image positions have three axes (M-RoPE, arXiv 2409.12191) as targets: Qwen2-VL and what came of it,
Qwen2.5-VL (2502.13923), Qwen3-VL (2511.21631) and Qwen3.5, GLM-4.1V to 4.6V (2507.01006) and GLM-OCR, PaddleOCR-VL
(2510.14528).

The slots of a picture take the positions of its grid, time x height x width, so that text after it goes on at a number
smaller than its slot's. The axes of a text token are equal, so the nodes of a tree need only that difference, which is
another one in every row (`RowCache.shift`). Qwen3-VL adds features of several vision layers to its first decoder layers
(DeepStack, arXiv 2406.04334); they concern image slots alone, hence the prompt alone. Three of four layers of Qwen3.5
are linear attention (`mmspec.running`). In the mixtures of experts a token's experts hang on that token alone, so that
nodes of a tree need nothing more than those of a dense model.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from mmspec.cache import Past
from mmspec.decoder import Decoder, Heard
from mmspec.errors import InputError
from mmspec.options import LONG
from mmspec.vlm.vision import VisionTarget, flat


class Gridded(VisionTarget):
    """Base of them. See `VisionTarget`.

    Pictures: `pixel_values` [patches of all pictures, ..] and `image_grid_thw` [pictures, 3]; `mm_token_type_ids`
    [B, T] says where they stand.
    """

    extra_inputs = ("pixel_values", "image_grid_thw")

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        self.placeholders = (self.slot, model.config.video_token_id)

    def arrange(self, inputs: dict[str, Any], rows: list[list[int]]) -> dict[str, Any]:
        """Model inputs with the features of the pictures, and `position_ids`: [3, B, T], or [B, T] without pictures.

        They are always given: the model would otherwise count on from the last request that it saw itself.
        Raises: InputError: `mm_token_type_ids` is missing, or does not fit `image_grid_thw`.
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
        try:
            arranged["position_ids"], _ = model.get_rope_index(ids, types, image_grid_thw=grids)
        except (RuntimeError, StopIteration, TypeError) as error:  # for tensors that a caller made
            raise InputError(
                "mm_token_type_ids does not fit image_grid_thw: pass on what the processor returns for pictures, with "
                "something between any two of them, and no videos"
            ) from error
        return arranged


class Qwen2VL(Gridded):
    """A Qwen2-VL checkpoint."""

    hf = ("Qwen2VLForConditionalGeneration", "Qwen2VLProcessor")
    model_type = "qwen2_vl"


class Qwen25VL(Gridded):
    """A Qwen2.5-VL checkpoint."""

    hf = ("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLProcessor")
    model_type = "qwen2_5_vl"


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


class Qwen3VL(Gridded):
    """A Qwen3-VL checkpoint (the dense ones)."""

    hf = ("Qwen3VLForConditionalGeneration", "Qwen3VLProcessor")
    model_type = "qwen3_vl"
    decoder_class = DeepStacked


class Qwen3VLMoe(Qwen3VL):
    """A Qwen3-VL checkpoint with experts."""

    hf = ("Qwen3VLMoeForConditionalGeneration", "Qwen3VLProcessor")
    model_type = "qwen3_vl_moe"


class Qwen35(Gridded):
    """A Qwen3.5 checkpoint (the dense ones)."""

    hf = ("Qwen3_5ForConditionalGeneration", "Qwen3VLProcessor")
    model_type = "qwen3_5"


class Qwen35Moe(Gridded):
    """A Qwen3.5 checkpoint with experts."""

    hf = ("Qwen3_5MoeForConditionalGeneration", "Qwen3VLProcessor")
    model_type = "qwen3_5_moe"


class Glm4V(Gridded):
    """A checkpoint of GLM-4.1V's class, as GLM-4.6V-Flash is, too. The former always thinks, and its template does not
    say so."""

    hf = ("Glm4vForConditionalGeneration", "Glm4vProcessor")
    model_type = "glm4v"
    usual_budget = LONG


class Glm4VMoe(Gridded):
    """A checkpoint of GLM-4.5V's class, with experts, as GLM-4.6V is, too."""

    hf = ("Glm4vMoeForConditionalGeneration", "Glm4vProcessor")
    model_type = "glm4v_moe"


class Glm46V(Gridded):
    """A checkpoint of the class that transformers names after GLM-4.6V: GLM-4.1V's decoder and tower."""

    hf = ("Glm46VForConditionalGeneration", "Glm46VProcessor")
    model_type = "glm46v"


class GlmOcr(Gridded):
    """A GLM-OCR checkpoint; its layer that drafts is read by the drafter `mtp`."""

    hf = ("GlmOcrForConditionalGeneration", "Glm46VProcessor")
    model_type = "glm_ocr"
    usual_budget = LONG


class PaddleOcrVL(Gridded):
    """A PaddleOCR-VL checkpoint. Its `pixel_values` are [patches of all pictures, 3, patch, patch]."""

    hf = ("PaddleOCRVLForConditionalGeneration", "PaddleOCRVLProcessor")
    model_type = "paddleocr_vl"
    usual_budget = LONG
