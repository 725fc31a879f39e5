"""Whisper as target: speech goes in, its text comes out (arXiv 2212.04356), on the stock class.

The encoder hears the speech once; the decoder is a causal language model that looks at it in every layer, so trees,
rows of different lengths and every drafter for text work as they do elsewhere. Greedy texts equal those of HF
`generate`. What the generation config forbids (`suppress_tokens`, and `begin_suppress_tokens` at the first place) is
ruled out before any law is made. Timestamps, long recordings and fallback temperatures are not served.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedConfig,
    PreTrainedModel,
)

from mmspec.cache import Past, RowCache
from mmspec.contract import Draft, State, Verified
from mmspec.decoder import Decoder, Heard
from mmspec.errors import InputError, described, shorten
from mmspec.placeholders import forbid
from mmspec.speech.recordings import recordings
from mmspec.targets import CausalTarget

LONGEST_S = 30.0
"""Seconds that the encoder hears."""
TASKS = ("transcribe", "translate")


class HearingDecoder(Decoder):
    """The decoder of an encoder-decoder model, its cross-attention cached beside the rows' cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.config = model.eval(), model.config
        self.by_layer_type, self.window, self.keeps_logits = False, None, False
        self.num_layers: int = model.config.decoder_layers
        self.max_length: int = model.config.max_target_positions

    def _forward(self, inputs: dict[str, Any], cache: Past, taps: tuple[int, ...], **extra: Any) -> Heard:
        if "heard" in inputs:
            cache.beside = inputs["heard"], DynamicCache()
        heard, cross = cache.beside
        out = self.model(
            encoder_outputs=(heard,),
            decoder_input_ids=inputs["input_ids"],
            decoder_position_ids=inputs.get("position_ids"),
            decoder_attention_mask=inputs.get("attention_mask"),
            past_key_values=EncoderDecoderCache(cache.hf, cross),
            use_cache=True,
            return_dict=True,
            **({"output_hidden_states": True} if taps else {}),
        )
        return Heard(out.logits, {tap: out.decoder_hidden_states[tap] for tap in taps})


class Whisper(CausalTarget):
    """A Whisper checkpoint. See `CausalTarget`."""

    hf = ("WhisperForConditionalGeneration", "WhisperProcessor")
    model_type = "whisper"
    modality = "speech"
    extra_inputs = ("input_features",)
    """[B, mels, frames] of the speech."""
    usual_drafter = "none"
    compiles = False
    settings = ("voice",)
    applies = ("suppress_tokens", "begin_suppress_tokens")

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        self.model, self.tokenizer, self.decoder = model, tokenizer, HearingDecoder(model)
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.hidden_size: int = model.config.d_model
        self.num_layers: int = model.config.decoder_layers

    @classmethod
    def serves(cls, config: PreTrainedConfig) -> bool:
        """Whether the configuration is one of Whisper with its encoder."""
        return super().serves(config) and bool(config.is_encoder_decoder)

    def adopt(self, processor: Any) -> None:
        """See `BaseTarget`. Raises InputError: it cannot read speech."""
        if processor is not None and not hasattr(processor, "feature_extractor"):
            raise InputError(f"{type(processor).__name__} cannot read speech: Whisper needs a WhisperProcessor")
        super().adopt(processor)

    @property
    def budget(self) -> int:
        """All that the decoder has places for."""
        return self.decoder.max_length

    def encode(
        self, processor: Any, texts: list[str], images: list[list[Image.Image]], voice: Any = None
    ) -> dict[str, Any]:
        """`input_ids` [B, T] and `input_features` [B, mels, frames].

        Args: texts: the task, "transcribe" or "translate", and the language where one is told ("transcribe en").
        voice: the speech as the path or bytes of a WAV file, or an `Audio`; a list has one for each text.
        """
        rows = [self.prompt(processor.tokenizer, text) for text in texts]
        if len({len(row) for row in rows}) > 1:
            raise InputError("all prompts of a batch must tell a language, or none")
        rate = processor.feature_extractor.sampling_rate
        samples = recordings(voice, len(texts), rate, LONGEST_S)
        features = processor.feature_extractor(samples, sampling_rate=rate, return_tensors="pt")
        return {"input_ids": torch.tensor(rows), "input_features": features["input_features"]}

    def prompt(self, tokenizer: Any, text: str) -> list[int]:
        """The ids that tell the decoder what to do. Raises: InputError: not a task of Whisper."""
        task, _, language = text.strip().partition(" ")
        if task not in TASKS:
            raise InputError(f"the prompt of a recogniser is {' or '.join(TASKS)}, not {shorten(text)}")
        knows = getattr(self.model.generation_config, "is_multilingual", None)
        if knows is False and (task, language) != ("transcribe", ""):
            raise InputError(
                f"this checkpoint hears and writes English alone: its prompt is 'transcribe', not {text!r}"
            )
        if knows and not language:
            raise InputError(f"tell what language is spoken, as in '{task} en': this checkpoint knows many")
        tokenizer.language = tokenizer.task = None  # it remembers what it was told last
        told = None if knows is False else task  # checkpoints of English alone were trained without a task
        try:
            tokenizer.set_prefix_tokens(language=language.strip() or None, task=told, predict_timestamps=False)
        except ValueError as error:
            raise InputError(f"the language of {shorten(text)} is not known: {error}") from error
        found = list(tokenizer.prefix_tokens)
        names = getattr(self.model.generation_config, "lang_to_id", None)
        if language.strip() and names and found[1] not in names.values():  # the ids of newer languages are others here
            raise InputError(f"this checkpoint does not know the language of {shorten(text)}")
        return found

    def arrange(self, inputs: dict[str, Any], rows: list[list[int]]) -> dict[str, Any]:
        """See `CausalTarget`; the speech is encoded here, unless `inputs` hold what another target `heard`."""
        if "input_features" not in inputs:
            raise InputError("there is nothing to hear: input_features is missing")
        inputs = dict(inputs)
        heard = inputs.pop("heard", None)
        features, config = inputs["input_features"], self.model.config
        wanted = (len(rows), config.num_mel_bins, 2 * config.max_source_positions)
        if not isinstance(features, torch.Tensor) or features.shape != wanted:
            raise InputError(f"input_features are mel frames {list(wanted)}, not {described(features)}")
        arranged = super().arrange(inputs, rows)
        spoken = arranged.pop("input_features")
        arranged["heard"] = self.model.get_encoder()(spoken).last_hidden_state if heard is None else heard
        return arranged

    def piece(self, arranged: dict[str, Any], start: int, end: int) -> dict[str, Any]:
        """See `CausalTarget`; the first piece brings what was heard."""
        found = super().piece(arranged, start, end)
        return {**found, "heard": arranged["heard"]} if start == 0 else found

    def read(self, inputs: dict[str, Any], rows: list[list[int]], taps: tuple[int, ...] = ()) -> tuple[RowCache, Heard]:
        """See `CausalTarget`; what may not stand first, and what may never be said, is ruled out."""
        cache, heard = super().read(inputs, rows, taps)
        heard.logits = self.allowed(heard.logits, first=True)
        return cache, heard

    def verify(self, state: State, draft: Draft) -> Verified:
        """One forward over the tree."""
        found = super().verify(state, draft)
        return Verified(self.allowed(found.logits), found.taps)

    def allowed(self, logits: Tensor, first: bool = False) -> Tensor:
        """Logits [.., V] without what the generation config suppresses."""
        config = self.model.generation_config
        never = (*(config.suppress_tokens or ()), *((first and config.begin_suppress_tokens) or ()))
        return forbid(logits, never)
