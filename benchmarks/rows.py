"""Rows of a comparison: DRAFTER, DRAFTER@RULE or DRAFTER@RULE=KNOB, such as vadusa@tolerance=4.

Both may have settings by name: sjd:window=16:init=repeat-left@lantern:delta=0.1:k=50. The drafter's `shape` is that of
`mmspec.load`, its `dtype` the `drafter_dtype` there: eagle2:dtype=int8. The knob of a rule is its first setting.
"""

from __future__ import annotations

import inspect
from typing import Any, cast

from mmspec import Pipeline
from mmspec.control import read_shape
from mmspec.errors import InputError, one_line, shorten, unknown_name
from mmspec.registry import resolve


def row(pipe: Pipeline, text: str) -> Pipeline:
    """The pipeline of a row, on the target of `pipe`. Raises: Error: a name or a knob that is not known."""
    told, _, rule = text.partition("@")
    drafter, settings = settings_of(told)
    shape, dtype, modality = settings.pop("shape", None), settings.pop("dtype", None), pipe.target.modality
    found = made("drafter", drafter, settings, modality) if settings else drafter
    size = None if shape is None else read_shape(str(shape))
    return pipe.with_drafter(found, size, rule_of(rule, pipe.target) if rule else "exact", dtype)


def in_dtype(text: str) -> tuple[str, str | None]:
    """A drafter's name, folder or hub id, and what DRAFTER:dtype=int8 says of its weights; None where it says nothing.

    Nothing else is read from it, since a folder's path may have colons.
    """
    name, given, dtype = text.rpartition(":dtype=")
    return (name, dtype) if given else (text, None)


def rule_of(text: str, target: Any) -> Any:
    """What `mmspec.load` takes as the rule of a target: a name, or the rule that name=knob (the knob is its first
    parameter) or name:setting=value... makes, of the name that stands for it there."""
    if ":" in text:
        name, settings = settings_of(text)
        return made("rule", target.rules.get(name, name), settings, target.modality)
    name, given, knob = text.partition("=")
    if not given:
        return name
    kind = cast("Any", resolve("rules", target.rules.get(name, name), target.modality))
    try:
        value = int(knob) if knob.lstrip("-").isdigit() else float(knob)
    except ValueError:
        raise InputError(f"the knob of {shorten(text)} is not a number: write it as in tolerance=4") from None
    try:
        return kind(value)
    except TypeError as error:  # a rule without a knob
        raise InputError(f"the rule {name!r} cannot be set to {knob}: {one_line(error)}") from error


def settings_of(text: str) -> tuple[str, dict[str, Any]]:
    """The name before the first colon, and the settings behind it."""
    name, *parts = text.split(":")
    settings = {}
    for part in parts:
        setting, given, value = part.partition("=")
        if not given or not value:
            raise InputError(f"the setting {part!r} of {shorten(text)} is not valid: write it as in window=16")
        settings[setting] = _value(value)
    return name, settings


def made(kind: str, name: str, settings: dict[str, Any], modality: str) -> Any:
    """A drafter or rule with settings of its own. Raises: UnknownNameError: a setting that it does not have.
    InputError: it is made of trained weights, whose settings are saved with them."""
    maker = cast("Any", resolve(f"{kind}s", name, modality))
    if getattr(maker, "trained", False):
        raise InputError(f"the drafter {name} keeps the settings it was saved with: only shape= and dtype= can be told")
    known = set(inspect.signature(maker).parameters)
    for setting in settings:
        if setting not in known:
            raise unknown_name(f"setting of the {kind} {name}", setting, known)
    try:
        return maker(**settings)
    except TypeError as error:  # a word where a number belongs
        told = ", ".join(f"{setting}={value}" for setting, value in settings.items())
        raise InputError(f"the {kind} {name!r} cannot be set to {told}: {one_line(error)}") from error


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return None if text == "none" else text


def split(text: str) -> tuple[str, str, float | None]:
    """Drafter, rule and knob of a row; the rule is "exact" and the knob None where they are not told."""
    drafter, _, rule = text.partition("@")
    name, _, rest = rule.partition(":") if ":" in rule else rule.partition("=")
    knob = rest.partition(":")[0].rpartition("=")[2]
    value = _value(knob) if knob else None
    return drafter, name or "exact", None if isinstance(value, str) else value
