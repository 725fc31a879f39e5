"""Spec-Bench (arXiv 2401.07851): text prompts of six kinds, for the methods of Table 1. First turns only; nothing is
scored, because its prompts have no answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from mmspec.benchmarks.tasks.rows import find_files, read_rows
from mmspec.benchmarks.tasks.task import EXPLAINED, Item, Mark, Style
from mmspec.benchmarks.tasks.world import Asked, asked, told

FILES = (("question.jsonl",),)
KINDS = {
    "mt_bench": "conversation",
    "translation": "translation",
    "summarization": "summarization",
    "qa": "qa",
    "math_reasoning": "math",
    "rag": "rag",
}
"""Categories of the official file -> columns of Table 1. Its eight kinds of conversation count as mt_bench."""


class SpecBench:
    """The official `question.jsonl`."""

    name = "spec-bench"
    title = "Spec-Bench"
    metric = scored = "not scored"
    short = "Spec-Bench"
    files = FILES
    lengths: Mapping[Style, int] = {"score": EXPLAINED, "speed": EXPLAINED}
    note = f"{KINDS['mt_bench']}: first turns only, where the benchmark has two"

    def items(self, path: Path) -> Iterator[Item]:
        """See `Task`."""
        for file in find_files(path, self.files):
            for row in read_rows(file):
                category = row.text("category")
                kind = KINDS.get(category, KINDS["mt_bench"])
                yield Item(row.text("question_id"), row.texts("turns")[0], groups={"category": kind})

    def prompt(self, item: Item, style: Style) -> str:
        """The prompt as it is; its answers are long anyway."""
        return item.question

    def mark(self, item: Item, reply: str, style: Style) -> Mark:
        """Nothing to judge."""
        return Mark("", False)

    def fixture(self, folder: Path, number: int, seed: str) -> Path:
        """The six kinds in turn, about what miniworld pictures show, told in words."""
        folder.mkdir(parents=True, exist_ok=True)
        found = asked(number + 2, seed, ("bar", "table", "pie", "line"), choices=1)
        lines = []
        for index, category in zip(range(number), [*KINDS] * (number // len(KINDS) + 1), strict=False):
            turn = _turn(category, found[index : index + 3])
            lines.append(json.dumps({"question_id": index + 1, "category": category, "turns": [turn]}))
        path = folder / "question.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path


def _turn(category: str, found: list[Asked]) -> str:
    """A prompt of one kind, about the first of three pictures, the others serving as distraction."""
    first = found[0]
    texts = [told(each.facts) for each in found]
    german = f"Das Bild zeigt {first.facts.family}. Die Antwort ist {first.gold}."
    return {
        "mt_bench": f"{texts[0]} Describe this picture in detail.",
        "translation": f"Translate German to English: {german}",
        "summarization": f"Summarize: {' '.join(texts)}",
        "qa": first.question,
        "math_reasoning": f"{texts[0]} {first.question} Explain how you got the result.",
        "rag": f"Answer from the passages. {' '.join(texts)} Question: {first.question}",
    }[category]
