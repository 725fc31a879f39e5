"""Answers to train on, as token ids, most often the target's own: a drafter should learn what the target says.

Regeneration is the expensive part of training a drafter, so it is kept in shards: one file per batch of questions,
written whole or not at all. A run that was killed goes on with the first shard that is missing; other drafters for the
same target reuse the shards. Row i is drawn with the seed `seed + i`; which rows are sampled depends on the size of a
shard, which is smaller where there are few questions (`_size`). A question that cannot be asked, of a damaged picture,
say, is an empty answer with a fault: a few end no run.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from mmspec.base_target import unpad
from mmspec.errors import CheckpointError, InputError
from mmspec.progress import progress
from mmspec.safe_files import read_json, write_whole
from mmspec.spread import Here, Spread
from mmspec.training.asking import NAMED, check_faults, prepare, prepare_askable, readable, room_behind
from mmspec.training.data import Chosen
from mmspec.training.folders import SETTINGS, claim
from mmspec.training.processes import group, leader_first, own_part, wait
from mmspec.training.questions import Question, Questions, place_of
from mmspec.training.written import own_answer

logger = logging.getLogger(__name__)

AUTHORS = ("target", "data")
PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
"""The target's own law, whatever sampling defaults its checkpoint has."""
_number = cache(int)
"""One object for the same digits: the ids of all answers lie in memory, where each int of its own takes 28 bytes."""


def served(target: Any) -> bool:
    """Whether a target is always sampled as its checkpoint says, since these settings make what is worth seeing and
    hearing; those of words are each user's own."""
    return target.makes != "text"


def law_of(target: Any, options: AnswerOptions) -> dict[str, Any]:
    """What answers depend on beside their options: how a `served` target is sampled, if it is."""
    if options.author == "target" and options.sampled and served(target):
        return {"sampling": asdict(target.sampling({}))}
    return {}


def manner(target: Any, temperature: float) -> dict[str, Any]:
    """The sampling options of an answer to learn from. temperature: 0 is greedy; of a `served` target it says only
    whether to sample."""
    if temperature and served(target):
        return {"temperature": target.sampling({}).temperature or temperature}
    return {"temperature": temperature, **PLAIN}


@dataclass(frozen=True)
class Answered:
    """One answered question.

    index: of the question in its source. prompt, answer: token ids; the prompt's image slots are in place.
    temperature: with which the target spoke, 1 also where it was sampled as its checkpoint says; None if the answer is
        the data's own. fault: why the question could not be asked or answered; then `answer` is empty.
    """

    index: int
    prompt: list[int]
    answer: list[int]
    temperature: float | None
    fault: str = ""

    @property
    def ids(self) -> list[int]:
        """The whole sequence."""
        return self.prompt + self.answer

    @property
    def start(self) -> int:
        """Where the answer begins."""
        return len(self.prompt)


@dataclass(frozen=True)
class AnswerOptions:
    """How answers are made.

    author: "target" regenerates them, "data" takes those of the data. sampled: share of the batches that the target
    answers at temperature 1, or as its checkpoint samples (the others greedily). max_new_tokens: where an answer is
    cut. batch: questions per shard, fewer where they would make too few shards for that share.
    """

    author: str = "target"
    sampled: float = 0.5
    max_new_tokens: int = 160
    batch: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if self.author not in AUTHORS:
            raise InputError(f"answers={self.author!r} is not valid: 'target' (regenerated) or 'data' (the data's own)")
        if not 0 <= self.sampled <= 1:
            raise InputError(f"sampled share {self.sampled!r} is not valid: it must lie in [0, 1]")
        if self.max_new_tokens < 4 or self.batch < 1:
            raise InputError("answers need max_new_tokens >= 4 and a batch of at least 1")


def begun_with(folder: Path) -> str:
    """The name of the questions that the shards of a folder answer, "" if there are none."""
    if not any(folder.glob("*.jsonl")):
        return ""
    try:
        return str(read_json(folder / SETTINGS).get("questions", ""))
    except CheckpointError:
        return ""


def collect(
    pipe: Any,
    questions: Questions,
    options: AnswerOptions,
    folder: Path,
    fingerprint: Any,
    spread: Spread | None = None,
) -> list[Answered]:
    """All questions answered, from the shards of `folder` where they exist.

    Args: pipe: a `mmspec.Pipeline` of the target without a drafter. fingerprint: what identifies the target.
        spread: where the missing shards are made, by default here; its replicas are such pipelines.
    Several processes share the shards that are missing; all of them get all answers. Questions that cannot be asked and
    those that fill the target's context are left out.
    Raises: MismatchError: the folder holds answers to other questions, by another target or made otherwise.
        InputError: too many questions cannot be asked, or none leaves room for an answer.
    """
    with leader_first():
        # an earlier call that made nothing binds nobody to its data
        if group().is_main_process and not any(folder.glob("*.jsonl")):
            (folder / SETTINGS).unlink(missing_ok=True)
        law = law_of(pipe.target, options)
        claim(folder, {"questions": questions.name, "target": fingerprint, **asdict(options), **law})
    options = replace(options, batch=_size(options, questions))
    shards = math.ceil(len(questions) / options.batch)
    files = [folder / f"{shard:05d}.jsonl" for shard in range(shards)]
    missing = [shard for shard in range(shards) if not _whole(files[shard], _indices(shard, options, questions))]
    wait()  # all have looked before the first of them writes, so all share out the same list
    mine = own_part(missing)
    batches = (_batch(shard, options, questions) for shard in mine)
    made = (spread or Here(pipe)).map(partial(_answering, options), batches)
    told, before = f"answers by the {options.author}", shards - len(missing)
    failed: list[Answered] = []
    for place, rows in progress(made, desc=told, unit="batch", total=before + len(mine), initial=before):
        known = len(failed)
        failed += [row for row in rows if row.fault]
        _check_failed(failed, questions, files, options)
        for row in failed[known:NAMED]:
            logger.warning("question %d is left out: %s", row.index, row.fault)
        write_whole(files[mine[place]], "".join(json.dumps(asdict(row)) + "\n" for row in rows))
    wait()
    answered = [row for file in files for row in _read(file) or ()]
    wait()  # all have read what the next line may remove
    _check_failed([row for row in answered if row.fault], questions, files, options)
    return _usable(answered, questions, pipe.target)


