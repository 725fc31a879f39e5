"""How small language models learn to see with a target's eyes (MASSV, arXiv 2505.10526), and to draft in ensembles.

First a warm-up on the words of the data's own answers. Then the target's answers: at the beginning the MLP learns
alone, between a frozen language model and the target's frozen eyes; then both learn (self-data distillation: what is
distilled is what the target says). The paper's first phase takes captions; here it is the same answers. To the
cross-entropy to the tokens comes that to the target's laws, which the project's other drafters learn from, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmspec.training.answers import Answered
from mmspec.training.chunks import in_chunks
from mmspec.training.features import Features
from mmspec.training.recipe import setting
from mmspec.training.spd import SpdLoss, SpdRecipe
from mmspec.training.start import other_kind
from mmspec.training.updates import frozen
from mmspec.vlm.drafters.branching import SpecLlava
from mmspec.vlm.drafters.ensemble import MEMBERS, Ibed, Tabed
from mmspec.vlm.drafters.eyes import Grafted
from mmspec.vlm.drafters.grafted import Massv
from mmspec.vlm.drafters.lessons import check_share, first_stage
from mmspec.vlm.drafters.sight import check_sees


class GraftedLoss(SpdLoss):
    """The loss of a batch whose prompts keep their pictures. Arguments as for `mmspec.training.spd.SpdLoss`."""

    def __init__(self, net: Grafted, target: Any, features: Features, recipe: MassvRecipe) -> None:
        super().__init__(net.speaker, target, features, recipe)
        self.net = net

    def __call__(self, position: Tensor, rows: list[Answered]) -> Tensor:
        """A scalar. position: [B] of the samples in the training run, which says what learns."""
        assert self.features is not None
        true = self.features(rows)
        alone = self.alone(rows, int(position[0]))
        with frozen(self.net.speaker) if alone else nullcontext():
            texts, starts = self.texts(rows, self.features(rows, (0,)), int(position[0]))
            known = pad_sequence(texts, batch_first=True)[:, :-1]
            hidden = self.model.base_model(inputs_embeds=known, use_cache=False).last_hidden_state
            told = [row[start - 1 : len(text) - 1] for row, start, text in zip(hidden, starts, texts, strict=True)]
        tokens = torch.tensor([token for row in rows for token in row.answer], device=hidden.device)
        judged = torch.cat(told), tokens, self._heard(true, rows)  # one row for every token of an answer
        return in_chunks(partial(self._judged_by, alone), self.target.vocab_size, *judged).mean()

    def _judged_by(self, alone: bool, *judged: Tensor) -> Tensor:
        """The losses of a chunk, which may be computed again on the way back: what rests has to rest there, too."""
        with frozen(self.net.speaker) if alone else nullcontext():
            return self._judged(*judged)

    def alone(self, rows: list[Answered], position: int) -> bool:
        """Whether the MLP learns alone from this batch; without a picture there would be nothing to learn."""
        recipe: Any = self.recipe
        sees = any(token in self.target.placeholders for row in rows for token in row.prompt)
        return sees and position < recipe.projector_share * recipe.steps * recipe.batch

    def texts(self, rows: list[Answered], embeddings: Tensor, position: int) -> tuple[list[Tensor], list[int]]:
        """[T, D] embeddings of every text, and where its answer begins. embeddings: [B, T, H] of the target."""
        found, starts = [], []
        placeholders = self.target.placeholders
        for row, here in zip(rows, embeddings, strict=True):
            way = self.way(row, position)
            places = [place for place, token in enumerate(row.prompt) if token in placeholders]
            seen = here[places]
            if places and way != "text":  # where nothing is seen, the MLP has no gradients, not even zeros
                seen = self.net.projector(seen)
            prompt = self.net.prompt(row.prompt, seen, placeholders, way)
            found.append(torch.cat([prompt, self.net.words(row.answer)]))
            starts.append(len(prompt))
        return found, starts

    def way(self, row: Answered, position: int) -> str:
        """What stands for the pictures of a prompt, as `Eyes.prompt` calls it."""
        return "multimodal"


class EnsembleLoss(GraftedLoss):
    """Every batch is read in the way of one member, in turn: the picture whole, pooled or not at all."""

    def way(self, row: Answered, position: int) -> str:
        """See `GraftedLoss`."""
        ways = MEMBERS[: 2 if self.alone([row], position) else 3]
        return ways[position // self.recipe.batch % len(ways)]


@dataclass(frozen=True, kw_only=True)
class MassvRecipe(SpdRecipe):
    """A small Llama with the target's eyes."""

    projector_share: float = setting("share of the run in which the MLP that passes pictures on learns alone", 0.15)

    method: ClassVar[str] = "massv"
    about: ClassVar[str] = (
        "MASSV: a small Llama whose image slots hold the target's own embeddings of the picture, through an MLP; it "
        "drafts a chain (arXiv 2505.10526)."
    )
    context: ClassVar[bool] = True  # pictures, as the target embeds them
    drafter_class: ClassVar[type[Massv]] = Massv
    loss_class: ClassVar[type[GraftedLoss]] = GraftedLoss

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("projector_share", self.projector_share)

    def settled(self) -> int:
        """See `Recipe`: those in which the Llama does not learn."""
        return first_stage(self.projector_share, self.steps)

    def check(self, target: Any) -> None:
        """See `Recipe`."""
        super().check(target)
        check_sees(target, self.method)

    def build(self, target: Any, rows: Sequence[Answered] = ()) -> Grafted:  # type: ignore[override]
        """A Llama and an MLP with new weights."""
        llama = super().build(target, rows)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return Grafted(llama, target.hidden_size)

    def taps(self, net: Any) -> tuple[int, ...]:
        """See `Recipe`: the embeddings."""
        return (0,)

    def shape(self, net: Grafted) -> dict[str, Any]:
        """See `Recipe`: that of the Llama."""
        return super().shape(net.speaker)

    def begin(self, start: Any, target: Any) -> Grafted:
        """See `Recipe`."""
        if not isinstance(start.net, Grafted):
            raise other_kind(self.method, start)
        return start.net.float().cpu()

    def loss(self, net: Grafted, target: Any, features: Features | None) -> Any:
        """Distillation; without features plain language modelling, of words alone."""
        return (
            SpdLoss(net.speaker, target, None, self)
            if features is None
            else self.loss_class(net, target, features, self)
        )


