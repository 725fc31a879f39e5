"""What is there: checkpoints, drafters, rules, versions. Data for `mmspec models`, `drafters`, `rules` and `info`."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import mmspec
from mmspec.checkpoints import MODALITIES, bundled, drafters_of
from mmspec.contract import Drafter, TrainedDrafter
from mmspec.named import plain_settings
from mmspec.registry import entries, importable, modalities
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
    """The drafting methods: name, modalities served, what they take, whether trained, whether lossless, source."""
    table = entries("drafters")
    return [
        {
            "name": name,
            "modalities": serves,
            "takes": takes(method),
            "trained": is_trained(method),
            "lossless": method.lossless,  # under the default rule, which is
            "source": method.source or table[f"{serves[0]}/{name}"],
        }
        for name, serves, method in _usable("drafters")
    ]


def takes(method: type[Drafter]) -> str:
    """What a drafting method takes beside the target."""
    if method.advice:
        return "a folder"
    return "training" if is_trained(method) else "nothing"


def is_trained(method: type[Drafter]) -> bool:
    """Whether its weights come from a training, and not with the target's."""
    return issubclass(method, TrainedDrafter) and not method.part


def rules() -> list[dict[str, Any]]:
    """The acceptance rules: name, modalities served, whether lossless, settings; both as they are unless told."""
    return [
        {
            "name": name,
            "modalities": serves,
            "lossless": rule().lossless,
            "settings": plain_settings(rule),
        }
        for name, serves, rule in _usable("rules")
    ]


def _usable(kind: str) -> Iterator[tuple[str, list[str], Any]]:
    """Name, modalities and what it stands for, of all names of a kind that can be imported."""
    # sorted backwards, so that of a name with several entries the one for any modality comes last and counts
    found = dict(importable(kind, sorted(entries(kind), reverse=True)))
    for name, serves in modalities(kind).items():
        if name in found:
            yield name, serves, found[name]


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
