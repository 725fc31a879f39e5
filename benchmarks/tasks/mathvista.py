"""MathVista (arXiv 2310.02255): mathematics in pictures, free answers and multiple choice.

The official evaluation lets a judge model extract the answer. Here rules do it in both styles (the last option, number
or list), so the number is not comparable with the official leaderboard; it is called "rule accuracy". A judge of the
user's choice may do it instead: then the number is named after the judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmspec.benchmarks.tasks.choices import explained, letters, named_letter, options
from mmspec.benchmarks.tasks.extraction import Judge
from mmspec.benchmarks.tasks.pictures import Picture, pictured_rows
from mmspec.benchmarks.tasks.rows import Row, find_files
from mmspec.benchmarks.tasks.stated import last_list, last_number, marked_number
from mmspec.benchmarks.tasks.task import EXPLAINED, Item, Mark, Style
from mmspec.benchmarks.tasks.world import asked, save_json, save_picture
from mmspec.edits import distance
from mmspec.errors import shorten

FILES = (("testmini.json",), ("testmini*.parquet",), ("MathVista_MINI.tsv",))
HINTS = {
    "text": "the question and provide the correct option letter, e.g., A, B, C, D,",
    "integer": "the question requiring an integer answer and provide the final value, e.g., 1, 2, 3,",
    "float1": "the question requiring a floating-point number with one decimal place and provide the final value, "
    "e.g., 1.2, 1.3, 1.4,",
    "float2": "the question requiring a floating-point number with two decimal places and provide the final value, "
    "e.g., 1.23, 1.34, 1.45,",
    "list": "the question requiring a Python list as an answer and provide the final list, e.g., [1, 2, 3], "
    "[1.2, 1.3, 1.4],",
}
"""What the official prompts ask for, by the type of answer."""
READY = "Hint: "
"""How a question begins that is the official prompt already, as in VLMEvalKit's TSV."""
TYPES = ("text", "integer", "float", "list")
THOUGHT = 2048
"""Most tokens of a chain of thought: of the 16,384 that lmms-eval allows, a model that repeats itself would use all."""
WANTED = {
    "text": "the letter or the words of one of the choices",
    "integer": "a whole number",
    "float": "a number",
    "list": "a list in square brackets, such as [1, 2]",
}
"""What a judge is asked to copy, by the type of answer."""


