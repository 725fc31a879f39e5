"""What chat templates and tokenizers ask of prompts: turns in the form that a template takes, and control tokens that
stay text, so that nobody opens a turn or a picture slot of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jinja2 import TemplateError
from torch import Tensor

from mmspec.errors import InputError, one_line
from mmspec.prompts import Prompt, texts_of, turn_texts

THINKING = "enable_thinking"
"""How chat templates call it."""
_CONTROL: WeakKeyDictionary[Any, tuple[int, list[str]]] = WeakKeyDictionary()
"""Of tokenizers: the id that the next token which they learn will get, and their control tokens."""


def template_of(processor: Any) -> Any:
    """The chat template of a processor, or of its tokenizer where it has none."""
    tokenizer = getattr(processor, "tokenizer", processor)
    return getattr(processor, "chat_template", None) or getattr(tokenizer, "chat_template", None)


def fitted(
    processor: Any, messages: list[dict[str, Any]], add_generation_prompt: bool = True, **variables: Any
) -> list[dict[str, Any]]:
    """Messages in the form that a chat template takes: with parts, as a single one always is, or with strings in turns
    of text alone, of the system, of all but the user, or of everybody.

    Found by writing them down: nothing that is said is lost, and no list of parts is written as it is.

    Args: add_generation_prompt: whether the assistant is to go on behind them, not where its answer is the last turn.
    """
    if len(messages) == 1:
        return messages
    said = [text.strip() for message in messages for text in turn_texts(message)]
    best, most = messages, -1
    for joins in (lambda role: False, lambda role: role == "system", lambda role: role != "user", lambda role: True):
        form = [{**turn, "content": _joined(turn)} if joins(turn["role"]) else turn for turn in messages]
        try:
            shown = processor.apply_chat_template(
                form, tokenize=False, add_generation_prompt=add_generation_prompt, **variables
            )
        except (TypeError, TemplateError):
            continue
        if any(str(turn["content"]) in shown for turn in form if not isinstance(turn["content"], str)):
            continue
        found = sum(text in shown for text in said)
        if found > most:
            best, most = form, found
        if most == len(said):
            break
    empty = next((place for place, turn in enumerate(best) if turn["content"] == ""), None)
    if empty is not None:  # transformers takes "" for no content, and gives the template a list
        raise InputError(
            f"message {empty} is empty, and the chat template takes texts alone there: leave the turn out, or fill it"
        )
    return best


def template_variables(template: Any, thinking: bool | None) -> dict[str, bool]:
    """What a chat template is told beside the messages. Raises: InputError: it knows nothing of thinking."""
    if thinking is None:
        return {}
    if THINKING not in str(template):
        raise InputError(f"thinking is no choice here: the chat template knows no {THINKING}")
    return {THINKING: thinking}


def as_strings(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages for the template of a tokenizer, which takes texts alone, no parts."""
    return [{**turn, "content": "".join(turn_texts(turn))} for turn in messages]


def _joined(message: dict[str, Any]) -> Any:
    """The content of a message as one string, if it is of text alone."""
    texts = turn_texts(message)
    return "".join(texts) if len(texts) == len(message["content"]) else message["content"]


def check_plain(texts: list[str], tokenizer: Any, slots: Sequence[str] = ()) -> None:
    """Raise InputError for a text that holds one of the tokenizer's control tokens, or one of `slots`.

    In a chat template it would open a turn or a picture slot of its own.
    """
    check_without(texts, [*control_tokens(tokenizer), *slots])


def check_without(prompts: Sequence[Prompt], tokens: Sequence[str]) -> None:
    """Raise InputError for a prompt that holds one of these control tokens, whole or in pieces."""
    found = _held(["".join(texts) for texts in texts_of(prompts)], tokens)
    if found:
        raise InputError(_refusal(found))


@contextmanager
def control_as_text(prompts: Sequence[Prompt], tokenizer: Any) -> Iterator[dict[str, Any]]:
    """What `apply_chat_template` is to be told so that control tokens in these prompts stay text.

    Nothing where they hold none, so that they keep their ids: elsewhere the pieces are encoded one by one.
    Raises: InputError: for a turn whose texts together make one; for the block, where it fails for a text that holds
        one. Some tokenizers add a token in front by themselves, and then cannot do so.
    """
    turns, tokens = texts_of(prompts), control_tokens(tokenizer)
    found = _held([text for texts in turns for text in texts], tokens)
    for texts in turns:
        whole = "".join(texts)
        for token in tokens if len(texts) > 1 else ():
            if whole.count(token) > sum(text.count(token) for text in texts):
                raise InputError(_refusal(token))
    try:
        yield {"sanitize_control_tokens": True} if found else {}
    except (NotImplementedError, TypeError, ValueError) as error:
        if not found:
            raise
        raise InputError(f"{_refusal(found)} (it cannot be taken as text: {one_line(error, 200)})") from error


def _held(texts: list[str], tokens: Sequence[str]) -> str | None:
    """The first of these tokens that the first text with any holds."""
    return next((token for text in texts for token in tokens if token in text), None)


def _refusal(token: str) -> str:
    return (
        f"the prompt holds the control token {token!r}: take it out (pictures are passed as image, recordings as "
        "voice), or pass tensors to generate(**inputs)"
    )


def control_tokens(tokenizer: Any) -> list[str]:
    """The texts of a tokenizer's control tokens.

    They are kept until another id is in use: a tokenizer makes its list of added tokens anew whenever it is asked,
    which takes a tenth of a second where they are the codes of a speech model. An id that becomes a control token later
    is not noticed.
    """
    following, control = _CONTROL.get(tokenizer, (-1, []))
    if following < 0 or tokenizer.convert_ids_to_tokens(following) is not None:
        added = tokenizer.added_tokens_decoder
        if callable(added):  # of mistral-common's tokenizers
            return list(tokenizer.all_special_tokens)
        control = [token.content for token in added.values() if token.special]
        if getattr(tokenizer, "is_fast", False):  # others need not have an answer for an id that they do not know
            _CONTROL[tokenizer] = max([tokenizer.vocab_size, *(each + 1 for each in added)]), control
    return control


@contextmanager
def asking(processor: Any) -> Iterator[None]:
    """Turn what a processor does not take, such as a batch without a token to pad it, or what its chat template
    stumbles over, into an InputError."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError, TemplateError) as error:
        raise InputError(f"{type(processor).__name__} refuses the prompt: {one_line(error)}") from error


def padded(rows: list[list[int]], filler: int) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask` [B, T] of prompts, padded on the left."""
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[filler] * (width - len(row)) + row for row in rows], dtype=torch.long),
        "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], dtype=torch.long),
    }
