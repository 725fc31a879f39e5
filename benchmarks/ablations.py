"""What each part of a trained drafter is worth: acceptance with it, and after it is taken away.

The parts are those that make a method what it is. They are taken away after training, so a figure says how much the
drafter at hand leans on a part; what one that learnt without it would reach is another question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from mmspec import Pipeline
from mmspec.benchmarks.questions import long_questions
from mmspec.benchmarks.speed import token_counter
from mmspec.benchmarks.told import ToldReport, ToldSettings, told_all
from mmspec.control import read_shape
from mmspec.errors import InputError

Ablation = Callable[[Any], None]
"""Takes a part out of a drafter's network."""


def _zero(*names: str) -> Ablation:
    def shut(net: nn.Module) -> None:
        for name in names:
            net.get_parameter(name).zero_()

    return shut


def _deaf(net: Any) -> None:
    """An EAGLE layer gets [embedding; feature]."""
    net.fc.weight[:, net.config.hidden_size :] = 0


def _reversed(net: Any) -> None:
    net.heads, net.projections = (nn.ModuleList(reversed(each)) for each in (net.heads, net.projections))


def _pathless(net: Any) -> None:
    """A Hydra head gets [feature; embeddings of the path]."""
    for head in net.heads:
        for layer in (head[0].skip, head[0].linear):
            layer.weight[:, net.config.hidden_size :] = 0


def _blind(net: Any) -> None:
    """What an MSD head derives from reads no pictures."""
    net.see = super(type(net), net).see


def _unadapted(net: Any) -> None:
    net.adaptor = None


def _untold(net: Any) -> None:
    """ViSpec adds [feature; g]."""
    net.inject.weight[:, net.config.hidden_size :] = 0


def _keeping(net: Any, share: float) -> None:
    net.keep, net.focuses = share, share < 1


def _always(net: Any, way: str) -> None:
    """SpecVLM's gate takes the way of the largest logit."""
    for weight in net.gate.parameters():
        weight.zero_()
    net.gate.bias[list(net.ways).index(way)] = 1


EAGLE: dict[str, Ablation] = {"features hidden": _deaf}
HYDRA: dict[str, Ablation] = {"words of the path hidden": _pathless}
WAYS = ("prune", "pool", "convolve", "resample", "nothing")
ABLATIONS: dict[str, dict[str, Ablation]] = {
    "medusa": {"heads in reverse order": _reversed},
    "hydra": HYDRA,
    "hydra++": HYDRA,
    "kangaroo": {"attention shut": _zero("attention.o_proj.weight")},
    "eagle": EAGLE,
    "eagle2": EAGLE,
    "hass": EAGLE,
    "eagle3": {"features hidden": _zero("fc.weight")},
    "dflash": {"features hidden": _zero("fc.weight")},
    "dspark": {
        "features hidden": _zero("fc.weight"),
        "told nothing": _zero("pull.weight"),
        "nothing judged": _zero("worth.weight"),
    },
    "msd": {"pictures hidden": _blind},
    "vispec": {"adaptor removed": _unadapted, "g = 0": _untold},
    "hivis": {"corrections removed": _zero("corrections")},
    "dream": {
        "gates shut": _zero("across.attention_gate", "across.mlp_gate"),
        **{f"{share:.0%} of the image slots": partial(_keeping, share=share) for share in (1.0, 0.75, 0.5, 0.0)},
    },
    "specvlm": {f"no way but {way!r}": partial(_always, way=way) for way in WAYS},
}
"""Method -> what is taken away -> how."""
MADE_WITHOUT = {"adaptor removed": "adaptor", "g = 0": "inject"}
"""Parts that a net may have been made without: the attribute that is None then."""


@dataclass(frozen=True)
class AblationReport:
    """A report per drafter: it comes first, and the others are it without a part."""

    settings: ToldSettings
    drafters: dict[str, ToldReport] = field(default_factory=dict)

    def text(self) -> str:
        """A table per drafter."""
        return "\n\n".join(report.text() for report in self.drafters.values())

    def summary(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "settings": asdict(self.settings),
            "drafters": {name: report.summary()["methods"] for name, report in self.drafters.items()},
        }


def parts_of(method: str, net: Any) -> dict[str, Ablation]:
    """What can be taken from a method's network: the parts that it was made with."""
    without = {part for part, name in MADE_WITHOUT.items() if getattr(net, name, net) is None}
    return {part: take for part, take in ABLATIONS[method].items() if part not in without}


def run_ablations(pipe: Pipeline, settings: ToldSettings) -> AblationReport:
    """The figures of every drafter, whole and without each of its parts, on the same questions.

    Raises: InputError: nothing can be taken from a drafter.
    """
    shape = read_shape(settings.shape)
    wholes = {name: pipe.with_drafter(name, shape) for name in settings.drafters}
    methods = {name: whole.drafter.method or name for name, whole in wholes.items()}
    for name, method in methods.items():
        if method not in ABLATIONS:
            raise InputError(f"no part of drafter {name!r} can be taken away: try {', '.join(sorted(ABLATIONS))}")
    questions = long_questions(settings.questions, token_counter(pipe))
    report = AblationReport(settings)
    for name, whole in wholes.items():
        table = report.drafters[name] = ToldReport(settings, {name: told_all(whole, questions)})
        complete: Any = whole.drafter
        for part, take in parts_of(methods[name], complete.net).items():
            drafter: Any = pipe.with_drafter(name).drafter  # read anew: what is taken does not come back
            with torch.no_grad():
                take(drafter.net)
            without = pipe.with_drafter(drafter, shape)  # asks the target for what the changed one needs
            table.counts[f"  {part}"] = told_all(without, questions)
    return report
