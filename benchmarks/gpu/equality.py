"""Stage equality: whether drafting and compiling change a token, on two layers of each model in float32.

With a drafter that is the target itself (everything is accepted), and with an EAGLE head, a block drafter and Medusa's
heads of random weights (hardly anything); greedy and sampled at a seed. The plain loop without a draft says what is
right, so it runs here also where forwards without the engine are not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from mmspec import Pipeline
from mmspec.benchmarks.gpu.bench import Bench, pipeline, sized
from mmspec.benchmarks.gpu.book import Row
from mmspec.benchmarks.gpu.models import Spec, build, prompt_of
from mmspec.benchmarks.gpu.rounds import head_like
from mmspec.drafters.dflash import BlockNet, DFlash
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.independent import Independent
from mmspec.drafters.layer import block_config, head_config
from mmspec.drafters.medusa import Medusa, MedusaHeads

INTRO = (
    "Two layers of true size with random weights, in float32 whatever the dtype of other stages: tokens of drafted "
    "rounds, compiled if that is measured, against those of the plain loop. tau, of the first row, says how much was "
    "accepted."
)
ASKED: dict[str, dict[str, Any]] = {"greedy": {}, "temperature 1": {"temperature": 1.0, "seed": 3}}


def run(bench: Bench) -> None:
    """A record per model."""
    for spec in bench.specs:
        if bench.missing(spec.name):
            with bench.freed():
                bench.record(spec.name, partial(equal, bench, spec))


def equal(bench: Bench, spec: Spec) -> dict[str, Any]:
    """By drafter and way of drawing: tau, and True or the place of the first other token, see `first_other`."""
    model = build(spec, bench.device, torch.float32, layers=2)
    rows, width, tokens = bench.settings.rows, min(spec.prompt, 512), min(bench.settings.tokens, 64)
    ids = prompt_of(spec, width, bench.device, rows)
    shorter = torch.arange(rows, device=bench.device)[:, None]  # tokens that a row's prompt lacks, padded on the left
    there = torch.arange(width, device=bench.device) >= shorter
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": there.long(), "max_new_tokens": tokens}
    found: dict[str, Any] = {"tau": {}, "equal": {}}
    plain = pipeline(model)
    drafting = pipeline(model, compiled=True) if bench.settings.compile else plain
    drafters = {
        "the target itself": Independent(model),
        "EAGLE, random": Eagle(head_like(model), total=8),
        "DFlash, random": DFlash(block_like(plain.target), width=2, top_k=2, total=8),
        "Medusa, random": Medusa(heads_like(plain.target), depth=3, total=8),
    }
    for asked, options in ASKED.items():
        right = answers(plain, {**inputs, **options})
        for name, drafter in drafters.items():
            out = answers(sized(drafting, (8,)).with_drafter(drafter), {**inputs, **options})
            key = f"{name}, {asked}"
            found["tau"][key], found["equal"][key] = out[0].stats.tau, first_other(out, right)
    return found


def block_like(target: Any) -> BlockNet:
    """A block drafter of random weights: one layer, six slots."""
    torch.manual_seed(2)
    return BlockNet(block_config(target, 1), (0, 1), 6).to(target.model.device, target.model.dtype)


def heads_like(target: Any) -> MedusaHeads:
    """Three heads of Medusa with random weights."""
    torch.manual_seed(3)
    heads = MedusaHeads(head_config(target), 3)
    for weight in heads.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    return heads.to(target.model.device, target.model.dtype)


def answers(pipe: Pipeline, inputs: dict[str, Any]) -> list[Any]:
    """Those of all rows."""
    out = pipe.generate(**inputs)
    return out if isinstance(out, list) else [out]


def first_other(out: Sequence[Any], right: Sequence[Any]) -> int | bool:
    """True if all rows have the tokens of the right ones, else the first place in a row at which one differs."""
    differ = [
        place
        for mine, other in zip(out, right, strict=True)
        for place, (token, wanted) in enumerate(zip(mine.token_ids, other.token_ids, strict=True))
        if token != wanted
    ]
    return min(differ, default=True)


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
