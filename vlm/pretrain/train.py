"""Trains a bundled vision-language checkpoint.

`smolvlm-mini` learns from nothing, the others start from what fits them of it (`known.py`).
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import default_collate
from transformers import PreTrainedModel, ProcessorMixin, set_seed

from mmspec.checkpoints import find_model, replaceable, writing
from mmspec.errors import InputError
from mmspec.miniworld import sample
from mmspec.pretrain.command import parsed, target_parser
from mmspec.pretrain.growth import deepened, quiet, regrown
from mmspec.safe_files import whole
from mmspec.training.card import shown_place
from mmspec.training.folders import claim, made_once
from mmspec.training.loop import last_checkpoint, stage_arguments
from mmspec.vlm.pretrain.architecture import TokenIds
from mmspec.vlm.pretrain.distilled import FollowingTrainer, TwiceSeen, begin_as
from mmspec.vlm.pretrain.export import export
from mmspec.vlm.pretrain.family import Family
from mmspec.vlm.pretrain.gemma3 import GEMMA3
from mmspec.vlm.pretrain.known import Known, adopt_decoder, adopt_tower, begun_from, read_known, read_start
from mmspec.vlm.pretrain.language import AnswerTrainer, PackedPictures
from mmspec.vlm.pretrain.llava_next import LLAVA_NEXT
from mmspec.vlm.pretrain.loop import StageTrainer
from mmspec.vlm.pretrain.pixtral import PIXTRAL
from mmspec.vlm.pretrain.smolvlm import SMOLVLM
from mmspec.vlm.pretrain.stages import DEEP, JOINED, LAYERS, MORE, SHALLOW, Stage
from mmspec.vlm.pretrain.tokenizer import token_ids, train_tokenizer, with_tokens
from mmspec.vlm.pretrain.translated_layers import LayerTrainer
from mmspec.vlm.pretrain.vision import DenseProbe, LabelledPictures, Sight, match_scale, word_scale

VISION_FILE = "vision.safetensors"
VALIDATION = 48  # pictures
DRILLS = 3  # per picture
VISION_STEPS, VISION_BATCH = 520, 24
STEPS = {
    SHALLOW.name: "--steps",
    DEEP.name: "--deep-steps",
    LAYERS.name: "--layer-steps",
    JOINED.name: "--steps",
    MORE.name: "--more-steps",
}
"""The option that sets the updates of a stage."""


@dataclass(frozen=True)
class Run:
    """One training, through all of its stages.

    folder: where its stages lie. bf16: whether in mixed precision. known: what a new model starts from: whose image
    tokens the tower learns to give (without it, dense labels teach it), and whose layers a stage of layers follows.
    """

    folder: Path
    family: Family
    seed: int
    bf16: bool
    known: Known | None = None


def train_vision(run: Run, steps: int, tower: Known | None) -> Path:
    """Stage 1; returns the file with the weights of the vision tower and the connector. Resumes where it stopped.

    Args: tower: a finished model of the family, with whose tower and connector it begins.
    """
    result, family = run.folder / VISION_FILE, run.family
    if result.exists():
        return result
    set_seed(run.seed)
    model = family.model(family.config(TokenIds(64, 3, 1, 2, 0), layers=24))
    sight, folder, length = Sight(family, model), run.folder / "vision", steps * VISION_BATCH
    arguments = partial(stage_arguments, folder, steps, VISION_BATCH, seed=run.seed, falling=steps // 2)
    if run.known is None:
        trainer = StageTrainer(
            family,
            model=DenseProbe(family, model),
            args=arguments(rate=0.02),
            train_dataset=LabelledPictures("vision", length, family.pixels),
            data_collator=default_collate,
        )
    else:
        if tower is None:
            adopt_tower(family, model, run.known)
        else:
            begin_as(sight, tower)
        trainer = FollowingTrainer(
            family,
            run.known,
            model=sight,
            args=arguments(rate=0.01, bf16=run.bf16),
            train_dataset=TwiceSeen("vision", length, family),
            data_collator=default_collate,
        )
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    weights = {name: value.contiguous() for name, value in sight.state_dict().items()}
    with whole(result) as draft:
        save_file(weights, draft)
    return result


def world_text(seed: str, pictures: int) -> Iterator[str]:
    """Questions and answers of the world, for the tokenizer."""
    for index in range(pictures):
        for qa in sample(seed, index).qas:
            yield f"User:{qa.question}"
            yield f"Assistant: {qa.answer}"


def prepare_processor(run: Run) -> ProcessorMixin:
    """The processor of the checkpoint; its tokenizer is learnt once, or has the words that are known."""
    family, known = run.family, run.known

    def make() -> ProcessorMixin:
        if known is None:
            return family.processor(train_tokenizer(world_text("tokenizer", 1500)))
        return family.processor(with_tokens(known.tokenizer, family.tokens))

    return made_once(run.folder / "processor", make, family.processor_class)


def new_model(
    processor: ProcessorMixin, vision: Path, layers: int, family: Family, known: Known | None
) -> PreTrainedModel:
    """Pretrained vision tower and connector, and a new decoder of `layers` layers, or the one that is known."""
    if known is not None:
        layers = known.model.config.text_config.num_hidden_layers
    model = family.model(family.config(token_ids(processor.tokenizer), layers))
    model.load_state_dict({f"model.{name}": value for name, value in load_file(vision).items()}, strict=False)
    if known is None:
        quiet(model.get_submodule(family.stack), layers)
        match_scale(family, model, torch.stack([family.pixels(sample("scale", index).image) for index in range(16)]))
    else:
        adopt_decoder(family, model, known)
        Sight(family, model).resize(word_scale(model))
    return model


def train_answers(run: Run, stage: Stage, model: PreTrainedModel, processor: ProcessorMixin) -> Path:
    """One stage of question answering; returns the folder of the trained model. Resumes where it stopped."""
    result, folder, family = run.folder / f"{stage.name}-done", run.folder / stage.name, run.family
    if result.exists():
        return result
    if model.config.text_config.num_hidden_layers < stage.layers:
        model = deepened(model, stage.layers, family.stack)
    pictures = partial(PackedPictures, processor.tokenizer, pixels=family.pixels)
    if stage.name == LAYERS.name and run.known is not None:
        trainer_of = partial(LayerTrainer, family, run.known)
    else:
        trainer_of = partial(AnswerTrainer, family)
    trainer = trainer_of(
        model=model,
        processor=processor,
        args=stage_arguments(
            folder,
            stage.steps,
            stage.batch,
            stage.rate,
            run.seed,
            falling=stage.falling,
            bf16=run.bf16,
            eval_strategy="steps",
            eval_steps=min(100, stage.steps),
        ),
        train_dataset=pictures(data_seed(stage, run.seed), stage.steps * stage.batch, stage.bins, drills=DRILLS),
        eval_dataset=pictures("validation", VALIDATION, 1),
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    with writing(result) as draft:
        model.save_pretrained(draft)
        processor.save_pretrained(draft)
    return result


def data_seed(stage: Stage, seed: int) -> str:
    """The seed of a stage's pictures."""
    return f"{stage.name}-{seed}" if seed else stage.name


