"""MusicGen as target: every step writes a column of K codes, code k belonging to a frame k steps back (2306.05284).

A prompt is a text; a T5 reads it once, and the decoder sees it in every layer. With guidance (above 1, 3 is usual) a
second row that sees no text runs along, and laws are mixed here. The first and last K - 1 columns are filled up with
padding by the pattern, so the length is told from the start: a request of N columns makes N - K + 1 frames and ends by
length. The decoder counts positions by itself, so drafts are chains and each row of a batch is forwarded by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    MusicgenForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
)

from mmspec.contract import Accepted, Draft, Needs, Rule, State, Verified
from mmspec.errors import InputError, MismatchError
from mmspec.sampling import Sampler, Sampling
from mmspec.speech.audio import Audio
from mmspec.speech.columns import ColumnRule, ColumnSampler, ColumnStop, column_chain
from mmspec.speech.speaking import LONGEST_S
from mmspec.targets import CausalTarget, check_finite, unpad


@dataclass
class Track:
    """A row at work. text: [R, S, H] as the decoder sees it, R = 2 if guided. mask: [R, S]. total: columns N.

    scale: of guidance; 1 is off.
    """

    text: Tensor
    mask: Tensor
    total: int
    scale: float
    cache: EncoderDecoderCache = field(default_factory=lambda: EncoderDecoderCache(DynamicCache(), DynamicCache()))


@dataclass
class ColumnState(State):
    """A request: a track per row. pending: [B, K]."""

    tracks: list[Track] = field(kw_only=True)

    def undrafted(self) -> Draft:
        """The pending column alone."""
        assert self.pending is not None
        return column_chain(self.pending[:, None])


class Musicgen(CausalTarget):
    """A MusicGen checkpoint, see `mmspec.loading.Family`. `CausalTarget` lends the face, and no decoding."""

    modality = "speech"
    usual_drafter = "none"
    settings = ("guidance",)
    applies = ("guidance_scale",)
    rules = {"exact": "columns", "ratio": "columns-ratio"}  # noqa: RUF012

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        self.model, self.tokenizer = model.eval(), None  # what is emitted are columns, no words
        self.codebooks: int = model.config.decoder.num_codebooks
        self.vocab_size: int = model.config.decoder.vocab_size
        self.hidden_size: int = model.config.decoder.hidden_size
        self.num_layers: int = model.config.decoder.num_hidden_layers
        self.padding: int = model.config.decoder.pad_token_id

    @staticmethod
    def serves(config: PreTrainedConfig) -> bool:
        """Whether the configuration is one of MusicGen."""
        return config.model_type == "musicgen"

    @staticmethod
    def model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The HF class of the model."""
        return MusicgenForConditionalGeneration

    @staticmethod
    def processor_class(config: PreTrainedConfig) -> Any:
        """The HF class of the processor."""
        from transformers import MusicgenProcessor

        return MusicgenProcessor

    @property
    def budget(self) -> int:
        """Columns of LONGEST_S seconds."""
        return int(LONGEST_S * self.model.audio_encoder.config.frame_rate) + self.codebooks - 1

    def sampler(self, sampling: Sampling, batch: int) -> Sampler:
        """See `ColumnSampler`."""
        return ColumnSampler(sampling, batch, self.model.device)

    def check_rule(self, rule: Rule) -> None:
        """Only rules for columns can judge columns."""
        if not isinstance(rule, ColumnRule):
            raise MismatchError(
                f"the rule {type(rule).__name__} judges single tokens, and MusicGen writes columns of "
                f"{self.codebooks} codes: use 'exact', 'ratio' (each code by itself) or 'columns-joint'"
            )

    def stopping(self, budget: int, strings: Sequence[str], text_of: Callable[[list[int]], str]) -> ColumnStop:
        """The budget ends a row."""
        if strings:
            raise InputError("music has no text: leave stop out")
        return ColumnStop([], budget)

    def encode(
        self, processor: Any, texts: list[str], images: list[list[Image.Image]], voice: Any = None
    ) -> dict[str, Any]:
        """`input_ids` and `attention_mask` [B, T] of descriptions."""
        if any(images) or voice is not None:
            raise InputError("MusicGen is served with texts alone: leave image and voice out")
        found = getattr(processor, "tokenizer", processor)(texts, padding=True, return_tensors="pt")
        return {name: found[name] for name in ("input_ids", "attention_mask")}

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> Any:
        """Read the descriptions and draw the first columns.

        Args: inputs: `input_ids`, `attention_mask`, `guidance` (None for the checkpoint's), `max_new_tokens` columns.
        """
        strange = inputs.keys() - {"input_ids", "attention_mask", "guidance", "max_new_tokens"}
        if strange:
            raise InputError(f"MusicGen is served without {min(strange)}: leave it out")
        total = min(inputs["max_new_tokens"], self.model.config.decoder.max_position_embeddings - 1)
        if total < 2 * self.codebooks - 1:
            raise InputError(
                f"max_new_tokens={inputs['max_new_tokens']} columns are too few for a delay pattern of "
                f"{self.codebooks} codebooks: {2 * self.codebooks - 1} or more are needed"
            )
        rows, scale = unpad(inputs), self.guidance(inputs.get("guidance"))
        tracks = [self.track(row, total, scale) for row in rows]
        zeros = torch.zeros(len(rows), dtype=torch.long, device=self.model.device)
        first = zeros[:, None, None].expand(-1, 1, self.codebooks) + self.padding
        logits = torch.stack([self.hear(track, first[row], 0) for row, track in enumerate(tracks)])
        check_finite(logits, "the prompt")
        pending = sampler.draw(sampler.warp(column_chain(first), logits), zeros[:, None])[:, 0]
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

    def guidance(self, told: Any) -> float:
        """The scale of guidance. Raises: InputError: not a positive number."""
        scale = told if told is not None else getattr(self.model.generation_config, "guidance_scale", None) or 1.0
        if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 < scale < float("inf"):
            raise InputError(f"guidance={scale!r} is not valid: a number above 0 is needed, 1 is off")
        return float(scale)

    @torch.no_grad()
    def track(self, row: list[int], total: int, scale: float) -> Track:
        """A row whose text [T] has been read."""
        ids = torch.tensor([row], device=self.model.device)
        text = self.model.text_encoder(input_ids=ids).last_hidden_state
        mask = torch.ones_like(ids)
        if scale != 1:
            text, mask = torch.cat([text, torch.zeros_like(text)]), torch.cat([mask, torch.zeros_like(mask)])
        return Track(text, mask, total, scale)

    def hear(self, track: Track, columns: Tensor, before: int) -> Tensor:
        """Read columns [N, K], the first of which is number `before`: logits [N, K, V + 1] of those that follow.

        The last token stands for padding: it has all the mass where the pattern forces it, and none elsewhere.
        """
        rows = len(track.text)
        ids = columns.T.repeat(rows, 1)  # [R K, N]
        out = self.model(
            encoder_outputs=(track.text,),
            attention_mask=track.mask,
            decoder_input_ids=ids,
            past_key_values=track.cache,
            use_cache=True,
        )
        logits = out.logits.unflatten(0, (rows, self.codebooks)).transpose(1, 2)  # [R, N, K, V]
        mixed = logits[0] if rows == 1 else logits[1] + track.scale * (logits[0] - logits[1])
        return self.patterned(mixed, before, track.total)

    def patterned(self, logits: Tensor, before: int, total: int) -> Tensor:
        """Logits [N, K, V] of columns before + 1, before + 2, ... -> [N, K, V + 1], forced cells in place."""
        number = before + 1 + torch.arange(len(logits), device=logits.device)[:, None]
        lag = number - torch.arange(self.codebooks, device=logits.device)  # the frame of each cell, from 1
        forced = ((lag < 1) | (lag > total - self.codebooks + 1))[..., None]
        never = logits.new_full((*logits.shape[:-1], 1), -torch.inf)
        return torch.cat([logits.masked_fill(forced, -torch.inf), torch.where(forced, 0.0, never)], -1)

    def verify(self, state: State, draft: Draft) -> Verified:
        """For every row one forward over the chain."""
        assert isinstance(state, ColumnState)
        found = []
        for row, track in enumerate(state.tracks):
            if state.done[row]:
                found.append(torch.zeros(draft.size, self.codebooks, self.vocab_size + 1, device=draft.tokens.device))
                continue
            found.append(self.hear(track, draft.tokens[row], int(state.emitted[row])))
        logits = torch.stack(found)
        check_finite(logits, f"column {int(state.emitted.max())}")
        return Verified(logits)

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        """Forget the columns that were not kept."""
        assert isinstance(state, ColumnState)
        for row, track in enumerate(state.tracks):
            if state.done[row]:
                continue
            forget(track.cache, draft.size - len(accepted.paths[row]))
        state.pending, state.emitted = accepted.next, state.emitted + accepted.count
        left = [state.limits[row] - int(state.emitted[row]) for row, done in enumerate(state.done) if not done]
        state.room = max(left, default=0) - 1

    @torch.no_grad()
    def product_of(self, inputs: dict[str, Any], row: int, ids: list[Any]) -> dict[str, Any]:
        """The sound of all whole frames; the two channels of stereo are averaged."""
        frames = len(ids) - self.codebooks + 1
        if frames < 1:
            return {"audio": None}
        codes = torch.tensor([[ids[frame + k][k] for frame in range(frames)] for k in range(self.codebooks)])
        channels = self.model.config.decoder.audio_channels
        codes = codes.to(self.model.device)
        heard = [
            self.model.audio_encoder.decode(codes[None, None, channel::channels], [None]).audio_values[0, 0]
            for channel in range(channels)
        ]
        samples = torch.stack(heard).mean(0).float().clamp(-1, 1).cpu().numpy()
        return {"audio": Audio(samples, self.model.audio_encoder.config.sampling_rate)}


def forget(cache: EncoderDecoderCache, count: int) -> None:
    """Drop the last `count` columns that a decoder has read."""
    if count > 0:
        cache.self_attention_cache.crop(-count)
