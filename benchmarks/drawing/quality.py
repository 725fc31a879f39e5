"""What the pictures of every method are worth: whether captions are kept, and what can be said without captions.

Fidelity is strict: everything that a caption states must be found in its picture by the judge's reader. The control is
the same pictures under other captions, each that of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image

from mmspec import Pipeline
from mmspec.benchmarks.clip import Clip
from mmspec.benchmarks.drawing.laws import surprise
from mmspec.benchmarks.drawing.measures import change, frechet, marginal_distance, position_divergence
from mmspec.benchmarks.drawing.run import ImageSettings, judge_kind
from mmspec.benchmarks.features import Features
from mmspec.benchmarks.figures import OURS, Score, score
from mmspec.errors import InputError

REAL, THROUGH = "real pictures", "the same, through the tokenizer"
"""What no model can exceed: the real pictures of the captions, and what the picture tokenizer leaves of them."""
LAWS = 32
"""Pictures whose likeliness is read."""


@dataclass(frozen=True)
class Quality:
    """One method's pictures. None stands for what cannot be said.

    fidelity: share of captions of which everything holds. change: that minus the fidelity of autoregressive decoding on
    the same captions, with its 95 % interval. manners: fidelity to those captions that tell in one manner where things
    are (`mmspec.image_ar.captions.KINDS`). facts: mean share of stated facts that hold. shuffled: fidelity to
    other captions. frechet: distance to real pictures in the features of `eyes`. marginal, divergence: of the codes
    from those of autoregressive decoding, see `mmspec.benchmarks.drawing.measures`. surprise: mean nats per code under
    the target's guided law. clip: mean CLIP score.
    """

    row: str
    lossless: bool | None
    pictures: int
    fidelity: Score | None = None
    change: tuple[float, float | None, float | None] | None = None
    manners: dict[str, float] = field(default_factory=dict)
    facts: float | None = None
    shuffled: float | None = None
    frechet: float | None = None
    marginal: float | None = None
    divergence: float | None = None
    surprise: float | None = None
    clip: float | None = None


@dataclass(frozen=True)
class Drawn:
    """Captions, and what every row made of them: pictures, and the codes of those that are made of codes."""

    asked: list[Any]
    codes: dict[str, list[list[int]]]
    pictures: dict[str, list[Image.Image]]

    @property
    def captions(self) -> list[str]:
        """Their texts."""
        return [one.prompt for one in self.asked]


def decoded(pipe: Pipeline, asked: list[Any], codes: dict[str, list[list[int]]]) -> Drawn:
    """The pictures of codes."""
    layout = pipe.target.layout
    pictures = {name: [pipe.target.picture(ids, layout) for ids in rows] for name, rows in codes.items()}
    return Drawn(asked, codes, pictures)


def qualities(
    pipe: Pipeline,
    settings: ImageSettings,
    drawn: Drawn,
    lossless: dict[str, bool],
    judge: Any,
    see: Any,
    clip: Clip | None = None,
) -> list[Quality]:
    """The figures of every row; above them, with `eyes` that see, those of the real pictures. lossless: by row."""
    real, found = real_pictures(drawn, see), []
    kept = facts_of(judge, drawn.asked, drawn.pictures.get(OURS))
    for name, pictures in drawn.pictures.items():
        told = marks(judge, drawn.asked, pictures, kept) | of_codes(pipe, settings, drawn, name)
        if real is not None:
            told["frechet"] = frechet(see(pictures), real)
        if clip is not None:
            scores = clip.scores(pictures, drawn.captions)
            told["clip"] = sum(scores) / len(scores)
        found.append(Quality(name, lossless.get(name), len(pictures), **told))
    return ([] if real is None else of_real(pipe, drawn, judge, see, real)) + found


def of_codes(pipe: Pipeline, settings: ImageSettings, drawn: Drawn, name: str) -> dict[str, Any]:
    """The figures of a row's codes; none where pictures are not made of codes."""
    if name not in drawn.codes:
        return {}
    codes, base = drawn.codes[name], drawn.codes.get(OURS)
    told: dict[str, Any] = {}
    if base is not None and name != OURS:
        one, other = torch.tensor(codes), torch.tensor(base)
        told["marginal"] = marginal_distance(one, other, pipe.target.vocab_size)
        told["divergence"] = position_divergence(one, other, pipe.target.vocab_size)
    told["surprise"] = surprise(pipe, drawn.captions[:LAWS], codes[:LAWS], settings.temperature, settings.guidance)
    return told


