"""The model behind the demos: loaded when it is first needed, asked within limits that hold for everybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from PIL import Image

from mmspec.checkpoints import shown_name
from mmspec.contract import Drafter, Unit, bound
from mmspec.control import control_for, read_shape
from mmspec.demos.examples import examples, texts
from mmspec.demos.knobs import Knob, relaxed
from mmspec.demos.race import Race
from mmspec.demos.recorder import Recorded, Recorder
from mmspec.demos.trace import Trace, follow
from mmspec.errors import InputError, MismatchError, shorten, unknown_name
from mmspec.media import FORMATS, load_image
from mmspec.text import decode_text

if TYPE_CHECKING:
    from mmspec.api import Pipeline
    from mmspec.results import Stream

LONGEST_PROMPT = 2000  # characters
MOST_TOKENS = 256
MOST_PIXELS = 16_000_000
SHAPES = ("auto", "own", "2", "4", "8", "3x4x9", "5x4x16", "8x4x32")
"""Sizes of drafts to choose from, see `mmspec.control.read_shape`."""
KEPT = 600
"""Seconds for which uploads and races are kept."""
WARM_UP = "What is shown?"


@dataclass(frozen=True)
class Wish:
    """What a visitor asks for. looseness: of a relaxed rule, 0 (the law is kept) to 1.

    A kind of wish says what its prompt is called (`noun`), how long it may be (`longest`, characters), which `rules`
    and `sizes` of drafts there are, and the lowest temperature (`coldest`). Raises: InputError for what is beyond the
    limits.
    """

    prompt: str
    drafter: str
    rule: str = "exact"
    temperature: float = 1.0
    seed: int = 0
    shape: str = "auto"
    looseness: float = 0.3
    noun: ClassVar[str]
    longest: ClassVar[int] = LONGEST_PROMPT
    rules: ClassVar[Sequence[str]] = ("exact",)
    sizes: ClassVar[Sequence[str]] = SHAPES
    coldest: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise InputError(f"the {self.noun} is empty: write one, or click on an example")
        if len(self.prompt) > self.longest:
            raise InputError(f"the {self.noun} has {len(self.prompt)} characters: at most {self.longest} are taken")
        if not self.coldest <= self.temperature <= 2:
            least = f"{self.coldest:g}" if self.coldest else "0 (greedy)"
            raise InputError(f"temperature {self.temperature:g} is not valid: {least} to 2 is taken")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"the seed {self.seed} is not valid: 0 to {2**31 - 1} is taken")
        if self.shape not in self.sizes:  # every other one would be kept with a pipeline of its own
            raise unknown_name("draft size", self.shape, self.sizes)
        if self.rule not in self.rules:
            raise unknown_name("rule", self.rule, self.rules)
        if not 0 <= self.looseness <= 1:
            raise InputError(f"looseness {self.looseness:g} is not valid: 0 (the law is kept) to 1 is taken")

    def options(self) -> dict[str, Any]:
        """What both pipelines are asked with."""
        return {"prompt": self.prompt, "temperature": self.temperature, "seed": self.seed}


@dataclass(frozen=True)
class Question(Wish):
    """What a visitor wants answered. picture: a file, or None. See `Wish`."""

    temperature: float = 0.0
    picture: Path | None = None
    max_new_tokens: int = 96
    noun = "question"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_new_tokens <= MOST_TOKENS:
            raise InputError(f"{self.max_new_tokens} tokens are not valid: 1 to {MOST_TOKENS} are taken")

    def options(self) -> dict[str, Any]:
        """See `Wish`. Raises: InputError for what is no picture."""
        picture = opened(self.picture) if self.picture else None
        return {**super().options(), "image": picture, "max_new_tokens": self.max_new_tokens}


class Studio:
    """A model with its drafters, one request at a time.

    Args: model: bundled name, folder or hub id. drafters: names to choose from, the best first; None finds those that
        lie beside the model and those that need no training.
    """

    title: ClassVar[str] = "Picture chat"
    modality: ClassVar[str] = "vlm"
    shows: ClassVar[tuple[Unit, ...]] = ("ids",)
    knobs: ClassVar[Mapping[str, Knob]] = {}
    wish: ClassVar[type[Wish]] = Question

    def __init__(self, model: str, drafters: list[str] | None = None) -> None:
        self.model = model
        self._drafters = drafters
        self._recorders: dict[str, Recorder] = {}
        self._pipes: dict[tuple[str, str, str], Pipeline] = {}

    @property
    def name(self) -> str:
        """The model's name for visitors."""
        return shown_name(self.model)

    @cached_property
    def choices(self) -> list[tuple[str, str]]:
        """The drafters to choose from: name for visitors, value."""
        return [(self.names[drafter], drafter) for drafter in self.drafters]

    @cached_property
    def names(self) -> dict[str, str]:
        """The names for visitors of plain decoding and the drafters; of those alike all but the first are numbered."""
        names: dict[str, str] = {}
        for drafter in dict.fromkeys(["none", *self.drafters]):
            name, taken = shown_name(drafter), names.values()
            numbered = (f"{name} ({number})" for number in count(2))
            names[drafter] = next(each for each in numbered if each not in taken) if name in taken else name
        return names

    @cached_property
    def plain(self) -> Pipeline:
        """The pipeline that decodes one token at a time."""
        import mmspec

        return self._warm(mmspec.load(self.model, "none", compile=False))  # a visitor cannot wait for a compiler

    @cached_property
    def drafters(self) -> list[str]:
        """The drafters to choose from."""
        return self._drafters if self._drafters is not None else usable(self.model, self.modality) or ["none"]

    def drafting(self, drafter: str, shape: str, rule: str = "exact", looseness: float = 0.0) -> Pipeline:
        """The pipeline with a drafter, a size of drafts, which are recorded, and an acceptance rule, which may have a
        knob (see `knobs`)."""
        if drafter not in self.drafters:
            raise unknown_name("drafter", drafter, self.drafters)
        if drafter not in self._recorders:
            self._recorders[drafter] = Recorder(self.plain.with_drafter(drafter).drafter)
        size, turned = read_shape(shape), relaxed(rule, looseness, self.knobs, self.modality)
        if (drafter, shape, rule) not in self._pipes:
            recorder = self._recorders[drafter]
            check_size(shape, self.names[drafter], recorder.drafter)
            self.plain.with_drafter(recorder.drafter, size, turned or rule)  # what does not fit is told by its own name
            self._pipes[drafter, shape, rule] = self._warm(self.plain.with_drafter(recorder, size, turned or rule))
        pipe = self._pipes[drafter, shape, rule]
        pipe.forget()  # or it would know the reply of the race before
        return pipe if turned is None else pipe.with_drafter(pipe.drafter, size, turned)

    def samples(self, folder: Path) -> list[dict[str, Any]]:
        """What a benchmark asks for: of each `wish` what is not a matter of decoding. folder: for files."""
        return [{"picture": Path(file), "prompt": question} for file, question in examples(folder)]

    def race(self, wish: Wish) -> Iterator[Any]:
        """Do what is wished one token at a time, then with drafts; yields the growing race, the last time finished."""
        options, slow = wish.options(), self.plain
        slow.target.check_codec()
        fast = self.drafting(wish.drafter, wish.shape, wish.rule, wish.looseness)
        race = self.begun(wish, fast)
        race.invariant = bound(fast.rule, wish.temperature == 0)
        recorder: Any = fast.drafter
        for pipe, trace, recorded in ((slow, race.slow, None), (fast, race.fast, recorder.rounds)):
            for _ in self.followed(race, trace, pipe.stream(**options), recorded):
                yield race
        race.finished = True
        yield race

    def begun(self, wish: Wish, fast: Pipeline) -> Race:
        """A race before its start. fast: what drafts."""
        return Race(Trace("none"), Trace(wish.drafter))

    def followed(self, race: Any, trace: Trace, stream: Stream, recorded: Sequence[Recorded] | None) -> Iterator[Any]:
        """One side of a race, round by round, until all that is shown of it is there. See `follow`."""
        tokenizer = self.plain.target.tokenizer
        return follow(stream, trace, tokenizer, recorded, partial(text_of_token, tokenizer))

    def warm_prompt(self, pipe: Pipeline) -> str:
        """What a pipeline is asked first."""
        return WARM_UP

    def _warm(self, pipe: Pipeline) -> Pipeline:
        """A few tokens, so that the first visitor does not wait longer than the others."""
        pipe(prompt=self.warm_prompt(pipe), max_new_tokens=max(8, pipe.target.least))
        return pipe


