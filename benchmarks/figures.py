"""The figures of a benchmark, as pure functions of its samples.

tau = tokens emitted per target verification, prefill excluded. S = autoregressive seconds per token / the method's,
ratio of summed time over summed tokens; autoregressive means the faster of our own loop and HF `generate`, so both must
have run on the same samples, or no S is given; our own loop alone where a run has no HF `generate` for its model.
Efficiency = S / tau. The first token belongs to the prefill, so n tokens are n - 1 decoding steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mmspec.benchmarks.records import Run, Sample
from mmspec.errors import InputError
from mmspec.intervals import bootstrap, speedups

OURS, HF, HF_ASSISTED, HF_LOOKUP = "none", "hf", "hf-assisted", "hf-prompt-lookup"
BASELINES = (OURS, HF)
STOCK = (HF, HF_ASSISTED, HF_LOOKUP)
"""The methods of transformers: above temperature 0 they have other draws."""
TOLERANCE = 1.02


@dataclass(frozen=True)
class Figures:
    """One method at one temperature. None stands for what cannot be said.

    speedup, speedup_low, speedup_high: decode-only S and its 95 % interval over prompts. end_to_end: S with prefill.
    bound: tau * t_AR / t_verify, the S of a method whose drafting and bookkeeping were free; above it S is an error of
        measurement (`suspicious`). histogram: share of rounds that accepted 0, 1, 2, ... drafted tokens.
    draft, verify, other: shares of the time of a round. equal_ours, equal_hf: share of replies with the tokens of our
        AR loop at the same seed, and of HF `generate` at temperature 0. exact: whether equal_ours must be 1.
    """

    method: str
    temperature: float
    replies: int
    new_tokens: int
    verifications: int
    tau: float | None
    ms_per_token: float | None
    baseline: str | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    end_to_end: float | None
    efficiency: float | None
    bound: float | None
    suspicious: bool
    histogram: tuple[float, ...]
    draft: float | None
    verify: float | None
    other: float | None
    equal_ours: float | None
    equal_hf: float | None
    lossless: bool
    exact: bool


def counted(samples: Sequence[Sample], min_tokens: int) -> list[Sample]:
    """The samples that count: our AR loop's reply (HF's where ours did not run) has at least `min_tokens` tokens."""
    return [sample for sample in samples if len(reply(sample)) >= min_tokens]


def long_enough(samples: Sequence[Sample], min_tokens: int) -> list[Sample]:
    """The samples that count. Raises: InputError if there is none."""
    kept = counted(samples, min_tokens)
    if not kept:
        raise InputError(
            f"{too_short(samples, min_tokens)}, so nothing was measured: lower it (what --out keeps counts then, with "
            "the same command), or take prompts or a model with long answers"
        )
    return kept


def too_short(samples: Sequence[Sample], min_tokens: int) -> str:
    """What is to be said of samples of which none counts."""
    longest = max(len(reply(sample)) for sample in samples)
    return f"none of {len(samples)} replies has min_tokens={min_tokens} tokens, the longest has {longest}"


def reply(sample: Sample) -> list[int]:
    """The tokens of autoregressive decoding, or of the first method if none is."""
    name = next((name for name in BASELINES if name in sample.runs), next(iter(sample.runs)))
    return sample.runs[name].tokens


def figures(samples: Sequence[Sample]) -> list[Figures]:
    """The figures of every method at every temperature, in the order of the samples."""
    temperatures = list(dict.fromkeys(sample.temperature for sample in samples))
    found = []
    for temperature in temperatures:
        chosen = [sample for sample in samples if sample.temperature == temperature]
        methods = dict.fromkeys(method for sample in chosen for method in sample.runs)
        found += [method_figures(chosen, method) for method in methods]
    return found


def method_figures(samples: Sequence[Sample], method: str) -> Figures:
    """The figures of one method; all samples are of one temperature."""
    runs = [sample.runs[method] for sample in samples]
    base = baseline(samples)
    rate = seconds_per_token(runs)
    tau = mean_emitted(runs)
    low = high = speedup = end_to_end = bound = None
    if base is not None and rate:
        speedup = ratio(samples, base, method, decode_cost)
        low, high = interval(samples, base, method)
        end_to_end = ratio(samples, base, method, whole_cost)
        bound = best_possible(samples, base, method)
    draft, verify, other = time_split(runs)
    return Figures(
        method=method,
        temperature=samples[0].temperature,
        replies=len(runs),
        new_tokens=sum(len(run.tokens) for run in runs),
        verifications=sum(run.verifications for run in runs),
        tau=tau,
        ms_per_token=1000 * rate if rate else None,
        baseline=base,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        end_to_end=end_to_end,
        efficiency=speedup / tau if speedup and tau else None,
        bound=bound,
        suspicious=bool(speedup and bound and speedup > TOLERANCE * bound),
        histogram=histogram(runs),
        draft=draft,
        verify=verify,
        other=other,
        equal_ours=None if method in STOCK and samples[0].temperature else equality(samples, method, OURS),
        equal_hf=None if samples[0].temperature else equality(samples, method, HF),
        lossless=all(run.lossless for run in runs),
        exact=all(run.exact for run in runs),
    )


def mean_emitted(runs: Sequence[Run]) -> float | None:
    """tau."""
    verifications = sum(run.verifications for run in runs)
    return sum(run.verified_tokens for run in runs) / verifications if verifications else None


def decode_cost(run: Run) -> tuple[float, int]:
    """Seconds and tokens after the first token."""
    return run.seconds - run.prefill_seconds, len(run.tokens) - 1


def whole_cost(run: Run) -> tuple[float, int]:
    """Seconds and tokens of the whole call."""
    return run.seconds, len(run.tokens)


def seconds_per_token(runs: Sequence[Run]) -> float | None:
    """Decode-only seconds per token; None where nothing was decoded after the first token."""
    seconds, tokens = np.array([decode_cost(run) for run in runs]).sum(0)
    return float(seconds / tokens) if tokens else None


def baseline(samples: Sequence[Sample]) -> str | None:
    """The faster of our AR loop and HF `generate`, or our loop where no sample has the other; None unless they ran on
    every sample."""
    names = BASELINES if any(HF in sample.runs for sample in samples) else (OURS,)
    if not all(name in sample.runs for sample in samples for name in names):
        return None
    rates = {name: seconds_per_token([sample.runs[name] for sample in samples]) for name in names}
    return min(names, key=lambda name: rates[name] or 0.0) if all(rates.values()) else None


def ratio(samples: Sequence[Sample], base: str, method: str, cost: Callable[[Run], tuple[float, int]]) -> float:
    """Seconds per token of `base` over those of `method`, each summed before the division."""
    return float(speedups(_costs(samples, base, method, cost).sum(0)))


def interval(samples: Sequence[Sample], base: str, method: str) -> tuple[float, float] | tuple[None, None]:
    """Bootstrap interval of the decode-only S, resampling prompts (repetitions of a prompt stay together)."""
    questions = sorted({sample.question for sample in samples})
    costs = np.stack(
        [
            _costs([sample for sample in samples if sample.question == question], base, method, decode_cost).sum(0)
            for question in questions
        ]
    )  # [questions, 4]
    return bootstrap(costs, speedups)


def with_interval(
    units: np.ndarray, value: Callable[[np.ndarray], np.ndarray], least: float = 0.0
) -> tuple[float, float | None, float | None]:
    """The value of the sum of all units, and its interval. See `mmspec.intervals.bootstrap`."""
    return float(value(units.sum(0))), *bootstrap(units, value, least)


def _costs(samples: Sequence[Sample], base: str, method: str, cost: Callable[[Run], tuple[float, int]]) -> np.ndarray:
    """[samples, 4]: seconds and tokens of the baseline, seconds and tokens of the method."""
    return np.array([[*cost(sample.runs[base]), *cost(sample.runs[method])] for sample in samples], dtype=float)


def best_possible(
    samples: Sequence[Sample], base: str, method: str, parts: Sequence[str] = ("verify",)
) -> float | None:
    """tau * t_AR / t_verify, or over the time of more parts of a round; None for methods that do not tell it."""
    runs = [sample.runs[method] for sample in samples]
    verifications = sum(run.verifications for run in runs)
    taken = sum(sum(getattr(run, f"{part}_seconds") for part in parts) for run in runs)
    rate, tau = seconds_per_token([sample.runs[base] for sample in samples]), mean_emitted(runs)
    return tau * rate * verifications / taken if taken and rate and tau else None


def histogram(runs: Sequence[Run]) -> tuple[float, ...]:
    """Share of rounds that accepted 0, 1, 2, ... drafted tokens; empty where rounds were not observed."""
    counts = Counter(length for run in runs for length in run.accept_lengths)
    total = counts.total()
    return tuple(counts[length] / total for length in range(max(counts) + 1)) if total else ()


def time_split(runs: Sequence[Run]) -> tuple[float | None, float | None, float | None]:
    """Shares of draft, verification and everything else in the time of a round."""
    draft, verify, other = (
        sum(getattr(run, f"{part}_seconds") for run in runs) for part in ("draft", "verify", "other")
    )
    total = draft + verify + other
    return (draft / total, verify / total, other / total) if total else (None, None, None)


def equality(samples: Sequence[Sample], method: str, other: str) -> float | None:
    """Share of replies whose tokens are the same; None where a reply of either is missing."""
    if method == other or not all(other in sample.runs for sample in samples):
        return None
    same = [sample.runs[method].tokens == sample.runs[other].tokens for sample in samples]
    return sum(same) / len(same)


@dataclass(frozen=True)
class Score:
    """Share of a group's answers that are right, in [0, 1], with its 95 % interval."""

    name: str
    questions: int
    accuracy: float
    low: float
    high: float


