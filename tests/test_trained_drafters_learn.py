"""How the drafters on the target's features are trained: what a loss estimates is what drafting estimates, a loss
falls, several drafters learn from one forward of the target, and a killed run resumes.
"""

import copy
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import taught
import test_equality
import test_training
import tiny
import torch
import toys
from safetensors import SafetensorError
from safetensors.torch import load_file
from taught import METHODS, RECIPE_OF, Given
from test_training import COURSE, made_up
from torch import Tensor

import mmspec
from mmspec.checkpoints import shown_name
from mmspec.drafters.dspark import SparkNet
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.static import TYPICAL, checked
from mmspec.errors import InputError, MismatchError
from mmspec.safe_files import read_json
from mmspec.sampling import Sampling
from mmspec.targets import CausalTarget
from mmspec.training import answers as written
from mmspec.training import chunks
from mmspec.training import store as stores
from mmspec.training.answers import Answered, AnswerOptions, collect
from mmspec.training.card import Trained, model_card
from mmspec.training.data import Miniworld
from mmspec.training.dflash import DFlashLoss, DFlashRecipe, several_blocks
from mmspec.training.drafter import train_drafters
from mmspec.training.dspark import noise_like
from mmspec.training.eagle import EagleRecipe, HassRecipe
from mmspec.training.eagle3 import Eagle3Recipe, common_words
from mmspec.training.features import Features
from mmspec.training.kangaroo import KangarooRecipe
from mmspec.training.medusa import HydraRecipe, MedusaRecipe
from mmspec.training.shares import PRIOR, Counting, measured_shares
from mmspec.training.spd import SpdRecipe
from mmspec.training.start import carried_over
from mmspec.training.steps import Batch, drafted_slots
from mmspec.training.store import Store, say_what_is_kept
from mmspec.training.unroll import unroll

STEPPED = [method for method in METHODS if method not in ("dflash", "dspark")]
SMALL = {"steps": 6, "batch": 4}


@pytest.fixture(scope="module")
def pipe() -> Any:
    return mmspec.load(tiny.smolvlm_model(), drafter="none", processor=tiny.processor())


# The losses


@pytest.mark.parametrize("method", STEPPED)
def test_what_a_loss_estimates_is_what_drafting_estimates(method: str) -> None:
    """Every step in every slot against the whole text, read from scratch up to the slot's root."""
    model, target = test_equality.make("qwen2")
    inputs = toys.prompts(9, 6)
    answers = toys.answer(target, NoDrafter(), inputs, 7).rows
    rows, features = taught.studied(target, inputs, answers)
    net = taught.network(method, target)
    recipe = taught.recipe_of(method, **({"noise": 0.0} if method in ("eagle", "eagle2", "hass") else {}))
    loss = recipe.loss(net, target, features)
    features.kept = {index: states.double() for index, states in features.kept.items()}
    true = torch.nn.utils.rnn.pad_sequence([features.kept[row.index][:, -1] for row in rows], batch_first=True)
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.ids) for row in rows], batch_first=True)
    first = min(row.start for row in rows) - 1
    looked = 0
    with torch.no_grad():
        batch = Batch(rows, true, target.embed(tokens[:, 1:-1]), first, 0)
        taught.as_double(loss)
        for step, estimate in enumerate(loss.estimates(batch)):
            drafted = drafted_slots(rows, first, batch.slots, step)
            for row, place in drafted.nonzero().tolist():
                root = first + place - step
                ids, path = rows[row].ids[: root + 2], rows[row].ids[root + 2 : root + 2 + step]
                want = taught.expected(method, net, target, toys.row_of(inputs, row), ids, path)
                got = net.logits(estimate[row, place], target.head) if hasattr(net, "logits") else None
                got = target.head(estimate[row, place]) if got is None else got
                assert torch.allclose(got, want, atol=1e-5), (step, row, place)
                looked += 1
    assert looked >= 6 * 2 - 2


def test_slots_are_told_the_answer_s_own_token_before_them(monkeypatch: Any) -> None:
    """What enters the output head in training, and the factors of laws, against drafting along the answer, from
    scratch."""
    _, target = test_equality.make("llama")
    inputs = toys.prompts(9, 6)
    answers = toys.answer(target, NoDrafter(), inputs, 8).rows
    rows, features = taught.studied(target, inputs, answers)
    net = taught.network("dspark", target)
    loss = taught.recipe_of("dspark").loss(copy.deepcopy(net).float(), target, features)
    anchors = torch.tensor([[10, 13], [7, 6]])  # their blocks reach behind the end of both rows
    monkeypatch.setattr(loss, "_anchors", lambda *_: (anchors, torch.ones(2, 2, dtype=torch.bool)))
    told, made = loss.told, []
    monkeypatch.setattr(loss, "told", lambda *given: made.append(told(*given)) or made[-1])
    with torch.no_grad():
        loss(torch.tensor([0, 1]), rows)
        looked = 0
        for row, place in itertools.product(range(2), range(2)):
            anchor = int(anchors[row, place])
            ids, path = rows[row].ids[: anchor + 1], rows[row].ids[anchor + 1 :]
            for level in range(min(5, len(path))):
                want = taught.told(net, target, toys.row_of(inputs, row), ids, path[:level])
                for got, wanted in zip(made[0], want, strict=True):
                    assert torch.allclose(got[row, place, level].double(), wanted, atol=1e-4)
                looked += 1
    assert looked > 8


