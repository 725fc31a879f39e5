"""How far pictures and their codes are from others, as pure functions. All are biased by the number of pictures, so a
second set of autoregressive pictures is measured beside every method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmspec.benchmarks.figures import with_interval

PER_CODE = 0.5
"""Pictures per code of the vocabulary that a law of every place needs. With half a picture, laws that are spread over
half of the codes, but share none, show twice what equal ones do; with fewer, what is added to every count hides it."""


def frechet(one: Tensor, other: Tensor) -> float:
    """Frechet distance of two sets of features [N, F] and [M, F], each taken as Gaussian (FID, arXiv 1706.08500):
    |m - m'|^2 + tr(C + C' - 2 (C^1/2 C' C^1/2)^1/2)."""
    means, spreads = zip(*((part.mean(0), torch.cov(part.T)) for part in (one.double(), other.double())), strict=True)
    root = _root(spreads[0])
    both = torch.linalg.eigvalsh(root @ spreads[1] @ root).clamp(min=0).sqrt().sum()
    return float((means[0] - means[1]).square().sum() + spreads[0].trace() + spreads[1].trace() - 2 * both)


def _root(matrix: Tensor) -> Tensor:
    """The square root of a symmetric matrix without negative eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T


def marginal_distance(one: Tensor, other: Tensor, vocab: int) -> float:
    """Total variation distance, in [0, 1], of how often each code occurs in [N, L] and in [M, L], places pooled."""
    shares = [torch.bincount(codes.flatten(), minlength=vocab) / codes.numel() for codes in (one, other)]
    return float((shares[0] - shares[1]).abs().sum() / 2)


def position_divergence(one: Tensor, other: Tensor, vocab: int) -> float | None:
    """Kullback-Leibler divergence, in nats, of the codes of [N, L] from those of [M, L] place by place, averaged over
    places; every code counts once more than it occurs. None below PER_CODE pictures per code."""
    if min(len(one), len(other)) < PER_CODE * vocab:
        return None
    p, q = (_by_place(codes, vocab) for codes in (one, other))
    return float((p * (p / q).log()).sum(-1).mean())


def _by_place(codes: Tensor, vocab: int) -> Tensor:
    """[L, V] smoothed shares of the codes at every place."""
    counts = torch.zeros(codes.shape[1], vocab, dtype=torch.double)
    counts.scatter_add_(1, codes.T, torch.ones_like(codes.T, dtype=torch.double))
    return (counts + 1) / (len(codes) + vocab)


def change(one: Sequence[float], other: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean of `one` minus that of `other`, and its bootstrap interval; values of one caption stay together."""
    differences = np.asarray(one, dtype=float) - np.asarray(other, dtype=float)
    units = np.stack([differences, np.ones_like(differences)], 1)
    return with_interval(units, lambda sums: sums[..., 0] / sums[..., 1], least=-np.inf)
