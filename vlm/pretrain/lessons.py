"""What is asked about a picture in training, what of the answers counts, and where each word is to be sought."""

import random
import re
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from mmspec.miniworld import Sample
from mmspec.miniworld.facts import QA
from mmspec.miniworld.language import questions
from mmspec.vlm.pretrain.drills import drill
from mmspec.vlm.pretrain.tokenizer import answer_text, question_text

IMAGE_WEIGHT = 2.0  # loss of words that only the picture determines, template words have 1
GOLD_WEIGHT = 6.0  # of the answer and its last step among them: few, and all before counts for them
CLOSED = ("yesno", "choice")
LONG = ("worked", "describe")
COMPUTED = ("sum", "difference", "count", "above")
"""Topics whose answer stands nowhere in the picture, though its digits may."""
SHARES = {
    **dict.fromkeys(("sum", "difference", "trend", "above"), 5.0),
    **dict.fromkeys(("position", "relation", "count"), 3.0),
    **dict.fromkeys(("max", "min", "compare", "whole"), 2.0),
}
"""How much more often than the others a topic is asked: what takes a thought, or is rare."""
CLOSED_SHARE = 3.0
NOTHING = -2  # an id that no slot shows


@dataclass(frozen=True)
class Lesson:
    """A question with its answer, token by token.

    ids: of both. weights: of the loss of each, 0 for the question, above 1 where the picture determines it. sought: the
    word that the picture shows where the token is decided: the token itself, for a yes or a letter what it hangs on.
    """

    ids: list[int]
    weights: list[float]
    sought: list[int]


def lesson(tokenizer: PreTrainedTokenizerFast, qa: QA) -> Lesson:
    """A question with its answer as a lesson."""
    question = tokenizer(question_text(qa.question), add_special_tokens=False)["input_ids"]
    answer = tokenizer(answer_text(qa.answer), add_special_tokens=False, return_offsets_mapping=True)
    # the answer begins with a space
    seen = [(start + 1, end + 1, qa.answer[start:end]) for start, end, kind in qa.spans if kind == "image"]
    value = {word for _, _, word in seen}
    turn = 0
    if qa.form in LONG:  # of which the value is little, or nothing, and hangs on the sentence before the last
        value &= set((qa.gold or "").split())
        turn = _last_sentences(answer_text(qa.answer)) if qa.form == "worked" else len(qa.answer) + 1
    weights, sought = [], list(answer["input_ids"])
    shown = []  # places of the words that the picture determines
    for place, (start, end) in enumerate(answer["offset_mapping"]):
        low, word = next(((low, word) for low, high, word in seen if start < high and end > low), (0, None))
        golden = word in value or low >= turn
        weights.append(1.0 if word is None else GOLD_WEIGHT if golden else IMAGE_WEIGHT)
        if word is not None:
            shown.append(place)
        if word in value and qa.topic in COMPUTED:
            sought[place] = NOTHING
    if qa.form in CLOSED and len(shown) > 1:
        sought[shown[0]] = sought[shown[1]]
    return Lesson(question + answer["input_ids"], [0.0] * len(question) + weights, question + sought)


def _last_sentences(text: str) -> int:
    """Where the last sentence but one begins."""
    starts = [0, *(found.end() for found in re.finditer(r"[.?!] ", text))]
    return starts[-2:][0]


def asked_about(drawn: Sample, rng: random.Random) -> list[QA]:
    """Three times as many questions about a picture as it comes with, in the order in which they should find room: two
    with long answers, two drills, the short ones, the other long ones; hard and rare ones tend to come first."""
    found = [*drawn.qas, *questions(drawn.facts, rng), *questions(drawn.facts, rng)]
    found.sort(key=lambda qa: -(rng.random() ** (1 / share(qa))))
    long = [qa for qa in found if qa.form in LONG]
    short = [qa for qa in found if qa.form not in LONG]
    return [*long[:2], drill(rng), drill(rng), *short, *long[2:]]


def share(qa: QA) -> float:
    """How much more often than others this one is asked."""
    return SHARES.get(qa.topic, 1.0) * (CLOSED_SHARE if qa.form in CLOSED else 1.0)
