"""The value that a free answer states, found by rules: the one extraction where no judge model is asked."""

from __future__ import annotations

import re

NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?%?(?![\w])")
LIST = re.compile(r"\[[^\[\]]*\]")
_MARKER = re.compile(r"\b(?:answer|result)(?: is:?|:)\s*", re.IGNORECASE)
_MARKUP = re.compile(r"\\boxed\{([^{}]*)\}|(?<!\w)[*`]+|[*`]+(?!\w)")
_DOLLARS = re.compile(r"\\?\$")


def unmarked(reply: str) -> str:
    """A reply without what sets its words off: stars and backticks, LaTeX's boxes and dollar signs."""
    return _MARKUP.sub(lambda found: found[1] or "", _DOLLARS.sub(" ", reply))


def stated(reply: str) -> str:
    """What an explanation says the answer is: after the last "answer is" or "answer:", else its last number.

    Without either it is the whole reply, less its final full stop. Markup, and the thousands separators of numbers, are
    taken out.
    """
    text = unmarked(reply).strip()
    rest = _behind_marker(text)
    if rest is None:
        return last_number(text) or text.rstrip(".")
    return marked_number(text) or re.split(r"[.\n](?:\s|$)", rest)[0].strip("\"' ")


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
