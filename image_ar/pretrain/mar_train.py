"""Trains `mar-mini` with its VAE and its drafter, from nothing or on from a finished one: `mmspec train target mar-mini
--help`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from diffusers import AutoencoderKL
from torch import nn
from transformers import PreTrainedTokenizerFast, set_seed

from mmspec.checkpoints import find_model, read_model, replaceable
from mmspec.errors import MismatchError
from mmspec.image_ar.mar_model import Mar
from mmspec.image_ar.pretrain.mar_export import export
from mmspec.image_ar.pretrain.mar_learn import Compressor, Revealer, spread
from mmspec.image_ar.pretrain.mar_shapes import DRAFTER, TARGET, VAE, mar_config
from mmspec.image_ar.pretrain.mar_start import placed_by_waves
from mmspec.image_ar.pretrain.train import learnt_critic, settings, train_stage
from mmspec.image_ar.pretrain.world import learnt_words
from mmspec.pretrain.command import check_counts, parsed, run_settings, target_parser
from mmspec.safe_files import read_json
from mmspec.training.folders import claim, made_once
from mmspec.training.loop import made_anew, stage_arguments

Start = tuple[Mar, Mar, PreTrainedTokenizerFast]
"""Target, drafter and tokenizer."""


def read_start(source: str) -> Start:
    """A finished checkpoint to go on from: a bundled name, a folder, a hub id. Target and drafter, in float32.

    Raises: MismatchError: it is of another class, its condition are no captions, or it has no VAE. CheckpointError: its
        weights or those of its drafter are not there.
    """
    folder = find_model(source)
    config = read_json(folder / "config.json")
    if config.get("model_type") != Mar.config_class.model_type or not (
        config.get("captions") and config.get("vae_config")
    ):
        raise MismatchError(
            f"mar-mini cannot go on from {folder}, a {config.get('model_type')} checkpoint: it needs a MAR with a VAE "
            "whose condition are captions"
        )
    target, drafter = (read_model(Mar, part, "auto").float() for part in (folder, folder / "drafters" / "mar"))
    return target, drafter, PreTrainedTokenizerFast.from_pretrained(folder)


def train(run: Path, options: argparse.Namespace, start: Start | None) -> tuple[*Start, float]:
    """Every stage, from where the run is. Returns target, drafter, tokenizer and the share of noise in the latents."""

    def stage(name: str, module: nn.Module, steps: int) -> None:
        more = {**settings(steps), "seed": options.seed, "falling": steps // 2}
        train_stage(run, name, module, options.batch, stage_arguments(run / name, steps, options.batch, 0.01, **more))

    if start is None:
        tokenizer = made_once(run / "tokenizer", learnt_words, PreTrainedTokenizerFast)
        vae, critic = AutoencoderKL(**VAE), learnt_critic(run, options.critic_steps, options.seed)
        stage("vae", Compressor(vae, critic), options.picture_steps)
        scale = 1 / spread(vae)[0]
        large = mar_config(len(tokenizer), scale, shape(TARGET, options.layers), vae=True)
        small = mar_config(len(tokenizer), scale, DRAFTER, vae=False)
        target = made_anew("target", options.seed, lambda: placed_by_waves(Mar(large)))
        drafter = made_anew("drafter", options.seed, lambda: placed_by_waves(Mar(small)))
        target.vae.load_state_dict(vae.state_dict())  # type: ignore[union-attr]  # it was asked for
        behind = ""
    else:
        target, drafter, tokenizer = start
        vae = AutoencoderKL(**target.config.vae_config)
        vae.load_state_dict(target.vae.state_dict())  # type: ignore[union-attr]  # targets have one
        behind = f"-{options.seed}"
    stage(f"target{behind}", Revealer(target, vae, tokenizer), options.steps)
    stage(f"drafter{behind}", Revealer(drafter, vae, tokenizer, target), options.drafter_steps)
    return target.eval(), drafter.eval(), tokenizer, spread(vae)[1]


def shape(usual: dict[str, int], layers: int) -> dict[str, int]:
    """A shape with another number of layers each way."""
    return {**usual, "layers": layers}


def main(arguments: Sequence[str]) -> None:
    """Command line."""
    parser = target_parser("mar-mini", __doc__)
    parser.add_argument("--start", help="checkpoint to go on from: name, folder or hub id; its VAE and its shapes stay")
    parser.add_argument("--critic-steps", type=int, default=200, help="updates of the network that tells shapes apart")
    parser.add_argument("--picture-steps", type=int, default=2400, help="updates of the VAE")
    parser.add_argument("--steps", type=int, default=2600, help="updates of the target")
    parser.add_argument("--drafter-steps", type=int, default=900, help="updates of the drafter")
    parser.add_argument("--batch", type=int, default=16, help="pictures per update")
    parser.add_argument("--layers", type=int, default=TARGET["layers"], help="of the target's encoder, and its decoder")
    least = partial(check_counts, critic_steps=1, picture_steps=1, steps=1, drafter_steps=1, batch=1, layers=1)
    options = parsed(parser, arguments, least)
    replaceable(options.out)
    start = None if options.start is None else read_start(options.start)
    claim(options.run, run_settings(options))
    set_seed(options.seed)
    target, drafter, tokenizer, noise = train(options.run, options, start)
    export(target, drafter, tokenizer, noise, options.out, options.run, options.start)
