"""A tiny random MusicGen: three codebooks of eleven codes, a T5 and an EnCodec of a few thousand weights."""

from typing import Any

import torch
from transformers import (
    EncodecConfig,
    MusicgenConfig,
    MusicgenDecoderConfig,
    MusicgenForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
)

from mmspec.speech.text import make_tokenizer

CODEBOOKS, CODES = 3, 11


def tokenizer() -> PreTrainedTokenizerFast:
    """Reads letters."""
    return make_tokenizer(4)


def musicgen(seed: int = 0, layers: int = 2, codebooks: int = CODEBOOKS, **changes: Any) -> Any:
    """Random weights, float64, large enough that codes depend on the text and on each other."""
    text = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    audio = EncodecConfig(
        sampling_rate=800,
        hidden_size=8,
        num_filters=2,
        num_residual_layers=1,
        upsampling_ratios=[4, 2],
        num_lstm_layers=1,
        codebook_size=16,
        codebook_dim=8,
        target_bandwidths=[1.6],
    )
    decoder = MusicgenDecoderConfig(
        vocab_size=CODES,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        ffn_dim=64,
        num_codebooks=codebooks,
        pad_token_id=CODES,
        bos_token_id=CODES,
        max_position_embeddings=64,
        **changes,
    )
    torch.manual_seed(seed)
    model = MusicgenForConditionalGeneration(
        MusicgenConfig(text_encoder=text.to_dict(), audio_encoder=audio.to_dict(), decoder=decoder.to_dict())
    )
    model = model.double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and not name.startswith("audio_encoder"):
                weight.add_(0.25 * torch.randn_like(weight))
        for layer in model.audio_encoder.quantizer.layers:
            layer.codebook.embed.normal_()  # made of zeros, it gives all codes the same sound
    model.generation_config.decoder_start_token_id = CODES
    model.generation_config.pad_token_id = CODES
    model.generation_config.bos_token_id = CODES
    model.generation_config.guidance_scale = 3.0
    return model
