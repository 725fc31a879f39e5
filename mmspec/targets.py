"""Targets on stock Hugging Face decoders that read from left to right: the base of all those.

A multimodal family adds two things (see `mmspec.vlm`): how a prompt with pictures becomes model inputs, and which ids
stand for image positions. Pictures enter at prefill only, so verification and commit are the same for all of them.
Beside ids, what goes with the prompt token by token (types, positions) is aligned with them and cut with them.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.base_target import BaseTarget, one_of, uncompiled, unpad
from mmspec.cache import RowCache, spread
from mmspec.causal_state import CausalState
from mmspec.contract import Accepted, Draft, Needs, Rule, State, Verified
from mmspec.decoder import Decoder, Heard
from mmspec.engine.cache import AHEAD, StaticRows
from mmspec.errors import InputError, UnsupportedError
from mmspec.finite import check_finite, finite
from mmspec.focus import Focus, watching
from mmspec.head import head_of
from mmspec.pieces import spans
from mmspec.sampling import Sampler

PER_TOKEN = ("token_type_ids", "mm_token_type_ids")
"""Model inputs [B, T] with one value per token of the prompt."""


class CausalTarget(BaseTarget):
    """A causal HF model as target: `prefill`, `verify` and `commit` on a cache of its own."""

    piece_size = 4096
    """Most prompt tokens per forward of prefill."""
    compiles = True
    decoder_class: ClassVar[type[Decoder]] = Decoder

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        self.decoder = self.decoder_class(model)
        self.chains = bool(self.decoder.running)
        if model.get_output_embeddings() is None:
            raise UnsupportedError(
                f"{type(model).__name__} has no language-model head, so it says nothing: load it with "
                "AutoModelForImageTextToText, a text model with AutoModelForCausalLM"
            )
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self.hidden_size = self.decoder.config.hidden_size
        self.num_layers = self.decoder.num_layers

    @property
    def embed(self) -> nn.Module:
        """Input embeddings: [..] ids -> [.., H]. A module, because some families scale inside it."""
        return self.model.get_input_embeddings()

    @property
    def head(self) -> nn.Module:
        """Output head: [.., H] final hidden states -> [.., V] the model's logits."""
        return head_of(self.model)

    @property
    def compiled(self) -> bool:
        """Whether verification is compiled."""
        return self.compiles and self.decoder.engine is not None

    def compile(self, backend: str = "inductor") -> None:
        """See `BaseTarget`."""
        from mmspec.engine.engine import Engine, fix_frequencies, misfit

        if not self.compiles:
            super().compile(backend)
        why = misfit(self.decoder.config)
        if why:
            raise uncompiled(self, why)
        fix_frequencies(self.model)
        self.decoder.engine = Engine(self.decoder, backend)

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> CausalState:
        """Read the prompt and draw the first token.

        Args: inputs: what HF `generate` takes (`input_ids` [B, T], `attention_mask`, pixels, ...), `max_new_tokens`,
            and `n`: a prompt that stands there n times is read once. (A drafter that takes the inputs reads them n
            times itself, with the features of the pictures of all rows; then the target does, too.)
        """
        inputs = dict(inputs)
        budget, n = inputs.pop("max_new_tokens"), inputs.pop("n", 1)
        n = 1 if needs.inputs else n
        rows = unpad(inputs)
        lengths = [len(row) for row in rows]
        room = [self.decoder.max_length - length for length in lengths]
        if min(room) < 1:
            raise InputError(
                f"the prompt has {max(lengths)} tokens, the model's context is {self.decoder.max_length}: shorten it"
            )
        taps = (0, *needs.taps) if needs.embeddings else needs.taps
        once = len(rows) // n
        focus = Focus(lengths[:once])
        last = max({*range(self.num_layers)} - {*self.decoder.running})  # layer with attention
        with watching(self.model, [last], focus.note) if needs.focus else nullcontext():
            prompt, heard = self.read(one_of(inputs, n), rows[:once], taps)
        prompt.spread(n)
        heard.spread(n)
        cache = self.decoder.settle(prompt, min(budget, AHEAD), needs.taps, needs.nodes)
        check_finite(heard.logits, "the prompt")
        sampler.see(rows, prompt=True)
        last = torch.tensor([row[-1] for row in rows], device=self.decoder.device)
        scores = sampler.warp(Draft.root(last), heard.logits)
        zeros = torch.zeros(len(rows), dtype=torch.long, device=self.decoder.device)
        pending = sampler.draw(scores, zeros[:, None])[:, 0]
        sampler.see(pending[:, None].tolist())
        return CausalState(
            ids=rows,
            done=[False] * len(rows),
            emitted=zeros,
            prompt_length=torch.tensor(lengths, device=self.decoder.device),
            limits=[min(budget, left) for left in room],
            pending=pending,
            room=min(budget, max(room)) - 2,
            prompt_taps=heard.taps,
            prompt_embeddings=heard.taps[0] if needs.embeddings else None,
            prompt_focus=spread(focus.mean(), n) if needs.focus else None,
            prompt_inputs=inputs if needs.inputs else {},
            prompt_features=heard.features if needs.inputs else None,
            chains=self.chains,
            cache=cache,
            taps=needs.taps,
            sampler=sampler,
            early=self.decoder.early and not sampler.remembers,
            plays=type(self).verify is CausalTarget.verify and type(self).commit is CausalTarget.commit,
        )

    def read(self, inputs: dict[str, Any], rows: list[list[int]], taps: tuple[int, ...] = ()) -> tuple[RowCache, Heard]:
        """Forward prompts (or whole texts) whose ids are `rows`, with the pictures in `inputs`. See `Decoder.read`."""
        arranged = self.arrange(inputs, rows)
        slots = torch.isin(
            arranged["input_ids"], torch.tensor(self.placeholders, dtype=torch.long, device=self.decoder.device)
        )
        pieces = [self.piece(arranged, start, end) for start, end in spans(slots, self.piece_size)]
        lengths = [len(row) for row in rows]
        cache, heard = self.decoder.read(pieces, lengths, taps)
        heard.features = arranged.get("features")
        if "position_ids" in arranged:
            following = [int(arranged["position_ids"][..., row, :n].max()) + 1 for row, n in enumerate(lengths)]
            cache.shift = torch.tensor(following, device=self.decoder.device)[:, None] - cache.positions()
        return cache, heard

    def arrange(self, inputs: dict[str, Any], rows: list[list[int]]) -> dict[str, Any]:
        """Model inputs on the model's device and in its dtype: right-padded ids [B, T] (with what goes along token by
        token), and the pictures."""
        width = max(map(len, rows))
        pad = rows[0][-1] if rows[0][-1] not in self.placeholders else 0
        arranged: dict[str, Any] = {"input_ids": torch.tensor([row + [pad] * (width - len(row)) for row in rows])}
        for name, value in inputs.items():
            if name in PER_TOKEN:
                types = unpad(inputs, name)
                arranged[name] = torch.tensor([row + [0] * (width - len(row)) for row in types])
            elif name in self.extra_inputs:
                arranged[name] = value
            elif name not in ("input_ids", "attention_mask"):
                raise InputError(f"{type(self.model).__name__} is served without {name}: leave it out")
        return {name: self._placed(value) for name, value in arranged.items()}

    def piece(self, arranged: dict[str, Any], start: int, end: int) -> dict[str, Any]:
        """The model inputs of columns start to end of a prompt."""
        along = ("input_ids", "position_ids", *PER_TOKEN)
        return {name: arranged[name][..., start:end] for name in along if name in arranged}

    def _placed(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(self.decoder.device, self.decoder.dtype if value.is_floating_point() else None)

    def verify(self, state: State, draft: Draft) -> Verified:
        """One forward over the tree, on the committed cache."""
        assert isinstance(state, CausalState)
        heard = self.decoder.extend(state.cache, draft.tokens, draft.depth, draft.ancestors, state.taps)
        state.finite = finite(heard.logits)
        return Verified(heard.logits, heard.taps)

    def play(self, state: State, draft: Draft, rule: Rule) -> tuple[Verified, Accepted]:
        """`verify`, the rule, and `commit`, in one launch; for states that are `early`. See `State.plays`.

        Returns: taps [B, N, H] of the nodes, and no logits; what was accepted and is committed, with its report.
        Raises: UnsupportedError: the rule cannot be compiled.
        """
        assert isinstance(state, CausalState)
        assert self.decoder.engine is not None
        heard, accepted, state.emitted = self.decoder.engine.play(state, draft, rule)
        state.pending = accepted.next
        return Verified(heard.logits, heard.taps), accepted

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        """Move the accepted nodes into place, forget the rest, take over the new pending tokens."""
        assert isinstance(state, CausalState)
        if accepted.paths:
            paths = [[] if done else path for path, done in zip(accepted.paths, state.done, strict=True)]
            state.cache.commit(draft.size, paths * (len(state.cache.lengths) // len(paths)))  # guided rows are pairs
            state.sampler.see(accepted.emitted)
        else:  # the host has not read it yet
            assert isinstance(state.cache, StaticRows)
            state.cache.commit_early(draft, accepted)
        state.pending = accepted.next
        state.emitted = state.emitted + accepted.count
