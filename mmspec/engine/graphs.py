"""A function of tensors at constant addresses, captured in a CUDA graph: one launch instead of hundreds.

Without CUDA it is called as it is, so that everything around it is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

WARM = 3
"""Calls before the capture: kernels are compiled and chosen, workspaces allocated."""


class Graph:
    """Runs `run()` again and again. What it reads, the caller has written into the same tensors as ever.

    Args: run: gives tensors, or tuples of them; may change tensors in place, but a repetition must do no harm. device:
        where. pool: what `torch.cuda.graph_pool_handle()` gave, for graphs whose results share memory; lock: held while
        one of these is captured, or runs until its results are copied.
    """

    def __init__(
        self, run: Callable[[], Any], device: torch.device, pool: Any = None, lock: Lock | None = None
    ) -> None:
        self.run, self.lock = run, lock or Lock()
        self.captured: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            with self.lock, torch.cuda.device(device):  # streams and captures are those of the current device
                self._capture(device, pool)

    def _capture(self, device: torch.device, pool: Any) -> None:
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                self.run()
        torch.cuda.current_stream(device).wait_stream(aside)
        self.captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.captured, pool=pool, stream=aside):
            self.results = self.run()

    def __call__(self) -> Any:
        """What `run()` gives. It is the caller's own: the next replay does not change it."""
        if self.captured is None:
            return self.run()
        with self.lock:
            self.captured.replay()
            return tree_map_only(torch.Tensor, torch.clone, self.results)
