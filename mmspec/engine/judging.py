"""What becomes of a verification, as a function of tensors, which can be recorded together with the forward."""

from __future__ import annotations

from torch import Tensor

from mmspec.contract import Draft, Rule
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
