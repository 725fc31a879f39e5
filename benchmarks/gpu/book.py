"""What a stage writes down: records by key, kept as JSON and shown as a table, written whole after every record.

A run that is killed keeps what it has, and the same command goes on behind it; what failed is tried again. Records
made under other settings are never mixed with new ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmspec.benchmarks.machine import conditions
from mmspec.errors import InputError, shorten
from mmspec.safe_files import make_folder, read_json, write_whole

Row = Sequence[Any]
Tables = Callable[[dict[str, dict[str, Any]]], list[tuple[str, list[Row]]]]
"""From records to tables: title, then rows of cells, the first one the head."""


class Book:
    """The results of one stage: `<stage>.json` and `<stage>.md` in a folder.

    Args: folder: made if it is not there. settings: what the figures depend on. intro: what the stage measures.
        tables: how its records are shown. card: what is known of the device, beside `conditions()`.
    Raises: InputError: the folder holds results with other settings, or cannot be written. CheckpointError: they are
        damaged.
    """

    def __init__(
        self, folder: Path, stage: str, settings: dict[str, Any], intro: str, tables: Tables, card: dict[str, Any]
    ) -> None:
        self.stage, self.settings, self.intro, self.tables, self.card = stage, settings, intro, tables, card
        self.path = make_folder(folder) / f"{stage}.json"
        self.records: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            before = read_json(self.path)
            if before.get("settings") != json.loads(json.dumps(settings)):
                told = f"{shorten(before.get('settings'))}, now {shorten(settings)}"
                raise InputError(f"{self.path} holds results with other settings ({told}): choose another folder")
            self.records = before["records"]

    def has(self, key: str) -> bool:
        """Whether a figure is there and did not fail."""
        return key in self.records and "error" not in self.records[key]

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Take a record in and write everything."""
        self.records[key] = {**record, **conditions(), "card": self.card}
        whole = {"stage": self.stage, "settings": self.settings, "records": self.records}
        write_whole(self.path, json.dumps(whole, indent=1))
        write_whole(self.path.with_suffix(".md"), self.text())

    def text(self) -> str:
        """The results as Markdown."""
        parts = [f"# {self.stage}", self.intro]
        if self.settings["small"]:
            parts.append("Small mode: a check of the machinery on shrunken models. No figure here is a measurement.")
        parts.append("Settings: " + ", ".join(f"{name} {value}" for name, value in self.settings.items()))
        if self.records:
            last = list(self.records.values())[-1]
            where = {**last["hardware"], **last["versions"], **last["card"]}
            told = [f"{name} {shown(value)}" for name, value in where.items() if value is not None]
            parts.append("; ".join([last["date"], *told]))
        good = {key: record for key, record in self.records.items() if "error" not in record}
        for title, rows in self.tables(good):
            parts.append(f"## {title}\n\n{markdown(rows)}")
        failed = [f"- {key}: {record['error']}" for key, record in self.records.items() if "error" in record]
        if failed:
            parts.append("## Failed\n\n" + "\n".join(failed))
        return "\n\n".join(parts) + "\n"


def markdown(rows: Sequence[Row]) -> str:
    """A table: the first row is the head; floats get as many digits as they deserve."""
    cells = [[shown(value) for value in row] for row in rows]
    head, *body = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([head, "|" + "---|" * len(cells[0]), *body])


def shown(value: Any) -> str:
    """A cell."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"
    return str(value)
