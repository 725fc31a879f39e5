"""SJD-PAC: a Jacobi window that goes on after a rejection, with a tree where the next rejection is to be expected
(arXiv 2603.18599).

Adaptive continuation keeps what maximal coupling keeps (`mmspec.image_ar.jacobi.MaximalCoupling`). Proactive drafting
puts `width` different tokens on each of the first `depth - 1` levels, every node having the same children; the window
goes on as a chain below the first of them. Children of a level are drawn without replacement from the level's law, the
window's own guess first, so the recursive ratio rule keeps the target's law.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mmspec import noise
from mmspec.contract import Draft, Kind, Shape, State
from mmspec.errors import InputError, MismatchError
from mmspec.image_ar.guesses import RANDOM
from mmspec.image_ar.jacobi import MaximalCoupling
from mmspec.image_ar.window import SIBLINGS, Window
from mmspec.sampling import Sampler

LEAVES = 512


class Proactive(MaximalCoupling):
    """Args: window: levels of the whole draft, 32 unless told: chosen on the bundled model, whose pictures have 256
    codes. width: children on each of the first `depth` - 1 levels (K, D).

    Paper and released code, for pictures of thousands of codes, take D = 3 and L = 64, which counts nodes, the last
    token included: that is window=45 with the paper's K = 4, and window=53 with K = 3, the code's default.

    Raises: InputError: a value that leaves no tree.
    """

    kinds: frozenset[Kind] = frozenset({"sampled"})
    source = "SJD-PAC, arXiv 2603.18599"

    def __init__(self, window: int | None = None, init: str = RANDOM, width: int = 4, depth: int = 3) -> None:
        super().__init__(window, init)
        self.shapes: tuple[Shape, ...] = ()  # the tree is of its own size
        if not isinstance(width, int) or not isinstance(depth, int):
            raise InputError(f"SJD-PAC needs a whole width and depth, got {width!r} and {depth!r}")
        if width < 1 or depth < 1 or depth > self.window or width ** (depth - 1) > LEAVES:
            raise InputError(
                f"SJD-PAC needs width >= 1 and 1 <= depth <= window, of a tree of at most {LEAVES} leaves; got width "
                f"{width}, depth {depth} and window {self.window}"
            )
        self.width, self.depth = width, depth

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Window:
        """Fill the window with first guesses."""
        if self.vocab_size < self.width:
            raise MismatchError(
                f"SJD-PAC drafts {self.width} different tokens per level, and there are {self.vocab_size}: lower width"
            )
        return Tree(self, state, sampler, kind)


@dataclass
class Tree(Window):
    """SJD-PAC on one request: what is verified is the tree, what is drawn again is its spine, the window."""

    def propose(self, state: State) -> Draft:
        """The window with siblings on its first levels; at temperature 0 the window alone."""
        window, own = super().propose(state), self.drafter
        assert isinstance(own, Proactive)
        levels = min(own.depth - 1, window.size - 1)
        if window.q is None or levels == 0 or own.width == 1:
            return window
        parents, level, rank = branches(levels, own.width, window.size - 1)
        device, batch = window.tokens.device, len(window.tokens)
        level_of, rank_of = torch.tensor(level, device=device), torch.tensor(rank, device=device)
        choices = self._siblings(state, window.tokens[:, 1 : levels + 1], window.q[:, :levels], own.width)
        tokens = torch.cat([window.tokens[:, :1], choices.flatten(1), window.tokens[:, levels + 1 :]], 1)
        place = torch.where(
            level_of > levels, level_of + levels * (own.width - 1), (level_of - 1) * own.width + rank_of + 1
        ).clamp(min=0)
        self.spine = torch.tensor([level.index(depth) for depth in range(window.size)], device=device)
        self.drafted = Draft(
            tokens[:, place],
            torch.tensor(parents, device=device).expand(batch, -1),
            level_of.expand(batch, -1),
            "sampled",
            window.q[:, level_of],
            None if window.valid is None else window.valid[:, level_of],
            _levels=window.size - 1,
        )
        return self.drafted

    def _siblings(self, state: State, guesses: Tensor, q: Tensor, width: int) -> Tensor:
        """[B, L, width] different tokens of each level, the guess [B, L] first, the others drawn from q [B, L, V]."""
        counters = torch.arange(guesses.shape[1], device=q.device) + state.emitted[:, None] * 2**16 + SIBLINGS * 2**8
        g = noise.gumbel(self.sampler.seeds, noise.DRAFT, counters, q.shape[-1])
        left = (q.log() + g).scatter(2, guesses[..., None], -torch.inf)
        return torch.cat([guesses[..., None], left.topk(width - 1, dim=-1).indices], -1)


@lru_cache
def branches(levels: int, width: int, window: int) -> tuple[list[int], list[int], list[int]]:
    """Parent, level and rank among its siblings of every node: a full tree of `levels`, then a chain to level `window`.

    The first node of every level is a child of the first one of the level above.
    """
    parents, level, rank = [-1], [0], [0]
    above = [0]
    for depth in range(1, window + 1):
        count = width if depth <= levels else 1
        here = []
        for parent in above if depth <= levels else above[:1]:
            for place in range(count):
                here.append(len(parents))
                parents.append(parent)
                level.append(depth)
                rank.append(place)
        above = here
    return parents, level, rank
