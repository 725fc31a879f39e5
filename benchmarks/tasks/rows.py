"""Rows of official data files: JSON, JSON lines, TSV and parquet, each through the parser that everybody uses.

Data is somebody else's: a row knows its file and its place, and every complaint names both and the column.
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mmspec.errors import InputError, missing_extra, one_line, shorten

File = TypeVar("File", str, Path)
LARGEST_CELL = 2**27
"""Characters of a TSV cell: a picture as base64, in files of several pictures a list of them."""
UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
"""What parsers raise at texts that are wrong, nested too deep, or hold a number of thousands of digits."""


@dataclass(frozen=True)
class Row:
    """One record. place: how people find it in the file ("row 3", "entry '12'"); values: column -> value."""

    file: Path
    place: str
    values: Mapping[str, Any]

    def error(self, problem: str) -> InputError:
        """What is wrong with this row."""
        return InputError(f"{self.file}, {self.place}: {problem}")

    def get(self, *columns: str) -> Any:
        """The value of the first of the columns that has one; columns are names that the same thing has in mirrors."""
        return next((self.values[name] for name in columns if self.values.get(name) is not None), None)

    def need(self, *columns: str) -> Any:
        """The same, or an error that lists the columns found."""
        value = self.get(*columns)
        if value is not None:
            return value
        if any(name in self.values for name in columns):
            raise self.error(f"column {columns[0]!r} is empty")
        found = ", ".join(map(str, self.values)) or "none"
        raise self.error(f"column {' or '.join(map(repr, columns))} is missing; columns found: {found}")

    def text(self, *columns: str) -> str:
        """A text that must be there. Numbers are taken as they are written."""
        value = self.need(*columns)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.error(f"column {columns[0]!r} must hold a text, not {shorten(value)}")
        if not str(value).strip():
            raise self.error(f"column {columns[0]!r} is empty")
        return str(value)

    def note(self, *columns: str) -> str:
        """A text that may be missing: then ""."""
        value = self.get(*columns)
        return "" if value is None else str(value).strip()

    def literal(self, column: str, text: str) -> Any:
        """The list or the object that a text stands for; TSV files keep them so."""
        try:
            return ast.literal_eval(text)
        except UNREADABLE as error:
            raise self.error(f"column {column!r} holds no list or object: {shorten(text)}") from error

    def listed(self, *columns: str) -> tuple[str, ...]:
        """The same as `texts`, but in TSV files, which keep lists so, also the texts of a list that is written out."""
        value = self.get(*columns)
        if is_table(self.file) and isinstance(value, str) and value.startswith("["):
            try:
                found = self.literal(columns[0], value)
            except InputError:  # a text in brackets
                found = None
            if isinstance(found, list) and found and all(isinstance(item, str) for item in found):
                return tuple(found)
        return self.texts(*columns)

    def texts(self, *columns: str) -> tuple[str, ...]:
        """One text or a list of them."""
        value = self.need(*columns)
        found = value if isinstance(value, list | tuple) else [value]
        if not found or any(isinstance(item, bool) or not isinstance(item, str | int | float) for item in found):
            raise self.error(f"column {columns[0]!r} must hold a text or a list of texts, not {shorten(value)}")
        return tuple(map(str, found))


def is_table(file: Path) -> bool:
    """Whether cells are texts, with lists written out, and pictures as base64 or as the index of another row."""
    return file.suffix.lower() == ".tsv"


def find_files(path: Path, groups: Sequence[Sequence[str]]) -> list[Path]:
    """The data files under `path`, which is one of them or the folder that holds them.

    Args: groups: names or patterns that belong together, the preferred group first; a group is found when each of its
        patterns is, in the folder or one level below.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path} does not exist: give the data file, or the folder that holds it")
    return first_group(groups, lambda pattern: sorted([*path.glob(pattern), *path.glob(f"*/{pattern}")]), str(path))[1]


def first_group(
    groups: Sequence[Sequence[str]], find: Callable[[str], list[File]], place: str
) -> tuple[Sequence[str], list[File]]:
    """The first group of which every pattern is found, and the files.

    Args: find: the files of a pattern. place: where they should be, for messages.
    Raises: InputError: there is none.
    """
    for patterns in groups:
        found = [find(pattern) for pattern in patterns]
        if all(found):
            return patterns, [file for files in found for file in files]
    wanted = "; or ".join(" and ".join(patterns) for patterns in groups)
    raise InputError(f"{place} holds none of the official files: {wanted}")


def read_rows(file: Path, at: str | None = None) -> Iterator[Row]:
    """The rows of a file, by its ending.

    Args: at: key of the records in a JSON file that holds more than them. A JSON object of objects is one record per
        key, which becomes column "key".
    Raises: InputError: no such file, another ending, not what the ending says, or no row at all.
    """
    readers = {".jsonl": _json_lines, ".tsv": _table, ".csv": _table, ".parquet": _parquet}
    ending, empty = file.suffix.lower(), True
    if ending != ".json" and ending not in readers:
        raise InputError(f"{file} is not a data file that can be read; endings: .json, {', '.join(readers)}")
    try:
        for place, values in _json(file, at) if ending == ".json" else readers[ending](file):
            empty = False
            if not isinstance(values, Mapping):
                raise InputError(f"{file}, {place}: a record must have named columns, not {shorten(values)}")
            yield Row(file, place, values)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {one_line(error)}") from error
    if empty:
        raise InputError(f"{file} has no rows")


def _json(file: Path, at: str | None) -> Iterator[tuple[str, Any]]:
    text = file.read_text(encoding="utf-8-sig")
    try:
        whole = json.loads(text)
    except UNREADABLE as error:
        raise InputError(f"{file} is not JSON: {one_line(error)}") from error
    if at is not None and isinstance(whole, dict):
        if at not in whole:
            raise InputError(f"{file} has no {at!r}; it holds: {', '.join(whole) or 'nothing'}")
        whole = whole[at]
    if isinstance(whole, dict):
        yield from ((f"entry {key!r}", {"key": key, **_columns(value)}) for key, value in whole.items())
    elif isinstance(whole, list):
        yield from ((f"row {number}", value) for number, value in enumerate(whole, 1))
    else:
        raise InputError(f"{file} must hold a list or an object of records, not {shorten(whole)}")


def _columns(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


def _json_lines(file: Path) -> Iterator[tuple[str, Any]]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield f"line {number}", json.loads(line)
            except UNREADABLE as error:
                raise InputError(f"{file}, line {number}: not JSON ({one_line(error)})") from error


def _table(file: Path) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(LARGEST_CELL)  # the module has one limit for all readers
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, delimiter="\t" if file.suffix.lower() == ".tsv" else ",")
        try:
            for number, values in enumerate(reader, 1):
                if None in values:
                    raise InputError(f"{file}, row {number}: more cells than columns")
                yield f"row {number}", {name: value or None for name, value in values.items()}
        except csv.Error as error:
            raise InputError(f"{file}, line {reader.line_num}: {one_line(error)}") from error


def _parquet(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise missing_extra("pyarrow", "bench") from error
    try:
        with ParquetFile(file) as table:
            rows: Iterable[Any] = (row for batch in table.iter_batches(batch_size=32) for row in batch.to_pylist())
            yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))
    except pyarrow.ArrowException as error:
        raise InputError(f"{file} is not a parquet file that can be read: {one_line(error)}") from error
