"""ScienceQA (arXiv 2209.09513): school questions with two to five options, many of them without a picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from mmspec.benchmarks.tasks.choices import Lettered, explained, leading_letter, letters, options
from mmspec.benchmarks.tasks.pictures import Picture, pictured_rows, pictures
from mmspec.benchmarks.tasks.rows import Row, find_files
from mmspec.benchmarks.tasks.task import EXPLAINED, Item, Style
from mmspec.benchmarks.tasks.world import asked, save_json, save_picture
from mmspec.errors import InputError

FILES = (("problems.json",), ("ScienceQA-FULL/test*.parquet",), ("test*.parquet",), ("ScienceQA_TEST.tsv",))
"""A mirror with two sets of questions holds those with pictures in both."""
SUBJECTS = {"natural science": "NAT", "social science": "SOC", "language science": "LAN"}


class ScienceQA(Lettered):
    """`problems.json`, `pid_splits.json` and `images`, the parquet mirrors, or VLMEvalKit's TSV; the test split."""

    name = "scienceqa"
    title = "ScienceQA"
    short = "ScienceQA"
    files = FILES
    lengths: Mapping[Style, int] = {"score": 16, "speed": EXPLAINED}
    note = ""
    rule = staticmethod(leading_letter)

    def items(self, path: Path) -> Iterator[Item]:
        """See `Task`."""
        for file in find_files(path, self.files):
            test = _test_ids(file) if file.name == "problems.json" else None
            for number, row in enumerate(pictured_rows(file), 1):
                if test is None or row.values.get("key") in test:
                    yield _item(row, number)

    def prompt(self, item: Item, style: Style) -> str:
        """See `Task`."""
        context = f"Context: {item.hint}\n" if item.hint else ""
        if style == "speed":
            return f"{context}{explained(item.question, item.choices)}"
        told = options(item.choices, "{letter}. {text}")
        return f"{context}{item.question}\n{told}\nAnswer with the option's letter from the given choices directly."

    def fixture(self, folder: Path, number: int, seed: str) -> Path:
        """Two to five options in turn; every third question without a picture, its answer in the hint."""
        problems, subjects = {}, list(SUBJECTS)
        for index, found in enumerate(asked(number, seed, ("bar", "line", "pie", "table"), choices=2)):
            pid, hidden = str(index + 1), index % 3 == 2
            numbers = [str(n) for n in range(100, 103)]
            choices = [*found.options, *numbers[: index % 4]]
            if not hidden:
                save_picture(found.image, folder / "images" / "test" / pid / "image.png")
            problems[pid] = {
                "question": found.question, "choices": choices, "answer": choices.index(found.gold),
                "hint": found.answer if hidden else "", "image": None if hidden else "image.png",
                "task": "closed choice", "grade": f"grade{1 + index % 12}", "subject": subjects[index % 3],
                "topic": found.topic, "category": "figures", "skill": "read a figure", "lecture": "", "solution": "",
                "split": "test",
            }  # fmt: skip
        save_json({"train": [], "val": [], "test": list(problems)}, folder / "pid_splits.json")
        save_json(problems, folder / "problems.json")
        return folder


def _item(row: Row, number: int) -> Item:
    choices = row.texts("choices") if row.get("choices") is not None else _lettered(row)
    answer = row.need("answer")
    if isinstance(answer, str) and answer in [*letters(choices)]:  # TSV files tell the letter
        answer = letters(choices).index(answer)
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
        raise row.error(f"the answer {answer!r} is not the index of one of the {len(choices)} choices")
    key = row.note("key", "index", "id") or f"{row.file.stem}/{number}"
    found = _pictures(row, key)
    hint = row.note("hint")
    grade = row.note("grade").removeprefix("grade")
    groups = {"hint": "TXT"} if hint else {}  # a question with both counts in both, as in the official evaluation
    if found:
        groups["image"] = "IMG"
    if not groups:
        groups["context"] = "NO"
    if subject := row.note("subject"):
        groups["subject"] = SUBJECTS.get(subject, subject)
    if grade.isdigit():
        groups["grade"] = "1-6" if int(grade) <= 6 else "7-12"
    return Item(key, row.text("question"), (letters(choices)[answer],), found, choices, hint, groups)


def _lettered(row: Row) -> tuple[str, ...]:
    """The options where each has a column of its own."""
    found = tuple(row.note(letter) for letter in "ABCDE")
    choices = tuple(choice for choice in found if choice)
    if len(choices) < 2:
        row.need("choices")
        raise row.error("fewer than two options")
    return choices


def _pictures(row: Row, key: str) -> tuple[Picture, ...]:
    name = row.get("image")
    if isinstance(name, str) and row.file.suffix == ".json":
        path = f"images/{row.note('split') or 'test'}/{key}/{name}"
        return (Picture(row, "image", path),)
    return pictures(row, "image")


def _test_ids(problems: Path) -> set[str]:
    path = problems.with_name("pid_splits.json")
    try:
        return set(json.loads(path.read_text(encoding="utf-8"))["test"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} must be there and list the ids of the split 'test'") from error
