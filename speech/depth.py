"""Depth-axis speculation: the depth decoder's own heads draft the codes that follow in a frame. No training.

The heads of all codes read one residual stream, so the head of a later code, applied to the state that has just been
computed, is a free guess of that code. It knows nothing of the codes in between; what is verified decides. (As in
NVIDIA's TensorRT Edge-LLM; the window there has 2 to 8 codes, 3 or 4 being useful.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
from mmspec.control import CHAINS
from mmspec.drafters.children import Choice
from mmspec.errors import InputError, MismatchError
from mmspec.sampling import Sampler
from mmspec.tree import at_end, chain


class Depth(Drafter):
    """Drafts a chain inside a frame. Args: length: codes drafted per pass of the depth decoder."""

    kinds: frozenset[Kind] = frozenset({"point", "sampled", "coupled"})
    shapes = CHAINS
    drafts_chains = True
    source = "depth-axis speculation with the model's own heads"

    def __init__(self, length: int = 3) -> None:
        if not isinstance(length, int) or length < 1:
            raise InputError(f"depth speculation needs length >= 1, got {length!r}")
        self.length = length
        self.target: Any = None

    @staticmethod
    def check_target(target: Any) -> None:
        """Raise MismatchError for a target, or a class of targets, without heads for the codes of a frame."""
        if not hasattr(target, "head_at"):
            kind = target if isinstance(target, type) else type(target)
            raise MismatchError(
                f"depth speculation needs a model with a depth decoder (CSM); {kind.__name__} models have none"
            )

    def bind(self, target: Any) -> None:
        """Take the heads of a target that has them."""
        self.check_target(target)
        self.target = target

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Speculating:
        """There is no state of the depth decoder before its first pass."""
        return Speculating(self, Choice(sampler, kind))


@dataclass
class Speculating(Drafting):
    """Depth speculation on one request. states: [B, D] of the last pass; rows that begin a frame have none yet."""

    drafter: Depth
    choice: Choice
    states: Tensor | None = None

    def propose(self, state: State) -> Draft:
        """A chain that ends with the last but one code of each row's frame; rows that begin a frame draft nothing."""
        assert state.pending is not None
        target = self.drafter.target
        begun = [not frame.codes for frame in state.frames]  # type: ignore[attr-defined]
        limits = [0 if new else reach for new, reach in zip(begun, target.reach(state), strict=True)]
        levels = min(state.levels(self.drafter.length), max(limits))
        if self.states is None or levels < 1:
            return state.undrafted()
        tokens, laws = [state.pending], []
        for level in range(levels):
            rows = [
                target.head_at(self.states[row : row + 1], min(len(frame.codes) + 1 + level, target.codebooks - 1))
                for row, frame in enumerate(state.frames)  # type: ignore[attr-defined]
            ]
            paths = torch.stack(tokens, 1)[:, None]
            children, scores = self.choice.drawn(torch.stack(rows), state.emitted, level, 1, paths, levels)
            tokens.append(children[:, 0, 0])
            laws.append(scores[:, 0].softmax(-1))
        q = torch.stack([*laws, laws[-1]], 1) if self.choice.draws else None  # the leaf's row is never read
        draft = chain(torch.stack(tokens, 1), self.choice.kind, q)
        draft.valid = draft.depth <= torch.tensor(limits, device=draft.depth.device)[:, None]
        return draft

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Take the state of each row's last accepted code."""
        self.states = at_end(verified.taps[0], accepted)