@dataclass(frozen=True, kw_only=True)
class SpecLlavaRecipe(MassvRecipe):
    """As MASSV; it drafts a tree."""

    method: ClassVar[str] = "spec-llava"
    about: ClassVar[str] = (
        "Spec-LLaVA: a small Llama that sees with the target's eyes and drafts a tree where it is confident (arXiv "
        "2509.11961)."
    )
    drafter_class: ClassVar[type[Massv]] = SpecLlava


@dataclass(frozen=True, kw_only=True)
class IbedRecipe(MassvRecipe):
    """As MASSV, its batches in turn with the whole picture, a pooled one, and none."""

    method: ClassVar[str] = "ibed"
    about: ClassVar[str] = (
        "IbED: a small Llama that reads the prompt with the picture, with a pooled one and without it, in one batch, "
        "and drafts from the mixture (ICLR 2025 workshop)."
    )
    drafter_class: ClassVar[type[Massv]] = Ibed
    loss_class: ClassVar[type[GraftedLoss]] = EnsembleLoss


@dataclass(frozen=True, kw_only=True)
class TabedRecipe(IbedRecipe):
    """As IbED; the weights are chosen at test time."""

    method: ClassVar[str] = "tabed"
    about: ClassVar[str] = (
        "TABED: a small Llama that reads the prompt with the picture, with a pooled one and without it, in one batch, "
        "and drafts from a mixture whose weights it chooses for each request (arXiv 2601.20357)."
    )
    drafter_class: ClassVar[type[Massv]] = Tabed
