"""How likely pictures are under the target's own guided law, read in one forward: autoregressive pictures cost its
entropy, those of a lossy rule cost more or less."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec import Pipeline
from mmspec.contract import Needs
from mmspec.sampling import Sampler, Sampling
from mmspec.tree import chain

MOST = 2**28
"""Logits of a forward at most: those of a large picture over a large codebook fill gigabytes."""
TOGETHER = 8


@torch.inference_mode()
def surprise(
    pipe: Pipeline, captions: list[str], rows: list[list[int]], temperature: float, guidance: float | None
) -> float:
    """Mean nats per code, the first one of a picture and what the layout forces left out; before top-k and the like.

    Args: rows: codes of a whole picture per caption. temperature: 0 counts as 1.
    """
    costs: list[Tensor] = []
    together = max(1, min(TOGETHER, MOST // (len(rows[0]) * pipe.target.vocab_size)))
    for start in range(0, len(rows), together):
        costs.append(_costs(pipe, captions[start : start + together], rows[start : start + together],
                            temperature or 1.0, guidance))  # fmt: skip
    return float(torch.cat(costs).double().mean())


def _costs(
    pipe: Pipeline, captions: list[str], rows: list[list[int]], temperature: float, guidance: float | None
) -> Tensor:
    target: Any = pipe.target
    codes = torch.tensor(rows, device=target.model.device)
    inputs: dict[str, Any] = {**pipe.prepare(None, captions), "max_new_tokens": codes.shape[1], "guidance": guidance}
    state = target.prefill(inputs, Needs(), Sampler(Sampling(), len(codes), codes.device))
    state.pending, state.emitted = codes[:, 0], torch.ones_like(state.emitted)
    logits = target.verify(state, chain(codes[:, :-1])).logits.float()  # of places 1 and on
    laws = (logits / temperature).log_softmax(-1)
    cost = -laws.gather(2, codes[:, 1:, None])[..., 0]
    places = torch.arange(1, codes.shape[1], device=codes.device)
    return cost[:, state.layout.at(places) < 0].flatten().cpu()
