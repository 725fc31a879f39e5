"""A tiny random Dia: three codebooks of eight codes with delays 0, 2 and 3, a byte encoder and a tiny codec."""

from typing import Any

import torch
from transformers import DacConfig, DacModel, DiaConfig, DiaForConditionalGeneration, DiaTokenizer

CODES, DELAYS = 8, [0, 2, 3]
END, AFTER, START = CODES, CODES + 1, CODES + 2
"""What ends a codebook, what follows the end, and what column 0 is made of."""


class Processor:
    """The tokenizer and the codec of a Dia, without its feature extractor."""

    def __init__(self) -> None:
        self.tokenizer = DiaTokenizer()
        torch.manual_seed(3)
        config = DacConfig(
            encoder_hidden_size=4,
            decoder_hidden_size=16,
            downsampling_ratios=[2, 4],
            upsampling_ratios=[4, 2],
            n_codebooks=len(DELAYS),
            codebook_size=CODES,
            codebook_dim=4,
            hidden_size=16,
            sampling_rate=800,
        )
        self.audio_tokenizer = DacModel(config).eval()


def dia(seed: int = 0, layers: int = 2, endless: bool = False, **changes: Any) -> Any:
    """Random weights, float64, large enough that codes depend on the text and on each other.

    endless: codebook 0 never ends by itself.
    """
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "head_dim": 8}
    config = DiaConfig(
        encoder_config={**shape, "num_hidden_layers": 1, "num_key_value_heads": 4, "max_position_embeddings": 48},
        decoder_config={
            **shape,
            "num_hidden_layers": layers,
            "num_key_value_heads": 2,
            "cross_num_attention_heads": 4,
            "cross_num_key_value_heads": 4,
            "cross_head_dim": 8,
            "cross_hidden_size": 32,
            "vocab_size": CODES + 4,
            "num_channels": len(DELAYS),
            "max_position_embeddings": 64,
            "eos_token_id": END,
            "pad_token_id": AFTER,
            "bos_token_id": START,
        },
        delay_pattern=changes.pop("delays", DELAYS),
        **changes,
    )
    torch.manual_seed(seed)
    model = DiaForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.add_(0.25 * torch.randn_like(weight))
        if endless:
            model.logits_dense.weight[END] = 0  # and a code is always likelier
    own = model.generation_config
    own.eos_token_id, own.pad_token_id, own.bos_token_id, own.decoder_start_token_id = END, AFTER, START, START
    own.do_sample, own.guidance_scale, own.top_k = True, 3.0, 6
    return model
