"""Relaxed rules with their knobs turned: from the law itself to the loosest setting that was published."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from mmspec.registry import resolve


@dataclass(frozen=True)
class Knob:
    """The knob of a rule: its name, where the rule keeps the law, its loosest setting, and settings that stay."""

    name: str
    neutral: float
    loosest: float
    beside: Mapping[str, Any] = field(default_factory=dict)


def relaxed(rule: str, looseness: float, knobs: Mapping[str, Knob], modality: str) -> Any:
    """The rule with its knob turned, looseness being 0 (the law is kept) to 1; None if it has no knob."""
    if rule not in knobs:
        return None
    knob = knobs[rule]
    value = knob.neutral
    if looseness:
        start = 1.0 if knob.neutral == math.inf else knob.neutral
        value = start + looseness * (knob.loosest - start)
    kind = cast("Any", resolve("rules", rule, modality))
    return kind(**{knob.name: round(value) if isinstance(knob.neutral, int) else value}, **knob.beside)
