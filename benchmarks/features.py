"""What an image network sees in pictures, for a Frechet distance: one that the user names, a folder as timm saves it.

With an Inception v3 this is FID (arXiv 1706.08500) but for the weights: published figures use those of its authors, so
compare only figures of one folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.errors import CheckpointError, missing_extra, one_line
from mmspec.safe_files import check_weights, read_json

TOGETHER = 32


class Features:
    """The network in a folder, on the CPU. Raises: CheckpointError: the folder holds no model of timm's.
    MissingExtraError."""

    def __init__(self, folder: Path) -> None:
        if find_spec("timm") is None:
            raise missing_extra("timm", "image")
        import timm

        read_json(folder / "config.json")
        check_weights(folder)
        try:
            model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0)
        except Exception as error:  # noqa: BLE001  damaged files end in any exception of json, timm, safetensors
            raise CheckpointError(f"{folder} holds no image model of timm's: {one_line(error)}") from error
        self.model = model.eval()
        self.prepare: Any = timm.data.create_transform(**timm.data.resolve_model_data_config(model))

    @torch.inference_mode()
    def __call__(self, pictures: Sequence[Image.Image]) -> Tensor:
        """[N, F] float64."""
        inputs = torch.stack([self.prepare(picture.convert("RGB")) for picture in pictures])
        return torch.cat([self.model(part) for part in inputs.split(TOGETHER)]).double()
