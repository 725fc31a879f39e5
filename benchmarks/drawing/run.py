"""The image run: every method draws the same captions, a few with clocks, at every batch size, and many to be judged.

A method's seconds are those of decoding codes: prefill, drafting, verification, bookkeeping. What the picture decoder
takes is the same for all and not counted. The rows of a batch count one by one: tau is per picture, seconds are shared.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from transformers import GenerationConfig

from mmspec import Pipeline
from mmspec.benchmarks.figures import HF, OURS
from mmspec.benchmarks.methods import Method, exact
from mmspec.benchmarks.records import Run, Sample, Store
from mmspec.benchmarks.rows import row
from mmspec.benchmarks.speed import SpeedSettings, run
from mmspec.benchmarks.stock import bare
from mmspec.benchmarks.weights import weights_of_rows
from mmspec.errors import InputError
from mmspec.options import guidance_scale, sampling_for
from mmspec.progress import progress
from mmspec.registry import resolve
from mmspec.results import Generation
from mmspec.safe_files import read_lines

AGAIN = "none, other seeds"
"""The control: autoregressive decoding once more; what it is away from itself, nobody can be blamed for."""
OTHER_SEEDS = 1_000_000
TOGETHER = 16
"""Pictures that are drawn together when no clock runs."""
LEAST_REQUESTS = 2
STEPS = re.compile(r":steps=(\d+)(?=[:@]|$)")

CURVE_DRAFTER = "scd-mc"
CURVE = {
    "lantern": ("delta={:g}", (0.02, 0.05, 0.1, 0.2, 0.4)),
    "lantern++": ("bound={:g}", (1.2, 1.5, 2, 3, 5)),
    "gsd": ("size={:g}:distance=none", (4, 8, 14, 30, 50)),  # the published distance is of Lumina-mGPT's embedding
    "cool-sd": ("delta={:g}", (1.1, 1.3, 1.6, 2)),
}
"""Every relaxed rule, its knob, and the settings between the exact rule and the loosest one that was published."""


FOLDERS = ("prompts", "reader", "clip", "features")
"""Settings that are paths."""


@dataclass(frozen=True)
class ImageSettings:
    """How an image model is measured. speed: its `drafters` are rows (`mmspec.benchmarks.rows`), its first temperature
    the only one, its `questions` the captions with clocks.

    captions: how many are judged. batches: sizes. guidance: None is the model's own. prompts: a file of captions, one a
    line; held-out ones of the synthetic world by default. reader, clip, features: folders of the reader of pictures (by
    default see `mmspec.image_ar.judge`), of a CLIP model and of a network of timm's (none by default).
    """

    speed: SpeedSettings
    captions: int = 128
    batches: tuple[int, ...] = (1, 8)
    guidance: float | None = None
    prompts: Path | None = None
    reader: Path | None = None
    clip: Path | None = None
    features: Path | None = None

    def __post_init__(self) -> None:
        for name, values in (("captions", (self.captions,)), ("batch", self.batches or (0,))):
            if not all(isinstance(value, int) and value >= 1 for value in values):
                raise InputError(
                    f"{name}={', '.join(map(str, values))} is not valid: whole numbers from 1 on are needed"
                )
        if len(self.speed.temperatures) != 1:
            raise InputError("pictures are measured at one temperature at a time: give one")
        if self.captions < 2 and self.prompts is None:  # captions of a file have no control
            raise InputError("captions=1 is not valid: a control needs the caption of another picture, so 2 or more")

    @property
    def temperature(self) -> float:
        """The only one."""
        return self.speed.temperatures[0]

    def whole(self, length: int) -> ImageSettings:
        """The same for whole pictures, which have so many tokens."""
        return replace(self, speed=replace(self.speed, max_new_tokens=length, min_tokens=length))


@dataclass(frozen=True)
class Captions:
    """A batch of captions, as a question."""

    prompt: list[str]
    image: ClassVar[None] = None
    voice: ClassVar[None] = None


def curve_rows() -> tuple[str, ...]:
    """The rows of a quality-speed curve."""
    return tuple(
        f"{CURVE_DRAFTER}@{rule}:{knob.format(value)}" for rule, (knob, values) in CURVE.items() for value in values
    )


@dataclass
class Drawing:
    """Our decode loop with one drafter and one rule. steps: of MAR."""

    pipe: Pipeline
    guidance: float | None = None
    steps: int | None = None

    @property
    def own_steps(self) -> bool:
        """Whether pictures are drawn in the model's own steps; fewer ones draw from another law."""
        return self.steps in (None, getattr(self.pipe.target.model.config, "reveal_steps", None))

    def __call__(self, inputs: Any, max_new_tokens: int, temperature: float, seed: int) -> Run:
        """See `Method`; `inputs` is a list of captions."""
        replies = self.draw(inputs, max_new_tokens, temperature, seed)
        rows = [reply.stats for reply in replies]
        forwards = max(stats.target_calls for stats in rows)  # of the row that was there in every round
        return Run.of(
            *rows,
            tokens=[token for reply in replies for token in reply.token_ids],
            lossless=rows[0].lossless and self.own_steps,
            exact=exact(self.pipe, temperature) and self.own_steps,
            more={"pictures": len(replies), "forwards": forwards},
        )

    def draw(self, captions: list[str], max_new_tokens: int, temperature: float, seed: int) -> list[Generation]:
        """A picture per caption, in one batch; caption i has the seed `seed` + i."""
        told: Any = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
        return self.pipe(prompt=list(captions), guidance=self.guidance, steps=self.steps, **told)


