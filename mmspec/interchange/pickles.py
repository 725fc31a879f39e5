"""Safetensors out of pickled weights, under the same names: many drafters are published as `.bin` or `.pt` files.

Nothing else in mmspec reads pickles. Here they are read by torch's restricted unpickler, which makes tensors and
containers and runs nothing else; a file that needs more is refused.
"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.checkpoints import FILES, WEIGHTS, locate, writing
from mmspec.errors import CheckpointError, one_line
from mmspec.safe_files import PICKLES, read_json

CONFIG = "config.json"


def convert(source: str | os.PathLike[str], out: str | os.PathLike[str], **settings: Any) -> Path:
    """Write a folder of safetensors with the weights and the configuration of another one; it appears whole or not.

    Args: source: a folder or a hub id. settings: fields to add to the configuration, None for those to leave out.
    Raises: CheckpointError: nothing to convert, or a file that holds something other than named tensors.
    """
    folder = locate("drafter", source, [], [*FILES, *(f"*{ending}" for ending in PICKLES)])
    config = {**read_json(folder / CONFIG), **{name: value for name, value in settings.items() if value is not None}}
    files = sorted(file for file in folder.iterdir() if file.suffix in PICKLES)
    if not files:
        raise CheckpointError(
            f"{folder} holds no pickled weights (*{', *'.join(PICKLES)}): there is nothing to convert"
        )
    tensors: dict[str, Tensor] = {}
    for file in files:
        found = read_pickle(file)
        twice = sorted(set(found) & set(tensors))
        if twice:
            raise CheckpointError(f"several files in {folder} hold a tensor {twice[0]}: keep the right one")
        tensors |= found
    with writing(out) as draft:
        save_file(tensors, draft / WEIGHTS)
        (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return Path(out)


def read_pickle(file: Path) -> dict[str, Tensor]:
    """The named tensors in a file, each with memory of its own. Raises: CheckpointError: it holds anything else."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{file} holds more than tensors, which could run code: refused") from error
    except Exception as error:  # noqa: BLE001  damaged files end in any exception of zipfile, struct, torch
        raise CheckpointError(f"{file} cannot be read: {one_line(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()):
        raise CheckpointError(f"{file} holds no table of named tensors, but {type(found).__name__}")
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}
