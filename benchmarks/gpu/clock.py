"""Time on a device: events on a GPU, the wall clock on a CPU; and how much of a run's time is left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from mmspec.engine.graphs import Graph, Place
from mmspec.errors import one_line

logger = logging.getLogger(__name__)

WARM = 3
SETTLE_S = 2.0
"""An idle card runs at a fraction of its clock; so long it is kept busy before anything is timed."""


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def settle(device: torch.device) -> None:
    """Bring a card to its working clock."""
    if device.type != "cuda":
        return
    block = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    until = time.perf_counter() + SETTLE_S
    while time.perf_counter() < until:
        for _ in range(10):
            block @ block
        wait(device)


def seconds(
    call: Callable[[], Any], device: torch.device, repeats: int, inner: int = 1, *, captured: bool = False
) -> float:
    """Median seconds of one call, over `repeats` measurements of `inner` calls each.

    On a GPU the calls of a measurement are queued one behind the other, so what the host does between them counts only
    where it is slower than the device, as it is with small kernels: `captured` puts them into one graph, behind another
    replay of it. Where that cannot be captured they are called all the same, and a warning says so.
    """

    def calls() -> None:
        for _ in range(inner):
            call()

    for _ in range(WARM):
        call()
    wait(device)
    replay = replayed(calls, device) if captured and device.type == "cuda" else None
    found = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if replay is not None:
                replay()
            start.record()
            (replay or calls)()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) / 1000 / inner)
        else:
            started = time.perf_counter()
            calls()
            found.append((time.perf_counter() - started) / inner)
    return median(found)


def replayed(calls: Callable[[], None], device: torch.device) -> Callable[[], None] | None:
    """What launches the graph of these calls; None where they cannot be captured."""
    try:
        graph = Graph(calls, Place(device))
    except RuntimeError as error:
        logger.warning("timed by calls, not in a graph: %s", one_line(error))
        return None
    assert graph.captured is not None
    return graph.captured.replay


def lasts(call: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one single call, its work on the device included: for what happens only the first time."""
    wait(device)
    started = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - started


class OutOfTime(Exception):
    """The minutes that a run was given are over."""


class Deadline:
    """When a run has to end. Args: minutes: from now; None for never."""

    def __init__(self, minutes: float | None) -> None:
        self.end = None if minutes is None else time.monotonic() + 60 * minutes

    def check(self) -> None:
        """Raise OutOfTime if the time is over."""
        if self.end is not None and time.monotonic() >= self.end:
            raise OutOfTime
