"""Pictures as the image processor makes them, from the cheap form in which training moves them about."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmspec.vlm.pretrain.architecture import IMAGE_SIZE


def shrunk(image: Image.Image, edge: int = IMAGE_SIZE) -> Tensor:
    """The picture at the size of the vision tower, uint8 [3, edge, edge]."""
    small = image.resize((edge, edge), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(small).transpose(2, 0, 1).copy())


def normalized(pixels: Tensor) -> Tensor:
    """uint8 -> float in [-1, 1], mean 0.5 and deviation 0.5 like the image processor."""
    return pixels.float() / 127.5 - 1.0
