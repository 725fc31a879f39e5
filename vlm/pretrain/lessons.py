"""What is asked about a picture in training, what of the answers counts, and where each word is to be sought."""

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from mmspec.miniworld import Sample
from mmspec.miniworld.ask_shapes import ask_count, ask_neighbor
from mmspec.miniworld.facts import QA, Chart, Facts, Shapes, Thing
from mmspec.miniworld.language import phrased, questions
from mmspec.miniworld.phrases import Ask, Voice
from mmspec.miniworld.talk_charts import ask_above, ask_arithmetic, ask_trend
from mmspec.vlm.pretrain.drills import any_of
from mmspec.vlm.pretrain.named import counted, values_named
from mmspec.vlm.pretrain.tokenizer import answer_text, question_text

IMAGE_WEIGHT = 2.0  # loss of words that only the picture determines, template words have 1
GOLD_WEIGHT = 6.0
"""Of the last two sentences of worked answers, of the verdicts on what is counted and of the results of drills: few
words, on which all depends."""
SHORT_WEIGHT = 15.0
"""Of short answers about a picture: fewer still, found in one step, and lost among the words of the worked ones."""
VERDICTS = ("counts", "fits", "belongs", "does", "not", "fails")
CLOSED = ("yesno", "choice")
LONG = ("worked", "describe")
COMPUTED = ("sum", "difference", "count", "above")
"""Topics whose answer stands nowhere in the picture, though its digits may."""
PRIORITY = {
    **dict.fromkeys(("sum", "difference", "trend", "above"), 5.0),
    **dict.fromkeys(("position", "relation", "count"), 3.0),
    **dict.fromkeys(("max", "min", "compare", "whole"), 2.0),
}
"""What takes a thought, or is rare, tends to stand before the others, which have 1, when questions fill a row."""
CLOSED_PRIORITY = 3.0
PRACTICE = 7
"""Further questions about a chart or a scene, of what takes most practice."""
PRACTISED: dict[type, dict[Callable[[Voice, Any], Ask | None], int]] = {
    Chart: {ask_arithmetic: 5, ask_above: 1, ask_trend: 1},
    Shapes: {ask_count: 5, ask_neighbor: 2},
}
FORMS = {"short": 6, "yesno": 2, "choice": 2}
NOTHING = -2  # an id that no slot shows


@dataclass(frozen=True)
class Lesson:
    """A question with its answer, token by token.

    ids: of both. targets: what is to be said in the place of each: the token itself, but right behind a name of the
    question, digit by digit, the value that it stands for: who has read both values can tell their sum in one step.
    weights: of the loss of each, 0 for the rest of the question, above 1 for words that are not copied from it and no
    template. sought: the word that the picture shows, or the question tells, where the target is decided: the target
    itself, for a yes, a no or a letter the value it hangs on, for what is computed nothing. read: of that, what has to
    be known early, since something hangs on it: in the question, and where the weight is that of gold. reasons: the
    first token of the value that a yes, a no or a letter hangs on, computed or not, and nothing elsewhere. counts:
    whether a number of things is decided there, and counted: the things.
    """

    ids: list[int]
    targets: list[int]
    weights: list[float]
    sought: list[int]
    read: list[int]
    reasons: list[int]
    counts: list[bool]
    counted: tuple[Thing, ...]


