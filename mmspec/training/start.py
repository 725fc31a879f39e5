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

    It may have been trained for another target, as long as every weight has the same name and shape and means the same:
    it listens to the same layers and drafts as many tokens.
    Raises: MismatchError: it has not. Others as `mmspec.checkpoints.load_drafter`.
    """
    begun = load_drafter(source, target, own=False).net
    there, here = _form(begun), _form(net)
    for name in sorted(here.keys() | there.keys()):
        found, needed = there.get(name, "missing"), here.get(name, "missing")
        if found != needed:
            raise MismatchError(
                f"training cannot start with the drafter {source}: its {name} is {found}, and {needed} in the new one"
            )
    net.load_state_dict(begun.state_dict())


def _form(net: nn.Module) -> dict[str, Any]:
    """The shapes of a network's weights, and the settings that it was built with, where it has such."""
    return {**{name: tuple(some.shape) for name, some in net.state_dict().items()}, **getattr(net, "settings", {})}