def test_a_block_drafter_becomes_one_with_a_sequential_head_that_drafts_the_same_at_first() -> None:
    _, target = test_equality.make("llama")
    plain, told = (taught.recipe_of(method).build(target).double().eval() for method in ("dflash", "dspark"))
    with torch.no_grad():
        for weight in plain.parameters():
            weight += 0.15 * torch.randn_like(weight)
    told = carried_over(taught.drafter("dflash", plain), told, "dspark").double().eval()
    one, other = (
        toys.answer(target, taught.drafter(method, net), toys.prompts(9, 6), 20)
        for method, net in (("dflash", plain), ("dspark", told))
    )
    assert [done.drafted for done in one.rounds] == [done.drafted for done in other.rounds]
    with pytest.raises(MismatchError, match=r"dspark, and its pull.weight is \(32, 32\), in the new one missing"):
        carried_over(taught.drafter("dspark", told), plain, "dflash")


def test_a_sequential_head_that_learns_alone_leaves_its_block_drafter_as_it_was() -> None:
    _, target = test_equality.make("llama")
    inputs = toys.prompts(9, 6)
    rows, features = taught.studied(target, inputs, toys.answer(target, NoDrafter(), inputs, 8).rows)
    before = taught.recipe_of("dspark").build(target, rows).state_dict()
    for alone in (True, False):
        after = taught.taught("dspark", target, rows, features, 3, alone=alone).state_dict()
        moved = {name for name, weight in after.items() if not torch.equal(weight.float(), before[name].float())}
        assert "pull.weight" in moved
        assert all(name.startswith(SparkNet.quiet) for name in moved) is alone
    start = taught.drafter("dspark", taught.network("dspark", target))
    begun = taught.recipe_of("dspark", alone=True).begin(start, target)
    learning = [name for name, weight in begun.named_parameters() if weight.requires_grad]
    assert learning
    assert all(name.startswith(SparkNet.quiet) for name in learning)


def test_slots_that_are_told_nothing_count_as_much_as_they_should() -> None:
    _, target = test_equality.make("llama")
    inputs = toys.prompts(9, 6)
    rows, features = taught.studied(target, inputs, toys.answer(target, NoDrafter(), inputs, 8).rows)
    net = taught.network("dspark", target).float()
    torch.nn.init.normal_(net.pull.weight)
    recipes = (taught.recipe_of("dspark"), taught.recipe_of("dflash"), taught.recipe_of("dspark", untold=0.5))
    found = []
    for recipe in recipes:
        torch.manual_seed(5)  # of the races
        with torch.no_grad():
            found.append(recipe.loss(net, target, features)(torch.tensor([0, 1]), rows))
    told, plain, both = found
    assert not torch.isclose(told, plain, rtol=1e-2)
    torch.testing.assert_close(both, told + 0.5 * plain)
    with pytest.raises(InputError, match="teaches its block nothing: give --alone or --untold"):
        taught.recipe_of("dspark", alone=True, untold=0.5)


def test_a_slot_learns_the_law_and_who_wins_the_target_s_races_with_noise_and_without() -> None:
    """Three losses, written out; and the noise is one with which the target draws its own law."""
    _, target = test_equality.make("llama")
    loss = taught.recipe_of("dspark").loss(taught.network("dspark", target).float(), target, taught.Given({}))
    estimate, goal = (0.5 * torch.randn(1, 32, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    factors = torch.tensor([[0.7, 1.2, 0.6]])
    count = 4000
    torch.manual_seed(5)
    with torch.no_grad():
        found = loss.raced(*(one.expand(count, -1) for one in (estimate, factors, goal)))
        scores, goals = (target.head(one.double())[0].log_softmax(-1) for one in (estimate, goal))
        torch.manual_seed(5)
        noise = noise_like(torch.empty(count, len(goals)))
    winners = (goals + noise).argmax(-1)
    drawn = ((1.4 * 0.7 * scores + noise) * 1.2).log_softmax(-1).gather(1, winners[:, None])[:, 0]
    law, best = -(goals.exp() * scores).sum(), (1.5 * 0.6 * scores).log_softmax(-1)[goals.argmax()]
    torch.testing.assert_close(found.double(), law - drawn - best, atol=1e-4, rtol=1e-4)
    won = torch.bincount(winners, minlength=len(goals)) / count
    assert (won - goals.exp()).abs().max() < 0.03


def test_the_confidence_head_learns_where_the_noise_decides_and_where_nobody_knows() -> None:
    _, target = test_equality.make("llama")
    inputs = toys.prompts(9, 6)
    rows, features = taught.studied(target, inputs, toys.answer(target, NoDrafter(), inputs, 8).rows)
    net = taught.taught("dspark", target, rows, features, 60).float()
    loss = taught.recipe_of("dspark").loss(net, target, features)
    learnt = net.worth.weight.detach().clone()

    @torch.no_grad()
    def without(*factors: int) -> float:
        net.worth.weight.copy_(learnt)
        net.worth.weight[list(factors)] = 0
        torch.manual_seed(5)
        return float(loss(torch.tensor([0, 1]), rows))

    assert all(without(factor) > without() + 0.005 for factor in range(3))


def test_blocks_that_learn_together_are_those_that_are_drafted_alone() -> None:
    """Anchors in one forward, of rows of different lengths, each against a block of its own; and nothing leaks."""
    _, target = test_equality.make("llama")
    inputs = toys.prompts(9, 6)
    answers = toys.answer(target, NoDrafter(), inputs, 8).rows
    rows, features = taught.studied(target, inputs, answers)
    net = taught.network("dflash", target)
    taps = net.settings["taps"]
    states = torch.nn.utils.rnn.pad_sequence(
        [features.kept[row][:, list(taps)].flatten(1) for row in range(2)], batch_first=True
    )
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.ids) for row in rows], batch_first=True)
    anchors = torch.tensor([[10, 13, 9], [11, 6, 7]])
    with torch.no_grad():
        embeddings = target.embed(tokens.gather(1, anchors))
        hidden = several_blocks(net, net.fuse(states), embeddings, anchors)
        for row, place in itertools.product(range(2), range(3)):
            ids = rows[row].ids[: int(anchors[row, place]) + 1]
            for level in range(5):
                want = taught.expected("dflash", net, target, toys.row_of(inputs, row), ids, [0] * level)
                assert torch.allclose(target.head(hidden[row, place, level + 1]), want, atol=1e-8)
        later = states.clone()
        later[0, 10:] += 1.0  # what stands at the anchor or behind it
        again = several_blocks(net, net.fuse(later), embeddings, anchors)
        assert torch.equal(again[0, 0], hidden[0, 0])
        assert not torch.equal(again[0, 1], hidden[0, 1])
        other = embeddings.clone()
        other[0, 0] += 1.0
        moved = several_blocks(net, net.fuse(states), other, anchors)
        assert bool((moved[0, 0] != hidden[0, 0]).any(-1).all())  # slots of a block see each other, in both directions
        assert torch.equal(moved[0, 1:], hidden[0, 1:])


