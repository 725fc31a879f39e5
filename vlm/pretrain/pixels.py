"""Pictures at the size of the vision tower, in the cheap form in which training moves them about."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmspec.vlm.pretrain.architecture import IMAGE_SIZE


def shrunk(image: Image.Image, edge: int = IMAGE_SIZE) -> Tensor:
    """The picture at the size of the vision tower, uint8 [3, edge, edge]."""
    small = image.resize((edge, edge), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(small).transpose(2, 0, 1).copy())
