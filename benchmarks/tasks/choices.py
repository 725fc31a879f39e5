"""Multiple choice: how options are written into a prompt, and which option a reply names.

Each rule returns a letter, or "" where the reply names none. Evaluation kits draw a random letter then; here it counts
as wrong, so that a score can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from string import ascii_uppercase

from mmspec.benchmarks.tasks.rows import Row
from mmspec.benchmarks.tasks.stated import unmarked
from mmspec.benchmarks.tasks.task import EXPLAIN, PUBLISHED, Item, Mark, Style

PUNCTUATION = str.maketrans({mark: " " for mark in ".()[],:;!*#{}\"'"})
NAMED = re.compile(r"\b(?i:answer(?: is|:)\s*(?:option |choice )?)\W{0,3}(?!A +[a-z])([A-Z])\b")  # "A bar" is none


def letters(choices: Sequence[str]) -> str:
    """The letters of the options, as one text."""
    return ascii_uppercase[: len(choices)]


def options(choices: Sequence[str], form: str) -> str:
    """The options, a line each; form: how one is written, such as "{letter}. {text}"."""
    return "\n".join(
        form.format(letter=letter, text=text) for letter, text in zip(ascii_uppercase, choices, strict=False)
    )


def explained(question: str, choices: Sequence[str] = ()) -> str:
    """The speed prompt: question, options if there are any, and the request to explain."""
    if not choices:
        return f"{question} {EXPLAIN}"
    return "\n".join([question, options(choices, "({letter}) {text}"), EXPLAIN])


def checked_letter(row: Row, answer: str, choices: Sequence[str]) -> str:
    """The answer's letter, which must be that of an option."""
    letter = answer.strip().upper()
    if len(letter) != 1 or letter not in letters(choices):
        raise row.error(f"the answer {answer!r} is none of the {len(choices)} options {', '.join(letters(choices))}")
    return letter


def bracketed_letter(reply: str, choices: Sequence[str]) -> str:
    """lmms-eval's rule for MMT-Bench (that of MMMU, arXiv 2311.16502): "(B)", else " B ", else "B.".

    Of several letters it takes the one that stands alone last, and the first where none stands alone.
    """
    text = reply.strip()
    for mark in ",.!?;:'":
        text = text.strip(mark)
    text = f" {text} "
    for form in ("({})", " {} ", "{}."):
        found = [letter for letter in letters(choices) if form.format(letter) in text]
        if found:
            return max(found, key=lambda letter: text.rfind(f" {letter} "))
    return ""


def first_letter(reply: str, choices: Sequence[str]) -> str:
    """lmms-eval's rule for SEED-Bench-2: the first character."""
    first = reply.strip()[:1]
    return first if first and first in letters(choices) else ""


def leading_letter(reply: str, choices: Sequence[str]) -> str:
    """lmms-eval's rule for ScienceQA: the reply is the letter, in either case, or starts with the letter and a stop."""
    text = reply.strip()
    if len(text) == 1 and text.upper() in letters(choices):
        return text.upper()
    return text[0] if text[1:2] == "." and text[0] in letters(choices) else ""


def named_letter(reply: str, choices: Sequence[str]) -> str:
    """The option that an explanation ends up with; the rule for the speed style, after VLMEvalKit's.

    In turn: the last "answer is B"; the last "(B)"; the only letter that stands alone, within the last five words; the
    only option whose text occurs in the last sentence, else in the whole reply.
    """
    known = letters(choices)
    marked = [letter for letter in re.findall(r"\(([A-Z])\)", reply) if letter in known]
    stated = [letter for letter in NAMED.findall(unmarked(reply)) if letter in known]
    if marked or stated:
        return (stated or marked)[-1]
    words = reply.translate(PUNCTUATION).split()
    alone = [letter for letter in known if letter in words]
    if len(alone) == 1 and alone[0] in words[-5:]:
        return alone[0]
    sentences = [part for part in re.split(r"(?<=[.!?])\s+", reply.strip()) if part]
    for text in (*sentences[-1:], reply):
        found = [letter for letter, choice in zip(known, choices, strict=True) if _occurs(choice, text)]
        if len(found) == 1:
            return found[0]
    return ""


class Lettered:
    """What tasks have in common whose answers are letters. rule: finds the letter in a reply to a score prompt."""

    metric, scored = "accuracy", PUBLISHED
    rule: Callable[[str, Sequence[str]], str]

    def mark(self, item: Item, reply: str, style: Style) -> Mark:
        """See `Task`."""
        letter = (self.rule if style == "score" else named_letter)(reply, item.choices)
        return Mark(letter, letter in item.answers)


def _occurs(choice: str, text: str) -> bool:
    """Whether an option's text stands in a reply as whole words."""
    return bool(re.search(rf"(?<!\w){re.escape(choice.strip().lower())}(?!\w)", text.lower()))
