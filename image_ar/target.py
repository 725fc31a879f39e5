"""What all image targets on causal decoders share: guidance inside the target, laws over image codes alone, a picture.

Classifier-free guidance runs two rows per picture, one that reads the prompt and one that reads the family's empty (or
negative) prompt; what leaves the target is the guided logits l_u + s (l_c - l_u), so drafters and rules need not know.
Tokens are ids of the image vocabulary (`mmspec.image_ar.layout`); no tensor spans the text vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from mmspec.base_target import PROMPT, check_served, one_of, unpad
from mmspec.cache import Past, RowCache
from mmspec.causal_state import CausalState
from mmspec.contract import Draft, Needs, State, Verified
from mmspec.decoder import Decoder, Heard
from mmspec.errors import InputError
from mmspec.finite import check_finite, finite
from mmspec.image_ar.layout import Layout
from mmspec.image_ar.neighbours import Neighbours
from mmspec.image_ar.pictures import to_picture
from mmspec.options import guidance_scale
from mmspec.sampling import Sampler, Sampling, float32_at_least
from mmspec.targets import CausalTarget


class CodeDecoder(Decoder):
    """A stock model that reads text ids at prefill and image codes afterwards.

    Args: embed: codes [..] -> [.., H]. head: final hidden states [.., H] -> [.., V] logits of the image vocabulary.
    """

    def __init__(self, model: PreTrainedModel, embed: nn.Module, head: nn.Module) -> None:
        super().__init__(model)
        self.embed, self.head = embed, head
        self.keeps_logits = True

    def inputs(self, tokens: Tensor) -> dict[str, Any]:
        """Embedded codes."""
        return {"inputs_embeds": self.embed(tokens)}

    def states(
        self, cache: RowCache, tokens: Tensor, depth: Tensor, ancestors: Tensor, taps: tuple[int, ...]
    ) -> dict[int, Tensor]:
        """The taps of `extend` without its logits, which of a whole picture fill gigabytes."""
        if self.engine is not None:  # its forwards are whole ones
            return self.engine.extend(cache, tokens, depth, ancestors, taps).taps
        last = slice(-1, None)
        return self._forward(self.placed(cache, tokens, depth, ancestors), cache, taps, logits_to_keep=last).taps

    def _forward(self, inputs: dict[str, Any], cache: Past, taps: tuple[int, ...], **extra: Any) -> Heard:
        keep = extra.pop("logits_to_keep", slice(None))
        if taps:
            extra["output_hidden_states"] = sorted(taps)
        out = self.model.model(**inputs, past_key_values=cache.hf, use_cache=True, return_dict=True, **extra)
        logits = self.head(out.last_hidden_state[:, keep])
        return Heard(logits, {tap: out.hidden_states[tap] for tap in taps})


@dataclass
class GuidedState(CausalState):
    """A request whose cache has two rows per picture, the guided ones first; one row where guidance is off (scale 1).

    `ids` holds what was emitted, without the prompt: its ids are of another vocabulary.
    """

    scale: float = field(kw_only=True)
    layout: Layout = field(kw_only=True)
    lasts: dict[int, Tensor] = field(default_factory=dict)
    """tap -> [P * B, 1, H] hidden states of the prompts' last tokens, those of the told rows first."""

    @property
    def pairs(self) -> int:
        """P: rows per picture, 2 with guidance and 1 without."""
        return len(self.cache.lengths) // len(self.ids)

    def guided(self, logits: Tensor, depth: Tensor | int) -> Tensor:
        """Guided logits [B, N, V] of the tokens `depth` ([B, N], or one for all) places behind those emitted, with what
        the layout forces there.

        Args: logits: [P * B, N, V] of all rows.
        """
        places = self.emitted[:, None] + depth
        return self.layout.force(guide(logits, len(self.ids), self.scale), places)


@dataclass
class GuidedVerified(Verified):
    """What both rows of each picture said; `taps` is what the told ones did.

    rows: tap -> [P * B, N, H], those of the told rows first.
    """

    rows: dict[int, Tensor] = field(default_factory=dict)


