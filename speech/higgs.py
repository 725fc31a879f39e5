"""Higgs Audio v2 as target: a Llama writes columns of K codes, code k of a frame k columns back (boson-ai/higgs-audio).

Every layer has a norm and an MLP of its own for sound. A prompt is a chat of words, with columns of sound among them
where a voice is given, and ends with the token that begins sound. Column 0, which is read and not emitted, is the start
in all codebooks (`generate` of transformers returns it); in column t codebook k has the start still if t <= k. Any
codebook may draw the end: j columns after the first column with one, the first j codebooks have it, too, and the row is
over with the first column of ends alone. So what the pattern forces follows from earlier columns, and laws of a
column's codes are independent of each other.

`ras_win_len` and `ras_win_max_num_repeat` of the generation config stand for `ras_window` and `ras_share`. At
temperature 0 there is no repetition-aware sampling, where transformers draws a repeated code even in greedy decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.base_target import check_served, unpad
from mmspec.contract import Accepted, Draft, Needs, State
from mmspec.errors import CheckpointError, InputError, described
from mmspec.sampling import Sampler, Sampling
from mmspec.speech.audio import Audio
from mmspec.speech.columns import ColumnSampler, ColumnStop
from mmspec.speech.delayed import CodecBeside, ColumnState, Track
from mmspec.speech.small_musicgen import SmallMusicgen
from mmspec.speech.speaking import ANSWER_S, SHARED_IDS
from mmspec.templates import asking, check_plain, padded

FRAMES = 25
"""Frames per second of the codec."""
BEFORE = (("system", "Generate audio following instruction."), ("scene", "Audio is recorded from a quiet room."))
"""Role and text of what stands in a chat before the text that is to be spoken, as its authors write it."""


@dataclass
class HiggsTrack(Track):
    """See `Track`; text holds the prompt's ids [1, T]. columns: [N, K] that were read, the start first."""

    columns: Tensor = field(kw_only=True)

    @property
    def read(self) -> int:
        """Columns that the decoder has read behind the prompt."""
        return self.cache.self_attention_cache.get_seq_length() - self.text.shape[1]


@dataclass
class HiggsState(ColumnState):
    """See `ColumnState`."""

    sampler: Sampler = field(kw_only=True)


class HiggsSampler(ColumnSampler):
    """Draws columns, repetition-aware where `ras_window` is on.

    A code that a codebook had `ras_share` of the last `ras_window` columns or more is drawn again from the model's own
    law, before temperature and top-k, in which it stays. Starts and ends do not count.
    """

    def __init__(self, sampling: Sampling, batch: int, device: torch.device, uncounted: list[int]) -> None:
        super().__init__(sampling, batch, device)
        self.uncounted = uncounted

    def warp(self, draft: Any, logits: Tensor) -> Tensor:
        """[B, N, K, V] raw logits -> warped log-scores of every code, each with the history of its own path."""
        warped = super().warp(draft, logits)
        if self.greedy or not self.sampling.ras_window:
            return warped
        law, repeated = warped.softmax(-1), self.repeated(draft, logits.shape[-1])
        again = (law * repeated).sum(-1, keepdim=True)
        return (law.masked_fill(repeated, 0.0) + again * logits.float().softmax(-1)).log()

    def repeated(self, draft: Any, vocab_size: int) -> Tensor:
        """[B, N, K, V] bool: codes that are repeated in the window that ends at each node of a chain. Node 0 is the
        last column that `see` was told."""
        window, codebooks = self.sampling.ras_window, draft.tokens.shape[-1]
        none: Any = (self.uncounted[0],) * codebooks
        tails = torch.tensor([[none] * (window - len(row)) + row for row in self.recent], device=draft.tokens.device)
        windows = torch.cat([tails, draft.tokens[:, 1:]], 1).unfold(1, window, 1)  # [B, N, K, W]
        counts = torch.zeros(*windows.shape[:-1], vocab_size, dtype=torch.long, device=windows.device)
        counts.scatter_add_(-1, windows, torch.ones_like(windows))
        counts[..., self.uncounted] = 0
        return counts >= max(1, math.ceil(window * self.sampling.ras_share - 1e-6))  # 7 * (2 / 7) may be above 2


