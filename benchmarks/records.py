"""What a benchmark writes down, and how it survives being killed.

A sample is one JSON line, written in one piece when it is complete; tau, S and scores are computed from these lines
alone. A second run with the same folder and settings goes on where the first one stopped. Other settings in the same
folder, or another computer, are an error, because their figures must not be mixed. Other code is told of, and noted.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.benchmarks.machine import PLACED, conditions
from mmspec.errors import CheckpointError, InputError, reason, shorten
from mmspec.safe_files import write_whole

if TYPE_CHECKING:
    from mmspec.stats import Stats

SETTINGS, CONDITIONS = "settings.json", "conditions.json"
FREE = {"min_tokens"}
"""Settings that change no sample, but what is made of them."""


class FolderError(InputError, CheckpointError):
    """A run's folder cannot be gone on with: it holds other settings or damaged files, or cannot be written. Another
    model or task would not mend that, so a run of several ends with it."""


@dataclass
class Run:
    """One reply of one method.

    tokens: emitted ids. seconds: the whole call; prefill_seconds: its part before the first token.
    verifications: target forwards after which tokens were emitted, the prefill excluded; verified_tokens: how many.
    accept_lengths: drafted tokens accepted, per round. draft_seconds, verify_seconds, other_seconds: parts of the
        rounds. The methods of transformers do not tell these.
    lossless: whether the acceptance rule keeps the target's law. exact: whether the tokens must be those of our AR loop
        (`mmspec.benchmarks.methods.exact`). more: what else was measured, by name.
    """

    tokens: list[int]
    seconds: float
    prefill_seconds: float
    verifications: int
    verified_tokens: int
    accept_lengths: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0
    lossless: bool = True
    exact: bool = False
    more: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, *rows: Stats, **told: Any) -> Run:
        """The run of replies of ours that were decoded together: rounds count one by one, of rules that verify nothing
        none as a verification; the seconds, which the rows share, are those of the row that ended last.

        told: what the replies' accounts do not say, or say otherwise.
        """
        last = max(rows, key=lambda stats: stats.seconds)  # it was there in every round
        same = ("seconds", "prefill_seconds", "draft_seconds", "verify_seconds", "other_seconds", "lossless")
        found: dict[str, Any] = {name: getattr(last, name) for name in same}
        judged = [stats for stats in rows if stats.verifies]
        found["verifications"] = sum(len(stats.accept_lengths) for stats in judged)
        found["verified_tokens"] = sum(stats.new_tokens - stats.first for stats in judged)
        found["accept_lengths"] = [length for stats in rows for length in stats.accept_lengths]
        return cls(**found | told)


@dataclass
class Sample:
    """One question at one temperature, answered by every method in turn; `repeat` counts repetitions with new seeds."""

    question: int
    temperature: float
    repeat: int
    runs: dict[str, Run]

    @property
    def key(self) -> tuple[int, float, int]:
        """What tells it from the other samples of a run."""
        return self.question, self.temperature, self.repeat


class Store:
    """The folder of a run: `settings.json`, `conditions.json` (when and where it began, and as "others" how it went on
    where that was not alike), `samples.jsonl` and what is derived from them.

    Args: folder: made if it does not exist. settings: everything that the samples depend on.
    Raises: FolderError: the folder holds a run with other settings, is damaged, or cannot be written.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.samples = folder, folder / "samples.jsonl"
        self._noted = False  # the conditions of the samples that are added
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._settle(settings)
        except OSError as error:
            raise FolderError(f"cannot write to {folder}: {reason(error)}") from error

    def _settle(self, settings: dict[str, Any]) -> None:
        path, begun = self.folder / SETTINGS, self.folder / CONDITIONS
        settings = json.loads(json.dumps(settings))
        if path.exists():
            self._compare(settings, _parse(path.read_text(encoding="utf-8"), path))
        elif self.samples.exists():
            raise FolderError(f"{self.folder} has samples but no {SETTINGS}: choose another folder")
        else:
            write_whole(path, json.dumps(settings, indent=1))
        if not begun.exists():
            write_whole(begun, json.dumps(conditions(), indent=1))

    def _compare(self, settings: dict[str, Any], before: dict[str, Any]) -> None:
        unknown = {name for name in PLACED if name not in before}  # folders of earlier versions do not say it
        if other := _changes(before, settings, FREE | unknown):
            raise FolderError(f"{self.folder} holds a run with {other}: choose another folder or the same settings")

    def go_on(self) -> None:
        """Say on stderr if samples of other code are there. To be called before some are added."""
        here = conditions()
        unlike = [one for one in _conditions_in(self.folder / CONDITIONS) if _state(one) != _state(here)]
        if unlike and self.load():
            other = _changes(_state(unlike[-1]), _state(here))
            print(
                f"{self.folder} holds samples made with {other}: the figures will be of both, and the summary names "
                "both; another folder keeps them apart",
                file=sys.stderr,
            )

    def _note(self) -> None:
        """Keep the conditions of the samples that are added, beside those of samples that are there."""
        path, here = self.folder / CONDITIONS, conditions()
        known = _conditions_in(path)
        if _state(here) not in map(_state, known):
            first, *others = [*(known if self.load() else []), here]
            write_whole(path, json.dumps(first | ({"others": others} if others else {}), indent=1))
        self._noted = True

    def load(self) -> list[dict[str, Any]]:
        """All complete lines. A last line that a kill cut short is removed from the file, so that it is made again."""
        if not self.samples.exists():
            return []
        text = self.samples.read_text(encoding="utf-8", errors="replace")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            write_whole(self.samples, whole)
        return [_parse(line, self.samples) for line in whole.split("\n")[:-1]]  # splitlines cuts at more than this

    def add(self, record: dict[str, Any]) -> None:
        """Append one line and see it safely on disk. Raises: FolderError: it cannot be written."""
        try:
            if not self._noted:
                self._note()
            with self.samples.open("a", encoding="utf-8") as file:
                file.write(_line(record))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FolderError(
                f"{self.samples} cannot be written ({reason(error)}); what it holds is kept, and the same "
                "command goes on"
            ) from error

    def arrange(self, keys: Sequence[tuple[int, float, int]]) -> None:
        """Put the samples into the order of `keys`: workers finish them in any order."""
        records = self.load()
        places = {key: place for place, key in enumerate(keys)}
        order = [places[sample_of(record).key] for record in records]
        if order != sorted(order):
            placed = sorted(zip(order, records, strict=True), key=lambda each: each[0])
            write_whole(self.samples, "".join(_line(record) for _, record in placed))


