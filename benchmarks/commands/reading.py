"""From the words of a call to settings, and from a summary to what is printed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from mmspec.errors import InputError
from mmspec.safe_files import make_folder


def words(text: str) -> tuple[str, ...]:
    """Comma-separated names."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(text: str, noun: str = "temperature", example: str = "0,1") -> tuple[float, ...]:
    """Comma-separated numbers. noun, example: of what, for the message."""
    try:
        return tuple(map(float, words(text)))
    except ValueError as error:
        raise InputError(
            f"{noun} {text!r} is not valid: give numbers separated by commas, such as {example}"
        ) from error


def batch_sizes(text: str) -> tuple[int, ...]:
    """Comma-separated batch sizes; 0, which the settings refuse, for what is no whole number."""
    return tuple(int(size) if size.is_integer() else 0 for size in numbers(text, "batch size", "1,8"))


def was_given(context: typer.Context, name: str) -> bool:
    """Whether the user wrote an option."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def kept_in(out: Path | None) -> Iterator[Path]:
    """The folder of a run, made before the long part: the user's, or one that is gone afterwards."""
    if out is not None:
        yield make_folder(out)
        return
    with tempfile.TemporaryDirectory(prefix="mmspec-bench-") as folder:
        yield Path(folder)


def show(summary: Any, text: str, as_json: bool) -> None:
    """Print the result."""
    print(json.dumps(summary, indent=1, ensure_ascii=False) if as_json else text)
