"""The figures of speech beside tau and S, as pure functions of samples and marks.

WER: errors over words, each summed first, with a 95 % interval over sentences; what a method adds to the WER of our AR
loop is paired by sentence. NFE: target forwards per second of sound, prefill included. LM-RTF: seconds of decoding per
second of sound; RTF: the whole streamed request, codec included. TTFA: seconds from the request to the first playable
chunk, median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmspec.benchmarks.figures import OURS, with_interval
from mmspec.benchmarks.records import Sample

Marks = dict[str, dict[str, float]]
"""method -> name -> value, of one sample; no values where nothing makes sound of what was said."""
Marked = tuple[Sample, Marks]


@dataclass(frozen=True)
class SpokenFigures:
    """One method at one temperature; None stands for what was not measured, and for what is per second of no sound.

    added, added_low, added_high: WER above that of our AR loop. other: WER against another sentence, the control.
    own_voice, other_voice: mean cosine with the voice that was asked for, and with another. mel: distance to the sound
    of our AR loop. length: seconds of sound over those of our AR loop. ended: share that ended by itself.
    """

    method: str
    temperature: float
    utterances: int
    audio_seconds: float | None
    wer: float | None
    wer_low: float | None
    wer_high: float | None
    added: float | None
    added_low: float | None
    added_high: float | None
    other: float | None
    own_voice: float | None
    other_voice: float | None
    mel: float | None
    length: float | None
    ended: float | None
    nfe: float | None
    lm_rtf: float | None
    rtf: float | None
    ttfa: float | None


def spoken_figures(found: Sequence[Marked]) -> list[SpokenFigures]:
    """The figures of every method at every temperature, in the order of the samples."""
    every = []
    for temperature in dict.fromkeys(sample.temperature for sample, _ in found):
        chosen = [each for each in found if each[0].temperature == temperature]
        every += [
            one_method(chosen, method) for method in dict.fromkeys(m for sample, _ in chosen for m in sample.runs)
        ]
    return every


def one_method(found: Sequence[Marked], method: str) -> SpokenFigures:
    """The figures of one method; all samples are of one temperature."""
    runs = [sample.runs[method] for sample, _ in found]
    sound, usual = seconds(found, method), seconds(found, OURS)
    wer, low, high = word_error_rate(found, method)
    added, added_low, added_high = (None, None, None) if method == OURS else added_errors(found, method)
    calls = sum(run.more.get("calls", 1 + run.verifications) for run in runs)  # of `generate`: its prefill is one, too
    requests = [run.more["request_seconds"] for run in runs if "request_seconds" in run.more]
    firsts = [run.more["first_audio_seconds"] for run in runs if "first_audio_seconds" in run.more]
    ended = [run.more["ended"] for run in runs if "ended" in run.more]

    def per_second(amount: float) -> float | None:
        return amount / sound if sound else None

    return SpokenFigures(
        method=method,
        temperature=found[0][0].temperature,
        utterances=len(runs),
        audio_seconds=sound,
        wer=wer,
        wer_low=low,
        wer_high=high,
        added=added,
        added_low=added_low,
        added_high=added_high,
        other=word_error_rate(found, method, "other_")[0],
        own_voice=mean(found, method, "own_voice"),
        other_voice=mean(found, method, "other_voice"),
        mel=mean(found, method, "mel_distance"),
        length=sound / usual if sound is not None and usual else None,
        ended=float(np.mean(ended)) if ended else None,
        nfe=per_second(calls),
        lm_rtf=per_second(sum(run.seconds for run in runs)),
        rtf=per_second(sum(requests)) if len(requests) == len(runs) else None,
        ttfa=float(np.median(firsts)) if firsts else None,
    )


def seconds(found: Sequence[Marked], method: str) -> float | None:
    """Seconds of sound of all samples; None where nothing makes sound."""
    each = [marks[method]["audio_seconds"] for _, marks in found if "audio_seconds" in marks.get(method, {})]
    return sum(each) if each else None


def mean(found: Sequence[Marked], method: str, name: str) -> float | None:
    """The mean of a mark over the samples that have it."""
    values = [marks[method][name] for _, marks in found if name in marks[method]]
    return float(np.mean(values)) if values else None


def word_error_rate(
    found: Sequence[Marked], method: str, which: str = ""
) -> tuple[float | None, float | None, float | None]:
    """WER and its interval. which: "" for the sentence itself, "other_" for the control."""
    if not all(f"{which}errors" in marks[method] for _, marks in found):
        return None, None, None
    counts = by_sentence(found, [(method, f"{which}errors"), (method, f"{which}words")])
    return with_interval(counts, lambda sums: sums[..., 0] / sums[..., 1])


def added_errors(found: Sequence[Marked], method: str) -> tuple[float | None, float | None, float | None]:
    """WER above that of our AR loop on the same sentences, and its interval; None where either was not judged."""
    if not all("errors" in marks.get(name, {}) for _, marks in found for name in (method, OURS)):
        return None, None, None
    counts = by_sentence(found, [(method, "errors"), (OURS, "errors"), (method, "words")])
    return with_interval(counts, lambda sums: (sums[..., 0] - sums[..., 1]) / sums[..., 2], least=-np.inf)


def by_sentence(found: Sequence[Marked], names: Sequence[tuple[str, str]]) -> np.ndarray:
    """[sentences, names]: marks summed over the repetitions of each sentence."""
    sums: dict[int, np.ndarray] = {}
    for sample, marks in found:
        values = np.array([marks[method][name] for method, name in names], dtype=float)
        sums[sample.question] = sums.get(sample.question, 0) + values
    return np.stack(list(sums.values()))
