"""Trains the bundled image checkpoint from nothing: `mmspec train target janus-mini --help`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import JanusForConditionalGeneration, JanusProcessor, set_seed

from mmspec.image_ar.pretrain.architecture import build_processor, build_tokenizer, janus_config
from mmspec.image_ar.pretrain.codes import Autoencoder
from mmspec.image_ar.pretrain.draw import Painter
from mmspec.image_ar.pretrain.export import export
from mmspec.image_ar.pretrain.world import Scenes, collate, scene
from mmspec.training.loop import InOrderTrainer, last_checkpoint, training_arguments

VALIDATION = 64


def prepare_processor(run: Path) -> JanusProcessor:
    """The processor of the checkpoint; its words are learnt once."""
    folder = run / "processor"
    if not (folder / "done").exists():
        build_processor(build_tokenizer(scene("tokenizer", index).caption for index in range(600))).save_pretrained(
            folder
        )
        (folder / "done").touch()
    return JanusProcessor.from_pretrained(folder)


def train_stage(run: Path, name: str, model: nn.Module, steps: int, batch: int, rate: float, seed: int) -> Path:
    """Train a module that returns its loss; returns the file of its weights. Resumes where it stopped."""
    result, folder = run / f"{name}.safetensors", run / name
    if result.exists():
        return result
    arguments = training_arguments(
        folder,
        steps=steps,
        batch=batch,
        rate=rate,
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
        save_steps=100,
        dataloader_num_workers=1,
        eval_strategy="steps",
        eval_steps=max(1, min(200, steps)),
        prediction_loss_only=True,
        label_names=["captions"],
    )
    trainer = InOrderTrainer(
        model=model,
        args=arguments,
        train_dataset=Scenes(name, steps * batch),
        eval_dataset=Scenes("validation", min(VALIDATION, 4 * batch)),
        data_collator=collate,
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    part = run / f"{name}.tmp"
    save_file({key: value.contiguous().clone() for key, value in model.state_dict().items()}, part)
    (run / f"{name}.json").write_text(json.dumps(trainer.state.log_history), encoding="utf-8")
    part.rename(result)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="mmspec train target janus-mini", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished checkpoint")
    parser.add_argument("--run", type=Path, default=Path("runs/janus-mini"), help="folder of logs and checkpoints")
    parser.add_argument("--picture-steps", type=int, default=1200, help="updates of the picture tokenizer")
    parser.add_argument("--picture-batch", type=int, default=12, help="pictures per update")
    parser.add_argument("--steps", type=int, default=2000, help="updates of the language model")
    parser.add_argument("--batch", type=int, default=12, help="pictures per update")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=160, help="of the language model, a multiple of 32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    options.run.mkdir(parents=True, exist_ok=True)
    set_seed(options.seed)
    processor = prepare_processor(options.run)
    model = JanusForConditionalGeneration(janus_config(processor.tokenizer, options.layers, options.width))
    quiet_residuals(model)
    tokenizer = Autoencoder(model.model.vqmodel)
    done = train_stage(
        options.run, "codes", tokenizer, options.picture_steps, options.picture_batch, 0.01, options.seed
    )
    tokenizer.load_state_dict(load_file(done))
    tokenizer.finish()
    painter = Painter(model, processor.tokenizer)
    done = train_stage(options.run, "draw", painter, options.steps, options.batch, 0.02, options.seed)
    painter.load_state_dict(load_file(done))
    export(painter, processor, options.out, options.run)


def quiet_residuals(model: JanusForConditionalGeneration) -> None:
    """Scales what each sublayer adds, so that 2 L of them do not drown the embeddings (GPT-2's initialisation)."""
    layers = model.model.language_model.layers
    with torch.no_grad():
        for layer in layers:
            layer.self_attn.o_proj.weight.mul_((2 * len(layers)) ** -0.5)
            layer.mlp.down_proj.weight.mul_((2 * len(layers)) ** -0.5)


if __name__ == "__main__":
    main()
