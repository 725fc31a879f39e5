"""Official data sets from a hub, for computers that reach one: of their files those that a task reads, no others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from glob import escape
from pathlib import Path, PurePosixPath

from mmspec.benchmarks.tasks.pictures import ENDINGS
from mmspec.benchmarks.tasks.rows import first_group
from mmspec.checkpoints import HUB_ID, locate
from mmspec.errors import InputError

KIND = "data set"
ARCHIVE = re.compile(r"\.(?:zip|tar|tgz|gz|7z|rar)(?:\.|$)", re.IGNORECASE)
"""Also of a part of one, such as pictures.zip.001."""


def official(data: Path, groups: Sequence[Sequence[str]]) -> Path:
    """The files that `--data` means: a path, or a data set of the hub (owner/name), of which one group is downloaded.

    Args: groups: as for `find_files`.
    Raises: CheckpointError: the hub has no such thing or cannot be reached. InputError: it holds no group, or the
        pictures of one in archives alone.
    """
    name = data.as_posix()
    if data.exists() or not HUB_ID.fullmatch(name):
        return data
    return locate(KIND, name, [], wanted(name, listed(name), groups), "dataset")


def listed(name: str) -> list[str]:
    """The files of a data set of the hub; where that does not say, those that were downloaded before."""
    from huggingface_hub import HfApi

    try:
        return HfApi().list_repo_files(name, repo_type="dataset")
    except Exception:  # noqa: BLE001  the hub and the network have exceptions of their own, which `locate` tells
        folder = locate(KIND, name, [], [], "dataset")
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def wanted(name: str, files: Sequence[str], groups: Sequence[Sequence[str]]) -> list[str]:
    """Patterns of what is downloaded: the first group that is there; with JSON files what lies under their folders."""
    _, found = first_group(groups, lambda pattern: fitting(files, pattern), f"the data set {name} of the hub")
    taken = [escape(file) for file in found]
    for file in (each for each in found if each.endswith(".json")):
        folder = file.removesuffix(PurePosixPath(file).name)
        shown = [each for each in files if each.startswith(folder) and each.lower().endswith(ENDINGS)]
        packed = [each for each in files if ARCHIVE.search(each)]
        if packed and not shown:
            raise InputError(
                f"the data set {name} of the hub has its pictures in archives ({', '.join(packed[:3])}), which are not "
                f"unpacked here: download them and {file}, unpack them beside it, and name that folder by --data"
            )
        taken += [f"{folder}*{ending}" for ending in (".json", *ENDINGS, *map(str.upper, ENDINGS))]
    return list(dict.fromkeys(taken))


def fitting(files: Sequence[str], pattern: str) -> list[str]:
    """The files that a pattern of a group means, which lie at the top or one folder below."""
    levels = pattern.count("/")
    return sorted(each for each in files if PurePosixPath(each).match(pattern) and each.count("/") - levels in (0, 1))
