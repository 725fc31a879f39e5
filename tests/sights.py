"""Shared by the tests of drafters that see: tiny networks, and what each of them should say, from scratch.

`expected` builds the drafter's own text by hand, slot by slot, with what it leaves out really left out, and forwards it
whole for every token; the target's states come from its plain model.
"""

from functools import cache
from typing import Any

import taught
import test_equality
import tiny
import torch
from taught import Given
from torch import Tensor

from mmspec.registry import resolve
from mmspec.targets import CausalTarget
from mmspec.training.answers import Answered
from mmspec.training.muon import build_optimizer
from mmspec.vlm.drafters.insights import Insight

METHODS = ["msd", "vispec", "hivis", "dream", "specvlm"]
FOCUSED = ("dream", "specvlm")
"""Those that ask what the target looks at."""
SMALL: dict[str, dict[str, Any]] = {"specvlm": {"ratio": 2, "queries": 2}}
"""Settings for pictures of four slots."""
LENGTHS = (17, 9, 14)


def recipe_of(method: str, **changes: Any) -> Any:
    return resolve("recipes", method, "vlm")(**{**SMALL.get(method, {}), **changes})


def network(method: str, target: CausalTarget, seed: int = 3, noise: float = 0.15, **changes: Any) -> Any:
    """A random network, float64. Noise on all weights, because many begin at zero."""
    net = recipe_of(method, seed=seed, **changes).build(target).double()
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in net.parameters():
            weight += noise * torch.randn_like(weight)
    return net.eval()


def drafter(method: str, net: Any, **options: Any) -> Any:
    return resolve("drafters", method, "vlm")(net, **options)


@cache
def eager() -> Any:
    """The tiny SmolVLM of `test_equality.make`, with attention that shows its weights."""
    model = tiny.smolvlm_model().double()
    model.set_attn_implementation("eager")
    return model


@torch.no_grad()
def weights_of(inputs: dict[str, Tensor], ids: list[int]) -> list[Tensor]:
    """Per layer, the attention weights [heads, T, T] of a text."""
    one = {name: value for name, value in inputs.items() if name != "attention_mask"}
    out = eager()(**{**one, "input_ids": torch.tensor([ids])}, output_attentions=True)
    return [layer[0] for layer in out.attentions]


def focus_of(inputs: dict[str, Tensor], prompt: list[int]) -> Tensor:
    """[T] the mean attention that each position of a prompt gets in the last layer."""
    return weights_of(inputs, prompt)[-1].mean((0, 1))


