"""SpecASR: a small recogniser drafts for a large one, and a rejected draft is used again (arXiv 2507.18181).

Both hear the same speech, so they soon agree again after a mismatch. The small model drafts until a token's probability
falls under a threshold. When a draft is rejected at some place, the target's correction is looked for near it in
the rest of the draft; where it is found, what follows it is proposed again, without asking the small model. (How the
rest is aligned, within `reach` places, is our reading; the paper's sparse second pass is not here.) Where both have the
same encoder, as Distil-Whisper and its teacher do (arXiv 2311.00430), the target alone hears the speech.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, WhisperForConditionalGeneration

from mmspec.causal_state import CausalState
from mmspec.checkpoints import read_model
from mmspec.contract import Accepted, Draft, Kind, Needs, Shape, State, Verified
from mmspec.drafters.independent import Independent, Writing, same_weights
from mmspec.errors import InputError, MismatchError
from mmspec.sampling import Sampler
from mmspec.speech.whisper import Whisper
from mmspec.tree import chain


class SpecASR(Independent):
    """Drafts with a small Whisper.

    Args: model: an HF model. length: most tokens drafted per round. threshold: a token with less probability is the
        last of its draft, in [0, 1). reach: how far from the rejected place a correction is looked for; 0 is not at
        all.
    """

    kinds: frozenset[Kind] = frozenset({"point"})
    needs = Needs(inputs=True)
    shapes: tuple[Shape, ...] = ()  # it knows when to stop
    method = "specasr"
    source = "SpecASR, arXiv 2507.18181"
    advice = "pass the folder or the hub id of a smaller Whisper"

    def __init__(self, model: PreTrainedModel, length: int = 24, threshold: float = 0.4, reach: int = 3) -> None:
        if not isinstance(length, int) or length < 1 or not 0 <= threshold < 1:
            raise InputError(f"SpecASR needs length >= 1 and threshold in [0, 1), got {length!r} and {threshold!r}")
        self.small = Whisper(model)
        self.decoder, self.vocab_size = self.small.decoder, self.small.vocab_size
        self.net = model
        self.length, self.threshold, self.reach = length, threshold, reach

    def bind(self, target: Any) -> None:
        """The vocabularies and the features must be the same."""
        if not isinstance(target, Whisper):
            raise MismatchError(f"a small Whisper drafts for a Whisper, not for a {type(target.model).__name__}")
        super().bind(target)
        mine, theirs = self.small.model.config.num_mel_bins, target.model.config.num_mel_bins
        if mine != theirs:
            raise MismatchError(f"the drafter hears {mine} mel bands, the target {theirs}: they need the same features")
        own, other = (dict(model.get_encoder().named_parameters()) for model in (self.small.model, target.model))
        self.hears_alike = same_weights(own, other)

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> SpecASR:
        """The model in a folder, on the device and in the dtype of `target`."""
        model = read_model(WhisperForConditionalGeneration, folder, target.model.dtype)
        return cls(model.to(target.model.device), **description.get("options", {}))

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> Aligning:
        """Hear the speech and read the prompts; the pending tokens wait for the first proposal."""
        inputs = dict(state.prompt_inputs)
        if self.hears_alike:
            assert isinstance(state, CausalState)
            inputs["heard"], _ = state.cache.beside
        cache, _ = self.small.read(inputs, [ids[:-1] for ids in state.ids])
        return Aligning(self, sampler, kind, cache, [ids[-1:] for ids in state.ids], rest=[[] for _ in state.ids])


@dataclass
class Aligning(Writing):
    """SpecASR on one request. rest: per row, tokens that may follow the pending one, from a draft that was rejected."""

    rest: list[list[int]] = field(default_factory=list)

    def propose(self, state: State) -> Draft:
        """The rest of an earlier draft in every row that has one; where no row has, a new draft."""
        assert state.pending is not None
        drafter = cast("SpecASR", self.drafter)
        levels = state.levels(drafter.length)
        old = [row[:levels] for row in self.rest]
        if any(old):
            return ragged(state.pending, old)
        tokens, sure = [state.pending], torch.ones_like(state.pending, dtype=torch.bool)
        counts = torch.zeros_like(state.pending)
        for step in range(levels):
            logits = self._catch_up() if step == 0 else self._step(tokens[-1])
            best = self._scores(drafter.small.allowed(logits), torch.stack(tokens, 1)).softmax(-1).max(-1)
            tokens.append(best.indices)
            counts = counts + sure
            sure = sure & (best.values >= drafter.threshold)
            if not bool(sure.any()):
                break
        self.drafted = chain(torch.stack(tokens, 1))
        self.drafted.valid = self.drafted.depth <= counts[:, None]
        return self.drafted

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """See `Writing`; besides, look whether what was rejected can be used again."""
        super().observe(state, draft, verified, accepted)
        reach = cast("SpecASR", self.drafter).reach
        for row, path in enumerate(accepted.paths):
            count = draft.size if draft.valid is None else int(draft.valid[row].sum())
            drafted = draft.tokens[row, 1:count].tolist()
            self.rest[row] = [] if state.done[row] else aligned(drafted, len(path) - 1, state.ids[row][-1], reach)


def aligned(drafted: list[int], place: int, correction: int, reach: int) -> list[int]:
    """What follows the correction in a draft that was rejected at `place`: the nearest one within `reach` places.

    Nothing, where nothing was rejected: what is emitted after a whole draft corrects none of it.
    """
    if reach == 0 or place == len(drafted):
        return []
    near = sorted(range(max(0, place - reach), min(len(drafted), place + reach + 1)), key=lambda i: abs(i - place))
    for found in near:
        if drafted[found] == correction:
            return drafted[found + 1 :]
    return []


def ragged(pending: Tensor, rows: list[list[int]]) -> Draft:
    """Chains of different lengths under the pending tokens [B]."""
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=pending.device)
    draft = chain(torch.cat([pending[:, None], tokens], 1))
    counts = torch.tensor([len(row) for row in rows], device=pending.device)
    draft.valid = draft.depth <= counts[:, None]
    return draft
