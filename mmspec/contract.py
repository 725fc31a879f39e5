"""The shapes and fields that targets, drafters and acceptance rules exchange. The one place to look them up.

Letters: B rows of the batch, N nodes of the draft, V vocabulary, H hidden size, A accepted nodes (padded), T prompt
length. Every tensor has the batch dimension first; rows accept different lengths. p is always the target, q the draft.

One round of `mmspec.decode`:

    Drafting.propose(state) -> Draft -> Target.verify -> Verified -> rule -> Accepted -> Target.commit, Drafting.observe

Node 0 of a causal draft is the pending token: emitted already, not yet in the target's cache. Targets without a pending
token (masked models that reveal positions in any order) give their nodes whatever meaning they need and leave
`Accepted.next` None; the loop itself never looks inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from mmspec.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from mmspec.sampling import Sampler

Kind = Literal["point", "sampled", "coupled", "aligned", "masked"]
"""How the children of a node were proposed, given the text before them.

point: a deterministic choice (argmax, top-k, a copy), made without any noise; q is a point mass.
sampled: drawn from q without replacement, with noise independent of the target's; `Draft.q` is that law.
coupled: top-k of c log q + g, c about 1, with the target's own noise g. Only a rule that never lets a draft decide may
    take it.
aligned: continuous values, drawn with the noise of the target's own walk; the target judges each given those above it.
masked: the same, and the target judges each given only what was known before the round.
"""
Unit = Literal["ids", "columns", "values"]
"""What a step of decoding emits."""
UNITS: Mapping[Unit, str] = {"ids": "single ids", "columns": "columns of codes", "values": "continuous tokens"}
"""What messages call it."""


@dataclass(frozen=True)
class Needs:
    """What a drafter asks of the target before prefill.

    taps: HF `hidden_states` indices (0 = embeddings, number of layers = final, after the last norm), returned for the
        prompt and for every verified node.
    embeddings: the input embeddings of the prompt, image features in place (tap 0, but of the prompt alone).
    inputs: the prompt's model inputs as the target got them, for a drafter that sees the pictures itself.
    focus: how much attention every prompt position gets in the last layer (`mmspec.focus`); under any attention.
    nodes: how many nodes drafts will have, node 0 included, as the loop expects it: verification is made ready for
        these, for others when they come. None where nobody says.
    """

    taps: tuple[int, ...] = ()
    embeddings: bool = False
    inputs: bool = False
    focus: bool = False
    nodes: tuple[int, ...] | None = None


MOST_NODES = 4096
"""Of a draft: what stands above what is a table of nodes by nodes."""


@dataclass(frozen=True)
class Shape:
    """How large a draft may be. `Shape(4)` is a chain of four tokens.

    depth: levels below node 0; with none there is no draft. width: children of a node, and nodes expanded per level.
    total: nodes, node 0 included; 0 stands for 1 + depth * width. least: confidence in a node's path, 0 to 1, below
        which a drafter that builds its trees on a CPU may leave it out, and grow no deeper where no path has three
        times as much, or a half.
    Raises: InputError for numbers that no draft can have.
    """

    depth: int
    width: int = 1
    total: int = 0
    least: float = 0.0

    def __post_init__(self) -> None:
        for name in ("depth", "width", "total"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise InputError(f"a draft of {name} {value!r} is not valid: whole numbers are needed")
        if not isinstance(self.least, int | float) or isinstance(self.least, bool):
            raise InputError(
                f"a draft whose paths have a confidence of {self.least!r} is not valid: a number is needed"
            )
        object.__setattr__(self, "total", self.total or 1 + self.depth * self.width)
        if not 0 <= self.least < 1:
            raise InputError(f"a draft whose paths have a confidence of {self.least!r} is not valid: it lies in [0, 1)")
        if self.width < 1 or not self.depth < self.total:
            raise InputError(
                f"a draft of depth {self.depth}, width {self.width} and {self.total} nodes is not valid: it needs "
                "width >= 1 and more nodes than levels"
            )
        if self.total > MOST_NODES:
            raise InputError(f"a draft of {self.total} nodes is not possible: {MOST_NODES} are the most")

    def __str__(self) -> str:
        """As the command line takes it."""
        if self == Shape(self.depth):
            return str(self.depth)
        return f"{self.depth}x{self.width}x{self.total}" + (f"x{self.least}" if self.least else "")


@dataclass
class Draft:
    """A batch of token trees in topological order: every parent stands before its children.

    tokens: [B, N] int64, node 0 the pending token (continuous targets: [B, N, D] values).
    parents: [B, N] int64 node indices, -1 for node 0.
    depth: [B, N] int64, 0 for node 0.
    kind: how children were proposed.
    q: [B, N, V] float32, only for kind "sampled": the warped law from which the children of each node were drawn, first
        child first, without replacement.
    valid: [B, N] bool, False for padding (None: all nodes are real).
    """

    tokens: Tensor
    parents: Tensor
    depth: Tensor
    kind: Kind = "point"
    q: Tensor | None = None
    valid: Tensor | None = None
    _ancestors: Tensor | None = field(default=None, repr=False)
    _levels: int | None = field(default=None, repr=False)

    @classmethod
    def root(cls, pending: Tensor) -> Draft:
        """The empty draft: only the pending token [B]. Verifying it is a plain autoregressive step."""
        from mmspec.ancestry import alone

        parents, depth, above = alone(len(pending), pending.device)
        return cls(pending[:, None], parents, depth, _ancestors=above, _levels=0)

    @property
    def levels(self) -> int:
        """A number of levels below node 0 that no row exceeds. Who makes a draft knows it; else the device is asked."""
        if self._levels is None:
            self._levels = int(self.depth.max())
        return self._levels

    @property
    def longest(self) -> int:
        """A number of nodes that no path from node 0 exceeds, without asking the device."""
        return self.size if self._levels is None else min(self._levels + 1, self.size)

    @property
    def size(self) -> int:
        """N, the number of nodes."""
        return self.parents.shape[1]

    @property
    def ancestors(self) -> Tensor:
        """[B, N, N] bool: [b, i, j] is True if j is i or stands above it."""
        if self._ancestors is None:
            from mmspec.ancestry import ancestors

            self._ancestors = ancestors(self.parents, self._levels)
        return self._ancestors


@dataclass
class Verified:
    """What one target forward said about a draft.

    logits: [B, N, V] raw next-token logits after each node (guided logits for guided targets); continuous targets put
        what their rule needs here. [B, 0, V] of a round that was played in one launch.
    taps: tap index -> [B, N, H] hidden states of the nodes, as asked for in `Needs.taps`.
    """

    logits: Tensor
    taps: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class Accepted:
    """The path that a rule kept.

    path: [B, A] int64 node indices from node 0 down, padded with 0 after `count`.
    count: [B] int64 number of path nodes, node 0 included: a + 1, and also the number of tokens that the round emits
        (a drafted ones and `next`).
    next: [B] int64 the new pending token (bonus or correction); None for targets without a pending token.
    values: what is written at the accepted nodes where it is not the drafted token (continuous rules); else None.
    paths, emitted, drafted: what the host knows of each row, filled once per round by the stop rule: node indices,
        emitted ids, and how many of these were drafted. A row that is already done, or is cut short by a stop, emits
        fewer tokens than `count` says.
    offered: the same of how many nodes were drafted, where a draft has others, too; else empty.
    running: rows that had not ended when the round was started, as far as the host knew; none stands for all.
    report: of a round that was played in one launch, what the stop rule asks for: `mmspec.stopping.report`.
    """

    path: Tensor
    count: Tensor
    next: Tensor | None
    values: Tensor | None = None
    paths: list[list[int]] = field(default_factory=list)
    emitted: list[list[int]] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    offered: list[int] = field(default_factory=list)
    running: list[bool] = field(default_factory=list)
    report: Tensor | None = None

    @property
    def committed(self) -> Tensor:
        """[B] int64 how many nodes a cache keeps: `count`, and none of rows that had ended before."""
        if all(self.running):
            return self.count
        import torch

        return self.count * torch.tensor(self.running).to(self.count.device, non_blocking=True)  # nothing waits for it

    def most_committed(self, draft: Draft) -> int:
        """A number that no row's `committed` exceeds: the largest, once the host has read it."""
        return max(map(len, self.paths), default=draft.levels + 1)


