"""What the training of every kind of drafter has in common; the recipe of each method says the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from mmspec.checkpoints import DESCRIPTION, replaceable, save_drafter
from mmspec.errors import CheckpointError, InputError, MismatchError, check_least
from mmspec.registry import modalities, resolve
from mmspec.safe_files import read_json
from mmspec.training.answers import Answered
from mmspec.training.features import Features

Loss = Callable[..., Tensor]
"""loss(position=[B], rows=list[Answered]) -> scalar, of a batch made by `mmspec.training.loop.collate`."""


def setting(meaning: str, default: Any = MISSING) -> Any:
    """A field of a recipe, with what `mmspec train drafter --set help` says of it."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """How a drafter is built and trained. Every field is a setting; a recipe that only has another default for one need
    not say again what it means."""

    steps: int = setting("updates")
    batch: int = setting("answers per batch")
    rate: float = setting("peak learning rate of matrices; everything else learns at 0.15 of it")
    warm_steps: int = setting("first updates, on the data's own answers; with --start none unless it is given", 0)
    warm_questions: int = setting("questions of these updates", 0)
    seed: int = setting("seed of weights, data, noise and answers", 0)

    drafter_class: ClassVar[type[Any]]
    method: ClassVar[str]
    about: ClassVar[str]
    """A sentence for the model card."""
    usage: ClassVar[str] = "--model {target} --drafter FOLDER"
    """The options of the command that the model card shows."""
    answers: ClassVar[dict[str, Any]] = {}
    """Settings of `mmspec.training.answers.AnswerOptions` that suit what it learns better than their defaults."""
    features_class: ClassVar[type[Features]] = Features
    """Where the target's hidden states come from."""
    context: ClassVar[bool] = True
    """Whether the loss reads the target's hidden states of prompts; else only those from which answers are drawn, from
    the prompt's last token on, are kept."""
    reads_prompts: ClassVar[bool] = True
    """Whether prompts and answers must be ids of one vocabulary."""

    asked: ClassVar[frozenset[str]] = frozenset()
    """The settings that are known to be asked for; what else differs from the defaults is, too."""

    @classmethod
    def asking(cls, **settings: Any) -> Self:
        """A recipe of these settings, which a drafter that is there must have, though they be the defaults."""
        made = cls(**settings)
        object.__setattr__(made, "asked", frozenset(settings))  # no field: it tells no run from another
        return made

    def __post_init__(self) -> None:
        check_least(self, "steps", "batch")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed {self.seed} is not valid: it lies in 0 to {2**32 - 1}")
        if not 0 < self.rate < 1:
            raise InputError(f"the learning rate {self.rate} is not valid: it lies between 0 and 1")
        if self.warm_steps < 0 or self.warm_questions < 0 or (self.warm_steps and not self.warm_questions):
            raise InputError("warm_steps and warm_questions are 0 or more, and a warm-up needs questions")

    def check(self, target: Any) -> None:
        """Raise MismatchError for a target that this recipe cannot learn from."""
        if self.reads_prompts and target.prompt_vocab_size != target.vocab_size:
            own = [name for name, serving in modalities("recipes").items() if target.modality in serving]
            recipes: dict[str, Any] = {name: resolve("recipes", name, target.modality) for name in own}
            fitting = ", ".join(name for name, recipe in recipes.items() if not recipe.reads_prompts)
            raise MismatchError(
                f"{self.method} reads prompts and answers as ids of one vocabulary, and {type(target.model).__name__} "
                f"has another one for what it emits; methods for it are: {fitting or 'none so far'}"
            )
        if getattr(target, "decoder", None) is None:
            raise MismatchError(
                f"{type(target.model).__name__} does not write token by token, so {self.method} cannot draft for it"
            )

    def check_place(self, pipe: Any, out: Path) -> None:
        """Raise an Error for a folder that must not be written to, before anything is trained for it."""
        description = replaceable(out) / DESCRIPTION
        held = read_json(description).get("method") if description.exists() else self.method
        if held != self.method:
            raise CheckpointError(f"{out} holds a drafter of the method {held}: choose another folder")

    @abstractmethod
    def build(self, target: Any, rows: Sequence[Answered] = ()) -> nn.Module:
        """New weights, float32, on the CPU. rows: the answers it will learn from."""

    @abstractmethod
    def shape(self, net: Any) -> dict[str, Any]:
        """Which of the recipe's settings a network that is there has decided, and how."""

    @abstractmethod
    def begin(self, start: Any, target: Any) -> Any:
        """The network of a drafter that is there, float32, on the CPU, to learn on.

        Raises: MismatchError: it is of another kind than what this recipe trains, or has other settings than it asks
            for.
        """

    def suit(self, net: Any, target: Any, rows: Sequence[Answered]) -> Any:
        """A network, fitted to the answers that it will learn from, where something but its weights hangs on them."""
        return net

    def taps(self, net: Any) -> tuple[int, ...]:
        """The target's `hidden_states` that the loss asks for, beside the features."""
        return ()

    def beside(self, target: Any) -> int:
        """Bytes per token that its loss keeps beside the target's hidden states."""
        return 0

    def settled(self) -> int:
        """How many updates are a preparation: what is measured before they are over says nothing of the drafter."""
        return 0

    @abstractmethod
    def loss(self, net: Any, target: Any, features: Features | None) -> Loss:
        """The loss of `net`; without features it learns from the tokens alone."""

    def drafter(self, net: Any) -> Any:
        """The drafter around the trained weights, with the default draft."""
        return self.drafter_class(net)

    def serving(self, pipe: Any, net: Any) -> Any:
        """The pipeline of the target that the drafter drafts for: `pipe`, unless the target learns, too."""
        return pipe

    def save(self, pipe: Any, made: Any, out: Path) -> None:
        """Write what was made to the folder `out`. pipe: as `serving` makes it."""
        save_drafter(made, out, pipe.target)
