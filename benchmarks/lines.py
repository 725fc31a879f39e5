"""How much a run takes of a file that holds one text a line."""

from __future__ import annotations

from pathlib import Path

from mmspec.safe_files import read_lines


def asked_for(count: int | None, usual: int, file: Path | None) -> int:
    """How many texts a run takes: `count`, or where nobody says the usual number, at most all that the file has."""
    if count is not None:
        return count
    return usual if file is None else max(1, min(usual, len(read_lines(file))))
