"""How an answer is judged: its final value is extracted and compared as in ChartQA (relaxed accuracy).

Source: Masry et al., ChartQA (arXiv 2203.10244), section 5: a number may be off by 5 percent, a text must be equal.
"""

import re

from mmspec.miniworld.facts import COLORS, SHAPES, SIZES, TEXTURES
from mmspec.miniworld.words import CATEGORY_SETS, SIGN_WORDS, TITLES

_NAMES = {name for names in CATEGORY_SETS for name in names} | set(SIGN_WORDS) | set(TITLES)
_WORDS = {*COLORS, *SHAPES, *SIZES, *TEXTURES, "rising", "falling", "gradient", "center"}
_KNOWN = _NAMES | _WORDS | {word.capitalize() for word in _WORDS | _NAMES if word.islower()}
_ANY = "|".join(sorted(_KNOWN, key=len, reverse=True))
_VALUE = re.compile(rf"(?:top|middle|bottom) (?:left|center|right)\b|\b(?:{_ANY})\b", re.ASCII)
_MARKER = re.compile(r"\b(?:answer|result)(?: is)?(?: therefore| thus| then| clearly)?:? (?=\S)", re.IGNORECASE)


def final_value(text: str) -> str:
    """The value that an answer states: a yes or no at its start, what follows "the answer is", or the last value named.

    Args: text: the answer, of any form.
    Returns: the value without quotation marks and final full stop; where the answer is neither short nor names a known
        value, the whole text.
    """
    text = text.strip()
    first = re.match(r"(yes|no)\b", text, re.IGNORECASE)
    if first:
        return first[1].lower()
    markers = list(_MARKER.finditer(text))
    if markers:
        rest = text[markers[-1].end() :].strip()
        rest = re.sub(r"^\([A-D]\) ", "", rest)
        return rest.split(". ")[0].rstrip(".").removesuffix(" percent").strip('" ')
    bare = re.sub(r"^\([A-D]\) ", "", text)
    if not re.search(r"[.\"]", bare) and len(bare.split()) <= 6:
        return bare
    quoted = re.search(r'"([^"]*)"\.?$', text)
    if quoted:
        return quoted[1]
    numbers = re.findall(r"\d+", text)
    if numbers:
        return numbers[-1]
    values = _VALUE.findall(text)
    return values[-1] if values else text.rstrip(".")


def relaxed_match(prediction: str, gold: str) -> bool:
    """ChartQA's relaxed accuracy: numbers within 5 percent of a gold that is not zero, else equal ignoring case."""
    predicted, wanted = _number(prediction), _number(gold)
    if predicted is not None and wanted:
        return abs(predicted - wanted) / abs(wanted) <= 0.05
    return prediction.strip().lower() == gold.strip().lower()


def _number(text: str) -> float | None:
    """The text as a number; a trailing percent sign divides by 100."""
    text = text.strip()
    try:
        return float(text.rstrip("%")) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        return None