def test_anchors_lie_in_answers_and_depend_on_the_place_in_the_run_only(pipe: Any) -> None:
    rows = [made_up(5, 9)[0], made_up(7, 3, 1)[0]]
    recipe = DFlashRecipe(anchors=4)
    loss = DFlashLoss(recipe.build(pipe.target), pipe.target, Given({}), recipe)
    found = [loss._anchors(position, rows) for position in (3, 4, 3)]
    assert torch.equal(found[0][0], found[2][0])
    assert not torch.equal(found[0][0], found[1][0])
    anchors, real = found[0]
    assert real.tolist() == [[True] * 4, [True, True, False, False]]
    assert set(anchors[0].tolist()) <= set(range(5, 13))
    assert set(anchors[1, :2].tolist()) == {7, 8}  # the last token of an answer has nothing behind it


def test_a_block_s_loss_is_the_weighted_mean_over_its_slots(pipe: Any) -> None:
    row, states = made_up(6, 3, hidden=32)  # two anchors; two slots behind the first one, one behind the second
    recipe = DFlashRecipe(anchors=8, decay=0.5, block=4)
    net = recipe.build(pipe.target)
    given = Given({0: states[:, None].expand(-1, 3, -1)}, (0, 1, 2))
    loss = recipe.loss(net, pipe.target, given)(torch.zeros(1), [row])
    taps, head = net.settings["taps"], pipe.target.head
    context = net.fuse(states[None].repeat(1, 1, len(taps)))
    total, weights = 0.0, 0.0
    for anchor, slot in ((6, 0), (6, 1), (7, 0)):
        one = torch.tensor([[anchor]])
        embedding = pipe.target.embed(torch.tensor([[row.ids[anchor]]]))
        hidden = several_blocks(net, context, embedding, one)[0, 0, slot + 1]
        law = head(states[anchor + slot]).softmax(-1)
        total -= 0.5**slot * float((law * head(hidden).log_softmax(-1)).sum().detach())
        weights += 0.5**slot
    assert float(loss.detach()) == pytest.approx(total / weights, rel=1e-4)


def test_medusa_s_loss_weighs_its_heads(pipe: Any) -> None:
    row, states = made_up(5, 6)
    recipe = MedusaRecipe(levels=3, decay=0.5)
    net = recipe.build(pipe.target)
    with torch.no_grad():
        for weight in net.parameters():
            weight += 0.1 * torch.randn_like(weight)
    value = recipe.loss(net, pipe.target, Given({0: states[:, None]}))(position=torch.zeros(1), rows=[row])
    head, steps = pipe.target.head, []
    for level in range(3):
        roots = range(4, 9 - level)  # positions before tokens of the answer that have `level` more and another behind
        losses = [
            torch.nn.functional.cross_entropy(
                head(net.heads[level](states[t])), head(states[t + 1 + level]).softmax(-1)
            )
            for t in roots
        ]
        steps.append(0.5**level * torch.stack(losses).mean())
    torch.testing.assert_close(value, sum(steps) / 1.75)


