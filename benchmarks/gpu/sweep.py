"""Stage sweep: what verifying N nodes costs beside verifying one, plain and compiled.

Between the calls the nodes are forgotten, so all of them see the same prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from transformers import PreTrainedModel

from mmspec.benchmarks.gpu.bench import Bench, pipeline
from mmspec.benchmarks.gpu.book import Row
from mmspec.benchmarks.gpu.clock import lasts, seconds, settle
from mmspec.benchmarks.gpu.floors import step_seconds
from mmspec.benchmarks.gpu.models import Spec, build, prompt_of
from mmspec.contract import Draft, Needs
from mmspec.sampling import Sampling

INTRO = (
    "Milliseconds of one verification of N nodes, whether its logits are finite included, with random weights of true "
    "size. Up to some N, more nodes should cost no more than one."
)
NODES = (1, 8, 16, 32, 64, 65, 128)
SMALL_NODES = (1, 2, 5)
INNER = 32
"""Verifications of one measurement: the clock starts on an idle card, and counts what launching the first one takes."""


def run(bench: Bench) -> None:
    """A record per model and kind of forward, after the model's usual prompt."""
    settle(bench.device)
    for spec in bench.specs:
        keys = {f"{spec.name}, {kind}": compiled for kind, compiled in bench.kinds.items()}
        if not bench.missing(*keys):
            continue
        with bench.freed():
            model = cache(partial(build, spec, bench.device, bench.dtype))
            for key, compiled in keys.items():
                bench.record(key, partial(measured, bench, spec, model, compiled))
            del model


def measured(bench: Bench, spec: Spec, model: Callable[[], PreTrainedModel], compiled: bool) -> dict[str, Any]:
    """Milliseconds by number of nodes, and their floors. model: gives it, made when first asked for."""
    sizes = bench.settings.nodes or (SMALL_NODES if bench.small else NODES)
    target = pipeline(model(), compiled=compiled, sizes=sizes).target
    found: dict[str, Any] = {"model": spec.name, "length": spec.prompt, "compiled": compiled}
    found |= {"ms": {}, "floor_ms": {}, "first_s": {}}
    for nodes in sizes:
        found["first_s"][str(nodes)], found["ms"][str(nodes)] = verify_ms(bench, spec, target, nodes, Needs())
        floor = step_seconds(spec.dims, nodes, spec.prompt, bench.card, bench.settings.rows)
        found["floor_ms"][str(nodes)] = 1000 * floor
    return found


@torch.inference_mode()
def verify_ms(bench: Bench, spec: Spec, target: Any, nodes: int, needs: Needs) -> tuple[float, float]:
    """Seconds of the first verification of that many nodes after the model's usual prompt, milliseconds of others.

    Args: needs: of the drafter whose draft it might be.
    """
    rows = bench.settings.rows
    ids = prompt_of(spec, spec.prompt, bench.device, rows)
    sampler = target.sampler(Sampling(), rows)
    state = target.prefill({"input_ids": ids, "max_new_tokens": bench.settings.tokens}, needs, sampler)
    draft = binary_tree(state.pending, nodes)

    def verify() -> None:
        target.verify(state, draft)
        state.cache.commit(draft.size, [[]] * rows)

    first = lasts(verify, bench.device)
    settle(bench.device)  # while it compiled, the card was idle
    return first, 1000 * seconds(verify, bench.device, bench.settings.repeats, 2 if bench.small else INNER)


def binary_tree(pending: torch.Tensor, nodes: int) -> Draft:
    """Node i hangs from node (i - 1) // 2; all tokens are the pending one [B]."""
    index = torch.arange(nodes, device=pending.device)
    parents = torch.where(index > 0, (index - 1) // 2, -1)
    depth = (index + 1).float().log2().floor().long()
    batch = len(pending)
    return Draft(pending[:, None].expand(-1, nodes).contiguous(), parents.expand(batch, -1), depth.expand(batch, -1))


def tables(records: dict[str, dict[str, Any]]) -> list[tuple[str, list[Row]]]:
    """Milliseconds; how many times those of the fewest nodes; share of the floor."""
    if not records:
        return []
    nodes = list(dict.fromkeys(count for record in records.values() for count in record["ms"]))
    head: Row = ["model, forward", *(f"N = {count}" for count in nodes)]
    taken, ratio, share = [head], [head], [head]
    for key, record in records.items():
        ms, floor = record["ms"], record["floor_ms"]
        taken.append([key, *(ms.get(count) for count in nodes)])
        ratio.append([key, *(ms[count] / ms[nodes[0]] if count in ms else None for count in nodes)])
        share.append([key, *(100 * floor[count] / ms[count] if count in ms else None for count in nodes)])
    return [("Milliseconds", taken), (f"Times verify({nodes[0]})", ratio), ("Floor, % of the time taken", share)]
