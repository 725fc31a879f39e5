"""Tiny random MARs: a grid of 4 x 4 tokens of four numbers, two layers each way, a VAE of two levels."""

from pathlib import Path
from typing import Any

import tiny_images
import torch
import toys
from transformers import GenerationConfig

from mmspec.contract import Needs, Round
from mmspec.decode import decode
from mmspec.image_ar.mar import ContinuousSampler, MarTarget
from mmspec.image_ar.mar_canvas import Canvas, CanvasStop
from mmspec.image_ar.mar_config import MarConfig
from mmspec.image_ar.mar_model import Mar
from mmspec.sampling import Sampling

GRID, SIZE, CLASSES, WORDS = 4, 4, 9, 21
VAE: dict[str, Any] = {
    "block_out_channels": (8, 8),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "latent_channels": SIZE,
    "norm_num_groups": 4,
    "mid_block_add_attention": False,
}


def config(**changes: Any) -> MarConfig:
    """Steps of one to several tokens, three diffusion steps that end with much noise."""
    values: dict[str, Any] = {
        "vae_config": VAE,
        "grid": GRID,
        "channels": SIZE,
        "classes": CLASSES,
        "buffer": 3,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "head_layers": 2,
        "head_width": 32,
        "reveal_steps": 6,
        "diffusion_steps": 3,
        "spacing": "trailing",
        "prediction": "sample",
        "least_variance": 0.02,
    }
    return MarConfig(**{**values, **changes})


def model(seed: int = 0, **changes: Any) -> Mar:
    """Random weights, float64, large enough that tokens depend on each other and on the condition."""
    torch.manual_seed(seed)
    made = Mar(config(**changes)).double().eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if not name.startswith("vae."):
                weight.add_(0.25 * torch.randn_like(weight))
        made.diffloss.net.final_layer.linear.weight.mul_(0.1)
        made.diffloss.net.final_layer.linear.bias.zero_()
    made.generation_config = GenerationConfig(do_sample=True, temperature=1.0)
    return made


def near(made: Mar, amount: float = 0.05) -> Mar:
    """A drafter that often agrees."""
    return toys.perturbed(made, amount)


def without_vae(made: Mar) -> Mar:
    """The same model as a drafter has it."""
    alone = Mar(MarConfig(**{**made.config.to_dict(), "vae_config": None})).to(made.dtype).eval()
    missing, _ = alone.load_state_dict(made.state_dict(), strict=False)
    assert not missing
    return alone


def draw(
    target: MarTarget, drafter: Any, rule: Any, rows: int = 2, budget: int = GRID * GRID, **options: Any
) -> tuple[Canvas, list[Round]]:
    """Run the loop to its end on classes `first` (0), `first` + 1, ...; returns the canvas and the rounds."""
    kept: list[Canvas] = []

    class Keeping(MarTarget):
        def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Any) -> Canvas:
            kept.append(super().prefill(inputs, needs, sampler))
            return kept[0]

    keeping = Keeping(target.model)
    drafter.bind(keeping)
    guidance = options.pop("guidance", 1.0)
    first = options.pop("first", 0)
    sampler = ContinuousSampler(Sampling(**{"temperature": 1.0, **options}), rows, torch.device("cpu"))
    ids = torch.arange(first, first + rows)[:, None] % target.model.config.classes
    inputs = {"input_ids": ids, "guidance": guidance, "max_new_tokens": budget}
    stop = CanvasStop(budget)
    rounds = list(decode(keeping, drafter, rule, inputs, sampler, stop))
    canvas = kept[0]
    for row in range(rows):
        assert stop.outputs[row] == [place for done in rounds for place in done.tokens[row]]
        assert sorted(stop.outputs[row]) == sorted(canvas.order[row, : len(stop.outputs[row])].tolist())
    return canvas, rounds


def save(folder: Path, made: Mar, processor: Any = None) -> Path:
    """Write a checkpoint; returns its folder."""
    made.float().save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    return folder


def captioned(seed: int = 0, **changes: Any) -> Mar:
    """One whose condition is words, for `tiny_images.tokenizer()`."""
    return model(seed, captions=True, buffer=8, classes=len(tiny_images.tokenizer()), **changes)
