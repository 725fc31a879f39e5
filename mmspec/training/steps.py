"""What the training of drafters on the target's features has in common: several guesses per place, each judged by the
target's law of the token that it drafts.

Slot t holds the token x_{t+1}, which is given, and what is estimated for it stands for the target's feature f_{t+1},
whose law is that of x_{t+2}. Step s of a loss is level s of the draft: its estimate in slot t was made when nothing
after slot t - s, its root, was known to be true. The loss of a step is averaged over the slots that draft a token of an
answer, and the steps are added with weights that fall as levels are reached less often.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence

from mmspec.drafters.heads import HeadDrafter, HeadNet
from mmspec.drafters.vocabulary import LEAST
from mmspec.errors import InputError, MismatchError
from mmspec.training.answers import Answered
from mmspec.training.chunks import in_chunks
from mmspec.training.features import Features, as_in_use, head_logits
from mmspec.training.recipe import Loss, Recipe, setting
from mmspec.training.start import as_tables, carried_over, other_kind, shaped
from mmspec.training.words import common_words

logger = logging.getLogger(__name__)

SEEING = {"pictures", "axes"}
"""Settings of published heads for models that see (`mmspec.interchange.published.sight`)."""


@dataclass(frozen=True, kw_only=True)
class HeadRecipe(Recipe):
    """How a drafter on the target's features is trained. With a draft vocabulary (`mmspec.drafters.vocabulary`) what is
    learnt is the same."""

    steps: int = 500
    batch: int = 32
    rate: float = 0.02
    warm_steps: int = setting("there is no warm-up: leave it out", 0)
    warm_questions: int = setting("there is no warm-up: leave it out", 0)
    decay: float = setting("weight of each further token of a draft, relative to the one before", 0.8)
    draft_vocabulary: int | None = setting("how many words are drafted, those that answers use most; none: all", None)

    drafter_class: ClassVar[type[HeadDrafter]]
    loss_class: ClassVar[type[Any]]

    def __post_init__(self) -> None:
        if self.warm_steps or self.warm_questions:
            raise InputError(
                f"{self.method} learns from the target's features: it has no warm-up (--warm-steps, --warm-questions)"
            )
        super().__post_init__()
        if not 0 < self.decay <= 1:
            raise InputError(f"the decay of a level's weight lies in (0, 1], got {self.decay}")
        if self.draft_vocabulary is not None and self.draft_vocabulary < LEAST:
            raise InputError(f"a draft vocabulary has {LEAST} words or more, got {self.draft_vocabulary}")

    def check(self, target: Any) -> None:
        """See `Recipe`."""
        super().check(target)
        _ = target.head  # a model with more than a head behind its last hidden state refuses here
        if self.draft_vocabulary is not None and target.prompt_vocab_size != target.vocab_size:
            raise MismatchError(
                f"{type(target.model).__name__} emits codes of a small vocabulary of their own, which are all drafted: "
                "leave the draft vocabulary out"
            )

    @abstractmethod
    def network(self, target: Any, rows: Sequence[Answered]) -> HeadNet:
        """The network, made with the global generator."""

    def build(self, target: Any, rows: Sequence[Answered] = ()) -> Any:
        """A network with new weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            net = self.network(target, rows)
        return self.suit(net, target, rows)

    def suit(self, net: Any, target: Any, rows: Sequence[Answered]) -> Any:
        """See `Recipe`: a draft vocabulary, if one is asked for, or a start has one of another tokenizer."""
        drafting, count = self.drafter(net).net, self.draft_vocabulary
        if count is None and drafting.foreign:
            count = len(drafting.draft_ids)
        if count is not None:
            drafting.draft_ids = common_words(rows, count, target.vocab_size)
        return net

    def taps(self, net: Any) -> tuple[int, ...]:
        """See `Recipe`: those that the network was made for."""
        return tuple(self.drafter(net).net.settings.get("taps", ()))

    def shape(self, net: HeadNet) -> dict[str, Any]:
        """See `Recipe`."""
        config = net.config
        return {"layers": config.num_hidden_layers, "intermediate": config.intermediate_size, **net.settings}

    def begin(self, start: Any, target: Any) -> Any:
        """See `Recipe`."""
        net: Any = start.net
        if not isinstance(net, HeadNet):
            raise other_kind(self.method, start)
        if seen := sorted(SEEING & net.settings.keys()):
            logger.warning("the start read pictures as published (%s); it learns on with tokens in one row", seen)
            for name in seen:
                del net.settings[name]
        recipe = shaped(self, net)
        new = recipe.build(target)
        if type(net) is not type(new):
            net = carried_over(start, new, self.method)
        net.settings |= {name: getattr(recipe, name) for name in getattr(net, "free", ())}
        as_tables(getattr(net, "projections", ()))
        net.config.vocab_size = target.vocab_size  # of another target it may have been another
        return net.float().cpu()

    def loss(self, net: Any, target: Any, features: Features | None) -> Loss:
        """The method's loss; there is none without features."""
        assert features is not None  # only a warm-up has none
        return self.loss_class(net, target, features, self)


