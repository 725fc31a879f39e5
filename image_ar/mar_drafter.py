"""A smaller MAR drafts for a MAR: group by group, each walk with the noise of the target's (CSpD, arXiv 2411.11925).

It shares with the target the places, their order, the condition, how that guides and all noise, so that only the two
models differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.checkpoints import quiet, read_model
from mmspec.contract import Accepted, Draft, Drafting, Kind, State, TrainedDrafter, Verified
from mmspec.control import CHAINS
from mmspec.errors import InputError, MismatchError
from mmspec.image_ar.continuous import Walk, normal
from mmspec.image_ar.mar import mar_class, walks
from mmspec.image_ar.mar_canvas import Canvas
from mmspec.noise import TARGET
from mmspec.sampling import Sampler

SHARED = (
    "grid",
    "channels",
    "buffer",
    "classes",
    "captions",
    "train_steps",
    "diffusion_steps",
    "spacing",
    "latent_scale",
)
"""What target and drafter must have in common."""


class MarDrafter(TrainedDrafter):
    """Drafts with a MAR that shares the target's VAE, grid and noise schedule.

    Args: model: a `Mar`. length: groups drafted per round (gamma). alone: share of the plan's first steps that the
        target takes alone, because little is known then and drafts are poor (token pre-filling).
    """

    kinds: frozenset[Kind] = frozenset({"aligned", "masked"})
    shapes = CHAINS
    drafts = "values"
    method = "mar"
    command = "mmspec train target mar-mini"  # with its model
    source = "continuous speculative decoding, arXiv 2411.11925"
    fits: tuple[str, ...] = ("vocab_size",)

    def __init__(self, model: Any, length: int = 4, alone: float = 0.05) -> None:
        if not isinstance(length, int) or length < 1:
            raise InputError(f"a MAR drafter needs length >= 1, got {length!r}")
        if not 0 <= alone <= 1:
            raise InputError(f"alone={alone!r} is not valid: a share from 0 to 1 is needed")
        self.model, self.length, self.alone = model.eval(), length, alone
        self.net = model

    def bind(self, target: Any) -> None:
        """Both must draw the same tokens in the same steps."""
        if getattr(target.model.config, "model_type", None) != "mmspec-mar":
            raise MismatchError(f"a MAR drafts for a MAR, not for {type(target.model).__name__}")
        for name in SHARED:
            own, theirs = getattr(self.model.config, name), getattr(target.model.config, name)
            if own != theirs:
                raise MismatchError(f"the drafter has {name} {own!r}, the target {theirs!r}: they must be equal")

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the model's folder; returns what `drafter.json` must say beside it."""
        with quiet():
            self.model.save_pretrained(folder)
        return {"options": {"length": self.length, "alone": self.alone}}

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> MarDrafter:
        """The counterpart of `save`, on the device and in the dtype of `target`."""
        model = read_model(mar_class(), folder, target.model.dtype)
        return cls(model.to(target.model.device), **description.get("options", {}))

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> MarDrafting:
        """Nothing is read before the first draft."""
        return MarDrafting(self, sampler, kind)


@dataclass
class MarDrafting(Drafting):
    """A MAR drafter on one request."""

    drafter: MarDrafter
    sampler: Sampler
    kind: Kind

    def propose(self, state: State) -> Draft:
        """The next groups with drafted values, and one more without."""
        assert isinstance(state, Canvas)
        steps = [step for step, done in zip(state.steps, state.done, strict=True) if not done]
        groups = state.levels(self.drafter.length)
        if min(steps) < math.ceil(self.drafter.alone * (len(state.stages) - 1)):
            groups = 0
        draft = state.proposal(groups + 1, self.kind)
        assert draft.valid is not None
        values = state.values
        own = len(state.stages) - 2 - state.step[:, None]  # [B, 1] groups that a row drafts alone: all but its last
        for group in range(groups):
            columns, real = state.columns(draft, group)
            real = real & (own > group)
            places = draft.places.gather(1, columns)
            walk = self._walk(state, values, places, group)
            n = normal(self.sampler.seeds, TARGET, places, walk.mean.shape[-1])
            new = walk.mean + walk.log_std.exp() * n.to(walk.mean.dtype)
            draft.tokens = put(draft.tokens, columns, new, real)
            draft.law = Walk(
                put(draft.law.mean, columns, walk.mean, real),
                put(draft.law.log_std, columns, walk.log_std, real),
                put(draft.law.trail, columns, walk.trail, real),
            )
            draft.filled = put(draft.filled, columns, real, real)
            values = put(values, places, new, real)
        return draft

    def _walk(self, canvas: Canvas, values: Tensor, places: Tensor, group: int) -> Walk:
        """The drafter's walks at the places of a group, given everything known or drafted before it."""
        ahead = torch.full_like(places, group)
        most = max(
            min(canvas.stages[min(step + group, len(canvas.stages) - 1)], canvas.length) for step in canvas.steps
        )
        counts = canvas.after(ahead[:, :1])
        return walks(self.drafter.model, canvas, values, counts, most, places, ahead, torch.zeros_like(places))

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """The canvas is the target's; there is nothing else to remember."""


def put(into: Tensor, columns: Tensor, new: Tensor, real: Tensor) -> Tensor:
    """`into` [B, N, ..] with `new` [B, W, ..] in `columns` [B, W], which are distinct, where `real` [B, W] is True."""
    if into.ndim == 3:
        columns, real = columns[..., None].expand_as(new), real[..., None]
    return into.scatter(1, columns, torch.where(real, new, into.gather(1, columns)))
