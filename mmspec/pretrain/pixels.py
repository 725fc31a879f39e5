"""Pictures as networks take them, from the cheap form in which training moves them about."""

from torch import Tensor


def normalized(pixels: Tensor) -> Tensor:
    """uint8 -> float in [-1, 1]: mean 0.5 and deviation 0.5, as of an image processor."""
    return pixels.float() / 127.5 - 1.0
