"""Relaxed rules with their knobs turned: from the law itself to the loosest setting that was published."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, cast

from mmspec.errors import InputError, unknown_name
from mmspec.registry import resolve

Knob = tuple[str, float, float]
"""The knob of a rule: its name, where the rule keeps the law, and its loosest setting."""


class Loosened(Protocol):
    """What a visitor asks for, where a rule may be relaxed. looseness: 0 (the law is kept) to 1."""

    @property
    def drafter(self) -> str: ...
    @property
    def shape(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def looseness(self) -> float: ...


def check_rule(asked: Loosened, rules: tuple[str, ...]) -> None:
    """Raise InputError for a rule or a looseness that there is not."""
    if asked.rule not in rules:
        raise unknown_name("rule", asked.rule, rules)
    if not 0 <= asked.looseness <= 1:
        raise InputError(f"looseness {asked.looseness:g} is not valid: 0 (the law is kept) to 1 is taken")


def relaxed(asked: Loosened, knobs: Mapping[str, Knob], modality: str) -> Any:
    """The rule with its knob turned; None if it has none."""
    if asked.rule not in knobs:
        return None
    name, neutral, loosest = knobs[asked.rule]
    value = neutral
    if asked.looseness:
        start = 1.0 if neutral == math.inf else neutral
        value = start + asked.looseness * (loosest - start)
    return cast("Any", resolve("rules", asked.rule, modality))(
        **{name: round(value) if isinstance(neutral, int) else value}
    )
