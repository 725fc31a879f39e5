"""The settings of recipes that a command gives: by options of their names, or, where there is no such option, by
`--set NAME=VALUE`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any

from mmspec.errors import InputError, shorten, unknown_name
from mmspec.named import setting_value
from mmspec.training.recipe import Recipe

NEEDED = {"bool": "0 or 1", "int": "a whole number", "float": "a finite number", "str": "a text", "None": "none"}
"""What a text must be for each type that the annotation of a setting may name."""


def fitting(
    recipes: Sequence[type[Recipe]], options: Mapping[str, Any], told: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """For each recipe the given settings that it has.

    Args: options: values of the command's options by the names of their settings; None is not given. told: texts
        NAME=VALUE, of settings that have no option.
    Raises: InputError: an option that none of the recipes has; a text that is none, or gives a setting twice, or one
        that has an option, or a value of another type. UnknownNameError: a setting that none of them has.
    """
    given = {name: value for name, value in options.items() if value is not None}
    own = [{field.name: field for field in fields(recipe)} for recipe in recipes]
    methods = " or ".join(recipe.method for recipe in recipes)
    wrong = sorted(given.keys() - set().union(*own))
    if wrong:
        raise InputError(f"{', '.join(map(_option, wrong))}: not an option of the method {methods}")
    free = [{name: field for name, field in each.items() if name not in options and _types(field)} for each in own]
    texts = _by_name(told)
    for name in texts:
        if name in options:
            raise InputError(f"--set {name}=.. is not valid: there is an option for it, {_option(name)}")
        if not any(name in each for each in free):
            note = "for others there are options (mmspec train drafter --help)"
            raise unknown_name(f"setting of the method {methods}", name, set().union(*free), note)
    return [
        {name: value for name, value in given.items() if name in each}
        | {name: _read(text, mine[name]) for name, text in texts.items() if name in mine}
        for each, mine in zip(own, free, strict=True)
    ]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _by_name(told: Sequence[str]) -> dict[str, str]:
    """Names and values of texts NAME=VALUE."""
    found: dict[str, str] = {}
    for text in told:
        name, _, value = text.partition("=")
        if not name or not value:
            raise InputError(f"--set {shorten(text)} is not valid: write it as in --set window=16")
        if name in found:
            raise InputError(f"--set {shorten(text)} is not valid: that setting is given twice")
        found[name] = value
    return found


def _types(field: Field[Any]) -> list[str]:
    """The types that the annotation of a setting names; none if there are others, which no text can give."""
    written = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    types = written.split(" | ")
    return types if field.init and NEEDED.keys() >= set(types) else []


def _read(text: str, field: Field[Any]) -> Any:
    """The value of a setting. Raises: InputError: it is none of its types."""
    types, value = _types(field), setting_value(text)
    if value is None and "None" in types:
        return None
    if isinstance(value, int) and "int" in types:
        return value
    if isinstance(value, int | float) and "float" in types and math.isfinite(number := float(text)):
        return number
    if value in (0, 1) and "bool" in types:
        return bool(value)
    if "str" in types:
        return text
    needed = " or ".join(NEEDED[each] for each in types)
    raise InputError(f"--set {shorten(f'{field.name}={text}')} is not valid: {needed} is needed")
