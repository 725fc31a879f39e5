"""Trains the bundled speech checkpoint, new or on from a finished one.

Sentences about the synthetic world, spoken by espeak-ng; the codec; the model on its codes; the folder that ships. Each
step is kept, and the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mmspec.checkpoints import replaceable, weights_digest
from mmspec.errors import InputError
from mmspec.pretrain.command import check_counts, parsed, target_parser
from mmspec.pretrain.growth import deepened
from mmspec.safe_files import whole, write_whole
from mmspec.speech.codec import MelCodec, MelCodecConfig
from mmspec.speech.pretrain.codec_training import CodecLearner, mel_distance, scale
from mmspec.speech.pretrain.corpus import ByLength, Coded, Say, Utterance, coded, record, sound_digest
from mmspec.speech.pretrain.espeak import VOICES, require_espeak, say, usual
from mmspec.speech.pretrain.export import export
from mmspec.speech.pretrain.fitting import fit
from mmspec.speech.pretrain.start import Start, parents, read_start, take_over_sound, with_codes
from mmspec.speech.pretrain.valle_training import Size, ValleLoss, gauge, new_model
from mmspec.speech.processing import VOICE_S, SpeechProcessor
from mmspec.speech.text import make_tokenizer
from mmspec.speech.texts import sentences
from mmspec.speech.valle import Valle
from mmspec.training.folders import claim, made_once
from mmspec.training.loop import Epochs, stage_arguments, training_arguments

STACK = "speaker.model.layers"
COMPARED = 1000
"""Utterances from which old and new codes are compared."""
MOST_CODES = 32767
"""Codes are kept as int16."""
VOICE_LINE = "the red bar is taller than the blue one, and the green one is the tallest."


def train_codec(
    spoken: list[Utterance], config: MelCodecConfig, options: argparse.Namespace, start: Start | None = None
) -> MelCodec:
    """The codec, of this run if it was finished; that of the start, if it is not to be trained."""

    def make() -> MelCodec:
        if start is not None and start.keeps_codec:
            return start.codec
        torch.manual_seed(options.seed)
        codec = MelCodec(config)
        if start is None:
            scale(codec, spoken)
        else:
            take_over_sound(codec, start.codec)
        learner = CodecLearner(codec)
        steps = options.codec_steps
        arguments = training_arguments(
            options.run / "codec",
            steps=steps,
            batch=options.batch,
            rate=0.02,
            seed=options.seed,
            use_cpu=True,  # like all of this model's training: it is small, and its rows are ragged
        )
        fit(learner, learner.loss, Epochs(spoken, steps * options.batch, options.seed), arguments)
        return codec

    return made_once(options.run / "codec-done", make, MelCodec, dtype=torch.float32).eval()


def train_model(
    corpus: list[Coded],
    processor: SpeechProcessor,
    size: Size,
    options: argparse.Namespace,
    begin: Callable[[], Valle] | None = None,
) -> Valle:
    """The model, of this run if it was finished. begin: makes what it goes on from, with the same codes."""

    def stage(name: str, begin: Callable[[], Valle], steps: int, rate: float, falling: int) -> Valle:
        def make() -> Valle:
            model = begin()
            more = {"seed": options.seed, "bf16": options.bf16, "weight_decay": 0.01, "use_cpu": True}
            arguments = stage_arguments(options.run / name, steps, options.batch, rate, falling=falling, **more)
            samples = ByLength(corpus, steps * options.batch, options.seed, options.batch)
            fit(model, voices_of(model, corpus, processor), samples, arguments)
            return model

        return made_once(options.run / f"{name}-done", make, Valle, dtype=torch.float32)

    def deepened_anew() -> Valle:
        return deepened(
            stage("shallow", lambda: new_like(processor, size, options.seed), options.steps, 0.01, 0), size.deep, STACK
        )

    return stage("deep", begin or deepened_anew, options.deep_steps, 0.008, options.deep_steps).eval()


def new_like(processor: SpeechProcessor, size: Size, seed: int = 0) -> Valle:
    """A model with new weights for the codes of a processor."""
    config = processor.codec.config
    return new_model(processor.tokenizer, config.codebooks, config.codebook_size, size, seed)


def started(
    start: Start, processor: SpeechProcessor, spoken: list[Utterance], corpus: list[Coded], size: Size
) -> Valle:
    """The model of a start, for the codes of another codec. corpus: `spoken` in these codes."""
    if start.keeps_codec:
        return start.model
    heard = coded(start.codec, spoken[:COMPARED])
    pairs = ((was.codes, now.codes) for was, now in zip(heard, corpus, strict=False))
    origin = parents(pairs, start.codec.config.codebook_size, processor.codec.config.codebook_size)
    return with_codes(start.model, new_like(processor, size.deepest()), origin)


def voices_of(model: Valle, corpus: list[Coded], processor: SpeechProcessor) -> ValleLoss:
    """The loss, with voices from `corpus`."""
    frames = max(1, int(VOICE_S * processor.codec.frames_per_second))
    return ValleLoss(model, processor.tokenizer, corpus, frames)


def codes_of(codec: MelCodec, spoken: list[Utterance], file: Path) -> list[Coded]:
    """The corpus in codes, kept in a file; made anew where that is of other recordings or of another codec."""
    source = f"{weights_digest(codec)}/{sound_digest(spoken)}"
    if source_of(file) != source:
        found = coded(codec, spoken)
        with whole(file) as draft:
            codes = {f"{place:06d}": one.codes.to(torch.int16) for place, one in enumerate(found)}
            save_file(codes, draft, metadata={"source": source})
    codes = load_file(file)
    return [Coded(one.text, one.speaker, codes[f"{place:06d}"].long()) for place, one in enumerate(spoken)]


def source_of(file: Path) -> str | None:
    """Of which codec and recordings a file of codes is; None if there is none, or one that does not say."""
    if not file.exists():
        return None
    with safe_open(file, "pt") as kept:
        return (kept.metadata() or {}).get("source")


def run(
    options: argparse.Namespace, config: MelCodecConfig | None = None, size: Size | None = None, speak: Say = say
) -> None:
    """Everything, from texts to the finished folder. speak: who speaks."""
    config, size = config or MelCodecConfig(codebook_size=options.codes), size or Size()
    if not 1 <= options.codes <= MOST_CODES:
        raise InputError(f"a codebook has 1 to {MOST_CODES} codes, got {options.codes}")
    begun = 0 if options.start else 1
    check_counts(options, codec_steps=begun, steps=begun, deep_steps=1, batch=1)
    told = ("sentences", "codec_steps", "steps", "deep_steps", "batch", "seed", "bf16")
    settings = {name: getattr(options, name) for name in told}
    texts = {
        split: sentences(split, options.sentences if split == "train" else options.held_out)
        for split in ("train", "dev")
    }
    replaceable(options.out)
    start = (
        None if options.start is None else read_start(options.start, config, size, keep_codec=options.codec_steps == 0)
    )
    of_run = settings if start is None else {**settings, "steps": 0, "start": start.digest}
    claim(options.run, {**of_run, "codec": config.to_dict(), "size": vars(size)})
    write_texts(options.run / "texts", texts["train"])
    spoken = {
        split: record(lines, config.rate, options.run / f"speech-{split}", options.seed, speak)
        for split, lines in texts.items()
    }
    codec = train_codec(spoken["train"], config, options, start)
    corpora = {
        split: codes_of(codec, lines, options.run / f"codes-{split}.safetensors") for split, lines in spoken.items()
    }
    voices = {name: speak(VOICE_LINE, usual(name)) for name in VOICES}
    processor = SpeechProcessor(make_tokenizer(config.codebook_size), codec, voices)
    begin = None if start is None else partial(started, start, processor, spoken["train"], corpora["train"], size)
    model = train_model(corpora["train"], processor, size, options, begin)
    figures = gauge(model, voices_of(model, corpora["dev"], processor), corpora["dev"])
    figures["codec_mel_distance"] = mel_distance(codec, spoken["dev"])
    write_whole(options.run / "figures.json", json.dumps(figures, indent=2) + "\n")
    export(model, processor, options.out, figures, {**settings, "start": options.start})


def write_texts(folder: Path, lines: list[str]) -> None:
    """A folder of prompts from which drafters are trained: `mmspec train drafter --data FOLDER`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "texts.jsonl", "".join(json.dumps({"prompt": line}) + "\n" for line in lines))


def parser() -> argparse.ArgumentParser:
    """The options; the defaults take some hours on two CPU cores."""
    found = target_parser("valle-mini", __doc__, run="folder of speech, logs and checkpoints")
    found.add_argument("--start", help="checkpoint to go on from, name, folder or hub id; codes may be others")
    found.add_argument("--codes", type=int, default=1024, help="codes of each codebook")
    found.add_argument("--sentences", type=int, default=8000, help="spoken to learn from")
    found.add_argument("--held-out", type=int, default=200, help="spoken to measure on")
    found.add_argument("--codec-steps", type=int, default=2500, help="updates of the codec; 0 keeps that of --start")
    found.add_argument(
        "--steps", type=int, default=2000, help="updates of the shallow decoder, where nothing is started from"
    )
    found.add_argument("--deep-steps", type=int, default=800, help="updates of the deepened (or the started) decoder")
    found.add_argument("--batch", type=int, default=32, help="utterances per update")
    found.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True, help="bfloat16 autocast")
    return found


def main(arguments: Sequence[str]) -> None:
    """Command line."""
    options = parsed(parser(), arguments)
    require_espeak()
    run(options)
