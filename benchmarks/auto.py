"""`mmspec bench auto`: does the length and tree control choose well, and does it ever cost anything?

Three runs beside both autoregressive baselines. world: the control against every shape of the drafter's menu, on the
usual questions. random: the control with a drafter whose weights are random, for replies of a fixed length. outside:
the control with the trained drafter on pictures from outside the world that it was trained on, drawn on the fly, for
replies of a fixed length. Fixed length means that end tokens do not end a reply.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmspec import Pipeline
from mmspec.benchmarks.figures import HF, OURS, Figures, figures, long_enough
from mmspec.benchmarks.methods import HuggingFace, Method, Ours
from mmspec.benchmarks.questions import Question, long_questions
from mmspec.benchmarks.records import Store, conditions_of
from mmspec.benchmarks.speed import SpeedSettings, run, token_counter
from mmspec.benchmarks.tables import aligned, number, speed_table
from mmspec.benchmarks.weights import weights_of
from mmspec.drafters.heads import HeadDrafter
from mmspec.drafters.independent import Independent
from mmspec.errors import InputError, check_least
from mmspec.miniworld.facts import QA

AUTO = "auto"
SIZE = 320
PROMPT = "Describe this picture in detail."
RANDOM = 17
"""Seed of the weights that have learnt nothing, which are the same in every run."""


@dataclass(frozen=True)
class AutoSettings:
    """What the samples depend on. speed: the settings of the first run, with one drafter.

    long_questions, long_tokens: prompts and tokens of each reply in the runs of fixed length.
    """

    speed: SpeedSettings
    long_questions: int = 2
    long_tokens: int = 512

    def __post_init__(self) -> None:
        check_least(self, "long_questions", "long_tokens")
        if len(self.speed.drafters) != 1:
            raise InputError(f"one drafter is needed, got {', '.join(self.speed.drafters) or 'none'}")

    @property
    def fixed_length(self) -> SpeedSettings:
        """The settings of the runs of fixed length."""
        tokens = self.long_tokens
        return replace(self.speed, questions=self.long_questions, repeats=1, max_new_tokens=tokens, min_tokens=tokens)


@dataclass
class AutoReport:
    """runs: "world", "random" (if the drafter has weights) and "outside", each with the figures of all its methods.
    stores: folders of their samples."""

    settings: AutoSettings
    runs: dict[str, list[Figures]]
    stores: list[Path]

    def verdicts(self) -> list[dict[str, Any]]:
        """Per temperature: S of the control, of the best fixed shape, their ratio, and S of the other two runs."""
        found: list[dict[str, Any]] = []
        for temperature in self.settings.speed.temperatures:
            speeds = {
                name: {each.method: each.speedup for each in run if each.temperature == temperature}
                for name, run in self.runs.items()
            }
            world = speeds["world"]
            fixed = {name: speed for name, speed in world.items() if name not in (AUTO, OURS, HF)}
            best = max(fixed, key=lambda name: fixed[name] or 0.0)
            chosen, most = world[AUTO], fixed[best]
            verdict = {"temperature": temperature, "auto": chosen, "best": best, "best_fixed": most}
            verdict["ratio"] = chosen / most if chosen and most else None
            found.append(verdict | {name: run[AUTO] for name, run in speeds.items() if name != "world"})
        return found

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        runs = {name: [asdict(each) for each in run] for name, run in self.runs.items()}
        begun = conditions_of(self.stores)
        return {"settings": asdict(self.settings), **begun, "verdicts": self.verdicts(), "runs": runs}

    def text(self) -> str:
        """Everything, for people."""
        titles = {
            "world": "auto against fixed shapes",
            "random": f"drafter of random weights, {self.settings.long_tokens} tokens",
            "outside": f"pictures from outside the world, {self.settings.long_tokens} tokens",
        }
        parts = [f"{titles[name]}\n\n{speed_table(run, {}, None)}" for name, run in self.runs.items()]
        rows = [["", "S auto", "best fixed", "S", "auto / best", "S random", "S outside"]]
        for verdict in self.verdicts():
            rows.append([
                f"T={verdict['temperature']:g}",
                number(verdict["auto"]),
                verdict["best"],
                number(verdict["best_fixed"]),
                number(verdict["ratio"], 3),
                number(verdict.get("random")),
                number(verdict["outside"]),
            ])  # fmt: skip
        return "\n\n\n".join([*parts, aligned(rows)])


def run_auto(pipe: Pipeline, settings: AutoSettings, folder: Path) -> AutoReport:
    """All runs; each keeps its samples in a folder of its own and goes on where it stopped.

    Args: pipe: a pipeline on the target, with any drafter.
    """
    speed, long = settings.speed, settings.fixed_length
    drafter = pipe.with_drafter(speed.drafters[0]).drafter
    shapes = [str(shape) for shape in drafter.shapes]
    if not shapes:
        raise InputError(f"the drafter {speed.drafters[0]!r} has no shapes to choose from: take another one")
    count = token_counter(pipe)
    samples = {
        "world": run(
            pipe,
            speed,
            part(pipe, folder, "world", speed, shapes=shapes),
            lambda: long_questions(speed.questions, count),
            lambda pipe: {**baselines(pipe), AUTO: controlled(pipe, drafter), **fixed_shapes(pipe, drafter)},
        )
    }
    with endless(pipe):
        if isinstance(drafter, HeadDrafter | Independent):
            samples["random"] = run(
                pipe,
                long,
                part(pipe, folder, "random", long),
                lambda: long_questions(long.questions, count),
                lambda pipe: {**baselines(pipe), AUTO: controlled(pipe, with_random_weights(drafter))},
            )
        samples["outside"] = run(
            pipe,
            long,
            part(pipe, folder, "outside", long),
            lambda: outside_questions(long.questions),
            lambda pipe: {**baselines(pipe), AUTO: controlled(pipe, drafter)},
        )
    return AutoReport(
        settings,
        {
            name: figures(long_enough(some, (speed if name == "world" else long).min_tokens))
            for name, some in samples.items()
        },
        [folder / name for name in samples],
    )


def part(pipe: Pipeline, folder: Path, name: str, settings: SpeedSettings, **more: Any) -> Store:
    """The store of one run."""
    told = {"run": f"auto {name}", **asdict(settings), **weights_of(pipe, settings.drafters), **more}
    return Store(folder / name, told)


def baselines(pipe: Pipeline) -> dict[str, Method]:
    """Both autoregressive decodings."""
    return {OURS: Ours(pipe.with_drafter("none")), HF: HuggingFace(pipe.target.model)}


def controlled(pipe: Pipeline, drafter: Any) -> Ours:
    """Our loop under the control, whose memory lasts as long as the method."""
    return Ours(pipe.with_drafter(copy(drafter), AUTO))


def fixed_shapes(pipe: Pipeline, drafter: Any) -> dict[str, Method]:
    """Our loop with every shape of the drafter's menu; each has its own memory."""
    return {str(shape): Ours(pipe.with_drafter(copy(drafter), shape)) for shape in drafter.shapes}