class TextStudio(Studio):
    """A model that reads text only. See `Studio`."""

    title = "Text chat"
    modality = "text"

    def samples(self, folder: Path) -> list[dict[str, Any]]:
        """See `Studio`."""
        return [{"prompt": text} for text in texts()]


def usable(model: str, modality: str) -> list[str]:
    """Drafters for a model: the one that `mmspec.load` would take, trained ones that lie beside it, then those that
    need neither training nor files, methods of its modality first."""
    from mmspec.checkpoints import drafters_of, find_model
    from mmspec.inventory import drafters
    from mmspec.loading import default_drafter, family_of, serves_unread
    from mmspec.registry import resolve

    beside = drafters_of(find_model(model))
    family = family_of(model)
    free = [
        (modality not in entry["modalities"], entry["name"])
        for entry in drafters()
        if not entry["trained"] and entry["name"] != "none" and {"any", modality} & set(entry["modalities"])
    ]
    ready = [name for *_, name in sorted(free) if serves_unread(resolve("drafters", name, modality), family)]
    first = default_drafter(family, beside)
    return sorted(dict.fromkeys([*beside, *ready]), key=lambda name: name != first)


def check_named(drafter: str, model: str) -> None:
    """Raise an Error for a method's name that the model has nothing for: a visitor would be the first to learn of it.
    Folders, hub ids (owner/name) and bundled names are read when they are asked for."""
    from mmspec.checkpoints import bundled, find_model
    from mmspec.loading import family_of, has_drafter
    from mmspec.registry import resolve

    if "/" in drafter or Path(drafter).is_dir() or drafter in bundled():
        return
    family = family_of(model)
    if not has_drafter(drafter, family, find_model(model)):
        resolve("drafters", drafter, family.modality)
        raise MismatchError(f"{shown_name(model)} has no drafter {drafter!r}: none lies beside it")


def check_size(shape: str, name: str, drafter: Drafter) -> None:
    """Raise MismatchError, in the words of the page, for a draft size that a drafter does not make. name: its own
    for visitors."""
    try:
        control_for(read_shape(shape), drafter)
    except MismatchError as error:
        raise MismatchError(
            f"the drafter {name!r} makes drafts of other sizes than {shape}: choose the draft size auto or own"
        ) from error


def text_of_token(tokenizer: Any, token: int) -> str:
    """The text of one token, special ones included."""
    return decode_text(tokenizer, [token], special=True)


def opened(path: Path) -> Image.Image:
    """An uploaded picture. Raises: InputError for what is no picture, or too large a one, without decoding it."""
    if not path.exists():
        raise InputError("the picture is no longer here, it was kept for ten minutes: upload it again")
    try:
        with Image.open(path, formats=FORMATS) as picture:
            width, height = picture.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        width = height = 0  # the message is that of load_image
    if width * height > MOST_PIXELS:
        raise InputError(
            f"the picture has {width} x {height} pixels: at most {MOST_PIXELS // 1_000_000} million are taken"
        )
    try:
        return load_image(path)
    except InputError as error:
        raise InputError(str(error).replace(shorten(str(path)), "that you uploaded")) from error
