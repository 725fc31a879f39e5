"""Rows of a comparison: DRAFTER, DRAFTER@RULE or DRAFTER@RULE=KNOB, such as vadusa@tolerance=4.

Both may have settings by name: sjd:window=16:init=repeat-left@lantern:delta=0.1:k=50. The drafter's `shape` is that of
`mmspec.load`, its `dtype` the `drafter_dtype` there: eagle2:dtype=int8. The knob of a rule is its first setting.
"""

from __future__ import annotations

from mmspec import Pipeline
from mmspec.control import read_shape
from mmspec.named import made, setting_value, settings_of


def row(pipe: Pipeline, text: str) -> Pipeline:
    """The pipeline of a row, on the target of `pipe`. Raises: Error: a name or a knob that is not known."""
    told, _, rule = text.partition("@")
    drafter, settings = settings_of(told)
    shape, dtype, modality = settings.pop("shape", None), settings.pop("dtype", None), pipe.target.modality
    found = made("drafter", drafter, settings, modality) if settings else drafter
    size = None if shape is None else read_shape(str(shape))
    return pipe.with_drafter(found, size, rule or "exact", dtype)


def in_dtype(text: str) -> tuple[str, str | None]:
    """A drafter's name, folder or hub id, and what DRAFTER:dtype=int8 says of its weights; None where it says nothing.

    Nothing else is read from it, since a folder's path may have colons.
    """
    name, given, dtype = text.rpartition(":dtype=")
    return (name, dtype) if given else (text, None)


def split(text: str) -> tuple[str, str, float | None]:
    """Drafter, rule and knob of a row; the rule is "exact" and the knob None where they are not told."""
    drafter, _, rule = text.partition("@")
    name, _, rest = rule.partition(":") if ":" in rule else rule.partition("=")
    knob = rest.partition(":")[0].rpartition("=")[2]
    value = setting_value(knob) if knob else None
    return drafter, name or "exact", None if isinstance(value, str) else value