class Higgs(CodecBeside):
    """A Higgs Audio v2 checkpoint, see `BaseTarget`."""

    hf = ("HiggsAudioV2ForConditionalGeneration", "HiggsAudioV2Processor")
    model_type = "higgs_audio_v2"
    noun = "Higgs Audio"
    extra_inputs = ("audio_input_ids", "audio_input_ids_mask")
    """[B, F, K] columns of sound in the prompts, and which of them are real."""
    settings = ()  # type: ignore[assignment]  # no guidance
    applies = ()  # type: ignore[assignment]
    refuses = {"repetition_penalty": SHARED_IDS["repetition_penalty"]}  # noqa: RUF012

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        config = model.config
        super().__init__(model.eval())  # no tokenizer: what is emitted are columns, no words
        self.codebooks = config.num_codebooks
        self.vocab_size = self.law_size = config.codebook_size
        self.hidden_size, self.num_layers = config.hidden_size, config.num_hidden_layers
        self.padding, self.end = config.audio_stream_bos_id, config.audio_stream_eos_id
        self.delays = list(range(self.codebooks))
        self.longest, self.least = config.max_position_embeddings, self.codebooks  # which make a frame

    def adopt(self, processor: Any) -> None:
        """See `BaseTarget`. Raises: CheckpointError: a codec of fewer codebooks."""
        super().adopt(processor)
        if self.codec is not None and self.codec.config.num_quantizers < self.codebooks:
            raise CheckpointError(
                f"the codec has {self.codec.config.num_quantizers} codebooks, the model speaks {self.codebooks}"
            )

    @property
    def budget(self) -> int:
        """Columns of ANSWER_S seconds."""
        return int(ANSWER_S * FRAMES) + max(self.delays)

    @property
    def prompt_vocab_size(self) -> int:
        """Words. Codes in a prompt have the ids behind them, K ids to a column, wherever its rows are lists."""
        return self.model.config.vocab_size

    def sampling(self, options: Mapping[str, Any]) -> Sampling:
        """See `BaseTarget`."""
        own = self.model.generation_config
        window, most = getattr(own, "ras_win_len", None), getattr(own, "ras_win_max_num_repeat", None)
        told = {"ras_window": window, "ras_share": most / window} if window and most and most <= window else {}
        return super().sampling({**told, **options})

    def sampler(self, sampling: Sampling, batch: int) -> HiggsSampler:
        """See `HiggsSampler`."""
        return HiggsSampler(sampling, batch, self.model.device, [self.padding, self.end])

    def stopping(self, budget: int, strings: Sequence[str], text_of: Callable[[list[int]], str]) -> ColumnStop:
        """A row is over with a column of ends alone, or by the budget."""
        over: Any = (self.end,) * self.codebooks
        return ColumnStop([over], budget)

    def encode(self, processor: Any, texts: list[str], images: list[list[Image.Image]]) -> dict[str, Any]:
        """`input_ids` and `attention_mask` [B, T] of texts that are to be spoken, see BEFORE."""
        tokenizer, config = getattr(processor, "tokenizer", processor), self.model.config
        marks = config.audio_token_id, config.audio_bos_token_id, config.audio_delay_token_id
        check_plain(texts, tokenizer, tokenizer.convert_ids_to_tokens(list(marks)))
        chats = [
            [{"role": role, "content": [{"type": "text", "text": part}]} for role, part in (*BEFORE, ("user", text))]
            for text in texts
        ]
        with asking(processor):
            rows = tokenizer.apply_chat_template(
                chats, chat_template=processor.chat_template, add_generation_prompt=True, return_dict=False
            )
        return padded(rows, tokenizer.pad_token_id or 0)

    def told(self, inputs: Mapping[str, Any]) -> list[list[int]]:
        """The prompts as lists of ids, each column of sound as its K codes, see `prompt_vocab_size`.

        Raises: InputError: a prompt that does not end where sound begins, or sound that does not fit its slots.
        """
        rows, config, shape = unpad(dict(inputs)), self.model.config, (len(inputs["input_ids"]), self.codebooks)
        slots = config.audio_token_id, config.audio_delay_token_id
        sound = inputs.get("audio_input_ids", torch.zeros(shape[0], 0, shape[1], dtype=torch.long))
        real = inputs.get("audio_input_ids_mask")
        codes = isinstance(sound, Tensor) and sound.ndim == 3 and not sound.is_floating_point()
        if not codes or (len(sound), sound.shape[2]) != shape:
            raise InputError(f"audio_input_ids are codes [{shape[0]}, F, {shape[1]}], not {described(sound)}")
        if real is not None and (not isinstance(real, Tensor) or real.shape != sound.shape[:2]):
            raise InputError(f"audio_input_ids_mask is a mask {list(sound.shape[:2])}, not {described(real)}")
        if sound.numel() and not 0 <= int(sound.min()) <= int(sound.max()) < self.law_size:
            raise InputError(
                f"audio_input_ids hold {int(sound.min())} to {int(sound.max())}: the model knows codes 0 to "
                f"{self.law_size - 1}"
            )
        found = []
        for index, row in enumerate(rows):
            self.check_begun(row)
            columns = (sound[index] if real is None else sound[index][real[index].bool()]).tolist()
            if (wanted := sum(id in slots for id in row)) != len(columns):
                raise InputError(
                    f"a prompt has {wanted} slots of sound, and audio_input_ids fill {len(columns)}: pass on all that "
                    "the processor returns"
                )
            rest = iter(columns)
            ids = ([self.prompt_vocab_size + code for code in next(rest)] if id in slots else [id] for id in row)
            found.append([each for run in ids for each in run])
        return found

    def check_begun(self, row: list[int]) -> None:
        """Raise InputError for a prompt [T] behind which transformers would lay out the first columns otherwise: it
        looks for beginnings and ends of sound among the last K ids."""
        config, tail = self.model.config, row[-self.codebooks :]
        begins = [id == config.audio_bos_token_id for id in tail] == [False] * (self.codebooks - 1) + [True]
        if not begins or config.audio_delay_token_id in tail:
            raise InputError(
                f"the prompt must end with the id {config.audio_bos_token_id}, with which sound begins, and no other "
                f"sound may begin or end within its last {self.codebooks} ids: use the processor's chat template with "
                "add_generation_prompt=True"
            )

    def prompt_of(self, row: list[int]) -> tuple[Tensor, Tensor]:
        """Of a list from `told` the ids [1, T] as the model takes them, and the columns of sound [1, F, K] for them."""
        ids = torch.tensor(row)
        coded = ids >= self.prompt_vocab_size
        first = ~coded | ((coded.cumsum(0) - 1) % self.codebooks == 0)
        sound = (ids[coded] - self.prompt_vocab_size).view(1, -1, self.codebooks)
        return ids.masked_fill(coded, self.model.config.audio_token_id)[first][None], sound

    @torch.no_grad()
    def track(self, row: list[int], total: int, scale: float) -> HiggsTrack:
        """See `Delayed`. Raises: InputError: a prompt that leaves no room for sound."""
        text, sound = (each.to(self.model.device) for each in self.prompt_of(row))
        if text.shape[1] + self.least > self.longest:
            raise InputError(f"the prompt has {text.shape[1]} ids, the model's context is {self.longest}: shorten it")
        told = {"audio_input_ids": sound, "audio_input_ids_mask": torch.ones_like(sound[..., 0], dtype=torch.bool)}
        track = HiggsTrack(text, torch.ones_like(text), total, scale, columns=sound[0, :0])
        self.model(
            input_ids=text,
            past_key_values=track.cache.self_attention_cache,
            use_cache=True,
            logits_to_keep=1,
            **(told if sound.numel() else {}),
        )
        return track

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> Any:
        """Read the prompts and draw the first columns.

        Args: inputs: `input_ids`, `attention_mask`, `max_new_tokens` columns, and the family's `extra_inputs`.
        """
        check_served(inputs, self.extra_inputs, f"{self.noun} is served without {{}}: leave it out")
        rows = self.told(inputs)
        start: Any = [self.padding] * self.codebooks
        sampler.see([[*self.prompt_of(row)[1][0].tolist(), start] for row in rows])
        state = super().prefill({**padded(rows, 0), "max_new_tokens": inputs["max_new_tokens"]}, needs, sampler)
        sampler.see([[column] for column in state.pending.tolist()])
        left = [self.longest - track.text.shape[1] for track in state.tracks]
        state.limits = [min(limit, most) for limit, most in zip(state.limits, left, strict=True)]
        state.room = max(state.limits) - 2
        return HiggsState(**vars(state), sampler=sampler)

    @torch.no_grad()
    def hear(self, track: Track, columns: Tensor) -> Tensor:
        """See `Delayed`."""
        assert isinstance(track, HiggsTrack)
        before = track.read
        track.columns = torch.cat([track.columns[:before], columns])
        out = self.model(
            audio_input_ids=columns[None], past_key_values=track.cache.self_attention_cache, use_cache=True
        )
        return self.patterned(out.logits[0].unflatten(-1, (self.codebooks, -1)), track.columns)

    def patterned(self, logits: Tensor, columns: Tensor) -> Tensor:
        """Logits [N, K, V] after the last N of columns [M, K], the start first, with the forced cells in place."""
        count, device = len(logits), logits.device
        book = torch.arange(self.codebooks, device=device)
        number = torch.arange(len(columns) - count + 1, len(columns) + 1, device=device)[:, None]
        ended = (columns == self.end).any(-1).cumsum(0) > 0
        since = ended.cumsum(0)[-count:, None]  # columns from the first one with an end to this one
        token = torch.where(number <= book, self.padding, torch.where(book < since, self.end, -1))
        only = torch.full_like(logits, -torch.inf).scatter(-1, token.clamp(min=0)[..., None], 0.0)
        return torch.where((token >= 0)[..., None], only, logits)

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        """Forget the columns that were not kept, and tell the sampler those that were emitted."""
        assert isinstance(state, HiggsState)
        super().commit(state, draft, accepted)
        state.sampler.see(accepted.emitted)

    @torch.no_grad()
    def product_of(self, inputs: dict[str, Any], row: int, ids: list[Any]) -> dict[str, Any]:
        """The sound of all whole frames before the column that ends it, if there is a codec to make it."""
        codec = self.codec
        if codec is None:
            return {}
        columns = [column for column in ids if any(code != self.end for code in column)]
        frames = len(columns) - max(self.delays)
        if frames < 1:
            return {"audio": None}
        codes = self.frames(columns, frames)[None].clamp(max=self.padding - 1)  # a code may be an end or a start
        samples = codec.decode(codes.to(codec.device)).audio_values.flatten().float().clamp(-1, 1).cpu().numpy()
        return {"audio": Audio(samples, codec.config.sample_rate)}


class SmallHiggs(SmallMusicgen):
    """A smaller Higgs Audio drafts for a larger one: columns, one by one, from the same prompt."""

    method = "small-higgs"
    source = "a smaller Higgs Audio with exact rules for columns"
    advice = "pass the folder or the hub id of a smaller Higgs Audio"
    family = Higgs
    equal = ("codebooks", "vocab_size", "prompt_vocab_size", "padding", "end")
