"""Shared by the tests of interchange: drafters as other projects lay them out, with random weights, and what they say,
computed from their tensors alone: own formulas, from the whole text, no cache and none of the library's networks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear, silu

from mmspec.targets import CausalTarget

H, HEADS, KV, SIZE, MLP, THETA, EPS = 32, 4, 2, 8, 48, 10000.0, 1e-6
WORDS = 60
LEVELS = 3
Tensors = dict[str, Tensor]
Says = Callable[["Text", Tensors, dict[str, Any]], Tensor]

SHAPE = {
    "hidden_size": H,
    "intermediate_size": MLP,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "num_hidden_layers": 1,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "model_type": "llama",
}


@dataclass
class Text:
    """A text, the pending token last, and tokens drafted after it. states: tap -> [T, H] of the text but the pending
    token; shallow: the same for all tokens, drafted ones too."""

    target: CausalTarget
    ids: list[int]
    path: list[int]

    def states(self, whole: bool = False) -> list[Tensor]:
        """[T, H] per hidden state."""
        ids = [*self.ids, *self.path] if whole else self.ids[:-1]
        out = self.target.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        return [state[0] for state in out.hidden_states]

    def embed(self, *ids: int) -> Tensor:
        """[n, H]."""
        return self.target.embed(torch.tensor(ids))

    def held(self, drafted: int) -> Tensor:
        """[T - 1 + drafted, H] what slots hold: the embeddings of all tokens but the first one."""
        return self.embed(*self.ids[1:], *self.path[:drafted])

    def places(self, slots: int) -> Tensor:
        """[slots] their positions, or [slots, SIZE / 2] those of every frequency."""
        return torch.arange(slots)

    def head(self, x: Tensor) -> Tensor:
        """[.., V]."""
        return linear(x, self.target.head.weight)


# Formulas


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """[T, heads, SIZE] at positions [T], or [T, SIZE / 2] of every frequency: the first half of a head is turned
    against the second."""
    angles = positions.view(len(x), 1, -1) * THETA ** (-torch.arange(0, SIZE, 2, dtype=x.dtype) / SIZE)
    first, second = x.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def attended(
    w: Tensors, name: str, x: Tensor, told: Tensor | None = None, start: int = 0, places: Tensor | None = None
) -> Tensor:
    """Attention of x [T, ..] over itself, causally, at places [T], by default 0 on; or over told [S, ..] and itself,
    all of it, x from `start` on."""
    keyed = x if told is None else torch.cat([told, x])
    where = torch.arange(len(keyed)) if places is None else places
    if told is not None:
        where = torch.cat([torch.arange(len(told)), start + torch.arange(len(x))])
    turned = where[len(keyed) - len(x) :]

    def part(which: str, of: Tensor) -> Tensor:
        made = linear(of, w[f"{name}.{which}_proj.weight"], w.get(f"{name}.{which}_proj.bias"))
        made = made.view(len(of), -1, SIZE)
        return normed(made, w[f"{name}.{which}_norm.weight"]) if f"{name}.{which}_norm.weight" in w else made

    q, k, v = rotated(part("q", x), turned), rotated(part("k", keyed), where), part("v", keyed)
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
    scores = torch.einsum("thd,shd->hts", q, k) / SIZE**0.5
    if told is None:
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
    mixed = torch.einsum("hts,shd->thd", scores.softmax(-1), v).flatten(1)
    return linear(mixed, w[f"{name}.o_proj.weight"])


def gated(w: Tensors, name: str, x: Tensor) -> Tensor:
    inner = silu(linear(x, w[f"{name}.gate_proj.weight"])) * linear(x, w[f"{name}.up_proj.weight"])
    return linear(inner, w[f"{name}.down_proj.weight"])


# What each project's drafters say: logits [V] after the drafted path


def eagle_says(text: Text, w: Tensors, config: dict[str, Any]) -> Tensor:
    features = text.states()[-1]
    for drafted in range(len(text.path) + 1):
        x = linear(torch.cat([text.held(drafted), features], -1), w["fc.weight"], w.get("fc.bias"))
        x = x + attended(w, "layers.0.self_attn", x, places=text.places(len(x)))
        x = x + gated(w, "layers.0.mlp", normed(x, w["layers.0.post_attention_layernorm.weight"]))
        features = torch.cat([features, x[-1:]])
    return text.head(x[-1])


def eagle3_says(text: Text, w: Tensors, config: dict[str, Any]) -> Tensor:
    states, name = text.states(), "midlayer" if "midlayer.hidden_norm.weight" in w else "layers.0"
    taps = config.get("eagle_aux_hidden_state_layer_ids") or (
        2,
        text.target.num_layers // 2,
        text.target.num_layers - 3,
    )
    features = linear(torch.cat([states[tap] for tap in taps], -1), w["fc.weight"])
    for drafted in range(len(text.path) + 1):
        beside = normed(features, w[f"{name}.hidden_norm.weight"])
        pair = torch.cat([normed(text.held(drafted), w[f"{name}.input_layernorm.weight"]), beside], -1)
        told = attended(w, f"{name}.self_attn", pair, places=text.places(len(pair)))
        x = (beside if config.get("norm_before_residual") else features) + told
        x = x + gated(w, f"{name}.mlp", normed(x, w[f"{name}.post_attention_layernorm.weight"]))
        features = torch.cat([features, x[-1:]])
    own = linear(normed(x[-1], w["norm.weight"]), w["lm_head.weight"])
    if "d2t" not in w:
        return own
    whole = torch.full((text.target.vocab_size,), -torch.inf, dtype=own.dtype)
    for word in range(len(own)):
        whole[word + int(w["d2t"][word])] = own[word]
    return whole


def medusa_says(text: Text, w: Tensors, config: dict[str, Any]) -> Tensor:
    level, layers, x = len(text.path), config["medusa_num_layers"], text.states()[-1][-1]
    for layer in range(layers):
        x = x + silu(linear(x, w[f"{level}.{layer}.linear.weight"], w[f"{level}.{layer}.linear.bias"]))
    return linear(x, w[f"{level}.{layers}.weight"])


def hydra_says(text: Text, w: Tensors, config: dict[str, Any]) -> Tensor:
    level, told = len(text.path), text.states()[-1]
    dropouts = config["hydra_head_arch"] == "prefix-mlp"
    if dropouts:
        name = "prefix_embeding_layer.layers.0"
        told = told + attended(w, f"{name}.self_attn", normed(told, w[f"{name}.input_layernorm.weight"]))
        told = told + gated(w, f"{name}.mlp", normed(told, w[f"{name}.post_attention_layernorm.weight"]))
        told = normed(told, w["prefix_embeding_layer.norm.weight"])
    x = torch.cat([told[-1], *text.embed(text.ids[-1], *text.path)])
    for layer in range(config["hydra_num_layers"]):
        name = f"hydra_mlp.{level}.{2 * layer + 1 if dropouts else layer}"
        skip = x if layer else linear(x, w[f"{name}.res_connection.weight"], w[f"{name}.res_connection.bias"])
        x = skip + silu(linear(x, w[f"{name}.linear.weight"], w[f"{name}.linear.bias"]))
    name = f"hydra_lm_head.{level}{'.1' if dropouts else ''}"
    return linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def kangaroo_says(text: Text, w: Tensors, config: dict[str, Any]) -> Tensor:
    x = text.states(whole=True)[config["exit_layer"]]
    x = x + attended(w, "layers.0.self_attn", normed(x, w["layers.0.input_layernorm.weight"]))
    return text.head(normed(x, w["norm.weight"])[-1])


def dflash_says(text: Text, w: Tensors, config: dict[str, Any]) -> Tensor:
    states, own = text.states(), config.get("dflash_config", config)
    taps = config.get("aux_hidden_state_layer_ids") or [tap + 1 for tap in own["target_layer_ids"]]
    context = normed(linear(torch.cat([states[tap] for tap in taps], -1), w["fc.weight"]), w["hidden_norm.weight"])
    mask = (
        w["embed_tokens.weight"][own["mask_token_id"]]
        if "embed_tokens.weight" in w
        else text.embed(own["mask_token_id"])[0]
    )
    x = torch.cat([text.embed(text.ids[-1]), mask.expand((config.get("block_size") or own["block_size"]) - 1, -1)])
    for layer in (name for name in ("layers.0", "layers.1") if f"{name}.input_layernorm.weight" in w):
        beside = normed(x, w[f"{layer}.input_layernorm.weight"])
        x = x + attended(w, f"{layer}.self_attn", beside, context, len(text.ids) - 1)
        x = x + gated(w, f"{layer}.mlp", normed(x, w[f"{layer}.post_attention_layernorm.weight"]))
    return text.head(normed(x, w["norm.weight"])[1 + len(text.path)])


# Synthetic checkpoints


@dataclass(frozen=True)
class Sample:
    """A checkpoint: configuration, tensors, what it says, and the method that it is read as."""

    method: str
    config: dict[str, Any]
    tensors: Tensors
    says: Says

    def write(self, folder: Path, **changes: Any) -> Path:
        """Into a folder. changes: fields of the configuration, None for those to leave out."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {name: value for name, value in {**self.config, **changes}.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(self.tensors, folder / "model.safetensors")
        return folder

    def but(self, **tensors: Tensor | None) -> Sample:
        """With other tensors, None for those to leave out; dots are written as two underscores."""
        named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        kept = {name: tensor for name, tensor in {**self.tensors, **named}.items() if tensor is not None}
        return replace(self, tensors=kept)


