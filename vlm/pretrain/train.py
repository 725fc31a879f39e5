"""Trains a bundled vision-language checkpoint from nothing: `python -m mmspec.vlm.pretrain.train --help`."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import default_collate
from transformers import SmolVLMForConditionalGeneration, SmolVLMProcessor, set_seed

from mmspec.miniworld import sample
from mmspec.vlm.pretrain.architecture import TokenIds, smolvlm_config
from mmspec.vlm.pretrain.language import AnswerTrainer, PackedPictures
from mmspec.vlm.pretrain.loop import StageTrainer, last_checkpoint, stage_arguments
from mmspec.vlm.pretrain.pixels import shrunk
from mmspec.vlm.pretrain.tokenizer import build_processor, token_ids, train_tokenizer
from mmspec.vlm.pretrain.vision import DenseProbe, LabelledPictures, match_scale

VISION_FILE = "vision.safetensors"
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
        args=stage_arguments(folder, steps, batch, 0.02, seed, logging_steps=10),
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


def quiet_residuals(model: SmolVLMForConditionalGeneration) -> None:
    """Scales what each sublayer adds, so that 2 L of them do not drown the embeddings (GPT-2's initialisation)."""
    layers = model.model.text_model.layers
    with torch.no_grad():
        for layer in layers:
            layer.self_attn.o_proj.weight.mul_((2 * len(layers)) ** -0.5)
            layer.mlp.down_proj.weight.mul_((2 * len(layers)) ** -0.5)


def train_language(run: Path, vision: Path, steps: int = 1350, batch: int = 4, seed: int = 0) -> Path:
    """Stage 2; returns the folder of the trained model. Resumes where it stopped."""
    result = run / "trained"
    if result.exists():
        return result
    set_seed(seed)
    processor = prepare_processor(run)
    model = SmolVLMForConditionalGeneration(smolvlm_config(token_ids(processor.tokenizer)))
    model.load_state_dict({f"model.{name}": value for name, value in load_file(vision).items()}, strict=False)
    quiet_residuals(model)
    pixels = torch.stack([shrunk(sample("scale", index).image) for index in range(16)])
    match_scale(model, pixels)
    folder = run / "language"
    trainer = AnswerTrainer(
        model,
        processor,
        args=stage_arguments(
            folder,
            steps,
            batch,
            0.006,
            seed,
            falling=steps * 6 // 10,
            eval_strategy="steps",
            eval_steps=100,
            save_steps=150,
        ),
        train_dataset=PackedPictures(processor.tokenizer, "train", steps * batch),
        eval_dataset=PackedPictures(processor.tokenizer, "validation", 24),
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    temporary = run / "trained.tmp"
    model.save_pretrained(temporary)
    processor.save_pretrained(temporary)
    temporary.rename(result)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/smolvlm-mini"), help="folder of logs and checkpoints")
    parser.add_argument("--vision-steps", type=int, default=520)
    parser.add_argument("--steps", type=int, default=1350, help="steps of the language stage")
    options = parser.parse_args(arguments)
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    train_language(options.run, train_vision(options.run, options.vision_steps), options.steps)


if __name__ == "__main__":
    main()
