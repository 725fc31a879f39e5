"""Shared by the tests of trained drafters: tiny networks of every method, random or taught one answer by heart, and
what each of them should say, computed without a cache, from the whole text.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mmspec.drafters.heads import HeadDrafter
from mmspec.registry import modalities, resolve
from mmspec.targets import CausalTarget
from mmspec.training.answers import Answered
from mmspec.training.dflash import block_mask
from mmspec.training.features import Features
from mmspec.training.muon import build_optimizer
from mmspec.training.steps import HeadRecipe

ALL = {name: resolve("recipes", name) for name, serves in modalities("recipes").items() if "any" in serves}
RECIPE_OF: dict[str, Any] = {name: recipe for name, recipe in ALL.items() if issubclass(recipe, HeadRecipe)}
METHODS = list(RECIPE_OF)
SIZES: dict[str, dict[str, Any]] = dict.fromkeys(("dflash", "dspark"), {"block": 6, "anchors": 8})


class Given(Features):
    """Hidden states that a test made up: row.index -> [T, taps, H]."""

    def __init__(self, states: dict[int, Tensor], taps: tuple[int, ...] = (0,)) -> None:
        self.kept, self.last, self.free, self.taps = states, {}, 0, taps
        self.device = torch.device("cpu")


def recipe_of(method: str, **changes: Any) -> Any:
    return RECIPE_OF[method](**{**SIZES.get(method, {}), **changes})


def network(method: str, target: CausalTarget, seed: int = 3, noise: float = 0.15) -> Any:
    """A random network, float64. Noise on all weights, because many begin at zero."""
    net = recipe_of(method, seed=seed).build(target).double()
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in net.parameters():
            weight += noise * torch.randn_like(weight)
    return net.eval()


def drafter(method: str, net: Any, **options: Any) -> HeadDrafter:
    return RECIPE_OF[method].drafter_class(net, **options)


@torch.no_grad()
def states_of(target: CausalTarget, inputs: dict[str, Tensor], ids: list[int]) -> list[Tensor]:
    """[1, T, H] hidden states of a text, one per tap, by the plain model; inputs: what goes with a single prompt."""
    one = {name: value for name, value in inputs.items() if name != "attention_mask"}
    return list(target.model(**{**one, "input_ids": torch.tensor([ids])}, output_hidden_states=True).hidden_states)


def unrolled(net: Any, target: CausalTarget, features: Tensor, ids: list[int], path: list[int]) -> Tensor:
    """[H] the estimate at the last token: true features up to the pending token, then the head's own."""
    tokens = torch.tensor([ids[1:] + path])
    for length in range(len(ids) - 1, tokens.shape[1] + 1):
        positions = torch.arange(length)[None]
        out = net(target.embed(tokens[:, :length]), features, positions, None)
        features = torch.cat([features, out[:, -1:]], 1)
    return features[0, -1]


@torch.no_grad()
def expected(
    method: str, net: Any, target: CausalTarget, inputs: dict[str, Tensor], ids: list[int], path: list[int]
) -> Tensor:
    """[V] logits of what follows the drafted `path` after the text `ids` (the pending token last), from scratch."""
    states = states_of(target, inputs, ids[:-1])
    final, text = states[target.num_layers], torch.tensor([ids + path])
    level = len(path)
    if method in ("eagle", "eagle2", "hass"):
        return target.head(unrolled(net, target, final, ids, path))
    if method == "eagle3":
        fused = net.fc(torch.cat([states[tap] for tap in net.settings["taps"]], -1))
        own = net.own_logits(unrolled(net, target, fused, ids, path))
        whole = torch.full((target.vocab_size,), -torch.inf, dtype=own.dtype)
        whole[net.ids] = own
        return whole
    if method == "medusa":
        return target.head(net.heads[level](final[0, -1]))
    if method in ("hydra", "hydra++"):
        feature = final[0, -1]
        if method == "hydra++":
            positions = torch.arange(final.shape[1])[None]
            feature = net.layer(final, position_embeddings=net.rotary(final, positions))[0, -1]
        since = target.embed(text[0, len(ids) - 1 :])
        return target.head(net.heads[level](torch.cat([feature, *since])))
    if method == "kangaroo":
        shallow = states_of(target, inputs, ids + path)[net.settings["exit_layer"]]
        return target.head(net(shallow, torch.arange(shallow.shape[1])[None], None)[0, -1])
    assert method in ("dflash", "dspark")
    if method == "dspark":
        return target.head(told(net, target, inputs, ids, path)[0])
    return target.head(slots(net, target, inputs, ids)[level + 1])


