"""Models of true size with random weights, built on the device from the configurations in `configs/`.

Every file holds a title, where its numbers come from, the length of a usual prompt, how many rows of the output head a
draft needs (null for all), and the configuration. Weights are drawn as transformers draws them, never zeros: products
of zeros run faster.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mmspec.benchmarks.gpu.floors import Dims
from mmspec.errors import unknown_name
from mmspec.safe_files import read_json

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 199,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
"""The small mode: the same classes and groups of heads, two layers, a window that prompts exceed."""

FIRST = ("llava-7b", "smolvlm-2b")
"""Those whose figures are wanted first."""


@dataclass(frozen=True)
class Spec:
    """A model of the list. config: a transformers configuration. prompt: tokens of a usual prompt.

    draft_vocabulary: words that its drafter knows, where all would cost more than they bring; None for all.
    """

    name: str
    title: str
    source: str
    prompt: int
    draft_vocabulary: int | None
    config: Any

    @property
    def dims(self) -> Dims:
        """What decides its floors."""
        return Dims.of(self.config)


@cache
def names() -> tuple[str, ...]:
    """The models of the list."""
    found = sorted(file.name.removesuffix(".json") for file in _folder().iterdir() if file.name.endswith(".json"))
    return tuple(sorted(found, key=lambda name: (name not in FIRST, name)))


def spec_of(name: str, small: bool = False) -> Spec:
    """The model of that name; with `small`, its class and layout in a size that any CPU runs.

    Raises: UnknownNameError.
    """
    if name not in names():
        raise unknown_name("model of the GPU benchmark", name, names())
    told = read_json(_folder() / f"{name}.json")
    values = dict(told["config"])
    if small:
        heads, kv_heads = values["num_attention_heads"], values["num_key_value_heads"]
        values.update(
            TINY, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=max(1, 4 * kv_heads // heads)
        )
        if values.get("sliding_window"):
            values.update(sliding_window=16, layer_types=["sliding_attention", "full_attention"])
    prompt = 48 if small else told["prompt"]
    reduced = told["draft_vocabulary"] and (64 if small else told["draft_vocabulary"])
    return Spec(name, told["title"], told["source"], prompt, reduced, AutoConfig.for_model(**values))


def build(spec: Spec, device: torch.device, dtype: torch.dtype, layers: int | None = None) -> PreTrainedModel:
    """The model with random weights, made on the device; no token ends its answers.

    Args: layers: a cut of its first layers instead of all.
    """
    config = deepcopy(spec.config)  # a model holds on to what it is given, and changes it
    if layers is not None:
        values = {**config.to_dict(), "num_hidden_layers": layers}
        if values.get("layer_types"):
            values["layer_types"] = values["layer_types"][-layers:]  # the last ones, which are of both kinds
        config = AutoConfig.for_model(**values)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval()


def prompt_of(spec: Spec, length: int, device: torch.device, rows: int = 1) -> torch.Tensor:
    """[rows, length] random ids, the same every time."""
    draw = torch.Generator().manual_seed(length)
    return torch.randint(1, spec.config.vocab_size, (rows, length), generator=draw).to(device)


def _folder() -> Any:
    return files("mmspec.benchmarks.gpu") / "configs"