def lesson(tokenizer: PreTrainedTokenizerFast, qa: QA, facts: Facts | None, told: bool = False) -> Lesson:
    """A question with its answer as a lesson.

    Args: facts: what the picture shows; None where it does not matter. told: the question tells the facts, and no
        picture shows them.
    """
    asked = _question(tokenizer, question_text(qa.question), facts, told)
    text = answer_text(qa.answer)
    answer = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    # the answer begins with a space
    seen = [(start + 1, end + 1, qa.answer[start:end]) for start, end, kind in qa.spans if kind == "image"]
    golden_from = math.inf if qa.form == "describe" else _last_two(text) if qa.form == "worked" else 0
    gold_weight = GOLD_WEIGHT if facts is None or told or qa.form in LONG else SHORT_WEIGHT
    value = (qa.reason or qa.gold or "").split()
    weights: list[float] = []
    sought = list(answer["input_ids"])
    reasons = [NOTHING] * len(sought)
    decided = [False] * len(sought)
    for place, (start, end) in enumerate(answer["offset_mapping"]):
        low, word = next(((low, word) for low, high, word in seen if start < high and end > low), (-1, None))
        golden = low >= golden_from or (qa.topic == "count" and word in VERDICTS)
        weights.append(1.0 if word is None else gold_weight if golden else IMAGE_WEIGHT)
        if golden and word in value and qa.topic in COMPUTED:
            sought[place], decided[place] = NOTHING, True
        elif word is not None and qa.reason is not None and low == seen[0][0] and word not in value:
            # the yes, the no, the letter
            reasons[place] = _first_token(tokenizer, qa.reason)
            sought[place] = NOTHING if qa.topic in COMPUTED else reasons[place]
            decided[place] = qa.topic in COMPUTED
    if facts is None:
        sought = [NOTHING] * len(sought)
    read = [word if weight > IMAGE_WEIGHT else NOTHING for word, weight in zip(sought, weights, strict=True)]
    scene = facts if isinstance(facts, Shapes) and qa.topic == "count" and not told else None
    return Lesson(
        asked.ids + answer["input_ids"],
        asked.targets + answer["input_ids"],
        asked.weights + weights,
        asked.sought + sought,
        asked.read + read,
        asked.reasons + reasons,
        asked.counts + [scene is not None and here for here in decided],
        counted(scene, qa.question) if scene is not None else (),
    )


def _question(tokenizer: PreTrainedTokenizerFast, text: str, facts: Facts | None, told: bool) -> Lesson:
    """The question alone."""
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = coded["input_ids"]
    targets, weights = list(ids), [0.0] * len(ids)
    ends = {end: place for place, (_, end) in enumerate(coded["offset_mapping"])}
    for end, value in values_named(facts, text, told) if facts is not None else ():
        for place, digit in enumerate(value, ends[end] + 1):
            targets[place], weights[place] = _first_token(tokenizer, digit), IMAGE_WEIGHT
    nothing = [NOTHING] * len(ids)
    return Lesson(ids, targets, weights, list(targets), list(targets), nothing, [False] * len(ids), ())


def _last_two(text: str) -> int:
    """Where the last two sentences begin."""
    starts = [0, *(found.end() for found in re.finditer(r"[.?!] ", text))]
    return starts[-2:][0]


def _first_token(tokenizer: PreTrainedTokenizerFast, value: str) -> int:
    """What an image slot shows of a value: its first digit, or its first word."""
    text = value if value[0].isdigit() else f" {value}"
    return int(tokenizer(text, add_special_tokens=False)["input_ids"][0])


def asked_about(drawn: Sample, rng: random.Random) -> list[QA]:
    """Three times as many questions about a picture as it comes with, in the order in which they should find room: a
    long answer, what takes practice, the short ones, the other long ones; in the last two parts those of a high
    priority tend to come first."""
    found = [*drawn.qas, *questions(drawn.facts, rng), *questions(drawn.facts, rng)]
    found.sort(key=lambda qa: -(rng.random() ** (1 / priority(qa))))  # a weighted shuffle
    long = [qa for qa in found if qa.form in LONG]
    short = [qa for qa in found if qa.form not in LONG]
    return [*long[:1], *practice(drawn.facts, rng), *short, *long[1:]]


def practice(facts: Facts, rng: random.Random) -> list[QA]:
    """Questions with brief answers that few learn from few examples: sums of a chart, numbers of things in a scene."""
    topics = PRACTISED.get(type(facts), {})
    voice = Voice(rng)
    chosen = [any_of(rng, topics) for _ in range(PRACTICE)] if topics else []
    asks = [topic(voice, facts) for topic in chosen]
    return [phrased(voice, ask, any_of(rng, FORMS)) for ask in asks if ask is not None]


def priority(qa: QA) -> float:
    """The weight of a question in the shuffle."""
    return PRIORITY.get(qa.topic, 1.0) * (CLOSED_PRIORITY if qa.form in CLOSED else 1.0)
