"""Stage baselines: plain decoding by everybody who can, which is what a speed-up is measured against.

Milliseconds per token are decoding only: those of an answer less those of its first token. All ways take turns, so that
what slows the machine slows all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.benchmarks.gpu.bench import Bench, pipeline
from mmspec.benchmarks.gpu.book import Row
from mmspec.benchmarks.gpu.clock import lasts, settle
from mmspec.benchmarks.gpu.floors import step_seconds
from mmspec.benchmarks.gpu.models import Spec, build, prompt_of
from mmspec.errors import one_line

INTRO = (
    "Random weights of true size, greedy; the median over runs, least and most beside it. The floor is that "
    "of the weights, keys and values that a step has to read. Some attention functions make a plan for every new key "
    "length: the column for unseen lengths is one answer to half of the prompt, never asked before."
)
Way = Callable[[Tensor, int], Any]
"""Makes an answer to ids [rows, T] of that many tokens."""


def run(bench: Bench) -> None:
    """A record per model."""
    settle(bench.device)
    for spec in bench.specs:
        if bench.missing(spec.name):
            with bench.freed():
                bench.record(spec.name, partial(measured, bench, spec))


def measured(bench: Bench, spec: Spec) -> dict[str, Any]:
    """Milliseconds per token of every way, interleaved."""
    model = build(spec, bench.device, bench.dtype)
    ids = prompt_of(spec, spec.prompt, bench.device, bench.settings.rows)
    tokens = bench.settings.tokens
    found: dict[str, Any] = {"prompt": spec.prompt, "tokens": tokens, "ms": {}, "unseen_ms": {}, "refused": {}}
    ready: dict[str, Way] = {}
    for name, way in ways(bench, spec, model).items():
        try:
            for _ in range(3 if name == STATIC else 1):
                way(ids, tokens)
                way(ids, 1)
            ready[name] = way
        except Exception as error:  # noqa: BLE001  compilers and backends have errors of their own
            found["refused"][name] = one_line(error)
    bench.turn()
    times: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(bench.settings.repeats):
        for name, way in ready.items():
            times[name].append(per_token(bench, way, ids))
    found["ms"] = {
        name: {"median": median(each), "least": min(each), "most": max(each)} for name, each in times.items()
    }
    for name in ready.keys() - {STATIC, COMPILED}:
        found["unseen_ms"][name] = per_token(bench, ready[name], ids[:, : spec.prompt // 2])
    rows, length = bench.settings.rows, spec.prompt + bench.settings.tokens // 2
    floor = 1000 * step_seconds(spec.dims, 1, length, bench.card, rows)
    return {**found, "rows": rows, "floor_ms": floor}


def per_token(bench: Bench, way: Way, ids: Tensor) -> float:
    """Milliseconds per token of one answer, its first token not counted."""
    tokens = bench.settings.tokens
    whole = lasts(lambda: way(ids, tokens), bench.device)
    first = lasts(lambda: way(ids, 1), bench.device)
    return 1000 * (whole - first) / (tokens - 1)


STATIC = "HF generate, static cache"
OWN, COMPILED = "our loop", "our loop, compiled"


def ways(bench: Bench, spec: Spec, model: PreTrainedModel) -> dict[str, Way]:
    """Name -> what decodes plainly. Our compiled loop changes its model, so it has one of its own."""

    def stock(ids: Tensor, tokens: int, **options: Any) -> Any:
        return model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, **options
        )

    def without_cudnn(ids: Tensor, tokens: int) -> Any:
        before = torch.backends.cuda.cudnn_sdp_enabled()
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            return stock(ids, tokens)
        finally:
            torch.backends.cuda.enable_cudnn_sdp(before)

    def own(compiled: bool) -> Way:
        pipe = pipeline(build(spec, bench.device, bench.dtype) if compiled else model, compiled=compiled)
        return lambda ids, tokens: pipe.generate(input_ids=ids, max_new_tokens=tokens)

    found: dict[str, Way] = {"HF generate": stock}
    if bench.device.type == "cuda":
        found["HF generate, cuDNN off"] = without_cudnn
    found[STATIC] = partial(stock, cache_implementation="static")
    found[OWN] = own(False)
    if bench.settings.compile:
        found[COMPILED] = own(True)
    return found


def tables(records: dict[str, dict[str, Any]]) -> list[tuple[str, list[Row]]]:
    """A row per model and way."""
    if not records:
        return []
    head = [
        "model",
        "way",
        "ms per token",
        "least",
        "most",
        "at unseen lengths",
        "tokens/s",
        "floor ms",
        "floor %",
        "GB",
    ]
    rows: list[Row] = [head]
    for model, record in records.items():
        for way, taken in record["ms"].items():
            mid = taken["median"]
            share = 100 * record["floor_ms"] / mid
            speed = 1000 * record["rows"] / mid
            unseen = record["unseen_ms"].get(way)
            cells = [
                mid,
                taken["least"],
                taken["most"],
                unseen,
                speed,
                record["floor_ms"],
                share,
                record.get("peak_gb"),
            ]
            rows.append([model, way, *cells])
    return [("Plain decoding", rows)]
