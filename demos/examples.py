"""Pictures and questions to click on, and texts: of the miniworld, which is what the bundled checkpoints know."""

from __future__ import annotations

from pathlib import Path

from mmspec.miniworld import sample

SEED = "demo"
PICTURES = {"bar": 0, "shapes": 2, "table": 2, "pie": 3, "text": 4, "line": 5}
"""Kinds of pictures, each with the number of one that shows something."""
DESCRIBE = "Describe this picture in detail."
REWORD = "Say this in other words: {text}"


def examples(folder: Path) -> list[list[str]]:
    """Write the pictures into a folder; returns [file, question] pairs."""
    found = []
    for index, (family, number) in enumerate(PICTURES.items()):
        drawn = sample(SEED, number, family)
        path = folder / f"{family}.png"
        drawn.image.save(path)
        worked = next((qa.question for qa in drawn.qas if qa.form == "worked"), DESCRIBE)
        found.append([str(path), worked if index % 2 else DESCRIBE])
    return found


def texts() -> list[str]:
    """What is asked of models that see no pictures: to say what those show in other words."""
    drawn = (sample(SEED, number, family) for family, number in PICTURES.items())
    return [REWORD.format(text=next(qa.answer for qa in each.qas if qa.form == "describe")) for each in drawn]