@dataclass(frozen=True)
class Batch:
    """Answers as slots, right-padded.

    features: [B, slots + 2, H] f_0 .. of all positions. embeddings: [B, slots, H] of the slots' tokens x_1 ..
    first: slots before it draft no answer. position: of the batch in the training run, the source of randomness.
    """

    rows: list[Answered]
    features: Tensor
    embeddings: Tensor
    first: int
    position: int

    @property
    def slots(self) -> int:
        """Slot t needs the token x_{t+2}: the last two positions have none."""
        return self.embeddings.shape[1]

    def shifted(self, states: Tensor, step: int) -> Tensor:
        """[B, slots - first, H]: in every slot the state of the slot `step` places before, its root in that step."""
        return pad(states, (0, 0, step, 0))[:, self.first : self.slots]


class StepLoss(ABC):
    """The loss of a batch, step by step.

    Args: net: to be trained. target: whose embeddings and head it shares, frozen. features: where the target's hidden
    states come from.
    """

    def __init__(self, net: Any, target: Any, features: Features, recipe: Any) -> None:
        self.net, self.target, self.features, self.recipe = net, target, features, recipe

    @abstractmethod
    def estimates(self, batch: Batch) -> Iterable[Tensor]:
        """[B, slots - first, H] per step, for the slots from `first` on; slots without a root may hold anything."""

    def __call__(self, position: Tensor, rows: list[Answered]) -> Tensor:
        """A scalar. position: [B] of the samples in the training run."""
        true = self.features(rows)  # [B, n, H]
        tokens = pad_sequence([torch.tensor(row.ids, device=true.device) for row in rows], batch_first=True)
        with as_in_use(true.device):
            embeddings = self.target.embed(tokens[:, 1:-1]).float()
        first = max(1, min(row.start for row in rows) - 1)
        batch = Batch(rows, true, embeddings, first, int(position[0]))
        goal = true[:, first + 1 : batch.slots + 1]
        total, weights = true.new_zeros(()), 0.0
        for step, estimate in enumerate(self.estimates(batch)):
            drafted = drafted_slots(rows, first, batch.slots, step).to(true.device)
            if drafted.any():
                weight = self.recipe.decay**step
                losses = in_chunks(self.judged_in(step), self.target.vocab_size, estimate[drafted], goal[drafted])
                total = total + weight * losses.sum() / max(1, len(losses))
                weights += weight
        return total / weights

    def judged_in(self, step: int) -> Callable[[Tensor, Tensor], Tensor]:
        """What judges the estimates of a step."""
        return self.judged

    def judged(self, estimate: Tensor, goal: Tensor) -> Tensor:
        """See `judge`."""
        return self.judge(estimate, goal, self.law(goal))

    def law(self, goal: Tensor) -> Tensor:
        """[M, V] the target's law at features [M, H] of its own."""
        with as_in_use(goal.device):
            return self.target_logits(goal).softmax(-1)

    def judge(self, estimate: Tensor, goal: Tensor, law: Tensor) -> Tensor:
        """The losses [m] of estimates [M, H] of the features `goal` [M, H], whose laws are `law` [M, V]; of those that
        count, m <= M."""
        return cross_entropy(self.target_logits(estimate), law, reduction="none")

    def target_logits(self, features: Tensor) -> Tensor:
        """[M, V] float32, by the target's own head."""
        return head_logits(self.target, features)


def generator_at(recipe: Recipe, position: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A source of randomness for a batch by its place alone, so that a resumed run goes on as an unbroken one would."""
    return torch.Generator(device).manual_seed(recipe.seed * 1_000_003 + position)


def drafted_slots(rows: list[Answered], first: int, slots: int, step: int) -> Tensor:
    """[B, slots - first] bool: slots from `first` on whose estimate drafts an answer token in step `step`.

    The first root is the slot that holds the first answer token; step s drafts from s slots behind a root.
    """
    slot = torch.arange(first, slots)
    start = torch.tensor([row.start - 1 + step for row in rows])[:, None]
    stop = torch.tensor([len(row.ids) - 2 for row in rows])[:, None]
    return (slot >= start) & (slot < stop)
