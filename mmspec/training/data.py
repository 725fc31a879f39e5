"""Where training questions come from: the synthetic world, made on demand, a folder of pictures and JSONL lines, or a
data set of the hub (`mmspec.training.hub`)."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from mmspec import miniworld
from mmspec.errors import InputError, shorten
from mmspec.media import load_image
from mmspec.registry import ANY, resolve
from mmspec.training.conversations import conversation
from mmspec.training.hub import HubData, address, say_once
from mmspec.training.questions import Question, Questions, shown, without_slots

logger = logging.getLogger(__name__)

MINIWORLD = "miniworld"
LONG = ("describe", "worked")
"""The forms of answers that are long enough to be worth drafting."""
TURNS = ("messages", "conversations")
"""Keys of a line, each of which holds a conversation."""
SHOWN = ("image", "images")
"""Keys of such a line that hold its pictures."""
PER_PICTURE = 4
"""Questions taken from each picture of the world; every picture has at least about that many with a long answer."""


class Miniworld:
    """Questions with long answers about pictures of the synthetic world; the same seed gives the same questions.

    Args: seed: name of the data set; held-out questions come from another one. length: how many questions.
    """

    def __init__(self, seed: str, length: int) -> None:
        self.name = f"{MINIWORLD}/{seed}"
        self.seed, self.length = seed, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Question:
        if not 0 <= index < self.length:
            raise IndexError(index)
        drawn = _drawn(self.seed, index // PER_PICTURE)
        long = [qa for qa in drawn.qas if qa.form in LONG]
        asked = long[index % PER_PICTURE % len(long)]
        return Question(drawn.image, asked.question, asked.answer)


@lru_cache(maxsize=16)
def _drawn(seed: str, picture: int) -> miniworld.Sample:
    return miniworld.sample(seed, picture)


class Lines:
    """Questions of a folder: JSONL files whose lines are {"image": "file.png", "prompt": "...", "answer": "..."}.

    Pictures are paths inside the folder, of several pictures a list of them; `image` and `answer` may be absent or
    null, and `voice` may say who speaks, by a name that the target knows or as a WAV file inside the folder. A line may
    hold a conversation instead, {"messages": [..]} or {"conversations": [..]} (`mmspec.training.conversations`), with
    its pictures in `image` or `images` or where it shows them; other keys of it are not read. The files are read in the
    order of their names and checked before training starts; without any, *.json files that are lists of such lines.
    Whether a file can be read is found out when its line is asked; those that are not there are counted before.

    chat: where the first question stands that is no text alone, but a chat; "" where there is none.
    Raises: InputError: no such folder, no lines, or a line (named) that cannot be used, or reads outside the folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(
                f"no data at {shorten(str(folder))}: give {MINIWORLD!r}, a data set of the hub (owner/name), or a "
                'folder with lines such as {"image": "file.png", "prompt": "..."} in *.jsonl files, or a list of them '
                "in *.json files"
            )
        self.folder = folder
        self.unread: set[str] = set()
        read = list(self._read())
        self.lines, self.places = [record for record, _ in read], [where for _, where in read]
        if self.unread:
            say_once(f"{folder}: not read of conversations: {', '.join(sorted(self.unread))}")
        lost = [f"{where}: {why}" for record, where in read if (why := self._lost(record))]
        if lost:
            say_once(f"{folder}: {len(lost)} of {len(read)} lines name files that are not there; the first: {lost[0]}")
        self.chat = next((where for record, where in read if not isinstance(record["prompt"], str)), "")
        self.name = f"{folder.resolve()} {self._digest()}"
        if not self.lines:
            raise InputError(
                f"{folder} holds no lines in *.jsonl files, nor a list of them in *.json files; a line is "
                '{"image": "a.png", "prompt": "..."}'
            )

    def _read(self) -> Iterator[tuple[dict[str, Any], str]]:
        """The lines, checked, and where each stands."""
        for found, where in self._written():
            talk = isinstance(found, dict) and any(found.get(key) is not None for key in TURNS)
            record = _told_in_turns(found, where) if talk else _told(found, where)
            # LLaVA numbers its lines
            self.unread |= {key for key in found if talk and key not in (*TURNS, *SHOWN, "id")}
            for image in record["image"]:
                _check_text(image, "image", where)
            for key, name in self._files(record):
                inside = False
                with suppress(OSError, ValueError):  # what is no path at all
                    inside = (self.folder / name).resolve().is_relative_to(self.folder.resolve())
                if not inside:
                    raise InputError(f"{where}: the {key} {shorten(name)} is not a file inside {self.folder}")
            yield record, where

    def _written(self) -> Iterator[tuple[Any, str]]:
        """What the files hold, and where each of it stands."""
        files = sorted(self.folder.glob("*.jsonl"))
        for file in files:
            for number, line in enumerate(file.read_bytes().splitlines(), 1):
                if line.strip():
                    where = f"{file.name}, line {number}"
                    yield _parsed(line, where), where
        for file in [] if files else sorted(self.folder.glob("*.json")):
            whole = _parsed(file.read_bytes(), file.name)
            for number, found in enumerate(whole if isinstance(whole, list) else [], 1):
                yield found, f"{file.name}, entry {number}"

    def _files(self, record: dict[str, Any]) -> list[tuple[str, str]]:
        """The files that a line names: its pictures, and its voice where that is no mere name."""
        voice = [("voice", record["voice"])] if _is_path(record.get("voice", "")) else []
        return [*(("image", image) for image in record["image"]), *voice]

    def _lost(self, record: dict[str, Any]) -> str:
        """Which file of a line is not there, and none is a picture in base64; "" if all are."""
        for key, name in self._files(record):
            if not os.path.isfile(self.folder / name):
                return f"the {key} {shorten(name)} is not a file inside {self.folder}"
        return ""

    def _digest(self) -> str:
        """Of the lines, and of how large their files are: a corrected file is other data."""
        files = [[self.folder / name for _, name in self._files(line)] for line in self.lines]
        sizes = [sum(os.path.getsize(file) for file in several if os.path.isfile(file)) for several in files]
        return hashlib.sha256(json.dumps([self.lines, sizes]).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Question:
        record = self.lines[index]
        voice = record.get("voice")
        if lost := self._lost(record):
            raise InputError(f"{self.places[index]}: {lost}")
        try:
            images = [load_image(self.folder / name) for name in record["image"]]
        except InputError as error:
            raise InputError(f"{self.places[index]}: {error}") from error
        said_by = str(self.folder / voice) if voice and _is_path(voice) else voice
        return Question(*shown(record["prompt"], images), record.get("answer"), said_by, self.places[index])


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error})") from error


