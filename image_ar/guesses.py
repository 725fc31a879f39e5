"""First guesses for the places that newly enter a Jacobi window, and the laws that they are drawn from.

Images are smooth, so a code is guessed from its neighbour on the left or above (SJD, arXiv 2410.01699): a copy of its
token, or a new draw from its law. Where there is no such neighbour, the guess is uniform over the codebook. A neighbour
that is itself not known yet is replaced by the nearest one behind it that is. What the layout forces is never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import InputError, MismatchError, shorten
from mmspec.image_ar.layout import Layout

RANDOM = "random"
INITS = (RANDOM, "repeat-left", "repeat-above", "sample-left", "sample-above")


def check_init(init: Any) -> str:
    """Raise InputError for an initialisation that does not exist."""
    if init not in INITS:
        raise InputError(f"init={shorten(init)} is not valid: {', '.join(INITS)}")
    return init


def layout_for(target: Any, init: str) -> Layout | None:
    """The layout of the target's pictures; None for a target that has none, which allows random guesses only.

    Raises: MismatchError: neighbours are asked for.
    """
    layout = getattr(target, "layout", None)
    if layout is None and init != RANDOM:
        raise MismatchError(
            f"init={init!r} looks at neighbours in a picture, and {type(target).__name__} emits none: use init='random'"
        )
    return layout


@dataclass
class Places:
    """Tokens by place, and the laws of the last few: what guesses look back at.

    tokens: [B, T] emitted ones and the window's. laws: [B, R, V] log-laws of the last R places, place p in slot p % R;
    only kept for guesses that draw from them. known: [B] the last place with a token, the window's included.
    """

    init: str
    layout: Layout | None
    vocab_size: int
    tokens: Tensor
    laws: Tensor | None
    known: Tensor

    @classmethod
    def start(cls, init: str, layout: Layout | None, vocab_size: int, first: Tensor, window: int) -> Places:
        """Only place 0 is known, with the tokens `first` [B]."""
        batch, device = len(first), first.device
        length, width = (layout.length, layout.width) if layout and init != RANDOM else (0, 0)
        tokens = torch.zeros(batch, length + window + 2, dtype=torch.long, device=device)
        tokens[:, 0] = first
        laws = None
        if init.startswith("sample"):
            laws = torch.zeros(batch, width + 2 * window + 2, vocab_size, dtype=torch.float32, device=device)  # uniform
        return cls(init, layout, vocab_size, tokens, laws, torch.zeros(batch, dtype=torch.long, device=device))

    def note(self, places: Tensor, tokens: Tensor) -> None:
        """Take tokens [B, K] at places [B, K]; those behind the end are dropped."""
        if self.init != RANDOM:
            self.tokens.scatter_(1, places.clamp(max=self.tokens.shape[1] - 1), tokens)

    def note_laws(self, places: Tensor, scores: Tensor) -> None:
        """Take the log-laws [B, K, V] of places [B, K]."""
        if self.laws is not None:
            slots = (places % self.laws.shape[1])[..., None].expand_as(scores)
            self.laws.scatter_(1, slots, scores)

    def guess(self, places: Tensor) -> Tensor:
        """Log-laws [B, K, V] of first guesses for places [B, K]; a copy is a point mass."""
        ids = torch.arange(self.vocab_size, device=places.device)
        laws = torch.zeros(*places.shape, self.vocab_size, dtype=torch.float32, device=places.device)
        if self.layout is None:
            return laws
        if self.init != RANDOM:
            source = self._source(self.layout, places)
            none = (source < 0)[..., None]
            laws = torch.where(none, laws, self._laws(source.clamp(0, self.tokens.shape[1] - 1), ids))
        return self.layout.force(laws, places)

    def _source(self, layout: Layout, places: Tensor) -> Tensor:
        """[B, K] the place that each one is guessed from, below 0 if there is none."""
        known = self.known[:, None]
        if self.init.endswith("left"):
            left = layout.left(places)
            nearest = torch.minimum(left, known)
            return torch.where((left < 0) | (layout.at(nearest.clamp(min=0)) >= 0), -1, nearest)
        return layout.above(places, known)

    def _laws(self, source: Tensor, ids: Tensor) -> Tensor:
        if self.laws is None:
            copied = self.tokens.gather(1, source)[..., None]
            return torch.where(ids == copied, 0.0, -torch.inf)
        slots = (source % self.laws.shape[1])[..., None].expand(*source.shape, self.vocab_size)
        return self.laws.gather(1, slots)
