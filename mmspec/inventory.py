"""What is there: checkpoints, drafters, versions. Data for `mmspec models`, `drafters` and `info`."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import mmspec
from mmspec.checkpoints import PACKAGES as MODALITIES
from mmspec.checkpoints import bundled, drafters_of
from mmspec.registry import entries, modalities, resolve
from mmspec.safe_files import read_json

PACKAGES = ("torch", "torchvision", "transformers", "tokenizers", "safetensors", "huggingface_hub", "numpy", "pillow")
EXTRAS = {
    "bench": "matplotlib",
    "demo": "gradio",
    "image": "diffusers",
    "speech": "torchaudio",
    "train": "accelerate",
    "ray": "ray",
}


def models() -> list[dict[str, Any]]:
    """The bundled checkpoints: name, path, modality, model_type, bytes of weights, trained drafters."""
    return [
        {
            "name": name,
            "path": str(folder),
            "modality": MODALITIES[folder.parent.parent.name],
            "model_type": read_json(folder / "config.json").get("model_type"),
            "bytes": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
            "drafters": list(drafters_of(folder)),
        }
        for name, folder in bundled().items()
    ]


def drafters() -> list[dict[str, Any]]:
    """The drafting methods: name, modalities served, whether trained, whether lossless, source."""
    table = entries("drafters")
    found = []
    for name, serves in modalities("drafters").items():
        method = resolve("drafters", name, serves[0])
        found.append({
            "name": name,
            "modalities": serves,
            "trained": getattr(method, "trained", False),
            "lossless": getattr(method, "lossless", True),  # under the default rule, which is
            "source": getattr(method, "source", table[f"{serves[0]}/{name}"]),
        })  # fmt: skip
    return found


def info() -> dict[str, Any]:
    """Versions, device, threads, optional parts, checkpoints."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "mmspec": mmspec.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "extras": {extra: find_spec(module) is not None for extra, module in EXTRAS.items()},
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "checkpoints": {name: str(folder) for name, folder in bundled().items()},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
