"""The folder that ships: stock model and processor in bfloat16, generation defaults, a model card."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from mmspec.checkpoints import writing
from mmspec.training.card import millions
from mmspec.training.cost import last_cost
from mmspec.training.loop import last_checkpoint
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.stages import Stage
from mmspec.vlm.pretrain.tokenizer import token_ids

CARD = """---
library_name: transformers
pipeline_tag: image-text-to-text
license: apache-2.0
---
# {name}

A vision-language model of {millions:.1f} M parameters: the stock class `{model_class}`, deep and
narrow ({layers} decoder layers of {width}), {sees}. It is
made to try speculative decoding with, not to be clever.

    from transformers import AutoModelForImageTextToText, AutoProcessor
    model, processor = (c.from_pretrained("FOLDER") for c in (AutoModelForImageTextToText, AutoProcessor))

## Data

The synthetic world `mmspec.miniworld`: shapes, bar, line and pie charts, tables and signs, drawn when asked for, with
descriptions, worked answers and short answers. Seeds: {seeds}. Nothing else was ever seen: photographs, other languages
and questions that the world does not ask are beyond it, and it will answer them wrongly, in fluent sentences.

## Recipe

`mmspec train target {target} --out FOLDER {options}` trains one like it.
{begun} with cross-entropy on answers (words that only the picture determines count more) and on what every image slot
shows and where it lies; a few attention heads are taught to look at the slots that show the word at hand, and states
between the layers are asked for the value that a word hangs on:

{stages}

## Cost

{cost}

## Validation

Teacher-forced on held-out pictures: {validation}
"""


def export(
    family: Family,
    trained: Path,
    out: Path,
    stages: Sequence[Stage],
    run: Path,
    begun: str,
    seeds: Sequence[str],
    options: str,
) -> None:
    """Write the trained model of the folder `trained` to `out`, with a card from the stages and the logs of the run.

    begun: how its training begins, up to the loss. seeds: of the data. options: those of the command that trains one
    like it.
    """
    model = family.model_class.from_pretrained(trained, dtype=torch.bfloat16)
    processor = family.processor_class.from_pretrained(trained)
    ids = token_ids(processor.tokenizer)
    model.generation_config = GenerationConfig(
        bos_token_id=ids.start, eos_token_id=ids.end, pad_token_id=ids.padding, do_sample=False
    )
    logs = {name: read_log(run / name) for name in ("vision", *(stage.name for stage in stages))}
    logs = {name: log for name, log in logs.items() if log}
    last = next(entry for entry in reversed(logs[stages[-1].name]) if "eval_image_words" in entry)
    text = model.config.text_config
    card = CARD.format(
        name=out.name,
        millions=millions(model),
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        model_class=family.model_class.__name__,
        sees=family.sees,
        target=family.name,
        options=options,
        begun=begun,
        cost="\n".join(f"- {name}: {cost(log)}" for name, log in logs.items()),
        seeds=", ".join(seeds),
        stages="\n".join(f"- {stage.told}" for stage in stages),
        validation=f"{last['eval_image_words']:.1%} of the picture's words right.",
    )
    with writing(out) as folder:
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The Trainer's history of a stage; empty where the stage came with the run."""
    found = last_checkpoint(folder)
    return json.loads(Path(found, "trainer_state.json").read_text())["log_history"] if found else []


def cost(log: list[dict[str, Any]]) -> str:
    """What a stage took."""
    spent = last_cost(log)
    if not spent:
        return "not measured"
    return (
        f"{spent['step']} updates, {spent['seconds'] / 60:.1f} minutes on {spent['device']}, peak memory "
        f"{spent['peak_bytes'] / 2**30:.1f} GB"
    )
