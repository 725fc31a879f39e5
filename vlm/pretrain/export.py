"""The folder that ships: stock model and processor in bfloat16, generation defaults, a model card."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import GenerationConfig, SmolVLMForConditionalGeneration, SmolVLMProcessor

from mmspec.checkpoints import writing
from mmspec.vlm.pretrain.stages import Stage
from mmspec.vlm.pretrain.tokenizer import token_ids

CARD = """---
library_name: transformers
pipeline_tag: image-text-to-text
license: apache-2.0
---
# {name}

A vision-language model of {millions:.1f} M parameters: the stock class `SmolVLMForConditionalGeneration`, deep and
narrow ({layers} decoder layers of {width}), one tile of {pixels} pixels and {slots} image tokens per picture. It is
made to try speculative decoding with, not to be clever.

    from transformers import AutoModelForImageTextToText, AutoProcessor
    model, processor = (c.from_pretrained("FOLDER") for c in (AutoModelForImageTextToText, AutoProcessor))

## Data

The synthetic world `mmspec.miniworld`: shapes, bar, line and pie charts, tables and signs, drawn when asked for, with
descriptions, worked answers and short answers. Seeds: {seeds}. Nothing else was ever seen: photographs, other languages
and questions that the world does not ask are beyond it, and it will answer them wrongly, in fluent sentences.

## Recipe

`mmspec train target {name}` makes it again. Vision tower: dense labels of every patch. Then, with cross-entropy on
answers (words that only the picture determines count more) and on what every image slot shows and where it lies; a few
attention heads are taught to look at the slots that show the word at hand:

{stages}

Teacher-forced on held-out pictures: {validation}
"""


def export(trained: Path, out: Path, stages: Sequence[Stage], log: Path) -> None:
    """Write the trained model of the folder `trained` to `out`, with a card from the stages and the Trainer's log."""
    model = SmolVLMForConditionalGeneration.from_pretrained(trained, dtype=torch.bfloat16)
    processor = SmolVLMProcessor.from_pretrained(trained)
    ids = token_ids(processor.tokenizer)
    model.generation_config = GenerationConfig(
        bos_token_id=ids.start, eos_token_id=ids.end, pad_token_id=ids.padding, do_sample=False
    )
    history = json.loads(log.read_text())["log_history"]
    last = next(entry for entry in reversed(history) if "eval_image_words" in entry)
    text, vision = model.config.text_config, model.config.vision_config
    card = CARD.format(
        name=out.name,
        millions=sum(parameter.numel() for parameter in model.parameters()) / 1e6,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        pixels=vision.image_size,
        slots=(vision.image_size // vision.patch_size // model.config.scale_factor) ** 2,
        seeds="tokenizer, vision, " + ", ".join(stage.name for stage in stages),
        stages="\n".join(f"- {stage}" for stage in stages),
        validation=f"{last['eval_image_words']:.1%} of the picture's words right.",
    )
    with writing(out) as folder:
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")
