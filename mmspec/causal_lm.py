"""Any `AutoModelForCausalLM` as target: text only, with the tokenizer's chat template where it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image
from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.errors import InputError
from mmspec.prompts import Prompt, messages_of
from mmspec.targets import CausalTarget
from mmspec.templates import as_strings, asking, control_as_text, padded, template_variables


def both_ways(config: PreTrainedConfig) -> bool:
    """Whether a model is an encoder, such as BERT: padding behind a shorter text would be read, too."""
    return getattr(config, "is_decoder", None) is False and not config.model_type.startswith("gpt_neox")


class CausalLM(CausalTarget):
    """A stock language model. See `CausalTarget`."""

    chats = True
    settings = ("thinking",)

    @classmethod
    def serves(cls, config: PreTrainedConfig) -> bool:
        """Whether the configuration is one of a decoder that reads nothing but text."""
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

        alone = config.get_text_config(decoder=True) is config and not config.is_encoder_decoder
        return alone and type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not both_ways(config)

    @classmethod
    def model_class(cls, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The HF class of the model."""
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]

    @classmethod
    def processor_class(cls, config: PreTrainedConfig) -> Any:
        """What reads the tokenizer from a folder."""
        from transformers import AutoTokenizer

        return AutoTokenizer

    def encode(
        self,
        processor: Any,
        texts: Sequence[Prompt],
        images: list[list[Image.Image]],
        thinking: bool | None = None,
    ) -> dict[str, Any]:
        """Model inputs of a batch: `input_ids` and `attention_mask` [B, T], padded on the left.

        In a chat template control tokens of a text stay text; without one it is taken as it is, control tokens
        included. Of a processor that prepares more than texts the tokenizer is taken, with the processor's template
        where it has none.
        Raises: InputError: control tokens that would not stay text, a chat without a template, or what the template
            does not take.
        """
        tokenizer = getattr(processor, "tokenizer", processor)
        own, other = tokenizer.chat_template, processor.chat_template
        variables = template_variables(own or other, thinking)
        with asking(processor):
            if own or other:
                chats = [messages_of(*asked) for asked in zip(texts, images, strict=True)]
                chats = list(map(as_strings, chats)) if own else chats
                template = None if own else other
                with control_as_text(texts, tokenizer) as told:
                    rows = tokenizer.apply_chat_template(
                        chats,
                        chat_template=template,
                        add_generation_prompt=True,
                        return_dict=False,
                        **variables,
                        **told,
                    )
            else:
                plain = [text for text in texts if isinstance(text, str)]
                if len(plain) < len(texts):
                    raise InputError(f"{type(processor).__name__} has no chat template: pass a text, not a chat")
                rows = [tokenizer(text, verbose=False)["input_ids"] for text in plain]
        return padded(rows, tokenizer.pad_token_id or 0)
