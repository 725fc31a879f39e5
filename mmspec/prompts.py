"""What a user asks, in one shape: texts, or chats of several turns, and for each its pictures. A list is a batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from mmspec.errors import InputError, shorten
from mmspec.media import load_image, names_a_picture

ROLE = re.compile(r"\w{1,32}")
"""Of a turn: templates write it down as it is, so it must not open turns of its own."""


@dataclass(frozen=True)
class Chat:
    """Several turns. messages: as chat templates of transformers take them, `{"role": .., "content": [parts]}`, where a
    part is `{"type": "text", "text": ..}`, `{"type": "image", "image": a PIL image}` or, unread, `{"type": "audio",
    "audio": a recording}`; the last turn is the user's."""

    messages: list[dict[str, Any]]

    def held(self, kind: str) -> list[Any]:
        """What the parts of a type hold, in all turns."""
        return [part[kind] for message in self.messages for part in message["content"] if part["type"] == kind]


Prompt = str | Chat
Asked = str | Sequence[Any]
"""What a user may pass: a text, a chat (a list of messages, or one that is read), or a list of these."""


def is_single(prompt: Any) -> bool:
    """Whether a prompt is one, not a list of them."""
    return isinstance(prompt, str | Chat) or _is_chat(prompt)


def read_prompts(prompt: Asked, image: Any, wordless: bool = False) -> tuple[list[Prompt], list[list[Image.Image]]]:
    """The prompts and each one's pictures.

    Args: prompt: a text; a chat, which is a list of messages as in transformers; or a list of these. image: for one
        prompt None, a picture (see `mmspec.media`) or a list of pictures; for a list of prompts None or a list of the
        same length, whose items are any of these. A chat holds its own pictures. wordless: a picture may come without a
        word.
    Raises: InputError: an empty prompt, a list of another length, or a picture that cannot be used.
    """
    nothing = isinstance(prompt, str) and not prompt
    if nothing and isinstance(image, str) and image.strip() and not names_a_picture(image):
        raise InputError(f"pictures come first: pass prompt={shorten(image)}")
    if is_single(prompt):
        return _read([prompt], [image], ["the prompt"], wordless)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise InputError(f"prompt must be a text, a chat or a list of them, not {type(prompt).__name__}")
    if not prompt:
        raise InputError("the list of prompts is empty: give at least one text")
    count = len(prompt)
    images = [None] * count if image is None else image
    if not isinstance(images, list | tuple):
        raise InputError(f"prompt is a list of {count}, so image must be a list of {count} items or None")
    if len(images) != count:
        raise InputError(f"{count} prompts came with {len(images)} images: give each prompt an item (None for none)")
    return _read(prompt, images, [f"prompt {index}" for index in range(count)], wordless)


def _read(
    prompts: Sequence[Any], images: Sequence[Any], names: list[str], wordless: bool
) -> tuple[list[Prompt], list[list[Image.Image]]]:
    asked = [_prompt(*each) for each in zip(prompts, names, strict=True)]
    for name, text, image in zip(names, asked, images, strict=True):
        if isinstance(text, str) and not text.strip() and not (wordless and _any(image)):
            raise InputError(f"{name} is empty: write a question or an instruction")
    return asked, [_pictures_of(*pair) for pair in zip(asked, images, strict=True)]


def messages_of(prompt: Prompt, pictures: list[Image.Image]) -> list[dict[str, Any]]:
    """A prompt as the messages of a chat template; the pictures of a text stand before it.

    Raises: InputError: a recording, which models that hear read for themselves.
    """
    if isinstance(prompt, Chat):
        if prompt.held("audio"):
            raise InputError("this model does not hear: leave the recordings out, or take a model that does")
        return prompt.messages
    seen = [{"type": "image", "image": picture} for picture in pictures]
    return [{"role": "user", "content": [*seen, *([{"type": "text", "text": prompt}] if prompt else [])]}]


def texts_of(prompts: Sequence[Prompt]) -> list[list[str]]:
    """What is said in prompts: the texts of every turn, which a template may put together."""
    turns = ([[prompt]] if isinstance(prompt, str) else map(turn_texts, prompt.messages) for prompt in prompts)
    return [texts for turn in turns for texts in turn]


def turn_texts(message: dict[str, Any]) -> list[str]:
    """The texts of a message."""
    return [part["text"] for part in message["content"] if part["type"] == "text"]


def _prompt(prompt: Any, name: str) -> Prompt:
    if isinstance(prompt, Chat):
        return prompt
    return _chat(prompt, name) if _is_chat(prompt) else _text(prompt, name)


def _text(text: Any, name: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{name} must be a text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} is not valid Unicode (it holds half of a surrogate pair)") from None
    return text


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, list | tuple) and bool(prompt) and all(isinstance(turn, Mapping) for turn in prompt)


def _chat(messages: Sequence[Mapping[str, Any]], name: str) -> Chat:
    read: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        turn = f"message {index} of {name}"
        role, content = message.get("role"), message.get("content")
        if role is None or content is None:
            raise InputError(f'{turn} must have a "role" and a "content", not {shorten(dict(message))}')
        if not isinstance(role, str) or not ROLE.fullmatch(role):
            raise InputError(f'the "role" of {turn} is {shorten(role)}: a word such as "user" is needed')
        for key in message.keys() - {"role", "content"}:
            if message[key] is not None:
                raise InputError(f"{turn} has {shorten(key)}: role and content alone are served, leave it out")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(parts, list | tuple) or not parts or not all(isinstance(part, Mapping) for part in parts):
            raise InputError(f'the "content" of {turn} must be a text or a list of parts, not {shorten(content)}')
        read.append({"role": role, "content": [_part(part, turn) for part in parts]})
    last = read[-1]
    if last["role"] != "user":
        raise InputError(f"the last message of {name} is of the {last['role']}: it must be the user's")
    if not "".join(turn_texts(last)).strip() and all(part["type"] == "text" for part in last["content"]):
        raise InputError(f"the last message of {name} is empty: write a question or an instruction")
    return Chat(read)


def _part(part: Mapping[str, Any], turn: str) -> dict[str, Any]:
    kind: Any = part.get("type")
    if kind == "text":
        return {"type": "text", "text": _text(part.get("text"), f"a text of {turn}")}
    keys = (kind, "path") if kind in ("image", "audio") else ()
    source = next((part[key] for key in keys if part.get(key) is not None), None)
    if source is None and keys:
        noun = "picture" if kind == "image" else "recording"
        raise InputError(f'{turn} has a part without its {noun}: write {{"type": "{kind}", "{kind}": the {noun}}}')
    if source is None:
        raise InputError(
            f'{turn} has a part that is neither {{"type": "text", "text": ..}} nor {{"type": "image", "image": ..}} '
            f'nor, of models that hear, {{"type": "audio", "audio": ..}}: {shorten(dict(part))}'
        )
    return {"type": kind, kind: load_image(source) if kind == "image" else source}


def _any(image: Any) -> bool:
    return image is not None and not (isinstance(image, list | tuple) and not image)


def _pictures_of(prompt: Prompt, image: Any) -> list[Image.Image]:
    if isinstance(prompt, Chat):
        if _any(image):
            raise InputError("a chat holds its pictures in its messages: leave image out")
        return prompt.held("image")
    if image is None:
        return []
    return [load_image(item) for item in image] if isinstance(image, list | tuple) else [load_image(image)]
