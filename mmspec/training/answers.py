"""Answers to train on, as token ids, most often the target's own: a drafter should learn what the target says.

Regeneration is the expensive part of training a drafter, so it is kept in shards: one file per batch of questions,
written whole or not at all. A run that was killed goes on with the first shard that is missing; other drafters for the
same target reuse the shards. Row i is drawn with the seed `seed + i`; which rows are sampled depends on the size of a
shard.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mmspec.errors import InputError, shorten
from mmspec.options import sampling_for
from mmspec.progress import progress
from mmspec.safe_files import write_whole
from mmspec.sampling import Sampling
from mmspec.spread import Here, Spread
from mmspec.targets import unpad
from mmspec.training.folders import claim
from mmspec.training.processes import group, leader_first, wait
from mmspec.training.questions import Question, Questions

logger = logging.getLogger(__name__)

AUTHORS = ("target", "data")
PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
"""The target's own law, whatever sampling defaults its checkpoint has."""


def served(target: Any) -> bool:
    """Whether a target is always sampled as its checkpoint says, since these settings make what is worth seeing and
    hearing; those of words are each user's own."""
    return target.makes != "text"


def own_sampling(target: Any) -> Sampling:
    """How the target's checkpoint samples."""
    return sampling_for({}, target.model.generation_config)


def law_of(target: Any, options: AnswerOptions) -> dict[str, Any]:
    """What answers depend on beside their options: how a `served` target is sampled, if it is."""
    if options.author == "target" and options.sampled and served(target):
        return {"sampling": asdict(own_sampling(target))}
    return {}


def manner(target: Any, temperature: float) -> dict[str, Any]:
    """The sampling options of an answer to learn from. temperature: 0 is greedy; of a `served` target it says only
    whether to sample."""
    if temperature and served(target):
        return {"temperature": own_sampling(target).temperature or temperature}
    return {"temperature": temperature, **PLAIN}