def _told(found: Any, where: str) -> dict[str, Any]:
    """A line with one prompt, its pictures in a list."""
    known = ("image", "prompt", "answer", "voice")
    wrong = set(found) - set(known) if isinstance(found, dict) else {type(found).__name__}
    if wrong:
        keys = f"{', '.join(known)}, or with {' or '.join(TURNS)}"
        raise InputError(f"{where}: {min(wrong)!r}: a line is an object with the keys {keys}")
    record = {key: value for key, value in found.items() if value is not None}
    record["image"] = _several(record.get("image"))
    for key, value in record.items():
        if key != "image":
            _check_text(value, key, where)
    record["prompt"] = without_slots(record.get("prompt", ""))
    if not record["prompt"].strip():
        raise InputError(f"{where}: the prompt is missing or empty")
    return record


def _told_in_turns(found: dict[str, Any], where: str) -> dict[str, Any]:
    """A line with a conversation, as one with a prompt, which may be a chat."""
    key = next(key for key in TURNS if found.get(key) is not None)
    for other in ("prompt", "answer", "voice"):
        if found.get(other) is not None:
            raise InputError(f"{where}: {key} say all that is asked and answered: leave {other} out")
    try:
        talk = conversation(found[key])
        given = [image for name in SHOWN for image in _several(found.get(name))]
        if not given and talk.mentions:  # as of a prompt, which loses its places too
            talk = talk.unmarked()
        prompt, pictures = talk.asked(given)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return {"image": pictures, "prompt": prompt, "answer": talk.answer}


def _several(images: Any) -> list[Any]:
    """What names pictures, as a list."""
    return images if isinstance(images, list) else [] if images is None else [images]


def _check_text(value: Any, key: str, where: str) -> None:
    if not isinstance(value, str):
        several = " or a list of them" if key == "image" else ""
        raise InputError(f"{where}: {key} must be one text{several}, not {shorten(value)}")


def _is_path(voice: str) -> bool:
    """Whether a voice is a file, and not one that the target knows by its name."""
    return Path(voice).name != voice or voice.lower().endswith(".wav")


class Chosen:
    """Questions of another source by their numbers there. name: see `Questions`; it leaves out how many they are, so
    that more of them continue a run."""

    def __init__(self, source: Questions, numbers: Sequence[int], name: str) -> None:
        self.source, self.numbers, self.name = source, numbers, name

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Question:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.source[self.numbers[index]]


def part(source: Questions, start: int, stop: int) -> Chosen:
    """Questions start to stop of another source."""
    return Chosen(source, range(start, stop), f"{source.name}[{start}:]")


