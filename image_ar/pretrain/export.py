"""The folder that ships: stock model and processor in bfloat16, generation defaults, a model card."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import GenerationConfig, JanusProcessor

from mmspec.checkpoints import writing
from mmspec.image_ar.pretrain.architecture import CODES, GUIDANCE, PIXELS, SIDE, TEMPERATURE
from mmspec.image_ar.pretrain.draw import Painter
from mmspec.image_ar.pretrain.world import scene
from mmspec.training.card import millions

GAUGED = 8
STAGES = {
    "codes": "the picture tokenizer, a VQ autoencoder (L1, L2, edges and mean colours of patches); a network of single "
    "patches finds the codes",
    "critic": "a network that tells shapes apart, which judges the next stage and is not kept",
    "sharp": "the tokenizer's decoder, by pixels and by what that network sees",
    "shallow": "a decoder of half the layers, by cross-entropy on the codes, those that show what a caption tells "
    "counted four times, one caption in ten hidden for guidance; layers are asked for the place at hand, what "
    "stands there and what is to come",
    "deep": "the same, deepened",
    "more": "the decoder of the start, by the same loss",
    "even": "the same decoder, all codes counted alike",
}

CARD = """---
library_name: transformers
pipeline_tag: text-to-image
license: apache-2.0
---
# {name}

An autoregressive image model of {millions:.1f} M parameters: the stock class `JanusForConditionalGeneration`, deep and
narrow ({layers} layers of {width}), pictures of {pixels} x {pixels} pixels in {side} x {side} codes out of {codes}. It
is made to try speculative decoding with. It only draws: its tower that reads pictures and the encoder of its picture
tokenizer are untrained stubs. What finds the codes of real pictures is the network of `patches.safetensors`
(`mmspec.image_ar.patches`), which sees one patch at a time.

    import mmspec
    mmspec.generate(prompt="a red circle above two blue squares", model="FOLDER").image

## Data

Scenes of one to four shapes of the synthetic world `mmspec.miniworld` on rough grounds. Captions say colour and shape
of everything, and its place, how two groups lie to each other, or only how many there are; most name the ground. Seeds:
tokenizer, {seeds}; held out: validation. It knows the words of these captions and no others.

## Recipe

`mmspec train target janus-mini --out FOLDER` trains one like it{start}:

{stages}

Mean probability of the best code under the guided law (scale {guidance}) at temperature 1, held out: {certainty:.2f}.
It draws at temperature {temperature} unless it is told another.
"""


def export(painter: Painter, processor: JanusProcessor, out: Path, run: Path, start: str | None) -> None:
    """Write the trained model to `out`, with a card from the logs in `run`. start: where its training began."""
    painter.cpu().eval()
    logs = logs_of(run, STAGES)
    held_out = [scene("validation", index) for index in range(GAUGED)]
    pixels = torch.stack([made.pixels for made in held_out])
    certainty = painter.certainty(pixels, [made.caption.text for made in held_out], GUIDANCE)
    model, tokenizer = painter.model, processor.tokenizer
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=TEMPERATURE,
        guidance_scale=GUIDANCE,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        generation_kwargs={"boi_token_id": painter.start},
    )
    text = model.config.text_config
    card = CARD.format(
        name=out.name,
        millions=millions(model),
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        pixels=PIXELS,
        side=SIDE,
        codes=CODES,
        guidance=GUIDANCE,
        temperature=TEMPERATURE,
        certainty=certainty,
        start=begun(start),
        seeds=", ".join(log.stem for log in logs),
        stages="\n".join(stage_line(log) for log in logs),
    )
    with writing(out) as folder:
        model.to(torch.bfloat16).save_pretrained(folder)
        processor.save_pretrained(folder)
        painter.patches.write(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")


def logs_of(run: Path, stages: Iterable[str]) -> list[Path]:
    """What stages of a run have written, in their order."""
    return [log for stage in stages for log in sorted(run.glob(f"{stage}*.json"))]


def begun(start: str | None) -> str:
    """Where training began, for a card."""
    return "" if start is None else f" (this one with `--start`, from a finished `{Path(start).name}`)"


def stage_line(log: Path) -> str:
    """What a stage taught, for how long, and how well."""
    steps = json.loads(log.read_text(encoding="utf-8"))[-1]["step"]
    return f"- {log.stem}: {STAGES[log.stem.partition('-')[0]]}; {steps} updates, held-out loss {last_loss(log):.3f}"


def last_loss(log: Path) -> float:
    """The last held-out loss of a stage."""
    history = json.loads(log.read_text(encoding="utf-8"))
    return next(entry["eval_loss"] for entry in reversed(history) if "eval_loss" in entry)
