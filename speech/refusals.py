"""What models that speak refuse alike."""

from __future__ import annotations

from typing import Any

from mmspec.errors import InputError
from mmspec.sampling import Sampling


def check_no_pictures(target: Any, images: list[list[Any]]) -> None:
    """Raise InputError for pictures."""
    if any(images):
        raise InputError(f"{type(target.model).__name__} speaks and does not see: leave image out")


def check_texts_alone(noun: str, images: list[list[Any]], voice: Any) -> None:
    """Raise InputError for pictures or a voice. noun: what messages call the model."""
    if any(images) or voice is not None:
        raise InputError(f"{noun} is served with texts alone: leave image and voice out")


def check_no_history(sampling: Sampling) -> None:
    """Raise InputError for a setting that looks at single codes of the history."""
    if sampling.ras_window or sampling.repetition_penalty != 1:
        raise InputError("codes of different codebooks share their ids: repetition cannot be penalised here")