@pytest.mark.parametrize("prompts", [(9, 14), (2, 7), (1, 5)])
def test_medusa_s_heads_run_on_answers_alone(prompts: tuple[int, ...], pipe: Any) -> None:
    """The loss and its gradients are those of heads that run on the whole text."""
    made = [made_up(prompt, 6, index) for index, prompt in enumerate(prompts)]
    rows = [row for row, _ in made]
    recipe = MedusaRecipe(levels=4)
    net = recipe.build(pipe.target)
    with torch.no_grad():
        for weight in net.parameters():
            weight += 0.1 * torch.randn_like(weight)
    loss: Any = recipe.loss(net, pipe.target, Given({index: states[:, None] for index, (_, states) in enumerate(made)}))

    def judged() -> tuple[Tensor, list[Tensor]]:
        value = loss(position=torch.zeros(1), rows=rows)
        return value.detach(), list(torch.autograd.grad(value, [*net.parameters()]))

    def everywhere(batch: Batch) -> list[Tensor]:
        heads = net(batch.features[:, : batch.slots]).unbind(2)
        return [batch.shifted(states, step) for step, states in enumerate(heads)]

    widths: list[int] = []
    hook = net.register_forward_hook(lambda _, given, out: widths.append(out.shape[1]))
    found = judged()
    loss.estimates = everywhere
    whole = judged()
    hook.remove()
    torch.testing.assert_close(found, whole)
    slots = max(prompts) + 6 - 2
    assert widths == [slots - max(0, min(prompts) - 2), slots]


def test_hass_counts_the_likeliest_tokens_once_more_and_stops_gradients(pipe: Any) -> None:
    rows, states = zip(*(made_up(6, 8, index) for index in range(2)), strict=True)
    given = Given({index: one[:, None] for index, one in enumerate(states)})
    recipe = HassRecipe(noise=0.0, top=4, top_weight=0.0, unroll=2)
    net = recipe.build(pipe.target)
    plain = recipe.loss(net, pipe.target, given)(torch.zeros(1), list(rows))
    more = replace(recipe, top_weight=2.0).loss(net, pipe.target, given)(torch.zeros(1), list(rows))
    eagle = EagleRecipe(noise=0.0, feature_weight=1.0, law_weight=0.1, unroll=2, decay=1.0)
    flowing = eagle.loss(net, pipe.target, given)(torch.zeros(1), list(rows))
    torch.testing.assert_close(plain, flowing)
    stopped, whole = (torch.autograd.grad(loss, net.fc.weight)[0] for loss in (plain, flowing))
    assert not torch.allclose(stopped, whole, rtol=1e-2)
    law = torch.tensor([[0.5, 0.3, 0.2]])

    loss = HassRecipe(feature_weight=0.0, law_weight=1.0, top=2, top_weight=2.0).loss(net, pipe.target, given)
    loss.target_logits = lambda features: features  # type: ignore[attr-defined]
    logits = torch.tensor([[0.1, 0.7, -0.2]])
    log_q = logits.log_softmax(-1)[0]
    want = -(law[0] * log_q).sum() - 2 * (0.5 * log_q[0] + 0.3 * log_q[1])
    torch.testing.assert_close(loss.judge(logits, logits, law)[0], want)  # type: ignore[attr-defined]
    assert float(more.detach()) > float(plain.detach())

    torch.manual_seed(0)
    embeddings, features = torch.randn(2, 1, 8, 32)
    for fed, reaches in ((torch.Tensor.detach, False), (lambda estimate: estimate, True)):
        seen: list[Tensor] = []

        def recorded(*arguments: Any, seen: list[Tensor] = seen) -> Tensor:
            seen.append(net(*arguments))
            seen[-1].retain_grad()
            return seen[-1]

        unroll(recorded, embeddings, features, 3, 2, fed)[1].sum().backward()
        assert (seen[0].grad is not None and bool(seen[0].grad.any())) == reaches


def test_eagle3_learns_the_words_it_has() -> None:
    target = CausalTarget(toys.llama())
    rows = [Answered(0, [1, 2], [50, 60, 50, 70, 50, 60], 0.0)]
    assert common_words(rows, 3, 97).tolist() == [50, 60, 70]
    assert common_words(rows, 2, 97).tolist() == [50, 60]
    assert common_words(rows, 5, 97).tolist() == [0, 1, 50, 60, 70]
    assert common_words(rows, 500, 97).tolist() == list(range(97))
    net = Eagle3Recipe(words=8).build(target, rows)
    assert net.ids.tolist() == [0, 1, 2, 3, 4, 50, 60, 70]
    assert torch.equal(net.words.weight, target.head.weight[net.ids].float())

    loss = Eagle3Recipe(words=8).loss(net, target, Given({}))
    estimate = torch.randn(2, 32)
    law = torch.zeros(2, 97)
    law[0, [50, 60, 80]] = torch.tensor([0.6, 0.2, 0.2])
    law[1, [50, 80]] = torch.tensor([0.3, 0.7])  # its likeliest token is not a word of the draft vocabulary
    log_q = net.own_logits(estimate[0]).log_softmax(-1)
    want = -(0.75 * log_q[5] + 0.25 * log_q[6])
    torch.testing.assert_close(loss.judge(estimate, estimate, law), want[None])  # type: ignore[attr-defined]
    logits = net.logits(estimate, target.head)
    assert logits.isfinite().sum(-1).tolist() == [8, 8]
    torch.testing.assert_close(logits[0, net.ids], net.own_logits(estimate)[0])


