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
READ = ("image", "path")
"""Keys of a part that say which picture it is."""
UNREAD = ("url", "base64", "image_url")
"""Keys that say it elsewhere, and are not read."""
CALLS = ("tool_calls", "function_call")
"""Keys of a turn that hold what is no text."""


@dataclass(frozen=True)
class Conversation:
    """What is asked last, with all before it, and the reply to it, None where there is none.

    messages: as in `mmspec.prompts.Chat`, the last one the user's; the part of a picture holds the "image" that the
        conversation itself names, None where it names none; a place in a text holds no "image".
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

    @property
    def places(self) -> int:
        """How many there are for pictures that come with it."""
        return sum(map(_marks, self.parts))

    @property
    def mentions(self) -> bool:
        """Whether no picture is shown, and `<image>` stands amid words alone, perhaps as one of them."""
        ends = (message["content"][place] for message in self.messages for place in (0, -1))
        return all("text" in part for part in ends) and not any("image" in part for part in self.parts)

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
        if told.places != len(pictures):
            raise InputError(
                f"places for pictures in the conversation: {told.places}, pictures with it: {len(pictures)}"
            )
        left = iter(pictures)
        seen = [next(left) if _marks(part) else part["image"] for part in told.parts if part["type"] == "image"]
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
    turns = [one for turn in (talk if isinstance(talk, list) else []) for one in _apart(turn)]
    roles = [_role(turn) for turn in turns]
    asking = [place for place, role in enumerate(roles) if role == "user"]
    if not asking:
        raise InputError(f"nobody asks anything in the conversation {shorten(talk)}")
    end = next((place for place in range(asking[-1], len(roles)) if roles[place] == "assistant"), len(roles))
    said = [(roles[place], _said(turn)) for place, turn in enumerate(turns[: end + 1])]
    messages = []
    for place, (role, content) in enumerate(said[: asking[-1] + 1]):
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
    reply = next((content for role, content in said[asking[-1] :] if role == "assistant"), None)
    answer = reply if isinstance(reply, str) else "".join(part.get("text", "") for part in _parts(reply))
    return Conversation(messages, answer or None)


def _apart(turn: Any) -> list[Any]:
    """A turn, or both turns of a pair."""
    if isinstance(turn, dict) and "user" in turn:
        return [{"role": role, "content": turn[role]} for role in ("user", "assistant") if turn.get(role) is not None]
    return [turn]


def _role(turn: Any) -> str:
    """Who says a turn."""
    role = (turn.get("from") or turn.get("role")) if isinstance(turn, dict) else None
    if not isinstance(role, str):
        raise InputError(f'a turn is {{"role": .., "content": ..}} or {{"from": .., "value": ..}}, not {shorten(turn)}')
    return ROLES.get(role, role)


def _said(turn: dict[str, Any]) -> Any:
    """The content of a turn."""
    called = next((key for key in CALLS if turn.get(key)), None)  # tables have empty lists where nothing is called
    if called:
        raise InputError(f"a turn has {called}, which no prompt can hold: {shorten(turn)}")
    return turn.get("value") or turn.get("content")


def _parts(content: Any) -> list[dict[str, Any]]:
    """The parts of a turn, those of empty texts left out."""
    if content is None or isinstance(content, str):
        return _split(content or "")
    found: list[dict[str, Any]] = []
    words = ""  # of neighbouring texts, which are one
    for part in content if isinstance(content, list) else [content]:
        told = {key: value for key, value in part.items() if value is not None} if isinstance(part, dict) else {}
        source = next((told[key] for key in READ if key in told), None)
        lost = source is None and any(key in told for key in UNREAD)
        kind = told.get("type", "text" if source is None and not lost else None)  # some texts do not say so
        if kind == "text" and isinstance(told.get("text"), str):
            words += told["text"]
        elif kind == "image" and not lost:
            found += [*_split(words), {"type": "image", "image": source}]
            words = ""
        else:
            raise InputError(f"a part of a turn is {KINDS}, not {shorten(part)}")
    return found + _split(words)


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
    return part["type"] == "image" and part.get("image") is None