@torch.no_grad()
def slots(net: Any, target: CausalTarget, inputs: dict[str, Tensor], ids: list[int]) -> Tensor:
    """[block, H] what a block drafter gives after a prompt and `ids`."""
    states = states_of(target, inputs, ids[:-1])
    context = net.fuse(torch.cat([states[tap] for tap in net.settings["taps"]], -1))
    cache, places = DynamicCache(), torch.arange(context.shape[1] + net.settings["block"])[None]
    net.absorb(context, places[:, : context.shape[1]], cache)
    mask = block_mask(torch.tensor([[len(ids) - 1]]), context.shape[1], net.settings["block"], context.dtype)
    pending = target.embed(torch.tensor([ids[-1:]]))[:, 0]
    return net(net.blocks(pending), places[:, context.shape[1] :], mask, cache)[0]


@torch.no_grad()
def told(
    net: Any, target: CausalTarget, inputs: dict[str, Tensor], ids: list[int], path: list[int]
) -> tuple[Tensor, Tensor]:
    """What enters the output head for a slot that is told its path, [H], and the factors of its law, [3]."""
    hidden = slots(net, target, inputs, ids)
    entering, said, memory = hidden[0], hidden[0], torch.zeros_like(hidden[0])
    for slot, token in zip(hidden[1 : len(path) + 2], torch.tensor([ids[-1], *path]), strict=True):
        gate, news, said = (net.slot(slot) + net.token(torch.cat([target.embed(token), memory]))).unflatten(0, (3, -1))
        memory = gate.sigmoid() * memory + (1 - gate.sigmoid()) * news.tanh()
        entering = slot + net.pull(said.tanh())
    return entering, net.worth(said.tanh()).exp()


def studied(
    target: CausalTarget, inputs: dict[str, Tensor], answers: list[list[int]]
) -> tuple[list[Answered], Features]:
    """Answers to learn from, with the hidden states of all layers."""
    taps = tuple(range(target.num_layers + 1))
    rows, states = [], {}
    for row, answer in enumerate(answers):
        real = inputs["attention_mask"][row].bool()
        single = {name: value[row : row + 1] for name, value in inputs.items() if name != "attention_mask"}
        prompt = inputs["input_ids"][row, real].tolist()
        rows.append(Answered(row, prompt, answer, 0.0))
        states[row] = torch.stack(states_of(target, single, prompt + answer), 2)[0]
    return rows, Given(states, taps)


def taught(
    method: str, target: CausalTarget, rows: list[Answered], features: Features, steps: int, **changes: Any
) -> Any:
    """A network, float64, that learnt the rows for some updates."""
    recipe = recipe_of(method, **changes)
    net = recipe.build(target, rows)
    head, embed = target.head, target.embed
    loss = recipe.loss(net, Single(head, embed), features)
    optimizer = build_optimizer(net, 0.02)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for step in range(steps):
            value = loss(position=torch.tensor([step]), rows=rows)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    return net.double().eval()


class Single:
    """The parts of a float64 target that a loss borrows, without gradients."""

    def __init__(self, head: Any, embed: Callable[[Tensor], Tensor]) -> None:
        self.embed, self.head = embed, Frozen(head)
        self.vocab_size = len(head.weight)


class Frozen:
    """An output head in float32."""

    def __init__(self, head: Any) -> None:
        self.weight = head.weight.detach().float()

    def __call__(self, features: Tensor) -> Tensor:
        return features @ self.weight.T


def as_double(loss: Any) -> None:
    """Hidden states as they are, instead of in float32."""
    features = loss.features

    def states(rows: Any, taps: Any = ()) -> Tensor:
        columns = [features.taps.index(tap) for tap in taps] or [len(features.taps) - 1]
        found = [features.kept[row.index][:, columns].flatten(1) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)

    loss.features = states
