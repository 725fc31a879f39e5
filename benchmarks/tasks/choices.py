"""Multiple choice: how options are written into a prompt, and which option a reply names.

Each rule returns a letter, or "" where the reply names none. Evaluation kits draw a random letter then; here it counts
as wrong, so that a score can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from string import ascii_uppercase

from mmspec.benchmarks.tasks.rows import Row
from mmspec.benchmarks.tasks.stated import unmarked
from mmspec.benchmarks.tasks.task import EXPLAIN, PUBLISHED, Item, Mark, Style

PUNCTUATION = str.maketrans({mark: " " for mark in ".()[],:;!*#{}\"'"})
WHY = "because|since|as|for|but|so|which"
"""How the words begin that explain a letter."""
WORD = re.compile(rf"\b[AI](?= +(?!(?:{WHY}|is|was|has|shows|and|or)\b)[a-z])")
"""An A or I that is no letter: A bar, I think."""
NAMED = re.compile(
    r"\b(?i:(?:answer|(?:correct|right|best|final|my) (?:option|choice))(?: is|:)\s*"
    r"(?:(?:therefore|thus) )?(?:option |choice )?)\W{0,3}(?P<told>[A-Z])\b"
    r"|\b(?P<praised>[A-Z])\)? (?i:is (?:correct|the (?:(?:correct|right|best) )?(?:answer|option|choice))\b)"
)
"""The answer is B; B is correct."""
LEADING = re.compile(rf"\W*(?:(?i:option|choice) )?\(?([A-Z])\)?(?=\s*(?:$|[).:](?!\w)|\n|,? (?:{WHY})\b))")
"""B. blue; Option B, because."""
LABEL = re.compile(r"(?i:\b(?:option|choice) )\(?([A-Z])\b|\b([A-Z])[).:](?!\w)")
"""An option as lists of them have it."""
TAKEN_BACK = re.compile(r"[.!?:;,\n-]\s*(?:no,? )?(?:wait|actually|sorry|correction)\b", re.IGNORECASE)
STRUCK = re.compile(
    r"(?i:(?:\b(?:not|cannot|never|neither|nor|than|instead of|unlike)|n't)(?: be)?(?: option| choice)? "
    r"|\b(?:wrong|incorrect) (?:answer|option|choice)(?: is|:)? )[(\[\"']?[A-Z]\b\)?"
    r"|\(?\b[A-Z]\b\)?(?i: (?:is|was|would be|can|could)(?:n?'t| ?not| wrong| incorrect| false)\b)"
)
"""Letters that are denied or only compared with."""
UNDECIDED = re.compile(
    r"\(?\b[A-Z]\b\)?(?:(?:, (?:or |and )?| or | and |/)(?i:option |choice )?\(?\b[A-Z]\b\)?)+(?! is\b)"
)
"""Several letters at once: B or C."""
LABELLED = re.compile(r"\w\W+[A-Z]\b|\b[A-Z]\W+\w")
"""An option whose text has a letter of its own: Solution A."""


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

    In turn: the last "answer is B" or "B is correct"; the "B." at its start, if it neither goes on to other letters nor
    takes that back; the last "(B)"; the only option with a letter in its text ("Solution A") that occurs in the last
    sentence; the only letter that stands alone, within the last five words; the only option whose text occurs in the
    last sentence, else in the whole reply; but no text beside another letter at its start. What is denied ("not B",
    "not blue") is not named, and neither is one of several letters ("B or C"). A letter within an option's text is
    none: "the answer is Solution A" names the option that is called so.
    """
    known = letters(choices)
    told = text = WORD.sub(lambda word: word[0].lower(), unmarked(reply))
    options = dict(zip(known, choices, strict=False))
    labelled = {letter: choice for letter, choice in options.items() if LABELLED.search(choice)}
    for letter, choice in sorted(labelled.items(), key=lambda option: -len(option[1])):  # a text may hold another one
        told = re.sub(_whole(choice), letter, told, flags=re.IGNORECASE)
        text = re.sub(_whole(choice), "none", text, flags=re.IGNORECASE)
    told, text = _decided(told), _decided(text)
    stated = _stated(text, known) or _stated(told, known)
    if stated:
        return stated[-1]
    words = text.translate(PUNCTUATION).split()
    marked = _known(re.findall(r"\(([A-Z])\)", text), known)
    first, kept = _leading(text, words, known)
    if kept:
        return first
    if marked:
        return marked[-1]

    def written(among: dict[str, str], part: str) -> str:
        found = [letter for letter, choice in among.items() if _occurs(choice, part)]
        return found[0] if len(found) == 1 and first in ("", found[0]) else ""

    last = re.split(r"(?<=[.!?])\s+", reply.strip())[-1]
    if letter := written(labelled, last):
        return letter
    alone = [letter for letter in known if letter in words]
    if len(alone) == 1 and alone[0] in words[-5:]:
        return alone[0]
    return written(options, last) or ("" if first else written(options, reply))


class Lettered:
    """What tasks have in common whose answers are letters. rule: finds the letter in a reply to a score prompt."""

    metric, scored = "accuracy", PUBLISHED
    rule: Callable[[str, Sequence[str]], str]

    def mark(self, item: Item, reply: str, style: Style) -> Mark:
        """See `Task`."""
        letter = (self.rule if style == "score" else named_letter)(reply, item.choices)
        return Mark(letter, letter in item.answers)


def _known(found: Iterable[str], known: str) -> list[str]:
    """Those of the letters that are options."""
    return [letter for letter in found if letter in [*known]]


def _decided(text: str) -> str:
    """A text without the letters that are denied, and without those of which it names several at once."""
    return UNDECIDED.sub("none", STRUCK.sub("none", text))


def _stated(text: str, known: str) -> list[str]:
    """The options that a text says are the answer."""
    return _known((found["told"] or found["praised"] for found in NAMED.finditer(text)), known)


def _leading(text: str, words: Sequence[str], known: str) -> tuple[str, bool]:
    """The option that a reply begins with, "" if it begins otherwise, and whether it keeps to that."""
    first = LEADING.match(text)
    if first is None or first[1] not in known:
        return "", False
    others = _known([one or other for one, other in LABEL.findall(text)] + [*words[-5:]], known)
    return first[1], set(others) <= {first[1]} and not TAKEN_BACK.search(text)


def _occurs(choice: str, text: str) -> bool:
    """Whether an option's text stands in a reply as whole words, and is not denied."""
    return bool(re.search(rf"(?<!\bnot )(?<!n't ){_whole(choice)}", text, re.IGNORECASE))


def _whole(choice: str) -> str:
    """The pattern of an option's text as whole words, and of a number as a whole one: no 8 in 8.5."""
    return rf"(?<![\w.]){re.escape(choice.strip())}(?!\w|\.\d)"
