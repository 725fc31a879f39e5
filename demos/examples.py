"""Pictures and questions to click on: drawn by the miniworld, which is what the bundled checkpoints know."""

from __future__ import annotations

from pathlib import Path

from mmspec.miniworld import sample

SEED = "demo"
FAMILIES = ("bar", "shapes", "table", "pie", "text", "line")
DESCRIBE = "Describe this picture in detail."


def examples(folder: Path) -> list[list[str]]:
    """Write the pictures into a folder; returns [file, question] pairs."""
    found = []
    for index, family in enumerate(FAMILIES):
        drawn = sample(SEED, index, family)
        path = folder / f"{family}.png"
        drawn.image.save(path)
        worked = next((qa.question for qa in drawn.qas if qa.form == "worked"), DESCRIBE)
        found.append([str(path), worked if index % 2 else DESCRIBE])
    return found
