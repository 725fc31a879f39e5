"""The folder that ships: the target with its VAE and tokenizer in bfloat16, its drafter beside it, a model card."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast

from mmspec.checkpoints import save_drafter, writing
from mmspec.image_ar.mar import MarTarget
from mmspec.image_ar.mar_drafter import MarDrafter
from mmspec.image_ar.mar_model import Mar
from mmspec.image_ar.pretrain.architecture import PIXELS
from mmspec.image_ar.pretrain.export import begun, last_loss, logs_of
from mmspec.image_ar.pretrain.mar_shapes import GUIDANCE
from mmspec.training.card import millions

STAGES = ("critic", "vae", "target", "drafter")

CARD = """---
pipeline_tag: text-to-image
license: apache-2.0
---
# {name}

A masked autoregressive image model over continuous tokens (MAR, arXiv 2406.11838) of {millions:.1f} M parameters:
{layers} + {layers} layers of {width}, pictures of {pixels} x {pixels} pixels in {grid} x {grid} tokens of {channels}
numbers, revealed in {reveal} steps, each drawn in {diffusion} diffusion steps. It is made to try speculative decoding
with. Its condition are the words of a caption, one in each of {slots} slots; published MARs have a class there. Beside
it lies a drafter of {small:.1f} M parameters.

    import mmspec
    mmspec.generate(prompt="a red circle at the top left", model="FOLDER").image

## Data

Scenes of the synthetic world `mmspec.miniworld` with captions (`mmspec.image_ar.pretrain.world`). Seeds{more}:
tokenizer, {seeds}; held out: validation. It knows the words of these captions and no others.

## Recipe

`mmspec train target mar-mini --out FOLDER` trains one like it{start}.
First comes a network that tells shapes apart and is not kept; then a VAE, by pixels, by what that network sees, and by
a divergence that leaves noise in the latents, {noise:.2f} of their spread. The target learns by squared errors and
variance bounds of hidden tokens, one caption in ten hidden for guidance; meanwhile tokens are taught which words of the
caption to look at (those of their thing or of the ground), tokens and words are asked for the thing they are of, and
tokens for their ground.
The drafter learns what the target says, and the same lessons. Held-out losses, without the lessons: {losses}.
"""


def export(
    target: Mar, drafter: Mar, tokenizer: PreTrainedTokenizerFast, noise: float, out: Path, run: Path, start: str | None
) -> None:
    """Write both models to `out`, with a card from the logs in `run`. noise: share of the latents' spread. start: where
    training began."""
    logs = logs_of(run, STAGES)
    config = target.config
    target.generation_config = GenerationConfig(do_sample=True, temperature=1.0, guidance_scale=GUIDANCE)
    card = CARD.format(
        name=out.name,
        millions=millions(target),
        small=millions(drafter),
        layers=config.encoder_layers,
        width=config.hidden_size,
        pixels=PIXELS,
        grid=config.grid,
        channels=config.channels,
        slots=config.buffer,
        reveal=config.reveal_steps,
        diffusion=config.diffusion_steps,
        noise=noise,
        start=begun(start),
        more="" if start is None else ", beside those of the start",
        seeds=", ".join(log.stem for log in logs),
        losses=", ".join(f"{log.stem} {last_loss(log):.3f}" for log in logs),
    )
    with writing(out) as folder:
        target.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")
        save_drafter(MarDrafter(drafter.to(torch.bfloat16)), folder / "drafters" / "mar", MarTarget(target))
