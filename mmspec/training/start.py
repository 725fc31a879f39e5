"""Training that begins with a drafter that is there: one's own, a published one, or that of a kindred target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from mmspec.checkpoints import load_drafter
from mmspec.errors import MismatchError


def sources(start: str, methods: Sequence[str]) -> dict[str, str]:
    """Where each method begins: at `start` itself, or of several methods at the folders in it that bear their names."""
    return {methods[0]: start} if len(methods) == 1 else {method: str(Path(start, method)) for method in methods}


def take_over(net: nn.Module, source: str, target: Any) -> None:
    """Put the weights of the drafter `source` into a network that is about to be trained for `target`.

    It may have been trained for another target, as long as every weight has the same name and shape.
    Raises: MismatchError: it has not. Others as `mmspec.checkpoints.load_drafter`.
    """
    there, here = load_drafter(source, target, own=False).net.state_dict(), net.state_dict()
    for name in sorted(here.keys() | there.keys()):
        found, needed = (tuple(some[name].shape) if name in some else "missing" for some in (there, here))
        if found != needed:
            raise MismatchError(
                f"training cannot start with the drafter {source}: its {name} is {found}, and {needed} in the new one"
            )
    net.load_state_dict(there)
