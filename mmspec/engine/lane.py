"""The inputs of a verification at constant addresses: a draft of one size, and what a rule has to know beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.contract import Draft
from mmspec.engine.graphs import Graph, copy_all

Taps = tuple[int, ...]


@dataclass
class Lane:
    """The inputs of one size, at constant addresses: tokens, depth [B, N], ancestors [B, N, N].

    parents, valid [B, N], emitted, seeds, running [B]: what a rule looks at besides, which only whole rounds are told.
    ready: taps with which the forward is compiled for them. graphs: by taps, what runs it. rounds: what runs a whole
    round.
    real, going: what `valid` and `running` hold, as far as the host knows.
    """

    tokens: Tensor
    depth: Tensor
    ancestors: Tensor
    parents: Tensor
    valid: Tensor
    emitted: Tensor
    seeds: Tensor
    running: Tensor
    ready: set[Taps] = field(default_factory=set)
    graphs: dict[Taps, Graph] = field(default_factory=dict)
    rounds: dict[Any, Graph] = field(default_factory=dict)
    real: int | None = None
    going: list[bool] | None = None

    @property
    def told(self) -> tuple[Tensor, ...]:
        """What `judge` is told of a draft."""
        return self.tokens, self.parents, self.depth, self.ancestors, self.valid, self.emitted, self.seeds

    @classmethod
    @torch.inference_mode(False)  # see `Slab`
    def of(cls, rows: int, size: int, device: torch.device) -> Lane:
        """Empty ones."""
        ids = torch.zeros(rows, size, dtype=torch.long, device=device)
        above = torch.eye(size, dtype=torch.bool, device=device).expand(rows, -1, -1)
        each = torch.zeros(rows, dtype=torch.long, device=device)
        real = torch.zeros_like(ids, dtype=torch.bool)
        return cls(ids, ids.clone(), above.clone(), ids - 1, real, each, each.clone(), each.clone())

    def load(self, tokens: Tensor, depth: Tensor, ancestors: Tensor, **more: Tensor) -> None:
        """Take over a draft of n nodes; those behind them see only what is committed, and no node sees them.

        more: further inputs by name, [B, n] or [B].
        """
        given = {"tokens": tokens, **more}
        gap = self.tokens.shape[1] - tokens.shape[1]
        if gap or tokens.shape[1] > 1:  # a single node always stands at depth 0 and sees itself
            given |= {"depth": depth, "ancestors": ancestors}
        else:
            given.pop("parents", None)
        if gap:
            given = {name: F.pad(each, (0, gap)) if each.dim() == 2 else each for name, each in given.items()}
            given["ancestors"] = F.pad(ancestors, (0, gap, 0, gap))
        copy_all([getattr(self, name) for name in given], list(given.values()))

    def load_round(self, draft: Draft, emitted: Tensor, seeds: Tensor, running: list[bool]) -> None:
        """The same, and all else of a round."""
        more = {} if draft.valid is None else {"valid": draft.valid}
        self.load(
            draft.tokens, draft.depth, draft.ancestors, parents=draft.parents, emitted=emitted, seeds=seeds, **more
        )
        if draft.valid is not None:
            self.real = None
        elif self.real != draft.size:
            self.valid.copy_(torch.arange(self.valid.shape[1], device=self.valid.device) < draft.size)
            self.real = draft.size
        if self.going != running:  # hardly ever, so that the copy from the host does not matter
            self.running.copy_(torch.tensor(running))
            self.going = running
