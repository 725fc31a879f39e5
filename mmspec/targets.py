"""Targets on stock Hugging Face models: the base of all of them, which serves decoders that read from left to right.

A multimodal family adds two things (see `mmspec.vlm`): how a prompt with pictures becomes model inputs, and which ids
stand for image positions. Pictures enter at prefill only, so verification and commit are the same for all of them.
Beside ids, what goes with the prompt token by token (types, positions) is aligned with them and cut with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from mmspec.cache import RowCache
from mmspec.causal_state import CausalState
from mmspec.contract import Accepted, Draft, Needs, Rule, State, Verified
from mmspec.decoder import Decoder, Heard
from mmspec.engine.cache import AHEAD, StaticRows
from mmspec.errors import InputError, UnsupportedError
from mmspec.finite import check_finite, finite
from mmspec.focus import Focus, watching
from mmspec.head import head_of
from mmspec.options import MAX_NEW_TOKENS, end_tokens, sampling_for
from mmspec.pieces import spans
from mmspec.sampling import Sampler, Sampling
from mmspec.stopping import Stop

PROMPT = ("input_ids", "attention_mask")
"""Inputs that every target reads, beside its own and `max_new_tokens`."""
PER_TOKEN = ("token_type_ids", "mm_token_type_ids")
"""Model inputs [B, T] with one value per token of the prompt."""


class CausalTarget:
    """A causal HF model as target; families that decode otherwise override its `prefill`, `verify` and `commit`.

    See `mmspec.contract.TextTarget`.
    """

    hf: ClassVar[tuple[str, str]]
    """Names in transformers of the stock classes, of the model and of the processor, which are imported when asked for.
    A family with other classes overrides `model_class` and `processor_class`."""
    modality = "text"
    makes = "text"
    """What an answer is: a text, a picture, a sound."""
    continuous = False
    """Whether its tokens are values instead of ids."""
    writes_columns = False
    """Whether a step emits a column of codes instead of one."""
    examples: tuple[str, ...] = ()
    """Prompts to show it with, where those of the synthetic world are none for it."""
    least = 0
    """Tokens that an answer needs at least to be a whole one."""
    placeholders: tuple[int, ...] = ()
    extra_inputs: tuple[str, ...] = ()
    """Names of the model inputs beside ids and mask: what holds pictures or sound, their sizes."""
    piece_size = 4096
    """Most prompt tokens per forward of prefill."""
    usual_drafter = "prompt-lookup"
    """What `drafter=None` takes where no trained drafter lies beside the model."""
    trained_first = True
    """Whether it takes a trained drafter beside the model before that."""
    settings: tuple[str, ...] = ()
    """Options that only some models take, of `mmspec.options.Options`: those that it does not name are refused before
    its weights are read. `encode` is told `size` and `voice`, where they are given."""
    applies: tuple[str, ...] = ()
    """Settings of a generation config that the target itself applies."""
    answers: Mapping[str, Any] = {}
    """Settings of `mmspec.training.answers.AnswerOptions` that suit what it emits better than their defaults."""
    rules: Mapping[str, str] = {}
    """Rules that stand for another's name here, as for "exact" one that is exact for other tokens."""
    processor: Any = None
    compiles = True
    """Whether verification is a forward of one HF decoder, which `mmspec.engine` can compile."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        self.decoder = Decoder(model)
        self.model, self.tokenizer = model, tokenizer
        if model.get_output_embeddings() is None:
            raise UnsupportedError(
                f"{type(model).__name__} has no language-model head, so it says nothing: load it with "
                "AutoModelForImageTextToText, a text model with AutoModelForCausalLM"
            )
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.hidden_size: int = self.decoder.config.hidden_size
        self.num_layers: int = self.decoder.num_layers

    @staticmethod
    def serves(config: PreTrainedConfig) -> bool:
        """Whether this class is the one for a checkpoint, judged by its configuration."""
        raise NotImplementedError

    @classmethod
    def model_class(cls, config: PreTrainedConfig) -> type[PreTrainedModel]:
        """The class of the model."""
        return getattr(transformers, cls.hf[0])

    @classmethod
    def processor_class(cls, config: PreTrainedConfig) -> Any:
        """The class of the processor or tokenizer, or what reads one from a folder."""
        return getattr(transformers, cls.hf[1])

    @property
    def codes_alone(self) -> bool:
        """Whether codes are all that comes of an answer where a picture or a sound was asked for: what decodes them is
        missing, or belongs to another library."""
        return False

    def check_codec(self) -> None:
        """Raise UnsupportedError for a model whose answers are codes alone."""
        if self.codes_alone:
            raise UnsupportedError(
                f"no {self.makes} is made here of the codes of this {type(self.model).__name__}: what decodes them is "
                "missing, or belongs to another library"
            )

    @property
    def embed(self) -> nn.Module:
        """Input embeddings: [..] ids -> [.., H]. A module, because some families scale inside it."""
        return self.model.get_input_embeddings()

    @property
    def head(self) -> nn.Module:
        """Output head: [.., H] final hidden states -> [.., V] the model's logits."""
        return head_of(self.model)

    def encode(self, processor: Any, texts: list[str], images: list[list[Image.Image]]) -> dict[str, Any]:
        """Model inputs of a batch of prompts with their pictures, padded on the left.

        Pictures come to a target of the modality "vlm" alone, see `mmspec.options.check_pictures`.
        """
        raise NotImplementedError

    @property
    def prompt_vocab_size(self) -> int:
        """How many ids a prompt may use."""
        return self.vocab_size

    def adopt(self, processor: Any) -> None:
        """Take over what the checkpoint's processor class read, or the caller gave (None for nothing)."""
        self.processor = processor

    @property
    def budget(self) -> int:
        """How many tokens are emitted at most where a request does not say."""
        return self.model.generation_config.max_new_tokens or MAX_NEW_TOKENS

    @property
    def compiled(self) -> bool:
        """Whether verification is compiled."""
        return self.compiles and self.decoder.engine is not None

    def compile(self, backend: str = "inductor") -> None:
        """From now on verify with compiled forwards on a cache of fixed size (`mmspec.engine`).

        Args: backend: of `torch.compile`.
        Raises: UnsupportedError: this target works in another way, or its decoder in one that cannot be compiled.
        """
        from mmspec.engine.engine import Engine, misfit

        why = misfit(self.decoder.config) if self.compiles else "its rounds are not one forward over a tree"
        if why:
            raise UnsupportedError(
                f"{type(self.model).__name__} cannot be compiled here: {why}; load it with compile=False"
            )

        self.decoder.engine = Engine(self.decoder, backend)

    def sampling(self, options: Mapping[str, Any]) -> Sampling:
        """How tokens are drawn, by the options of a request, then by the checkpoint's generation config."""
        return sampling_for(options, self.model.generation_config, sampled=self.makes != "text")

    def sampler(self, sampling: Sampling, batch: int) -> Sampler:
        """What warps the laws of a request and makes its noise."""
        return Sampler(sampling, batch, self.model.device)

    def check_rule(self, rule: Rule) -> None:
        """Raise MismatchError for a rule that cannot judge what this target emits."""

    @classmethod
    def check_drafter(cls, drafter: Any) -> None:
        """Raise MismatchError for a drafter, or a class of drafters, that cannot draft what this target emits."""

    def ends(self) -> list[int]:
        """The ids that end an answer."""
        return end_tokens(self.model.generation_config)

    def stopping(self, budget: int, strings: Sequence[str], text_of: Callable[[list[int]], str]) -> Stop:
        """What ends the rows of a request."""
        return Stop(self.ends(), budget, strings, text_of)

    def sounding(self, inputs: dict[str, Any], row: int) -> Any:
        """What makes sound of a row while it is emitted (`add(ids, last)`), or None for targets that do not speak."""
        return None

    def product_of(self, inputs: dict[str, Any], row: int, ids: list[int]) -> dict[str, Any]:
        """What the emitted ids of a row make beside text: further fields of `mmspec.results.Generation`.

        Args: inputs: what `prefill` was given.
        """
        return {}

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> CausalState:
        """Read the prompt and draw the first token.

        Args: inputs: what HF `generate` takes (`input_ids` [B, T], `attention_mask`, pixels, ...), and
        `max_new_tokens`.
        """
        inputs = dict(inputs)
        budget = inputs.pop("max_new_tokens")
        rows = unpad(inputs)
        lengths = [len(row) for row in rows]
        room = [self.decoder.max_length - length for length in lengths]
        if min(room) < 1:
            raise InputError(
                f"the prompt has {max(lengths)} tokens, the model's context is {self.decoder.max_length}: shorten it"
            )
        taps = (0, *needs.taps) if needs.embeddings else needs.taps
        focus = Focus(lengths)
        with watching(self.model, [self.num_layers - 1], focus.note) if needs.focus else nullcontext():
            prompt, heard = self.read(inputs, rows, taps)
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
            prompt_focus=focus.mean() if needs.focus else None,
            prompt_inputs=inputs if needs.inputs else {},
            prompt_features=heard.features if needs.inputs else None,
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


def check_served(inputs: Mapping[str, Any], own: Collection[str], told: str) -> None:
    """Raise InputError for an input that would not be read.

    Args: own: those of the target beside `PROMPT`. told: the message, {} for the input's name.
    """
    strange = inputs.keys() - {*PROMPT, "max_new_tokens", *own}
    if strange:
        raise InputError(told.format(min(strange)))


def unpad(inputs: dict[str, Any], name: str = "input_ids") -> list[list[int]]:
    """The values of each row of an input [B, T] at real tokens, wherever `attention_mask` says the padding is."""
    values, mask = inputs[name], inputs.get("attention_mask")
    if mask is None:
        rows = values.tolist()
    else:
        rows = [row[keep.bool()].tolist() for row, keep in zip(values, mask, strict=True)]
    if not all(rows):
        raise InputError("a prompt is empty: give every row at least one token")
    return rows
