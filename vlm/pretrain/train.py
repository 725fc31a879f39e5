"""Trains a bundled vision-language checkpoint from nothing: `python -m mmspec.vlm.pretrain.train --help`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import default_collate
from transformers import SmolVLMForConditionalGeneration, set_seed

from mmspec.vlm.pretrain.architecture import TokenIds, smolvlm_config
from mmspec.vlm.pretrain.loop import StageTrainer, last_checkpoint, stage_arguments
from mmspec.vlm.pretrain.vision import DenseProbe, LabelledPictures

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/smolvlm-mini"), help="folder of logs and checkpoints")
    parser.add_argument("--vision-steps", type=int, default=520)
    options = parser.parse_args(arguments)
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    train_vision(options.run, options.vision_steps)


if __name__ == "__main__":
    main()
