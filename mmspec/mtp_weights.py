"""Where the layer for multi-token prediction lies among the weights of a target's checkpoint, under one set of names.

Two forms are known. Qwen's (Qwen3-Next, Qwen3.5) is called `mtp.*`. DeepSeek's (DeepSeek-V3, GLM-4.5 to GLM-OCR) is
numbered as one more layer behind the last, with `eh_proj`, `enorm`, `hnorm` and `shared_head`. Of several layers the
first is taken. Copies of the embeddings and the output head are passed over: they are the target's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

from mmspec.errors import CheckpointError
from mmspec.safe_files import read_json

QWEN = {
    "fc": "fc",
    "pre_fc_norm_embedding": "embedding_norm",
    "pre_fc_norm_hidden": "feature_norm",
    "norm": "body.norm",
}
DEEPSEEK = {"eh_proj": "fc", "enorm": "embedding_norm", "hnorm": "feature_norm", "shared_head.norm": "body.norm"}
SHARED = ("embed_tokens.", "shared_head.head.")
BLOCK = "body.layers.0."
BEHIND = re.compile(r"((?:.+\.)?layers\.\d+\.)eh_proj\.weight")
"""A name by which DeepSeek's form is known, and what all of its names begin with."""


def named(names: Iterable[str]) -> dict[str, str]:
    """{name in `mmspec.drafters.mtp.MtpNet`: name in the checkpoint} of the layer's weights; empty without a whole one.

    Args: names: of all weights of the checkpoint.
    """
    names = list(names)
    starts = [match[1] for match in map(BEHIND.fullmatch, names) if match]
    start = min(starts, key=lambda one: (len(one), one), default="mtp.")
    parts, block = (DEEPSEEK, "") if starts else (QWEN, "layers.0.")
    found = {}
    for name in names:
        own = name.removeprefix(start)
        part, _, kind = own.rpartition(".")
        if own == name or own.startswith(SHARED):
            continue
        if part in parts:
            found[f"{parts[part]}.{kind}"] = name
        elif own.startswith(block):
            found[BLOCK + own.removeprefix(block)] = name
    needed = {f"{part}.weight" for part in parts.values()}
    return found if needed < found.keys() else {}


def find_layer(folder: Path) -> dict[str, tuple[Path, str]]:
    """{name in `MtpNet`: (file, name there)} of the layer's weights in a checkpoint's folder; empty where none are.

    Files that cannot be read hold none: what is wrong with them is said where the model is read.
    """
    try:
        files = _files(folder)
    except (CheckpointError, SafetensorError, OSError, KeyError, AttributeError, TypeError):
        return {}
    return {own: (files[name], name) for own, name in named(files).items()}


def read_layer(folder: Path) -> dict[str, Tensor]:
    """The layer's weights by their names in `MtpNet`; no other tensor is read."""
    found, weights = find_layer(folder), {}
    for file in sorted({file for file, _ in found.values()}):
        with safe_open(file, "pt") as tensors:
            weights.update({own: tensors.get_tensor(name) for own, (at, name) in found.items() if at == file})
    return weights


def _files(folder: Path) -> dict[str, Path]:
    """The file of each tensor: by the index, if there is one."""
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if index.exists():
        return {name: folder / Path(file).name for name, file in read_json(index)["weight_map"].items()}
    files = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            files.update(dict.fromkeys(tensors.keys(), file))
    return files