class Voiced:
    """Questions of another source; those that name no voice are said by `voices` in turns."""

    def __init__(self, source: Questions, voices: Sequence[str]) -> None:
        self.name = f"{source.name} said by {', '.join(voices)}"
        self.source, self.voices = source, voices

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Question:
        question = self.source[index]
        return replace(question, voice=question.voice or self.voices[index % len(self.voices)])


def written_data(data: str) -> Lines | HubData:
    """The questions of a folder with *.jsonl files, of another folder, or of a data set of the hub."""
    from mmspec.checkpoints import HUB_ID

    folder = Path(data)
    if folder.exists():
        laid_out = folder.is_dir() and not any(folder.glob("*.jsonl")) and any(folder.rglob("*.parquet"))
        return HubData(data) if laid_out else Lines(folder)
    place, _, _ = address(data)
    return HubData(data) if Path(place).is_dir() or HUB_ID.fullmatch(place) else Lines(folder)


def open_data(
    data: str,
    count: int | None,
    held_out: int,
    seed: int,
    modality: str = ANY,
    voices: Sequence[str] = (),
    chats: bool = True,
) -> tuple[Questions, Questions]:
    """Questions to train on, and others for validation.

    Args: data: "miniworld", a folder or a hub id. count: how many to train on (None: 3000 of the world, else all).
        held_out: how many for validation; of a folder or data set the last ones. modality: of the target, which may
        have a world of its own. voices: those of a target that speaks; they take turns. chats: whether the target takes
        chats of several turns.
    Raises: InputError: the data is unusable, or too little.
    """
    found = _opened(data, count, held_out, seed, modality, chats)
    return (Voiced(found[0], voices), Voiced(found[1], voices)) if voices else found


def check_no_chats(source: Lines | HubData) -> None:
    """Raise InputError where a question is a chat, for a model that takes none."""
    if source.chat:
        raise InputError(f"{source.chat} holds a chat, and the model takes a text, and no chat of several turns")


def _opened(
    data: str, count: int | None, held_out: int, seed: int, modality: str, chats: bool
) -> tuple[Questions, Questions]:
    if data == MINIWORLD:
        if modality == "text":
            raise InputError(
                f"{MINIWORLD} asks about pictures, and the target reads text only: name a folder with prompts, or a "
                "data set of the hub (--data)"
            )
        world: Any = resolve("questions", MINIWORLD, modality)
        return world(f"drafter/{seed}", count or 3000), world(f"drafter/held-out/{seed}", held_out)
    lines = written_data(data)
    if modality == "vlm" and not isinstance(lines, Lines):
        lines.check_seen()
    if not chats:
        check_no_chats(lines)
    most = len(lines) - held_out
    if most < 1 or (count or 1) > most:
        raise InputError(
            f"{data} holds {len(lines)} {'lines' if isinstance(lines, Lines) else 'rows'}: {held_out} are held out for "
            f"validation (--held-out), so {max(most, 0)} are left to train on, and {count or 'at least 1'} are wanted"
        )
    return part(lines, 0, count or most), part(lines, most, len(lines))


def as_many_as_read(questions: Questions, count: int, seed: int | None, begun: Collection[str] = ()) -> Questions:
    """No more questions than a run reads: to answer the others would be in vain.

    Args: count: how many are answered, no fewer than it reads. seed: takes them from all over the source, which may be
        sorted, and names them so: of more or fewer questions they are others. None takes the first ones. begun: names
        of those that were answered before: such a run goes on in the order in which it began.
    """
    found, order, name = len(questions), list(range(len(questions))), questions.name
    mixed = f"{name}, {found} mixed by {seed}"
    if seed is not None and (mixed in begun or (count < found and name not in begun)):
        random.Random(f"{seed}/questions").shuffle(order)
        name = mixed
    if count < found:
        chosen = "the first ones" if name != mixed else "from all over them"
        logger.info("%d of %d questions are answered, %s: the run reads no others", count, found, chosen)
    return Chosen(questions, order[:count], name)


def has_answers(questions: Questions) -> bool:
    """Whether the data has answers of its own, judged by the first question that can be read."""
    for index in range(len(questions)):
        with suppress(InputError):
            return questions[index].answer is not None
    return True  # nobody can say; whoever asks the first of them is told why


def warm_up_data(data: str, count: int, held_out: int, seed: int) -> Questions:
    """Questions whose own answers teach a drafter the language; of a folder or data set none that are held out."""
    if data == MINIWORLD:
        return Miniworld(f"drafter/warm/{seed}", count)
    lines = written_data(data)
    return part(lines, 0, min(count, len(lines) - held_out))
