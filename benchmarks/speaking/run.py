"""The speech run: every method says the same sentences, streamed as a listener would hear them, and is judged.

A method's seconds are those of decoding: prefill, drafting, verification, bookkeeping. What the codec takes is counted
apart, since it is the same for all. Chunks of sound are made between rounds, so the clocks of the two do not mix.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from mmspec import Pipeline
from mmspec.benchmarks.figures import HF, OURS
from mmspec.benchmarks.methods import PLAIN, HuggingFace, Method, exact
from mmspec.benchmarks.records import Run, Sample, Store, sample_of
from mmspec.benchmarks.rows import row
from mmspec.benchmarks.speaking.marking import Sentence, Sounds, marks, voice_of
from mmspec.benchmarks.speed import SpeedSettings, run
from mmspec.benchmarks.weights import weights_of_rows
from mmspec.errors import InputError
from mmspec.registry import resolve
from mmspec.safe_files import read_lines

WARM_UP = "the red bar is the tallest."

CURVE = {
    "tolerance": ("vadusa", (2, 4, 8, 16)),
    "top-k": ("vadusa", (2, 5, 20)),
    "max-ratio": ("vadusa", (0.9, 0.7, 0.5)),
    "beta": ("eagle2:shape=7", (0.1, 0.2, 0.4, 0.6)),
    "pcg": ("eagle2:shape=7", (0.004, 0.01, 0.02, 0.05)),
}
"""Every tolerant rule with a knob, a drafter that suits it (pcg takes chains alone), and settings ever further from the
exact rule."""


def curve_rows() -> tuple[str, ...]:
    """The rows of a tolerance-quality curve: the drafters with the exact rule, where the lines begin, and the rest."""
    exact = dict.fromkeys(drafter for drafter, _ in CURVE.values())
    return (*exact, *(f"{drafter}@{rule}={knob:g}" for rule, (drafter, knobs) in CURVE.items() for knob in knobs))


@dataclass(frozen=True)
class SpeechSettings:
    """How speech is measured. speed: its `drafters` are rows (`mmspec.benchmarks.rows`), its `questions` sentences.

    texts: a file of sentences, one a line; held-out ones of the synthetic world by default. listener: folder of the
    listener; by default the one beside the model.
    """

    speed: SpeedSettings
    texts: Path | None = None
    listener: Path | None = None


@dataclass
class Spoken:
    """Our decode loop with one drafter and one rule, streaming. sounds: keeps the sounds that it makes."""

    pipe: Pipeline
    sounds: Sounds

    def __call__(self, inputs: Any, max_new_tokens: int, temperature: float, seed: int) -> Run:
        """See `Method`; `inputs` is a `Sentence`."""
        start = time.perf_counter()
        told: Any = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
        stream = self.pipe.stream(None, inputs.prompt, voice=inputs.voice, **told)
        prepared = time.perf_counter() - start
        for _ in stream:
            pass
        streamed = time.perf_counter() - start
        reply = stream.finish()
        first = stream.first_audio_seconds
        if reply.audio is not None:
            self.sounds.keep(inputs, reply.token_ids, reply.audio)
        more = {"calls": reply.stats.target_calls, "request_seconds": streamed, "ended": float(reply.finish == "stop")}
        if first is not None:
            more["first_audio_seconds"] = prepared + first
        return Run.of(reply.stats, tokens=list(reply.token_ids), exact=exact(self.pipe, temperature), more=more)


@dataclass
class Stock:
    """`generate` of transformers on the same codes, with the warpers that it knows (it has no repetition-aware one)."""

    pipe: Pipeline
    inner: HuggingFace

    def __call__(self, inputs: Any, max_new_tokens: int, temperature: float, seed: int) -> Run:
        """See `Method`; `inputs` is a `Sentence`."""
        made = self.pipe.prepare(None, inputs.prompt, inputs.voice)
        prompt = {name: value for name, value in made.items() if name in ("input_ids", "attention_mask")}
        return self.inner(prompt, max_new_tokens, temperature, seed)


def speech_methods(pipe: Pipeline, rows: tuple[str, ...], sounds: Sounds) -> dict[str, Method]:
    """The methods of a run; `generate` of transformers stands beside our AR loop where the model is a language model
    with one stream of codes."""
    found: dict[str, Method] = {}
    for text in rows:
        found[text] = Spoken(row(pipe, text), sounds)
        if text == OURS and getattr(pipe.target, "codebooks", 1) == 1:
            config = pipe.target.model.generation_config
            own = {name: getattr(config, name, None) for name in (*PLAIN, "min_p")}
            warpers = PLAIN | {name: value for name, value in own.items() if value}
            found[HF] = Stock(pipe, HuggingFace(pipe.target.model, warpers=warpers, ends=pipe.target.ends()))
    return found


def judge_of(pipe: Pipeline, settings: SpeechSettings) -> Any:
    """The judge of the run, None if there is no listener. Raises: CheckpointError: the one named is none."""
    kind = cast("Any", resolve("judges", "listener", "speech"))
    return kind.find(pipe.folder, settings.listener)


def script(pipe: Pipeline, settings: SpeechSettings, judge: Any) -> list[Sentence]:
    """What is said in a run: voices take turns; the control of a sentence is the next one, by the next voice, and that
    of the last the first. A file of one sentence has no other.

    Raises: InputError: a model that does not speak; a sentence that it cannot say, or that the judge cannot judge.
    """
    if pipe.target.makes != "sound":
        elsewhere = "" if pipe.target.modality == "speech" else ": mmspec bench measures it without 'speech'"
        raise InputError(f"{type(pipe.target.model).__name__} does not speak{elsewhere}")
    kind = cast("Any", resolve("judges", "listener", "speech"))
    there = 2 if settings.texts is None else len(read_lines(settings.texts))
    texts = kind.texts(max(settings.speed.questions, min(there, 2)), settings.texts, partial(check, pipe, judge))
    voices = list(getattr(pipe.processor, "voices", {})) or [None]
    others: list[str | None] = [*texts[1:], texts[0]] if len(texts) > 1 else [None]
    count = len(voices)
    return [
        Sentence(text, voices[i % count], others[i], voices[(i + 1) % count] if count > 1 else None)
        for i, text in enumerate(texts[: settings.speed.questions])
    ]


def check(pipe: Pipeline, judge: Any, text: str) -> None:
    """Raise InputError for a sentence that the model cannot say, as far as it knows, or that the judge, if there is
    one, cannot judge."""
    if hasattr(pipe.target, "written"):
        pipe.target.written(text)
    if judge is not None:
        judge.check(text)


def run_speech(
    pipe: Pipeline, settings: SpeechSettings, folder: Path, said: list[Sentence], judge: Any
) -> list[tuple[Sample, dict[str, Any]]]:
    """Say and judge what the folder does not hold yet; returns samples with their marks, method -> name -> value.

    Args: pipe: a pipeline on the target, without a drafter. folder: where samples are kept. said: the `script`. judge:
        see `judge_of`.
    """
    sounds, voice = Sounds(pipe), cache(partial(voice_of, pipe, judge))
    told = "\n".join(f"{sentence.voice}: {sentence.prompt}" for sentence in said)
    kept = {"run": "speech", "sentences": sha256(told.encode()).hexdigest(), **asdict(settings.speed)}
    kept |= weights_of_rows(pipe, settings.speed.drafters)
    kept["listener"] = None if judge is None else judge.own_errors
    store = Store(folder, kept)
    run(
        pipe,
        settings.speed,
        store,
        lambda: said,
        partial(speech_methods, rows=settings.speed.drafters, sounds=sounds),
        warm=lambda: Sentence(WARM_UP, said[0].voice, WARM_UP, None),
        note=lambda sample: {"marks": marks(sounds, said[sample.question], sample, judge, voice)},
        prepare=lambda _, sentence: sentence,
    )
    return [(sample_of(record), record["marks"]) for record in store.load()]


def requests(said: list[Sentence], settings: SpeedSettings, temperature: float, most: int) -> list[dict[str, Any]]:
    """The first sentences as the arguments of calls."""
    return [
        {
            "prompt": sentence.prompt,
            "voice": sentence.voice,
            "temperature": temperature,
            "seed": settings.seed,
            "max_new_tokens": settings.max_new_tokens,
        }
        for sentence in said[:most]
    ]