@torch.no_grad()
def expected(
    method: str, net: Any, target: CausalTarget, inputs: dict[str, Tensor], ids: list[int], prompt: int, path: list[int]
) -> Tensor:
    """[V] logits of what follows the drafted `path` after the text `ids` (the pending token last), from scratch.

    prompt: how many of the ids are the prompt's.
    """
    states = taught.states_of(target, inputs, ids[:-1])
    embeddings, features = states[0][0], states[target.num_layers][0]
    image = [place < prompt and token in target.placeholders for place, token in enumerate(ids)]
    kept = [t for t in range(len(ids) - 1)]
    told = torch.zeros_like(features[0])
    stands: dict[int, Tensor] = {}
    if method == "hivis":
        kept = [t for t in kept if not image[t + 1]]
    if method == "dream":
        focus = focus_of(inputs, ids[:prompt])
        slots = sorted((t for t in kept if image[t + 1]), key=lambda t: -float(focus[t + 1]))
        gone = slots[-(-len(slots) * 3 // 4) :]
        kept = [t for t in kept if t not in gone]
    if method == "vispec":
        span = [t for t in kept if image[t + 1]]
        vectors = net.adaptor(embeddings[[t + 1 for t in span]][None], torch.ones(1, len(span), dtype=torch.bool))[0]
        stands = {span[-1]: vectors[0]}
        kept = [t for t in kept if not image[t + 1] or t == span[-1]]

    if method == "specvlm":
        span = [t for t in kept if image[t + 1]]
        focus = focus_of(inputs, ids[:prompt])
        question = embeddings[[t + 1 for t in range(prompt - 1) if not image[t + 1]]].mean(0)
        stands = compressed(net, question, {t: embeddings[t + 1] for t in span}, {t: float(focus[t + 1]) for t in span})
        kept = [t for t in kept if not image[t + 1] or t in stands]

    tokens = torch.tensor(ids[1:] + path)
    said = target.embed(tokens)

    def content(t: int, feature: Tensor, step: int) -> Tensor:
        here = embeddings[t + 1] if t + 1 < len(embeddings) and image[t + 1] else said[t]
        if method == "dream":
            return torch.cat([here, feature])
        if method == "msd" and t + 1 < len(ids) and image[t + 1]:
            return here
        if method == "specvlm" and t in stands:
            return stands[t]
        if method == "vispec":
            if t in stands:
                return stands[t]
            later = not span or t > span[-1]
            feature = net.inject(torch.cat([feature, vectors[-1] if later else told]))
        if method == "hivis" and step:
            feature = feature + net.corrections[step - 1]
        return net.fc(torch.cat([here, feature]))

    whole = [content(t, features[t], 0) for t in kept]
    places = list(kept)
    for step in range(len(path) + 1):
        estimate = net(torch.stack(whole)[None], torch.tensor([places]), None)[0, -1]
        if step < len(path):
            t = len(ids) - 1 + step
            whole.append(content(t, estimate, step + 1))
            places.append(t)
    return target.head(estimate)


def compressed(net: Any, question: Tensor, slots: dict[int, Tensor], focus: dict[int, float]) -> dict[int, Tensor]:
    """What stands in which of a picture's slots, in the way that the gate takes; two slots per vector."""
    places, vectors = list(slots), torch.stack(list(slots.values()))
    way = list(net.ways)[int(net.gate(torch.cat([question, vectors.mean(0)])).argmax())]
    if way == "prune":
        best = sorted(places, key=lambda t: -focus[t])[: -(-len(places) // 2)]
        return {t: slots[t] for t in best}
    if way == "resample":
        found = net.ways.resample.adaptor(vectors[None], torch.ones(1, len(places), dtype=torch.bool))[0]
        return dict(zip(places[-2:], found, strict=True))
    pairs = [(first, first + 1) for first in range(0, len(places) - 1, 2)]
    if way == "pool":
        return {places[b]: (vectors[a] + vectors[b]) / 2 for a, b in pairs}
    if way == "convolve":
        made, (first, second) = net.ways.convolve, net.ways.convolve.kernel
        return {places[b]: made.mix(first * vectors[a] + second * vectors[b]) for a, b in pairs}
    return {}


def insights_of(
    target: CausalTarget, inputs: dict[str, Tensor], rows: list[Answered], layer: int = 1
) -> dict[int, Insight]:
    """What there is to know of answers about the rows of a batch, by the plain model."""
    found = {}
    for row in rows:
        single = {name: value[row.index : row.index + 1] for name, value in inputs.items() if name != "attention_mask"}
        focus = torch.nn.functional.pad(focus_of(single, row.prompt), (0, len(row.answer)))
        found[row.index] = Insight(focus, layer, taught.states_of(target, single, row.ids)[layer][0])
    return found


class Known:
    """Insights that a test made up."""

    def __init__(self, known: dict[int, Insight]) -> None:
        self.known = known

    def __call__(self, rows: list[Answered]) -> list[Insight]:
        return [self.known[row.index] for row in rows]


def loss_of(recipe: Any, net: Any, target: Any, features: Any, known: dict[int, Insight]) -> Any:
    """A loss that sees with a single target's parts and made-up insights."""
    loss = recipe.loss(net, target, features)
    if recipe.method in FOCUSED:
        loss.insights = Known(known)
    return loss


class Single(taught.Single):
    """The parts of a float64 target that a loss borrows, without gradients."""

    def __init__(self, target: Any) -> None:
        super().__init__(target.head, target.embed)
        self.placeholders = target.placeholders


def lesson(answer: Any, model: str = "smolvlm") -> tuple[Any, Any, Any, Any, Any]:
    """A target that sees, prompts with pictures, what it says to them, and what there is to learn from that.

    answer: `toys.answer` with everything but target and inputs bound.
    """
    _, target = test_equality.make(model)
    inputs = test_equality.inputs_for(target, *LENGTHS)
    said = answer(target, inputs)
    return (target, inputs, said, *taught.studied(target, inputs, said))


def taught_by(method: str, target: Any, inputs: Any, rows: Any, features: Given, steps: int, **changes: Any) -> Any:
    """A network, float64, that learnt the rows for some updates."""
    recipe = recipe_of(method, **{"unroll": 3, **changes})
    net = recipe.build(target, rows)
    known = insights_of(target, inputs, rows) if method in FOCUSED else {}
    loss = loss_of(recipe, net, Single(target), features, known)
    optimizer = build_optimizer(net, 0.02)
    for step in range(steps):
        value = loss(position=torch.tensor([10**6 + step]), rows=rows)  # behind every curriculum
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return net.double().eval()
