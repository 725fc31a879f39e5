"""A picture of continuous tokens while it is drawn: what is known, in which order and in what steps the rest follows.

Plain decoding reveals the places of a random order in steps whose sizes grow with a cosine (arXiv 2406.11838); tokens
of one step do not see each other. These groups are what is drafted, judged and discarded as a whole.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec import noise
from mmspec.contract import Accepted, Draft, Kind, State
from mmspec.errors import InputError
from mmspec.image_ar.continuous import Proposal, Revealed, Walk
from mmspec.sampling import Sampler
from mmspec.stopping import Stop

NOTHING = -1
"""The id of a slot without a condition."""
ORDER = 2**19
"""The counter of the noise that makes orders; places lie below it."""


def plan(length: int, steps: int) -> list[int]:
    """How many tokens are known after each step of plain decoding, 0 first: every step reveals at least one.

    Raises: InputError: no number of steps, or more than tokens.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= length:
        raise InputError(f"steps={steps!r} is not valid for {length} tokens: a whole number from 1 to {length}")
    known = [0]
    for step in range(1, steps):
        hidden = math.floor(length * math.cos(math.pi / 2 * step / steps))
        known.append(length - max(1, min(length - known[-1] - 1, hidden)))
    return [*known, length]


@dataclass
class Canvas(State):
    """A request in a masked target. There is no cache and no pending token.

    values: [B, L, D], 0 where nothing is known. order: [B, L] places in the order of their revelation; rank: [B, L] its
        inverse. known: [B] how many are known; revealed: the same on the host. plan: [S + 1] see `plan`; those numbers
        on the host are `stages`. condition: [B, slots]. scale: of the guidance, 1 is off; schedule: how it grows, see
        `mmspec.image_ar.mar_config.MarConfig.guidance_schedule`. It is the target's, which a drafter follows.
    sampler: the request's temperature and noise.
    """

    values: Tensor = field(kw_only=True)
    order: Tensor = field(kw_only=True)
    rank: Tensor = field(kw_only=True)
    known: Tensor = field(kw_only=True)
    revealed: list[int] = field(kw_only=True)
    plan: Tensor = field(kw_only=True)
    stages: list[int] = field(kw_only=True)
    condition: Tensor = field(kw_only=True)
    scale: float = field(kw_only=True)
    schedule: str = field(kw_only=True)
    sampler: Sampler = field(kw_only=True)

    @classmethod
    def blank(
        cls,
        condition: Tensor,
        size: tuple[int, int],
        dtype: torch.dtype,
        stages: list[int],
        budget: int,
        scale: float,
        schedule: str,
        sampler: Sampler,
    ) -> Canvas:
        """Nothing is known yet. size: tokens of a picture, numbers of a token. Noise decides on the orders."""
        rows, device = len(condition), condition.device
        zeros = torch.zeros(rows, dtype=torch.long, device=device)
        order = noise.uniform(sampler.seeds, noise.TARGET, zeros[:, None] + ORDER, size[0])[:, 0].argsort(-1)
        return cls(
            ids=[[] for _ in range(rows)],
            done=[False] * rows,
            emitted=zeros,
            prompt_length=zeros,
            limits=[min(budget, size[0])] * rows,
            room=len(stages) - 2,
            values=torch.zeros(rows, *size, device=device, dtype=dtype),
            order=order,
            rank=order.argsort(-1),
            known=zeros,
            revealed=[0] * rows,
            plan=torch.tensor(stages, device=device),
            stages=stages,
            condition=condition,
            scale=scale,
            schedule=schedule,
            sampler=sampler,
        )

    @property
    def length(self) -> int:
        """L, tokens of a picture."""
        return self.order.shape[1]

    @property
    def step(self) -> Tensor:
        """[B] how many steps of the plan are done."""
        return torch.searchsorted(self.plan, self.known, right=True) - 1

    @property
    def steps(self) -> list[int]:
        """The same on the host."""
        return [bisect_right(self.stages, known) - 1 for known in self.revealed]

    def after(self, groups: Tensor) -> Tensor:
        """How many tokens are known when so many further groups are: [B, C] of [C] or [B, C]."""
        return self.plan[(self.step[:, None] + groups).clamp(max=len(self.stages) - 1)]

    def proposal(self, groups: int, kind: Kind) -> Proposal:
        """The places of the next groups, none of them with a value yet; the last group is the target's to fill."""
        last = len(self.stages) - 1
        steps = self.steps
        ends = [
            min(self.stages[min(step + groups, last)], limit) for step, limit in zip(steps, self.limits, strict=True)
        ]
        rows = zip(ends, self.revealed, self.done, strict=True)
        size = max(0 if done else end - known for end, known, done in rows)
        ranks = self.known[:, None] + torch.arange(size, device=self.known.device)
        # beyond the end the ranks go round, so that no place stands twice in a row
        places = self.order.gather(1, ranks % self.length)
        depth = torch.searchsorted(self.plan, ranks, right=True) - 1 - self.step[:, None]
        limits = torch.tensor([0 if done else end for end, done in zip(ends, self.done, strict=True)])
        valid = ranks < limits.to(ranks.device)[:, None]
        depth = torch.where(valid, depth, 0)
        below = depth[:, None, :] < depth[:, :, None] if kind == "aligned" else torch.zeros_like(valid[:, None])
        itself = torch.eye(size, dtype=torch.bool, device=ranks.device)
        empty = torch.zeros(*places.shape, self.values.shape[-1], device=ranks.device, dtype=self.values.dtype)
        return Proposal(
            tokens=empty,
            parents=torch.full_like(places, -1),
            depth=depth,
            kind=kind,
            valid=valid,
            _ancestors=below | itself,
            places=places,
            filled=torch.zeros_like(valid),
            law=Walk(empty, empty, empty[..., 0]),
            groups=groups,
        )

    def columns(self, draft: Proposal, group: int) -> tuple[Tensor, Tensor]:
        """Where a group's nodes stand in a proposal: [B, W] distinct columns, and [B, W] which of them are real."""
        assert draft.valid is not None
        last = len(self.stages) - 1
        sizes = [self.stages[min(step + group + 1, last)] - self.stages[min(step + group, last)] for step in self.steps]
        size = draft.places.shape[1]
        width = min(max(sizes), size)
        first = self.after(torch.tensor([group], device=self.known.device)) - self.known[:, None]
        columns = (first + torch.arange(width, device=first.device)) % size
        return columns, draft.valid.gather(1, columns) & (draft.depth.gather(1, columns) == group)

    def undrafted(self) -> Draft:
        """The next group alone."""
        return self.proposal(1, "aligned")

    def write(self, draft: Proposal, accepted: Accepted) -> None:
        """Put what a round revealed into its places."""
        assert accepted.values is not None
        size = draft.places.shape[1]
        new = torch.zeros_like(draft.filled)
        first = torch.arange(size, device=new.device) < accepted.count[:, None]
        new.scatter_(1, accepted.path, first)
        index = draft.places[..., None].expand_as(accepted.values)
        old = self.values.gather(1, index)
        self.values = self.values.scatter(1, index, torch.where(new[..., None], accepted.values, old))
        self.known = self.known + accepted.count
        self.emitted = self.known
        self.revealed = [known + len(path) for known, path in zip(self.revealed, accepted.paths, strict=True)]
        steps = [step for step, done in zip(self.steps, self.done, strict=True) if not done]
        self.room = len(self.stages) - 2 - min(steps, default=0)


