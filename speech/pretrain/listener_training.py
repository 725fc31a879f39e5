"""Trains the listener that judges synthetic speech.

It hears the recordings that the speech model learns from, then also what the codec makes of them, so that a codec's
artefacts are not counted as words that nobody understands. It never hears a model. The recordings are those of a run
of `mmspec train target valle-mini`; each step is kept, and the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmspec.checkpoints import replaceable, weights_digest, writing
from mmspec.errors import CheckpointError, MismatchError
from mmspec.pretrain.command import check_counts, parsed, target_parser
from mmspec.progress import progress
from mmspec.safe_files import read_json
from mmspec.speech.audio import Audio
from mmspec.speech.codec import MelCodec
from mmspec.speech.listener import Listener, ListenerConfig, symbols
from mmspec.speech.pretrain.corpus import Say, Utterance, marks_in, read_shard, record, sound_digest, write_shard
from mmspec.speech.pretrain.espeak import VOICES, say
from mmspec.speech.pretrain.fitting import fit
from mmspec.speech.texts import sentences
from mmspec.speech.wer import audible, word_errors
from mmspec.training.card import figure_list, millions, shown_place
from mmspec.training.folders import check_claim, claim, made_once
from mmspec.training.loop import Epochs, training_arguments

VOICE_WEIGHT = 0.2
HIDDEN_MELS, HIDDEN_FRAMES = 10, 20
"""Most bands, and frames, of a mel spectrogram that are hidden at a time (SpecAugment, arXiv 1904.08779)."""
SIZES = ("rate", "n_fft", "hop", "mels", "width", "blocks", "kernel", "voices", "manner")
"""What a listener has in common with the one that it began as."""

CARD = """# {name}

A recogniser of {millions:.1f} M parameters that judges synthetic speech (`mmspec.speech.listener`): log-mel frames,
convolutions, letters by CTC, and an embedding of the voice. It learnt from {sentences} sentences about the synthetic
world, spoken by espeak-ng, and from {resynthesised} of them after a pass through the codec; it never heard a model
speak. Other words, languages and real voices are beyond it.

{begun}{steps} updates on recordings, {codec_steps} more on both, batches of {batch}, seed {seed}; behind a run of its
speech model:

    mmspec train target valle-listener --out FOLDER --steps {steps} --codec-steps {codec_steps} \\
        --resynthesised {resynthesised} --sentences {sentences} --batch {batch} \\
        --rate {rate:g} --seed {seed}{start}

## Measured on {held_out} held-out sentences

{figures}
"""


class ListenerLoss:
    """CTC per letter, and `VOICE_WEIGHT` times the cross-entropy of the speaker."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def __call__(self, position: Tensor, rows: list[Utterance]) -> Tensor:
        """A scalar. position: [B] of the samples in the run, the source of all that is random here."""
        mel, counts = self.listener.mel([row.samples for row in rows])
        laws, lengths, manner = self.listener(hidden(mel, random.Random(f"hide/{int(position[0])}")), counts)
        texts = [torch.tensor(symbols(audible(row.text))) for row in rows]
        sizes = torch.tensor([len(text) for text in texts])
        ctc = F.ctc_loss(
            laws.transpose(0, 1), pad_sequence(texts, batch_first=True), lengths.cpu(), sizes, zero_infinity=True
        )
        speakers = torch.tensor([row.speaker for row in rows], device=manner.device)
        return ctc + VOICE_WEIGHT * F.cross_entropy(10 * self.listener.voices(manner), speakers)


def hidden(mel: Tensor, rng: random.Random) -> Tensor:
    """Log-mel frames [B, mels, T] with some bands and two stretches of time blanked."""
    mel = mel.clone()
    first = rng.randrange(mel.shape[1])
    mel[:, first : first + rng.randrange(HIDDEN_MELS + 1)] = 0
    for _ in range(2):
        start = rng.randrange(mel.shape[2])
        mel[:, :, start : start + rng.randrange(HIDDEN_FRAMES + 1)] = 0
    return mel


@torch.no_grad()
def resynthesised(codec: MelCodec, spoken: list[Utterance], file: Path) -> list[Utterance]:
    """The same utterances as the codec gives them back, kept in a file; made anew where that is of other ones."""
    marks = [sound_digest([one]) for one in spoken]
    if marks_in(file) != marks:
        bar = progress(spoken, desc="resynthesis", unit="utterance")
        write_shard(file, [codec.decode(codec.encode(one.samples[None]))[0].numpy() for one in bar], marks)
    pcm, ends = read_shard(file)
    places = zip(spoken, [0, *ends[:-1]], ends, strict=True)
    return [Utterance(one.text, one.speaker, pcm[begin:end]) for one, begin, end in places]


def mixed(spoken: list[Utterance], again: list[Utterance]) -> list[Utterance]:
    """Every recording, each followed by a resynthesised one; of these there are fewer, so they come again."""
    return [row for one, other in zip(spoken, cycle(again), strict=False) for row in (one, other)]


def errors(listener: Listener, spoken: list[Utterance], shift: int = 0) -> float:
    """WER of utterances against their own texts, or (the control) those of others, `shift` places further on."""
    wrong = total = 0
    for place, one in enumerate(spoken):
        text = audible(spoken[(place + shift) % len(spoken)].text)
        few, count = word_errors(text, listener.hear(Audio(one.samples.numpy(), listener.config.rate)))
        wrong, total = wrong + few, total + count
    return wrong / total


@torch.no_grad()
def right_voices(listener: Listener, spoken: list[Utterance]) -> float:
    """Share of utterances whose speaker is recognised."""
    guesses = [int(listener.voices(listener.manner_of(Audio(s.samples.numpy(), listener.config.rate))).argmax())
               for s in spoken]  # fmt: skip
    return sum(guess == one.speaker for guess, one in zip(guesses, spoken, strict=True)) / len(spoken)