def parser_of(family: Family) -> argparse.ArgumentParser:
    """The options of a family's command."""
    parser = target_parser(family.name, __doc__)
    parser.set_defaults(source=None, tower=None)  # the options of families that start from what is known
    parser.add_argument("--start", help=f"a finished {family.name} to train on: name, folder or hub id")
    parser.add_argument(
        "--busy-layers",
        type=int,
        metavar="N",
        help="with --start: go on from its N decoder layers that add most, repeated to its depth; for a start in which "
        "the others do next to nothing",
    )
    if family.known:
        parser.add_argument(
            "--source", help=f"where {family.known} come from: a name or a folder (without it: {SMOLVLM.name})"
        )
        parser.add_argument(
            "--tower", help=f"a finished {family.name}, with whose vision tower and connector it begins"
        )
    parser.add_argument("--vision-steps", type=int, help=f"updates of the vision tower (without it: {VISION_STEPS})")
    for stage in (*family.stages, MORE):
        told = f"{stage.about} (without it: {stage.steps})"
        parser.add_argument(STEPS[stage.name], type=int, dest=stage.name, help=told)
    parser.add_argument(
        "--bf16", action="store_true", help="mixed precision, where bfloat16 is fast; dense labels stay in float32"
    )
    return parser


def check_options(options: argparse.Namespace, family: Family) -> None:
    """Raises: InputError: an option that would change nothing, a count below 1, or an --out where the start lies.
    CheckpointError: --out holds something else.
    """
    new = {"--source": "source", "--tower": "tower", "--vision-steps": "vision_steps"}
    new |= {STEPS[stage.name]: stage.name for stage in family.stages}
    given = [option for option, name in new.items() if getattr(options, name) is not None]
    if options.start is not None and given:
        raise InputError(f"{given[0]} is for a new model: with --start, {STEPS[MORE.name]} sets the updates")
    if options.start is None and options.more is not None:
        raise InputError(f"{STEPS[MORE.name]} needs --start: the model to train on")
    if options.start is None and options.busy_layers is not None:
        raise InputError("--busy-layers needs --start: the model whose layers they are")
    counts = {option: getattr(options, name) for option, name in new.items() if name not in ("source", "tower")}
    counts |= {STEPS[MORE.name]: options.more, "--busy-layers": options.busy_layers}
    wrong = [f"{option} {count}" for option, count in counts.items() if count is not None and count < 1]
    if wrong:
        raise InputError(f"{wrong[0]} is not valid: 1 or more are needed")
    for place in (options.start, options.tower):
        if place is not None and options.out.resolve() == find_model(place).resolve():
            raise InputError(
                f"--out {options.out} is where the model lies that training starts from: name another folder"
            )
    replaceable(options.out)


