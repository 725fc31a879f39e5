"""What a user asks, in one shape: texts and, for each, its pictures. A list of prompts is a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jinja2 import TemplateError
from PIL import Image
from torch import Tensor

from mmspec.errors import InputError, one_line, shorten
from mmspec.media import load_image, names_a_picture

_CONTROL: WeakKeyDictionary[Any, tuple[int, list[str]]] = WeakKeyDictionary()
"""Of tokenizers: the id that the next token which they learn will get, and their control tokens."""


def read_prompts(prompt: str | Sequence[str], image: Any) -> tuple[list[str], list[list[Image.Image]]]:
    """The texts and each one's pictures.

    Args: prompt: one text, or a list of them. image: for one text None, a picture (see `mmspec.media`) or a list of
        pictures; for a list of texts None or a list of the same length, whose items are any of these.
    Raises: InputError: an empty prompt, a list of another length, or a picture that cannot be used.
    """
    if prompt == "" and isinstance(image, str) and image.strip() and not names_a_picture(image):
        raise InputError(f"pictures come first: pass prompt={shorten(image)}")
    if isinstance(prompt, str):
        return [_text(prompt, "the prompt")], [_pictures(image)]
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise InputError(f"prompt must be a text or a list of texts, not {type(prompt).__name__}")
    if not prompt:
        raise InputError("the list of prompts is empty: give at least one text")
    texts = [_text(text, f"prompt {index}") for index, text in enumerate(prompt)]
    if image is None:
        return texts, [[] for _ in texts]
    if not isinstance(image, list | tuple):
        raise InputError(f"prompt is a list of {len(texts)}, so image must be a list of {len(texts)} items or None")
    if len(image) != len(texts):
        raise InputError(
            f"{len(texts)} prompts came with {len(image)} images: give each prompt an item (None for none)"
        )
    return texts, [_pictures(item) for item in image]


def check_plain(texts: list[str], tokenizer: Any, slots: Sequence[str] = ()) -> None:
    """Raise InputError for a text that holds one of the tokenizer's control tokens, or one of `slots`.

    In a chat template it would open a turn or a picture slot of its own.
    """
    check_without(texts, [*control_tokens(tokenizer), *slots])


def check_without(texts: list[str], tokens: Sequence[str]) -> None:
    """Raise InputError for a text that holds one of these control tokens."""
    found = _held(texts, tokens)
    if found:
        raise InputError(_refusal(found))


@contextmanager
def control_as_text(texts: list[str], tokenizer: Any) -> Iterator[dict[str, Any]]:
    """What `apply_chat_template` is to be told so that control tokens in these texts stay text.

    Nothing where they hold none, so that they keep their ids: elsewhere the pieces are encoded one by one.
    Raises: InputError: for the block, where it fails for a text that holds one. Some tokenizers add a token in front by
        themselves, and then cannot do so.
    """
    found = _held(texts, control_tokens(tokenizer))
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
        f"the prompt holds the control token {token!r}: take it out (pictures are passed as image), or pass tensors to "
        "generate(**inputs)"
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


def _text(text: Any, name: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{name} must be a text, not {type(text).__name__}")
    if not text.strip():
        raise InputError(f"{name} is empty: write a question or an instruction")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} is not valid Unicode (it holds half of a surrogate pair)") from None
    return text


def _pictures(image: Any) -> list[Image.Image]:
    if image is None:
        return []
    return [load_image(item) for item in image] if isinstance(image, list | tuple) else [load_image(image)]
