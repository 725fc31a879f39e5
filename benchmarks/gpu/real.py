"""Stage real: rounds of the bundled checkpoints with their trained drafters, plain and compiled, on held-out pictures.

Here tau and S are what they are. S is against the faster of our own loops without a draft, in the same run. How many
replies are the same is told, too. The parts of a round are those of further answers, in which the host waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import mmspec
from mmspec import Pipeline
from mmspec.benchmarks.gpu.bench import Bench, pipeline, sized
from mmspec.benchmarks.gpu.book import Row
from mmspec.benchmarks.gpu.clock import settle
from mmspec.benchmarks.gpu.waiting import Waiting
from mmspec.benchmarks.questions import Question, long_questions
from mmspec.checkpoints import bundled, drafters_of
from mmspec.loading import modality_of

INTRO = (
    "Bundled checkpoints, greedy, held-out pictures of the synthetic world; decoding only. S is against the faster of "
    "our own loops without a draft; equal says how many replies are those of the plain loop, uncompiled: below float32 "
    "other forwards round near-ties otherwise. The parts of a round are those of further answers, in which the host "
    "waits after drafting and no round starts early: their sum is more than a round takes."
)
SIZES = {False: (1,), True: (16, 32, 64)}
"""Nodes for which verification is compiled, without and with drafts."""
FIRST = ("none", "dspark")
"""What every checkpoint is measured with before the other drafters have their turn."""


def run(bench: Bench) -> None:
    """A record per checkpoint, drafter and kind of forward. A checkpoint is loaded, and its forwards are compiled, once
    for all drafters of a turn."""
    settle(bench.device)
    found = {name: folder for name, folder in bundled().items() if modality_of(name) == "vlm"}
    chosen = list(found.items())[: 1 if bench.small else None]
    asked = {name: cache(partial(questions, name, 1 if bench.small else 8)) for name, _ in chosen}
    for first in (True, False):
        for name, folder in chosen:
            drafters = ["none", *(list(drafters_of(folder))[:1] if bench.small else drafters_of(folder))]
            for kind, compiled in bench.kinds.items():
                keys = {f"{name}, {each}, {kind}": each for each in drafters if (each in FIRST) == first}
                if not bench.missing(*keys):
                    continue
                with bench.freed():
                    load = partial(pipeline, name, compiled=compiled, dtype=bench.settings.dtype, device=bench.device)
                    pipe = cache(load)
                    for key, drafter in keys.items():
                        bench.record(key, partial(measured, bench, name, pipe, drafter, compiled, asked[name]))
                    del pipe


def questions(name: str, number: int) -> list[Question]:
    """Questions with long answers, as the model's tokenizer counts them."""
    pipe = mmspec.load(name, "none", device="cpu")
    return long_questions(number, lambda text: len(pipe.target.tokenizer(text)["input_ids"]))


def measured(
    bench: Bench,
    name: str,
    loaded: Callable[[], Pipeline],
    drafter: str,
    compiled: bool,
    asked: Callable[[], list[Question]],
) -> dict[str, Any]:
    """Seconds, rounds and tokens over all questions, each answered once before; then the parts of rounds that wait.

    Args: loaded, asked: give the checkpoint and its questions, made when first asked for.
    """
    pipe = sized(loaded().with_drafter(drafter, "own"), SIZES[drafter != "none"])
    tokens = min(bench.settings.tokens, 96)
    waits = pipe.with_drafter(Waiting(pipe.drafter, bench.device), "own")
    whole, split = ([again(each, question, tokens) for question in asked()] for each in (pipe, waits))
    emitted = sum(out.stats.new_tokens - 1 for out in whole)
    return {
        "model": name,
        "drafter": drafter,
        "compiled": compiled,
        "tau": emitted / sum(len(out.stats.accept_lengths) for out in whole),
        "ms_per_token": 1000 * sum(out.stats.decode_seconds for out in whole) / emitted,
        **{f"{part}_ms": per_round(split, part) for part in ("draft", "verify", "other")},
        "replies": [out.token_ids for out in whole],
    }


def again(pipe: Pipeline, question: Question, tokens: int) -> Any:
    """The second one of two greedy answers: the first may compile."""
    for _ in range(2):
        out = pipe(question.image, question.prompt, max_new_tokens=tokens, temperature=0)
    return out


def per_round(answers: list[Any], part: str) -> float:
    """Milliseconds of a part of a round: the mean over all rounds of all answers."""
    rounds = sum(len(out.stats.accept_lengths) for out in answers)
    return 1000 * sum(getattr(out.stats, f"{part}_seconds") for out in answers) / rounds


def agreeing(some: list[list[int]], others: list[list[int]]) -> str:
    """How many replies are the same; records of other questions have none in common."""
    return f"{sum(one == other for one, other in zip(some, others, strict=False))} of {len(some)}"


def tables(records: dict[str, dict[str, Any]]) -> list[tuple[str, list[Row]]]:
    """tau, S, the parts of a round, and whether replies are those of the plain loop."""
    if not records:
        return []
    rows: list[Row] = [
        [
            "model, drafter, forward",
            "tau",
            "S",
            "S/tau",
            "ms per token",
            "tokens/s",
            "draft ms",
            "verify ms",
            "other ms",
            "equal",
        ]
    ]
    for key, record in records.items():
        plain = [each for each in records.values() if each["model"] == record["model"] and each["drafter"] == "none"]
        base = min((each["ms_per_token"] for each in plain), default=None)
        speedup = base / record["ms_per_token"] if base else None
        ms = record["ms_per_token"]
        shares = [record["tau"], speedup, speedup / record["tau"] if speedup else None, ms, 1000 / ms]
        right = next((each["replies"] for each in plain if not each["compiled"]), None)
        same = None if right is None else agreeing(right, record["replies"])
        rows.append([key, *shares, record["draft_ms"], record["verify_ms"], record["other_ms"], same])
    return [("Bundled checkpoints", rows)]
