"""Pictures of data rows: base64 cells, parquet cells, or paths beside the data; opened when they are asked for."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from mmspec.benchmarks.tasks.rows import LARGEST_CELL, Row
from mmspec.errors import InputError, shorten
from mmspec.media import load_image

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")


@dataclass(frozen=True)
class Picture:
    """A picture cell. root: the folder that paths are relative to, and that they may not leave."""

    row: Row
    column: str
    cell: Any
    root: Path

    def load(self) -> Image.Image:
        """The picture, RGB. Raises: InputError, which names file, row and column."""
        try:
            return load_image(self._source())
        except InputError as error:
            raise self.row.error(f"column {self.column!r}: {error}") from error

    def _source(self) -> bytes | Path:
        cell = self.cell
        if isinstance(cell, dict):  # how parquet files keep pictures: the bytes, or a path
            cell = cell.get("bytes") or cell.get("path")
        if isinstance(cell, bytes):
            return cell
        if not isinstance(cell, str):
            raise InputError(f"a picture must be a path, base64 or bytes, not {shorten(self.cell)}")
        if cell.lower().endswith(ENDINGS):
            return inside(self.root, cell)
        try:
            return base64.b64decode(cell, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InputError(f"{shorten(cell, 40)} is neither base64 nor the name of a picture ({error})") from error


def inside(root: Path, name: str) -> Path:
    """The file `name` under `root`. Raises: InputError if it lies elsewhere."""
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()):
        raise InputError(f"the path {shorten(name)} leaves the data folder {root}")
    return path


def cells(row: Row, column: str) -> list[Any]:
    """The picture cells of a column: none, one, a list, or the text of a list, as in TSV files of several pictures."""
    value = row.get(column)
    if isinstance(value, str) and value.startswith("[") and len(value) <= LARGEST_CELL:
        value = row.literal(column, value)
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def pictures(row: Row, column: str, root: Path) -> tuple[Picture, ...]:
    """The pictures of a column."""
    return tuple(Picture(row, column, cell, root) for cell in cells(row, column))
