"""Dia as target: columns of K codes with delays of its own, which end by themselves (nari-labs/Dia, stock classes).

A prompt is a text, usually with [S1] and [S2] before what each speaker says; an encoder reads its bytes once. Column 0
is the start; in column t codebook k has the code of frame t - delay_k, the start's token before that. Only codebook 0
can end, and does exactly where its end is the likeliest token: that is no draw, so a column's forced cells follow from
the columns before it and its own logits. The others end delay_k columns later, padding follows, and the row is over
when the slowest one has ended. A request of N columns ends codebook 0 at column N - max delay at the latest.

With guidance s codes are drawn from the law that sees the text, among the `top_k` tokens that are the best by
l + s (l - l'), l' being the logits of the row whose text is blank. As in transformers, `top_k` is the request's, else
the checkpoint's, and 50 where neither has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.contract import State
from mmspec.errors import InputError
from mmspec.sampling import float32_at_least
from mmspec.speech.audio import Audio
from mmspec.speech.columns import ColumnStop
from mmspec.speech.delayed import CodecBeside, Track
from mmspec.speech.small_musicgen import SmallMusicgen
from mmspec.speech.speaking import ANSWER_S

FRAMES = 44_100 / 512
"""Frames per second of the codec."""
USUAL_TOP_K = 50
"""What guidance keeps where nothing says how much."""


class Dia(CodecBeside):
    """A Dia checkpoint, see `BaseTarget`."""

    hf = ("DiaForConditionalGeneration", "DiaProcessor")
    model_type = "dia"
    noun = "Dia"

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        config = model.config.decoder_config
        super().__init__(model.eval())  # no tokenizer: what is emitted are columns, no words
        self.codebooks = config.num_channels
        self.vocab_size = self.law_size = config.vocab_size
        self.hidden_size, self.num_layers = config.hidden_size, config.num_hidden_layers
        self.padding, self.end, self.after = config.bos_token_id, config.eos_token_id, config.pad_token_id
        self.delays = list(model.config.delay_pattern)
        self.longest, self.least = config.max_position_embeddings - 1, max(self.delays) + 2

    @property
    def budget(self) -> int:
        """Columns of ANSWER_S seconds."""
        return int(ANSWER_S * FRAMES) + max(self.delays) + 1

    @property
    def prompt_vocab_size(self) -> int:
        """Bytes."""
        return self.model.config.encoder_config.vocab_size

    def stopping(self, budget: int, strings: Sequence[str], text_of: Callable[[list[int]], str]) -> ColumnStop:
        """A row is over when its slowest codebook has ended, or by the budget."""
        return DiaStop(self.delays.index(max(self.delays)), self.end, budget)

    @torch.no_grad()
    def track(self, row: list[int], total: int, scale: float) -> Track:
        """See `Delayed`. Raises: InputError: a text that the encoder cannot hold."""
        most = self.model.config.encoder_config.max_position_embeddings
        if len(row) > most:
            raise InputError(f"the text has {len(row)} bytes, the model reads {most}: shorten it")
        ids = torch.tensor([row], device=self.model.device)
        ids = torch.cat([ids, torch.zeros_like(ids)]) if scale != 1 else ids
        return Track(self.model.model.encoder(input_ids=ids).last_hidden_state, torch.ones_like(ids), total, scale)

    @torch.no_grad()
    def hear(self, track: Track, columns: Tensor) -> Tensor:
        """See `Delayed`."""
        before = track.read
        logits = self.logits(track, columns.repeat(len(track.text), 1, 1))  # of ids [R, N, K]
        ended, starts = self.ends_of(track, columns, before)
        return self.patterned(
            self.allowed(self.mixed(logits, track.scale, track.top_k)), before, track.total, ended, starts
        )

    def mixed(self, logits: Tensor, scale: float, top_k: int) -> Tensor:
        """[R, N, K, V] of all rows -> [N, K, V] of the one that sees the text, without what guidance does not keep."""
        if len(logits) == 1:
            return logits[0]
        told, free = float32_at_least(logits)
        guided = told + scale * (told - free)
        best = guided.topk(min(top_k or USUAL_TOP_K, guided.shape[-1])).indices
        return told.masked_fill(torch.ones_like(guided, dtype=torch.bool).scatter(-1, best, False), -torch.inf)

    def allowed(self, logits: Tensor) -> Tensor:
        """[N, K, V] without what is never drawn: control tokens, and the end of codebook 0 unless it is the likeliest
        token, which it then is alone."""
        token = torch.arange(logits.shape[-1], device=logits.device)
        never = (token > self.end).expand(self.codebooks, -1).clone()
        never[1:, self.end] = True
        logits = logits.masked_fill(never, -torch.inf)
        none = logits.isneginf().all(-1, keepdim=True)  # guidance may keep control tokens alone
        logits = logits.masked_fill(none & (token == 0), 0.0)  # as the best of equal scores is in transformers
        over = (logits[:, 0].argmax(-1) == self.end)[:, None]
        first = logits[:, 0].masked_fill(torch.where(over, token != self.end, token == self.end), -torch.inf)
        return torch.cat([first[:, None], logits[:, 1:]], 1)

    def ends_of(self, track: Track, columns: Tensor, before: int) -> tuple[Tensor, Tensor]:
        """Of each column [N] that is read: whether codebook 0 has ended there or before, and in which column.

        The track takes note of it.
        """
        numbers = before + torch.arange(len(columns), device=columns.device)
        if track.ended is None:
            found = numbers[columns[:, 0] == self.end].tolist()
            track.ended = found[0] if found else None
        start = track.total + 1 if track.ended is None else track.ended
        return numbers >= start, torch.full_like(numbers, start)

    def patterned(self, logits: Tensor, before: int, total: int, ended: Tensor, starts: Tensor) -> Tensor:
        """Logits [N, K, V] of columns before + 1, before + 2, ... with the forced cells in place."""
        number = before + 1 + torch.arange(len(logits), device=logits.device)
        now = (logits[:, 0].argmax(-1) == self.end) | (number == total - max(self.delays))
        over = (ended | now)[:, None]
        since = (number - torch.where(ended, starts, number))[:, None]  # columns since codebook 0 ended, [N, 1]
        delay = torch.tensor(self.delays, device=logits.device)
        token = torch.full((len(logits), self.codebooks), -1, device=logits.device)
        token = torch.where(over & (since == delay), self.end, token)
        token = torch.where(over & (since > delay), self.after, token)
        token = torch.where(number[:, None] <= delay, self.padding, token)
        only = torch.full_like(logits, -torch.inf).scatter(-1, token.clamp(min=0)[..., None], 0.0)
        return torch.where((token >= 0)[..., None], only, logits)

    @torch.no_grad()
    def product_of(self, inputs: dict[str, Any], row: int, ids: list[Any]) -> dict[str, Any]:
        """The sound of all whole frames, if there is a codec to make it."""
        codec = self.codec
        if codec is None:
            return {}
        ended = next((place for place, column in enumerate(ids) if column[0] == self.end), len(ids))
        frames = min(ended, len(ids) - max(self.delays))
        if frames < 1:
            return {"audio": None}
        codes = self.frames(ids, frames)[None].to(codec.device)
        sound = codec.decode(audio_codes=codes).audio_values.flatten()
        samples = sound.float().clamp(-1, 1).cpu().numpy()
        return {"audio": Audio(samples, codec.config.sampling_rate)}


class Slowest:
    """The columns in which a codebook has a token."""

    def __init__(self, codebook: int, token: int) -> None:
        self.codebook, self.token = codebook, token

    def __contains__(self, column: Any) -> bool:
        return bool(column[self.codebook] == self.token)


class DiaStop(ColumnStop):
    """Ends rows whose slowest codebook has ended. Where the budget ended them, they say so."""

    def __init__(self, codebook: int, token: int, budget: int) -> None:
        super().__init__([], budget)
        self.eos: Any = Slowest(codebook, token)

    def _emit(self, state: State, row: int, run: list[int]) -> list[int]:
        kept = super()._emit(state, row, run)
        if self.finish[row] and len(self.outputs[row]) >= min(self.budget, state.limits[row]):
            self.finish[row] = "length"
        return kept


class SmallDia(SmallMusicgen):
    """A smaller Dia drafts for a larger one: columns, one by one, from the same text and without guidance."""

    method = "small-dia"
    source = "a smaller Dia with exact rules for columns"
    advice = "pass the folder or the hub id of a smaller Dia"
    family = Dia
    equal = ("codebooks", "vocab_size", "padding", "end", "after", "delays")
