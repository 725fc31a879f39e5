"""The VALL-E-type model as target: its first codebook is decoded by the core's loop, the others follow once.

Given the first codebook the others are fixed, so exactness of the codes that are decoded is exactness of the sound.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedConfig, PreTrainedModel

from mmspec.causal_state import CausalState
from mmspec.contract import Needs
from mmspec.errors import InputError, described
from mmspec.sampling import Sampler
from mmspec.speech.placing import place_codec
from mmspec.speech.processing import SpeechProcessor
from mmspec.speech.speaking import Speaking
from mmspec.speech.text import START
from mmspec.speech.valle import Valle, ValleConfig
from mmspec.templates import padded


class ValleTarget(Speaking):
    """A checkpoint of `mmspec.speech.valle`. See `CausalTarget`."""

    settings = ("voice",)
    extra_inputs = ("voice_codes",)
    """[B, K, P] codes of the voices; the prompt holds their first codebook, the refiner reads all."""

    @classmethod
    def serves(cls, config: PreTrainedConfig) -> bool:
        """Whether the configuration is one of `Valle`."""
        return isinstance(config, ValleConfig)

    @classmethod
    def model_class(cls, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The class of the model."""
        return Valle

    @classmethod
    def processor_class(cls, config: PreTrainedConfig) -> Any:
        """The class of tokenizer, codec and voices together."""
        return SpeechProcessor

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        self.unsaid = tuple(range(model.config.first_code - 1))
        self.first_code, self.code_count = model.config.first_code, model.config.codebook_size

    def adopt(self, processor: Any) -> None:
        """Take the processor, whose codec must speak the model's codes."""
        if processor is not None:
            if not isinstance(processor, SpeechProcessor):
                raise InputError(f"{type(processor).__name__} has no codec: pass a SpeechProcessor")
            processor.check(self.model.config.codebooks, self.model.config.codebook_size)
            place_codec(processor.codec, self.model)
        super().adopt(processor)

    @property
    def speaker(self) -> LlamaForCausalLM:
        """The autoregressive decoder."""
        return self.model.speaker

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> CausalState:
        """Raises InputError: voices that are no codes of the codec, or with a prompt that has no place for them."""
        if "voice_codes" in inputs:
            self._check_voices(inputs["voice_codes"], inputs["input_ids"])
        return super().prefill(inputs, needs, sampler)

    def _check_voices(self, codes: Any, ids: Tensor) -> None:
        """Raise InputError unless these are codes [B, K, P], and ids [B, T] have a place for them."""
        config, rows = self.model.config, len(ids)
        whole = isinstance(codes, Tensor) and codes.dim() == 3 and not codes.is_floating_point() and codes.numel() > 0
        if not whole or codes.shape[:2] != (rows, config.codebooks):
            raise InputError(
                f"voice_codes are whole numbers [{rows}, {config.codebooks}, frames], not {described(codes)}"
            )
        if codes.min() < 0 or codes.max() >= config.codebook_size:
            raise InputError(f"voice_codes are numbers below {config.codebook_size}, the size of a codebook")
        if not (ids == config.voice_token_id).any(-1).all():
            raise InputError("voice_codes came with input_ids that hold no voice: pass what the processor makes, whole")

    def encode(
        self, processor: Any, texts: list[str], images: list[list[Image.Image]], voice: Any = None
    ) -> dict[str, Any]:
        """Model inputs of a batch: `input_ids`, `attention_mask` [B, T], padded on the left, `voice_codes` [B, K, P].

        Args: voice: for `SpeechProcessor.voice`; a list has one for each text.
        Raises: InputError: a text or a voice that cannot be used.
        """
        voices = list(voice) if isinstance(voice, list | tuple) else [voice] * len(texts)
        if len(voices) != len(texts):
            raise InputError(f"{len(texts)} prompts came with {len(voices)} voices: give one, or one for each")
        codes = [processor.voice(one) for one in voices]
        rows = [self.prompt(self.written(text), heard) for text, heard in zip(texts, codes, strict=True)]
        return {
            **padded(rows, self.tokenizer.pad_token_id or 0),
            "voice_codes": torch.stack([one.cpu() for one in codes]),
        }

    def prompt(self, text: str, voice: Tensor) -> list[int]:
        """START text VOICE codes SPEAK, of a text that is `written` and codes [K, P]."""
        config = self.model.config
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        codes = [self.first_code + code for code in voice[0].tolist()]
        start = self.tokenizer.convert_tokens_to_ids(START)
        return [start, *ids, config.voice_token_id, *codes, config.speak_token_id]

    def complete(self, prompt: list[int], voice: Tensor, first: list[int], known: Tensor | None = None) -> Tensor:
        """The other codebooks by the refiner, all frames together. See `Speaking.complete`."""
        config, device = self.model.config, self.model.device
        text = torch.tensor(prompt[1 : prompt.index(config.voice_token_id)], device=device)
        return self.model.refine(
            text, voice.to(device), torch.tensor(first, device=device), self.processor.codec, known
        )
