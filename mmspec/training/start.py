"""Training that begins with a drafter that is there: one's own, a published one, a small language model, or the drafter
of a kindred target. Its network learns on as it is, whatever form it has."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from mmspec.checkpoints import load_drafter, locate, other_target, weights_digest
from mmspec.errors import MismatchError

logger = logging.getLogger(__name__)

Settings = TypeVar("Settings", bound=Any)


def begin(start: str, methods: Sequence[str], target: Any) -> dict[str, Any]:
    """The drafter with which each method begins: that in `start` itself, or of several methods those in its folders of
    their names. They may have been trained for another target.

    Raises: as `mmspec.checkpoints.load_drafter`.
    """
    folders = {methods[0]: start} if len(methods) == 1 else {method: str(Path(start, method)) for method in methods}
    starts = {method: load_drafter(folder, target, own=False) for method, folder in folders.items()}
    for method, folder in folders.items():
        net = starts[method].net
        place = locate("drafter", folder, known=[])
        if words_of(net) is not None and other_target(place, target, ["tokenizer"]):
            net.foreign = True
            logger.info("%s was made for another tokenizer: the words that it drafts are chosen anew", folder)
    return starts


def words_of(net: Any) -> Tensor | None:
    """[words] the ids of the words that a network drafts; None where these are all."""
    found: Tensor | None = getattr(net, "ids", getattr(net, "draft_ids", None))
    return found


def shaped(recipe: Settings, net: nn.Module) -> Settings:
    """A recipe whose settings are those of a network that learns on, where nobody asked for others.

    Raises: MismatchError: one is asked for that the network has not, and that is not `free` there: one that changes
        what a network is asked for, and not what a weight means.
    """
    has, free = recipe.shape(net), getattr(net, "free", ())
    changes = {}
    for field in fields(recipe):
        asked = getattr(recipe, field.name)
        found = has.get(field.name, asked)
        if asked == field.default and field.name not in recipe.asked:
            changes[field.name] = found
        elif asked != found and field.name not in free:
            raise MismatchError(
                f"training of {recipe.method} starts with a drafter whose {field.name} is {found}, and not {asked}: "
                "leave that setting out"
            )
    return replace(recipe, **changes)


def other_kind(method: str, start: Any) -> MismatchError:
    """The error for a drafter that a method cannot start with."""
    return MismatchError(f"training of {method} cannot start with that drafter: it is one of {start.method}")


def carried_over(start: Any, new: nn.Module, method: str) -> Any:
    """A network of the kind of `new` with the weights of a drafter's, which is of another kind: they must have the same
    names, and only what does nothing at first, what the new one names in `quiet`, may be missing.

    Raises: MismatchError: something else differs.
    """
    net = start.net
    there, here, quiet = net.state_dict(), new.state_dict(), getattr(new, "quiet", ())
    for name in sorted(there.keys() ^ here.keys()):
        if name in there or not name.startswith(quiet):
            found, needed = (tuple(one[name].shape) if name in one else "missing" for one in (there, here))
            raise MismatchError(f"{other_kind(method, start)}, and its {name} is {found}, in the new one {needed}")
    made = type(new)(net.config, **net.settings)
    made.load_state_dict({**here, **there})
    made.draft_ids, made.foreign = net.draft_ids, net.foreign
    return made


def as_tables(heads: Iterable[Any]) -> None:
    """Let output heads of a drafter's own learn as tables do (see `mmspec.training.muon.build_optimizer`)."""
    for head in heads:
        head.table = True


def digest(net: nn.Module) -> str:
    """A short hash that changes when a network's weights do, the words that it drafts, or how its heads learn."""
    words = getattr(net, "draft_ids", None)
    drafts = "" if words is None else f"-{sha256(words.cpu().numpy().tobytes()).hexdigest()[:8]}"
    drafts += "-anew" if getattr(net, "foreign", False) else ""
    tables = "-tables" if any(getattr(part, "table", False) for part in net.modules()) else ""
    return weights_digest(net) + drafts + tables
