"""Questions made ready for a target, and those left out that cannot be asked: a damaged picture, say, or control tokens
in a text. A few of them end no run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from mmspec.base_target import unpad
from mmspec.errors import InputError
from mmspec.training.processes import group
from mmspec.training.questions import Question, Questions, place_of

logger = logging.getLogger(__name__)

FEW, SHARE = 5, 20
"""So many questions may fail, or one in so many, whichever is more; beyond that the data is to blame, and not a row."""
NAMED = 3
"""So many of them are named; of the others it is said how many they are."""


def readable(questions: Questions, indices: range) -> tuple[dict[int, Question], dict[int, str]]:
    """Questions by their numbers, and why each of the others cannot be read."""
    asked: dict[int, Question] = {}
    faults: dict[int, str] = {}
    for index in indices:
        try:
            asked[index] = questions[index]
        except InputError as error:
            faults[index] = str(error)
    return asked, faults


def _inputs(pipe: Any, asked: Sequence[Question]) -> dict[str, Any]:
    """Model inputs of a batch of questions. Raises: InputError: one of them cannot be asked."""
    voices = [question.voice for question in asked]
    told = {"voice": voices} if any(voices) else {}
    return pipe.prepare([question.image for question in asked], [question.prompt for question in asked], **told)


def _faults(pipe: Any, asked: dict[int, Question]) -> dict[int, str]:
    """Why each of the questions that cannot be asked cannot, with its place in the data."""
    faults: dict[int, str] = {}
    for index, question in asked.items():
        try:
            _inputs(pipe, [question])
        except InputError as error:
            faults[index] = f"{question.where}: {error}" if question.where else str(error)
    return faults


def prepare(pipe: Any, asked: list[Question]) -> dict[str, Any]:
    """Model inputs of a batch of questions. Raises: InputError: one of them, named, cannot be asked."""
    try:
        return _inputs(pipe, asked)
    except InputError as error:
        for fault in _faults(pipe, dict(enumerate(asked))).values():
            raise InputError(fault) from error
        raise  # each of them can be asked alone, so none is at fault


def prepare_askable(pipe: Any, asked: dict[int, Question]) -> tuple[dict[str, Any], dict[int, str]]:
    """Model inputs of those questions that can be asked (empty: none can), and why each of the others cannot."""
    if not asked:
        return {}, {}
    try:
        return _inputs(pipe, list(asked.values())), {}
    except InputError:
        faults = _faults(pipe, asked)
        if not faults:  # each of them can be asked alone, so none is at fault
            raise
    able = [question for index, question in asked.items() if index not in faults]
    return _inputs(pipe, able) if able else {}, faults


def held_out_batches(pipe: Any, questions: Questions, size: int) -> tuple[list[dict[str, Any]], list[int]]:
    """Model inputs of held-out questions, at most `size` of them in a batch, and the numbers of those that cannot be
    asked. These and those whose prompts leave no room for an answer are left out.

    Raises: InputError: too many cannot be asked, or none is left.
    """
    batches: list[dict[str, Any]] = []
    faults: dict[int, str] = {}
    for start in range(0, len(questions), size):
        read, unread = readable(questions, range(start, min(start + size, len(questions))))
        inputs, unasked = prepare_askable(pipe, read)
        faults.update({**unread, **unasked})
        asked = [question for index, question in read.items() if index not in unasked]
        room = room_behind(pipe, unpad(inputs)) if asked else []
        fitting = [question for question, left in zip(asked, room, strict=True) if left]
        if fitting:
            batches.append(inputs if all(room) else prepare(pipe, fitting))
    check_faults(list(faults.values()), len(questions), questions.name)
    if faults and group().is_main_process:
        for index in [*faults][:NAMED]:
            logger.warning("held-out question %d is left out: %s", index, faults[index])
        logger.warning("%d of %d held-out questions cannot be asked: left out", len(faults), len(questions))
    if not batches:
        raise InputError(f"no held-out prompt fits the model's context of {pipe.target.decoder.max_length} tokens")
    return batches, sorted(faults)


def room_behind(pipe: Any, prompts: list[list[int]]) -> list[int]:
    """How many tokens fit behind each prompt."""
    return [max(0, pipe.target.decoder.max_length - len(prompt)) for prompt in prompts]


def check_faults(faults: Sequence[str], asked: int, source: str) -> None:
    """Raise InputError if all questions failed, or too many (see `FEW`).

    Args: faults: why, each of those that failed. source: the name of the questions.
    """
    if len(faults) == asked or len(faults) > max(FEW, asked // SHARE):
        told = f"{len(faults)} of {asked} questions of {place_of(source)} cannot be asked"
        raise InputError(f"{told}; the first: {faults[0]}")
