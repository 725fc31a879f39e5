"""What drafters that are trained on the target's features have in common: they borrow its frozen embeddings and output
head, draft trees that are dynamic (`mmspec.drafters.growing`) or static (`mmspec.drafters.filling`), and are saved as a
small network beside a description.

A method is a subclass: its network, which features it taps, and what it does on one request.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig

from mmspec.checkpoints import WEIGHTS
from mmspec.contract import Draft, Kind, Needs, Shape, State, TrainedDrafter
from mmspec.control import PRUNED, TREES
from mmspec.drafters import eight_bits
from mmspec.drafters.children import Choice
from mmspec.drafters.filling import Plan, fill, planned
from mmspec.drafters.growing import Expand, Guess, grow, grow_at_once
from mmspec.drafters.precision import placed
from mmspec.drafters.static import TYPICAL, best_tree, checked
from mmspec.drafters.vocabulary import NarrowHead, check_words
from mmspec.errors import InputError, MismatchError
from mmspec.grouped import NAME as GROUPED
from mmspec.sampling import Sampler

if TYPE_CHECKING:
    from mmspec.engine.engine import Engine

MOST_PERSONAL = 8
"""Levels of a tree whose depth cost nothing until every node needs a law of its own, as under a repetition penalty."""

DRAFT_IDS = "draft_ids"
"""The draft vocabulary among the tensors of a saved drafter."""


@dataclass(frozen=True)
class Sizes:
    """Of a tree: levels below node 0, nodes expanded per level, nodes, children proposed per node."""

    levels: int
    width: int
    total: int
    top_k: int

    @property
    def shape(self) -> Shape:
        """Without what only drafters ask for."""
        return Shape(self.levels, self.width, self.total)


class HeadNet(nn.Module):
    """The trained part of such a drafter. `config` is the shape of its layers, `settings` its further arguments.

    Args: config: `hidden_size` is the target's. settings: what the subclass takes beside it, plain values.

    draft_ids: [words] int64, ascending: which words are drafted; None for all. foreign: whether these, or those of an
    output head of its own, are ids of another tokenizer: training chooses them anew.
    """

    config_class: ClassVar[type[PreTrainedConfig]] = LlamaConfig
    foreign = False

    def __init__(self, config: PreTrainedConfig, **settings: Any) -> None:
        super().__init__()
        config._attn_implementation = GROUPED
        self.config, self.settings = config, settings
        self.draft_ids: Tensor | None
        self.register_buffer(DRAFT_IDS, None, persistent=False)  # no weight: other formats draft all words

    def fuse(self, heard: Tensor) -> Tensor:
        """The features [B, N, H] of slots from the target's hidden states: those of one layer, as they are."""
        return heard


