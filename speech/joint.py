"""VADUSA's joint recipe: heads and target learn together, and the target becomes a new one (arXiv 2410.21951).

    loss = CE(p, p') + w * the mean of the levels' CE(p_i, p'_i), weighted with decay^i

p is the law of the target as it was, on its own answers, p' that of the one that learns, p'_i that of head i; w grows
from 0 to its full value, and the target learns at a quarter of the heads' rate, as in Medusa-2 (2401.10774). Learning
to plan ahead may better or worsen what is said, so this is no drafter for the old target: the old folder is never
written to, and an exact rule is exact for the new target. The details are our reading of the paper.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM

import mmspec
from mmspec.checkpoints import save_drafter, writing
from mmspec.drafters.layer import head_config
from mmspec.drafters.medusa import MedusaHeads
from mmspec.errors import InputError
from mmspec.speech.recipes import VadusaRecipe, check_speaks
from mmspec.speech.vadusa import Vadusa
from mmspec.training.answers import Answered
from mmspec.training.chunks import in_chunks
from mmspec.training.medusa import MedusaLoss
from mmspec.training.recipe import setting
from mmspec.training.start import other_kind
from mmspec.training.steps import Batch


class JointNet(nn.Module):
    """The target's decoder and its heads. speaker: a copy, which learns. heads: what guesses further ahead."""

    def __init__(self, speaker: LlamaForCausalLM, heads: MedusaHeads, pace: float) -> None:
        super().__init__()
        self.speaker, self.heads = speaker.requires_grad_(True), heads
        self.speaker.pace = pace  # type: ignore[assignment]  # see `mmspec.training.muon.build_optimizer`

    @property
    def draft_ids(self) -> Tensor | None:
        """See `HeadNet`: the heads' words."""
        return self.heads.draft_ids

    def forward(self, features: Tensor) -> Tensor:
        """See `MedusaHeads`."""
        return self.heads(features)


class JointLoss(MedusaLoss):
    """The loss of a batch, see above."""

    def __call__(self, position: Tensor, rows: list[Answered]) -> Tensor:
        """A scalar. position: [B] of the samples in the training run; it says how much the heads count by now."""
        old = self.features(rows)  # [B, T, H]
        ids = pad_sequence([torch.tensor(row.ids, device=old.device) for row in rows], batch_first=True)
        self.heard = self.net.speaker.model(input_ids=ids, use_cache=False).last_hidden_state  # [B, T, H]
        answers = [slice(row.start - 1, len(row.ids) - 1) for row in rows]
        before, now = (
            torch.cat([row[places] for row, places in zip(states, answers, strict=True)])
            for states in (old, self.heard)
        )
        grown = min(1.0, float(position[0]) / (self.recipe.steps * self.recipe.batch))
        held = in_chunks(self.judged, self.target.vocab_size, now, before).mean()
        return held + self.recipe.head_weight * grown * super().__call__(position, rows)

    def estimates(self, batch: Batch) -> Iterator[Tensor]:
        """The heads see the features of the target that learns."""
        return super().estimates(replace(batch, features=self.heard))

    def judge(self, estimate: Tensor, goal: Tensor, law: Tensor) -> Tensor:
        """By the output head that learns."""
        return cross_entropy(self.net.speaker.lm_head(estimate).float(), law, reduction="none")


@dataclass(frozen=True, kw_only=True)
class JointRecipe(VadusaRecipe):
    """Heads, and a target that learns with them (w above is `head_weight`)."""

    head_weight: float = setting("weight of the heads' mean loss beside the target's own", 0.6)
    trunk_pace: float = setting("rate of the target, relative to that of the heads", 0.25)

    method: ClassVar[str] = "vadusa-joint"
    about: ClassVar[str] = (
        "VADUSA's joint recipe: a text-to-speech target that went on learning together with heads that guess several "
        "codes ahead (arXiv 2410.21951). It is a new target, its weights in the number format of the old one's, with "
        "its drafter in drafters/vadusa; measure both with `mmspec bench speech --listener`, of the same listener, "
        "since the new one may speak better or worse."
    )
    usage: ClassVar[str] = "--model FOLDER --drafter vadusa"
    loss_class: ClassVar[type[Any]] = JointLoss

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.head_weight > 0 or not 0 < self.trunk_pace <= 1:
            raise InputError(
                f"head_weight is above 0 and trunk_pace in (0, 1], got {self.head_weight} and {self.trunk_pace}"
            )

    def check(self, target: Any) -> None:
        """Only a target that speaks with a Llama can learn here."""
        check_speaks(self.method, target)
        super().check(target)

    def check_place(self, pipe: Any, out: Path) -> None:
        """Raise InputError if the new target would take the place of the old one; else see `Recipe`."""
        super().check_place(pipe, out)
        if pipe.folder is not None and out.resolve() == pipe.folder.resolve():
            raise InputError(f"{out} holds the target itself, which is never changed: choose another folder with --out")

    def network(self, target: Any, rows: Sequence[Answered]) -> Any:
        """See `HeadRecipe`."""
        heads = MedusaHeads(head_config(target), levels=self.levels, layers=self.layers)
        return JointNet(copy.deepcopy(target.speaker).float(), heads, self.trunk_pace)

    def shape(self, net: JointNet) -> dict[str, Any]:  # type: ignore[override]
        """See `Recipe`: that of the heads."""
        return super().shape(net.heads)

    def begin(self, start: Any, target: Any) -> JointNet:
        """See `Recipe`: the heads of a drafter, which learn on, with a copy of the target."""
        if type(start.net) is not MedusaHeads or start.net.projections:
            raise other_kind(self.method, start)
        heads = VadusaRecipe().begin(start, target)  # what is asked for of them is compared with `shape`
        return JointNet(copy.deepcopy(target.speaker).float().cpu(), heads, self.trunk_pace)

    def drafter(self, net: Any) -> Vadusa:
        """The heads, with the default tree."""
        return Vadusa(net.heads)

    def serving(self, pipe: Any, net: Any) -> Any:
        """A pipeline on the target as it is by now."""
        new = mmspec.load(copy.deepcopy(pipe.target.model), "none", processor=pipe.processor, compile=False)
        new.target.speaker.load_state_dict(net.speaker.state_dict())
        return new

    def save(self, pipe: Any, made: Any, out: Path) -> None:
        """Write the new target whole, its drafter inside. pipe: as `serving` makes it."""
        with writing(out) as folder:
            copy.deepcopy(pipe.target.model).to(stored_dtype(pipe)).save_pretrained(folder)
            pipe.processor.save_pretrained(folder)
            save_drafter(made, folder / "drafters" / made.method, pipe.target)


def stored_dtype(pipe: Any) -> torch.dtype:
    """The number format of the weights in a pipeline's folder; without one, or if it does not say, that in memory."""
    model = pipe.target.model
    told = None if pipe.folder is None else type(model.config).from_pretrained(pipe.folder).dtype
    found: torch.dtype = told or model.dtype
    return found
