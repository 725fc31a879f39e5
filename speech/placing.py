"""Where the codec beside a speaking model works: on the model's device."""

from __future__ import annotations

import logging
from typing import Any

import torch

logger = logging.getLogger(__name__)


def place_codec(codec: Any, model: Any) -> None:
    """Take a processor's codec (None for none) to its model's device: processors are read before anybody knows where
    the model will be, and nobody else would move what makes the sound. Where memory is too short for that it stays on
    the CPU, with a warning."""
    if codec is None:
        return
    try:
        codec.to(model.device)
    except torch.OutOfMemoryError:
        codec.to("cpu")  # some of its weights were moved
        logger.warning("%s has too little free memory for the codec: sound is made on the CPU, slower", model.device)
