"""The settings of recipes that a command gives: all by `--set NAME=VALUE`, some by options of their names, too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any

from mmspec.errors import InputError, shorten, unknown_name
from mmspec.named import setting_value
from mmspec.training.recipe import Recipe

NEEDED = {"bool": "true or false", "int": "a whole number", "float": "a finite number", "str": "a text", "None": "none"}
"""What a text must be for each type that the annotation of a setting may name."""


def fitting(
    recipes: Sequence[type[Recipe]], options: Mapping[str, Any], told: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """For each recipe the given settings that it has.

    Args: options: values of the command's options by the names of their settings; None is not given. told: texts
        NAME=VALUE.
    Raises: InputError: an option that none of the recipes has; a text that is none, or a setting that is given twice,
        or a value of another type. UnknownNameError: a setting that none of them has.
    """
    given = {name: value for name, value in options.items() if value is not None}
    own = [settable(recipe) for recipe in recipes]
    known = set().union(*own)
    methods = " or ".join(recipe.method for recipe in recipes)
    if wrong := sorted(given.keys() - known):
        names = ", ".join("--" + name.replace("_", "-") for name in wrong)
        raise InputError(f"{names}: not an option of the method {methods}")
    texts = _by_name(told)
    for name, text in texts.items():
        if name in given:
            raise InputError(f"--set {shorten(f'{name}={text}')} is not valid: that setting is given twice")
        if name not in known:
            raise unknown_name(f"setting of the method {methods}", name, known, "--set help says what they mean")
    return [
        {name: value for name, value in given.items() if name in each}
        | {name: _read(text, each[name]) for name, text in texts.items() if name in each}
        for each in own
    ]


def settable(recipe: type[Recipe]) -> dict[str, Field[Any]]:
    """The settings of a recipe that a text can give, by name."""
    return {field.name: field for field in fields(recipe) if _types(field)}


def listed(recipes: Iterable[type[Recipe]]) -> str:
    """What `--set help` prints: of each recipe the settings with their defaults, and what they mean."""
    lines = []
    for recipe in recipes:
        lines.append(f"{recipe.method}:")
        for name, field in settable(recipe).items():
            default = field.default if isinstance(field.default, str) else str(field.default).lower()
            lines.append(f"  {f'{name}={default}':<23} {_meaning(recipe, name)}".rstrip())
    return "\n".join(lines)


def _meaning(recipe: type[Recipe], name: str) -> str:
    """What a recipe says of a setting, or the nearest of those that it derives from; of other packages perhaps none."""
    said = (getattr(base, "__dataclass_fields__", {}).get(name) for base in recipe.__mro__)
    return next((field.metadata["meaning"] for field in said if field and "meaning" in field.metadata), "")


def _by_name(told: Sequence[str]) -> dict[str, str]:
    """Names and values of texts NAME=VALUE."""
    found: dict[str, str] = {}
    for text in told:
        name, _, value = text.partition("=")
        name = name.replace("-", "_")
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
    if type(value) is int and "int" in types:
        return value
    if type(value) in (int, float) and "float" in types and math.isfinite(number := float(text)):
        return number
    if value in (0, 1) and "bool" in types:
        return bool(value)
    if "str" in types:
        return text
    needed = " or ".join(NEEDED[each] for each in types)
    raise InputError(f"--set {shorten(f'{field.name}={text}')} is not valid: {needed} is needed")
