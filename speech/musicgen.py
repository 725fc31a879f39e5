"""MusicGen as target: every step writes a column of K codes, code k belonging to a frame k steps back (2306.05284).

Of a stereo model the codebooks of the two channels take turns, and those of a pair lie equally far back.

A prompt is a text; a T5 reads it once, and the decoder sees it in every layer. With guidance (above 1, 3 is usual) a
second row that sees no text runs along, and laws are mixed here. The first and last columns, as many as the longest
delay D, are filled up with padding by the pattern, so the length is told from the start: a request of N columns makes
N - D frames and ends by length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.errors import InputError
from mmspec.sampling import float32_at_least
from mmspec.speech.audio import Audio
from mmspec.speech.delayed import Delayed, Track
from mmspec.speech.speaking import ANSWER_S

TEXT_TOKENS = 512
"""What T5 was trained to read, where its configuration does not say: its positions are relative and have no end."""


class Musicgen(Delayed):
    """A MusicGen checkpoint, see `BaseTarget`."""

    hf = ("MusicgenForConditionalGeneration", "MusicgenProcessor")
    model_type = "musicgen"
    noun = "MusicGen"

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model.eval())  # no tokenizer: what is emitted are columns, no words
        self.codebooks = model.config.decoder.num_codebooks
        self.vocab_size = model.config.decoder.vocab_size
        self.law_size = self.vocab_size + 1
        self.hidden_size = model.config.decoder.hidden_size
        self.num_layers = model.config.decoder.num_hidden_layers
        self.padding = model.config.decoder.pad_token_id
        channels = model.config.decoder.audio_channels
        self.delays = [book // channels for book in range(self.codebooks)]
        self.longest, self.least = model.config.decoder.max_position_embeddings - 1, 2 * max(self.delays) + 1

    @property
    def prompt_vocab_size(self) -> int:
        """Words of the text encoder."""
        return self.model.config.text_encoder.vocab_size

    @property
    def budget(self) -> int:
        """Columns of ANSWER_S seconds."""
        return int(ANSWER_S * self.model.audio_encoder.config.frame_rate) + max(self.delays)

    @torch.no_grad()
    def track(self, row: list[int], total: int, scale: float) -> Track:
        """See `Delayed`. Raises: InputError: a text that is longer than those that the encoder was trained on."""
        most = getattr(self.model.config.text_encoder, "n_positions", TEXT_TOKENS)
        if len(row) > most:
            raise InputError(f"the text has {len(row)} tokens, the model reads {most}: shorten it")
        ids = torch.tensor([row], device=self.model.device)
        text = self.model.text_encoder(input_ids=ids).last_hidden_state
        mask = torch.ones_like(ids)
        if scale != 1:
            text, mask = torch.cat([text, torch.zeros_like(text)]), torch.cat([mask, torch.zeros_like(mask)])
        return Track(text, mask, total, scale)

    def hear(self, track: Track, columns: Tensor) -> Tensor:
        """See `Delayed`; V + 1 tokens.

        The last token stands for padding: it has all the mass where the pattern forces it, and none elsewhere.
        """
        before = track.read
        logits = self.logits(track, columns.T.repeat(len(track.text), 1))  # of ids [R K, N]
        return self.patterned(self.mixed(logits, track.scale), before, track.total)

    def mixed(self, logits: Tensor, scale: float) -> Tensor:
        """[R, N, K, V] of all rows -> [N, K, V], guided."""
        if len(logits) == 1:
            return logits[0]
        told, free = float32_at_least(logits)
        return free + scale * (told - free)

    def patterned(self, logits: Tensor, before: int, total: int) -> Tensor:
        """Logits [N, K, V] of columns before + 1, before + 2, ... -> [N, K, V + 1], forced cells in place."""
        number = before + 1 + torch.arange(len(logits), device=logits.device)[:, None]
        lag = number - torch.tensor(self.delays, device=logits.device)  # the frame of each cell, from 1
        forced = ((lag < 1) | (lag > total - max(self.delays)))[..., None]
        never = logits.new_full((*logits.shape[:-1], 1), -torch.inf)
        return torch.cat([logits.masked_fill(forced, -torch.inf), torch.where(forced, 0.0, never)], -1)

    @torch.no_grad()
    def product_of(self, inputs: dict[str, Any], row: int, ids: list[Any]) -> dict[str, Any]:
        """The sound of all whole frames; the two channels of stereo are averaged."""
        frames = len(ids) - max(self.delays)
        if frames < 1:
            return {"audio": None}
        codes = self.frames(ids, frames).to(self.model.device)
        channels = self.model.config.decoder.audio_channels
        heard = [
            self.model.audio_encoder.decode(codes[None, None, channel::channels], [None]).audio_values[0, 0]
            for channel in range(channels)
        ]
        samples = torch.stack(heard).mean(0).float().clamp(-1, 1).cpu().numpy()
        return {"audio": Audio(samples, self.model.audio_encoder.config.sampling_rate)}
