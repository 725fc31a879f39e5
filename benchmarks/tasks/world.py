"""Questions of the miniworld for stand-ins: a task without its data asks these, in the schema of its official files.

A result on them says that the machinery works, and how drafting fares on such answers. It is no score of the data set.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from PIL import Image

from mmspec.miniworld import sample
from mmspec.miniworld.facts import COLORS, SHAPES, SIZES, TEXTURES, Chart, Facts, Sign, Table

SEED = "tasks"
CHARTS = ("bar", "line", "pie")


@dataclass(frozen=True)
class Asked:
    """One question of the world. options: what a multiple-choice question would offer, the answer among them."""

    image: Image.Image
    facts: Facts
    question: str
    answer: str
    gold: str
    topic: str
    options: tuple[str, ...]


def asked(number: int, seed: str = SEED, families: Sequence[str] = (), choices: int = 4) -> list[Asked]:
    """The first `number` open questions with a value to judge, one per picture.

    Args: families: kinds of picture, taken in turn; none leaves it to the world. choices: how many options.
    """

    def found() -> Iterator[Asked]:
        for index in count():
            drawn = sample(seed, index, families[index % len(families)] if families else None)
            stream = random.Random(f"{seed}/{index}/task")
            fitting = [
                qa
                for qa in drawn.qas
                if qa.gold is not None and qa.form in ("short", "worked") and len(pool(drawn.facts, qa.gold)) >= choices
            ]
            if fitting:
                qa = stream.choice(fitting)
                assert qa.gold is not None
                others = [other for other in pool(drawn.facts, qa.gold) if other != qa.gold]
                options = [qa.gold, *stream.sample(others, choices - 1)]
                stream.shuffle(options)
                yield Asked(drawn.image, drawn.facts, qa.question, qa.answer, qa.gold, qa.topic, tuple(options))

    return list(islice(found(), number))


def pool(facts: Facts, gold: str) -> list[str]:
    """Values that a question with this answer might have had."""
    if gold.isdigit():
        return [str(int(gold) + step) for step in range(-2, 6) if int(gold) + step >= 0]
    named = (COLORS, SHAPES, SIZES, TEXTURES, ("yes", "no"), names(facts))
    return next((list(dict.fromkeys(values)) for values in named if gold in values), [])


def names(facts: Facts) -> tuple[str, ...]:
    """Names that stand in the picture."""
    if isinstance(facts, Chart):
        return facts.categories
    if isinstance(facts, Table):
        return (*facts.rows, *facts.columns)
    return facts.lines if isinstance(facts, Sign) else ()


def told(facts: Facts) -> str:
    """What a chart or a table shows, in words."""
    if isinstance(facts, Chart):
        pairs = ", ".join(f"{name} {value}" for name, value in zip(facts.categories, facts.values, strict=True))
        return f'The {facts.kind} chart "{facts.title}" shows {pairs}.'
    assert isinstance(facts, Table)
    rows = [
        f"{row}: {', '.join(f'{column} {cell}' for column, cell in zip(facts.columns, cells, strict=True))}"
        for row, cells in zip(facts.rows, facts.cells, strict=True)
    ]
    return f'The table "{facts.title}" says {"; ".join(rows)}.'


def save_picture(image: Image.Image, path: Path) -> None:
    """Write a PNG, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def save_json(value: Any, path: Path) -> None:
    """Write JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
