"""Llasa as target: a stock Llama whose vocabulary goes on with the codes of X-codec 2 (arXiv 2502.04128).

One codebook, 50 codes per second: what the loop decodes is the whole utterance. The codec is a model of its own: it is
read from the folder codec/ of a checkpoint, or passed as `processor=LlasaProcessor(tokenizer, codec)`.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedConfig, PreTrainedModel

from mmspec.checkpoints import read_model
from mmspec.errors import InputError, UnsupportedError, shorten
from mmspec.speech.audio import Audio
from mmspec.speech.placing import place_codec
from mmspec.speech.speaking import ANSWER_S, Speaking
from mmspec.speech.text import code_token
from mmspec.templates import check_plain, padded

logger = logging.getLogger(__name__)

VOCABULARY = 193_800
"""Ids of the published checkpoints: Llama's 128 256, 65 536 codes, eight control tokens. Nothing else tells them apart
from a Llama that writes; a checkpoint of another size says `speech_codes` in its configuration."""
ASK, TEXT, TEXT_END = "Convert the text to speech:", "<|TEXT_UNDERSTANDING_START|>", "<|TEXT_UNDERSTANDING_END|>"
SPEECH, SPEECH_END = "<|SPEECH_GENERATION_START|>", "<|SPEECH_GENERATION_END|>"
MARK = re.compile(r"<\|\w+\|>")
"""What codes and control tokens look like: none of them is special to the published tokenizers."""


class LlasaProcessor:
    """A tokenizer, and the codec that makes sound of codes (`Xcodec2Model`; None: there will be codes and no sound)."""

    def __init__(self, tokenizer: Any, codec: PreTrainedModel | None = None) -> None:
        self.tokenizer, self.codec = tokenizer, None if codec is None else codec.eval()

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], **_: Any) -> LlasaProcessor:
        """Read a folder."""
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        place = Path(folder) / "codec"
        if not (place / "config.json").exists():
            return cls(tokenizer)
        from transformers import Xcodec2Model

        return cls(tokenizer, read_model(Xcodec2Model, place, torch.float32))

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder that `from_pretrained` reads."""
        self.tokenizer.save_pretrained(folder)
        if self.codec is not None:
            self.codec.save_pretrained(Path(folder) / "codec")

    @property
    def frames_per_second(self) -> float:
        """Codes per second."""
        return 50.0 if self.codec is None else self.codec.config.sampling_rate / self.codec.hop_length

    @torch.no_grad()
    def audio(self, codes: Tensor) -> Audio:
        """Sound from codes [1, F]."""
        assert self.codec is not None
        values = self.codec.decode(codes[None].to(self.codec.device)).audio_values
        return Audio(values[0, 0].float().clamp(-1, 1).cpu().numpy(), self.codec.config.sampling_rate)


class Llasa(Speaking):
    """A Llasa checkpoint. See `CausalTarget`."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        self.code_count = getattr(model.config, "speech_codes", None) or 65_536
        if tokenizer is None:
            raise InputError(
                "only Llasa's tokenizer knows which ids are codes and what ends speech: pass "
                "processor=LlasaProcessor(tokenizer, codec) to load"
            )
        names = [code_token(0), code_token(self.code_count - 1), SPEECH_END]
        self.first_code, last, self.end = found = tokenizer.convert_tokens_to_ids(names)
        strange = {None, tokenizer.unk_token_id} & {*found}
        if strange or last - self.first_code != self.code_count - 1:
            raise UnsupportedError(
                f"the tokenizer is not Llasa's: it needs {code_token(0)} to {code_token(self.code_count - 1)} in a "
                f"row, and {SPEECH_END}"
            )

    @classmethod
    def serves(cls, config: PreTrainedConfig) -> bool:
        """Whether the configuration is that of a Llama that speaks."""
        return config.model_type == "llama" and (config.vocab_size == VOCABULARY or hasattr(config, "speech_codes"))

    @classmethod
    def model_class(cls, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The HF class of the model."""
        return LlamaForCausalLM

    @classmethod
    def processor_class(cls, config: PreTrainedConfig) -> Any:
        """The class of tokenizer and codec together."""
        return LlasaProcessor

    def adopt(self, processor: Any) -> None:
        """Take a processor that makes sound; a tokenizer alone does not."""
        speaks = isinstance(processor, LlasaProcessor) and processor.codec is not None
        if processor is not None and not speaks:
            logger.warning(
                "no codec came with this model: there will be codes and no audio (load(..., processor="
                "LlasaProcessor(tokenizer, codec)) with an Xcodec2Model gives both)"
            )
        super().adopt(processor if speaks else None)
        place_codec(getattr(processor, "codec", None), self.model)

    @property
    def budget(self) -> int:
        """Codes of ANSWER_S seconds, also where no codec makes sound of them."""
        return int(ANSWER_S * (self.processor or LlasaProcessor(self.tokenizer)).frames_per_second)

    def ends(self) -> list[int]:
        """The end of the speech, and what the generation config says."""
        return sorted({*super().ends(), self.end})

    @property
    def speaker(self) -> LlamaForCausalLM:
        """The model itself."""
        return self.model

    def written(self, text: str) -> str:
        """The text as it is. Raises InputError if it has nothing to pronounce."""
        if not any(character.isalnum() for character in text):
            raise InputError(f"the text {shorten(text)} has nothing to pronounce: write a word or a number")
        return " ".join(text.split())

    def encode(self, processor: Any, texts: list[str], images: list[list[Image.Image]]) -> dict[str, Any]:
        """Model inputs of a batch: `input_ids` and `attention_mask` [B, T], padded on the left.

        Voices are not served: Llasa needs what they say in writing. Raises: InputError: a text that cannot be used; a
        tokenizer without a chat template.
        """
        tokenizer = self.tokenizer
        check_plain(texts, tokenizer, MARK.findall("\n".join(texts)))
        if not tokenizer.chat_template:
            raise InputError("the tokenizer has no chat template: set tokenizer.chat_template")
        rows = []
        for text in texts:
            asked = {"role": "user", "content": f"{ASK}{TEXT}{self.written(text)}{TEXT_END}"}
            begun = {"role": "assistant", "content": SPEECH}
            rows.append(tokenizer.apply_chat_template([asked, begun], continue_final_message=True, return_dict=False))
        return padded(rows, tokenizer.pad_token_id or 0)
