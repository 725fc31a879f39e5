"""The folder that ships: model and codec in bfloat16, tokenizer, voices, generation defaults, a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from mmspec.checkpoints import writing
from mmspec.speech.pretrain.valle_training import WARPERS
from mmspec.speech.processing import SpeechProcessor
from mmspec.speech.valle import Valle
from mmspec.training.card import figure_list, millions, shown_place

CARD = """---
pipeline_tag: text-to-speech
license: apache-2.0
---
# {name}

A text-to-speech model of {millions:.1f} M parameters: a VALL-E-type model (`mmspec.speech.valle`: {layers} decoder
layers of {width}, {refiner} refiner layers) over a codec of {codebooks} codebooks of {codes} codes at {rate:.1f} frames
per second, made audible by Griffin-Lim. It is made to try speculative decoding with. It sounds like a robot: it learnt
from one.

    import mmspec
    mmspec.generate(prompt="the red bar is the tallest.", model="FOLDER").audio.save("speech.wav")

## Data

{sentences} sentences about the synthetic world `mmspec.miniworld`, spoken by espeak-ng: {voices}, each utterance and
each word at a rate and pitch of its own, loudness and speed drifting within the words, without the silence behind a
sentence. Nothing else was ever heard: other words, languages and real voices are beyond it.

## Recipe

{recipe}

## Measured on held-out sentences

{figures}
"""

COMMAND = """    mmspec train target valle-mini --out FOLDER{start} --codes {codes} --sentences {sentences} \\
        --codec-steps {codec_steps}{shallow} --deep-steps {deep_steps} --batch {batch} --seed {seed} {precision}

"""
NEW = """{codec_steps} updates of the codec, {steps} of a shallow decoder and {deep_steps} of the deepened one."""
ON = """It went on from a finished one, which had heard what its own card tells: {codec}, {deep_steps} updates of the
model."""


def export(
    model: Valle, processor: SpeechProcessor, out: Path, figures: dict[str, float], settings: dict[str, Any]
) -> None:
    """Write the finished checkpoint to `out`."""
    text, codec = model.config.text_config, processor.codec
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        bos_token_id=text.bos_token_id,
        eos_token_id=text.eos_token_id,
        pad_token_id=text.pad_token_id,
        do_sample=True,
        **WARPERS,
    )
    start = settings["start"]
    steps = settings["codec_steps"]
    settings = {
        **settings,
        "codes": codec.config.codebook_size,
        "start": "" if start is None else f" --start {shown_place(str(start))}",
        "precision": "--bf16" if settings["bf16"] else "--no-bf16",
        "shallow": f" --steps {settings['steps']}" if start is None else "",
        "codec": f"{steps} updates of the codec, whose codebooks are new" if steps else "the codec as it was",
    }
    recipe = COMMAND + (NEW if start is None else ON)
    card = CARD.format(
        name=out.name,
        recipe=recipe.format(**settings),
        millions=millions(model, codec),
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        refiner=model.config.refiner_config.num_hidden_layers,
        codebooks=codec.config.codebooks,
        rate=codec.frames_per_second,
        voices=", ".join(processor.voices),
        figures=figure_list(figures),
        **settings,
    )
    with writing(out) as folder:
        model.save_pretrained(folder)
        SpeechProcessor(processor.tokenizer, codec.to(torch.bfloat16), processor.voices).save_pretrained(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")
