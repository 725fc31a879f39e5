"""VADUSA: Medusa-style heads on a text-to-speech model, and a sparse tree that was measured (arXiv 2410.21951).

The heads are those of `mmspec.drafters.medusa`: each is h + SiLU(W h + b) before the target's own output head, and they
are trained on the frozen target, which keeps exact rules exact. The tree is wider than for text, because the laws of
codes are flat: most of its nodes are first and second guesses of the first levels. The paper's tolerance is the rule
`tolerance` (`mmspec.speech.relaxed`); heads, tree and default sizes are our reading of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmspec.drafters.medusa import Medusa
from mmspec.drafters.static import Shares

FLAT: Shares = ((0.40, 0.20, 0.12, 0.08, 0.05, 0.03), (0.22, 0.13, 0.09, 0.06, 0.04, 0.03))
"""Shares of ranks before anything is measured: codes are hard to guess, and harder the further ahead."""


class Vadusa(Medusa):
    """Drafts a static tree of 24 nodes with one head per level."""

    trust = 1.0  # lossy rules keep drafts: these stay drawn from the heads' own law
    method = "vadusa"
    source = "VADUSA, arXiv 2410.21951"
    noun = "VADUSA"

    def __init__(
        self,
        net: Any,
        depth: int = 4,
        width: int = 6,
        top_k: int = 6,
        total: int = 24,
        sharpness: float = 1.0,
        shares: Sequence[Sequence[float]] = FLAT,
    ) -> None:
        super().__init__(net, depth, width, top_k, total, sharpness, shares)