def facts_of(judge: Any, asked: Sequence[Any], pictures: Sequence[Image.Image] | None) -> list[list[bool]] | None:
    """Which facts hold in each picture; None without a judge, or for captions that state none."""
    return None if judge is None or pictures is None else judge.facts(asked, pictures)


def marks(
    judge: Any, asked: list[Any], pictures: Sequence[Image.Image], base: list[list[bool]] | None
) -> dict[str, Any]:
    """What the judge says of pictures. base: the facts that hold in the pictures of autoregressive decoding."""
    facts = facts_of(judge, asked, pictures)
    if facts is None:
        return {}
    whole = [all(each) for each in facts]
    others = facts_of(judge, [*asked[1:], asked[0]], pictures) or []
    return {
        "fidelity": score("fidelity", whole),
        "change": change(whole, [all(each) for each in base]) if base is not None else None,
        "manners": shares(asked, whole),
        "facts": sum(sum(each) / len(each) for each in facts) / len(facts),
        "shuffled": sum(map(all, others)) / len(others),
    }


def shares(asked: Sequence[Any], whole: Sequence[bool]) -> dict[str, float]:
    """How many captions of each manner are kept whole, of those manners that there are."""
    found: dict[str, list[bool]] = {}
    for one, kept in zip(asked, whole, strict=True):
        found.setdefault(one.said.manner, []).append(kept)
    return {manner: sum(these) / len(these) for manner, these in found.items()}


def eyes(settings: ImageSettings, judge: Any) -> Any:
    """What sees pictures, [N, F] of N, for the distance: the network that the user names, else the reader of the judge;
    None without either."""
    if settings.features is not None:
        return Features(settings.features)
    return None if judge is None else judge.features


def real_pictures(drawn: Drawn, see: Any) -> Any:
    """What is seen in the real pictures of the captions; None if nothing sees, or where there are none."""
    pictures = [one.picture for one in drawn.asked]
    return None if see is None or None in pictures else see(pictures)


def of_real(pipe: Pipeline, drawn: Drawn, judge: Any, see: Any, real: Any) -> list[Quality]:
    """The figures of the real pictures, whose distance is from as many other real ones, and of what the picture
    tokenizer leaves of them."""
    others = judge_kind().captions(len(drawn.asked), None, len(drawn.asked))
    pictures = [one.picture for one in drawn.asked]
    sets = {REAL: pictures}
    if hasattr(pipe.target, "reconstruct"):
        sets[THROUGH] = [pipe.target.reconstruct(picture) for picture in pictures]
    compared = {REAL: [one.picture for one in others], THROUGH: sets.get(THROUGH, [])}
    return [
        Quality(name, None, len(those), **marks(judge, drawn.asked, those, None),
                frechet=frechet(see(compared[name]), real))
        for name, those in sets.items()
    ]  # fmt: skip


def measure_by(found: Sequence[Quality]) -> tuple[str, Callable[[Quality], float | None]]:
    """What stands for quality in a plot: fidelity, or without a judge the surprise."""
    if not found:
        raise InputError("nothing was drawn, so there is no quality to show")
    if any(each.fidelity for each in found):
        return "captions kept", lambda each: each.fidelity.accuracy if each.fidelity else None
    return "nats per code under the target's law", lambda each: each.surprise
