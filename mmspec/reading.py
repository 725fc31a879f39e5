"""A copy from the device to the host that is under way while the host goes on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Reading:
    """The values of a tensor, on their way to the host; on CUDA into pinned memory, behind all work queued before."""

    def __init__(self, tensor: Tensor) -> None:
        self.host = tensor.to("cpu", non_blocking=tensor.is_cuda)
        self.arrived: Any = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    def values(self) -> list[Any]:
        """The values as lists; waits until they are there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        found: list[Any] = self.host.tolist()
        return found
