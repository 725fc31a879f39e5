"""Official data sets from a hub, for computers that reach one: of their files those that a task reads, no others."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from glob import escape
from pathlib import Path, PurePosixPath

from mmspec.benchmarks.tasks.pictures import ENDINGS
from mmspec.benchmarks.tasks.rows import first_group
from mmspec.checkpoints import HUB_ID, locate
from mmspec.errors import InputError

logger = logging.getLogger(__name__)

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
    """Patterns of what is downloaded: the first group that is there; with JSON files what lies under their folders.

    Beside archives, which may hold the pictures of JSON files, those go first that hold their pictures themselves.
    """
    place, packed = f"the data set {name} of the hub", [each for each in files if ARCHIVE.search(each)]
    order = sorted(groups, key=lambda group: bool(packed) and any(pattern.endswith(".json") for pattern in group))
    _, found = first_group(order, lambda pattern: fitting(files, pattern), place)
    taken = [escape(file) for file in found]
    told: dict[str, list[str]] = {}
    for file in (each for each in found if each.endswith(".json")):
        told.setdefault(file.removesuffix(PurePosixPath(file).name), []).append(file)
    for folder, lists in told.items():
        shown = [each for each in files if each.startswith(folder) and each.lower().endswith(ENDINGS)]
        archives = f"in archives ({', '.join(packed[:3])}), which are not unpacked here: download them and "
        archives += f"{', '.join(lists)} into a folder, unpack them there, and name it by --data"
        if packed and not shown:
            raise InputError(f"{place} has its pictures {archives}")
        if packed:  # what lies open may be all of the questions' pictures, or none of them, such as a logo
            logger.warning("%s may have pictures %s", place, archives)
        taken += [f"{folder}*{ending}" for ending in (".json", *ENDINGS, *map(str.upper, ENDINGS))]
    return list(dict.fromkeys(taken))


def fitting(files: Sequence[str], pattern: str) -> list[str]:
    """The files that a pattern of a group means, which lie at the top or one folder below."""
    levels = pattern.count("/")
    return sorted(each for each in files if PurePosixPath(each).match(pattern) and each.count("/") - levels in (0, 1))
