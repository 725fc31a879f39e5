"""Rules and drafters by name, perhaps with settings behind it: tolerance=4 gives the first setting of a rule,
lantern:delta=0.1:k=50 and sjd:window=16 name theirs."""

from __future__ import annotations

import inspect
import math
from typing import Any, cast

from mmspec.contract import TrainedDrafter
from mmspec.errors import InputError, one_line, shorten, unknown_name
from mmspec.registry import resolve

PLAIN = ("int", "float", "bool", "str", "Any")
"""What the annotations of plain settings begin with; Any may be a name, as the other drafter of `hybrid`."""


WORDS: dict[str, bool | None] = {"none": None, "true": True, "false": False}
"""Texts that say something else than themselves."""


def rule_named(text: str, target: Any) -> Any:
    """The rule of a text, for a target or a class of targets: what its name stands for there (`rules`).

    Raises: UnknownNameError: no such rule, or setting. InputError: a setting that the rule cannot have.
    """
    name, settings = settings_of(text)
    name, given, knob = name.partition("=")
    name = target.rules.get(name, name)
    if given:
        first = next(iter(plain_settings(resolve("rules", name, target.modality))), None)
        if first is None:
            raise InputError(f"the rule {name!r} has no settings: leave {given + knob!r} out")
        if not knob or first in settings:
            raise InputError(f"{shorten(text)} is not valid: write it as in tolerance=4, each setting once")
        settings[first] = setting_value(knob)
    return made("rule", name, settings, target.modality)


def settings_of(text: str) -> tuple[str, dict[str, Any]]:
    """The name before the first colon, and the settings behind it."""
    name, *parts = text.split(":")
    settings = {}
    for part in parts:
        setting, given, value = part.partition("=")
        if not given or not value:
            raise InputError(f"the setting {part!r} of {shorten(text)} is not valid: write it as in window=16")
        settings[setting] = setting_value(value)
    return name, settings


def made(kind: str, name: str, settings: dict[str, Any], modality: str) -> Any:
    """A drafter or rule with settings of its own. Raises: UnknownNameError: a setting that it does not have, or that no
    text can give. InputError: a number that it cannot be; or it is made of trained weights, whose settings are saved
    with them."""
    maker = cast("Any", resolve(f"{kind}s", name, modality))
    if kind == "drafter" and issubclass(maker, TrainedDrafter):
        raise InputError(f"the drafter {name} keeps the settings it was saved with: only shape= and dtype= can be told")
    known = plain_settings(maker)
    for setting, value in settings.items():
        if setting not in known:
            raise unknown_name(f"setting of the {kind} {name}", setting, known)
        if type(known[setting]) is int and not isinstance(value, int):
            raise InputError(f"{setting}={value} of the {kind} {name} is not valid: a whole number is needed")
        if type(known[setting]) is bool and value not in (0, 1):
            raise InputError(f"{setting}={value} of the {kind} {name} is not valid: true or false is needed")
        if kind == "drafter" and isinstance(value, float) and not math.isfinite(value):  # some rules are off at inf
            raise InputError(f"{setting}={value} of the {kind} {name} is not valid: a finite number is needed")
    try:
        return maker(**settings)
    except TypeError as error:  # a word where a number belongs
        told = ", ".join(f"{setting}={value}" for setting, value in settings.items())
        raise InputError(f"the {kind} {name!r} cannot be set to {told}: {one_line(error)}") from error


def plain_settings(maker: Any) -> dict[str, Any]:
    """The settings of a drafter or rule that a text can give, in their order, with their defaults."""
    found = inspect.signature(maker).parameters.values()
    return {each.name: each.default for each in found if is_plain(each)}


def is_plain(setting: inspect.Parameter) -> bool:
    """Whether a setting is a number or a text, judged by its default; by its annotation where that is None."""
    if setting.default is None:
        return str(setting.annotation).partition(" ")[0] in PLAIN
    return isinstance(setting.default, int | float | str)


def setting_value(text: str) -> Any:
    """A number where it is one, what "none", "true" and "false" say, else the text."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return WORDS.get(text.lower(), text)
