"""Official data sets from a hub, for computers that reach one."""

from __future__ import annotations

from pathlib import Path

from mmspec.checkpoints import HUB_ID, locate

FILES = ("*.tsv", "*.parquet", "*.json", "*.jsonl", "*.csv", "*.png", "*.jpg", "*.jpeg")
"""What is taken: the tables, and pictures that lie beside them."""


def official(data: Path) -> Path:
    """The files that `--data` means: a path, or a data set of the hub (owner/name), which is downloaded.

    Raises: CheckpointError: the hub has no such thing or cannot be reached.
    """
    if data.exists() or not HUB_ID.fullmatch(data.as_posix()):
        return data
    return locate("data set", data.as_posix(), [], FILES, "dataset")
