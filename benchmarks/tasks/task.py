"""What every task gives the runner: questions with pictures, prompts in two styles, marks, and a stand-in for its data.

score style: the prompt under which published scores are taken (lmms-eval's), which asks for a word or a letter.
speed style: the question with the words "Please answer with an explanation.", as ViSpec (arXiv 2509.15235) asks, since
short answers measure the prefill and not drafting. The answer is then looked for in the explanation, by rules of our
own: such a number is not comparable with a leaderboard's, whatever the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import nsmallest
from pathlib import Path
from typing import Any, Literal, Protocol

from mmspec.benchmarks.tasks.pictures import Picture
from mmspec.errors import InputError, unknown_name

Style = Literal["score", "speed"]
STYLES: tuple[Style, ...] = ("score", "speed")
EXPLAIN = "Please answer with an explanation."
EXPLAINED = 1024
"""Most tokens of a reply in the speed style, as ViSpec, EAGLE and Spec-Bench have it."""
PUBLISHED = "as published"


@dataclass(frozen=True)
class Item:
    """One question.

    id: tells it from the others of the task. answers: those that are right; none where the split hides them.
    choices: texts of the options, the first is A. hint: text that belongs to the question. groups: breakdowns that the
    task is reported by, name -> value. facts: what else its scoring rule needs.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    choices: tuple[str, ...] = ()
    hint: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """All that is asked in words, and what is right: a file that was corrected asks other questions."""
        return repr((self.id, self.question, self.answers, self.choices, self.hint))


@dataclass(frozen=True)
class Mark:
    """A judged reply. value: the answer that was found in it, "" if none was, which counts as wrong."""

    value: str
    right: bool


class Task(Protocol):
    """One data set."""

    name: str
    """As `--task` takes it."""
    title: str
    metric: str
    scored: str
    """How a score of the score style was taken, such as PUBLISHED: what is said beside the metric."""
    short: str
    """The head of its column in Table 2."""
    files: Sequence[Sequence[str]]
    """Names and patterns of its official files, as for `find_files`."""
    lengths: Mapping[Style, int]
    """Most tokens of a reply to a question of its official files, where nobody says a number: in the score style those
    of the evaluation whose prompt it is, which cuts there, too (of MathVista fewer)."""
    note: str
    """What is to be said beside its figures, without a full stop; "" for nothing."""

    def items(self, path: Path) -> Iterator[Item]:
        """The questions of the official files at `path`, in their order. Raises: InputError that names file and row."""

    def prompt(self, item: Item, style: Style) -> str:
        """What is asked."""

    def mark(self, item: Item, reply: str, style: Style) -> Mark:
        """Judge a reply to an item that has answers."""

    def fixture(self, folder: Path, number: int, seed: str) -> Path:
        """Write a stand-in in the official schema, with pictures and questions of the miniworld; returns its path."""


TASKS = {
    "mmt-bench": "mmspec.benchmarks.tasks.mmt_bench:MMTBench",
    "seed-bench-2": "mmspec.benchmarks.tasks.seed_bench:SeedBench2",
    "scienceqa": "mmspec.benchmarks.tasks.scienceqa:ScienceQA",
    "ocrbench": "mmspec.benchmarks.tasks.ocrbench:OCRBench",
    "chartqa": "mmspec.benchmarks.tasks.chartqa:ChartQA",
    "mathvista": "mmspec.benchmarks.tasks.mathvista:MathVista",
    "spec-bench": "mmspec.benchmarks.tasks.spec_bench:SpecBench",
}
"""Name -> where the class is. The first six are those of Table 2 of the survey, in its order."""
WORDED = ("scienceqa", "spec-bench")
"""Those with questions that have no picture."""


def find_task(name: str) -> Task:
    """The task called `name`. Raises: UnknownNameError, which lists the known ones."""
    from importlib import import_module

    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    module, _, attribute = TASKS[name].partition(":")
    return getattr(import_module(module), attribute)()


def choose(items: Iterator[Item], number: int, seed: int = 0) -> list[Item]:
    """At most `number` items, drawn by a hash of their ids, so that the order of a file does not matter; in its order.

    Raises: InputError: an id occurs twice, so that results could not be told apart.
    """
    seen: set[str] = set()

    def ranked() -> Iterator[tuple[bytes, int, Item]]:
        for place, item in enumerate(items):
            if item.id in seen:
                raise InputError(f"the id {item.id!r} occurs twice in the data")
            seen.add(item.id)
            yield sha256(f"{seed}/{item.id}".encode()).digest(), place, item

    found = nsmallest(number, ranked(), key=lambda entry: entry[:2])
    return [item for _, _, item in sorted(found, key=lambda entry: entry[1])]