@pytest.mark.parametrize("method", METHODS)
def test_a_few_steps_lower_the_loss(method: str) -> None:
    target = CausalTarget(toys.llama())
    inputs = toys.prompts(9, 6, 12)
    answers = toys.answer(target, NoDrafter(), inputs, 10, Sampling(temperature=1.0, seed=2)).rows
    rows, features = taught.studied(target, inputs, answers)
    recipe = taught.recipe_of(method)
    net = recipe.build(target, rows)
    loss = recipe.loss(net, taught.Single(target.head, target.embed), features)
    optimizer = taught.build_optimizer(net, 0.02)
    torch.manual_seed(0)  # of races
    values = []
    for _ in range(30):
        value = loss(position=torch.zeros(1), rows=rows)
        values.append(float(value.detach()))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert values[-1] < values[0] - 0.2
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in net.parameters())


@pytest.mark.parametrize("method", [*METHODS, "spd"])
def test_laws_that_are_too_large_are_judged_in_chunks(method: str, pipe: Any, monkeypatch: Any) -> None:
    """The loss and its gradients are those of all at once, and no chunk is larger than it may be."""
    made = [made_up(6, 8, index) for index in range(2)]
    rows = [row for row, _ in made]
    given = Given({index: states[:, None].expand(-1, 3, -1) for index, (_, states) in enumerate(made)}, (0, 1, 2))
    recipe: Any = SpdRecipe() if method == "spd" else taught.recipe_of(method)
    net = recipe.build(pipe.target, rows)
    loss = recipe.loss(net, pipe.target, given)
    monkeypatch.setattr("mmspec.training.dspark.noise_like", torch.ones_like)  # draws depend on the size of a chunk

    def judged() -> tuple[Tensor, list[Tensor]]:
        value = loss(position=torch.zeros(1), rows=rows)
        return value.detach(), list(torch.autograd.grad(value, [*net.parameters()], allow_unused=True))

    whole = judged()
    sizes: list[int] = []
    hook = pipe.target.head.register_forward_hook(lambda _, given, made: sizes.append(len(made)))
    monkeypatch.setattr(chunks, "LOGITS", 3 * pipe.target.vocab_size)
    parts = judged()
    hook.remove()
    assert max(sizes) == 3
    close = {"rtol": 1e-3, "atol": 1e-4} if method == "dspark" else {}  # sharp races magnify what rounding does
    torch.testing.assert_close(parts, whole, **close)


# Features, shares


def test_taps_are_the_hidden_states_of_the_prompt_s_forward(pipe: Any, tmp_path: Path) -> None:
    questions = Miniworld("test", 4)
    rows = collect(pipe, questions, AnswerOptions(max_new_tokens=8, batch=4), tmp_path, "it")
    features = Features(pipe, questions, (0, 1), memory=0)
    final, pair = features(rows), features(rows, (1, 0))
    assert pair.shape == (*final.shape[:2], 2 * final.shape[2])
    row = rows[0]
    inputs = pipe.prepare([questions[row.index].image], [questions[row.index].prompt])
    ids = torch.tensor([row.ids])
    with torch.no_grad():
        heard = pipe.target.model(
            input_ids=ids, pixel_values=inputs["pixel_values"], output_hidden_states=True
        ).hidden_states
    for state, found in ((heard[2], final), (torch.cat([heard[1], heard[0]], -1), pair)):
        torch.testing.assert_close(found[:1, : len(row.ids)], state, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recipe", [MedusaRecipe(levels=3), HydraRecipe(levels=3), SpdRecipe(width=32)])
def test_who_learns_from_answers_alone_needs_no_states_of_prompts(recipe: Any, pipe: Any, tmp_path: Path) -> None:
    """Losses and gradients are the same to the last bit, and what is kept is a fraction."""
    questions = Miniworld("test", 4)
    rows = collect(pipe, questions, AnswerOptions(max_new_tokens=8, batch=4), tmp_path, "it")
    rows[1] = replace(rows[1], answer=rows[1].answer[:5])
    assert len({row.start for row in rows}) > 1
    assert not recipe.context
    found, nets, sizes = [], [], []
    for context in (True, False):
        features = Features(pipe, questions, context=context)
        net = recipe.build(pipe.target, rows)
        with torch.no_grad():
            for index, weight in enumerate(net.parameters()):  # heads begin with nothing learnt, some as zeros
                weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(index))
        loss = recipe.loss(net, pipe.target, features)(position=torch.zeros(4), rows=rows)
        loss.backward()
        found.append(loss.detach())
        nets.append(net)
        sizes.append(features.size(rows))
        assert sizes[-1] == sum(states.nbytes for states in features.kept.values())
    assert torch.equal(*found)
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        assert torch.equal(one.grad, other.grad)
    width = sizes[1] // sum(len(row.answer) + 1 for row in rows)
    assert sizes == [sum(len(row.ids) for row in rows) * width, sum(len(row.answer) + 1 for row in rows) * width]


@pytest.mark.parametrize(("methods", "context"), [(["medusa", "hydra"], False), (["medusa", "hydra++"], True)])
def test_states_of_prompts_are_kept_where_a_method_reads_them(
    methods: list[str], context: bool, pipe: Any, tmp_path: Path
) -> None:
    """Stores with them and without are two; either goes on where it was."""
    recipes = [taught.recipe_of(method, steps=2, batch=2) for method in methods]
    course = replace(COURSE, questions=4, validate_every=100, disk=0.1)
    for again in range(2):
        outs = [tmp_path / f"{recipe.method}-{again}" for recipe in recipes]
        train_drafters(pipe, recipes, course, outs, tmp_path / "run", "tiny")
        (store,) = tmp_path.glob("run/features-*")
        assert ("context" in read_json(store / "settings.json")) == (not context)
    (answers,) = tmp_path.glob("run/answers-*")
    rows = {row.index: row for file in sorted(answers.glob("*.jsonl")) for row in written._read(file) or []}
    kept = {int(file.stem): load_file(file)["states"] for file in store.glob("*.safetensors")}
    assert kept
    for index, states in kept.items():
        assert len(states) == len(rows[index].ids) - (0 if context else rows[index].start - 1)


