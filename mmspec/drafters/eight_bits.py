"""A drafter's weights on disk in eight bits: matrices of whole numbers with a scale per row, half the room of bfloat16.

What is loaded is an ordinary network in the target's dtype, with weights about half a step off. A draft decides
nothing, so outputs stay the same, under `ratio` their law, and tau may change a little. Layers that stay in eight bits
in memory are another thing: `mmspec.drafters.precision`.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from mmspec.drafters.precision import rounded
from mmspec.errors import CheckpointError
from mmspec.safe_files import whole

NOTE = "eight_bits"
"""In the file's metadata: the names of its packed matrices, as JSON."""
SCALE = ".scale"
"""Ends the name of the scales [.., O, 1] of the packed matrix [.., O, I] with the name before it."""


def pack(file: Path) -> None:
    """Rewrite a file of weights, whole or not at all. Vectors and whole numbers stay as they are."""
    weights = load_file(file)
    names = sorted(name for name, weight in weights.items() if weight.ndim > 1 and weight.is_floating_point())
    packed: dict[str, Tensor] = dict(weights)
    for name in names:
        if name + SCALE in weights:
            raise CheckpointError(f"{file} cannot be packed: it has a weight named {name + SCALE}")
        packed[name], packed[name + SCALE] = rounded(weights[name])
    with whole(file) as draft:
        save_file(packed, draft, {NOTE: json.dumps(names)})


def read(file: Path) -> dict[str, Tensor]:
    """The weights in a file, packed or not; those that were packed in the dtype of their scales, float32 or wider."""
    with safe_open(file, "pt") as opened:
        weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  it is no mapping
        names = json.loads((opened.metadata() or {}).get(NOTE, "[]"))
    for name in names:
        if not {name, name + SCALE} <= weights.keys():
            raise CheckpointError(f"{file} is damaged: it lacks {name} or its scales")
        weights[name] = weights[name] * weights.pop(name + SCALE)
    return weights
