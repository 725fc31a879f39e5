"""Which questions are asked: held-out pictures of the miniworld, the same list on every machine, or one's own.

The seed below is used for no training data. Speed is measured on long answers, one question per picture; accuracy on
every form of question that has a value to judge. Of one's own data the last questions are asked: training holds out the
last ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, islice
from typing import ClassVar

from PIL import Image

from mmspec.benchmarks.tasks.world import CHARTS
from mmspec.miniworld import sample
from mmspec.miniworld.facts import QA
from mmspec.training.course import Course
from mmspec.training.data import LONG, Chosen, Lines, check_no_chats, part, written_data

SEED = "bench"
LONG_REFERENCE = 60
"""Tokens of the reference answer of a long question, at least."""

CHART_TOPICS = {
    "value": "chart value",
    "max": "chart compare",
    "min": "chart compare",
    "compare": "chart compare",
    "above": "chart compare",
    "sum": "chart arithmetic",
    "difference": "chart arithmetic",
    "trend": "chart trend",
    "owner": "chart legend",
}
TEXT_TOPICS = ("line", "whole", "edge", "number")


@dataclass(frozen=True)
class Question:
    """One question about one picture. index: its place in the list; picture: index of the miniworld sample."""

    index: int
    picture: int
    family: str
    image: Image.Image
    qa: QA
    voice: ClassVar[None] = None

    @property
    def prompt(self) -> str:
        """What is asked."""
        return self.qa.question


def long_questions(number: int, token_count: Callable[[str], int], seed: str = SEED) -> list[Question]:
    """The first `number` questions with a reference answer of at least 60 tokens, at most one per picture.

    Args: token_count: tokens of a text, as the model's tokenizer counts them.
    """

    def candidates() -> Iterator[tuple[int, str, Image.Image, QA]]:
        for picture in count():
            drawn = sample(seed, picture)
            long = [qa for qa in drawn.qas if qa.form in LONG and token_count(qa.answer) >= LONG_REFERENCE]
            if long:
                yield picture, drawn.facts.family, drawn.image, random.Random(f"{seed}/{picture}/long").choice(long)

    return [Question(index, *found) for index, found in enumerate(islice(candidates(), number))]


def judged_questions(number: int) -> list[Question]:
    """The first `number` questions whose answer can be judged, all forms, picture by picture."""

    def candidates() -> Iterator[tuple[int, str, Image.Image, QA]]:
        for picture in count():
            drawn = sample(SEED, picture)
            for qa in drawn.qas:
                if qa.gold is not None:
                    yield picture, drawn.facts.family, drawn.image, qa

    return [Question(index, *found) for index, found in enumerate(islice(candidates(), number))]


def own_questions(data: str, number: int, sees: bool = False, chats: bool = True) -> Chosen:
    """The last `number` questions of a folder or data set (`mmspec.training.data`), or all where there are no more.

    Args: sees: whether pictures that nobody would look for are refused. chats: False refuses chats.
    """
    own = written_data(data)
    if sees and not isinstance(own, Lines):
        own.check_seen()
    if not chats:
        check_no_chats(own)
    return part(own, max(0, len(own) - number), len(own))


def told_of_own(number: int, length: int) -> str:
    """What a report says of the last `number` of the `length` questions of one's own data: how many a training may have
    read."""
    kept = Course.held_out
    told = f"The questions are the last {number} of the data. A training on it holds out the last {kept} by default"
    if number <= kept:
        return f"{told}, these among them."
    # what holds out all of them has nothing to train on
    apart = f"train with --held-out {number} or more, or " if number < length else ""
    return (
        f"{told}, and may have read the other {number - kept}: to measure on questions that training has not read, "
        f"{apart}give bench other data."
    )


@cache
def closed_share() -> float:
    """Share of yes/no and multiple-choice questions among all questions of the first 100 pictures."""
    forms = [qa.form for picture in range(100) for qa in sample(SEED, picture).qas]
    return sum(form in ("yesno", "choice") for form in forms) / len(forms)


def shuffled(questions: list[Question]) -> list[Question]:
    """The same questions, each about the picture that belongs to the next ones: the control for guessing."""
    images = {question.picture: question.image for question in questions}
    pictures = list(images)
    following = dict(zip(pictures, [*pictures[1:], pictures[0]], strict=True))
    return [replace(question, image=images[following[question.picture]]) for question in questions]


def class_of(family: str, form: str, topic: str) -> str:
    """The class under which an answer is counted: the form where that decides what is hard, else what is asked."""
    if form in ("yesno", "choice"):
        return {"yesno": "yes/no", "choice": "choice"}[form]
    if family == "table":
        return "table"
    if family == "text" and topic in TEXT_TOPICS:
        return "text"
    if family in CHARTS:
        return CHART_TOPICS.get(topic, topic)
    return topic
