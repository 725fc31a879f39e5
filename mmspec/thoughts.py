"""The thought of a model that thinks first, and its answer, apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from mmspec.templates import control_tokens
from mmspec.text import UNFINISHED, decode_text, settled

MARKS = (
    ("<think>", "</think>"),  # Qwen, GLM and most others
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("[THINK]", "[/THINK]"),  # Mistral
)
"""What opens and closes a thought: tokens, special or not, or text that a model was taught to write."""
FRAMES = ("<answer>", "</answer>", "<|begin_of_box|>", "<|end_of_box|>")
"""What GLM puts around an answer, and around what counts in it."""
ALL = (*(mark for pair in MARKS for mark in pair), *FRAMES)
KEPT = {"<|channel>", *ALL[: -len(FRAMES)]}
"""Tokens of marks: a text goes without those that are special."""
FIELDS = ("thinking", "reasoning_content", "reasoning")
"""What response templates call a thought."""
TAIL = 64
"""Last tokens of a prompt, which hold all that a chat template puts before a reply."""


class Apart(NamedTuple):
    """A reply in two, without marks. thought: "" for none. answer: what follows the thought, "" where that was cut off;
    of a model that does not think the whole text."""

    thought: str
    answer: str


def apart(tokenizer: Any, prompt: Sequence[int], ids: Sequence[int], last: bool = True) -> Apart:
    """Thought and answer of a reply, as the tokenizer's response template says, if it has one and finds a thought; else
    a thought is what was opened at the end of the prompt or opens the reply.

    Args: prompt: ids before the reply, of which the last `TAIL` are looked at. last: the reply is over; else what may
        still become another character, or a mark, is left out.
    """
    ids, prompt = ids if last else ids[: settled(tokenizer, ids)], prompt[-TAIL:]
    if told := _by_template(tokenizer, prompt, ids, last):
        return told
    sure = str if last else _sure
    begun, text = decode_text(tokenizer, prompt, special=True).rstrip(), sure(_marked(tokenizer, ids)).lstrip()
    for opening, closing in MARKS:
        if begun.endswith(opening) or text.startswith(opening):
            thought, _, answer = text.removeprefix(opening).partition(closing)
            return Apart(thought.strip(), _final(answer))
        if begun.endswith(closing):  # the template thought of nothing in the model's place
            return Apart("", _final(text))
    return Apart("", sure(decode_text(tokenizer, ids)) if text or last else "")  # a thought may follow blanks


def _by_template(tokenizer: Any, prompt: Sequence[int], ids: Sequence[int], last: bool) -> Apart | None:
    """What transformers' parser of responses finds; None where it has no template, or finds an answer alone."""
    if getattr(tokenizer, "response_template", None) is None:
        return None
    told, hidden = defaultdict[str, str](str), _hidden(tokenizer)
    while ids and tokenizer.convert_ids_to_tokens(ids[-1]) in hidden:  # a thought may end without a mark
        ids = ids[:-1]
    try:
        parser = tokenizer.get_response_parser(prefix=list(prompt))
        events = parser.feed(decode_text(tokenizer, ids, special=True))
        events += parser.finalize()[1] if last else []
    except (ValueError, TypeError):  # such as of a tool's call that was cut off
        return None
    for event in events:
        told[event["field"]] += event.get("text", "")
    field = next((each for each in FIELDS if each in told), None)
    answer = told["content"] if last else _sure(told["content"])
    if field:
        return Apart(told[field].strip(), _final(answer))
    return None if last or answer else Apart("", "")  # what came may open a thought


def _marked(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of ids, special tokens left out but those of marks."""
    hidden = _hidden(tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    shown = [each for each, token in zip(ids, tokens, strict=True) if token not in hidden]
    return decode_text(tokenizer, shown, special=True)


def _hidden(tokenizer: Any) -> set[str]:
    """Tokens that no part shows."""
    return set(control_tokens(tokenizer)) - KEPT


def _sure(text: str) -> str:
    """A text without an end that more of it may turn into something else."""
    text = text.rstrip(UNFINISHED)
    return text[: len(text) - max(size for mark in ALL for size in range(len(mark)) if text.endswith(mark[:size]))]


def _final(answer: str) -> str:
    for frame in FRAMES:
        answer = answer.replace(frame, "")
    return answer.strip()
