"""What targets share whose every step writes a column of K codes, code k belonging to a frame some steps back.

This is a delay pattern (MusicGen, arXiv 2306.05284; Parler, Dia): given all earlier columns the codes of a column are
independent of each other, so the exact rules for columns hold (`mmspec.speech.columns`). Cells that the pattern forces
have one token of probability one. With guidance a second row that sees no text runs along, and laws are mixed by the
family. The decoders count positions by themselves, so drafts are chains and each row of a batch is forwarded alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from mmspec.base_target import PROMPT, BaseTarget, check_served, unpad
from mmspec.contract import Accepted, Draft, Needs, State, Verified
from mmspec.errors import InputError
from mmspec.finite import check_finite
from mmspec.options import guidance_scale
from mmspec.sampling import Sampler, Sampling
from mmspec.speech.columns import ColumnSampler, ColumnStop
from mmspec.speech.placing import place_codec
from mmspec.speech.speaking import SHARED_IDS
from mmspec.templates import asking, check_plain
from mmspec.tree import chain


@dataclass
class Track:
    """A row at work. text: [R, S, H] as the decoder sees it, R = 2 if guided. mask: [R, S]. total: columns N.

    scale: of guidance; 1 is off. ended: number of the column, among those that were read, in which the first codebook
    ended by itself; None before that, and where the pattern has no end. top_k: of the request's sampling.
    """

    text: Tensor
    mask: Tensor
    total: int
    scale: float
    cache: EncoderDecoderCache = field(default_factory=lambda: EncoderDecoderCache(DynamicCache(), DynamicCache()))
    ended: int | None = None
    top_k: int = 0

    @property
    def read(self) -> int:
        """Columns that the decoder has read, which the host knows without asking the device."""
        return self.cache.self_attention_cache.get_seq_length()


@dataclass
class ColumnState(State):
    """A request: a track per row. pending: [B, K]."""

    tracks: list[Track] = field(kw_only=True)

    def undrafted(self) -> Draft:
        """The pending column alone."""
        assert self.pending is not None
        return chain(self.pending[:, None])


class Delayed(BaseTarget):
    """Base of the families.

    codebooks: K. padding: the token of all codes of column 0, which is read and not emitted. delays: of every codebook,
    in columns. law_size: tokens in the law of a code. longest, least: columns that a request may have.
    """

    modality = "speech"
    makes = "sound"
    usual_drafter = "none"
    emits = "columns"
    settings = ("guidance",)
    refuses = SHARED_IDS
    applies = ("guidance_scale",)
    rules = {"exact": "columns", "ratio": "columns-ratio"}  # noqa: RUF012
    advised_rules = "'exact', 'ratio' (each code by itself) or 'columns-joint'"
    advised_drafters = "'none', or the folder or hub id of a smaller model of the kind"
    codebooks: int
    padding: int
    delays: list[int]
    law_size: int
    longest: int
    least: int

    def sampler(self, sampling: Sampling, batch: int) -> Sampler:
        """See `ColumnSampler`."""
        return ColumnSampler(sampling, batch, self.model.device)

    def stopping(self, budget: int, strings: Sequence[str], text_of: Callable[[list[int]], str]) -> ColumnStop:
        """The budget ends a row."""
        return ColumnStop([], budget)

    def encode(self, processor: Any, texts: list[str], images: list[list[Image.Image]]) -> dict[str, Any]:
        """`input_ids` and `attention_mask` [B, T] of texts."""
        tokenizer = getattr(processor, "tokenizer", processor)
        check_plain(texts, tokenizer, tokenizer.all_special_tokens)
        with asking(processor):
            found = tokenizer(texts, padding=True, return_tensors="pt")
        return {name: found[name] for name in PROMPT}

    def track(self, row: list[int], total: int, scale: float) -> Track:
        """A row whose text [T] has been read."""
        raise NotImplementedError

    def hear(self, track: Track, columns: Tensor) -> Tensor:
        """Read columns [N, K] behind those that the track has read: logits [N, K, law_size] of those that follow, what
        the pattern forces in place."""
        raise NotImplementedError

    def logits(self, track: Track, ids: Tensor) -> Tensor:
        """Read columns, laid out as the decoder takes them: logits [R, N, K, V] of all rows, as it gives them."""
        out = self.model(
            encoder_outputs=(track.text,),
            attention_mask=track.mask,
            decoder_input_ids=ids,
            past_key_values=track.cache,
            use_cache=True,
        )
        return out.logits.unflatten(0, (len(track.text), self.codebooks)).transpose(1, 2)

    def frames(self, columns: list[Any], count: int) -> Tensor:
        """[K, F] the codes of the first `count` frames: code k of a frame stands `delays[k]` columns further on."""
        return torch.tensor(
            [[columns[frame + delay][k] for frame in range(count)] for k, delay in enumerate(self.delays)]
        )

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> Any:
        """Read the texts and draw the first columns.

        Args: inputs: `input_ids`, `attention_mask`, `guidance` (None for the checkpoint's), `max_new_tokens` columns.
        """
        check_served(inputs, ("guidance",), f"{self.noun} is served without {{}}: leave it out")
        total = min(inputs["max_new_tokens"], self.longest)
        if total < self.least:
            raise InputError(
                f"max_new_tokens={inputs['max_new_tokens']} columns are too few for a delay pattern of "
                f"{self.codebooks} codebooks: {self.least} or more are needed"
            )
        rows = unpad(inputs)
        scale = guidance_scale(inputs.get("guidance"), self.model.generation_config)
        tracks = [self.track(row, total, scale) for row in rows]
        for track in tracks:
            track.top_k = sampler.sampling.top_k
        zeros = torch.zeros(len(rows), dtype=torch.long, device=self.model.device)
        first = zeros[:, None, None].expand(-1, 1, self.codebooks) + self.padding
        logits = torch.stack([self.hear(track, first[row]) for row, track in enumerate(tracks)])
        check_finite(logits, "the prompt")
        pending = sampler.draw(sampler.warp(chain(first), logits), zeros[:, None])[:, 0]
        return ColumnState(
            ids=rows,
            done=[False] * len(rows),
            emitted=zeros,
            prompt_length=torch.tensor([len(row) for row in rows], device=self.model.device),
            limits=[total] * len(rows),
            pending=pending,
            room=total - 2,
            tracks=tracks,
        )

    def verify(self, state: State, draft: Draft) -> Verified:
        """For every row one forward over the chain."""
        assert isinstance(state, ColumnState)
        found = []
        for row, track in enumerate(state.tracks):
            if state.done[row]:
                law = (draft.size, self.codebooks, self.law_size)
                found.append(torch.zeros(law, dtype=torch.float32, device=draft.tokens.device))
                continue
            found.append(self.hear(track, draft.tokens[row]))
        logits = torch.stack(found)
        check_finite(logits, f"columns up to {max(track.read for track in state.tracks)}")
        return Verified(logits)

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        """Forget the columns that were not kept."""
        assert isinstance(state, ColumnState)
        for row, track in enumerate(state.tracks):
            if state.done[row]:
                continue
            forget(track, draft.size - len(accepted.paths[row]))
        state.pending, state.emitted = accepted.next, state.emitted + accepted.count
        left = [state.limits[row] - state.tracks[row].read for row, done in enumerate(state.done) if not done]
        state.room = max(left, default=0) - 1


def forget(track: Track, count: int) -> None:
    """Drop the last `count` columns that a decoder has read."""
    if count > 0:
        track.cache.self_attention_cache.crop(-count)
        if track.ended is not None and track.ended >= track.read:
            track.ended = None


class CodecBeside(Delayed):
    """Base of families whose codec comes with the processor."""

    def adopt(self, processor: Any) -> None:
        """See `BaseTarget`."""
        super().adopt(processor)
        place_codec(self.codec, self.model)

    @property
    def codec(self) -> Any:
        """What makes sound of codes; None where the processor has none."""
        return getattr(self.processor, "audio_tokenizer", None)

    @property
    def codes_alone(self) -> bool:
        """Whether codes are all that comes of an answer, since there is no codec."""
        return self.codec is None
