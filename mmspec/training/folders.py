"""Folders of runs, with a note of the settings that made them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmspec.checkpoints import writing
from mmspec.errors import MismatchError
from mmspec.safe_files import make_folder, write_whole

SETTINGS = "settings.json"


def run_folder(base: Path, settings: dict[str, Any]) -> Path:
    """The folder of the run with these settings: `base` and a hash of them, so that the same settings find it again."""
    text = json.dumps(settings, sort_keys=True)
    folder = base.with_name(f"{base.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}")
    claim(folder, settings)
    return folder


def made_once(folder: Path, make: Callable[[], Any], kind: Any, **how: Any) -> Any:
    """What `make` makes, read from `folder`, where it is kept the first time.

    Args: kind: its class, or one that reads it. how: arguments of `from_pretrained`.
    """
    if not folder.exists():
        made = make()
        with writing(folder) as draft:
            made.save_pretrained(draft)
    return kind.from_pretrained(folder, **how)


def claim(folder: Path, settings: dict[str, Any]) -> None:
    """Make `folder` the place of a run with these settings, or find that it is.

    Raises: MismatchError: see `check_claim`.
    """
    check_claim(folder, settings)
    file = make_folder(folder) / SETTINGS
    if not file.exists():
        write_whole(file, json.dumps(settings, indent=2, sort_keys=True))


def check_claim(folder: Path, settings: dict[str, Any]) -> None:
    """Raise MismatchError if `folder` holds a run with other settings, which must not be continued with these."""
    file = folder / SETTINGS
    if not file.exists():
        return
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    found, wanted = found if isinstance(found, dict) else {}, json.loads(json.dumps(settings))
    differs = sorted(name for name in {*wanted, *found} if found.get(name) != wanted.get(name))
    if differs:
        raise MismatchError(
            f"{folder} holds a run that differs in {', '.join(differs)}: choose another --run folder, or remove it"
        )
