"""Shared by the tests of the core: tiny random decoders, drafters of every quality, one call that runs the loop.

Models are float64, because equality of tokens is exact only where no rounding can turn an argmax round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tiny
import torch
from torch import Tensor, nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from mmspec.acceptance.exact import Exact
from mmspec.contract import Round
from mmspec.control import OWN
from mmspec.decode import decode
from mmspec.drafters.dflash import BlockNet
from mmspec.drafters.dspark import SparkNet
from mmspec.drafters.eagle import Eagle, EagleHead
from mmspec.drafters.independent import Independent
from mmspec.drafters.layer import block_config
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.sampling import Sampler, Sampling
from mmspec.stopping import Stop
from mmspec.targets import CausalTarget

VOCAB = 97
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
WINDOW = 8  # shorter than every prompt here


def llama(attention: str = "sdpa", **changes: Any) -> PreTrainedModel:
    return build(tiny.LlamaForCausalLM, LlamaConfig(**{**SMALL, **changes}), attention)


def mistral(attention: str = "sdpa") -> PreTrainedModel:
    """Every layer has a sliding window."""
    return build(MistralForCausalLM, MistralConfig(**SMALL, sliding_window=WINDOW, head_dim=8), attention)


def qwen2(attention: str = "sdpa") -> PreTrainedModel:
    """The second layer has a sliding window, the first has not."""
    config = Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    return build(Qwen2ForCausalLM, config, attention)


def gemma3(attention: str = "sdpa") -> PreTrainedModel:
    """Windows in two of three layers, embeddings scaled inside their module."""
    layers = ["sliding_attention", "sliding_attention", "full_attention"]
    special = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": WINDOW, "layer_types": layers}
    return build(Gemma3ForCausalLM, Gemma3TextConfig(**{**SMALL, **special, "num_hidden_layers": 3}), attention)


def build(kind: Any, config: Any, attention: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = kind(config).double().eval()
    model.set_attn_implementation(attention)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def simple_llama(strength: float = 0.0) -> PreTrainedModel:
    """A Llama whose layers change little, so that its last token nearly decides the next: easy for an EAGLE head."""
    model = llama()
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding /= embedding.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-6)  # the padding row is zero
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= strength
            layer.mlp.down_proj.weight *= strength
    return model


def prompts(*lengths: int, seed: int = 0, vocab: int = VOCAB) -> dict[str, Tensor]:
    """Left-padded random prompts of these lengths. They repeat themselves, so that prompt lookup can copy."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids, mask = torch.zeros(2, len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        half = torch.randint(30, vocab, (length // 2 + 1,), generator=generator)
        ids[row, width - length :] = half.repeat(2)[:length]
        mask[row, width - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def row_of(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One row of a padded batch as a call of its own."""
    real = inputs["attention_mask"][row].bool()
    rest = {name: value[row : row + 1] for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}
    return {"input_ids": inputs["input_ids"][row : row + 1, real], **rest}


@dataclass
class Answer:
    """rows: emitted ids of each row. rounds: all rounds, the prefill first. finish: why each row ended."""

    rows: list[list[int]]
    rounds: list[Round]
    finish: list[str]

    @property
    def accepted(self) -> list[int]:
        """Drafted tokens kept, one number per round and row that emitted something."""
        return [n for r in self.rounds[1:] for n, ids in zip(r.drafted, r.tokens, strict=True) if ids]


def answer(
    target: Any,
    drafter: Any,
    inputs: dict[str, Tensor],
    budget: int = 20,
    sampling: Sampling | None = None,
    rule: Any = None,
    eos: Sequence[int] = (),
    strings: Sequence[str] = (),
    text_of: Callable[[list[int]], str] | None = None,
    control: Any = OWN,
) -> Answer:
    """Run the loop to its end."""
    drafter.bind(target)
    sampler = Sampler(sampling or Sampling(), len(inputs["input_ids"]), torch.device("cpu"))
    stop = Stop(eos, budget, strings, text_of)
    inputs = {**inputs, "max_new_tokens": budget}
    rounds = list(decode(target, drafter, rule or Exact(), inputs, sampler, stop, control))
    rows = [[token for r in rounds for token in r.tokens[row]] for row in range(len(inputs["input_ids"]))]
    assert rows == stop.outputs
    return Answer(rows, rounds, stop.finish)


def check_endings(target: Any, inputs: dict[str, Tensor], drafters: dict[str, Callable[[], Any]]) -> None:
    """Rows of three prompts end where they end without a drafter, at end tokens of different rounds or at a budget."""
    free = answer(target, NoDrafter(), inputs, 20)
    eos = [free.rows[1][4], free.rows[2][9]]
    for budget in (1, 2, 3, 20):
        want = answer(target, NoDrafter(), inputs, budget, eos=eos)
        for name, make in drafters.items():
            got = answer(target, make(), inputs, budget, eos=eos)
            assert (got.rows, got.finish) == (want.rows, want.finish), (name, budget)


def perturbed(model: nn.Module, amount: float, seed: int = 1) -> Any:
    """A copy of `model` whose weights are off by `amount` times their own spread."""
    import copy

    torch.manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += amount * weight.std() * torch.randn_like(weight) if weight.numel() > 1 else 0
    return other


def language_part(model: PreTrainedModel) -> PreTrainedModel:
    """The model itself if it is text-only, else a Llama with its text weights, as a language-only drafter."""
    if not hasattr(model.model, "text_model"):
        return model
    text = tiny.LlamaForCausalLM(LlamaConfig(**model.config.text_config.to_dict())).to(model.dtype).eval()
    text.model.load_state_dict(model.model.text_model.state_dict())
    text.lm_head.load_state_dict(model.lm_head.state_dict())
    return text


def block_net(kind: type[BlockNet], target: CausalTarget) -> BlockNet:
    """A random block drafter of five slots, some of whose drafts are accepted."""
    torch.manual_seed(7)
    made = kind(block_config(target, 2), (0, 2), 5).to(target.model.dtype)
    torch.nn.init.normal_(made.mask)
    if isinstance(made, SparkNet):  # its head says nothing before it has learnt
        torch.nn.init.normal_(made.pull.weight, std=0.1)
        torch.nn.init.normal_(made.worth.weight, std=0.1)
    return made


def eagle_head(model: PreTrainedModel, seed: int = 3) -> EagleHead:
    """A random head that fits `model`."""
    torch.manual_seed(seed)
    size = model.config.get_text_config().hidden_size
    config = LlamaConfig(
        hidden_size=size,
        intermediate_size=2 * size,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return EagleHead(config).double()


def copying_head(model: PreTrainedModel, noise: float = 0.0) -> EagleHead:
    """A head that passes the embedding of the last token on, and little else: exact for `simple_llama()`."""
    head = eagle_head(model)
    size = head.config.hidden_size
    with torch.no_grad():
        head.fc.weight.copy_(torch.cat([torch.eye(size), 0.3 * noise * torch.randn(size, size)], 1))
        head.fc.bias.zero_()
        for weight in head.layer.parameters():
            weight *= noise
    return head


TEXT_MODELS = {"llama": llama, "mistral": mistral, "qwen2": qwen2, "gemma3": gemma3}

DRAFTERS: dict[str, Callable[[PreTrainedModel], Any]] = {
    "none": lambda model: NoDrafter(),
    "prompt-lookup": lambda model: PromptLookup(length=5),
    "spd-random": lambda model: Independent(perturbed(language_part(model), 3.0), length=3),
    "spd-perturbed": lambda model: Independent(perturbed(language_part(model), 0.1), length=4),
    "spd-copy": lambda model: Independent(language_part(model), length=5),
    "eagle-random": lambda model: Eagle(eagle_head(model), depth=4, width=3, top_k=3, total=10),
    "eagle-copying": lambda model: Eagle(copying_head(model, 0.1), depth=4, width=3, top_k=4, total=12),
}


def target_of(model: PreTrainedModel) -> CausalTarget:
    return CausalTarget(model)
