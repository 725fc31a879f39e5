"""A tiny weighted-choice template engine: where the richness of the miniworld's English comes from.

A template is a sentence with choice points, "[The|This] chart [shows|presents] <{value}>.". Options stand from likely
to unlikely and may nest; {slots} are filled after the choice; <...> marks a word that the picture determines. `finish`
turns the marked-up draft into a clean answer and its spans.
"""

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

Item = TypeVar("Item")
Node = str | tuple["Node", ...]
WEIGHTS = {
    1: (1.0,),
    2: (0.65, 0.35),
    3: (0.6, 0.25, 0.15),
    4: (0.55, 0.22, 0.14, 0.09),
    5: (0.5, 0.2, 0.14, 0.1, 0.06),
    6: (0.5, 0.18, 0.12, 0.09, 0.06, 0.05),
}


@dataclass(frozen=True)
class Ask:
    """One thing that can be asked about a picture, before its form is chosen.

    question: ends with "?"; key: equal keys ask the same; claim(value): a clause, without capital and full stop, that
    states a (marked-up) value; steps: sentences that lead to the answer; wrong: values that are not the answer; quoted:
    whether the value is a text that is put in quotation marks; about: what the question names, though a claim may not.
    """

    topic: str
    key: str
    question: str
    gold: str
    claim: Callable[[str], str]
    steps: Callable[[], str] | None = None
    wrong: tuple[str, ...] = ()
    quoted: bool = False
    about: tuple[str, ...] = ()


class Voice:
    """Says templates with a random generator."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def say(self, template: str, **slots: object) -> str:
        """The template with every choice made and every slot filled."""
        text = self._walk(_parse(template))
        return text.format(**slots) if slots else text

    def pick(self, options: Sequence[Item]) -> Item:
        """One of the options, the first ones being the more likely."""
        return self.rng.choices(options, WEIGHTS[len(options)])[0]

    def shuffled(self, items: Iterable[Item]) -> list[Item]:
        """The items in random order."""
        order = list(items)
        self.rng.shuffle(order)
        return order

    def join(self, items: Sequence[str]) -> str:
        """The items as a list: "a, b and c"."""
        if len(items) == 1:
            return items[0]
        return ", ".join(items[:-1]) + f" {self.say('[and|as well as|and also]')} {items[-1]}"

    def chain(self, clauses: Sequence[str]) -> str:
        """The clauses as sentences of one to three clauses each, with connectives between them."""
        sentences: list[str] = []
        rest = list(clauses)
        while rest:
            size = min(self.pick((2, 3, 1)), len(rest))
            group, rest = rest[:size], rest[size:]
            text = group[0]
            for clause in group[1:]:
                text += self.say("[, and|, while|; |, whereas]") + " " + clause
            opener = self.say("[|then |next, |also, |further, ]") if sentences else ""
            sentences.append(opener + text + ".")
        return " ".join(sentences)

    def _walk(self, node: Node) -> str:
        if isinstance(node, str):
            return node
        if node[0] == "choice":
            return self._walk(self.pick(node[1:]))
        return "".join(self._walk(part) for part in node[1:])


@lru_cache(maxsize=4096)
def _parse(template: str) -> Node:
    """The tree of a template: a string, ("all", parts...) or ("choice", options...)."""
    stack: list[list[list[Node]]] = [[[]]]
    for piece in re.split(r"([\[\]|])", template):
        if piece == "[":
            stack.append([[]])
        elif piece == "|":
            stack[-1].append([])
        elif piece == "]":
            options = stack.pop()
            stack[-1][-1].append(("choice", *(("all", *option) for option in options)))
        elif piece:
            stack[-1][-1].append(piece)
    if len(stack) != 1 or len(stack[0]) != 1:
        raise ValueError(f"unbalanced brackets in template: {template!r}")
    return ("all", *stack[0][0])


def mark(value: object) -> str:
    """The value marked up as determined by the picture, each word on its own."""
    return " ".join(f"<{word}>" for word in str(value).split())


def plain(text: str) -> str:
    """The text without mark-up."""
    return text.replace("<", "").replace(">", "")


def plural(word: str, count: int | str) -> str:
    """The word, with its plural ending unless the count is one."""
    if str(count) == "1":
        return word
    return word + ("es" if word.endswith(("s", "x")) else "s")


def there(count: int | str) -> str:
    """ "there is" or "there are", as the count wants it."""
    return "there is" if str(count) == "1" else "there are"


def length(text: str) -> int:
    """Number of words and punctuation marks."""
    return len(re.findall(r"\w+|[^\w\s]", plain(text)))


def tidy(text: str, *, sentences: bool = True) -> str:
    """Still marked-up text with spaces, articles and (for sentences) capital letters put right."""
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r" ([,.;:?])", r"\1", text)
    text = re.sub(r"\b([Aa]) (?=<?[aeiou])", r"\1n ", text)
    if sentences:
        text = re.sub(r"(^|[.?!] )([<\"]*)([a-z])", lambda m: m[1] + m[2] + m[3].upper(), text)
    return text


def finish(draft: str, asked: str, gold: str | None) -> tuple[str, tuple[tuple[int, int, str], ...]]:
    """The clean answer and its spans.

    Args: draft: marked-up, tidy answer; asked: the question (without the options of a choice): marked words that stand
    in it become "copy" spans; gold: the words of the last statement of the gold value stay "image".
    """
    known = set(re.findall(r"[\w']+", asked.lower()))
    goldens = (gold or "").lower().split()
    spans: list[tuple[int, int, str]] = []
    answer = ""
    for piece in re.split(r"(<[^>]*>)", draft):
        if piece.startswith("<"):
            start, answer = len(answer), answer + piece[1:-1]
            spans.append((start, len(answer), "copy" if piece[1:-1].lower() in known else "image"))
        else:
            answer += piece
    tail = [answer[start:end].lower() for start, end, _ in spans[len(spans) - len(goldens) :]]
    if goldens and tail == goldens:
        keep = len(spans) - len(goldens)
        spans[keep:] = [(start, end, "image") for start, end, _ in spans[keep:]]
    return answer, tuple(spans)
