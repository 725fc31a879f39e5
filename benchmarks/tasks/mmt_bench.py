"""MMT-Bench (arXiv 2404.16006): 162 subtasks of multiple choice, some with several pictures."""

from __future__ import annotations

import base64
import csv
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from mmspec.benchmarks.tasks.choices import Lettered, bracketed_letter, checked_letter, explained, options
from mmspec.benchmarks.tasks.pictures import pictured_rows, pictures
from mmspec.benchmarks.tasks.rows import Row, find_files
from mmspec.benchmarks.tasks.task import EXPLAINED, Item, Style
from mmspec.benchmarks.tasks.world import asked

FILES = (("MMT-Bench_VAL.tsv",), ("MMT-Bench_VAL_MI.tsv",), ("*val*.parquet",), ("*VAL*.parquet",))
LETTERS = "ABCDEFGHI"


class MMTBench(Lettered):
    """The official TSV files, with one picture or several per row, or the parquet mirrors."""

    name = "mmt-bench"
    title = "MMT-Bench"
    short = "MMT"
    files = FILES
    lengths: Mapping[Style, int] = {"score": 8, "speed": EXPLAINED}
    note = ""
    rule = staticmethod(bracketed_letter)

    def items(self, path: Path) -> Iterator[Item]:
        """See `Task`."""
        for file in find_files(path, self.files):
            for row in pictured_rows(file):
                yield _item(row)

    def prompt(self, item: Item, style: Style) -> str:
        """As lmms-eval's, less the picture mark that it writes into the text: pictures come apart from it."""
        question = f"{item.hint}\n{item.question}" if item.hint else item.question
        if style == "speed":
            return explained(question, item.choices)
        told = options(item.choices, "{letter}: {text}")
        return f"Question: {question}\n{told}\nAnswer the question using a single character from the given options."

    def fixture(self, folder: Path, number: int, seed: str) -> Path:
        """Every fourth row has two pictures, every fourth shares the picture of the row before."""
        folder.mkdir(parents=True, exist_ok=True)
        rows: list[dict[str, Any]] = []
        before = ""
        for index, found in enumerate(asked(number, seed)):
            picture = _base64(found.image)
            cell = {1: str([picture, before]), 3: str(index - 1)}.get(index % 4, picture)
            before = picture
            texts = dict(zip(LETTERS, found.options, strict=False))
            rows.append({
                "index": index, "question": found.question, "answer": LETTERS[found.options.index(found.gold)],
                **{letter: texts.get(letter, "") for letter in LETTERS}, "image": cell,
                "category": f"{found.facts.family}_{found.topic}", "l2-category": found.facts.family, "split": "VAL",
            })  # fmt: skip
        path = folder / "MMT-Bench_VAL.tsv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
            writer.writeheader()
            writer.writerows(rows)
        return path


def _item(row: Row) -> Item:
    choices = tuple(row.note(letter) for letter in LETTERS)
    choices = tuple(choice for choice in choices if choice)
    if len(choices) < 2:
        raise row.error("fewer than two of the options A, B, ... are filled")
    answer = row.note("answer")
    row.need("image")
    groups = {"meta-task": row.note("l2-category", "l2_category"), "subtask": row.note("category")}
    return Item(
        id=row.text("index"),
        question=row.text("question"),
        answers=(checked_letter(row, answer, choices),) if answer else (),
        pictures=pictures(row, "image"),
        choices=choices,
        hint=row.note("hint"),
        groups={name: value for name, value in groups.items() if value},
    )


def _base64(image: Image.Image) -> str:
    data = BytesIO()
    image.save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode("ascii")
