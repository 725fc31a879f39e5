"""Conversations as people write them down, as chats of transformers and OpenAI or as LLaVA's, and what they ask.

The last turn of the user is what is asked, all before it the context, and the assistant's turn behind it the answer.
Where pictures belong stand parts `{"type": "image"}`, or `<image>` in a text; these take the pictures that come with
the conversation, in their order. Where nothing is marked, pictures stand before the first words of the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmspec.errors import InputError, shorten
from mmspec.training.questions import SLOT, Messages, without_slots

ROLES = {"human": "user", "gpt": "assistant"}
"""LLaVA's names of roles."""
KINDS = '{"type": "text", "text": ..} or {"type": "image"}, with a file as "image" or "path" where it is told there'


@dataclass(frozen=True)
class Conversation:
    """What is asked last, with all before it, and the reply to it, None where there is none.

    messages: as in `mmspec.prompts.Chat`, the last one the user's; the part of a picture holds its "image" where the
        conversation itself names one.
    """

    messages: Messages
    answer: str | None = None

    @property
    def parts(self) -> Iterator[dict[str, Any]]:
        """Those of all messages."""
        return (part for message in self.messages for part in message["content"])

    @property
    def plain(self) -> bool:
        """Whether it is no more than one text of the user, perhaps with pictures before it."""
        kinds = [part["type"] for part in self.parts]
        return len(self.messages) == 1 and kinds.index("text") == len(kinds) - 1

    def unmarked(self) -> Conversation:
        """The same without places for pictures that come with it: none do.

        Raises: InputError: nothing is left of a turn.
        """
        messages = [{**message, "content": _unmarked(message["content"])} for message in self.messages]
        if not all(message["content"] for message in messages):
            raise InputError("a turn of the conversation is a picture alone, and none comes with it")
        return replace(self, messages=messages)

    def asked(self, pictures: Sequence[Any]) -> tuple[str | Messages, list[Any]]:
        """The prompt, a text where that says all, and its pictures in their order, whose parts hold nothing more.

        Args: pictures: those that come with the conversation.
        Raises: InputError: it has places for more of them, or for fewer.
        """
        told = self if any(part["type"] == "image" for part in self.parts) else self._behind(len(pictures))
        marked = sum(map(_marks, told.parts))
        if marked != len(pictures):
            raise InputError(f"places for pictures in the conversation: {marked}, pictures with it: {len(pictures)}")
        left = iter(pictures)
        seen = [part["image"] if "image" in part else next(left) for part in told.parts if part["type"] == "image"]
        if told.plain:
            return next(part["text"] for part in told.parts if part["type"] == "text"), seen
        bare = [
            {**message, "content": [{"type": "image"} if "text" not in part else part for part in message["content"]]}
            for message in told.messages
        ]
        return bare, seen

    def _behind(self, count: int) -> Conversation:
        """The same behind so many pictures, which the user shows first of all."""
        first = next(place for place, message in enumerate(self.messages) if message["role"] == "user")
        shown = [{"type": "image"}] * count + self.messages[first]["content"]
        messages = [*self.messages[:first], {"role": "user", "content": shown}, *self.messages[first + 1 :]]
        return replace(self, messages=messages)


def conversation(talk: Any) -> Conversation:
    """What a list of turns asks: {"role", "content"}, {"from", "value"}, or pairs of them, {"user", "assistant"}.

    Raises: InputError: no turn of a user, or one that cannot be used.
    """
    turns = [one for turn in (talk if isinstance(talk, list) else []) for one in _said(turn)]
    asking = [place for place, (role, _) in enumerate(turns) if role == "user"]
    if not asking:
        raise InputError(f"nobody asks anything in the conversation {shorten(talk)}")
    messages = []
    for place, (role, content) in enumerate(turns[: asking[-1] + 1]):
        parts = _parts(content)
        words = any(part["type"] == "text" for part in parts)
        if place == asking[-1] and not words:
            raise InputError(f"the prompt is {shorten(content)}, not a text")
        # some assistants greet first, which no chat template expects; some system prompts are empty
        if (role == "assistant" and place < asking[0]) or (role == "system" and not parts):
            continue
        if not parts:
            raise InputError(f"turn {place + 1} of the conversation, of the {role}, says nothing")
        messages.append({"role": role, "content": parts})
    reply = next((content for role, content in turns[asking[-1] :] if role == "assistant"), None)
    answer = reply if isinstance(reply, str) else "".join(part.get("text", "") for part in _parts(reply))
    return Conversation(messages, answer or None)


def _said(turn: Any) -> list[tuple[str, Any]]:
    """The role and the content of a turn, or of both turns of a pair."""
    if isinstance(turn, dict) and "user" in turn:
        return [(role, turn[role]) for role in ("user", "assistant") if turn.get(role) is not None]
    role = (turn.get("from") or turn.get("role")) if isinstance(turn, dict) else None
    if not isinstance(role, str):
        raise InputError(f'a turn is {{"role": .., "content": ..}} or {{"from": .., "value": ..}}, not {shorten(turn)}')
    return [(ROLES.get(role, role), turn.get("value") or turn.get("content"))]


def _parts(content: Any) -> list[dict[str, Any]]:
    """The parts of a turn, those of empty texts left out."""
    if content is None or isinstance(content, str):
        return _split(content or "")
    found: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else [content]:
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
        if kind == "text" and isinstance(text, str):
            found += _split(text)
        elif kind == "image":
            source = next((part[key] for key in ("image", "path") if part.get(key) is not None), None)
            found.append({"type": "image"} if source is None else {"type": "image", "image": source})
        else:
            raise InputError(f"a part of a turn is {KINDS}, not {shorten(part)}")
    return found


def _split(text: str) -> list[dict[str, Any]]:
    """A text and its places for pictures. Between these and its ends blanks say nothing."""
    pieces = text.split(SLOT)
    said = [place for place, piece in enumerate(pieces) if piece.strip()]
    if said and said[0] > 0:
        pieces[said[0]] = pieces[said[0]].lstrip()
    if said and said[-1] < len(pieces) - 1:
        pieces[said[-1]] = pieces[said[-1]].rstrip()
    found: list[dict[str, Any]] = []
    for place, piece in enumerate(pieces):
        found += [{"type": "image"}] if place else []
        found += [{"type": "text", "text": piece}] if piece.strip() else []
    return found


def _unmarked(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts without places; words stay apart where one stood between them."""
    kept = [part for part in parts if not _marks(part)]
    if 1 < len(kept) < len(parts) and all(part["type"] == "text" for part in kept):
        return [{"type": "text", "text": without_slots(SLOT.join(part["text"] for part in kept))}]
    return kept


def _marks(part: dict[str, Any]) -> bool:
    """Whether a part is the place of a picture that comes with the conversation."""
    return part == {"type": "image"}