def test_what_is_stored_is_not_computed_again(pipe: Any, tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    questions = Miniworld("test", 4)
    rows = collect(pipe, questions, AnswerOptions(max_new_tokens=8, batch=4), tmp_path, "it")
    want = Features(pipe, questions, (1,), memory=0)(rows, (1, 2))
    one = Features(pipe, questions, (1,)).size(rows[:1])
    (tmp_path / "states").mkdir()

    def features(limit: int) -> Features:
        return Features(pipe, questions, (1,), memory=0, store=Store(tmp_path / "states", limit))

    computed: list[int] = []
    monkeypatch.setattr(
        Features,
        "_compute",
        lambda self, asked, compute=Features._compute: computed.append(len(asked)) or compute(self, asked),
    )
    torch.testing.assert_close(features(one + 500)(rows, (1, 2)), want)  # room for one of them
    assert computed == [len(rows)]
    torch.testing.assert_close(features(10**9)(rows, (1, 2)), want)
    assert computed == [len(rows), len(rows) - 1]
    (tmp_path / "states" / ".9.safetensors.1.tmp").write_bytes(b"half")  # killed while it was written
    again = features(10**9)
    torch.testing.assert_close(again(rows[::-1], (1, 2)), want.flip(0))
    assert computed == [len(rows), len(rows) - 1]
    assert again.store is not None
    assert again.store.get("9") is None

    caplog.set_level("WARNING")
    caplog.clear()
    say_what_is_kept(3 << 30, 2 << 30, 3 << 30)
    assert not caplog.records
    say_what_is_kept(4 << 30, 2 << 30, 3 << 30)
    assert "take 4.00 GB, 2.00 GB may be kept in memory and 3.00 GB on disk" in caplog.text
    caplog.clear()
    say_what_is_kept(2 << 30, 2 << 30, 3 << 30, processes=2)
    assert not caplog.records
    say_what_is_kept(2 << 30, 2 << 30, 1 << 30, processes=2)  # each has seen a part alone
    assert "each process keeps in memory what it happened to read, and computes the rest again (see --d" in caplog.text


def test_a_disk_that_is_full_ends_no_run(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    tries: list[Path] = []

    def full(tensors: Any, file: Path) -> None:
        tries.append(file)
        file.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    store = Store(tmp_path, 10**9)
    store.put("0", {"states": torch.zeros(3, 2, 4)})
    monkeypatch.setattr(stores, "save_file", full)
    for index in range(1, 4):
        store.put(str(index), {"states": torch.zeros(3, 2, 4)})
    assert len(tries) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left on device" in caplog.text
    assert [file.name for file in tmp_path.iterdir()] == ["0.safetensors"]
    assert store.get("0") is not None
    assert store.get("1") is None


def test_ranks_are_counted_where_their_parent_was_accepted() -> None:
    counting = Counting(NoDrafter(), levels=2, ranks=2)
    parents = [-1, 0, 0, 1, 1, 2]
    counting.count(parents, [0, 2, 5])  # second child, then its first
    counting.count(parents, [0, 1])  # first child, then none of two
    counting.count(parents, [0])
    assert counting.tries == [[3, 3], [2, 1]]
    assert counting.hits == [[1, 1], [1, 0]]


def test_measured_shares_are_those_of_decoding(pipe: Any) -> None:
    """A drafter that knows nothing keeps next to none of its assumed shares."""
    inputs = pipe.prepare(None, ["what is the value?", "there are four bars"])
    made = MedusaRecipe(levels=3).drafter(MedusaRecipe(levels=3, seed=1).build(pipe.target))
    shares = measured_shares(pipe, made, [inputs], 16, 0)
    assert len(shares) == 3
    assert all(len(row) == len(TYPICAL[0]) for row in shares)
    checked(shares)
    assert shares[0][0] < TYPICAL[0][0] / 2
    assert shares == measured_shares(pipe, made, [inputs], 16, 0)
    unseen = [0.7 * PRIOR / PRIOR, *TYPICAL[0][1:]]
    assert shares[2][7] == pytest.approx(unseen[7])  # no tree of this size has such a node


# Runs


TOGETHER = [
    taught.recipe_of(method, **SMALL)
    for method in ("medusa", "hydra", "hydra++", "kangaroo", "eagle", "eagle3", "hass")
]


def test_drafters_that_learn_together_read_the_target_once(pipe: Any, tmp_path: Path, monkeypatch: Any) -> None:
    read, calls = pipe.target.read, []

    def noted(*arguments: Any, **more: Any) -> Any:
        calls.append(len(arguments))
        return read(*arguments, **more)

    counts = []
    for recipes in ([TOGETHER[0]], TOGETHER[:4]):
        calls.clear()
        features = Features(pipe, Miniworld("drafter/0", 12), (1,), memory=0)
        losses = [recipe.loss(recipe.build(pipe.target), pipe.target, features) for recipe in recipes]
        rows = collect(pipe, Miniworld("drafter/0", 12), COURSE.answers, tmp_path, "it")
        monkeypatch.setattr(pipe.target, "read", noted)
        for start in (0, 4):
            for loss in losses:
                loss(position=torch.zeros(1), rows=rows[start : start + 4])
        monkeypatch.undo()
        counts.append(len(calls))
    assert counts == [2, 2]


def test_runs_together_resume_to_the_same_drafters(pipe: Any, tmp_path: Path, monkeypatch: Any) -> None:
    course = replace(COURSE, validate_every=6, save_every=2, questions=8)
    recipes = [*TOGETHER, taught.recipe_of("dflash", **SMALL)]
    names = [recipe.method for recipe in recipes]
    whole = [tmp_path / "whole" / name for name in names]
    figures = train_drafters(pipe, recipes, course, whole, tmp_path / "run", "tiny")
    assert list(figures) == names
    assert all({"tau_t0", "tau_t1"} <= set(one) for one in figures.values())
    call, calls = DFlashLoss.__call__, itertools.count(1)

    def killed(self: Any, **batch: Any) -> Tensor:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return call(self, **batch)

    monkeypatch.setattr(DFlashLoss, "__call__", killed)
    cut = [tmp_path / "cut" / name for name in names]
    with pytest.raises(KeyboardInterrupt):
        train_drafters(pipe, recipes, course, cut, tmp_path / "again", "tiny")
    assert not (tmp_path / "cut").exists()
    again = train_drafters(pipe, recipes, course, cut, tmp_path / "again", "tiny")
    monkeypatch.undo()
    assert again.keys() == figures.keys()
    together = "+".join(names)
    unbroken, resumed = (test_training.losses(tmp_path / run, together) for run in ("run", "again"))
    assert [step for step, _ in resumed] == [1, 2, 3, 4, 5, 6]
    for (_, one), (_, other) in zip(unbroken, resumed, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    for name, one, other in zip(names, whole, cut, strict=True):
        first, second = (
            mmspec.load(pipe.target.model, folder, processor=pipe.processor).drafter for folder in (one, other)
        )
        assert first.method == name
        for left, right in zip(first.net.parameters(), second.net.parameters(), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-2, atol=1e-3)  # stored in bfloat16
        card = (one / "README.md").read_text()
        assert f"| 6 | {figures[name]['tau_t0']:.2f} | {figures[name]['tau_t1']:.2f} |" in card
        others = ", ".join(other for other in names if other != name)
        assert f"Trained together with {others}: losses and cost are those of all of them." in card
        options = read_json(one / "drafter.json")["options"]
        assert (options["shares"] != [list(TYPICAL[0])]) == (first.static or first.measured)


def test_gradients_of_a_drafter_do_not_depend_on_its_company(pipe: Any) -> None:
    rows, states = zip(*(made_up(6, 8, index) for index in range(2)), strict=True)
    given = Given({index: one[:, None].expand(-1, 3, -1) for index, one in enumerate(states)}, (0, 1, 2))
    recipes = [taught.recipe_of(method) for method in ("medusa", "eagle3", "kangaroo", "dflash")]
    nets = [recipe.build(pipe.target, rows) for recipe in recipes]
    losses = [recipe.loss(net, pipe.target, given) for recipe, net in zip(recipes, nets, strict=True)]
    alone = []
    for loss, net in zip(losses, nets, strict=True):
        loss(position=torch.zeros(1), rows=list(rows)).backward()
        alone.append([weight.grad.clone() for weight in net.parameters()])
        net.zero_grad()
    sum(loss(position=torch.zeros(1), rows=list(rows)) for loss in losses).backward()
    for net, gradients in zip(nets, alone, strict=True):
        for weight, gradient in zip(net.parameters(), gradients, strict=True):
            torch.testing.assert_close(weight.grad, gradient)


def test_several_batches_per_update_in_mixed_precision(pipe: Any, tmp_path: Path, monkeypatch: Any) -> None:
    call, seen = DFlashLoss.__call__, []

    def noted(self: Any, **batch: Any) -> Tensor:
        seen.append((batch["position"].tolist(), torch.is_autocast_enabled("cpu")))
        return call(self, **batch)

    monkeypatch.setattr(DFlashLoss, "__call__", noted)
    course = replace(COURSE, questions=6, accumulate=3, bf16=True, validate_every=100, memory=0, disk=0.1)
    recipes = [taught.recipe_of(method, steps=2, batch=2) for method in ("dflash", "dspark", "eagle3", "hass")]
    outs = [tmp_path / recipe.method for recipe in recipes]
    train_drafters(pipe, recipes, course, outs, tmp_path / "run", "tiny")
    assert seen == [([2 * step, 2 * step + 1], True) for step in range(6) for _ in ("dflash", "dspark")]
    assert len(list(tmp_path.glob("run/features-*/*.safetensors"))) > 3
    steps = test_training.losses(tmp_path / "run", "dflash+dspark+eagle3+hass")
    assert [step for step, _ in steps] == [1, 2]
    assert all(0 < loss < 100 for _, loss in steps)
    for out in outs:
        assert (
            next(mmspec.load(pipe.target.model, out, processor=pipe.processor).drafter.net.parameters())
            .isfinite()
            .all()
        )


@pytest.mark.parametrize(
    ("recipes", "words"),
    [
        ([MedusaRecipe(), MedusaRecipe(steps=3)], "name each of them once"),
        ([MedusaRecipe(), HydraRecipe(steps=3)], "the same steps"),
        ([MedusaRecipe(), HydraRecipe(batch=3)], "the same batch"),
        ([MedusaRecipe(), SpdRecipe()], "spd does not learn from the target's features"),
    ],
)
def test_what_cannot_learn_together_is_refused(recipes: Any, words: str, pipe: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        train_drafters(pipe, recipes, COURSE, [tmp_path / "a", tmp_path / "b"], tmp_path / "run", "tiny")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda: MedusaRecipe(levels=0),
        lambda: MedusaRecipe(layers=0),
        lambda: MedusaRecipe(decay=0),
        lambda: HydraRecipe(levels=17),
        lambda: HassRecipe(top=0),
        lambda: HassRecipe(top_weight=-1),
        lambda: Eagle3Recipe(unroll=0),
        lambda: Eagle3Recipe(words=2),
        lambda: Eagle3Recipe(intermediate=0),
        lambda: KangarooRecipe(exit_layer=0).check(CausalTarget(toys.llama())),
        lambda: DFlashRecipe(block=1),
        lambda: DFlashRecipe(anchors=0),
        lambda: DFlashRecipe(layers=0),
        lambda: MedusaRecipe(warm_steps=-1),
    ],
)
def test_settings_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize("given", [{"warm_steps": 5}, {"warm_questions": 8}])
def test_what_learns_from_features_has_no_warm_up(given: dict[str, int]) -> None:
    with pytest.raises(InputError, match="eagle2 learns from the target's features: it has no warm-up"):
        EagleRecipe(**given)


def test_the_command_trains_several_and_names_their_folders(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tiny.tiny_smolvlm(tmp_path / "target")
    small = "--questions 4 --steps 2 --batch 2 --held-out 1 --max-new-tokens 8 --answer-batch 2 --levels 2"
    own = ["--out", "mine", "--set", "words=40"]
    arguments = ["drafter", "--target", str(folder), "--method", "eagle3, medusa", *small.split(), *own]
    assert test_training.command(monkeypatch, *arguments) == 0
    said = capfd.readouterr().err
    assert "mine/eagle3: tau " in said
    assert "mine/medusa: tau " in said
    medusa = mmspec.load(folder, drafter="mine/medusa").drafter
    assert medusa.most == 2
    assert json.loads((tmp_path / "mine/eagle3/drafter.json").read_text())["settings"]["words"] == 40
    wrong = ["drafter", "--target", str(folder), "--method", "eagle3,medusa", "--block", "4"]
    assert test_training.command(monkeypatch, *wrong) == 2
    assert "--block: not an option of the method eagle3 or medusa" in capfd.readouterr().err


def test_every_method_has_a_card_with_its_settings() -> None:
    for method, kind in RECIPE_OF.items():
        card = model_card(Trained("target", "vlm", kind(), COURSE, [method], [], [], 7, 2))
        assert "together" not in card
        assert "    mmspec generate picture.png QUESTION --model target --drafter FOLDER\n" in card
        assert kind.drafter_class.source.split("arXiv ")[1] in card
        assert f"| decay | {kind().decay} |" in card
        assert f"| batch | {kind().batch} |" in card
        assert method in card


def test_a_card_tells_how_models_of_its_kind_are_asked() -> None:
    def card(modality: str) -> str:
        return model_card(Trained("target", modality, RECIPE_OF["eagle2"](), COURSE, ["eagle2"], [], [], 7, 2))

    assert "mmspec generate SENTENCE --out speech.wav --model target --drafter FOLDER" in card("speech")
    assert "mmspec generate QUESTION --model target --drafter FOLDER" in card("text")


def test_a_card_names_a_model_of_the_hub_with_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert [shown_name(target) for target in ("smolvlm-mini", "models/mine", "/a/b")] == ["smolvlm-mini", "mine", "b"]
    name = shown_name("HuggingFaceTB/SmolVLM2-2.2B-Instruct")
    assert name == "HuggingFaceTB/SmolVLM2-2.2B-Instruct"
    card = model_card(Trained(name, "vlm", RECIPE_OF["eagle2"](), COURSE, ["eagle2"], [], [], 7, 2))
    assert f"\nbase_model: {name}\n" in card
    assert f"    mmspec generate picture.png QUESTION --model {name} --drafter FOLDER\n" in card


def test_a_card_does_not_say_where_things_lay_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def card(data: str, start: str) -> str:
        course = replace(COURSE, data=data, start=start)
        return model_card(Trained("target", "vlm", RECIPE_OF["eagle2"](), course, ["eagle2"], [], [], 7, 2))

    monkeypatch.chdir(tmp_path)
    here, away = card(str(tmp_path / "mine" / "asked"), "owner/name"), card("owner/name:test", "/elsewhere/heads")
    assert "questions of `mine/asked`" in here
    assert "| data | mine/asked |" in here
    assert "| start | owner/name |" in here
    assert "questions of `owner/name:test`" in away
    assert "| start | heads |" in away
    assert str(tmp_path) not in here
    assert "/elsewhere" not in away