def plain(model: str) -> str:
    """A model's name as that of a folder."""
    return re.sub(r"[^\w.-]+", "_", model).strip("_.") or "model"


def conditions_of(places: Sequence[Path]) -> dict[str, Any]:
    """When and where the samples of a run were begun: the earliest conditions of the stores at `places`; as "others"
    those of samples that were made with other code or on another computer. Empty where there is no store."""
    told = [one for place in places for one in _conditions_in(place / CONDITIONS)]
    latest_first = sorted(told, key=lambda one: one["date"], reverse=True)
    unlike = {json.dumps(_state(one)): one for one in latest_first}  # the earliest of each
    first, *others = sorted(unlike.values(), key=lambda one: one["date"]) or [{}]
    return first | ({"others": others} if others else {})


def _conditions_in(path: Path) -> list[dict[str, Any]]:
    """The conditions that a file tells of, those of its "others" behind the first; none where there is no file."""
    if not path.exists():
        return []
    found = _parse(path.read_text(encoding="utf-8"), path)
    others = found.pop("others", [])
    return [found, *others]


def _state(found: dict[str, Any]) -> dict[str, Any]:
    """What makes conditions unlike others: all but the date."""
    return {**found["versions"], **found["hardware"]}


def _changes(before: dict[str, Any], now: dict[str, Any], but: Set[str] = frozenset()) -> str:
    """What differs, but for some names, as people are told it; "" if nothing does."""
    names = [name for name in sorted({*before, *now} - but) if before.get(name) != now.get(name)]
    return ", ".join(f"{name}={shorten(before.get(name))} (now {shorten(now.get(name))})" for name in names)


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FolderError(f"{path} is damaged ({error}): move the folder away and run again") from error


def sample_of(record: dict[str, Any]) -> Sample:
    """The sample that a line holds."""
    runs = {method: Run(**run) for method, run in record["runs"].items()}
    return Sample(record["question"], record["temperature"], record["repeat"], runs)
