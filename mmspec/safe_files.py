"""Files read and written safely: JSON, whether a folder's weights are of a safe kind, where products may go, and files
whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmspec.errors import CheckpointError, InputError, one_line, reason
from mmspec.replacing import tidy

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def check_weights(folder: Path) -> None:
    """Raise CheckpointError unless the folder holds safetensors weights.

    The index of pickled parts tells of them, too: they themselves are not downloaded.
    """
    if any(folder.glob("*.safetensors")):
        return
    names = [path.name.removesuffix(".index.json") for path in folder.glob("*")]
    pickles = sorted(name for name in names if name.endswith(PICKLES))
    if pickles:
        raise CheckpointError(
            f"{folder} holds only pickled weights ({pickles[0]}), which can run code when they are read: refused; "
            "convert them to safetensors (save_pretrained of transformers does; for a drafter, mmspec convert)"
        )
    raise CheckpointError(
        f"{folder} holds no weights: a file *.safetensors is needed (mmspec convert makes one of a drafter's *.bin; of "
        "a model from a hub fetch the whole once more, or it has only pickled ones, which are not downloaded)"
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; CheckpointError if it is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} holds no {path.name}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def read_lines(file: str | os.PathLike[str]) -> list[str]:
    """The lines of a text file that are not empty, stripped. Raises: InputError: it cannot be read."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read as text: {error}") from error
    return [line.strip() for line in lines if line.strip()]


def check_goal(file: str | os.PathLike[str], endings: Collection[str], what: str) -> Path:
    """The path of a file to write. what: of what kind it is, for messages.

    Raises: InputError: another ending than these, or no folder to put it in.
    """
    goal = Path(file)
    if goal.suffix.lower() not in endings:
        raise InputError(f"{goal} has the ending {goal.suffix!r}: {what} is written as {', '.join(endings)}")
    if not os.path.isdir(goal.parent):  # pathlib raises for names that are too long
        raise InputError(f"{goal} cannot be written: there is no folder {goal.parent}")
    return goal


def check_sound(file: str | os.PathLike[str]) -> Path:
    """The path of a sound to write. Raises: InputError: see `check_goal`."""
    return check_goal(file, (".wav",), "speech")


def make_folder(folder: Path) -> Path:
    """A folder to write into, made where there is none. Raises: InputError: it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {reason(error)}") from error
    return folder


@contextmanager
def whole(goal: Path) -> Iterator[Path]:
    """A file to write beside `goal`, which takes its place when the block ends without an error: a reader sees the old
    one, none, or all of the new one. After an error `goal` is as it was. What a process that was killed left behind is
    removed."""
    tidy(goal)
    draft = goal.with_name(f".{goal.name}.{os.getpid()}.tmp")
    try:
        yield draft
        draft.replace(goal)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(file: Path, text: str) -> None:
    """Write a text, whole or not at all, and onto the disk."""
    with whole(file) as draft, draft.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
