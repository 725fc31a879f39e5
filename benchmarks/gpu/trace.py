"""Where a plain step and a round spend their time, as torch's profiler sees it.

Kernels are those of the device; launches and waits are what the host does for a round, whatever it costs. A graph is
one launch, its kernels are counted all the same. What a round lasts beyond its kernels, the device was idle. The
profiler makes the host slower than it is. Without a GPU the operators of the CPU stand in the place of kernels.
"""

from __future__ import annotations

import time
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from mmspec import Pipeline
from mmspec.benchmarks.gpu.bench import Bench
from mmspec.benchmarks.gpu.book import Row
from mmspec.benchmarks.gpu.clock import wait
from mmspec.benchmarks.gpu.models import Spec, prompt_of
from mmspec.decode import decode
from mmspec.sampling import Sampling

WARM, SEEN, TOP = 6, 8, 32
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
COPIES = ("cudaMemcpyAsync", "cudaMemsetAsync")


def traced(bench: Bench, spec: Spec, pipe: Pipeline, depth: int) -> dict[str, Any]:
    """What `SEEN` rounds did, after `WARM` others; none emits more than depth + 1 tokens."""
    target, rows = pipe.target, bench.settings.rows
    ids = prompt_of(spec, spec.prompt, bench.device, rows)
    tokens = (WARM + SEEN + 2) * (depth + 1)
    sampler, stop = target.sampler(Sampling(), rows), target.stopping(tokens, (), str)
    rounds = decode(target, pipe.drafter, pipe.rule, {"input_ids": ids, "max_new_tokens": tokens}, sampler, stop)
    for _ in range(WARM + 1):
        next(rounds)
    wait(bench.device)
    cuda = bench.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as seen:
        started = time.perf_counter()
        for _ in range(SEEN):
            next(rounds)
        wait(bench.device)
        lasting = time.perf_counter() - started
    events = seen.key_averages()
    place = DeviceType.CUDA if cuda else DeviceType.CPU
    spent = {
        event.key: (event.self_device_time_total if cuda else event.self_cpu_time_total, event.count)
        for event in events
        if event.device_type == place
    }
    calls = {event.key: event.count for event in events}
    longest = sorted(spent, key=lambda name: -spent[name][0])[:TOP]
    return {
        "lasts_ms": 1000 * lasting / SEEN,
        "kernels_ms": sum(taken for taken, _ in spent.values()) / 1000 / SEEN,
        "kernels": sum(count for _, count in spent.values()) / SEEN,
        "launches": sum(calls.get(name, 0) for name in LAUNCHES) / SEEN,
        "waits": sum(calls.get(name, 0) for name in WAITS) / SEEN,
        "copies": sum(calls.get(name, 0) for name in COPIES) / SEEN,
        "longest": {name: [spent[name][0] / 1000 / SEEN, spent[name][1] / SEEN] for name in longest},
    }


def tables(records: dict[str, dict[str, Any]]) -> list[tuple[str, list[Row]]]:
    """The counts per round; then the longest kernels of each."""
    fields = ("lasts_ms", "kernels_ms", "kernels", "launches", "waits", "copies")
    rows: list[Row] = [
        ["per round", *fields],
        *([key, *(each[name] for name in fields)] for key, each in records.items()),
    ]
    found: list[tuple[str, list[Row]]] = [("Where the time goes", rows)]
    for key, record in records.items():
        rows = [["kernel", "ms per round", "times"]]
        rows += [[name[:90].replace("|", "/"), *taken] for name, taken in record["longest"].items()]
        found.append((key, rows))
    return found