def steps_of(text: str) -> tuple[str, int | None]:
    """A row without its steps, and these; None are the model's own."""
    found = STEPS.search(text)
    return STEPS.sub("", text, count=1), int(found[1]) if found else None


def drawing(pipe: Pipeline, text: str, guidance: float | None) -> Drawing:
    """What draws a row; with steps where the model takes these."""
    told, steps = steps_of(text) if "steps" in pipe.target.settings else (text, None)
    return Drawing(row(pipe, told), guidance, steps)


@dataclass
class StockJanus:
    """`generate` of transformers on the same model with the same warpers. Its first forward is its prefill."""

    pipe: Pipeline
    guidance: float | None = None

    def __call__(self, inputs: Any, max_new_tokens: int, temperature: float, seed: int) -> Run:
        """See `Method`; `inputs` is a list of captions."""
        model = self.pipe.target.model
        told = {name: value.to(model.device) for name, value in self.pipe.prepare(None, list(inputs)).items()}
        scale = self.pipe.target.guidance(self.guidance)
        sampling = sampling_for({"temperature": temperature}, model.generation_config)
        drawn = {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p or None}
        config = GenerationConfig(
            max_length=told["input_ids"].shape[1] + max_new_tokens,
            guidance_scale=scale,
            repetition_penalty=sampling.repetition_penalty,
            generation_kwargs={"boi_token_id": self.pipe.target.start},  # all that is read of them
            **({"do_sample": True, "temperature": temperature, **drawn} if temperature else {"do_sample": False}),
        )
        ends: list[float] = []
        hook = model.model.language_model.register_forward_hook(lambda *_: ends.append(time.perf_counter()))
        torch.manual_seed(seed)
        start = time.perf_counter()
        try:
            with bare(model):
                tokens = model.generate(**told, generation_mode="image", generation_config=config)
        finally:
            hook.remove()
        seconds, batch = time.perf_counter() - start, len(tokens)
        count = tokens.numel() - batch
        more = {"pictures": float(batch), "forwards": float(len(ends))}
        return Run(tokens.flatten().tolist(), seconds, ends[0] - start, count, count, more=more)


def methods(pipe: Pipeline, settings: ImageSettings) -> dict[str, Method]:
    """The rows as methods; `generate` of transformers stands beside our AR loop where it can draw at all: it doubles
    every batch, and takes the halves together only with guidance above 1."""
    found: dict[str, Method] = {}
    stock = pipe.target.model.config.model_type == "janus" and pipe.target.guidance(settings.guidance) > 1
    for text in settings.speed.drafters:
        found[text] = drawing(pipe, text, settings.guidance)
        if text == OURS and stock:
            found[HF] = StockJanus(pipe, settings.guidance)
    return found


def judge_kind() -> Any:
    """What knows captions and judges pictures."""
    return cast("Any", resolve("judges", "reader", "image"))


def judge_of(pipe: Pipeline, settings: ImageSettings) -> Any:
    """The judge of the run, None if there is no reader. Raises: CheckpointError: the one named is none."""
    return judge_kind().find(pipe.folder, settings.reader)


