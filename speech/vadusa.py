"""VADUSA: Medusa-style heads on a text-to-speech model, and a sparse tree (arXiv 2410.21951).

The heads are those of `mmspec.drafters.medusa`: each is h + SiLU(W h + b) before the target's own output head, and they
are trained on the frozen target, which keeps exact rules exact. All of them guess at once, so a round's tree is made of
the paths that are likeliest in this round, with the target's noise where the proposal is coupled; it accepts more than
one whose shape was measured before, and is found sooner. Drawn trees have the measured shape. The paper's tolerance is
the rule `tolerance` (`mmspec.speech.relaxed`); heads, tree and default sizes are our reading of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmspec.drafters.medusa import Medusa
from mmspec.drafters.static import Shares

FLAT: Shares = ((0.40, 0.20, 0.12, 0.08, 0.05, 0.03), (0.22, 0.13, 0.09, 0.06, 0.04, 0.03))
"""Shares of ranks in drawn trees before anything is measured: codes are hard to guess, and harder the further ahead."""


class Vadusa(Medusa):
    """Drafts a tree of 16 nodes with one head per level."""

    static = False
    measured = True
    method = "vadusa"
    source = "VADUSA, arXiv 2410.21951"
    noun = "VADUSA"

    def __init__(
        self,
        net: Any,
        depth: int = 4,
        width: int = 6,
        top_k: int = 6,
        total: int = 16,
        sharpness: float = 1.0,
        shares: Sequence[Sequence[float]] = FLAT,
    ) -> None:
        super().__init__(net, depth, width, top_k, total, sharpness, shares)