class MathVista:
    """`testmini.json` with its `images` folder, the parquet mirror, or VLMEvalKit's TSV."""

    name = "mathvista"
    title = "MathVista"
    scored = "answers found by rules, where the published one takes a judge model"
    short = "MathVista"
    files = FILES
    lengths: Mapping[Style, int] = {"score": THOUGHT, "speed": EXPLAINED}
    note = ""

    def __init__(self, judge: Judge | None = None) -> None:
        self.judge = judge
        self.metric = "rule accuracy" if judge is None else f"accuracy, answers extracted by {judge.name}"

    def judged_by(self, judge: Judge) -> MathVista:
        """The task with a judge."""
        return MathVista(judge)

    def items(self, path: Path) -> Iterator[Item]:
        """See `Task`."""
        for file in find_files(path, self.files):
            for row in pictured_rows(file):
                yield _item(row)

    def prompt(self, item: Item, style: Style) -> str:
        """See `Task`."""
        if item.question.startswith(READY):
            return explained(item.question) if style == "speed" else item.question
        unit = item.facts["unit"]
        question = f"{item.question} (Unit: {unit})" if unit else item.question
        if style == "speed":
            return explained(question, item.choices)
        kind, precision = item.facts["answer_type"], item.facts["precision"]
        hint = HINTS[f"float{precision}" if kind == "float" else kind]
        lines = [f"Hint: Please answer {hint} at the end.", f"Question: {question}"]
        if item.choices:
            lines += ["Choices:", options(item.choices, "({letter}) {text}")]
        return "\n".join(lines).strip()  # as the official prompts are: some questions and options end in spaces

    def mark(self, item: Item, reply: str, style: Style) -> Mark:
        """Extract by rule or by the judge, normalise as the official script does, compare texts."""
        kind, precision = item.facts["answer_type"], item.facts["precision"]
        told = reply if self.judge is None else self.judge(self.prompt(item, "score"), reply, WANTED[kind])
        found = extracted(told, kind, item.choices, item.facts.get("unit", ""))
        value = normalised(found, kind, item.choices, precision)
        return Mark(value, value in item.answers)

    def fixture(self, folder: Path, number: int, seed: str) -> Path:
        """Pictures of the miniworld with every type of answer: an average for floats, values of a chart for a list."""
        entries = {}
        for index, found in enumerate(asked(number, seed, ("bar", "pie", "line"))):
            pid = str(index + 1)
            save_picture(found.image, folder / "images" / f"{pid}.png")
            entries[pid] = {"pid": pid, "image": f"images/{pid}.png", **_stand_in(found, TYPES[index % 4], index // 4)}
        save_json(entries, folder / "testmini.json")
        return folder


def extracted(reply: str, kind: str, choices: Sequence[str], unit: str = "") -> str:
    """The answer in a reply, by rules; "" if there is none. unit: of the question, which may stick to its number."""
    text = reply.strip()
    quoted = re.search(r'The answer is "(.*)"\.', text)
    if text in choices or quoted:
        return quoted[1] if quoted else text
    if kind == "text":
        letter = named_letter(text, choices)
        # what is no longer than an option may be a misspelt one; the official script takes the nearest
        return letter or (text if text and len(text) <= 2 * max(map(len, choices), default=0) else "")
    if kind == "list":
        return last_list(text)
    if unit:
        text = re.sub(rf"(?<=\d){re.escape(unit)}(?!\w)", f" {unit}", text)
    return (marked_number(text) or last_number(text)).rstrip("%")


def normalised(answer: str, kind: str, choices: Sequence[str], precision: int | None) -> str:
    """An extracted answer in the form of the official ones; "" where that cannot be."""
    if not answer:
        return ""
    if kind == "text":
        marked = re.findall(r"\(([a-zA-Z])\)", answer)
        letter = marked[0].upper() if marked else answer.strip()
        if len(letter) == 1 and letter in letters(choices):
            return choices[letters(choices).index(letter)]
        return min(choices, key=lambda choice: distance(letter, choice))
    try:
        if kind == "integer":
            return str(int(float(answer)))
        return str(round(float(answer), precision)) if kind == "float" else answer
    except (ValueError, OverflowError):
        return ""


def _item(row: Row) -> Item:
    meta = _literal(row, "metadata", Mapping) or row.values
    choices = tuple(map(str, _literal(row, "choices", Sequence) or ()))
    kind = row.text("answer_type")
    precision = _precision(row)
    if kind not in TYPES:
        raise row.error(f"answer_type {kind!r} is none of {', '.join(TYPES)}")
    if kind == "text" and not choices:
        raise row.error("a multiple-choice question without choices")
    if kind == "float" and precision not in (1, 2):
        raise row.error(f"precision {precision!r} of a float answer is neither 1 nor 2")
    answer = row.note("answer")
    if kind == "text" and answer and answer not in choices:
        raise row.error(f"the answer {answer!r} is none of the choices {', '.join(choices)}")
    column = "decoded_image" if row.get("decoded_image") is not None else "image"
    return Item(
        id=row.text("pid", "index", "key"),
        question=row.text("question"),
        answers=(answer,) if answer else (),
        pictures=(Picture(row, column, row.need(column)),),
        choices=choices,
        groups={name: str(meta[name]) for name in ("task", "category", "language") if meta.get(name)},
        facts={
            "answer_type": kind,
            "precision": precision,
            "unit": row.note("unit"),
        },
    )


def _precision(row: Row) -> int | None:
    """Decimal places; files tell them as a whole number, as a float, or as the text of one."""
    value = row.get("precision")
    if value is None or value == "":
        return None
    try:
        return int(float(value))
    except (ValueError, TypeError, OverflowError) as error:
        raise row.error(f"column 'precision' must hold a number, not {shorten(value)}") from error


def _literal(row: Row, column: str, wanted: type) -> Any:
    """A column that holds a structure, or (in TSV files) the text of one; None if it is empty."""
    value = row.get(column)
    found = row.literal(column, value) if isinstance(value, str) else value
    if found is not None and (isinstance(found, str) or not isinstance(found, wanted)):
        raise row.error(f"column {column!r} holds {shorten(found)} where a list or an object should be")
    return found


def _stand_in(found: Any, kind: str, turn: int) -> dict[str, Any]:
    """A question of one type about a chart."""
    facts = found.facts
    values = list(facts.values)
    asks = {
        "text": (found.question, found.gold),
        "integer": ("What is the largest value in the chart?", str(max(values))),
        "float": ("What is the average of all values?", str(round(sum(values) / len(values), 1 + turn % 2))),
        "list": ("Which are the values, from first to last?", str(values)),
    }
    question, answer = asks[kind]
    choices = list(found.options) if kind == "text" else None
    return {
        "question": question,
        "choices": choices,
        "unit": "points" if kind == "integer" else None,
        "precision": 1 + turn % 2 if kind == "float" else None,
        "answer": answer,
        "question_type": "multi_choice" if choices else "free_form",
        "answer_type": kind,
        "metadata": {"split": "testmini", "language": "english", "source": "miniworld", "category": "general-vqa",
                     "task": "figure question answering", "context": f"{facts.kind} chart", "grade": "not applicable",
                     "img_width": 320, "img_height": 320, "skills": ["statistical reasoning"]},
    }  # fmt: skip