def fitted(pipe: Pipeline, settings: ImageSettings) -> ImageSettings:
    """The settings of a run on this model: whole pictures, and all rows known to be good before anything is drawn.

    Raises: InputError: a model that does not draw, or not these captions. UnsupportedError: its codes become no picture
        here.
    """
    target = pipe.target
    if target.modality != "image":
        raise InputError(f"{type(target.model).__name__} does not draw: mmspec bench measures it without 'images'")
    check_captions(pipe, settings)
    methods(pipe, settings)
    guidance_scale(settings.guidance, target.model.generation_config, target.usual_guidance)
    target.check_codec()  # nothing can be judged without pictures
    return settings.whole(target.budget if target.emits == "values" else target.layout.length)


def check_captions(pipe: Pipeline, settings: ImageSettings) -> None:
    """Raise InputError where captions of the synthetic world would be asked of a model that draws none."""
    examples = pipe.target.examples
    if examples and settings.prompts is None:
        raise InputError(
            f"{type(pipe.target.model).__name__} draws none of the captions of the synthetic world: name a file of "
            f"what it draws by --prompts, one a line, such as {examples[0]}"
        )


def told_of(pipe: Pipeline, settings: ImageSettings, captions: list[str]) -> dict[str, Any]:
    """What the samples of a run depend on."""
    words = sha256("\n".join(captions).encode()).hexdigest()
    told = {**asdict(settings.speed), "guidance": settings.guidance, "prompts": words}
    return told | weights_of_rows(pipe, settings.speed.drafters)


def places(settings: ImageSettings, folder: Path) -> list[Path]:
    """Where a run keeps its samples: those of every batch size, then the pictures."""
    return [*(folder / f"batch-{size}" for size in settings.batches), folder / "pictures"]


def run_batch(pipe: Pipeline, settings: ImageSettings, size: int, folder: Path) -> list[Sample]:
    """The samples of one batch size, with clocks. Whatever `auto` learns, it learns for this size alone."""
    count = max(LEAST_REQUESTS, math.ceil(settings.speed.questions / size))
    captions = clocked(settings, count * size)
    groups = [Captions(captions[start : start + size]) for start in range(0, len(captions), size)]
    speed = replace(settings.speed, questions=count, rows=size)
    told = told_of(pipe, settings, captions) | {"run": "images", "batch": size, "questions": count}
    return run(
        pipe,
        speed,
        Store(folder, told),
        lambda: groups,
        lambda pipe: methods(pipe, settings),
        warm=lambda: groups[0],
        prepare=lambda _, group: group.prompt,
    )


def clocked(settings: ImageSettings, count: int) -> list[str]:
    """So many captions with clocks; those of a file come again where batches take more than it holds."""
    file = settings.prompts
    there = count if file is None else max(settings.speed.questions, min(count, len(read_lines(file))))
    found = [one.prompt for one in judge_kind().captions(there, file)]
    return list(islice(cycle(found), count))


def draw_all(pipe: Pipeline, settings: ImageSettings, asked: list[Any], folder: Path) -> dict[str, list[list[int]]]:
    """The codes of every caption by every row and by the control; those that the folder does not hold are drawn."""
    captions = [one.prompt for one in asked]
    rows = [*settings.speed.drafters, *([AGAIN] if OURS in settings.speed.drafters else [])]
    store = Store(folder, told_of(pipe, settings, captions) | {"run": "pictures", "captions": len(captions)})
    done = {(record["row"], record["caption"]): record["tokens"] for record in store.load()}
    if len(done) < len(rows) * len(captions):
        store.go_on()
    with progress(desc="pictures", unit="picture", total=len(rows) * len(captions), initial=len(done)) as bar:
        for name in rows:
            missing = [index for index in range(len(captions)) if (name, index) not in done]
            painter = drawing(pipe, OURS if name == AGAIN else name, settings.guidance) if missing else None
            for first in dict.fromkeys(index // TOGETHER * TOGETHER for index in missing):
                assert painter is not None
                seed = settings.speed.seed + first + (OTHER_SEEDS if name == AGAIN else 0)
                batch = captions[first : first + TOGETHER]
                replies = painter.draw(batch, settings.speed.max_new_tokens, settings.temperature, seed)
                for index, reply in enumerate(replies, first):
                    if (name, index) not in done:
                        store.add({"row": name, "caption": index, "tokens": list(reply.token_ids)})
                        done[name, index] = list(reply.token_ids)
                        bar.update()
    return {name: [done[name, index] for index in range(len(captions))] for name in rows}
