"""Questions that hang on no picture: what a model has to know by heart before it can do it with what it sees."""

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from mmspec.miniworld.ask_shapes import ask_count
from mmspec.miniworld.facts import QA, Chart, Facts, Shapes
from mmspec.miniworld.language import phrased, reasoned
from mmspec.miniworld.phrases import Voice, finish, plain, tidy
from mmspec.miniworld.scenes import draw_facts
from mmspec.miniworld.talk_charts import (
    arithmetic,
    ask_above,
    ask_arithmetic,
    ask_compare,
    ask_extreme,
    ask_trend,
    ask_value,
    calculation,
    listing,
)
from mmspec.miniworld.talk_shapes import sighting

Item = TypeVar("Item")
LARGEST = 20
"""Of the numbers that are added in the world."""
CHAIN = 3
TOLD = 0.5  # share of drills about things that are told
KINDS = {"bar": 3, "line": 2, "pie": 2, "shapes": 2}
TOPICS = {ask_above: 4, ask_arithmetic: 4, ask_compare: 2, ask_trend: 2, ask_value: 2, ask_extreme: 1}
"""What is asked of a chart; of a scene, how many there are of something."""
FORMS = {"reasoned": 5, "short": 3, "choice": 3, "yesno": 2}


def drill(rng: random.Random, known: Collection[str] = ()) -> tuple[QA, Facts | None]:
    """A few sums; or one, asked for as the sums of a picture are; or a question about a chart or a scene that is told,
    with the facts that are told.

    Here "image" spans are what is to be found out, and the gold value of a few sums is all their results.

    Args: known: names that are not to be told of, because they stand for something in a picture.
    """
    voice = Voice(rng)
    if rng.random() < TOLD:
        return _told(voice, known)
    if rng.random() < 0.5:
        return _chain(voice), None
    x, y = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    ask = arithmetic(voice, str(x), str(y), x, y, str)
    return phrased(voice, ask, rng.choices(("short", "yesno", "choice"), (6, 3, 1))[0]), None


def _told(voice: Voice, known: Collection[str]) -> tuple[QA, Facts]:
    """A question about a chart or a scene that is told in the question."""
    rng = voice.rng
    ask = None
    while ask is None:
        facts = draw_facts(rng, any_of(rng, KINDS))
        if isinstance(facts, Shapes):
            told = voice.chain([sighting(voice, thing) for thing in voice.shuffled(facts.things)])
            ask = ask_count(voice, facts)
        elif isinstance(facts, Chart) and not set(facts.categories) & set(known):
            told = listing(voice, facts, voice.shuffled(range(len(facts.values))))
            ask = any_of(rng, TOPICS)(voice, facts)
    form = any_of(rng, FORMS)
    qa = reasoned(voice, ask) if form == "reasoned" else phrased(voice, ask, form)
    return replace(qa, question=f"{tidy(plain(told))} {qa.question}"), facts


def any_of(rng: random.Random, weights: Mapping[Item, int]) -> Item:
    """One of them, each as often as its weight says."""
    return rng.choices(list(weights), list(weights.values()))[0]


def _chain(voice: Voice) -> QA:
    rng = voice.rng
    sums = [(rng.randint(0, LARGEST), rng.randint(0, LARGEST), rng.random() < 0.5) for _ in range(CHAIN)]
    asked = [f"{x} plus {y}" if add else f"{max(x, y)} minus {min(x, y)}" for x, y, add in sums]
    question = tidy(voice.say("[work out|calculate] ") + voice.join(asked) + ".")
    draft = " ".join(calculation(voice, x, y, add) + "." for x, y, add in sums)
    answer, spans = finish(tidy(draft), question, None)
    # of the three numbers of a sum, only the last is not in the question
    told = tuple((start, end, "copy" if place % 3 < 2 else "image") for place, (start, end, _) in enumerate(spans))
    gold = " ".join(answer[start:end] for start, end, kind in told if kind == "image")
    return QA(question, answer, "short", "sum", gold, told)
