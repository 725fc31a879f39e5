"""Stage ceilings: what the card gives at best, and what a model's products take of it.

Copy and large product first: every floor is computed from them. Then the linear layers of each model at a few numbers
of rows (how many nodes ride along for free?), and what launches, graphs and waiting cost the host.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.benchmarks.gpu.bench import Bench
from mmspec.benchmarks.gpu.book import Row
from mmspec.benchmarks.gpu.clock import seconds, settle, wait
from mmspec.benchmarks.gpu.floors import Dims

INTRO = (
    "Copy and product are the ceilings that floors are computed from. GB/s of a linear layer are those of its weights, "
    "which are rotated so that none stays in a cache; where they fall, more rows stop being free. The calls of a "
    "measurement are one graph."
)
ROWS = (1, 8, 16, 32, 64, 65, 128)
CACHE_BYTES = 300e6
"""More than any cache holds: so many bytes of weights are rotated."""
LAUNCHES = 400


def run(bench: Bench) -> None:
    """All records of the stage."""
    settle(bench.device)
    bench.record("card", lambda: card(bench))
    for spec in bench.specs:
        for name, shape in linears(spec.dims).items():
            bench.record(f"{spec.name}/{name}", partial(linear, bench, shape))


def card(bench: Bench) -> dict[str, Any]:
    """Copy, product, and the host's costs."""
    size, width = (1 << 20, 256) if bench.small else (1 << 30, 8192)
    device, repeats = bench.device, bench.settings.repeats
    source = torch.randint(0, 127, (size,), device=device, dtype=torch.int8)
    goal = torch.empty_like(source)
    copied = seconds(lambda: goal.copy_(source), device, repeats, 4)
    left, right = (torch.randn(width, width, device=device, dtype=bench.dtype) for _ in range(2))
    multiplied = seconds(lambda: left @ right, device, repeats, 4)
    found: dict[str, Any] = {"copy_gb_s": 2 * size / copied / 1e9, "matmul_tflops": 2 * width**3 / multiplied / 1e12}
    return {**found, **launches(device, repeats)}


def launches(device: torch.device, repeats: int) -> dict[str, Any]:
    """Microseconds: a graph of one and of many small kernels, the same many launched one by one, waiting for an event.

    Without CUDA there are no graphs, and only the calls are timed.
    """
    x = torch.ones(1024, device=device)

    def many() -> None:
        for _ in range(LAUNCHES):
            x.add_(1.0)

    found: dict[str, Any] = {"launches_us": 1e6 * seconds(many, device, repeats)}
    if device.type != "cuda":
        return found
    for name, body in (("graph_of_one_us", lambda: x.add_(1.0)), (f"graph_of_{LAUNCHES}_us", many)):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()
        found[name] = 1e6 * seconds(graph.replay, device, repeats, 4)
    event = torch.cuda.Event()
    waits = []
    for _ in range(100):
        x.add_(1.0)
        event.record()
        wait(device)  # the event is over: what is left is asking for it
        started = time.perf_counter()
        event.synchronize()
        waits.append(time.perf_counter() - started)
    found["event_us"] = 1e6 * sorted(waits)[len(waits) // 2]
    return found


def linears(dims: Dims) -> dict[str, tuple[int, int]]:
    """The different linear layers of a decoder: name -> (out, in)."""
    return {
        "q": (dims.heads * dims.head_dim, dims.hidden),
        "k, v": (dims.kv_heads * dims.head_dim, dims.hidden),
        "o": (dims.hidden, dims.heads * dims.head_dim),
        "gate, up": (dims.intermediate, dims.hidden),
        "down": (dims.hidden, dims.intermediate),
        "head": (dims.vocabulary, dims.hidden),
    }


def linear(bench: Bench, shape: tuple[int, int]) -> dict[str, Any]:
    """Microseconds of a layer by number of rows, and GB/s of its weights."""
    size = shape[0] * shape[1] * bench.dtype.itemsize
    copies = 2 if bench.small else max(2, -(-int(CACHE_BYTES) // size))
    weights = torch.randn(copies, *shape, device=bench.device, dtype=bench.dtype)
    found: dict[str, Any] = {"shape": list(shape), "us": {}, "gb_s": {}}
    for rows in ROWS[:2] if bench.small else ROWS:
        x = torch.randn(rows, shape[1], device=bench.device, dtype=bench.dtype)
        each = cycle(weights)

        def call(x: Tensor = x, each: Any = each) -> Tensor:
            return F.linear(x, next(each))

        taken = seconds(call, bench.device, bench.settings.repeats, 4 * copies, captured=True)
        found["us"][str(rows)], found["gb_s"][str(rows)] = 1e6 * taken, size / taken / 1e9
    return found


def tables(records: dict[str, dict[str, Any]]) -> list[tuple[str, list[Row]]]:
    """The ceilings; then a table of GB/s, a row per layer."""
    found: list[tuple[str, list[Row]]] = []
    if "card" in records:
        figures = {k: v for k, v in records["card"].items() if isinstance(v, float) and k != "peak_gb"}
        found.append(("Card", [list(figures), list(figures.values())]))
    layers = {key: record for key, record in records.items() if "gb_s" in record}
    if layers:
        widths = list(next(iter(layers.values()))["gb_s"])
        rows: list[Row] = [["model/layer", "out x in", *(f"GB/s, {count} rows" for count in widths)]]
        rows += [[key, "x".join(map(str, each["shape"])), *each["gb_s"].values()] for key, each in layers.items()]
        found.append(("Linear layers", rows))
    return found
