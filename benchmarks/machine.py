"""What a figure depends on besides its settings: the code's state and hardware, written beside every result."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

import mmspec

PLACED = ("device used", "dtype used", "threads used", "processor")


def conditions() -> dict[str, Any]:
    """Date, versions and hardware of this process."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "mmspec": mmspec.__version__,
            "commit": commit(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "hardware": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": processor_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def told_conditions(found: Mapping[str, Any]) -> str:
    """Conditions in one line, for people."""
    hardware, versions = found["hardware"], found["versions"]
    parts = [found["date"][:10], hardware["system"], hardware["processor"], f"{hardware['cores']} cores"]
    parts += [f"{hardware['threads']} threads", hardware["gpu"] or "no GPU"]
    return ", ".join(
        [part for part in parts if part] + [f"{name} {version}" for name, version in versions.items() if version]
    )


def placed(model: torch.nn.Module) -> dict[str, Any]:
    """PLACED: what the settings of a run say of a model, as it came to be. Samples of two computers are not mixed."""
    like = next(model.parameters())
    device = torch.cuda.get_device_name(like.device) if like.is_cuda else like.device.type
    dtype = str(like.dtype).removeprefix("torch.")
    return dict(zip(PLACED, (device, dtype, torch.get_num_threads(), processor_name()), strict=True))


def commit() -> str | None:
    """The state of the code, as git names it, "-dirty" with changes; None for code that is installed elsewhere."""
    here = Path(__file__)
    git = partial(subprocess.run, cwd=here.parent, check=True, capture_output=True, text=True)
    try:
        git(["git", "ls-files", "--error-unmatch", here.name])
        told = git(["git", "describe", "--always", "--dirty"])
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()


def processor_name() -> str:
    """The CPU's model name where the system tells it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
