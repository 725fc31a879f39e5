"""Tiny random checkpoints on disk and in memory: stock classes, two layers, made in a fraction of a second.

`tiny_smolvlm(folder)` writes a whole SmolVLM folder (model, processor, chat template), `tiny_llama(folder)` a language
model with the same tokenizer, which serves as a text target or as an independent drafter.
"""

import struct
import zlib
from functools import cache
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

from mmspec.vlm.pretrain.tokenizer import CHAT_TEMPLATE, token_ids, train_tokenizer

IMAGE_SIZE, PATCH_SIZE, SCALE = 32, 8, 2
IMAGE_TOKENS = (IMAGE_SIZE // PATCH_SIZE // SCALE) ** 2
CONTEXT = 256
TEXTS = (
    "the red bar is taller than the blue one",
    "what is the value of the red bar?",
    "there are four bars: 12, 40, 7, 93",
)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, 300 ids: special tokens, all bytes, a few words. A character outside ASCII takes several tokens."""
    return train_tokenizer(TEXTS * 3, vocabulary=300)


def processor() -> SmolVLMProcessor:
    """The stock processor: one tile of 32 pixels per image, four image tokens."""
    edge = {"longest_edge": IMAGE_SIZE}
    shape = {"size": edge, "max_image_size": edge, "resample": 3, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    images = SmolVLMImageProcessor(do_image_splitting=False, **shape)
    videos = SmolVLMVideoProcessor(num_frames=8, fps=1, **shape)
    return SmolVLMProcessor(images, tokenizer(), videos, image_seq_len=IMAGE_TOKENS, chat_template=CHAT_TEMPLATE)


def text_config(layers: int = 2, hidden: int = 32) -> dict:
    """A Llama decoder over the tiny tokenizer. Weights are large, so that answers depend on the prompt."""
    ids = token_ids(tokenizer())
    return {
        "model_type": "llama",
        "vocab_size": ids.vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
        "bos_token_id": ids.start,
        "eos_token_id": ids.end,
        "pad_token_id": ids.padding,
    }


def smolvlm_model(seed: int = 0, layers: int = 2) -> SmolVLMForConditionalGeneration:
    """A random SmolVLM for `processor()`, float32, in evaluation mode."""
    ids = token_ids(tokenizer())
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": IMAGE_SIZE,
        "patch_size": PATCH_SIZE,
        "initializer_range": 0.3,
    }
    config = SmolVLMConfig(
        text_config=text_config(layers),
        vision_config=vision,
        image_token_id=ids.image,
        scale_factor=SCALE,
        tie_word_embeddings=False,
        bos_token_id=ids.start,
        eos_token_id=ids.end,
        pad_token_id=ids.padding,
    )
    torch.manual_seed(seed)
    model = SmolVLMForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = ids.end
    model.generation_config.pad_token_id = ids.padding
    return model


def llama_model(seed: int = 0, layers: int = 2, hidden: int = 32) -> LlamaForCausalLM:
    """A random language model over the tiny tokenizer, float32, in evaluation mode."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**text_config(layers, hidden))).eval()


def tiny_smolvlm(folder: Path, seed: int = 0) -> Path:
    """Write a random SmolVLM checkpoint (model, processor, chat template) to `folder`; returns it."""
    smolvlm_model(seed).save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder


def tiny_llama(folder: Path, seed: int = 0) -> Path:
    """Write a random language model with the tiny tokenizer, without a chat template, to `folder`; returns it."""
    llama_model(seed).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def png_header(width: int, height: int) -> bytes:
    """A PNG that declares a size and holds next to nothing."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    )