def randomly(seed: int, shapes: dict[str, tuple[int, ...]]) -> Tensors:
    """Norms about one, matrices about a third of what keeps the size of what they are given."""
    torch.manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        around = 1.0 if "norm" in name else 0.0
        made[name] = around + torch.randn(shape) * (0.5 / shape[-1] ** 0.5 if len(shape) > 1 else 0.2)
    return made


def attention(name: str, width: int = H) -> dict[str, tuple[int, ...]]:
    inward = {"q": HEADS * SIZE, "k": KV * SIZE, "v": KV * SIZE}
    return {f"{name}.{part}_proj.weight": (rows, width) for part, rows in inward.items()} | {
        f"{name}.o_proj.weight": (H, HEADS * SIZE)
    }


def mlp(name: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.gate_proj.weight": (MLP, H),
        f"{name}.up_proj.weight": (MLP, H),
        f"{name}.down_proj.weight": (H, MLP),
    }


def eagle(target: CausalTarget, biased: bool = True, qkv: bool = False) -> Sample:
    shapes = {"fc.weight": (H, 2 * H), **({"fc.bias": (H,)} if biased else {})}
    shapes |= attention("layers.0.self_attn") | mlp("layers.0.mlp")
    shapes |= {"layers.0.post_attention_layernorm.weight": (H,)}
    if qkv:
        shapes |= {f"layers.0.self_attn.{part}_proj.bias": (rows,) for part, rows in (("q", 32), ("k", 16), ("v", 16))}
    tensors = {**randomly(1, shapes), "embed_tokens.weight": target.embed.weight.detach().float().clone()}
    config = {**SHAPE, "vocab_size": target.vocab_size, "bias": biased, **({"qkv_bias": True} if qkv else {})}
    return Sample("eagle2", config, tensors, eagle_says)