class CanvasStop(Stop):
    """Ends a row when its canvas is full, or holds as many tokens as were asked for. What is emitted are places."""

    def __init__(self, budget: int) -> None:
        super().__init__((), budget)

    def start(self, state: State) -> list[list[int]]:
        """Nothing is known before the first round."""
        self.outputs = [[] for _ in state.ids]
        self.finish = [""] * len(state.ids)
        return [[] for _ in state.ids]

    def ask(self, state: State, draft: Draft, accepted: Accepted) -> Tensor:
        """How many tokens were accepted, how many of them as drafted, of how many that were drafted, which the accepted
        ones are, their places."""
        assert isinstance(draft, Proposal)
        assert isinstance(accepted, Revealed)
        places = draft.places.gather(1, accepted.path)
        offered = draft.filled.sum(-1, keepdim=True)
        return torch.cat([accepted.count[:, None], accepted.kept[:, None], offered, accepted.path, places], 1)

    def cut(self, state: State, draft: Draft, accepted: Accepted, known: list[Any]) -> None:
        """Fill the host side of `accepted`; mark rows that are full."""
        size = accepted.path.shape[1]
        for row, (count, kept, offered, *rest) in enumerate(known):
            accepted.paths.append(rest[:count])
            accepted.emitted.append(rest[size : size + count])
            accepted.drafted.append(kept)
            accepted.offered.append(offered)
            self.outputs[row] += accepted.emitted[row]
            if len(self.outputs[row]) >= state.limits[row]:
                state.done[row] = True
                self.finish[row] = "length"
