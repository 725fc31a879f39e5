"""A small world of pictures (shapes, charts, tables, signs) with exact facts, marks and questions.

Every sample is made from a seed and an index alone, so a data set needs no files and a held-out split is a new seed.
"""

import random
from dataclasses import dataclass

from PIL import Image

from mmspec.miniworld.facts import QA, Facts, Mark
from mmspec.miniworld.language import questions
from mmspec.miniworld.render import render
from mmspec.miniworld.scenes import draw_facts


@dataclass(frozen=True)
class Sample:
    """A 320 x 320 RGB picture, what it shows, where, and questions with answers about it."""

    image: Image.Image
    facts: Facts
    marks: tuple[Mark, ...]
    qas: tuple[QA, ...]


def sample(seed: int | str, index: int, family: str | None = None) -> Sample:
    """Sample `index` of the data set `seed`; the same arguments give the same sample on every machine.

    Args: family: "shapes", "bar", "line", "pie", "table", "text", or None for all by their weights.
    """

    def stream(name: str) -> random.Random:
        # Separate streams: a change in the renderer or the language leaves the facts of all samples as they were.
        return random.Random(f"{seed}/{index}/{name}")

    facts = draw_facts(stream("facts"), family)
    image, marks = render(facts, stream("render"))
    return Sample(image, facts, marks, questions(facts, stream("language")))
