"""Ids to text, whole and while they arrive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

UNFINISHED = "\ufffd"
"""What decoders put where bytes do not make a character (yet)."""
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""A token that spells out a byte, as those of Llama 2 and Gemma do where the vocabulary has no better one."""


def decode_text(tokenizer: Any, ids: Sequence[int], special: bool = False) -> str:
    """The text of ids, special tokens left out unless `special`; "" without a tokenizer."""
    if tokenizer is None:
        return ""
    return tokenizer.decode(list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False)


def settled(tokenizer: Any, ids: Sequence[int]) -> int:
    """How many ids have a text that stays. Bytes spelled out at the end make characters, or none, together with those
    that follow: a newline among them becomes unreadable if the next one is half a character."""
    count = len(ids)
    while count and BYTE.fullmatch(str(tokenizer.convert_ids_to_tokens(ids[count - 1]))):
        count -= 1
    return count


class TextStream:
    """The text of a growing row, piece by piece: a character appears once, when all its bytes are there.

    The pieces put together are the text of the whole row. Everything is decoded anew each time, because what a token
    looks like may depend on those before it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.shown, self.over = 0, False

    def add(self, ids: Sequence[int], last: bool = False) -> str:
        """The text that `ids` add; `last` also shows what will never become a character."""
        if self.over or self.tokenizer is None:  # the row is over, and not yet its batch
            return ""
        self.ids.extend(ids)
        self.over = last
        text = decode_text(self.tokenizer, self.ids if last else self.ids[: settled(self.tokenizer, self.ids)])
        end = len(text) if last else len(text.rstrip(UNFINISHED))
        piece = text[self.shown : end]
        self.shown = max(self.shown, end)
        return piece
