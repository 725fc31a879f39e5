"""Stage equality: whether drafting and compiling change a token, on two layers of each model in float32.

Once with a drafter that is the target itself (everything is accepted), once with an EAGLE head of random weights
(hardly anything); greedy and sampled at a seed. The plain loop without a draft says what is right.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from mmspec.benchmarks.gpu.baselines import OWN
from mmspec.benchmarks.gpu.bench import Bench, sized
from mmspec.benchmarks.gpu.book import Row
from mmspec.benchmarks.gpu.models import Spec, build, prompt_of
from mmspec.benchmarks.gpu.rounds import head_like, pipelines
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.independent import Independent

INTRO = (
    "Two layers of true size with random weights, float32: tokens of drafted rounds, compiled if that is measured, "
    "against those of the plain loop. tau says how much was accepted."
)
ASKED: dict[str, dict[str, Any]] = {"greedy": {}, "temperature 1": {"temperature": 1.0, "seed": 3}}


def run(bench: Bench) -> None:
    """A record per model."""
    for spec in bench.specs:
        if bench.missing(spec.name):
            with bench.freed():
                bench.record(spec.name, partial(equal, bench, spec))


def equal(bench: Bench, spec: Spec) -> dict[str, Any]:
    """By drafter and way of drawing: tau, and True or the place of the first other token."""
    model = build(spec, bench.device, torch.float32, layers=2)
    ids = prompt_of(spec, min(spec.prompt, 512), bench.device)
    tokens = min(bench.settings.tokens, 64)
    found: dict[str, Any] = {"tau": {}, "equal": {}}
    pipes = pipelines(bench, lambda: model)
    drafters = {"the target itself": Independent(model), "random weights": Eagle(head_like(model), total=8)}
    for asked, options in ASKED.items():
        plain = pipes[OWN].generate(input_ids=ids, max_new_tokens=tokens, **options)
        for name, drafter in drafters.items():
            pipe = sized(list(pipes.values())[-1], (8,)).with_drafter(drafter)
            out = pipe.generate(input_ids=ids, max_new_tokens=tokens, **options)
            same = [mine == other for mine, other in zip(out.token_ids, plain.token_ids, strict=True)]
            key = f"{name}, {asked}"
            found["tau"][key], found["equal"][key] = out.stats.tau, same.index(False) if not all(same) else True
    return found


def tables(records: dict[str, dict[str, Any]]) -> list[tuple[str, list[Row]]]:
    """A row per model, drafter and way of drawing."""
    if not records:
        return []
    rows: list[Row] = [["two layers, float32", "drafter", "tau", "tokens equal (or place of the first other one)"]]
    rows += [
        [key, name, record["tau"][name], same]
        for key, record in records.items()
        for name, same in record["equal"].items()
    ]
    return [("Equality with plain decoding", rows)]
