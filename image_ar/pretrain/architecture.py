"""The shapes of `janus-mini`: the stock configuration, deep and narrow on purpose, and a tokenizer of whole words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import JanusConfig, JanusImageProcessor, JanusProcessor, PreTrainedTokenizerFast

PIXELS, SIDE = 64, 16
PATCH = PIXELS // SIDE
CODES, CODE_SIZE = 512, 8
CONTEXT = 512
PADDING, START, END, UNKNOWN, IMAGE_START, IMAGE_END, IMAGE = SPECIAL = (
    "<pad>",
    "<s>",
    "</s>",
    "<unk>",
    "<begin_of_image>",
    "<end_of_image>",
    "<image>",
)
TEMPERATURE = 0.8  # of 500 captions 0.86 are kept, at 1 0.83, and laws of codes stay flat
GUIDANCE = 1.5  # at 2 and more a shape that may be somewhere begins at the first place where it may: too many are drawn


def build_tokenizer(captions: Iterable[str]) -> PreTrainedTokenizerFast:
    """One id per word and punctuation mark of the captions."""
    words = sorted({word for text in captions for word in re.findall(r"\w+|[^\w\s]", text)})
    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate([*SPECIAL, *words])}, UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=START,
        eos_token=END,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=CONTEXT,
        extra_special_tokens={"image_token": IMAGE, "boi_token": IMAGE_START, "eoi_token": IMAGE_END},
    )


def build_processor(tokenizer: PreTrainedTokenizerFast) -> JanusProcessor:
    """The stock processor. Its template puts the start token before a caption and nothing else."""
    images = JanusImageProcessor(
        size={"height": PIXELS, "width": PIXELS}, min_size=PIXELS, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    template = START + "{% for message in messages %}{% for line in message['content'] %}{{ line['text'] }}"
    template += "{% endfor %}{% endfor %}"
    return JanusProcessor(images, tokenizer, chat_template=template, num_image_tokens=SIDE * SIDE)


def janus_config(
    tokenizer: PreTrainedTokenizerFast, layers: int = 16, width: int = 160, channels: int = 64
) -> JanusConfig:
    """About 7 M parameters. The tower that reads pictures is a stub: this model only draws.

    channels: of the picture tokenizer, whose norms need a multiple of 32 and more than 32 to keep absolute colours.
    """
    text = {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": width * 27 // 10,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "num_key_value_heads": width // 32,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.04,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": PIXELS,
        "patch_size": PATCH,
        "projection_dim": width,
        "num_image_tokens": SIDE * SIDE,
    }
    picture = {
        "num_embeddings": CODES,
        "embed_dim": CODE_SIZE,
        "latent_channels": channels,
        "base_channels": channels,
        "channel_multiplier": [1, 1, 1],
        "num_res_blocks": 1,
        "projection_dim": width,
        "image_token_embed_dim": width,
        "initializer_range": 0.04,
    }
    return JanusConfig(
        text_config=text,
        vision_config=vision,
        vq_config=picture,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        tie_word_embeddings=False,  # it never writes text, and trained weights are saved under one name each
    )
