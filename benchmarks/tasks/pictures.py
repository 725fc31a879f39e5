"""Pictures of data rows: base64 cells, parquet cells, or paths beside the data; opened when they are asked for."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from mmspec.benchmarks.tasks.rows import LARGEST_CELL, Row, is_table, read_rows
from mmspec.errors import InputError, shorten
from mmspec.media import load_image

REFERENCE = 64
"""A whole number of at most so many digits in a picture cell of a TSV file is the index of the row that has it."""
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")


@dataclass(frozen=True)
class Picture:
    """A picture cell; a `Path` is one whatever its ending. Paths are relative to the folder of the row's file, or to
    one of `others`, and lead nowhere else."""

    row: Row
    column: str
    cell: Any
    others: tuple[Path, ...] = ()

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
        if isinstance(cell, Path):
            return self._found(cell)
        if not isinstance(cell, str):
            raise InputError(f"a picture must be a path, base64 or bytes, not {shorten(self.cell)}")
        if cell.lower().endswith(ENDINGS):
            return self._found(cell)
        try:
            return base64.b64decode(cell, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InputError(f"{shorten(cell, 40)} is neither base64 nor the name of a picture ({error})") from error

    def _found(self, name: str | Path) -> Path:
        """The file in one of the other folders, else where it should be beside the data."""
        beside = inside(self.row.file.parent, name)
        return next((path for folder in self.others if os.path.isfile(path := inside(folder, name))), beside)


def inside(root: Path, name: str | Path) -> Path:
    """The file `name` under `root`. Raises: InputError if it lies elsewhere."""
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()):
        raise InputError(f"the path {shorten(str(name))} leaves the data folder {root}")
    return path


def cells(row: Row, column: str) -> list[Any]:
    """The picture cells of a column: none, one, a list, or the text of a list, as in TSV files of several pictures."""
    value = row.get(column)
    if isinstance(value, str) and value.startswith("[") and len(value) <= LARGEST_CELL:
        value = row.literal(column, value)
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def pictures(row: Row, column: str) -> tuple[Picture, ...]:
    """The pictures of a column."""
    return tuple(Picture(row, column, cell) for cell in cells(row, column))


def pictured_rows(file: Path, at: str | None = None) -> Iterator[Row]:
    """The rows of a file, as `read_rows` gives them; of a TSV file a row that points to another one has its picture.

    A TSV file is read once or twice more, because it may not fit in memory.
    Raises: InputError: as `read_rows`; a row points to one without a picture.
    """
    owners = _owners(file) if is_table(file) else {}
    for row in read_rows(file, at):
        reference = _reference(row) if is_table(file) else ""
        if not reference:
            yield row
        elif reference in owners:
            yield replace(row, values={**row.values, "image": owners[reference].values["image"]})
        else:
            raise row.error(f"the picture is that of row index {reference}, which has none")


def _owners(file: Path) -> dict[str, Row]:
    """The rows whose pictures others show, by index."""
    wanted = {reference for row in read_rows(file) if (reference := _reference(row))}
    if not wanted:
        return {}
    return {row.note("index"): row for row in read_rows(file) if row.note("index") in wanted and not _reference(row)}


def _reference(row: Row) -> str:
    """The index that stands in place of a picture; "" if there is none."""
    found = cells(row, "image")
    only = str(found[0]) if len(found) == 1 and isinstance(found[0], str | int) else ""
    return only if only.isdecimal() and len(only) <= REFERENCE else ""