def with_random_weights(drafter: HeadDrafter | Independent) -> HeadDrafter | Independent:
    """A drafter of the same architecture that has learnt nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM)
        if isinstance(drafter, HeadDrafter):
            other, net, like = copy(drafter), drafter.net, next(drafter.net.parameters())
            other.net = type(net)(net.config, **net.settings).to(like.device, like.dtype).eval()
            other.net.draft_ids = net.draft_ids
            return other
        model = drafter.net
        return Independent(type(model)(model.config).to(model.device, model.dtype))


@contextmanager
def endless(pipe: Pipeline) -> Iterator[None]:
    """No token ends a reply."""
    config = pipe.target.model.generation_config
    ends, config.eos_token_id = config.eos_token_id, None
    try:
        yield
    finally:
        config.eos_token_id = ends


def outside_questions(number: int) -> list[Question]:
    """Pictures that no chart, table, sign or scene of shapes looks like: noise, clouds, gradients and waves in turn."""
    question = QA(PROMPT, "", "describe", "whole", None, ())
    return [Question(index, index, "outside", outside_picture(index), question) for index in range(number)]


def outside_picture(index: int) -> Image.Image:
    """The picture of that index, the same every time."""
    rng = np.random.default_rng(index)
    across, down = np.meshgrid(np.linspace(0, 1, SIZE), np.linspace(0, 1, SIZE))
    kind = index % 4
    if kind == 0:
        pixels = rng.random((SIZE, SIZE, 3))
    elif kind == 1:
        coarse = Image.fromarray((255 * rng.random((9, 9, 3))).astype(np.uint8))
        return coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    else:
        turn, colours = rng.uniform(0, 2 * np.pi), rng.random((2, 3))
        along = np.cos(turn) * across + np.sin(turn) * down
        share = (along - along.min()) / np.ptp(along) if kind == 2 else (1 + np.sin(40 * along + 9 * across * down)) / 2
        pixels = share[..., None] * colours[0] + (1 - share[..., None]) * colours[1]
    return Image.fromarray((255 * pixels).astype(np.uint8))
