"""The methods of a comparison, each as one call from model inputs to a timed reply.

Ours run through the pipeline. The others are what transformers offers on the same loaded model: `generate`, assisted
generation with our independent drafter's model, and prompt lookup. All get the same inputs, warpers and stop rule, and
nothing else of the checkpoint's generation config.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from mmspec import Pipeline
from mmspec.benchmarks.figures import HF, HF_ASSISTED, HF_LOOKUP, OURS
from mmspec.benchmarks.records import Run
from mmspec.benchmarks.rows import in_dtype
from mmspec.benchmarks.stock import bare
from mmspec.contract import bound
from mmspec.control import read_shape
from mmspec.decoder import context_of

PARTNERS = {OURS: HF, "spd": HF_ASSISTED, "prompt-lookup": HF_LOOKUP}
"""Which method of transformers is measured beside one of ours."""
TOKEN_TYPES = {"token_type_ids", "mm_token_type_ids"}
PLAIN = {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
"""Temperature is the only warper."""


class Method(Protocol):
    """A way to answer."""

    def __call__(self, inputs: dict[str, Tensor], max_new_tokens: int, temperature: float, seed: int) -> Run:
        """Answer one prompt (model inputs of batch size 1)."""


def exact(pipe: Pipeline, temperature: float) -> bool:
    """Whether a reply must have the tokens of our AR loop: no draft may change them, and they are computed in float32,
    since in half precision close calls may fall the other way."""
    rule, dtype = pipe.rule, pipe.target.model.dtype
    return rule.lossless and bound(rule, not temperature) and dtype in (torch.float32, torch.float64)


@dataclass
class Ours:
    """Our decode loop with one drafter; `none` is our autoregressive baseline."""

    pipe: Pipeline

    def __call__(self, inputs: dict[str, Tensor], max_new_tokens: int, temperature: float, seed: int) -> Run:
        """See Method."""
        start = time.perf_counter()
        reply = self.pipe.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            min_p=0.0,
            suppress_tokens=[],
            seed=seed,
            **PLAIN,
        )
        seconds = time.perf_counter() - start
        return Run.of(reply.stats, tokens=list(reply.token_ids), seconds=seconds, exact=exact(self.pipe, temperature))


@dataclass
class HuggingFace:
    """`generate` of transformers: plain, with settings that make it draft, or with an assistant model.

    The time before the first token is that of a second call that stops there. Speculative methods verify their first
    draft together with the prompt, so there every forward is a verification. settings: how it drafts; the assistant is
    told, too, whose own config says how long drafts are. ends: ids that end a reply, where they are not those of the
    checkpoint alone.
    """

    model: PreTrainedModel
    settings: dict[str, Any] = field(default_factory=dict)
    assistant: PreTrainedModel | None = None
    warpers: dict[str, Any] = field(default_factory=lambda: PLAIN)
    ends: list[int] | None = None

    def __post_init__(self) -> None:
        self.context = context_of(self.model.config.get_text_config(decoder=True))

    def __call__(self, inputs: dict[str, Tensor], max_new_tokens: int, temperature: float, seed: int) -> Run:
        """See Method."""
        inputs = {name: value.to(self.model.device) for name, value in inputs.items()}
        max_new_tokens = min(max_new_tokens, self.context - inputs["input_ids"].shape[1])  # ours end there, too
        first = generation_config(self.model, 1, temperature, self.warpers, self.ends)
        config = generation_config(self.model, max_new_tokens, temperature, self.warpers, self.ends, **self.settings)
        assisting = nullcontext() if self.assistant is None else bare(self.assistant, **self.settings)
        with bare(self.model), assisting:
            _, prefill = timed_generate(self.model, inputs, first, None, seed)
            with counted_forwards(self.model) as forwards:
                tokens, seconds = timed_generate(self.model, inputs, config, self.assistant, seed)
        skipped = 0 if self.settings else 1
        return Run(tokens, seconds, min(prefill, seconds), len(forwards) - skipped, len(tokens) - skipped)


def timed_generate(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    config: GenerationConfig,
    assistant: PreTrainedModel | None,
    seed: int,
) -> tuple[list[int], float]:
    """New tokens and seconds of one call."""
    torch.manual_seed(seed)
    start = time.perf_counter()
    output = model.generate(**inputs, generation_config=config, assistant_model=assistant)
    tokens = output[0, inputs["input_ids"].shape[1] :].tolist()
    return tokens, time.perf_counter() - start


def generation_config(
    model: PreTrainedModel,
    max_new_tokens: int,
    temperature: float,
    warpers: dict[str, Any] = PLAIN,
    ends: list[int] | None = None,
    **settings: Any,
) -> GenerationConfig:
    """The settings of transformers that mean the same as ours. warpers: beside temperature; greedily the repetition
    penalty alone. ends: see `HuggingFace`."""
    ends = model.generation_config.eos_token_id if ends is None else ends
    padding = model.generation_config.pad_token_id
    greedy = {"do_sample": False, "repetition_penalty": warpers["repetition_penalty"]}
    sampling = {"do_sample": True, "temperature": float(temperature), **warpers} if temperature else greedy
    return GenerationConfig(
        max_new_tokens=max_new_tokens, eos_token_id=ends, pad_token_id=padding, **sampling, **settings
    )


def forget(ready: Mapping[str, Method]) -> None:
    """Let our methods forget the replies that they have given."""
    for method in ready.values():
        if isinstance(pipe := getattr(method, "pipe", None), Pipeline):
            pipe.forget()


@contextmanager
def counted_forwards(model: PreTrainedModel) -> Iterator[list[None]]:
    """A list that grows by one entry per forward of the model."""
    calls: list[None] = []
    handle = model.register_forward_hook(lambda *_: calls.append(None))
    try:
        yield calls
    finally:
        handle.remove()


def methods(pipe: Pipeline, drafters: Sequence[str], shape: str | None = None) -> dict[str, Method]:
    """The methods of a run: our loop with every drafter, each followed by its partner of transformers.

    Args: pipe: a pipeline on the target, with any drafter. drafters: names, folders or hub ids, with the dtype of their
        weights where it is not the target's (`in_dtype`). shape: of drafts, as `read_shape` takes it, by default auto.
    """
    found: dict[str, Method] = {}
    for name in drafters:
        drafter, dtype = in_dtype(name)
        wanted = read_shape(shape) if shape and drafter != OURS else None  # no draft has no shape
        ours = pipe.with_drafter(drafter, wanted, drafter_dtype=dtype)
        found[name] = Ours(ours)
        partner = PARTNERS.get(ours.drafter.method or drafter)  # trained drafters may be given as folders
        if ours.target.model.config.is_encoder_decoder:  # their `generate` chooses the prompt itself
            partner = None
        if partner is not None and partner not in found:
            if partner != HF_ASSISTED or can_be_assisted(ours):
                found[partner] = partner_method(partner, ours)
            else:
                print_once(f"left out: {partner}, as transformers cannot pair these two models")
    return found


@cache
def print_once(line: str) -> None:
    """Tell it on stderr: tables make the same methods for every task and temperature."""
    print(line, file=sys.stderr)


def can_be_assisted(pipe: Pipeline) -> bool:
    """Whether the drafter's model has the target's vocabulary, as transformers asks for, and takes the token types of
    its inputs, which transformers hands on."""
    pair = pipe.target.model, cast("Any", pipe.drafter).net
    target, assistant = (set(signature(one.forward).parameters) for one in pair)
    sizes = {one.config.get_text_config().vocab_size for one in pair}
    return len(sizes) == 1 and assistant >= target & TOKEN_TYPES


def partner_method(partner: str, pipe: Pipeline) -> HuggingFace:
    """`generate`, drafting as our drafter does: the same model or n-grams, the same length, no early stop."""
    model, drafter = pipe.target.model, cast("Any", pipe.drafter)
    if partner == HF:
        return HuggingFace(model)
    # With the prompt, transformers takes a drafted image slot for one more picture and raises an error.
    settings: dict[str, Any] = {"suppress_tokens": list(pipe.target.placeholders) or None}
    if partner == HF_LOOKUP:
        settings |= {"prompt_lookup_num_tokens": drafter.length, "max_matching_ngram_size": drafter.ngram}
        return HuggingFace(model, settings)
    settings |= {"num_assistant_tokens": drafter.length, "num_assistant_tokens_schedule": "constant"}
    settings["assistant_confidence_threshold"] = 0.0
    return HuggingFace(model, settings, drafter.decoder.model)