@dataclass
class State:
    """One request (a batch of rows) inside a target. Targets subclass it with their caches.

    ids: host copy of every row's known tokens: prompt, then what was emitted (pending token last). While rounds are
        under way that the host has not read, this, `done` and `room` are those before them.
    pending: [B] int64 last emitted token, not yet in the cache; None for targets without one.
    done: one bool per row. emitted: [B] int64 number of emitted tokens of each row.
    limits: how many tokens each row may emit at most (budget, and what the context has left after the prompt).
    room: how many levels below node 0 may still be useful to any row.
    shape: how large this round's draft should be; None leaves it to the drafter. steady: whether all rounds have the
        same one.
    finite: [] bool, whether this round's logits are numbers; the stop rule reads it with all else that it reads of the
        device. None of a target that checks by itself.
    chains: whether the rule, or the target, takes chains alone: who draws trees then draws one child per node.
    early: whether the target can commit a round before the host has read it, so that the next one can be started.
    plays: whether it can do so in the launch that verifies it, with rules that say `on_device = True`; the target is
        then a `PlayingTarget`.
    prompt_taps, prompt_embeddings: what `Needs` asked for: tap -> [B, T, H], and [B, T, H], valid for the first
        prompt_length[b] positions of a row.
    prompt_focus: with `Needs.focus`, [B, T] float32.
    prompt_inputs, prompt_features: with `Needs.inputs`, what the target was given, and what it made of the pictures.
        All of the prompt is there while a drafter begins, and freed then.
    """

    ids: list[list[int]]
    done: list[bool]
    emitted: Tensor
    prompt_length: Tensor
    limits: list[int]
    pending: Tensor | None = None
    room: int = 0
    shape: Shape | None = None
    steady: bool = False
    finite: Tensor | None = None
    chains: bool = False
    early: bool = False
    plays: bool = False
    prompt_taps: dict[int, Tensor] = field(default_factory=dict)
    prompt_embeddings: Tensor | None = None
    prompt_focus: Tensor | None = None
    prompt_inputs: dict[str, Any] = field(default_factory=dict)
    prompt_features: Any = None

    def forget_prompt(self) -> None:
        """Free what `Needs` asked for, which may be as large as a cache: drafters read it when they begin."""
        self.prompt_taps, self.prompt_inputs = {}, {}
        self.prompt_embeddings = self.prompt_focus = self.prompt_features = None

    def undrafted(self) -> Draft:
        """The draft of a plain step: only the pending token, or what stands for it in targets without one."""
        assert self.pending is not None
        return Draft.root(self.pending)

    def levels(self, own: int) -> int:
        """How many levels this round's draft may have: those of `shape`, else the drafter's `own`; at most `room`."""
        return max(0, min(own if self.shape is None else self.shape.depth, self.room))

    def often(self, sampler: Sampler) -> bool:
        """Whether rounds like this one come often enough to be compiled as a whole: not those of each of the sizes that
        `auto` tries, or of every temperature."""
        return self.steady and sampler.greedy

    def nodes(self, own: int) -> int:
        """How many nodes this round's draft may have, node 0 included: those of `shape`, else the drafter's `own`."""
        return own if self.shape is None else self.shape.total


