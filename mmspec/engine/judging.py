"""What becomes of a verification, as a function of tensors, which can be recorded together with the forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mmspec.contract import Draft, Rule
from mmspec.engine.cache import Slab
from mmspec.finite import finite
from mmspec.sampling import Sampler
from mmspec.stopping import report


def judge(
    logits: Tensor,
    tokens: Tensor,
    parents: Tensor,
    depth: Tensor,
    ancestors: Tensor,
    valid: Tensor,
    emitted: Tensor,
    seeds: Tensor,
    rule: Rule,
    sampler: Sampler,
    longest: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Path, count, next token and report of `Accepted`, and how many tokens each row has emitted then.

    Args: logits: [B, N, V]. Then those fields of `mmspec.engine.lane.Lane`. rule: one that is `on_device`. sampler: one
        that does not remember; its seeds become those that are given. longest: nodes of the longest path.
    """
    draft = Draft(tokens, parents, depth, valid=valid, _ancestors=ancestors, _levels=longest - 1)
    sampler.restart(seeds)
    accepted = rule(draft, sampler.warp(draft, logits), sampler, emitted)
    assert accepted.next is not None
    reported = report(draft, accepted, finite(logits))
    sampler.restart(seeds)  # its noise is as large as the logits, and would stay as long as what was recorded
    return accepted.path, accepted.count, accepted.next, reported, emitted + accepted.count


def judge_round(slab: Slab, running: Tensor, *given: Any) -> tuple[Tensor, ...]:
    """What `Slab.move` takes to keep what is accepted in rows that are running, then what `judge` gives.

    Compiled with a rule, finding the slots costs next to nothing. The copying stays outside, where two launches do it
    for all layers.

    Args: running: see `mmspec.engine.lane.Lane`. given: for `judge`.
    """
    path, count, *more = judge(*given)
    kept = count * running
    return *slab.moves(path, kept), kept, path, count, *more
