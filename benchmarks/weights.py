"""Which weights a run measured, and where: a name stays the same when what it stands for is trained anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mmspec
from mmspec import Pipeline
from mmspec.benchmarks.machine import placed
from mmspec.benchmarks.rows import in_dtype, split
from mmspec.checkpoints import weights_digest


def weights_of(pipe: Pipeline, drafters: Iterable[str]) -> dict[str, Any]:
    """For the settings of a run: the version of mmspec, hashes of the target's and the drafters' weights, and where the
    target lies (`placed`).

    Args: drafters: names, folders or hub ids, which may have a dtype (`in_dtype`).
    """
    model = pipe.target.model
    found = {"mmspec": mmspec.__version__, "weights": weights_digest(model), **placed(model)}
    for name in dict.fromkeys(in_dtype(text)[0] for text in drafters):
        net = pipe.with_drafter(name).drafter.net
        if net is not None:
            found[f"weights of {name}"] = weights_digest(net)
    return found


def weights_of_rows(pipe: Pipeline, rows: Iterable[str]) -> dict[str, Any]:
    """The same of rows DRAFTER:SETTING=VALUE@RULE (`mmspec.benchmarks.rows`)."""
    return weights_of(pipe, (split(row)[0].partition(":")[0] for row in rows))
