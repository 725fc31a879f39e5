"""The value that a free answer states, found by rules: the one extraction where no judge model is asked."""

from __future__ import annotations

import re

NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?%?(?![\w])")
LIST = re.compile(r"\[[^\[\]]*\]")
_MARKER = re.compile(
    r"\b(?:answer|result)(?: is:?|:)\s*(?:(?:approximately|about|around|roughly|therefore|thus)\s+)?", re.IGNORECASE
)
_CLOSED = re.compile(r"\b(yes|no)\b(?!, or\b)(?=\s*(?:$|[,;:!\n]|\.(?!\s*\d)))", re.IGNORECASE)  # "No. 5" is none
_CLAUSE = re.compile(
    r",? (?:because|since)\b|, (?:which|who|where|that|this|while|whereas|followed|as|with|at|in|for|so|not|it|the)\b"
)
_MARKUP = re.compile(r"\\boxed\{([^{}]*)\}|(?<!\w)[*`]+|[*`]+(?!\w)")
_QUOTES = "\"' "
_DOLLARS = re.compile(r"\\?\$")


def unmarked(reply: str) -> str:
    """A reply without what sets its words off: stars and backticks, LaTeX's boxes and dollar signs."""
    return _MARKUP.sub(lambda found: found[1] or "", _DOLLARS.sub(" ", reply))


def stated(reply: str) -> str:
    """What an explanation says the answer is: a yes or no, what follows the last "answer is" or "answer:", its last
    number.

    A yes or no stands there or at the start of the reply, and is none where the other one follows. A text ends where it
    is explained (", which", " because"). Without any of them it is the whole reply, less its final full stop. Markup,
    and the thousands separators of numbers, are taken out.
    """
    text = unmarked(reply).strip()
    rest = _behind_marker(text)
    if said := closed(rest or "") or closed(text):
        return said
    if rest is None:
        return last_number(text) or phrase(reply)
    return marked_number(text) or _CLAUSE.split(phrase(reply))[0].strip(_QUOTES)


def phrase(reply: str) -> str:
    """The whole words that state the answer, with what else may be part of a name, such as commas: the sentence behind
    the last "answer is" or "answer:", else the reply, less its final full stop."""
    text = unmarked(reply).strip()
    rest = _behind_marker(text)
    return text.rstrip(".") if rest is None else re.split(r"[.\n](?:\s|$)", rest)[0].strip(_QUOTES)


def closed(text: str) -> str:
    """The yes or no that a text begins with; "" if it begins otherwise, or says both."""
    said = _CLOSED.findall(text)
    return said[0] if _CLOSED.match(text) and len({each.lower() for each in said}) == 1 else ""


def marked_number(reply: str) -> str:
    """The number right behind the last "answer is" or "answer:"; "" if none stands there."""
    number = NUMBER.match(_behind_marker(unmarked(reply)) or "")
    return _plain(number[0]) if number else ""


def last_number(reply: str) -> str:
    """The last number of a reply, "" if it has none."""
    found = NUMBER.findall(reply)
    return _plain(found[-1]) if found else ""


def last_list(reply: str) -> str:
    """The last bracketed list of a reply, "" if it has none."""
    found = LIST.findall(reply)
    return found[-1] if found else ""


def _behind_marker(text: str) -> str | None:
    """What follows the last "answer is" or "answer:"; None without one."""
    markers = list(_MARKER.finditer(text))
    return text[markers[-1].end() :] if markers else None


def _plain(number: str) -> str:
    return number.replace(",", "")
