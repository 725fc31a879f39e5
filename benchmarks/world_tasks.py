"""Five kinds of question of the synthetic world, each with a reply worth drafting: charts, scenes, tables and signs,
multiple choice, and worked answers.

The pictures are held out, and the same on every machine. Multiple choice asks for an explanation, as the tasks do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice

from mmspec.benchmarks.questions import LONG_REFERENCE
from mmspec.benchmarks.tasks.choices import explained
from mmspec.benchmarks.tasks.world import CHARTS, asked
from mmspec.miniworld import sample
from mmspec.training.questions import Question

SEED = "bench-drafters"


@dataclass(frozen=True)
class WorldTask:
    """A kind of question. families: kinds of picture, in turn. form: of the answers; "choice" asks with options."""

    title: str
    families: tuple[str, ...]
    form: str

    def questions(self, number: int, tokens: Callable[[str], int]) -> list[Question]:
        """The first `number` ones, one per picture.

        Args: tokens: of a text, as the model's tokenizer counts them; reference answers have at least 60, but those of
            multiple choice, which are short: how long a reply to it is, is up to the model.
        """
        seed = f"{SEED}/{self.title}"
        if self.form == "choice":
            found = asked(number, seed, self.families)
            return [Question(one.image, explained(one.question, one.options)) for one in found]

        def long() -> Iterator[Question]:
            for index in count():
                drawn = sample(seed, index, self.families[index % len(self.families)])
                fit = [qa for qa in drawn.qas if qa.form == self.form and tokens(qa.answer) >= LONG_REFERENCE]
                if fit:
                    yield Question(drawn.image, random.Random(f"{seed}/{index}").choice(fit).question)

        return list(islice(long(), number))


TASKS = {
    "chart": WorldTask("chart", CHARTS, "describe"),
    "scene": WorldTask("scene", ("shapes",), "describe"),
    "text": WorldTask("table/OCR", ("table", "text"), "describe"),
    "choice": WorldTask("multiple choice", ("shapes", *CHARTS, "table"), "choice"),
    "reasoning": WorldTask("reasoning", ("shapes", *CHARTS, "table", "text"), "worked"),
}
