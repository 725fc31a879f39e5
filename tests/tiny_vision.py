"""What tiny random models of vision-language families are made of, and what they are asked."""

from collections.abc import Sequence
from typing import Any

import tiny
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerFast

SPREAD = 0.3  # of random weights: large, so that answers depend on the prompt
SIDE = {"height": 16, "width": 16}
PLAIN = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

RED, BLUE, WIDE, TALL = (
    Image.linear_gradient("L").resize(size).convert("RGB").point([value // shade for value in range(256)] * 3)
    for size, shade in [((18, 16), 1), ((20, 40), 2), ((40, 12), 3), ((9, 33), 4)]
)
TEXTS = ("what is the value of the red bar?", "why", "is it taller than the blue one? the blue one")
PICTURES = ([RED, WIDE], [], [TALL])


def tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """The tiny tokenizer with a family's special tokens, `name_token="text"`."""
    base = tiny.tokenizer()
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(base.backend_tokenizer.to_str()),
        bos_token=base.bos_token,
        eos_token=base.eos_token,
        pad_token=base.pad_token,
        padding_side="left",
        extra_special_tokens=special,
    )


def template(slot: str) -> str:
    """A chat template in which a picture is `slot`."""
    return (
        "<|im_start|>{% for message in messages %}User:{% for part in message['content'] %}"
        f"{{% if part['type'] == 'image' %}}{slot}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}"
        "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
    )


def text(words: PreTrainedTokenizerFast, model_type: str, **changes: Any) -> dict[str, Any]:
    """The configuration of a decoder over these tokens."""
    shape = {**tiny.text_config(), "model_type": model_type, "vocab_size": len(words), "initializer_range": SPREAD}
    return {**shape, **changes}


def tower(model_type: str, **changes: Any) -> dict[str, Any]:
    """The configuration of a vision tower."""
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {"model_type": model_type, **size, "image_size": 16, "patch_size": 8, **changes}


def finish(
    kind: type[PreTrainedModel], config: Any, seed: int, parts: Sequence[str] = ("projector", "merger", "newline")
) -> PreTrainedModel:
    """A random model, float64, that never ends an answer by itself. parts: of names of weights that are spread."""
    torch.manual_seed(seed)
    model = kind(config).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in parts):
                weight += SPREAD * torch.randn_like(weight)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = config.get_text_config().pad_token_id
    return model
