"""A smaller MusicGen drafts for a larger one: columns, one by one, from the same text and without guidance.

A draft is a proposal, so its second row can be spared; the codec, and with it the codes, must be the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.checkpoints import read_model
from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
from mmspec.control import CHAINS
from mmspec.errors import InputError, MismatchError
from mmspec.noise import DRAFT, TARGET
from mmspec.speech.columns import ColumnSampler
from mmspec.speech.delayed import ColumnState, Delayed, Track, forget
from mmspec.speech.musicgen import Musicgen
from mmspec.tree import chain, within_room


class SmallMusicgen(Drafter):
    """Drafts a chain of columns. Args: model: the smaller MusicGen. length: columns per round."""

    kinds: frozenset[Kind] = frozenset({"point", "sampled", "coupled"})
    shapes = CHAINS
    drafts = "columns"
    method = "small-musicgen"
    source = "a smaller MusicGen (arXiv 2306.05284) with exact rules for columns"
    advice = "pass the folder or the hub id of a smaller MusicGen, such as facebook/musicgen-small"
    fits: tuple[str, ...] = ()
    family: ClassVar[type[Delayed]] = Musicgen
    equal: ClassVar[tuple[str, ...]] = ("codebooks", "vocab_size", "padding", "delays")
    """What it must have in common with its target."""

    def __init__(self, model: PreTrainedModel, length: int = 3) -> None:
        if not isinstance(length, int) or length < 1:
            raise InputError(f"a drafter of columns needs length >= 1, got {length!r}")
        self.length, self.inner, self.net = length, self.family(model), model

    @classmethod
    def load(cls, folder: Path, description: dict[str, Any], target: Any) -> Self:
        """From a folder of an HF model, on the device and in the dtype of `target`."""
        model = read_model(type(target.model), folder, target.model.dtype)
        return cls(model.to(target.model.device), **description.get("options", {}))

    def bind(self, target: Any) -> None:
        """Check that both write the same codes."""
        noun = self.family.noun
        if not isinstance(target, self.family):
            raise MismatchError(f"a smaller {noun} drafts for a {noun}, not for a {type(target.model).__name__}")
        for name in self.equal:
            mine, theirs = getattr(self.inner, name), getattr(target, name)
            if mine != theirs:
                raise MismatchError(f"the drafter has {name} {mine}, the target {theirs}: they need the same codec")

    def begin(self, state: State, sampler: Any, kind: Kind) -> Following:
        """Read the texts."""
        assert isinstance(state, ColumnState)
        texts = [row[: int(length)] for row, length in zip(state.ids, state.prompt_length, strict=True)]
        tracks = [self.inner.track(row, limit, 1.0) for row, limit in zip(texts, state.limits, strict=True)]
        start = torch.full((1, self.inner.codebooks), self.inner.padding, device=state.emitted.device)
        return Following(self, sampler, kind, tracks, [start] * len(tracks))


@dataclass
class Following(Drafting):
    """The drafter on one request. unread: [U, K] columns of each row, emitted and not read yet. fed: nodes of the draft
    that were read."""

    drafter: SmallMusicgen
    sampler: ColumnSampler
    kind: Kind
    tracks: list[Track]
    unread: list[Tensor]
    fed: int = field(default=0)

    def propose(self, state: State) -> Draft:
        """A chain of columns under the pending one."""
        assert state.pending is not None
        levels = state.levels(self.drafter.length)
        if levels < 1:
            return state.undrafted()
        tokens, laws = [state.pending], []
        for level in range(levels):
            scores = self.sampler.shape(self._logits(state, tokens[-1]))  # [B, K, V]
            tokens.append((scores + self._noise(state.emitted, level, scores)).argmax(-1))
            laws.append(scores.softmax(-1))
        self.fed = levels
        q = torch.stack([*laws, laws[-1]], 1) if self.kind == "sampled" else None  # the leaf's row is never read
        draft = chain(torch.stack(tokens, 1), self.kind, q)
        draft.valid = within_room(draft, state)
        return draft

    def _logits(self, state: State, newest: Tensor) -> Tensor:
        """[B, K, V] after the newest column [B, K]; rows that are done get anything."""
        inner, found = self.drafter.inner, []
        for row, track in enumerate(self.tracks):
            if state.done[row]:
                found.append(torch.zeros(inner.codebooks, inner.law_size, dtype=torch.float32, device=newest.device))
                continue
            columns = torch.cat([self.unread[row], newest[row, None]])
            found.append(inner.hear(track, columns)[-1])
            self.unread[row] = newest[:0]
        return torch.stack(found)

    def _noise(self, emitted: Tensor, level: int, scores: Tensor) -> Tensor | float:
        if self.kind == "point" or self.sampler.greedy:
            return 0.0
        codebooks, size = scores.shape[-2:]
        if self.kind == "coupled":
            return self.sampler.column_noise(TARGET, emitted[:, None] + level, codebooks, size)[:, 0]
        return self.sampler.column_noise(DRAFT, emitted[:, None] * 2**8 + level, codebooks, size)[:, 0]

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        """Forget what was not kept; note what was kept and is not read yet."""
        for row, track in enumerate(self.tracks):
            kept = len(accepted.paths[row])
            if not state.done[row]:
                forget(track, self.fed - kept)
                self.unread[row] = torch.cat([self.unread[row], draft.tokens[row, self.fed : kept]])
        self.fed = 0
