"""Training that begins with a drafter that is there: one's own, a published one, or that of a kindred target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from mmspec.checkpoints import load_drafter
from mmspec.errors import MismatchError


def begin(start: str, methods: Sequence[str], target: Any) -> dict[str, nn.Module]:
    """The network with which each method begins: that in `start` itself, or of several methods those in its folders of
    their names. They may have been trained for another target.

    Raises: as `mmspec.checkpoints.load_drafter`.
    """
    folders = {methods[0]: start} if len(methods) == 1 else {method: str(Path(start, method)) for method in methods}
    return {method: load_drafter(folder, target, own=False).net for method, folder in folders.items()}


def take_over(net: nn.Module, begun: nn.Module, method: str) -> None:
    """Put the weights of another network into one that is about to be trained.

    Every weight must have the same name and shape and mean the same: both listen to the same layers, say. The other may
    lack only what a network names in `quiet`, parts that do nothing at first, and have other settings only where the
    network names them in `free`: they change what it is asked for, not what a weight means.
    Raises: MismatchError: something differs.
    """
    there, here, quiet = _form(begun), _form(net), getattr(net, "quiet", ())
    for name in sorted(here.keys() | there.keys()):
        found, needed = there.get(name, "missing"), here.get(name, "missing")
        if found != needed and not (found == "missing" and name.startswith(quiet)):
            raise MismatchError(
                f"training of {method} cannot start with that drafter: its {name} is {found}, in the new one {needed}"
            )
    net.load_state_dict({**net.state_dict(), **begun.state_dict()})


def _form(net: nn.Module) -> dict[str, Any]:
    """The shapes of a network's weights, and those settings that weights depend on, where it has such."""
    settings, free = getattr(net, "settings", {}), getattr(net, "free", ())
    bound = {name: value for name, value in settings.items() if name not in free}
    return {**{name: tuple(some.shape) for name, some in net.state_dict().items()}, **bound}
