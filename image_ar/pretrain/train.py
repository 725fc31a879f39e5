"""Trains the bundled image checkpoint from nothing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn
from transformers import JanusForConditionalGeneration, JanusProcessor, TrainingArguments, set_seed

from mmspec.checkpoints import find_model, read_model, replaceable
from mmspec.errors import MismatchError
from mmspec.image_ar.patches import Patches
from mmspec.image_ar.pretrain.architecture import PIXELS, SIDE, build_processor, janus_config
from mmspec.image_ar.pretrain.codes import Autoencoder
from mmspec.image_ar.pretrain.draw import TOLD, Painter
from mmspec.image_ar.pretrain.export import export
from mmspec.image_ar.pretrain.read import Labelled, Lesson
from mmspec.image_ar.pretrain.sharpen import Sharpener
from mmspec.image_ar.pretrain.world import Scenes, collate, learnt_words
from mmspec.image_ar.reader import Reader
from mmspec.pretrain.command import check_counts, parsed, run_settings, target_parser
from mmspec.pretrain.growth import deepened, quiet
from mmspec.safe_files import read_json, whole, write_whole
from mmspec.training.folders import claim, made_once
from mmspec.training.loop import InOrderTrainer, last_checkpoint, made_anew, stage_arguments

Start = tuple[JanusForConditionalGeneration, Patches, JanusProcessor]
"""Model, what finds codes, and processor."""
STACK = "model.language_model.layers"
VALIDATION = 64
CRITIC_BATCH = 48


def read_start(source: str) -> Start:
    """A finished checkpoint to go on from: a bundled name, a folder, a hub id. In float32.

    Raises: MismatchError: it is of another class, or its pictures have another size. CheckpointError: what finds their
        codes is not there.
    """
    folder = find_model(source)
    config = read_json(folder / "config.json")
    parts = {"vision_config": ("image_size", PIXELS), "vq_config": ("num_patches", SIDE)}
    sizes = {name: config.get(name, {}).get(key) for name, (key, _) in parts.items()}
    if config.get("model_type") != "janus" or sizes != {name: size for name, (_, size) in parts.items()}:
        raise MismatchError(
            f"janus-mini cannot go on from {folder}, a {config.get('model_type')} checkpoint: it needs a janus whose "
            f"pictures have {PIXELS} x {PIXELS} pixels and {SIDE} x {SIDE} codes"
        )
    model = read_model(JanusForConditionalGeneration, folder, "auto").float()
    return model, Patches.read(folder), JanusProcessor.from_pretrained(folder)


def train_stage(
    run: Path, name: str, module: nn.Module, batch: int, arguments: TrainingArguments, labelled: bool = False
) -> None:
    """Train a module that returns its loss, to `arguments.max_steps`. Resumes where it stopped; keeps the weights.

    Args: labelled: let it see what stands in the cells of scenes, not what captions say of them.
    """
    data: Any = Labelled if labelled else Scenes
    result = run / f"{name}.safetensors"
    if not result.exists():
        trainer = InOrderTrainer(
            model=module,
            args=arguments,
            train_dataset=data(name, arguments.max_steps * batch),
            eval_dataset=data("validation", min(VALIDATION, 4 * batch)),
            data_collator=None if labelled else collate,
        )
        trainer.train(resume_from_checkpoint=last_checkpoint(run / name))
        write_whole(run / f"{name}.json", json.dumps(trainer.state.log_history))
        with whole(result) as draft:
            save_file({key: value.contiguous().clone() for key, value in module.state_dict().items()}, draft)
    module.load_state_dict(load_file(result))


def learnt_critic(run: Path, steps: int, seed: int) -> Reader:
    """The network that tells shapes apart, for the loss of what decodes pictures; it learns first, in `run`, from where
    it stopped there."""
    critic = made_anew("critic", seed, Reader)
    more = {**settings(steps), "label_names": ["shapes"], "seed": seed, "falling": steps * 2 // 3}
    arguments = stage_arguments(run / "critic", steps, CRITIC_BATCH, 0.02, **more)
    train_stage(run, "critic", Lesson(critic), CRITIC_BATCH, arguments, labelled=True)
    return critic


def settings(steps: int) -> dict[str, Any]:
    """Further arguments of every stage."""
    return {
        "save_steps": 100,
        "dataloader_num_workers": 1,
        "eval_strategy": "steps",
        "eval_steps": max(1, min(200, steps)),
        "prediction_loss_only": True,
        "label_names": ["captions"],
        "weight_decay": 0.01,
    }


def train(run: Path, options: argparse.Namespace, start: Start | None) -> tuple[Painter, JanusProcessor]:
    """Every stage, from where the run is."""

    def stage(name: str, module: nn.Module, steps: int, batch: int, rate: float, falling: int) -> None:
        more = {**settings(steps), "seed": options.seed, "falling": falling}
        train_stage(run, name, module, batch, stage_arguments(run / name, steps, batch, rate, **more))

    if start is None:
        processor = made_once(run / "processor", lambda: build_processor(learnt_words()), JanusProcessor)
        model = JanusForConditionalGeneration(janus_config(processor.tokenizer, options.shallow, options.width))
        quiet(model.get_submodule(STACK), options.layers)  # type: ignore[arg-type]  # a ModuleList
        tokenizer = Autoencoder(model.model.vqmodel)
        stage("codes", tokenizer, options.picture_steps, options.picture_batch, 0.015, options.picture_steps * 2 // 3)
        tokenizer.finish()
        patches = tokenizer.patches
    else:
        model, patches, processor = start
    if options.sharp_steps:
        critic = learnt_critic(run, options.critic_steps, options.seed)
        sharpener = Sharpener(model.model.vqmodel, patches, critic)
        stage("sharp", sharpener, options.sharp_steps, options.picture_batch, 0.01, options.sharp_steps * 2 // 3)
    deep, even = "deep", "even"
    if start is None:
        stage("shallow", Painter(model, patches, processor.tokenizer, TOLD), options.steps, options.batch, 0.01, 0)
        model = deepened(model, options.layers, STACK)
    else:
        deep, even = f"more-{options.seed}", f"even-{options.seed}"
    if options.deep_steps:
        stage(deep, Painter(model, patches, processor.tokenizer, TOLD), options.deep_steps, options.batch, 0.008, 0)
    painter = Painter(model, patches, processor.tokenizer)
    if options.even_steps:
        stage(even, painter, options.even_steps, options.batch, 0.008, options.even_steps)
    return painter, processor


def main(arguments: Sequence[str]) -> None:
    """Command line."""
    parser = target_parser("janus-mini", __doc__)
    parser.add_argument(
        "--start", help="checkpoint to go on from: name, folder or hub id; its codes and its shape stay"
    )
    parser.add_argument("--picture-steps", type=int, default=900, help="updates of the picture tokenizer")
    parser.add_argument("--picture-batch", type=int, default=12, help="pictures per update")
    parser.add_argument("--critic-steps", type=int, default=200, help="updates of the network that tells shapes apart")
    parser.add_argument(
        "--sharp-steps", type=int, default=900, help="updates of the tokenizer's decoder by what it sees"
    )
    parser.add_argument("--steps", type=int, default=1300, help="updates of the shallow decoder")
    parser.add_argument("--deep-steps", type=int, default=1400, help="updates of the deepened (or the started) decoder")
    parser.add_argument("--even-steps", type=int, default=800, help="its last updates, with all codes counted alike")
    parser.add_argument("--batch", type=int, default=12, help="pictures per update")
    parser.add_argument("--shallow", type=int, default=8, help="layers at first")
    parser.add_argument("--layers", type=int, default=16, help="layers in the end")
    parser.add_argument("--width", type=int, default=160, help="of the language model, a multiple of 32")
    least = partial(
        check_counts,
        picture_steps=1,
        picture_batch=1,
        critic_steps=1,
        sharp_steps=0,
        steps=1,
        deep_steps=0,
        even_steps=0,
        batch=1,
        shallow=1,
        layers=1,
        width=32,
    )
    options = parsed(parser, arguments, least)
    replaceable(options.out)
    start = None if options.start is None else read_start(options.start)
    claim(options.run, run_settings(options))
    set_seed(options.seed)
    painter, processor = train(options.run, options, start)
    export(painter, processor, options.out, options.run, options.start)