def train(family: Family, arguments: Sequence[str]) -> None:
    """Command line."""
    options = parsed(parser_of(family), arguments, partial(check_options, family=family))

    def asked(stage: Stage) -> Stage:
        """The stage with the updates that were asked for."""
        steps = getattr(options, stage.name)
        steps = stage.steps if steps is None else steps
        return replace(stage, steps=steps, falling=steps * stage.falling // stage.steps)

    known: Known | None = None
    settings = {"target": family.name, "seed": options.seed, "bf16": options.bf16}
    if options.start is None:
        stages = [asked(stage) for stage in family.stages]
        vision_steps = VISION_STEPS if options.vision_steps is None else options.vision_steps
        known = read_known(options.source or SMOLVLM.name, family) if family.known else None
        tower = read_start(options.tower, family)[0] if options.tower else None
        settings |= {"source": known.digest if known else None, "tower": tower.digest if tower else None}
        settings |= {"vision_steps": vision_steps}
        begun, seeds = begun_from(family, known, tower), ["tokenizer", "vision"]
        told = {"--vision-steps": str(vision_steps)}
    else:
        start, processor = read_start(options.start, family)
        model = start.model
        if options.busy_layers is not None:
            model = regrown(model, options.busy_layers, family.stack)
        stages = [asked(replace(MORE, layers=model.config.text_config.num_hidden_layers))]
        settings |= {"start": start.digest, "busy_layers": options.busy_layers}
        regrowth = f", with its {options.busy_layers} busiest decoder layers repeated" if options.busy_layers else ""
        begun, seeds = f"It goes on from {start.name} ({start.digest}){regrowth},", []
        told = {"--start": shown_place(options.start)}
        told |= {"--busy-layers": str(options.busy_layers)} if options.busy_layers else {}
    claim(options.run, {**settings, "stages": [*map(str, stages)]})
    run = Run(options.run, family, options.seed, options.bf16, known)
    if options.start is None:
        vision = train_vision(run, vision_steps, tower)
        set_seed(run.seed)
        processor = prepare_processor(run)
        model = new_model(processor, vision, stages[0].layers, family, known)
    for stage in stages:
        trained = train_answers(run, stage, model, processor)
        model = family.model_class.from_pretrained(trained, dtype=torch.float32)
    told |= {STEPS[stage.name]: str(stage.steps) for stage in stages}
    told |= {"--seed": str(options.seed)} if options.seed else {}
    places = {"--source": options.source, "--tower": options.tower}
    told |= {option: shown_place(place) for option, place in places.items() if place}
    words = [word for pair in told.items() for word in pair] + ["--bf16"] * options.bf16
    seeds += [data_seed(stage, options.seed) for stage in stages]
    export(family, trained, options.out, stages, options.run, begun, seeds, " ".join(words))


main = partial(train, SMOLVLM)
llava_next_mini = partial(train, LLAVA_NEXT)
pixtral_mini = partial(train, PIXTRAL)
gemma3_mini = partial(train, GEMMA3)