class ImageTarget(CausalTarget):
    """Base of the families. They add which checkpoints they serve, the second row's prompt, and the picture decoder.

    Args: embed, head: see `CodeDecoder`. layout: how the codes lie.
    """

    modality = "image"
    makes = "picture"
    usual_drafter = "scd-gs"
    trained_first = False  # laws of codes are flat, and trees of a trained head slower (README, Pictures)
    settings: tuple[str, ...] = ("guidance",)
    applies: tuple[str, ...] = ("guidance_scale",)
    usual_guidance = 1.0
    """The scale where neither the request nor the checkpoint's generation config names one."""
    usual_top_k: int | None = None
    """Of how many likeliest codes one is drawn, likewise; None cuts nothing off."""
    any_size = False
    """Whether the request decides the size of its picture."""
    unit_codes = False
    """Whether the picture tokenizer takes its vectors at unit length."""
    codes_alone = False
    """See `BaseTarget`."""

    def __init__(self, model: PreTrainedModel, embed: nn.Module, head: nn.Module, layout: Layout) -> None:
        self.decoder: CodeDecoder = CodeDecoder(model, embed, head)
        self.model, self.layout, self.tokenizer = model, layout, None
        self.vocab_size = layout.vocab_size
        self.hidden_size = self.decoder.config.hidden_size
        self.num_layers = self.decoder.num_layers
        self._neighbours: dict[bool, Neighbours] = {}

    @property
    def embed(self) -> nn.Module:
        """Embeddings of the image vocabulary: [..] ids -> [.., H]."""
        return self.decoder.embed

    @property
    def head(self) -> nn.Module:
        """Output head: [.., H] final hidden states -> [.., V] logits of the image vocabulary."""
        return self.decoder.head

    @property
    def vqmodel(self) -> Any:
        """The stock picture tokenizer."""
        return self.model.model.vqmodel

    @property
    def side(self) -> int:
        """Pixels of a picture per code, in width and in height."""
        return 2 ** (len(self.vqmodel.config.channel_multiplier) - 1)

    @property
    def codebook(self) -> Tensor:
        """[codes, d] what the codes stand for in the picture decoder."""
        return self.vectors(self.unit_codes)

    @property
    def prompt_vocab_size(self) -> int:
        """How many ids a prompt may use: those of the text vocabulary."""
        return self.model.get_input_embeddings().weight.shape[0]

    @property
    def budget(self) -> int:
        """A whole picture; where the request decides its size, none is larger than the context."""
        return self.decoder.max_length if self.any_size else self.layout.length

    def read_by(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What `prefill` reads of what a processor makes."""
        return {name: value for name, value in inputs.items() if name in (*PROMPT, *self.extra_inputs)}

    def vectors(self, unit: bool) -> Tensor:
        """[codes, d] the picture tokenizer's vectors, at unit length or as they are stored."""
        stored = self.vqmodel.quantize.embedding.weight.detach()
        return normalize(stored.float(), dim=-1) if unit else stored

    def neighbours(self, count: int, unit: bool | None = None) -> Neighbours:
        """The table of the codebook with `count` columns or more, computed at most once for each larger count.

        Args: unit: see `vectors`; None as the picture tokenizer takes them.
        """
        unit = self.unit_codes if unit is None else unit
        vectors, known = self.vectors(unit), self._neighbours.get(unit)
        if known is None or known.nearest.shape[1] < min(count, len(vectors) - 1):
            known = self._neighbours[unit] = Neighbours.of(vectors, count)
        return known

    def ends(self) -> list[int]:
        """The layout ends a picture, no token does."""
        return []

    def unguided(self, rows: list[list[int]], inputs: dict[str, Any]) -> list[list[int]]:
        """The prompts of the second rows."""
        raise NotImplementedError

    def pixels(self, codes: Tensor) -> Tensor:
        """Codes [1, rows, columns] -> [3, H, W] colours in [-1, 1]."""
        raise NotImplementedError

    def layout_of(self, inputs: dict[str, Any]) -> Layout:
        """How the codes of a request lie; most models draw one size only."""
        return self.layout

    def product_of(self, inputs: dict[str, Any], row: int, ids: list[int]) -> dict[str, Any]:
        """The picture, if there is a decoder; what is not yet known of it is grey."""
        return {} if self.codes_alone else {"image": self.picture(ids, self.layout_of(inputs))}

    @torch.inference_mode()
    def picture(self, ids: list[int], layout: Layout) -> Image.Image:
        """The picture of emitted ids, the first ones of it or all; places without a code yet are grey."""
        codes = layout.grid(ids)
        size = layout.rows, layout.columns
        filled = torch.tensor(codes + [codes[-1]] * (math.prod(size) - len(codes)), device=self.model.device)
        known = torch.arange(len(filled), device=filled.device) < len(codes)
        return to_picture(self.pixels(filled.view(1, *size)), known.view(size))

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> GuidedState:
        """Read the prompts, both rows of each, and draw the first code.

        Args: inputs: `input_ids` [B, T], `attention_mask`, `guidance` (None for the usual), `max_new_tokens`, the
            family's `extra_inputs`, and `n`: a prompt that stands there n times is read once.
        """
        inputs = dict(inputs)
        refusal = f"{type(self.model).__name__} draws from a text here: leave {{}} out"
        check_served(inputs, ("guidance", *self.extra_inputs), refusal)
        layout = self.layout_of(inputs)
        budget = min(inputs.pop("max_new_tokens"), layout.length)
        scale, n = self.guidance(inputs.pop("guidance", None)), inputs.pop("n", 1)
        inputs = one_of(inputs, n)
        told = unpad(inputs)
        rows = told if scale == 1 else told + self.unguided(told, inputs)
        lengths = [len(row) for row in rows]
        if max(lengths) + layout.length > self.decoder.max_length:
            raise InputError(
                f"the prompt has {max(lengths)} tokens and the picture {layout.length}, the model's context is "
                f"{self.decoder.max_length}: shorten the prompt"
            )
        width, device, batch = max(lengths), self.decoder.device, len(told) * n
        ids = torch.tensor([row + row[-1:] * (width - len(row)) for row in rows], device=device)
        prompts, heard = self.decoder.read([{"input_ids": ids}], lengths, needs.taps)
        prompts.spread(n)  # those of the told rows stay the first ones
        heard.spread(n)
        lengths = prompts.lengths
        cache = self.decoder.settle(prompts, budget, needs.taps, needs.nodes)
        zeros = torch.zeros(batch, dtype=torch.long, device=device)
        logits = layout.force(guide(heard.logits, batch, scale), zeros[:, None])
        check_finite(logits, "the prompt")
        pending = sampler.draw(sampler.warp(Draft.root(zeros), logits), zeros[:, None])[:, 0]
        sampler.see(pending[:, None].tolist())
        lasts = torch.tensor(lengths, device=device)[:, None] - 1
        every = torch.arange(len(lengths), device=device)[:, None]
        return GuidedState(
            ids=[[] for _ in range(batch)],
            done=[False] * batch,
            emitted=zeros,
            prompt_length=torch.tensor(lengths[:batch], device=device),
            limits=[budget] * batch,
            pending=pending,
            room=budget - 2,
            prompt_taps={tap: states[:batch] for tap, states in heard.taps.items()},
            cache=cache,
            taps=needs.taps,
            sampler=sampler,
            early=self.decoder.early and not sampler.remembers,
            scale=scale,
            layout=layout,
            lasts={tap: states[every, lasts] for tap, states in heard.taps.items()},
        )

    def verify(self, state: State, draft: Draft) -> Verified:
        """One forward over the tree, in both rows of each picture."""
        assert isinstance(state, GuidedState)
        batch = len(draft.tokens)
        heard = self.decoder.extend(state.cache, *in_pairs(draft, state.pairs), state.taps)
        logits = state.guided(heard.logits, draft.depth)
        state.finite = finite(logits)
        return GuidedVerified(logits, {tap: states[:batch] for tap, states in heard.taps.items()}, heard.taps)

    def states(self, state: GuidedState, draft: Draft) -> dict[int, Tensor]:
        """What `verify` finds of both rows, tap -> [P * B, N, H], and no logits."""
        return self.decoder.states(state.cache, *in_pairs(draft, state.pairs), state.taps)

    def sampling(self, options: Mapping[str, Any]) -> Sampling:
        """See `BaseTarget`; of the `usual_top_k` likeliest codes where neither says how many."""
        drawn = super().sampling(options)
        told = options.get("top_k", self.model.generation_config.top_k)
        return replace(drawn, top_k=self.usual_top_k or 0) if told is None else drawn

    def guidance(self, asked: Any = None) -> float:
        """The scale of a request, or the checkpoint's usual one. Raises InputError for one that is none."""
        return guidance_scale(asked, self.model.generation_config, self.usual_guidance)


def in_pairs(draft: Draft, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and depths [P * B, N] and ancestors [P * B, N, N] of a draft, for all rows of each picture."""
    return draft.tokens.repeat(pairs, 1), draft.depth.repeat(pairs, 1), draft.ancestors.repeat(pairs, 1, 1)


def guide(logits: Tensor, batch: int, scale: float) -> Tensor:
    """Guided logits [B, N, V] from those of the told rows and, behind them, of the free ones: l_u + s (l_c - l_u), in
    float32 at least, since the scale magnifies what is rounded."""
    if scale == 1:
        return logits
    logits = float32_at_least(logits)
    told, free = logits[:batch], logits[batch:]
    return free + (told - free) * scale
