"""The public face: `load` a model with a drafter and ask the `Pipeline`; in one call, `mmspec.one_call`.

pipe = mmspec.load("smolvlm-mini")
print(pipe("chart.png", "Which bar is the tallest?").text)
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from threading import RLock
from typing import Any, ParamSpec, TypeVar, Unpack

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmspec.base_target import BaseTarget
from mmspec.checkpoints import JUDGED, find_model
from mmspec.contract import Drafter, Rule, Shape
from mmspec.control import OWN, Control, asked_shape, control_for
from mmspec.decode import choose_kind, decode, within_memory
from mmspec.drafters.precision import read_format
from mmspec.errors import InputError, shorten, unknown_name
from mmspec.loading import adopt_target, check_names, compile_target, find_drafter, find_rule, read_target
from mmspec.options import (
    SPOKEN,
    Options,
    answer_count,
    check_chats,
    check_options,
    check_pictures,
    end_tokens,
    given,
    special_options,
    stop_strings,
    warn_unserved,
)
from mmspec.prompts import Asked, Chat, is_single, read_prompts
from mmspec.registry import name_of
from mmspec.results import Stream
from mmspec.targets import PER_TOKEN
from mmspec.text import decode_text

DEFAULT_MODEL = "smolvlm-mini"

ELSEWHERE = {
    "do_sample": "temperature=0 is greedy, above 0 samples",
    "num_return_sequences": "n asks for several answers to a prompt",
    "max_length": "max_new_tokens counts the new tokens alone",
    "stop_strings": "stop takes them",
    "streamer": "stream(image, prompt) yields an answer piece by piece",
    "callback_on_step_end": "stream(prompt=...) yields a picture while it is drawn",
    "generator": "seed takes a number",
    "custom_generate": "load(model) gives a pipeline, whose generate(...) takes what HF generate does",
    "assistant_model": "load(model, drafter) takes a drafter",
    "audio": "voice takes it",
    **{
        name: f"{name} belongs to load: load(model, {name}=...)"
        for name in ("drafter", "acceptance", "shape", "processor", "dtype", "device", "compile", "drafter_dtype")
    },
}
"""What HF `generate` calls otherwise, or is told in another place."""

_OWN_INPUTS = {
    "past_key_values", "use_cache", "labels", "inputs_embeds", "position_ids", "cache_position", "return_dict",
    "output_attentions", "output_hidden_states", "logits_to_keep", "mm_encoder_outputs", "kwargs",
}  # fmt: skip
"""Arguments of a model's forward that are not for callers: the decode loop sets them, or they are for training."""

