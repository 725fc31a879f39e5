"""What a user asks, in one shape: texts, or chats of several turns, and for each its pictures. A list is a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Chat:
    """Several turns. messages: as chat templates of transformers take them, `{"role": .., "content": [parts]}`, where a
    part is `{"type": "text", "text": ..}` or `{"type": "image", "image": a PIL image}`; the last turn is the user's."""

    messages: list[dict[str, Any]]

    @property
    def texts(self) -> list[str]:
        """All that is said in it."""
        return [part["text"] for part in self._parts() if part["type"] == "text"]

    @property
    def pictures(self) -> list[Image.Image]:
        """The pictures of all turns."""
        return [part["image"] for part in self._parts() if part["type"] == "image"]

    def _parts(self) -> Iterator[dict[str, Any]]:
        for message in self.messages:
            yield from message["content"]


Prompt = str | Chat
Asked = str | Sequence[Any]
"""What a user may pass: a text, a chat (a list of messages), or a list of these."""


def is_single(prompt: Any) -> bool:
    """Whether a prompt is one, not a list of them."""
    return isinstance(prompt, str) or _is_chat(prompt)


def read_prompts(prompt: Asked, image: Any) -> tuple[list[Prompt], list[list[Image.Image]]]:
    """The prompts and each one's pictures.

    Args: prompt: a text; a chat, which is a list of messages as in transformers; or a list of these. image: for one
        prompt None, a picture (see `mmspec.media`) or a list of pictures; for a list of prompts None or a list of the
        same length, whose items are any of these. A chat holds its own pictures.
    Raises: InputError: an empty prompt, a list of another length, or a picture that cannot be used.
    """
    if prompt == "" and isinstance(image, str) and image.strip() and not names_a_picture(image):
        raise InputError(f"pictures come first: pass prompt={shorten(image)}")
    if is_single(prompt):
        asked = _prompt(prompt, "the prompt")
        return [asked], [_pictures_of(asked, image)]
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise InputError(f"prompt must be a text, a chat or a list of them, not {type(prompt).__name__}")
    if not prompt:
        raise InputError("the list of prompts is empty: give at least one text")
    several = [_prompt(each, f"prompt {index}") for index, each in enumerate(prompt)]
    if image is None:
        image = [None] * len(several)
    if not isinstance(image, list | tuple):
        raise InputError(f"prompt is a list of {len(several)}, so image must be a list of {len(several)} items or None")
    if len(image) != len(several):
        raise InputError(
            f"{len(several)} prompts came with {len(image)} images: give each prompt an item (None for none)"
        )
    return several, [_pictures_of(*pair) for pair in zip(several, image, strict=True)]


def messages_of(prompt: Prompt, pictures: list[Image.Image]) -> list[dict[str, Any]]:
    """A prompt as the messages of a chat template; the pictures of a text stand before it."""
    if isinstance(prompt, Chat):
        return prompt.messages
    seen = [{"type": "image", "image": picture} for picture in pictures]
    return [{"role": "user", "content": [*seen, {"type": "text", "text": prompt}]}]


def texts_of(prompts: Sequence[Prompt]) -> list[str]:
    """All that is said in prompts."""
    return [text for prompt in prompts for text in (prompt.texts if isinstance(prompt, Chat) else [prompt])]


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


def _prompt(prompt: Any, name: str) -> Prompt:
    return _chat(prompt, name) if _is_chat(prompt) else _text(prompt, name)


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


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, list | tuple) and bool(prompt) and all(isinstance(turn, Mapping) for turn in prompt)


def _chat(messages: Sequence[Mapping[str, Any]], name: str) -> Chat:
    read = []
    for index, message in enumerate(messages):
        turn = f"message {index} of {name}"
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or content is None:
            raise InputError(f'{turn} must have a "role" and a "content", not {shorten(dict(message))}')
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(parts, list | tuple) or not all(isinstance(part, Mapping) for part in parts):
            raise InputError(f'the "content" of {turn} must be a text or a list of parts, not {shorten(content)}')
        read.append({"role": role, "content": [_part(part, turn) for part in parts]})
    if read[-1]["role"] != "user":
        raise InputError(f"the last message of {name} is of the {read[-1]['role']}: it must be the user's")
    return Chat(read)


def _part(part: Mapping[str, Any], turn: str) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "text", "text": _text(part.get("text"), f"a text of {turn}")}
    source = next((part[key] for key in ("image", "path") if part.get(key) is not None), None)
    if part.get("type") != "image" or source is None:
        raise InputError(
            f'{turn} has a part that is neither {{"type": "text", "text": ..}} nor {{"type": "image", "image": ..}}, '
            f"with a picture, its path or its bytes: {shorten(dict(part))}"
        )
    return {"type": "image", "image": load_image(source)}


def _pictures_of(prompt: Prompt, image: Any) -> list[Image.Image]:
    if isinstance(prompt, Chat):
        if image is not None:
            raise InputError("a chat holds its pictures in its messages: leave image out")
        return prompt.pictures
    if image is None:
        return []
    return [load_image(item) for item in image] if isinstance(image, list | tuple) else [load_image(image)]
