"""How much a run takes of a file that holds one text a line."""

from __future__ import annotations

from pathlib import Path

from mmspec.errors import InputError


def line_count(file: Path) -> int:
    """Lines that are not empty. Raises: InputError: the file cannot be read."""
    try:
        return sum(bool(line.strip()) for line in file.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read as text: {error}") from error


def asked_for(count: int | None, usual: int, file: Path | None) -> int:
    """How many texts a run takes: `count`, or where nobody says the usual number, at most all that the file has."""
    if count is not None:
        return count
    return usual if file is None else max(1, min(usual, line_count(file)))