def _check_failed(failed: list[Answered], questions: Questions, files: list[Path], options: AnswerOptions) -> None:
    """`check_faults`, which where it refuses takes away the shards with faults: once their cause is mended (a disk that
    was not there), the same command asks these questions again."""
    try:
        check_faults([row.fault for row in failed], len(questions), questions.name)
    except InputError:
        for row in failed:
            files[row.index // options.batch].unlink(missing_ok=True)
        raise


def _usable(answered: list[Answered], questions: Questions, target: Any) -> list[Answered]:
    """The answers with something to draft, and without an image slot that has no image (a model in trouble may emit
    one). Says what was left out. Raises: InputError: no prompt fits."""
    asked = [row for row in answered if not row.fault]
    context = target.decoder.max_length
    long = sum(len(row.prompt) >= context for row in asked)
    if long and long == len(asked):
        shortest = min(len(row.prompt) for row in asked)
        raise InputError(
            f"no prompt of {place_of(questions.name)} fits: the shortest has {shortest} tokens, the model's context is "
            f"{context}"
        )
    if group().is_main_process:
        failed, count = len(answered) - len(asked), len(answered)
        if failed:
            logger.warning("%d of %d questions cannot be asked: left out", failed, count)
        if long:
            logger.warning("%d of %d prompts fill the model's context of %d tokens: left out", long, count, context)
    return [row for row in asked if len(row.answer) > 2 and not set(row.answer) & set(target.placeholders)]


def _size(options: AnswerOptions, questions: Questions) -> int:
    """Questions per shard, so few that the share of sampled ones nearly comes out, and is neither none nor all.

    It hangs on the whole source, and whole batches are whole shards: a run that reads more goes on with what is there.
    """
    mixed = options.sampled * (1 - options.sampled)
    if options.author == "data" or not mixed:
        return options.batch
    whole = questions.source if isinstance(questions, Chosen) else questions
    most = max(1, len(whole) * mixed)
    return max(size for size in range(1, options.batch + 1) if options.batch % size == 0 and size <= most)


def _temperature(shard: int, options: AnswerOptions) -> float | None:
    if options.author == "data":
        return None
    return float(
        math.floor((shard + 1) * options.sampled) - math.floor(shard * options.sampled)
    )  # evenly mixed 0s and 1s


def _indices(shard: int, options: AnswerOptions, questions: Questions) -> range:
    return range(shard * options.batch, min((shard + 1) * options.batch, len(questions)))


def _whole(file: Path, indices: range) -> bool:
    """Whether a shard holds the answers to these questions."""
    rows = _read(file)
    return rows is not None and [row.index for row in rows] == list(indices)


@dataclass(frozen=True)
class _Batch:
    """Questions of a shard by their numbers, why the others of it cannot be read, and how it is answered."""

    asked: dict[int, Question]
    faults: dict[int, str]
    temperature: float | None


def _batch(shard: int, options: AnswerOptions, questions: Questions) -> _Batch:
    asked, faults = readable(questions, _indices(shard, options, questions))
    return _Batch(asked, faults, _temperature(shard, options))


def _answering(options: AnswerOptions, pipe: Any) -> Callable[[_Batch], list[Answered]]:
    """The function that answers a batch, on this pipeline."""
    return lambda batch: _answer(pipe, batch, options)


def _answer(pipe: Any, batch: _Batch, options: AnswerOptions) -> list[Answered]:
    inputs, unasked = prepare_askable(pipe, batch.asked)
    faults = {**batch.faults, **unasked}
    indices = sorted({*batch.asked, *batch.faults})
    asked = {index: question for index, question in batch.asked.items() if index not in unasked}
    prompts = dict(zip(asked, unpad(inputs) if asked else [], strict=True))
    room = dict(zip(asked, room_behind(pipe, list(prompts.values())), strict=True))
    spoken: dict[int, list[int]] = {}
    if batch.temperature is None:
        for index, question in asked.items():
            try:
                spoken[index] = own_answer(pipe, question)[: min(options.max_new_tokens, room[index])]
            except InputError as error:
                faults[index] = str(error)
    elif any(room.values()):
        fitting = {index: question for index, question in asked.items() if room[index]}
        if len(fitting) < len(indices):
            # another question keeps the place of one that is not answered, for the seeds of those behind it
            other = next(iter(fitting.values()))
            inputs = prepare(pipe, [fitting.get(index, other) for index in indices])
        said = pipe.generate(
            **inputs,
            max_new_tokens=options.max_new_tokens,
            **manner(pipe.target, batch.temperature),
            seed=options.seed + indices[0],
        )
        made = said if isinstance(said, list) else [said]
        spoken = {index: one.token_ids for index, one in zip(indices, made, strict=True) if index in fitting}
    return [
        Answered(index, prompts.get(index, []), spoken.get(index, []), batch.temperature, faults.get(index, ""))
        for index in indices
    ]


def _read(file: Path) -> list[Answered] | None:
    """The rows of a shard; None if it does not exist or is damaged."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        return [Answered(**json.loads(line, parse_int=_number)) for line in lines]
    except (OSError, ValueError, TypeError):
        return None
