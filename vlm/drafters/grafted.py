"""MASSV: a small language model that sees with the target's eyes drafts for it (arXiv 2505.10526).

Every image slot of its prompt holds the target's own embedding of that piece of the picture, brought to its size by a
small trained MLP. So nothing is encoded twice, and neither vision tower nor connector is stored with the drafter. It
drafts as a language-only drafter does (`mmspec.drafters.independent`): a chain, one token per step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmspec.cache import RowCache
from mmspec.contract import Kind, State
from mmspec.drafters.independent import Independent, Writing
from mmspec.sampling import Sampler
from mmspec.vlm.drafters.eyes import Eyes, load_eyes
from mmspec.vlm.drafters.sight import check_sees


class Massv(Independent):
    """Drafts with a small model that sees.

    Args: net: the model. length: tokens drafted per round (gamma).
    """

    method = "massv"
    source = "MASSV, arXiv 2505.10526"
    fits = ("vocab_size", "tokenizer", "hidden_size")
    kin = ("ibed", "tabed", "spec-llava")
    """Methods that draft with weights of the same form, best first."""

    def __init__(self, net: Eyes, length: int = 4) -> None:
        super().__init__(net.speaker, length)
        self.net, self.needs = net.eval(), net.needs

    def bind(self, target: Any) -> None:
        """Vocabulary and pictures must be those it was made for."""
        super().bind(target)
        check_sees(target, self.method)
        self.net.fit(target, self.method)

    def save(self, folder: Path) -> dict[str, Any]:
        """The model as a stock HF folder, what it sees with beside it."""
        return {**super().save(folder), **self.net.save(folder)}

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> Self:
        """The counterpart of `save`, on the device and in the dtype of `target`."""
        options = description.get("options", {}) if description["method"] == cls.method else {}
        return cls(load_eyes(folder, description["eyes"], target), **options)

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Writing:
        """Read the prompts, pictures included; the pending tokens wait for the first proposal."""
        seen = self.net.pictures(state, self.placeholders)
        texts = [self.net.prompt(ids[:-1], here, self.placeholders) for ids, here in zip(state.ids, seen, strict=True)]
        return Writing(self, sampler, kind, self.absorb(texts), [ids[-1:] for ids in state.ids])

    def absorb(self, texts: list[Tensor]) -> RowCache:
        """A cache of prompts [T, D] each, read in one forward."""
        lengths = [len(text) for text in texts]
        self.check_room(max(lengths))
        cache, _ = self.decoder.read([{"inputs_embeds": pad_sequence(texts, batch_first=True)}], lengths)
        return cache