@dataclass
class Round:
    """What one round emitted, and how long its parts took.

    tokens: per row, the emitted ids. drafted: per row, how many of them were drafted (the others are the target's own).
    proposed: nodes of the draft, the pending token not counted. offered: per row, how many of these were drafted, where
    the target fills some itself; else empty. draft_s, verify_s, other_s: seconds.
    prefill: this is the first, draftless round; its verify_s is the prefill and its other_s the drafter's start.
    """

    tokens: list[list[int]]
    drafted: list[int]
    proposed: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    prefill: bool = False
    offered: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """All of them together."""
        return self.draft_s + self.verify_s + self.other_s


class Target(Protocol):
    """The model whose output must be reproduced."""

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> State:
        """Read the prompt; draw the first pending token where the target has one."""

    def verify(self, state: State, draft: Draft) -> Verified:
        """One forward over all nodes of the draft."""

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        """Keep the accepted path, forget every other node, take over the new pending token."""


class PlayingTarget(Target, Protocol):
    """One whose states say `plays`."""

    def play(self, state: State, draft: Draft, rule: Rule) -> tuple[Verified, Accepted]:
        """`verify`, the rule, and `commit`, in one launch. The logits have no nodes, and `Accepted.report` is there."""


class TextTarget(Target, Protocol):
    """A causal target over discrete tokens, as drafters see it.

    What else `mmspec.load` and `Pipeline` ask (budget, stopping, the tokenizer, what ids make beside text, ...) has its
    defaults in `mmspec.base_target.BaseTarget`, from which every target derives.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    placeholders: tuple[int, ...]
    """ids that stand for image (audio, ...) positions: ordinary when emitted, never proposed by a drafter."""
    embed: nn.Module
    head: nn.Module


class Drafting(ABC):
    """A drafter at work on one request."""

    @property
    def early(self) -> bool:
        """Whether it observes a round before the host side of `Accepted` is filled, and without its logits."""
        return False

    def ahead(self, state: State) -> bool:
        """Whether it can propose the next draft, of `State.shape`, before that, too; asked if it is `early`."""
        return True

    @abstractmethod
    def propose(self, state: State) -> Draft:
        """The next draft; node 0 is the pending token."""

    @abstractmethod
    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Learn from the round, after the target committed it.

        The draft may be another one than was proposed, for all rows or for some: node 0 alone, or another drafter's.
        """


