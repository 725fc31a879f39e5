"""Relaxed rules with their knobs turned: from the law itself to the loosest setting that was published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from mmspec.errors import InputError, unknown_name
from mmspec.registry import resolve


@dataclass(frozen=True)
class Knob:
    """The knob of a rule: its name, where the rule keeps the law, its loosest setting, and settings that stay."""

    name: str
    neutral: float
    loosest: float
    beside: Mapping[str, Any] = field(default_factory=dict)


def check_rule(rule: str, looseness: float, rules: Sequence[str]) -> None:
    """Raise InputError for a rule or a looseness that there is not."""
    if rule not in rules:
        raise unknown_name("rule", rule, rules)
    if not 0 <= looseness <= 1:
        raise InputError(f"looseness {looseness:g} is not valid: 0 (the law is kept) to 1 is taken")


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
