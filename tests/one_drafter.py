"""Training of a single drafter, which most tests want."""

from pathlib import Path
from typing import Any

from mmspec.training.course import Course
from mmspec.training.drafter import train_drafters
from mmspec.training.recipe import Recipe


def train_drafter(pipe: Any, recipe: Recipe, course: Course, out: Path, run: Path, name: str) -> dict[str, Any]:
    """`train_drafters` for one."""
    return train_drafters(pipe, [recipe], course, [out], run, name)[recipe.method]
