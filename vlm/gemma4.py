"""Gemma 4 and Gemma 3n as targets: most layers see a sliding window, the last ones read the keys of earlier layers.

Layers that share keep no keys, so a cache has fewer layers than the model. Small models add a vector of each id to
each of their layers; an image slot counts as padding there. In the larger Gemma 4 the slots of an image see each
other, as in Gemma3, but in layers with a window alone; in the unified one, whose patches come without an encoder, in
all layers. Only the prompt says which tokens are images. Sound and videos are not served.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from mmspec.cache import Past, RowCache
from mmspec.decoder import Decoder, Heard
from mmspec.head import ShapedHead
from mmspec.vlm.gemma3 import Gemma3
from mmspec.vlm.vision import VisionTarget


class Capped(VisionTarget):
    """What these models have in common: they cap their logits as the configuration of their decoder says."""

    @property
    def head(self) -> nn.Module:
        """See `CausalTarget`."""
        head, cap = self.model.get_output_embeddings(), self.decoder.config.final_logit_softcapping
        return head if cap is None else ShapedHead(head, 1.0, cap)


class Gemma4(Capped, Gemma3):
    """A Gemma 4 checkpoint that sees. See `VisionTarget`.

    Pictures: `pixel_values` [pictures, patches, D] and `image_position_ids` [pictures, patches, 2], -1 where a smaller
    picture is padded; `mm_token_type_ids` [B, T] says where they stand.
    """

    hf = ("Gemma4ForConditionalGeneration", "Gemma4Processor")
    model_type = "gemma4"
    extra_inputs = ("pixel_values", "image_position_ids")

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        config = model.config
        others = (config.video_token_id, config.audio_token_id)
        self.placeholders = (self.slot, *(token for token in others if token is not None))


class Gemma4Unified(Gemma4):
    """A unified Gemma 4 checkpoint, with the same inputs."""

    hf = ("Gemma4UnifiedForConditionalGeneration", "Gemma4UnifiedProcessor")
    model_type = "gemma4_unified"


class Streams(Decoder):
    """A decoder of several streams side by side (AltUp, arXiv 2301.13310). Its taps are the first, which begins as the
    embeddings; the last tap is what the model makes of all of them, which enters its head."""

    def read(
        self, pieces: Sequence[dict[str, Any]], lengths: list[int], taps: tuple[int, ...] = ()
    ) -> tuple[RowCache, Heard]:
        """See `Decoder`. Who asks for the last tap makes transformers tell it, and not the last layer's streams."""
        if self.num_layers in taps:
            self.config.tie_last_hidden_states = True
        return super().read(pieces, lengths, taps)

    def _forward(self, inputs: dict[str, Any], cache: Past, taps: tuple[int, ...], **extra: Any) -> Heard:
        heard = super()._forward(inputs, cache, taps, **extra)
        heard.taps = {tap: states[0] if states.dim() > 3 else states for tap, states in heard.taps.items()}
        return heard


class Gemma3n(Capped):
    """A Gemma 3n checkpoint that sees (its tower is timm's). Pictures: `pixel_values` [pictures, 3, H, W]."""

    hf = ("Gemma3nForConditionalGeneration", "Gemma3nProcessor")
    model_type = "gemma3n"
    decoder_class = Streams

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        self.placeholders = (self.slot, model.config.audio_token_id)
