"""A stock Hugging Face causal decoder with a row-wise cache: read prompts, try nodes, keep paths.

Used by targets and by drafters that are language models themselves. Only the model's public forward is called, with
explicit positions and, where rows or branches ask for it, an explicit mask.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.cache import Past, RowCache, spread
from mmspec.causal_state import CausalState
from mmspec.contract import Accepted, Draft, Rule
from mmspec.errors import UnsupportedError
from mmspec.running import KINDS, SERVED, layers_for, listen

logger = logging.getLogger(__name__)

KNOWN_LAYERS = {"full_attention", "sliding_attention"}


@dataclass
class Heard:
    """logits [B, N, V]; per tap, hidden states [B, N, H].

    features: what a model that sees made of the prompt's pictures.
    """

    logits: Tensor
    taps: dict[int, Tensor] = field(default_factory=dict)
    features: Any = None

    def spread(self, n: int) -> None:
        """Be of n rows of each, one after the other, but for the features. See `mmspec.cache.spread`."""
        self.logits = spread(self.logits, n)
        self.taps = {tap: spread(states, n) for tap, states in self.taps.items()}


class Runner(Protocol):
    """Runs the forwards of a decoder in another way, as `mmspec.engine.engine` does: compiled, on caches of its own.

    early: whether its caches should be told what was accepted before the host has read it.
    """

    early: bool

    def settle(
        self, cache: RowCache, budget: int, taps: tuple[int, ...] = (), nodes: tuple[int, ...] | None = None
    ) -> RowCache:
        """See `Decoder.settle`."""

    def extend(
        self, cache: RowCache, tokens: Tensor, depth: Tensor, ancestors: Tensor, taps: tuple[int, ...] = ()
    ) -> Heard:
        """See `Decoder.extend`."""

    def play(self, state: CausalState, draft: Draft, rule: Rule) -> tuple[Heard, Accepted, Tensor]:
        """See `mmspec.engine.engine.Engine.play`."""


def first_layer(config: Any) -> Any:
    """The configuration of a decoder's first layer; in Gemma 4 layers differ, and that of the whole tells no sizes."""
    return config.per_layer_config[0] if config.per_layer_attributes else config


def context_of(config: Any) -> int:
    """How many tokens a decoder of this configuration can read with one set of rotary frequencies.

    A model with LongRoPE (arXiv 2402.13753) takes the other set for a whole forward that reaches past the length it was
    trained on first, which a draft does before a single token would; keys of both sets in one cache belong to neither.
    Of layers with different frequencies (Gemma3) those that reach least far decide.
    """
    context: int = getattr(config, "max_position_embeddings", None) or 1 << 30
    rope = getattr(config, "rope_parameters", None) or {}
    sets = [one for one in rope.values() if isinstance(one, dict)] or [rope]
    changes = [one["original_max_position_embeddings"] for one in sets if one.get("rope_type") == "longrope"]
    if min(changes, default=context) < context:
        logger.warning("mmspec serves the first %d of %d tokens of this LongRoPE model", min(changes), context)
    return min([*(_reach(one, context) for one in sets), *changes])


def _reach(rope: dict[str, Any], context: int) -> int:
    """How far positions go with a set of rotary frequencies. context: `max_position_embeddings`.

    YaRN (arXiv 2309.00071) and linear scaling stretch the length that was trained first by a factor. Many
    configurations state no other, so that `max_position_embeddings` is that one; it still counts where it is longer.
    """
    if rope.get("rope_type") not in ("linear", "yarn"):
        return context
    trained = rope.get("original_max_position_embeddings") or context
    return max(context, int(trained * (rope.get("factor") or 1)))


