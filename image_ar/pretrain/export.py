"""The folder that ships: stock model and processor in bfloat16, generation defaults, a model card."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import GenerationConfig, JanusProcessor

from mmspec.checkpoints import writing
from mmspec.image_ar.pretrain.architecture import CODES, GUIDANCE, PIXELS, SIDE
from mmspec.image_ar.pretrain.draw import Painter
from mmspec.image_ar.pretrain.world import scene

GAUGED = 8

CARD = """---
library_name: transformers
pipeline_tag: text-to-image
license: apache-2.0
---
# {name}

An autoregressive image model of {millions:.1f} M parameters: the stock class `JanusForConditionalGeneration`, deep and
narrow ({layers} layers of {width}), pictures of {pixels} x {pixels} pixels in {side} x {side} codes out of {codes}. It
is made to try speculative decoding with. It only draws: its tower that reads pictures is an untrained stub.

    import mmspec
    mmspec.generate(prompt="a red circle above two blue squares", model="FOLDER").image

## Data

Scenes of one to four shapes of the synthetic world `mmspec.miniworld` on rough grounds. Captions say colour and shape
of everything, and its place, how two groups lie to each other, or only how many there are; most name the ground. Seeds:
tokenizer, codes, shallow, deep; held out: validation. It knows the words of these captions and no others.

## Recipe

`mmspec train target {name} --out FOLDER` trains one like it: a VQ autoencoder (L1, L2 and edges), then cross-entropy
on the codes by a decoder of half the layers that is deepened, one caption in ten hidden for guidance. Held-out losses:
picture tokenizer {codes_loss:.3f}, codes {draw_loss:.3f} nats.
Mean probability of the best code under the guided law (scale {guidance}), held out: {certainty:.2f}.
"""


def export(painter: Painter, processor: JanusProcessor, out: Path, run: Path) -> None:
    """Write the trained model to `out`, with a card from the logs in `run`."""
    painter.eval()
    held_out = [scene("validation", index) for index in range(GAUGED)]
    pixels = torch.stack([made.pixels for made in held_out])
    certainty = painter.certainty(pixels, [made.caption.text for made in held_out], GUIDANCE)
    model, tokenizer = painter.model, processor.tokenizer
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        guidance_scale=GUIDANCE,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        generation_kwargs={"boi_token_id": painter.start},
    )
    text = model.config.text_config
    card = CARD.format(
        name=out.name,
        millions=sum(parameter.numel() for parameter in model.parameters()) / 1e6,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        pixels=PIXELS,
        side=SIDE,
        codes=CODES,
        guidance=GUIDANCE,
        certainty=certainty,
        codes_loss=last_loss(run / "codes.json"),
        draw_loss=last_loss(run / "deep.json"),
    )
    with writing(out) as folder:
        model.to(torch.bfloat16).save_pretrained(folder)
        processor.save_pretrained(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")


def last_loss(log: Path) -> float:
    """The last held-out loss of a stage."""
    history = json.loads(log.read_text(encoding="utf-8"))
    return next(entry["eval_loss"] for entry in reversed(history) if "eval_loss" in entry)
