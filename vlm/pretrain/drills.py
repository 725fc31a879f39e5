"""Sums without a picture: what a model has to know by heart before it can add what it reads."""

import random

from mmspec.miniworld.facts import QA
from mmspec.miniworld.language import phrased
from mmspec.miniworld.phrases import Voice, finish, tidy
from mmspec.miniworld.talk_charts import arithmetic, calculation

LARGEST = 20
"""Of the numbers that are added in the world."""
CHAIN = 3


def drill(rng: random.Random) -> QA:
    """A few sums; or one, asked for as the sums of a picture are. Here "image" spans are what is to be computed, and
    the gold value of a few sums is all their results."""
    voice = Voice(rng)
    if rng.random() < 0.5:
        return _chain(voice)
    x, y = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    ask = arithmetic(voice, str(x), str(y), x, y, str)
    return phrased(voice, ask, rng.choices(("short", "yesno", "choice"), (6, 3, 1))[0])


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