@dataclass(frozen=True)
class Answered:
    """One answered question.

    index: of the question in its source. prompt, answer: token ids; the prompt's image slots are in place.
    temperature: with which the target spoke, 1 also where it was sampled as its checkpoint says; None if the answer is
        the data's own.
    """

    index: int
    prompt: list[int]
    answer: list[int]
    temperature: float | None

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
    cut. batch: questions per shard.
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
    Several processes share the shards that are missing; all of them get all answers. A question that fills the target's
    context is left out.
    Raises: MismatchError: the folder holds answers to other questions, by another target or made otherwise.
        InputError: no question leaves room for an answer.
    """
    with leader_first():
        # an earlier call that made nothing binds nobody to its data
        if group().is_main_process and not any(folder.glob("*.jsonl")):
            (folder / "settings.json").unlink(missing_ok=True)
        law = law_of(pipe.target, options)
        claim(folder, {"questions": questions.name, "target": fingerprint, **asdict(options), **law})
    shards = math.ceil(len(questions) / options.batch)
    files = [folder / f"{shard:05d}.jsonl" for shard in range(shards)]
    mine = range(group().process_index, shards, group().num_processes)
    missing = [shard for shard in mine if not _whole(files[shard], _indices(shard, options, questions))]
    batches = (_batch(shard, options, questions) for shard in missing)
    made = (spread or Here(pipe)).map(partial(_answering, options), batches)
    told = f"answers by the {options.author}"
    bar = progress(made, desc=told, unit="batch", total=len(mine), initial=len(mine) - len(missing))
    for place, rows in bar:
        write_whole(files[missing[place]], "".join(json.dumps(asdict(row)) + "\n" for row in rows))
    wait()
    answered = [row for file in files for row in _read(file) or ()]
    context = pipe.target.decoder.max_length
    long = sum(len(row.prompt) >= context for row in answered)
    if long and long == len(answered):
        raise InputError(
            f"no prompt of {questions.name} fits: the shortest has {min(len(row.prompt) for row in answered)} tokens, "
            f"the model's context is {context}"
        )
    if long and group().is_main_process:
        logger.warning("%d of %d prompts fill the model's context of %d tokens: left out", long, len(answered), context)
    return [row for row in answered if _usable(row, pipe.target.placeholders)]


def _usable(row: Answered, placeholders: tuple[int, ...]) -> bool:
    """Whether there is something to draft, and no image slot without an image (a model in trouble may emit one)."""
    return len(row.answer) > 2 and not set(row.answer) & set(placeholders)


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
    """Questions of a shard, by their numbers, and how they are answered."""

    asked: dict[int, Question]
    temperature: float | None


def _batch(shard: int, options: AnswerOptions, questions: Questions) -> _Batch:
    asked = {index: questions[index] for index in _indices(shard, options, questions)}
    return _Batch(asked, _temperature(shard, options))


def _answering(options: AnswerOptions, pipe: Any) -> Callable[[_Batch], list[Answered]]:
    """The function that answers a batch, on this pipeline."""
    return lambda batch: list(_answer(pipe, batch, options))


def _answer(pipe: Any, batch: _Batch, options: AnswerOptions) -> Iterator[Answered]:
    indices, asked, temperature = list(batch.asked), list(batch.asked.values()), batch.temperature
    inputs = prepare(pipe, asked)
    prompts = unpad(inputs)
    room = _room(pipe, prompts)
    if temperature is None:
        most = [min(options.max_new_tokens, left) for left in room]
        spoken = [own_answer(pipe, question)[:length] for question, length in zip(asked, most, strict=True)]
    elif not any(room):
        spoken = [[] for _ in asked]
    else:
        if not all(room):  # another question keeps the place of one that does not fit, for the seeds of those behind it
            fitting = next(question for question, left in zip(asked, room, strict=True) if left)
            inputs = prepare(pipe, [question if left else fitting for question, left in zip(asked, room, strict=True)])
        said = pipe.generate(
            **inputs,
            max_new_tokens=options.max_new_tokens,
            **manner(pipe.target, temperature),
            seed=options.seed + indices[0],
        )
        made = said if isinstance(said, list) else [said]
        spoken = [one.token_ids if left else [] for one, left in zip(made, room, strict=True)]
    for index, prompt, answer in zip(indices, prompts, spoken, strict=True):
        yield Answered(index, prompt, answer, temperature)


def prepare(pipe: Any, asked: list[Question]) -> dict[str, Any]:
    """Model inputs of a batch of questions. Raises: InputError: one of them, named, cannot be asked."""
    voices = [question.voice for question in asked]
    told = {"voice": voices} if any(voices) else {}
    try:
        return pipe.prepare([question.image for question in asked], [question.prompt for question in asked], **told)
    except InputError as error:
        if len(asked) == 1 and asked[0].where:
            raise InputError(f"{asked[0].where}: {error}") from error
        if len(asked) > 1:
            for one in asked:  # which of them it is
                prepare(pipe, [one])
        raise


def prepare_fitting(pipe: Any, asked: list[Question]) -> dict[str, Any]:
    """The same of those whose prompts leave room for an answer. Raises: InputError: none does."""
    inputs = prepare(pipe, asked)
    room = _room(pipe, unpad(inputs))
    if not any(room):
        raise InputError(f"no held-out prompt fits the model's context of {pipe.target.decoder.max_length} tokens")
    return inputs if all(room) else prepare(pipe, [one for one, left in zip(asked, room, strict=True) if left])


def _room(pipe: Any, prompts: list[list[int]]) -> list[int]:
    """How many tokens fit behind each prompt."""
    return [max(0, pipe.target.decoder.max_length - len(prompt)) for prompt in prompts]


def own_answer(pipe: Any, question: Question) -> list[int]:
    """The ids of the data's own answer, as the target would have to write it, end token included.

    With a chat template that is what the template puts between the prompt and the end of the assistant's turn.
    """
    if question.answer is None:
        raise InputError(
            f"the question {shorten(question.prompt)} has no answer in the data: use the target's, "
            "and no warm-up (--answers target --warm-steps 0)"
        )
    tokenizer = getattr(pipe.processor, "tokenizer", pipe.processor)
    text = written_answer(pipe, question.image, question.prompt, question.answer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids[: ids.index(tokenizer.eos_token_id) + 1] if tokenizer.eos_token_id in ids else ids


def written_answer(pipe: Any, image: Any, prompt: str, answer: str) -> str:
    """An answer as the target would have to write it behind its prompt, with what ends its turn.

    Args: image: a picture, a list of them, or None.
    Raises: InputError: the chat template writes the prompt otherwise when an answer follows.
    """
    tokenizer = getattr(pipe.processor, "tokenizer", pipe.processor)
    if not getattr(pipe.processor, "chat_template", None):
        return answer + (tokenizer.eos_token or "")
    given = image if isinstance(image, list | tuple) else [image]
    pictures = [{"type": "image"} for one in given if one is not None]
    turns = [_turn(pipe, "user", prompt, pictures)]
    before = pipe.processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    whole: str = pipe.processor.apply_chat_template([*turns, _turn(pipe, "assistant", answer, [])], tokenize=False)
    if not whole.startswith(before):
        raise InputError("the chat template rewrites the prompt when an answer follows: use the target's answers")
    return whole[len(before) :]


def _turn(pipe: Any, role: str, text: str, before: list[dict[str, str]]) -> dict[str, Any]:
    """A chat message: parts for a processor, a plain text for a tokenizer."""
    parts = [*before, {"type": "text", "text": text}]
    return {"role": role, "content": parts if hasattr(pipe.processor, "tokenizer") else text}


def _read(file: Path) -> list[Answered] | None:
    """The rows of a shard; None if it does not exist or is damaged."""
    try:
        return [Answered(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError):
        return None
