"""Tiny random models that speak, made in a fraction of a second. The codec makes noise of the right shape."""

from functools import cache
from pathlib import Path

import numpy as np
import torch

from mmspec.speech.audio import Audio
from mmspec.speech.codec import MelCodec, MelCodecConfig
from mmspec.speech.processing import SpeechProcessor
from mmspec.speech.text import END, PADDING, SPEAK, START, VOICE, make_tokenizer
from mmspec.speech.valle import Valle, ValleConfig

CODEBOOKS, CODES, RATE, CONTEXT = 3, 24, 4_000, 192
TEXT = "two red circles"


def voice(seconds: float = 1.2, rate: int = RATE, pitch: float = 150.0) -> Audio:
    """A buzzing tone, as a voice."""
    time = np.arange(int(seconds * rate)) / rate
    wave = sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 6))
    return Audio((0.2 * wave).astype(np.float32), rate)


@cache
def processor() -> SpeechProcessor:
    """The tokenizer, a random codec of 15.625 frames per second, and two voices."""
    torch.manual_seed(5)
    config = MelCodecConfig(
        rate=RATE,
        n_fft=256,
        hop=128,
        mels=12,
        width=16,
        latent=6,
        codebooks=CODEBOOKS,
        codebook_size=CODES,
        iterations=2,
    )
    codec = MelCodec(config).eval()
    for part in (
        *codec.encoder.modules(),
        *codec.books,
    ):  # large weights, so that different sounds have different codes
        if isinstance(part, torch.nn.Conv1d | torch.nn.Embedding):
            torch.nn.init.normal_(part.weight, std=0.3)
    return SpeechProcessor(make_tokenizer(CODES), codec, {"low": voice(pitch=110.0), "high": voice(pitch=220.0)})


def valle_config(layers: int = 2) -> ValleConfig:
    tokenizer = processor().tokenizer
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (PADDING, START, VOICE, SPEAK, END)}
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
        "bos_token_id": ids[START],
        "eos_token_id": ids[END],
        "pad_token_id": ids[PADDING],
    }
    return ValleConfig(
        text_config={**shape, "model_type": "llama"},
        refiner_config={**shape, "model_type": "llama"},
        codebooks=CODEBOOKS,
        codebook_size=CODES,
        first_code=ids[END] + 1,
        voice_token_id=ids[VOICE],
        speak_token_id=ids[SPEAK],
    )


def valle(seed: int = 0, layers: int = 2) -> Valle:
    """A random model that speaks, float32, in evaluation mode."""
    config = valle_config(layers)
    torch.manual_seed(seed)
    model = Valle(config).eval()
    with torch.no_grad():
        model.speaker.lm_head.weight[config.first_code - 1] = 0  # END is possible, and seldom
    model.generation_config.eos_token_id = config.first_code - 1
    model.generation_config.pad_token_id = 0
    return model


def tiny_valle(folder: Path, seed: int = 0) -> Path:
    """Write a whole checkpoint (model, tokenizer, codec, voices) to `folder`; returns it."""
    valle(seed).save_pretrained(folder)
    processor().save_pretrained(folder)
    return folder
