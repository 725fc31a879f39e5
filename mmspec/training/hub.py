"""Training questions from a data set of the Hugging Face hub, or from a folder that is laid out like one.

Read through `datasets`. A row is a question: its prompt, picture and answer are found by the names that data sets give
them, or in a conversation, whose last question is asked (`mmspec.training.conversations`).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmspec.errors import InputError, missing_extra, one_line, shorten
from mmspec.media import load_image
from mmspec.training.conversations import Conversation, conversation
from mmspec.training.questions import Messages, Question, shown, without_slots

logger = logging.getLogger(__name__)

PROMPT = ("prompt", "question", "query", "instruction", "text")
IMAGE = ("image", "images", "picture", "img")
ANSWER = ("answer", "answers", "response", "output", "caption")
TALK = ("conversations", "messages", "texts")
DEEPER = re.compile(r"\w[\w.-]*/[\w.-]+/[\w.-]+")
"""The name of a data set of the hub, and of a configuration of it."""


class HubData:
    """The rows of a data set.

    Args: source: see `address`.
    chat: where the first question stands that is no text alone, but a chat; "" where there is none.
    Raises: InputError: it cannot be had, or has no column that holds a prompt.
    """

    def __init__(self, source: str) -> None:
        if find_spec("datasets") is None:
            raise missing_extra("datasets", "train")
        place, part, split = address(source)
        known = [split] if part is None else [part, split]
        self.place = ":".join([place, *known])
        self.roots = homes(place)
        self.rows = read_split(place, part, split)
        self.columns: list[str] = list(self.rows.column_names)
        self.talk = self._column(TALK)
        self.prompt, self.image, self.answer = (self._column(names) for names in (PROMPT, IMAGE, ANSWER))
        if not len(self.rows):
            raise InputError(f"{source} has no rows")
        if self.prompt is None and self.talk is None:
            raise InputError(
                f"{source} has the columns {', '.join(self.columns)}; a prompt is looked for in {', '.join(PROMPT)}, a "
                f"conversation in {', '.join(TALK)}"
            )
        self.unseen = [name for name, feature in self.rows.features.items() if holds_pictures(feature)]
        say_once(self._told())

        digest, self.chat = self._looked_through()
        self.name = f"{self.place} {digest}"
        # pictures as they are stored: decoding would open any file that a row names
        self.pictures = self.rows.select_columns([self.image] if self.image else []).with_format("arrow")
        self.rows = self.rows.select_columns([name for name in (self.prompt, self.answer, self.talk) if name])

    def _looked_through(self) -> tuple[str, str]:
        """What is asked and answered, in short: a data set that was corrected is another one. And the first chat."""
        found, first = sha256(), ""
        columns = [name for name in (self.prompt, self.answer, self.talk) if name]
        for index, row in enumerate(self.rows.select_columns(columns)):
            found.update(repr(row).encode())
            if self.prompt is None and self._is_chat(row):
                found.update(b"chat")  # of such conversations the first question alone was asked once
                first = first or f"{self.place}, row {index}"
        return found.hexdigest()[:16], first

    def _is_chat(self, row: dict[str, Any]) -> bool:
        """Whether a row with a conversation asks more than a text; not if it cannot be asked."""
        with suppress(InputError):
            return not self._talk(row).plain
        return False

    def _talk(self, row: dict[str, Any]) -> Conversation:
        """The conversation of a row; without a column of pictures what marks them says nothing."""
        found = conversation(row[str(self.talk)])
        return found if self.image else found.unmarked()

    def check_seen(self) -> None:
        """Raise InputError where pictures stand in no column that is looked for: a model that sees would be blind."""
        if self.image is None and self.unseen:
            raise InputError(
                f"{self.place} has pictures in {', '.join(self.unseen)}, which nobody would see: they are looked for "
                f"in {', '.join(IMAGE)}; rename one in a copy, or write a folder with *.jsonl files, whose lines may "
                "name several pictures"
            )

    def _told(self) -> str:
        """Where questions, pictures and answers come from, and what is not read."""
        answer = self.talk if self.prompt is None else self.answer
        found = {"prompt": self.prompt or self.talk, "picture": self.image, "answer": answer}
        said = ", ".join(f"{what} from {column}" if column else f"no {what}" for what, column in found.items())
        rest = [name for name in self.columns if name not in found.values()]
        return f"{self.place}: {said}" + (f"; not read: {', '.join(rest)}" if rest else "")

    def _column(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self.columns), None)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Question:
        if not 0 <= index < len(self):
            raise IndexError(index)
        where = f"{self.place}, row {index}"
        try:
            row = self.rows[index]
            found = self.pictures[index].to_pylist()[0][self.image] if self.image else None
        except Exception as error:  # noqa: BLE001  parquet files and caches have errors of their own
            raise InputError(f"{where} cannot be read: {one_line(error)}") from error
        several = [one for one in (found if isinstance(found, list) else [found]) if one is not None]
        asked, several, answer = self._spoken(row, several, where)
        try:
            images = [self._picture(one) for one in several]
        except InputError as error:
            raise InputError(f"{where} cannot be read: {error}") from error
        return Question(*shown(asked, images), answer, where=where)

    def _picture(self, found: Any) -> Any:
        """A picture of a row: its bytes, or a file of the data set, perhaps in an archive of it, and no other."""
        from datasets import Image

        data, path = (found.get("bytes"), found.get("path")) if isinstance(found, dict) else (None, found)
        if isinstance(data, bytes):
            return load_image(data)
        inner, _, outer = str(path).rpartition("::")  # zip://a.png::archive.zip, as datasets writes it
        for root in self.roots:
            file = Path(os.path.normpath(root.absolute() / outer))
            with suppress(OSError, ValueError):  # what is no path at all, such as a picture in base64
                if data is None and file.is_relative_to(root.absolute()) and file.is_file():
                    return load_image(Image().decode_example({"path": path, "bytes": None}) if inner else file)
        raise InputError(f"the picture {shorten(path if data is None else data)} is no file of the data set")

    def _spoken(
        self, row: dict[str, Any], pictures: list[Any], where: str
    ) -> tuple[str | Messages, list[Any], str | None]:
        """The prompt, its pictures and the answer, None if there is none."""
        if self.prompt is None:
            try:
                talk = self._talk(row)
                if talk.plain and talk.places != len(pictures):  # some rows lack their picture, or have more than said
                    talk = talk.unmarked()
                return *talk.asked(pictures), talk.answer
            except InputError as error:
                raise InputError(f"{where}: {error}") from error
        asked, answer = row[self.prompt], row[self.answer] if self.answer else None
        answer = answer[0] if isinstance(answer, list) and answer else answer
        prompt = without_slots(asked) if isinstance(asked, str) else ""
        if not prompt.strip():
            raise InputError(f"{where}: the prompt is {shorten(asked)}, not a text")
        return prompt, pictures, answer if isinstance(answer, str) else None


@cache
def say_once(told: str) -> None:
    """Say it, but not again where a run opens its data once more, for a warm-up."""
    logger.info(told)


def holds_pictures(feature: Any) -> bool:
    """Whether a column of a data set is of pictures, or of lists of them."""
    from datasets import Image

    inner = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", feature)
    return isinstance(inner, Image)


def address(source: str) -> tuple[str, str | None, str]:
    """Where a data set is, which of its configurations is meant (None: it has one), and which split.

    Args: source: "owner/name" or a folder in the same layout, with ":split" or ":configuration:split" behind it; the
        split is "train" if nothing is said. "owner/name/configuration" does as well.
    """
    place, *named = re.split(r":(?![^\[]*\])", source)  # train[:100] is one split
    if DEEPER.fullmatch(place) and not Path(place).exists():
        place, _, part = place.rpartition("/")
        named = [part, *(named or ["train"])]
    if len(named) > 2:
        raise InputError(f"{shorten(source)} is no data set: owner/name, owner/name:split or owner/name:config:split")
    return place, named[0] if len(named) == 2 else None, named[-1] if named else "train"


def homes(place: str) -> list[Path]:
    """Where the files of a data set may lie: in its folder, or, of one of the hub, where they were downloaded to."""
    from datasets import config
    from huggingface_hub import constants

    if Path(place).is_dir():
        return [Path(place)]
    return [
        Path(constants.HF_HUB_CACHE, f"datasets--{place.replace('/', '--')}"),
        Path(config.DOWNLOADED_DATASETS_PATH),
    ]


def read_split(place: str, part: str | None, split: str) -> Any:
    """A split of a data set, or of that configuration of it. Raises: InputError: there is none, or it cannot be
    reached."""
    import datasets

    try:
        return datasets.load_dataset(*([place] if part is None else [place, part]), split=split)
    except Exception as error:  # noqa: BLE001  the hub, the network, parquet files: each has exceptions of its own
        known = f"its folder {place}" if Path(place).is_dir() else f"the data set {place!r} of the hub"
        which = f"split {split!r}" if part is None else f"configuration {part!r}, split {split!r}"
        raise InputError(f"{known} cannot be read ({which}): {one_line(error)}") from error