class Drafter(ABC):
    """Whatever proposes: weights and memory shared by requests. `begin` starts the work on one request.

    A subclass names its `kinds`, and says what else is not as it stands here.
    """

    kinds: frozenset[Kind] = frozenset()
    """The kinds of proposal it can make. What targets ask of a class, before it is made, stands on the class."""
    needs: Needs = Needs()
    shapes: tuple[Shape, ...] = ()
    """Those among which `auto` chooses, from the smallest to the largest (`mmspec.control`), where it follows
    `State.shape`; it may know them only once it is bound. With none, its drafts are always of its own size."""
    reuses: bool = False
    """Whether it drafts again, in a later round, tokens that were not kept: rules that `looks_ahead` refuse it, and
    `auto` leaves it its own size."""
    placeholders: Collection[int] = ()
    """ids that it never proposes: those of its target, once it is bound."""
    drafts: Unit | None = "ids"
    """What it drafts, which must be what the target emits; None where it fits all."""
    drafts_chains: bool = False
    """Whether its drafts are chains, whatever their size: some targets take no others."""
    lossless: bool = True
    """False where it is meant for a lossy rule."""
    source: str = ""
    """The paper, for lists."""
    advice: str = ""
    """What to pass, where its name alone does not make one, and no training of ours does."""
    fits: tuple[str, ...] | None = None
    """What of the target's `fingerprint` must be as it was when it was saved, of one that has a `load` as
    `TrainedDrafter` has; None where it is not read from a folder."""
    method: str = ""
    """Its name, which is written down with what it is saved with."""
    net: Any = None
    """Its network, an `nn.Module`, where it has one."""

    @staticmethod
    def check_target(target: Any) -> None:
        """Raise MismatchError for a target, or a class of targets, that lacks what it needs."""

    def bind(self, target: Any) -> None:
        """Check that the drafter fits the target and take what they share. Raises MismatchError.

        Without it, it fits every target. One that wraps another drafter binds that, and needs what that needs.
        """

    @abstractmethod
    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Drafting:
        """Start on a request that was just prefilled; `kind` is one of `kinds`."""

    def forget(self) -> None:
        """Be as before the first request: a prompt that comes again would else be measured with its reply at hand."""

    def aside(self) -> Self:
        """A drafter that drafts from the same stores of replies, as they are now, and tells them nothing: where the
        memory is the user's, and must not be forgotten."""
        return self


class TrainedDrafter(Drafter):
    """A drafter with weights, as `mmspec.checkpoints` saves and loads it. It calls its network `net`.

    Its name stands for a folder beside the model, and makes nothing by itself. It may name in `kin` the methods whose
    weights serve it, too; that is not inherited.
    """

    packs: bool = False
    """Whether it reads its weights with `mmspec.drafters.eight_bits`."""
    command: str = "mmspec train drafter"
    """What trains it."""
    part: str = ""
    """What of its target's checkpoint it is, where it is a part of that, and nothing of ours trains it."""
    fits: tuple[str, ...]

    @abstractmethod
    def save(self, folder: Path) -> dict[str, Any]:
        """Write safetensors; returns what else `load` needs, as JSON."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> Self:
        """The drafter that `save` wrote, on the target's device and in its dtype."""


class Rule(ABC):
    """An acceptance rule on plain tensors. Made without arguments where it is named; its first setting is its knob.

    A subclass says whether it is `lossless` and `invariant`, what it `takes`, and what else is not as it stands here.
    """

    lossless: bool
    invariant: bool
    """Whether the output at a seed is the same for every draft, at any temperature."""
    invariant_greedy: bool = True
    """Whether it is so at temperature 0."""
    takes: tuple[Kind, ...]
    """Kinds of proposal under which the rule keeps its law, best first."""
    judges: Unit = "ids"
    """What it judges, which must be what the target emits."""
    looks_ahead: bool = False
    """Whether the decision depends on tokens behind the first rejected one."""
    chains: bool = False
    """Whether it cannot judge trees of sampled tokens."""
    verifies: bool = True
    """False where it keeps tokens unjudged, so that there is no tau."""
    on_device: bool = False
    """Whether it is a function of tensors, which asks the device for nothing and does not look at `q` and `kind`. It
    may then be recorded, so its settings must stay the same. A subclass that is none says False."""

    def bind(self, target: Any) -> None:
        """Take what it has to know of the target: a codebook, an embedding. Raises MismatchError."""

    @abstractmethod
    def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Accepted:
        """Decide the path. scores: [B, N, V] warped log-scores of the target, float32, -inf where ruled out."""


def bound(rule: Rule, greedy: bool) -> bool:
    """Whether a rule's output is the same for every draft, when the best token is taken or at a seed."""
    return rule.invariant or (greedy and rule.invariant_greedy)