class Decoder:
    """Forwards of one HF model.

    Raises: UnsupportedError for layers whose cache cannot be rolled back, and for models that cannot forward a tree:
        siblings share a position, and a mask says who sees whom.

    running: the layers that keep a running state (`mmspec.running`), which allow for chains alone. engine: what runs
        `extend` compiled, with caches of fixed size; None for plain calls.
    """

    engine: Runner | None = None
    running: Collection[int] = ()

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()
        self.config = model.config.get_text_config(decoder=True)
        if model.dtype == torch.float64 and "grouped_mm" in model.get_experts_implementation().values():
            model.set_experts_implementation("eager")  # the usual product of all experts at once takes smaller numbers
        told = getattr(self.config, "output_router_logits", False)  # for a loss of training, which knows no trees
        self.always = {"output_router_logits": False} if told else {}
        layers = set(getattr(self.config, "layer_types", None) or ["full_attention"])
        layers |= {"local"} & set(getattr(self.config, "attention_layers", ()))  # GPT-Neo, by place instead of position
        known = KNOWN_LAYERS | KINDS if self.config.model_type in SERVED else KNOWN_LAYERS
        if layers - known:
            raise UnsupportedError(
                f"{type(model).__name__} has layers of type {sorted(layers - known)}; speculative decoding here needs "
                f"attention layers ({sorted(KNOWN_LAYERS)}), whose cache can be rolled back, or one of the models "
                f"whose states it knows how to take back: {', '.join(sorted(SERVED))}"
            )
        self.running = {
            layer for layer, kind in enumerate(getattr(self.config, "layer_types", None) or ()) if kind in KINDS
        }
        if self.running:
            listen(model.get_decoder(), self.running)
        window = getattr(self.config, "sliding_window", None)
        self.by_layer_type = "sliding_attention" in layers  # such models take one mask per layer type
        uses_window = self.by_layer_type or not getattr(self.config, "layer_types", None)
        self.window: int | None = window if uses_window and getattr(self.config, "use_sliding_window", True) else None
        takes = inspect.signature(model.forward).parameters
        if "position_ids" not in takes or getattr(self.config, "alibi", False):
            raise UnsupportedError(
                f"{type(model).__name__} takes positions from the order of its inputs; speculative decoding here needs "
                "a model that is told them (position_ids)"
            )
        if "flash" in str(self.config._attn_implementation):
            raise UnsupportedError(
                f"{self.config._attn_implementation} cannot attend along the branches of a tree: load the model with "
                "attn_implementation='sdpa' or 'eager'"
            )
        self.keeps_logits = "logits_to_keep" in takes
        self.num_layers = self.config.num_hidden_layers
        self.max_length = context_of(self.config)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.model.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.model.device

    @property
    def early(self) -> bool:
        """Whether a round is committed before the host has read it."""
        return self.engine is not None and self.engine.early

    @property
    def sliding(self) -> set[int]:
        """The layers that see a window alone."""
        if self.window is None:
            return set()
        kinds = self.config.layer_types if self.by_layer_type else ["sliding_attention"] * self.num_layers
        return {layer for layer, kind in enumerate(kinds) if kind == "sliding_attention"}

    def language(self) -> nn.Module:
        """The model without what sees or hears: the part that has the decoder's configuration."""
        parts = (part for part in self.model.modules() if getattr(part, "config", None) is self.config)
        return next(parts, self.model)

    def read(
        self, pieces: Sequence[dict[str, Any]], lengths: list[int], taps: tuple[int, ...] = ()
    ) -> tuple[RowCache, Heard]:
        """Prefill, one forward per piece.

        Args: pieces: model inputs with right-padded `input_ids` [B, T], or `inputs_embeds` [B, T, H] (padding is never
            attended to, being later); of a long prompt several, each with the next columns. Where they state no
            `position_ids`, columns are counted from 0, as `extend` goes on.
            lengths: real tokens per row.
            taps: `hidden_states` indices to return for the whole prompt.
        Returns: the cache, and logits [B, 1, V] after each row's last token.
        Raises: UnsupportedError: the model kept nothing of what it read.
        """
        cache = RowCache(len(lengths), self.device)
        if self.running:
            cache.hf.layers = layers_for(self.config.layer_types)
        last: dict[int, Tensor] = {}  # row -> [V]
        parts: list[Heard] = []
        end = 0
        for piece in pieces:
            start, end = end, end + (piece["input_ids"] if "input_ids" in piece else piece["inputs_embeds"]).shape[1]
            ends = {row: length - 1 - start for row, length in enumerate(lengths) if start < length <= end}
            wanted = sorted({*ends.values()} or {0})
            extra: dict[str, Any] = {}
            if self.keeps_logits:
                extra["logits_to_keep"] = torch.tensor(wanted, device=self.device)
            # A RoBERTa that is told no positions counts from its padding id on, and `extend` goes on from 0.
            columns = torch.arange(start, end, device=self.device).expand(len(lengths), -1)
            parts.append(self._forward({"position_ids": columns, **piece}, cache, taps, **extra))
            cache.keep([min(max(length - start, 0), end - start) for length in lengths])
            for row, place in ends.items():
                last[row] = parts[-1].logits[row, wanted.index(place) if self.keeps_logits else place]
        if cache.width != end:
            raise UnsupportedError(
                f"{type(self.model).__name__} keeps no keys and values of what it reads (past_key_values); speculative "
                "decoding here needs a model that does"
            )
        cache.fill(lengths)
        cache.window, cache.sliding = self.window, self.sliding  # not before: `settle` may take over all slots
        logits = torch.stack([last[row] for row in range(len(lengths))])[:, None]
        states = {tap: torch.cat([part.taps[tap] for part in parts], 1) for tap in taps}
        return cache, Heard(logits, states)

    def extend(
        self, cache: RowCache, tokens: Tensor, depth: Tensor, ancestors: Tensor, taps: tuple[int, ...] = ()
    ) -> Heard:
        """Forward nodes after the committed tokens, which stay from now on; follow with `cache.commit`.

        Args: tokens, depth: [B, N]. ancestors: [B, N, N] bool.
        """
        if self.engine is not None:
            return self.engine.extend(cache, tokens, depth, ancestors, taps)
        cache.forget()
        return self.step(cache, tokens, depth, ancestors, taps)

    def step(
        self, cache: Past, tokens: Tensor, depth: Tensor, ancestors: Tensor, taps: tuple[int, ...] = (), **more: Any
    ) -> Heard:
        """The same as one function of tensors, for `mmspec.engine` to compile. more: further inputs of the model."""
        return self._forward({**self.placed(cache, tokens, depth, ancestors), **more}, cache, taps)

    def settle(
        self, cache: RowCache, budget: int, taps: tuple[int, ...] = (), nodes: tuple[int, ...] | None = None
    ) -> RowCache:
        """The cache of a prompt, made ready for `extend`: as it is, or in a compiled decoder as one of fixed size.

        Args: budget: how many tokens a row has room for at first; more make a cache of fixed size grow, and what runs
            on it be made anew. taps: as for `extend`. nodes: see `mmspec.contract.Needs`.
        """
        return cache if self.engine is None else self.engine.settle(cache, budget, taps, nodes)

    def placed(self, cache: Past, tokens: Tensor, depth: Tensor, ancestors: Tensor) -> dict[str, Any]:
        """The model inputs of nodes, with their positions and with who sees whom.

        Args: tokens: [B, N]. ancestors: [B, N, M] bool and depth: [B, M]; the last N columns are these nodes, those
            before them were forwarded earlier and are in the cache, not committed.
        """
        own = depth[:, -tokens.shape[1] :]
        slot = (cache.positions() + own).clamp(max=self.max_length - 1)  # no node past the context is ever kept
        inputs: dict[str, Any] = {**self.inputs(tokens), "position_ids": slot + cache.shift}
        alone = tokens.shape[1] == 1 and cache.even()
        if not alone or self.window is not None:
            inputs["attention_mask"] = self._masks(cache, ancestors, depth)
        return inputs

    def inputs(self, tokens: Tensor) -> dict[str, Any]:
        """The model inputs that stand for new nodes [B, N]: ids, unless a family embeds them in its own way."""
        return {"input_ids": tokens}

    def _masks(self, cache: Past, ancestors: Tensor, depth: Tensor) -> Tensor | dict[str, Tensor]:
        if self.by_layer_type:
            full = cache.mask(ancestors, depth, self.dtype)
            windowed = cache.mask(ancestors, depth, self.dtype, self.window)
            return {"full_attention": full, "sliding_attention": windowed}
        return cache.mask(ancestors, depth, self.dtype, self.window)

    def _forward(self, inputs: dict[str, Any], cache: Past, taps: tuple[int, ...], **extra: Any) -> Heard:
        if taps:
            extra["output_hidden_states"] = sorted(taps)
        out = self.model(**inputs, past_key_values=cache.hf, use_cache=True, return_dict=True, **self.always, **extra)
        return Heard(out.logits, {tap: out.hidden_states[tap] for tap in taps})
