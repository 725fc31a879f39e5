"""How far long work is: a bar on a terminal; elsewhere, as in a log, a line now and then of what takes longer."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

PAUSE = 20.0
"""Seconds until the first line of a log, and between two of them."""


def progress(items: Iterable[Any] | None = None, **told: Any) -> tqdm[Any]:
    """A bar over `items`, or one that `update` moves. told: as tqdm takes it (desc, unit, total, initial)."""
    rarely = {} if sys.stderr.isatty() else {"delay": PAUSE, "mininterval": PAUSE}
    return tqdm(items, **rarely, **told)
