"""Tiny random image models: stock classes, two layers, a picture of 4 x 4 codes, made in a fraction of a second."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    Emu3Config,
    Emu3ForConditionalGeneration,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusImageProcessor,
    JanusProcessor,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

SIDE, CODES, CONTEXT = 4, 61, 96
WORDS = ("a", "red", "blue", "circle", "square", "above", "below", "left", "of", "two", "three", "big", "small", "and")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<boi>", "<eoi>", "<image>")
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """One id per word."""
    words = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="left",
        extra_special_tokens={"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"},
    )


def janus_processor() -> JanusProcessor:
    """The stock processor, without a chat template."""
    images = JanusImageProcessor(size={"height": 16, "width": 16}, min_size=4)
    return JanusProcessor(images, tokenizer(), num_image_tokens=SIDE * SIDE)


def janus_model(seed: int = 0, layers: int = 2, side: int = SIDE, codes: int = CODES) -> JanusForConditionalGeneration:
    """A random Janus for `janus_processor()`, float64. Heads are large, so that pictures depend on prompts."""
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 4 * side,
        "patch_size": 4,
        "projection_dim": 32,
        "num_image_tokens": side * side,
    }
    picture = {
        "num_embeddings": codes,
        "embed_dim": 8,
        "latent_channels": 32,
        "base_channels": 32,
        "channel_multiplier": [1, 1],
        "num_res_blocks": 1,
        "projection_dim": 32,
        "image_token_embed_dim": 32,
        "initializer_range": 0.3,
    }
    config = JanusConfig(text_config={**LLAMA, "num_hidden_layers": layers}, vision_config=vision, vq_config=picture)
    torch.manual_seed(seed)
    model = JanusForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for part in (model.model.generation_embeddings, model.model.generation_aligner, model.model.generation_head):
            for weight in part.parameters():
                weight.normal_(0, 0.3)
    settings = model.generation_config
    settings.bos_token_id, settings.pad_token_id, settings.eos_token_id = 1, 0, 2
    settings.guidance_scale, settings.generation_kwargs = 3.0, {"boi_token_id": 4}
    return model


EMU3_ENDS = {"<|extra_200|>": 7, "<|extra_201|>": 8, "<|image end|>": 9, "<image>": 6}
EMU3_FIRST = 100


def emu3_model(seed: int = 0, scattered: bool = False) -> Emu3ForConditionalGeneration:
    """A random Emu3 of 32 codes, float64. scattered: their ids in the vocabulary are no run."""
    step = 3 if scattered else 1
    visual = {f"<|visual token {code:06d}|>": EMU3_FIRST + step * code for code in range(32)}
    text = {**LLAMA, "model_type": "emu3_text_model", "vocab_size": 200}
    picture = {
        "codebook_size": 32,
        "base_channels": 32,
        "channel_multiplier": [1, 1],
        "num_res_blocks": 1,
        "hidden_size": 32,
        "temporal_downsample_factor": 2,
        "attn_resolutions": [],
    }
    config = Emu3Config(vq_config=picture, text_config=text, vocabulary_map={**EMU3_ENDS, **visual})
    torch.manual_seed(seed)
    model = Emu3ForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.3)
        model.model.vqmodel.quantize.embedding.weight.normal_()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 2, 0
    return model


def save(folder: Path, model: PreTrainedModel, processor: Any) -> Path:
    """Write a checkpoint; returns its folder."""
    model.float().save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def prompts(*lengths: int) -> dict[str, torch.Tensor]:
    """Left-padded prompts of these many words, each with the start of an image behind it."""
    width = max(lengths) + 2
    generator = torch.Generator().manual_seed(1)
    ids, mask = torch.zeros(2, len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        words = torch.randint(len(SPECIAL), len(SPECIAL) + len(WORDS), (length,), generator=generator)
        ids[row, width - length - 2 :] = torch.cat([torch.tensor([1]), words, torch.tensor([4])])
        mask[row, width - length - 2 :] = 1
    return {"input_ids": ids, "attention_mask": mask}
