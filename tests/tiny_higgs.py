"""A tiny random Higgs Audio v2: three codebooks of eight codes, its processor, a tiny HuBERT and DAC as its codec."""

from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import (
    DacFeatureExtractor,
    HiggsAudioV2Config,
    HiggsAudioV2ForConditionalGeneration,
    HiggsAudioV2Processor,
    HiggsAudioV2TokenizerConfig,
    HiggsAudioV2TokenizerModel,
    PreTrainedTokenizerFast,
)

CODEBOOKS, CODES, RATE, HOP = 3, 8, 8000, 320
START, END = CODES, CODES + 1
"""The codes that begin and end a codebook's stream."""
SOUND, BEGIN, OVER, DELAY = "<|AUDIO_OUT|>", "<|audio_out_bos|>", "<|audio_eos|>", "<|reserved_special_token_6|>"
CONTROL = ["<pad>", "<s>", "<|eot_id|>", "<role>", "</role>", "<scene>", "</scene>", SOUND, BEGIN, OVER, DELAY]
CHARACTERS = " ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.,?!'[]0123456789"
TEMPLATE = f"""{{{{ bos_token }}}}
{{%- for message in messages %}}
    {{%- set scene = message.role == "scene" %}}
    {{{{- "<scene>" if scene else "<role>" + message.role + "</role>" }}}}
    {{%- for part in message.content %}}
        {{{{- part.text if part.type == "text" else "{BEGIN}{SOUND}{OVER}" }}}}
    {{%- endfor %}}
    {{{{- "</scene>" if scene else "<|eot_id|>" }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{ "<role>assistant</role>{BEGIN}" }}}}{{% endif %}}"""
"""Roles, scene and sound as the published template has them."""


def processor() -> Any:
    """Reads characters."""
    words = [*CONTROL, *CHARACTERS]
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="<|eot_id|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": CONTROL[3:]})
    return HiggsAudioV2Processor(
        feature_extractor=DacFeatureExtractor(sampling_rate=RATE, hop_length=1),
        tokenizer=tokenizer,
        audio_tokenizer=codec(),
        chat_template=TEMPLATE,
        audio_stream_bos_id=START,
        audio_stream_eos_id=END,
    )


def codec() -> Any:
    """Random weights, with which every code has a sound of its own."""
    torch.manual_seed(3)
    made = HiggsAudioV2TokenizerModel(
        HiggsAudioV2TokenizerConfig(
            target_bandwidths=[0.225],  # three codebooks of three bits, 25 times a second
            sample_rate=RATE,
            semantic_sample_rate=RATE,
            downsample_factor=HOP,
            codebook_size=CODES,
            codebook_dim=4,
            acoustic_model_config={
                "model_type": "dac",
                "encoder_hidden_size": 4,
                "decoder_hidden_size": 16,
                "downsampling_ratios": [16, 20],
                "upsampling_ratios": [20, 16],
                "hidden_size": 8,
            },
            semantic_model_config={
                "model_type": "hubert",
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "conv_dim": [8, 8],
                "conv_kernel": [20, 16],
                "conv_stride": [20, 16],
                "num_feat_extract_layers": 2,
                "num_conv_pos_embeddings": 4,
                "num_conv_pos_embedding_groups": 2,
                "mask_time_prob": 0.0,
            },
        )
    ).eval()
    with torch.no_grad():
        for layer in made.quantizer.quantizers:
            layer.codebook.embed.normal_()  # made of zeros, it gives all codes the same sound
        for weight in made.acoustic_decoder.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


def higgs(seed: int = 0, layers: int = 2, codebooks: int = CODEBOOKS, endless: bool = False, **changes: Any) -> Any:
    """Random weights, float64, large enough that codes depend on the text and on each other.

    endless: no codebook ends by itself where the likeliest code is taken.
    """
    ids = {word: index for index, word in enumerate(CONTROL)}
    shape: dict[str, Any] = {
        "vocab_size": len(CONTROL) + len(CHARACTERS),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "num_codebooks": codebooks,
        "codebook_size": CODES + 2,
        "pad_token_id": ids["<pad>"],
        "bos_token_id": ids["<s>"],
        "eos_token_id": ids["<|eot_id|>"],
        "audio_token_id": ids[SOUND],
        "audio_bos_token_id": ids[BEGIN],
        "audio_delay_token_id": ids[DELAY],
        "audio_stream_bos_id": START,
        "audio_stream_eos_id": END,
    }
    torch.manual_seed(seed)
    model = HiggsAudioV2ForConditionalGeneration(HiggsAudioV2Config(**{**shape, **changes})).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.add_(0.25 * torch.randn_like(weight))
        ends = model.audio_lm_head.weight.unflatten(0, (codebooks, -1))[:, END]
        ends *= 0.0 if endless else 0.7  # with 0 a code is always likelier
    return model