def draft_vocabulary(vocab_size: int, words: int = WORDS) -> Tensors:
    torch.manual_seed(5)
    ids = torch.randperm(vocab_size)[:words].sort().values
    kept = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    return {"d2t": ids - torch.arange(words), "t2d": kept}


def eagle3(target: CausalTarget, speculators: bool = False, whole: bool = False) -> Sample:
    name = "layers.0" if speculators else "midlayer"
    words = target.vocab_size if whole else WORDS
    shapes = {"fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (words, H)}
    shapes |= {f"{name}.{norm}.weight": (H,) for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    shapes |= attention(f"{name}.self_attn", 2 * H) | mlp(f"{name}.mlp")
    tensors = {**randomly(2, shapes), **({} if whole else draft_vocabulary(target.vocab_size))}
    shape = {**SHAPE, "vocab_size": target.vocab_size}
    if not speculators:
        config = {**shape, "draft_vocab_size": words, "architectures": ["LlamaForCausalLMEagle3"]}
        return Sample("eagle3", config, tensors, eagle3_says)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": words,
        "norm_before_residual": True,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
        "transformer_layer_config": shape,
    }
    return Sample("eagle3", config, tensors, eagle3_says)


def medusa(target: CausalTarget, layers: int = 2) -> Sample:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(LEVELS):
        for layer in range(layers):
            shapes |= {f"{head}.{layer}.linear.weight": (H, H), f"{head}.{layer}.linear.bias": (H,)}
        shapes[f"{head}.{layers}.weight"] = (target.vocab_size, H)
    config = {"medusa_num_heads": 2, "medusa_num_layers": layers, "base_model_name_or_path": "some/model"}
    return Sample("medusa", config, randomly(3, shapes), medusa_says)


def hydra(target: CausalTarget, plus: bool = False, layers: int = 2) -> Sample:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(LEVELS):
        for layer in range(layers):
            name = f"hydra_mlp.{head}.{2 * layer + 1 if plus else layer}"
            width = H if layer else (head + 2) * H
            for module in ("linear",) if layer else ("linear", "res_connection"):
                shapes |= {f"{name}.{module}.weight": (H, width), f"{name}.{module}.bias": (H,)}
        name = f"hydra_lm_head.{head}{'.1' if plus else ''}"
        shapes |= {f"{name}.weight": (target.vocab_size, H), f"{name}.bias": (target.vocab_size,)}
    tensors: Tensors = {}
    if plus:
        name = "prefix_embeding_layer.layers.0"
        width = target.decoder.config.intermediate_size
        shapes |= attention(f"{name}.self_attn") | {
            f"{name}.mlp.{part}_proj.weight": (H, width) if part == "down" else (width, H)
            for part in ("gate", "up", "down")
        }
        norms = (f"{name}.input_layernorm", f"{name}.post_attention_layernorm", "prefix_embeding_layer.norm")
        shapes |= {f"{norm}.weight": (H,) for norm in norms}
        tensors = {"prefix_embeding_layer.embed_tokens.weight": target.embed.weight.detach().float().clone()}
    config = {
        "hydra_num_heads": LEVELS,
        "hydra_num_layers": layers,
        "hydra_head_arch": "prefix-mlp" if plus else "mlp",
        "grounded_heads": True,
        "hidden_state_offset": 0,
    }
    return Sample("hydra++" if plus else "hydra", config, {**randomly(4, shapes), **tensors}, hydra_says)


def kangaroo(target: CausalTarget) -> Sample:
    shapes = {"layers.0.input_layernorm.weight": (H,), "norm.weight": (H,), **attention("layers.0.self_attn")}
    config = {**SHAPE, "vocab_size": target.vocab_size, "exit_layer": 2}
    return Sample("kangaroo", config, randomly(6, shapes), kangaroo_says)


def dflash(target: CausalTarget, speculators: bool = False) -> Sample:
    shapes = {"fc.weight": (H, 2 * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    for name in ("layers.0", "layers.1"):
        shapes |= attention(f"{name}.self_attn") | mlp(f"{name}.mlp")
        shapes |= {f"{name}.{norm}.weight": (H,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{name}.self_attn.{part}_norm.weight": (SIZE,) for part in ("q", "k")}
    tensors = randomly(7, shapes)
    shape = {**SHAPE, "num_hidden_layers": 2, "vocab_size": target.vocab_size, "head_dim": SIZE, "model_type": "qwen3"}
    if not speculators:
        own = {"target_layer_ids": [1, 3], "mask_token_id": 7, "block_size": 5}
        return Sample("dflash", {**shape, "dflash_config": own}, tensors, dflash_says)
    table = target.embed.weight.detach().float().clone()
    table[9] = torch.randn(H) * 0.3
    vocabulary = draft_vocabulary(target.vocab_size)
    rows = target.head.weight.detach().float()[vocabulary["t2d"]]
    config = {
        "speculators_model_type": "dflash",
        "aux_hidden_state_layer_ids": [2, 4],
        "block_size": 5,
        "mask_token_id": 9,
        "draft_vocab_size": WORDS,
        "transformer_layer_config": shape,
    }
    extra = {"embed_tokens.weight": table, "lm_head.weight": rows.clone(), **vocabulary}
    return Sample("dflash", config, {**tensors, **extra}, dflash_says)