_IDS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""What ids may be stored as."""

P = ParamSpec("P")
T = TypeVar("T")

READING = RLock()
"""Processors and tokenizers, which several pipelines may share, remember how they were last asked to pad, and in what
language: one prompt at a time."""


def _told(function: Callable[P, T]) -> Callable[P, T]:
    """The function, for which a keyword that it does not have is an error of ours."""
    known = inspect.signature(function).parameters

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                note = f"{name} belongs to the call: pipe(image, prompt, {name}=...)"
                raise unknown_name("option", name, known, note if name in Options.__annotations__ else "")
        return function(*args, **kwargs)

    return call


@_told
def load(
    model: str | os.PathLike[str] | PreTrainedModel = DEFAULT_MODEL,
    drafter: Any = None,
    acceptance: str | Rule = "exact",
    *,
    shape: str | Shape | None = None,
    processor: Any = None,
    dtype: Any = None,
    device: Any = None,
    compile: bool | None = None,
    drafter_dtype: Any = None,
) -> Pipeline:
    """A model, a drafter and an acceptance rule, ready to answer.

    Args:
        model: a bundled name, a local folder, a hub id, or a loaded HF model, which is put into evaluation mode.
        drafter: None or "auto" for the best trained one that lies beside the model, else its checkpoint's own layer for
            drafts ("mtp"), else prompt lookup, or what its family usually takes ("scd-gs" for codes of pictures, even
            beside a trained one); a method's name; a folder;
            a hub id; a drafter, which serves the model that it was given to last; "none" for plain autoregressive
            decoding.
        acceptance: a rule's name, perhaps with settings ("tolerance=4", "lantern:delta=0.1:k=50"), or a rule, of
            which a copy is bound. The default, "exact", gives the same output with every drafter.
        shape: how large drafts are. "auto" learns what pays on this computer, down to no drafts at all, and never
            changes an output; "own" is the drafter's own setting; a `Shape` is that one, also as a text, "5x4x16"
            (depth, width, nodes). None is "auto", and for a drafter that you made yourself "own". Rules that let drafts
            decide, such as "ratio", make "auto" mean "own" above temperature 0.
        processor: the HF processor or tokenizer; None takes the one in the model's folder.
        dtype: a torch dtype or its name, "auto" for that of the weights; None is float32 on a CPU, else "auto".
        device: where to run; None is a CUDA device if there is one, else the CPU.
        compile: verify with compiled forwards on a cache of fixed size (`mmspec.engine`); with "exact", and at
            temperature 0, the tokens are the same, other rules keep their law. None is True on CUDA for models that
            load() reads and that run under sdpa attention, else False. The first requests of each batch size and length
            take minutes with large models. On CUDA forwards and whole drafts are captured in graphs, too, attention is
            a Triton kernel, and rounds may start before the last one is read (benchmarks/gpu/results). The model is
            changed in place: layers that read the same input share a product, on CUDA attention is another.
        drafter_dtype: of the drafter's own linear layers: "int8" (weights alone, a scale per row), "bfloat16",
            "float16" or "float32"; None is the target's. Outputs stay the same, drafts are kept a little less often.
    Raises: Error: a subclass that says what does not fit.
    """
    numbers = read_format(drafter_dtype)
    shape = asked_shape(shape)
    if isinstance(model, PreTrainedModel):
        if dtype is not None or device is not None:
            raise InputError(
                "dtype and device are for models that load() reads; move a loaded model with model.to(...)"
            )
        folder = Path(model.name_or_path) if model.name_or_path and Path(model.name_or_path).is_dir() else None
        target, processor = adopt_target(model, folder, processor)
    elif isinstance(model, str | os.PathLike):
        check_names(drafter, acceptance, find_model(model, JUDGED))
        folder = find_model(model)
        target, processor = read_target(folder, processor, dtype, device)
    else:
        raise InputError(f"model must be a name, a folder, a hub id or an HF model, not {type(model).__name__}")
    compile_target(target, compile, ours=not isinstance(model, PreTrainedModel))
    warn_unserved(target.model.generation_config, target.applies)
    found = find_drafter(drafter, target, folder, numbers)
    control = control_for(shape or usual_shape(drafter), found)
    return Pipeline(target, processor, found, find_rule(acceptance, target), folder, control)


class Pipeline:
    """A target with its processor, a drafter, the control of its drafts, and an acceptance rule. Made by `load`."""

    def __init__(
        self,
        target: Any,
        processor: Any,
        drafter: Drafter,
        rule: Rule,
        folder: Path | None = None,
        control: Control = OWN,
    ) -> None:
        choose_kind(rule, drafter)  # a misfit is found now, not at the first request
        self.target, self.processor, self.drafter, self.rule, self.folder = target, processor, drafter, rule, folder
        self.control = control

    def __repr__(self) -> str:
        drafter, rule = self.names
        return f"Pipeline({type(self.target.model).__name__}, {drafter}, {rule})"

    @property
    def names(self) -> tuple[str, str]:
        """The method of the drafter and the rule, by their names."""
        modality = self.target.modality
        return name_of("drafters", self.drafter, modality), name_of("rules", self.rule, modality)

    def with_drafter(
        self,
        drafter: Any,
        shape: str | Shape | None = None,
        acceptance: str | Rule | None = None,
        drafter_dtype: Any = None,
    ) -> Pipeline:
        """A pipeline on the same target with another drafter, shape or acceptance rule, given as for `load`; without
        `acceptance` with the same rule."""
        shape = asked_shape(shape)
        found = find_drafter(drafter, self.target, self.folder, read_format(drafter_dtype))
        control = control_for(shape or usual_shape(drafter), found)
        rule = self.rule if acceptance is None else find_rule(acceptance, self.target)
        return Pipeline(self.target, self.processor, found, rule, self.folder, control)

    def forget(self) -> None:
        """Let the drafter forget what earlier replies taught it, if it remembers any (`recycling` does)."""
        self.drafter.forget()

    def prepare(
        self,
        image: Any,
        prompt: Asked,
        voice: Any = None,
        n: int = 1,
        size: Any = None,
        thinking: bool | None = None,
    ) -> dict[str, Any]:
        """Model inputs of a prompt, or of a list of prompts, with their pictures (or, where models take them, with a
        voice or a list of them, the size to draw, or whether to think first): batched, padded on the left. Each prompt
        stands there `n` times.
        """
        if self.processor is None:
            raise InputError("this pipeline has no processor: pass processor= to load, or use generate(**model_inputs)")
        n = answer_count(given({"n": n}))
        several, single = isinstance(voice, list | tuple), is_single(prompt)
        rows = 1 if single else n
        voices = repeated(list(voice), rows) if several else voice
        told = given({"voice": voices, "size": size, "thinking": thinking})
        if told:
            check_options(told, self.target)
        texts, pictures = read_prompts(prompt, image, self.target.wordless)
        check_pictures(pictures, self.target)
        check_chats(texts, self.target)
        if several and len(voice) != len(texts):
            raise InputError(f"{len(texts)} prompts came with {len(voice)} voices: give one, or one for each")
        with READING:
            inputs = self.target.encode(self.processor, repeated(texts, rows), repeated(pictures, rows), **told)
        # however a single prompt's tensors are laid out, n rows of it are n times the whole
        return {name: torch.cat([value] * n) for name, value in inputs.items()} if single and n > 1 else inputs

    def __call__(self, image: Any = None, prompt: Asked = "", **options: Unpack[Options]) -> Any:
        """Answer a prompt about one or several pictures, or about none.

        Args:
            image: a PIL image, path, bytes or numpy array, or a list of them, which stand before the text.
            prompt: a text, or, of models that write, a chat: a list of messages as chat templates take them, `{"role":
                "user", "content": text}`, or with parts in place of the text, `{"type": "image", "image": picture}`
                among them. A list of texts or chats is a batch: then image is a list of the same length, whose items
                may be lists, or None.
            options: max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, n; see `Options`.
        Returns: a `Generation`; for a list of prompts a list of them; with n above 1 lists of n in their place.
        """
        return self.stream(image, prompt, **options).finish()

    def stream(self, image: Any = None, prompt: Asked = "", **options: Unpack[Options]) -> Stream:
        """The same, round by round: an iterator of `Piece`; for a list of prompts, of lists of them.

        A piece of an image model has the picture as far as it is known, decoded when its `image` is asked for.
        """
        told = given(options, ELSEWHERE)
        n = answer_count(told)
        inputs = self.prepare(image, prompt, n=n, **{name: told[name] for name in SPOKEN if name in told})
        return self._start(inputs, told, is_single(prompt), n)

    def generate(self, input_ids: Any = None, *more: Any, **model_inputs: Any) -> Any:
        """Generate from the tensors that HF `generate` takes, with the options of a call but what `prepare` takes.

        Args: input_ids: [B, T]. model_inputs: `attention_mask`, pixels, ...; and options, see `Options`.
        Returns: a `Generation`, or for B > 1 a list of them.
        """
        if more or {"prompt", "image", "images"} & model_inputs.keys():
            raise InputError("generate takes tensors, by name beside input_ids: ask with pipe(image, prompt)")
        model_inputs["input_ids"] = input_ids
        options = given({name: model_inputs.pop(name) for name in Options.__annotations__ if name in model_inputs})
        inputs = {name: value for name, value in model_inputs.items() if value is not None}
        self._check_inputs(inputs)
        inputs = {**mask_of(inputs["input_ids"], self.target.model.generation_config), **inputs}
        if answer_count(options) > 1:
            raise InputError("n is for prompts: of tensors repeat the rows instead")
        for name in SPOKEN:
            if name in options:
                raise InputError(f"{name} is for prompts: of tensors pass those that prepare(.., {name}=...) makes")
        return self._start(inputs, options, len(inputs["input_ids"]) == 1, 1).finish()

    def _start(self, inputs: dict[str, Any], options: dict[str, Any], single: bool, n: int) -> Stream:
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        tokenizer = self.target.tokenizer
        check_options(options, self.target)
        sampler = self.target.sampler(self.target.sampling(options), len(ids))
        strings = stop_strings(options)
        if strings and tokenizer is None:
            raise InputError("stop strings need a tokenizer: pass processor= to load")
        budget = options.get("max_new_tokens", self.target.budget)
        stop = self.target.stopping(budget, strings, partial(decode_text, tokenizer, special=True))
        inputs = {**inputs, **special_options(options), "max_new_tokens": budget, "n": n if single else 1}
        rounds = decode(self.target, self.drafter, self.rule, inputs, sampler, stop, self.control)
        rounds = within_memory(rounds, self.target, inputs)
        lengths = [ids.shape[1]] * len(ids) if mask is None else mask.sum(1).tolist()
        return Stream(rounds, stop, self.target, self.rule, inputs, lengths, single, n)

    def _check_inputs(self, inputs: dict[str, Any]) -> None:
        known = inspect.signature(self.target.model.forward).parameters.keys()
        takes = (known | {"input_ids", *self.target.extra_inputs}) - _OWN_INPUTS
        for name in inputs:
            if name not in takes:
                raise unknown_name("input", name, takes | Options.__annotations__.keys(), ELSEWHERE.get(name, ""))
        ids = inputs.get("input_ids")
        if not isinstance(ids, Tensor):
            raise InputError(f"input_ids must be a tensor [B, T] of ids, not {shorten(ids)}")
        dense = ids.layout == torch.strided and not ids.is_meta
        if not dense or ids.dtype not in _IDS or ids.ndim != 2 or not ids.numel():
            kind = f"{list(ids.shape)} of {ids.dtype}, {ids.layout}, on {ids.device}"
            raise InputError(f"input_ids must be a tensor [B, T] of ids (torch.long), not {kind}")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.target.prompt_vocab_size:
            raise InputError(
                f"input_ids hold {low} to {high}; the model knows ids 0 to {self.target.prompt_vocab_size - 1}"
            )
        for name in ("attention_mask", *PER_TOKEN):
            along = inputs.get(name)
            if along is not None and (not isinstance(along, Tensor) or along.shape != ids.shape):
                raise InputError(f"{name} must be a tensor of the shape of input_ids, {list(ids.shape)}")


def check_request(family: type[BaseTarget], image: Any, prompt: Asked, options: dict[str, Any]) -> tuple[Any, Any]:
    """What is wrong with a request to a model, said before its weights are fetched and read.

    Args: family: the model's target class. image, prompt: as for a call. options: the `given` ones.
    Returns: both as they are to be passed on: all pictures are read.
    """
    check_options(options, family)
    texts, pictures = read_prompts(prompt, image, family.wordless)
    check_pictures(pictures, family)
    check_chats(texts, family)
    beside = [None if isinstance(text, Chat) else seen for text, seen in zip(texts, pictures, strict=True)]
    return (beside[0], texts[0]) if is_single(prompt) else (beside, texts)


def mask_of(ids: Tensor, config: Any) -> dict[str, Tensor]:
    """The `attention_mask` that HF `generate` infers of ids [B, T] without one: where they hold the generation config's
    token for padding, and it ends no answer."""
    pad = config.pad_token_id
    padded = pad is not None and pad not in end_tokens(config) and bool((ids == pad).any())
    return {"attention_mask": (ids != pad).long()} if padded else {}


def repeated(items: list[Any], n: int) -> list[Any]:
    """Each item n times, one after the other."""
    return [item for item in items for _ in range(n)]


def usual_shape(drafter: Any) -> str:
    """The shape where none is asked for: a drafter that the user made has the user's settings."""
    return "auto" if drafter is None or isinstance(drafter, str | os.PathLike) else "own"