def run(options: argparse.Namespace, config: ListenerConfig | None = None, speak: Say = say) -> None:
    """Everything, from recordings to the finished folder. speak: who speaks what is not recorded yet."""
    config = config or ListenerConfig(voices=len(VOICES))
    check_counts(options, steps=0 if options.start else 1, codec_steps=1, batch=1, resynthesised=1)
    home = options.work or options.run / "listener"
    told = ("sentences", "held_out", "resynthesised", "steps", "codec_steps", "batch", "rate", "seed")
    start = None if options.start is None else begun(options.start, config)
    counts = {"train": options.sentences, "dev": options.held_out}
    texts = {split: sentences(split, count) for split, count in counts.items()}
    replaceable(options.out)
    seed = seed_of(options.run, options.seed)
    of_start = {} if start is None else {"start": weights_digest(start)}
    settings = {name: getattr(options, name) for name in told} | of_start | {"config": config.to_dict()}
    check_claim(home, settings)
    spoken = {
        split: record(lines, config.rate, options.run / f"speech-{split}", seed, speak)
        for split, lines in texts.items()
    }
    claim(home, settings)
    torch.manual_seed(options.seed)
    listener = Listener(config) if start is None else start
    if options.steps:
        plain = partial(learn, listener, spoken["train"], home / "plain", options, options.steps, options.rate)
        listener = made_once(home / "plain-done", plain, Listener, dtype=torch.float32)
    codec = codec_in(options.codec or options.run / "codec-done")
    behind = home / f"codec-{weights_digest(codec)}"
    behind.mkdir(exist_ok=True)
    again = resynthesised(codec, spoken["train"][: options.resynthesised], behind / "train.npz")
    learn(listener, mixed(spoken["train"], again), behind / "mixed", options, options.codec_steps, options.rate / 2)
    listener.eval()
    heard = resynthesised(codec, spoken["dev"], behind / "dev.npz")
    listener.figures = {
        "wer_of_recordings": errors(listener, spoken["dev"]),
        "wer_of_codec": errors(listener, heard),
        "wer_of_wrong_texts": errors(listener, heard, shift=1),
        "right_voices": right_voices(listener, spoken["dev"]),
    }
    export(listener, options)


def seed_of(folder: Path, seed: int) -> int:
    """The seed of the recordings of a run; where there are none yet, `seed`, which also orders the training."""
    settings = folder / "speech-train" / "settings.json"
    return int(read_json(settings).get("seed", seed)) if settings.exists() else seed


def begun(folder: Path, config: ListenerConfig) -> Listener:
    """A finished listener to go on from. Raises: CheckpointError: there is none. MismatchError: it has other sizes."""
    found = Listener.load(folder).float()
    here, there = config.to_dict(), found.config.to_dict()
    differing = [name for name in SIZES if here[name] != there[name]]
    if differing:
        raise MismatchError(f"valle-listener cannot go on from {folder}, which differs in {', '.join(differing)}")
    return found


def learn(
    listener: Listener, samples: list[Utterance], folder: Path, options: argparse.Namespace, steps: int, rate: float
) -> Listener:
    """Train in place on `samples`, from where `folder` left off; returns it."""
    arguments = training_arguments(folder, steps=steps, batch=options.batch, rate=rate, seed=options.seed, use_cpu=True)
    fit(listener, ListenerLoss(listener), Epochs(samples, steps * options.batch, options.seed), arguments)
    return listener


def codec_in(folder: Path) -> MelCodec:
    """The codec in a folder. Raises: CheckpointError: there is none."""
    if not (folder / "config.json").exists():
        raise CheckpointError(
            f"{folder} holds no codec: train one first (mmspec train target valle-mini), or name its folder by --codec"
        )
    return MelCodec.from_pretrained(folder, dtype=torch.float32).eval()


def export(listener: Listener, options: argparse.Namespace) -> None:
    """Write the finished folder, in bfloat16."""
    card = CARD.format(
        name=options.out.name,
        millions=millions(listener),
        figures=figure_list(listener.figures),
        begun="It began with the weights of another listener. " if options.start else "",
        **vars(options) | {"start": f" --start {shown_place(str(options.start))}" if options.start else ""},
    )
    with writing(options.out) as folder:
        listener.to(torch.bfloat16).write(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """The options; the defaults take about twenty minutes on two CPU cores."""
    found = target_parser("valle-listener", __doc__, made="listener", run="run folder of the speech model")
    found.set_defaults(run=Path("runs/valle-mini"))
    found.add_argument("--work", type=Path, help="folder of logs and checkpoints; RUN/listener unless given")
    found.add_argument("--codec", type=Path, help="folder of the codec; RUN/codec-done unless given")
    found.add_argument("--start", type=Path, help="folder of a listener to go on from; --steps may be 0 then")
    found.add_argument("--sentences", type=int, default=7000, help="of the run: those that it learns from")
    found.add_argument("--held-out", type=int, default=200, help="of the run: those to measure on")
    found.add_argument("--resynthesised", type=int, default=3000, help="sentences that are also heard from the codec")
    found.add_argument("--steps", type=int, default=2400, help="updates on recordings")
    found.add_argument("--codec-steps", type=int, default=800, help="updates on recordings and resynthesis")
    found.add_argument("--batch", type=int, default=16, help="utterances per update")
    found.add_argument("--rate", type=float, default=0.02, help="peak learning rate of matrices")
    return found


def main(arguments: Sequence[str]) -> None:
    """Command line."""
    run(parsed(parser(), arguments))
