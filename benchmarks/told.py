"""How well drafters draft what is known to depend on the picture, on the question, or on neither.

In the synthetic world every span of a reference answer is labelled: only the picture determines it, or it stands in the
question, or it is template. So the reference itself is decoded: the target reads it as if it had said it, the drafter
drafts as always, and the walk goes along the reference. Nothing is judged by the looks of a token, and all drafters
are asked for the same tokens. Drafts have the drafters' own size unless the settings say another.

    acceptance = tokens of a dependence that the draft held / tokens of it for which there was a draft

The token behind a whole accepted path, for which nothing was drafted, counts on neither side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec import Pipeline
from mmspec.benchmarks.figures import with_interval
from mmspec.benchmarks.questions import Question, long_questions
from mmspec.benchmarks.speed import token_counter, tokenizer_of
from mmspec.benchmarks.start import ModelSettings
from mmspec.benchmarks.tables import MISSING, aligned, change
from mmspec.benchmarks.token_classes import DEPENDENCES, Counts, kinds_of
from mmspec.contract import Accepted, Draft, Kind, Rule
from mmspec.control import read_shape
from mmspec.decode import decode, within_memory
from mmspec.errors import InputError
from mmspec.sampling import Sampler, Sampling
from mmspec.stopping import Stop
from mmspec.training.written import written_answer
from mmspec.tree import follow


@dataclass(frozen=True)
class ToldSettings(ModelSettings):
    """What the figures depend on. drafters: the first one is the one that the others are compared with. shape: of
    the drafts, see `mmspec.load`; "4" makes all of them chains of four, so that trees and chains can be compared."""

    drafters: tuple[str, ...]
    questions: int = 32
    shape: str = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.drafters:
            raise InputError("name at least one drafter")
        if self.shape == "auto":
            raise InputError("shape 'auto' depends on clocks, these figures must not: take 'own' or a size, such as 4")
        if self.questions < 1:
            raise InputError(f"questions={self.questions} is not valid: 1 or more are needed")


class Told(Rule):
    """A rule that walks along a given answer, whatever the target says.

    tries: for each token after the first whether the draft held it; None where nothing was drafted.
    """

    lossless = False
    invariant = True
    takes: tuple[Kind, ...] = ("point",)

    def __init__(self, answer: Sequence[int]) -> None:
        self.answer = torch.tensor(list(answer))
        self.tries: list[bool | None] = []

    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """See `mmspec.contract.Rule`; one row."""
        places = (emitted[:, None] + draft.depth).clamp(max=len(self.answer) - 1)
        accepted = follow(draft, self.answer.to(places.device)[places])
        kept = int(accepted.count[0]) - 1
        below = draft.parents[0] == accepted.path[0, kept]
        offered = bool((below if draft.valid is None else below & draft.valid[0]).any())
        self.tries += [*([True] * kept), False if offered else None]
        return accepted


class First(Sampler):
    """A greedy sampler whose first token is given."""

    def __init__(self, token: int, device: torch.device) -> None:
        super().__init__(Sampling(), 1, device)
        self.token = token

    def draw(self, scores: Tensor, positions: Tensor) -> Tensor:
        """See `Sampler`."""
        return torch.where(positions == 0, self.token, super().draw(scores, positions))


def answer_of(pipe: Pipeline, image: Any, qa: Any) -> tuple[list[int], list[str]]:
    """The reference answer as the target would have to write it: its ids, and the dependence of each."""
    written = written_answer(pipe, image, qa.question, qa.answer)
    text = written.partition(qa.answer)[0] + qa.answer
    found = tokenizer_of(pipe)(text, add_special_tokens=False, return_offsets_mapping=True)
    return found["input_ids"], kinds_of(found["offset_mapping"], qa.spans, len(text) - len(qa.answer))


@torch.inference_mode()
def told_counts(pipe: Pipeline, question: Question) -> Counts:
    """By dependence: tokens for which there was a draft, and how many of them it held."""
    ids, kinds = answer_of(pipe, question.image, question.qa)
    rule, device = Told(ids), pipe.target.model.device
    inputs = {**pipe.prepare(question.image, question.prompt), "max_new_tokens": len(ids)}
    sampler: Any = First(ids[0], device)
    stop = Stop((), len(ids))
    rounds = decode(pipe.target, pipe.drafter, rule, inputs, sampler, stop, pipe.control)
    for _ in within_memory(rounds, pipe.target, inputs):
        pass
    assert stop.outputs == [ids]
    found: Counts = {name: [0, 0] for name in DEPENDENCES}
    for kind, held in zip(kinds[1:], rule.tries, strict=False):  # the last round may look behind the end
        if held is not None:
            found[kind][0] += 1
            found[kind][1] += held
    return found


def told_all(pipe: Pipeline, questions: Sequence[Question]) -> list[Counts]:
    """The counts of each question."""
    return [told_counts(pipe, question) for question in questions]


@dataclass(frozen=True)
class ToldReport:
    """method -> counts of each question, in the same order."""

    settings: ToldSettings
    counts: dict[str, list[Counts]] = field(default_factory=dict)

    def share(self, method: str, kind: str) -> float | None:
        """Acceptance of a dependence, None where there was none to accept."""
        tried, held = self.totals(method)[kind]
        return held / tried if tried else None

    def totals(self, method: str) -> Counts:
        """Counts over all questions."""
        each = self.counts[method]
        return {kind: [sum(one[kind][part] for one in each) for part in (0, 1)] for kind in DEPENDENCES}

    def gain(self, method: str, kind: str) -> tuple[float, float | None, float | None] | None:
        """By how much a method's acceptance is above the first drafter's, with its bootstrap interval over
        questions."""
        both = zip(self.counts[method], next(iter(self.counts.values())), strict=True)
        pair = np.array([[*one[kind], *other[kind]] for one, other in both], dtype=float)  # [questions, 4]
        if not pair.sum(0)[[0, 2]].all():
            return None

        def gained(sums: np.ndarray) -> np.ndarray:
            tried, held, base_tried, base_held = np.moveaxis(sums, -1, 0)
            return held / np.maximum(tried, 1) - base_held / np.maximum(base_tried, 1)

        return with_interval(pair, gained, least=-np.inf)

    def text(self) -> str:
        """A row per method: acceptance by dependence and of all tokens; how much more of what the picture decides."""
        head = ["method", *(f"{kind} ({name})" for kind, name in DEPENDENCES.items()), "all", "more of image", "95 %"]
        rows = [head]
        for method in self.counts:
            totals = self.totals(method)
            tried, held = (sum(pair[part] for pair in totals.values()) for part in (0, 1))
            shares = [_share(*totals[kind]) for kind in DEPENDENCES]
            gain = self.gain(method, "image")
            more = MISSING if gain is None else f"{gain[0]:+.2f}"
            rows.append([method, *shares, _share(tried, held), more, change(*gain[1:]) if gain else MISSING])
        return aligned(rows)

    def summary(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "settings": asdict(self.settings),
            "methods": {
                method: {
                    "counts": self.totals(method),
                    "share": {kind: self.share(method, kind) for kind in DEPENDENCES},
                    "image_gain": self.gain(method, "image"),
                }
                for method in self.counts
            },
        }


def run_told(pipe: Pipeline, settings: ToldSettings) -> ToldReport:
    """The figures of every drafter, on the same questions."""
    questions = long_questions(settings.questions, token_counter(pipe))
    report, shape = ToldReport(settings), read_shape(settings.shape)
    pipes = {name: pipe.with_drafter(name, shape) for name in settings.drafters}  # one that lacks is told at once
    report.counts.update({name: told_all(each, questions) for name, each in pipes.items()})
    return report


def _share(tried: int, held: int) -> str:
    return f"{held / tried:.2f} of {tried}" if tried else "-"
