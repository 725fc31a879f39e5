"""Trains a bundled vision-language checkpoint from nothing: `mmspec train target smolvlm-mini --help`."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import default_collate
from transformers import SmolVLMForConditionalGeneration, SmolVLMProcessor, set_seed

from mmspec.miniworld import sample
from mmspec.training.growth import deepened, quiet
from mmspec.training.loop import last_checkpoint, stage_arguments
from mmspec.vlm.pretrain.architecture import TokenIds, smolvlm_config
from mmspec.vlm.pretrain.export import export
from mmspec.vlm.pretrain.language import AnswerTrainer, PackedPictures
from mmspec.vlm.pretrain.loop import StageTrainer
from mmspec.vlm.pretrain.pixels import shrunk
from mmspec.vlm.pretrain.stages import DEEP, SHALLOW, Stage
from mmspec.vlm.pretrain.tokenizer import build_processor, token_ids, train_tokenizer
from mmspec.vlm.pretrain.vision import DenseProbe, LabelledPictures, match_scale

VISION_FILE = "vision.safetensors"
STACK = "model.text_model.layers"
PARTS = ("vision_model.", "connector.")


def train_vision(run: Path, steps: int = 520, batch: int = 24, seed: int = 0) -> Path:
    """Stage 1; returns the file with the weights of the vision tower and the connector. Resumes where it stopped."""
    result = run / VISION_FILE
    if result.exists():
        return result
    set_seed(seed)
    probe = DenseProbe(SmolVLMForConditionalGeneration(smolvlm_config(TokenIds(64, 3, 1, 2, 0))))
    folder = run / "vision"
    trainer = StageTrainer(
        model=probe,
        args=stage_arguments(folder, steps, batch, 0.02, seed, falling=steps // 2),
        train_dataset=LabelledPictures("vision", steps * batch),
        data_collator=default_collate,
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    weights = {name: value.contiguous() for name, value in probe.state_dict().items() if name.startswith(PARTS)}
    save_file(weights, run / "vision.tmp")
    (run / "vision.tmp").rename(result)
    return result


def world_text(seed: str, pictures: int) -> Iterator[str]:
    """Questions and answers of the world, for the tokenizer."""
    for index in range(pictures):
        for qa in sample(seed, index).qas:
            yield f"User:{qa.question}"
            yield f"Assistant: {qa.answer}"


def prepare_processor(run: Path) -> SmolVLMProcessor:
    """The processor of the checkpoint; its tokenizer is learnt once."""
    folder = run / "processor"
    if not (folder / "done").exists():
        processor = build_processor(train_tokenizer(world_text("tokenizer", 1500)))
        processor.save_pretrained(folder)
        (folder / "done").touch()
    return SmolVLMProcessor.from_pretrained(folder)


def new_model(processor: SmolVLMProcessor, vision: Path, layers: int) -> SmolVLMForConditionalGeneration:
    """Pretrained vision tower and connector, new decoder of `layers` layers."""
    model = SmolVLMForConditionalGeneration(smolvlm_config(token_ids(processor.tokenizer), layers))
    model.load_state_dict({f"model.{name}": value for name, value in load_file(vision).items()}, strict=False)
    quiet(model.get_submodule(STACK), layers)
    pixels = torch.stack([shrunk(sample("scale", index).image) for index in range(16)])
    match_scale(model, pixels)
    return model


def train_answers(
    run: Path, stage: Stage, model: SmolVLMForConditionalGeneration, processor: SmolVLMProcessor, seed: int = 0
) -> Path:
    """One stage of question answering; returns the folder of the trained model. Resumes where it stopped."""
    result, folder = run / f"{stage.name}-done", run / stage.name
    if result.exists():
        return result
    if model.config.text_config.num_hidden_layers < stage.layers:
        model = deepened(model, stage.layers, STACK)
    trainer = AnswerTrainer(
        model,
        processor,
        args=stage_arguments(
            folder,
            stage.steps,
            stage.batch,
            stage.rate,
            seed,
            falling=stage.falling,
            eval_strategy="steps",
            eval_steps=100,
        ),
        train_dataset=PackedPictures(processor.tokenizer, stage.name, stage.steps * stage.batch, stage.bins),
        eval_dataset=PackedPictures(processor.tokenizer, "validation", 48, 1),
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    temporary = run / f"{stage.name}.tmp"
    model.save_pretrained(temporary)
    processor.save_pretrained(temporary)
    temporary.rename(result)
    return result


def train_language(run: Path, vision: Path, stages: Sequence[Stage], seed: int = 0) -> Path:
    """The stages after the first; returns the folder of the trained model."""
    set_seed(seed)
    processor = prepare_processor(run)
    model = new_model(processor, vision, stages[0].layers)
    for stage in stages:
        result = train_answers(run, stage, model, processor, seed)
        model = SmolVLMForConditionalGeneration.from_pretrained(result, dtype=torch.float32)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="mmspec train target smolvlm-mini", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished checkpoint")
    parser.add_argument("--run", type=Path, default=Path("runs/smolvlm-mini"), help="folder of logs and checkpoints")
    parser.add_argument("--vision-steps", type=int, default=520, help="updates of the vision tower")
    parser.add_argument("--steps", type=int, default=SHALLOW.steps, help="updates of the shallow decoder")
    parser.add_argument("--deep-steps", type=int, default=DEEP.steps, help="updates of the deepened decoder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    deep = replace(DEEP, steps=options.deep_steps, falling=options.deep_steps * DEEP.falling // DEEP.steps)
    stages = (replace(SHALLOW, steps=options.steps), deep)
    vision = train_vision(options.run, options.vision_steps, seed=options.seed)
    trained = train_language(options.run, vision, stages, options.seed)
    log = last_checkpoint(options.run / stages[-1].name)
    assert log is not None  # the Trainer saves its last step
    export(trained, options.out, stages, Path(log) / "trainer_state.json")


if __name__ == "__main__":
    main()
