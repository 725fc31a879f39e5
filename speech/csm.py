"""CSM as target: a backbone writes the first code of a frame, a small depth decoder the other K - 1, one by one.

For the loop it is one stream of codes, K to a frame. A round whose pending token completes a frame is a pass of the
backbone, every other round a pass of the depth decoder; of a draft only what ends with the last but one code of a row's
frame is read, since what follows the last one needs the backbone. So a depth pass can be saved by drafting
(`mmspec.speech.depth`), and the same seed gives the same codes with every drafter. The depth decoder takes its
positions from the order of its inputs: drafts are chains, and each row of a batch is forwarded by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import linear, pad
from transformers import DynamicCache, PreTrainedModel

from mmspec.base_target import BaseTarget, check_served, unpad
from mmspec.contract import Accepted, Draft, Needs, State, Verified
from mmspec.decoder import Decoder
from mmspec.errors import InputError, MismatchError
from mmspec.finite import check_finite
from mmspec.options import warn_unlike
from mmspec.registry import name_of
from mmspec.sampling import Sampler
from mmspec.speech.audio import Audio
from mmspec.speech.speaking import ANSWER_S, SHARED_IDS
from mmspec.stopping import Stop
from mmspec.templates import check_plain, padded
from mmspec.tree import is_chain


@dataclass
class Frame:
    """Where a row is. hidden: [1, H] of the backbone, from which the frame's first code was drawn.

    codes: of the frame, before the pending one. depth: the depth decoder's cache of this frame.
    """

    backbone: DynamicCache
    hidden: Tensor
    codes: list[int] = field(default_factory=list)
    depth: DynamicCache = field(default_factory=DynamicCache)


@dataclass
class CsmState(State):
    """A request: a frame per row, and the sampling."""

    frames: list[Frame] = field(kw_only=True)
    sampler: Sampler = field(kw_only=True)
    heard: list[Tensor] = field(default_factory=list, kw_only=True)  # of this round: backbone states of rows that ended


class Csm(BaseTarget):
    """A CSM checkpoint. See `BaseTarget`."""

    hf = ("CsmForConditionalGeneration", "CsmProcessor")
    model_type = "csm"
    modality = "speech"
    makes = "sound"
    usual_drafter = "depth"
    refuses = SHARED_IDS
    applies = ()

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model)  # no tokenizer: what is emitted are codes, no words
        self.decoder = Decoder(model)
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self.hidden_size, self.num_layers = self.decoder.config.hidden_size, self.decoder.num_layers

    def adopt(self, processor: Any) -> None:
        """See `BaseTarget`. Besides, say where the depth decoder would draw otherwise than the backbone."""
        super().adopt(processor)
        warn_unlike(self.model.generation_config, self.model.depth_decoder.generation_config, "depth decoder")

    @classmethod
    def check_drafter(cls, drafter: Any) -> None:
        """Siblings would need several passes of the depth decoder, so drafts must be chains."""
        super().check_drafter(drafter)
        if not drafter.drafts_chains:
            raise MismatchError(
                f"the drafter {name_of('drafters', drafter, cls.modality)!r} does not draft for CSM, which takes "
                "chains (drafters whose drafts are always chains say drafts_chains = True): use 'depth', "
                "'prompt-lookup' or 'none'"
            )

    @property
    def codebooks(self) -> int:
        """K."""
        return self.model.config.num_codebooks

    @property
    def budget(self) -> int:
        """Codes of ANSWER_S seconds."""
        return int(ANSWER_S * self.model.config.codec_config.frame_rate) * self.codebooks

    @property
    def prompt_vocab_size(self) -> int:
        """Words; codes have ids of their own."""
        return self.model.config.text_vocab_size

    def ends(self) -> list[int]:
        """The code of which a frame that ends an utterance is made, see `FrameStop`: alone it ends nothing, but no rule
        may keep it by tolerance."""
        return [self.model.config.codebook_eos_token_id]

    def stopping(self, budget: int, strings: Sequence[str], text_of: Callable[[list[int]], str]) -> Stop:
        """Stops after a frame that says so."""
        return FrameStop(self.codebooks, self.model.config.codebook_eos_token_id, budget)

    def head_at(self, hidden: Tensor, code: int) -> Tensor:
        """Logits [B, V] of code `code` (1 to K - 1) from hidden states [B, D] of the depth decoder."""
        weight = self.model.depth_decoder.codebooks_head.weight[code - 1]  # a view, which the module would copy
        return linear(hidden, weight.T)

    def encode(self, processor: Any, texts: list[str], images: list[list[Image.Image]]) -> dict[str, Any]:
        """Model inputs of a batch, said by the model's speaker 0: `input_ids` and `attention_mask` [B, T]."""
        tokenizer = getattr(processor, "tokenizer", processor)
        check_plain(texts, tokenizer)
        rows = [tokenizer(f"[0]{text}")["input_ids"] for text in texts]
        return padded(rows, tokenizer.pad_token_id or 0)

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> Any:
        """Read the prompts and draw the first code of the first frame.

        Args: inputs: `input_ids` [B, T], `attention_mask`, `max_new_tokens` codes. Sound before them is not served.
        """
        check_served(inputs, (), "CSM is served with texts alone: leave {} out")
        rows, budget = unpad(inputs), inputs["max_new_tokens"]
        most, longest = self.decoder.max_length, max(map(len, rows))
        if longest >= most:
            raise InputError(f"the prompt has {longest} tokens, the model's context is {most}: shorten it")
        frames, logits = [], []
        for row in rows:
            cache = DynamicCache()
            heard, states = self._backbone(torch.tensor([row], device=self.model.device), cache)
            frames.append(Frame(cache, states))
            logits.append(heard)
        scores = torch.stack(logits, 0)
        check_finite(scores, "the prompt")
        zeros = torch.zeros(len(rows), dtype=torch.long, device=self.model.device)
        pending = sampler.draw(sampler.warp(Draft.root(zeros), scores), zeros[:, None])[:, 0]
        return CsmState(
            ids=[[] for _ in rows],  # those of the prompt are words, and no drafter may take them for codes
            done=[False] * len(rows),
            emitted=zeros,
            prompt_length=torch.tensor([len(row) for row in rows], device=self.model.device),
            limits=[min(budget, (most - len(row)) * self.codebooks) for row in rows],
            pending=pending,
            room=0,
            frames=frames,
            sampler=sampler,
        )

    def verify(self, state: State, draft: Draft) -> Verified:
        """For every row that goes on a pass of the depth decoder over the chain, or one of the backbone."""
        assert isinstance(state, CsmState)
        if not is_chain(draft):
            raise MismatchError("CSM takes chains, and this draft is a tree: use 'depth', 'prompt-lookup' or 'none'")
        # what follows the last code of a frame needs the backbone, so nodes beyond it are none
        within = draft.depth <= torch.tensor(self.reach(state), device=draft.depth.device)[:, None]
        draft.valid = within if draft.valid is None else within & draft.valid
        logits, taps, state.heard = [], [], []
        width = self.model.depth_decoder.config.hidden_size
        for frame, tokens, real, done in zip(state.frames, draft.tokens, draft.valid, state.done, strict=True):
            if done:
                state.heard.append(frame.hidden)
                taps.append(frame.hidden.new_zeros(draft.size, width))
                logits.append(frame.hidden.new_zeros(draft.size, self.model.config.vocab_size))
            elif len(frame.codes) == self.codebooks - 1:
                codes = torch.tensor([[[*frame.codes, int(tokens[0])]]], device=tokens.device)
                heard, hidden = self._backbone(codes, frame.backbone)
                state.heard.append(hidden)
                taps.append(hidden.new_zeros(draft.size, width))
                logits.append(heard.expand(draft.size, -1))
            else:
                state.heard.append(frame.hidden)
                states = self._depth(frame, tokens[real])
                place = 1 + len(frame.codes) + torch.arange(len(states), device=tokens.device)
                padding = (0, 0, 0, draft.size - len(states))
                logits.append(pad(self.model.depth_decoder.codebooks_head(states[None], place)[0], padding))
                taps.append(pad(states, padding))
        found = torch.stack(logits)
        check_finite(found, "a frame")
        return Verified(found, {0: torch.stack(taps)})

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        """Keep the accepted codes of each frame; begin a new one where it is complete."""
        assert isinstance(state, CsmState)
        for row, frame in enumerate(state.frames):
            if state.done[row]:
                continue
            path = accepted.paths[row]
            if len(frame.codes) == self.codebooks - 1:
                state.frames[row] = frame = Frame(frame.backbone, state.heard[row])
            else:
                frame.codes += draft.tokens[row, path].tolist()
                refused = frame.depth.get_seq_length() - 1 - len(frame.codes)  # the backbone's state stands first
                if refused > 0:
                    frame.depth.crop(-refused)
        state.pending, state.emitted = accepted.next, state.emitted + accepted.count
        state.room = max(self.reach(state))

    def reach(self, state: CsmState) -> list[int]:
        """Of each row, how many levels of a draft a pass of the depth decoder can read."""
        lasts = [self.codebooks - 2 - len(frame.codes) for frame in state.frames]
        return [0 if done else max(0, last) for last, done in zip(lasts, state.done, strict=True)]

    def _backbone(self, ids: Tensor, cache: DynamicCache) -> tuple[Tensor, Tensor]:
        """Text [1, T] or a frame [1, 1, K] -> logits [1, V] of the next first code, hidden states [1, H]."""
        out = self.model(
            input_ids=ids, past_key_values=cache, use_cache=True, output_hidden_states=True, logits_to_keep=1
        )
        return out.logits[0, -1:], out.hidden_states[-1][:, -1]

    def _depth(self, frame: Frame, tokens: Tensor) -> Tensor:
        """Read the pending code and a chain after it; tokens [N] -> states [N, D]."""
        first = not frame.codes
        ids = (
            torch.cat([tokens.new_zeros(1), tokens]) if first else tokens
        )  # the backbone's state takes the first place
        more = {"backbone_last_hidden_state": frame.hidden} if first else {}
        out = self.model.depth_decoder.model(input_ids=ids[None], past_key_values=frame.depth, use_cache=True, **more)
        return out.last_hidden_state[0, -len(tokens) :]

    @torch.no_grad()
    def product_of(self, inputs: dict[str, Any], row: int, ids: list[int]) -> dict[str, Any]:
        """The sound of whole frames; the one that ends an utterance is silent."""
        count, end = self.codebooks, self.model.config.codebook_eos_token_id
        frames = [ids[start : start + count] for start in range(0, len(ids) - count + 1, count)]
        if frames and all(code == end for code in frames[-1][:-1]):
            frames.pop()
        if not frames:
            return {"audio": None}
        codes = torch.tensor(frames, device=self.model.device).T[None]  # [1, K, F]
        codec = self.model.codec_model
        codes = codes.clamp(max=codec.config.codebook_size - 1)  # the model has ids for padding that the codec has not
        samples = codec.decode(codes).audio_values[0, 0].float().clamp(-1, 1).cpu().numpy()
        return {"audio": Audio(samples, codec.config.sampling_rate)}


class FrameStop(Stop):
    """Ends a row after a frame whose codes, all but the last, are `end`. See `Stop`."""

    def __init__(self, codebooks: int, end: int, budget: int) -> None:
        super().__init__([], budget)
        self.codebooks, self.end = codebooks, end

    def _emit(self, state: State, row: int, run: list[int]) -> list[int]:
        kept: list[int] = []
        for token in run:
            kept += super()._emit(state, row, [token])
            output = self.outputs[row]
            whole = len(output) % self.codebooks == 0
            if whole and all(code == self.end for code in output[-self.codebooks : -1]):
                self.finish[row], state.done[row] = "stop", True
            if self.finish[row]:
                break
        return kept
