"""How the drafters of speech models are trained (`mmspec train drafter`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import LlamaForCausalLM

from mmspec.drafters.heads import HeadDrafter
from mmspec.drafters.layer import head_config
from mmspec.errors import InputError, MismatchError
from mmspec.speech.ssd import SSD, shortened, upper_layers
from mmspec.speech.texts import sentences
from mmspec.speech.vadusa import Vadusa
from mmspec.speech.viterbi import PairedHeads, Viterbi
from mmspec.training.answers import Answered
from mmspec.training.medusa import MedusaRecipe
from mmspec.training.questions import Question
from mmspec.training.recipe import setting
from mmspec.training.spd import SpdRecipe


def check_speaks(method: str, target: Any) -> None:
    """Raise MismatchError unless a target speaks with a Llama."""
    if not isinstance(getattr(target, "speaker", None), LlamaForCausalLM):
        raise MismatchError(f"{method} needs a target that speaks with a Llama, not a {type(target.model).__name__}")


class Sentences:
    """Sentences of the synthetic world to be said; held-out ones are not those that a target learnt to speak with.

    Args: seed: name of the data set, which ends in a number: another one brings other sentences. length: how many.
    """

    def __init__(self, seed: str, length: int) -> None:
        split, number = "dev" if "held-out" in seed else "train", int(seed.rpartition("/")[2])
        self.name = f"sentences/{split}/{number}" if number else f"sentences/{split}"  # as earlier runs call it
        self.lines = sentences(split, length, number)

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Question:
        return Question(None, self.lines[index])


@dataclass(frozen=True, kw_only=True)
class VadusaRecipe(MedusaRecipe):
    """Heads on a frozen target."""

    levels: int = 4

    method: ClassVar[str] = "vadusa"
    about: ClassVar[str] = (
        "VADUSA: several heads on the last feature of a text-to-speech model guess several codes ahead, and each "
        "round's sparse tree is made of what they find likely (arXiv 2410.21951)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = Vadusa


@dataclass(frozen=True, kw_only=True)
class ViterbiRecipe(MedusaRecipe):
    """The same heads, and a table of the token pairs that the target writes.

    The paper's heads count alike and learn the tokens, which it emits unverified. These learn the target's law, which
    says more with every token, and the near ones count more (`decay`): of a draft that is verified, a far token is kept
    only behind the near ones.
    """

    levels: int = 4

    method: ClassVar[str] = "mtp-viterbi"
    about: ClassVar[str] = (
        "Multi-token heads on the last feature of a text-to-speech model; a Viterbi search over their candidates and a "
        "table of token pairs finds the chain to draft (arXiv 2410.13839)."
    )
    drafter_class: ClassVar[type[HeadDrafter]] = Viterbi

    def network(self, target: Any, rows: Sequence[Answered]) -> PairedHeads:
        """See `HeadRecipe`."""
        return PairedHeads(head_config(target), self.levels, target.vocab_size, self.layers)

    def suit(self, net: Any, target: Any, rows: Sequence[Answered]) -> Any:
        """See `Recipe`: the table is of these answers, whatever it held before."""
        net = super().suit(net, target, rows)
        net.count([row.ids[row.start - 1 :] for row in rows])
        return net


@dataclass(frozen=True, kw_only=True)
class SsdRecipe(SpdRecipe):
    """The first layers and the head of a shortened target.

    The paper has two layers of its own and learns the tokens alone; here it is one, which is the faster to draft with,
    and the target's law is learnt beside the tokens (`law_weight`, `token_weight`).
    """

    warm_steps: int = 0
    warm_questions: int = 0
    layers: int = setting("its own first layers; the target's upper quarter is above", 1)
    width: int = setting("that of the target: leave it out", SpdRecipe.width)
    heads: int = setting("those of the target: leave them out", SpdRecipe.heads)
    rate: float = 0.005

    method: ClassVar[str] = "ssd"
    about: ClassVar[str] = (
        "A draft model of the target's upper layers below its own first ones; only these and the output head are "
        "trained (arXiv 2505.15380)."
    )
    drafter_class: ClassVar[type[SSD]] = SSD

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.width, self.heads) != (SpdRecipe.width, SpdRecipe.heads):
            raise InputError(f"{self.method} has the width and the heads of its target: leave them out")

    def check(self, target: Any) -> None:
        """Only a target that speaks with a Llama can be shortened."""
        check_speaks(self.method, target)
        super().check(target)

    def build(self, target: Any, rows: Sequence[Answered] = ()) -> LlamaForCausalLM:
        """The shortened target, float32."""
        return shortened(target.speaker, self.layers, upper_layers(target.num_layers)).float()

    def shape(self, net: LlamaForCausalLM) -> dict[str, Any]:
        """See `Recipe`."""
        return {"layers": net.config.own_layers}
