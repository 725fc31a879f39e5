"""From the words of a call to settings, and from a summary to what is printed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import typer

from mmspec.errors import InputError
from mmspec.safe_files import make_folder

Settings = TypeVar("Settings")


def words(text: str) -> tuple[str, ...]:
    """Comma-separated names."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(text: str) -> tuple[float, ...]:
    """Comma-separated temperatures. Raises: InputError: something else."""
    try:
        return tuple(map(float, words(text)))
    except ValueError as error:
        raise InputError(f"temperature {text!r} is not valid: give numbers separated by commas, such as 0,1") from error


def whole_numbers(text: str, noun: str) -> tuple[int, ...]:
    """Comma-separated whole numbers from 1 on. noun: of what, for the message. Raises: InputError: something else."""
    found = words(text)
    if not all(word.isdecimal() and int(word) for word in found):
        raise InputError(f"{noun}={text!r} is not valid: whole numbers from 1 on, separated by commas, are needed")
    return tuple(map(int, found))


def given(context: typer.Context) -> dict[str, Any]:
    """The options that the user wrote, with their values."""
    return {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }


def taken(kind: type[Settings], options: Mapping[str, Any], **read: Any) -> Settings:
    """The settings of a run, each from the option of its name, or as it was read.

    Args: kind: a dataclass. options: of the call, by name, as `locals()` of a command tells them; what is no setting is
        left aside.
    """
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: value for name, value in options.items() if name in names} | read)


def option(name: str) -> str:
    """A parameter as the user writes it, such as --max-new-tokens."""
    return f"--{name.removeprefix('as_').replace('_', '-')}"


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
