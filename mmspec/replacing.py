"""A file or folder takes the place of another one, such that whoever looks finds the old one or the new one, whole.

`rename` cannot replace a folder that holds something. Linux can let two folders change places in one step; elsewhere
the old one steps aside first, and a kill between the two steps is put right by the next save.
"""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import sys
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of renameat2(2)."""


def take_place(draft: Path, goal: Path) -> None:
    """Put `draft` where `goal` is; what was there is gone. Raises: OSError: it cannot be done; `goal` is as it was."""
    if not goal.exists():
        draft.rename(goal)
        return
    if exchanged(draft, goal):
        shutil.rmtree(draft, ignore_errors=True)
        return
    old = draft.with_suffix(".old")
    goal.rename(old)
    try:
        draft.rename(goal)
    except OSError:
        old.rename(goal)
        raise
    if old.is_symlink():
        old.unlink()
    else:
        shutil.rmtree(old, ignore_errors=True)


def exchanged(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; False if that is not possible here."""
    if sys.platform != "linux" or other.is_symlink():
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and not rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)


def tidy(goal: Path) -> None:
    """Remove what processes that are gone left beside `goal`; an old folder that stepped aside comes back."""
    for left in goal.parent.glob(f".{glob.escape(goal.name)}.*"):
        process, _, kind = left.name.removeprefix(f".{goal.name}.").partition(".")
        if kind not in ("tmp", "old") or not process.isdecimal() or lives(int(process)):
            continue
        if kind == "old" and not goal.exists():
            left.rename(goal)
        elif left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def lives(process: int) -> bool:
    """Whether another process has this number."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True