class HeadDrafter(TrainedDrafter):
    """Drafts trees with a `HeadNet`.

    Args:
        net: the trained network. depth: levels of the tree. width: nodes expanded per level.
        top_k: children proposed per node. total: nodes verified, the pending token included.
        sharpness: exponent of the coupled confidence.
        shares: how often the child of each rank is the accepted one, by level (`mmspec.drafters.static`); they shape
            static trees.
    Raises: InputError: sizes that leave nothing to draft.
    """

    kinds: frozenset[Kind] = frozenset({"point", "sampled", "coupled"})
    packs = True
    fits = ("model_type", "hidden_size", "vocab_size", "num_layers", "tokenizer")
    static: ClassVar[bool] = False
    """Whether trees have the same shape in every round."""
    measured: ClassVar[bool] = False
    """Whether training measures `shares` all the same: for drawn trees, and a static method that the weights serve."""
    floor: ClassVar[float] = 0.0
    """`Shape.least` of the trees among which `auto` chooses where the host looks at them; 0 for the finer menu."""
    asks_host: bool = False
    """Whether the host looks at trees while they grow: where nothing waits for it. Known once the target is."""
    greedy_sharpness: ClassVar[float] = 1.0
    """Exponent of the confidence at temperature 0."""
    trust: float = 1.4
    """What log q counts beside the target's noise; 1 suits a drafter whose law is the target's."""
    noun: ClassVar[str]
    """What messages call it."""
    net_class: ClassVar[type[HeadNet]]

    def __init__(
        self,
        net: Any,
        depth: int = 5,
        width: int = 4,
        top_k: int = 4,
        total: int = 16,
        sharpness: float = 1.0,
        shares: Sequence[Sequence[float]] = TYPICAL,
    ) -> None:
        if min(depth, width, top_k) < 1 or total < 2:
            raise InputError(
                f"a tree of {self.noun} needs depth, width and top_k >= 1 and total >= 2, got "
                f"{depth}, {width}, {top_k} and {total}"
            )
        self.net = net.eval()
        self.depth, self.width, self.top_k, self.total, self.sharpness = depth, width, top_k, total, sharpness
        self.shares = checked(shares)
        self.target: Any = None
        self.head: Any = None

    @property
    def engine(self) -> Engine | None:
        """What compiles the target this drafter is bound to, and so its own layers; None for plain calls."""
        found: Engine | None = getattr(getattr(self.target, "decoder", None), "engine", None)
        return found

    @property
    def most(self) -> int:
        """How many levels the network can draft."""
        return 1 << 30

    def offered(self) -> tuple[Shape, ...]:
        """`shapes`, once the target is known."""
        least = self.least
        menu = PRUNED if least else TREES
        return tuple(replace(shape, least=least) for shape in menu if shape.depth <= self.most)

    @property
    def least(self) -> float:
        """`Shape.least` of these trees."""
        return self.floor if self.asks_host and not self.static else 0.0

    @abstractmethod
    def taps(self, target: Any) -> tuple[int, ...]:
        """The `hidden_states` indices that the network is fed with, in its order."""

    def bind(self, target: Any) -> None:
        """Share the target's embeddings and head."""
        if self.net.config.hidden_size != target.hidden_size:
            raise MismatchError(
                f"the {self.noun} drafter was made for features of size {self.net.config.hidden_size}, the target has "
                f"{target.hidden_size}"
            )
        taps = self.taps(target)
        if not all(0 <= tap <= target.num_layers for tap in taps):
            raise MismatchError(
                f"the {self.noun} drafter reads the target's hidden states {list(taps)}, the target has "
                f"{target.num_layers} layers"
            )
        self.target = target
        self.asks_host = self.engine is None and target.model.device.type == "cpu"
        words = self.net.draft_ids
        self.head = target.head if words is None else NarrowHead(target.head, words)
        self.needs = Needs(taps=tuple(sorted(set(taps))))
        self.shapes = self.offered()

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the network's weights; returns what `drafter.json` must say to build it again."""
        words = {} if self.net.draft_ids is None else {DRAFT_IDS: self.net.draft_ids}
        save_file({**self.net.state_dict(), **words}, folder / WEIGHTS)
        names = ("depth", "width", "top_k", "total", "sharpness", "shares")
        options = {name: getattr(self, name) for name in names}
        return {"options": options, "config": self.net.config.to_dict(), "settings": self.net.settings}

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> Self:
        """The counterpart of `save`, on the device and in the dtype of `target`."""
        kind = cls.net_class
        net = kind(kind.config_class.from_dict(description["config"]), **description.get("settings", {}))
        net = placed(net, target.model.device, target.model.dtype)
        weights = eight_bits.read(folder / WEIGHTS)
        words = weights.pop(DRAFT_IDS, None)
        if words is not None:
            check_words(words, target.vocab_size, folder)
            net.draft_ids = words.to(target.model.device)
        if description["method"] != cls.method:  # a kindred method's, which may have parts that this one has not
            weights = {name: weight for name, weight in weights.items() if name in net.state_dict()}
        net.load_state_dict(weights)
        return cls(net, **description["options"])

    def choice(self, sampler: Sampler, kind: Kind) -> Choice:
        """How children are chosen on a request."""
        sharpness = self.greedy_sharpness if sampler.greedy else self.sharpness
        return Choice(sampler, kind, self.target.placeholders, self.trust, sharpness, self.target.vocab_size)

    def heard(self, taps: dict[int, Tensor]) -> Tensor:
        """What the target's forward gave for the taps, side by side in the network's order: [B, N, taps * H]."""
        parts = [taps[tap] for tap in self.taps(self.target)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def sizes(self, state: State) -> Sizes:
        """Those of this round's tree, which may be deeper than there is room."""
        depth, width, top_k, total = self.depth, self.width, self.top_k, self.total
        if state.shape is not None:
            depth, width, top_k, total = state.shape.depth, state.shape.width, state.shape.width, state.shape.total
        levels = min(depth, self.most, total - 1)
        return Sizes(levels, 1, levels + 1, 1) if state.chains else Sizes(levels, width, total, top_k)

    def tree(self, state: State, choice: Choice, expand: Expand | Guess) -> Draft:
        """The draft of a round; `expand` is asked for nothing if there is no room for one."""
        assert state.pending is not None
        sizes = self.sizes(state)
        sizes = replace(sizes, levels=min(sizes.levels, state.room))
        if sizes.levels < 1:
            return state.undrafted()
        if isinstance(expand, Guess) and not (self.static or choice.personal):
            return grow_at_once(state.pending.tolist(), state.emitted, choice, expand, sizes.shape, sizes.top_k)
        if choice.personal and not choice.draws:
            sizes = replace(sizes, levels=min(sizes.levels, MOST_PERSONAL))
        plan = self.plan(choice, sizes, state.pending.device)
        least = state.shape.least if state.shape is not None and self.asks_host else 0.0
        return level_by_level(state.pending, state.emitted, choice, expand, sizes, plan, least)

    def plan(self, choice: Choice, sizes: Sizes, device: torch.device) -> Plan | None:
        """The shape of trees that have the same in every round; None for those that grow with their confidence."""
        if not (self.static or choice.draws):
            return None
        nodes = best_tree(self.shares, sizes.total, sizes.levels, sizes.top_k)
        return planned(nodes, device)


def level_by_level(
    pending: Tensor,
    emitted: Tensor,
    choice: Choice,
    expand: Expand | Guess,
    sizes: Sizes,
    plan: Plan | None,
    least: float = 0.0,
) -> Draft:
    """A tree of that plan, or without one a tree that grows; pending, emitted: [B]. least: see `grow`."""
    if plan is None:
        return grow(pending, emitted, choice, expand, sizes.shape, sizes.top_k, least)
    if isinstance(expand, Guess):
        expand = expand.level_by_level(sizes.levels)
    return fill(pending, emitted, choice, expand, plan)