def score(name: str, rights: Sequence[bool], units: Sequence[int] | None = None) -> Score:
    """Accuracy of one group with its Wilson interval.

    Args: units: what each answer belongs to, a picture say. Answers that belong together tell less than as many
        independent ones: the interval is that of as many as have the variance between units.
    """
    share, z = sum(rights) / len(rights), 1.96
    n = independent(rights, units or range(len(rights)))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Score(name, len(rights), share, max(0.0, middle - half), min(1.0, middle + half))


def scores(answers: Iterable[tuple[str, bool, int]]) -> list[Score]:
    """The score of every group, by name.

    Args: answers: of each the group, whether it is right, and its unit as for `score`.
    """
    groups: dict[str, list[tuple[bool, int]]] = {}
    for name, right, unit in answers:
        groups.setdefault(name, []).append((right, unit))
    return [score(name, [right for right, _ in own], [unit for _, unit in own]) for name, own in sorted(groups.items())]


def independent(rights: Sequence[bool], units: Sequence[int]) -> float:
    """How many independent answers have a share as uncertain as these (Kish's effective sample size)."""
    n, share = len(rights), sum(rights) / len(rights)
    apart: dict[int, float] = {}
    for right, unit in zip(rights, units, strict=True):
        apart[unit] = apart.get(unit, 0.0) + right - share
    if len(apart) == n or share in (0, 1):  # all alike: each unit may have had one answer
        return len(apart)
    effect = sum(each * each for each in apart.values()) / (n * share * (1 - share))
    return n / max(1.0, effect)
