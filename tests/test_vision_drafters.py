"""Drafters that see: what they draft with their caches, and with slots left out, is what a forward of the whole text
would draft; what comes out is what the target says alone, whether drafts are rejected, kept in part or kept whole.
"""

import copy
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import sights
import taught
import test_drafters
import test_equality
import test_families
import torch
import toys
from sights import LENGTHS, METHODS
from test_drafters import Watched
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaAttention

import mmspec
from mmspec.acceptance.ratio import Ratio
from mmspec.base_target import unpad
from mmspec.checkpoints import load_drafter, save_drafter
from mmspec.contract import Draft, Needs, State
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.slots import Slots
from mmspec.errors import InputError, MismatchError, UnsupportedError
from mmspec.focus import watching
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget
from mmspec.training.answers import Answered
from mmspec.training.drafter import find_recipe
from mmspec.training.muon import build_optimizer
from mmspec.training.steps import Batch, drafted_slots
from mmspec.vlm.drafters import sight
from mmspec.vlm.drafters.dream import most
from mmspec.vlm.drafters.insights import Insight
from mmspec.vlm.drafters.sight import Sight
from mmspec.vlm.drafters.vispec import runs

# What is drafted


@pytest.mark.parametrize("method", METHODS)
def test_drafting_with_a_cache_equals_a_full_forward(method: str) -> None:
    """Static trees by the laws that they declare, in a batch whose rows accept different lengths."""
    _, target = test_equality.make("smolvlm")
    seed = 5 if method == "specvlm" else 3  # one with which rows differ
    result = check_laws(method, target, sights.network(method, target, seed))
    assert any(len(set(done.drafted)) > 1 for done in result.rounds[1:])


@pytest.mark.dynamic("compiled steps read a prompt in widths of their own")
@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_read_in_portions_is_read_whole(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, looked = Slots.read, []

    def shortly(slots: Slots, forward: Any) -> Tensor:
        slots.most = 3
        looked.append(max(slots.waiting[0][2]))
        return read(slots, forward)

    monkeypatch.setattr(Slots, "read", shortly)
    monkeypatch.setattr(sight, "at_once", lambda batch: 3)
    _, target = test_equality.make("smolvlm")
    check_laws(method, target, sights.network(method, target, 3))
    assert looked


def check_laws(method: str, target: CausalTarget, net: Any) -> toys.Answer:
    """The answer of a run in which every declared law was compared with one computed from scratch."""
    inputs = test_equality.inputs_for(target, *LENGTHS)
    sampler = Sampler(test_drafters.SAMPLING, 3, torch.device("cpu"))
    looked = 0

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        for row in range(3):
            if state.done[row] or draft.q is None or looked > 40:
                continue
            for node in test_drafters.parents_in(draft):
                path = draft.tokens[row, draft.ancestors[row, node].nonzero()[1:, 0]].tolist()
                single = toys.row_of(inputs, row)
                logits = sights.expected(method, net, target, single, state.ids[row], LENGTHS[row], path)
                q = test_drafters.law_of(sampler, target, logits)
                assert (draft.q[row, node] - q).abs().max() < 1e-5, (row, node)
                looked += 1

    drafter = Watched(sights.drafter(method, net, depth=3, total=7), look)
    result = toys.answer(target, drafter, inputs, 16, test_drafters.SAMPLING, Ratio())
    assert looked > 40
    return result


@pytest.mark.parametrize("method", METHODS)
def test_slots_that_are_left_out_are_in_no_cache(method: str, monkeypatch: Any) -> None:
    """How many slots a prompt leaves in every layer of the drafter's cache, and where the next one stands."""
    _, target = test_equality.make("smolvlm")
    made = sights.drafter(method, sights.network(method, target), depth=3, total=7)
    begin, begun = made.begin, []
    monkeypatch.setattr(made, "begin", lambda *given: begun.append(begin(*given)) or begun[-1])
    looked = []

    def look(state: State, draft: Draft) -> None:
        if draft.size == 1:  # no room left: nothing was read
            return
        cache = begun[0].slots.cache
        assert {layer.get_seq_length() for layer in cache.hf.layers} == {max(cache.lengths)}
        cut = {"msd": 0, "vispec": 3, "hivis": 4, "dream": 1, "specvlm": 2}[method]
        assert cache.lengths == [len(ids) - 1 - cut for ids in state.ids]
        assert (cache.positions() + cache.shift)[:, 0].tolist() == [len(ids) - 1 for ids in state.ids]
        looked.append(cut)

    toys.answer(target, Watched(made, look), test_equality.inputs_for(target, 17), 20)
    assert len(looked) > 8


@pytest.mark.parametrize("method", METHODS)
def test_what_a_loss_estimates_is_what_drafting_estimates(method: str) -> None:
    """Every step in every slot against the whole text, read from scratch up to the slot's root."""
    target, inputs, said, rows, features = lesson(0.0)
    net = sights.network(method, target)
    changes = {"text_share": 0.0} if method == "msd" else {}
    recipe = sights.recipe_of(method, noise=0.0, unroll=3, **changes)
    known = sights.insights_of(target, inputs, rows) if method in sights.FOCUSED else {}
    loss = sights.loss_of(recipe, net, target, features, known)
    if method == "specvlm":
        loss.look = lambda sight, batch: net.see(sight)  # the gate without its noise
    features.kept = {index: states.double() for index, states in features.kept.items()}
    taught.as_double(loss)
    looked = 0
    with torch.no_grad():
        first = min(row.start for row in rows) - 1
        true = loss.features(rows)
        tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.ids) for row in rows], batch_first=True)
        batch = Batch(rows, true, target.embed(tokens[:, 1:-1]), first, 0)
        for step, estimate in enumerate(loss.estimates(batch)):
            drafted = drafted_slots(rows, first, batch.slots, step)
            for row, place in drafted.nonzero().tolist()[:: 3 + step]:
                root = first + place - step
                ids, path = rows[row].ids[: root + 2], rows[row].ids[root + 2 : root + 2 + step]
                single = toys.row_of(inputs, row)
                want = sights.expected(method, net, target, single, ids, rows[row].start, path)
                assert torch.allclose(target.head(estimate[row, place]), want, atol=1e-5), (step, row, place)
                looked += 1
    assert looked > 30


# What comes out


@cache
def lesson(temperature: float) -> Any:
    sampling = Sampling(temperature=temperature, seed=5)
    return sights.lesson(lambda target, inputs: toys.answer(target, NoDrafter(), inputs, 24, sampling).rows)


@cache
def learnt(method: str, temperature: float, steps: int) -> Any:
    target, inputs, _, rows, features = lesson(temperature)
    return sights.taught_by(method, target, inputs, rows, features, steps)


CHAIN = {"depth": 3, "width": 1, "top_k": 1, "total": 4}


@pytest.mark.parametrize("method", METHODS)
def test_rejected_partial_and_full_acceptance_give_the_same_answer(method: str) -> None:
    """Trees of a random network and of one that learnt for a while, chains of one that knows the answers by heart."""
    target, inputs, want, _, _ = lesson(0.0)
    accepted = []
    for net, options in (
        (sights.network(method, target), {"depth": 4}),
        (learnt(method, 0.0, 12), {"depth": 4}),
        (learnt(method, 0.0, 100), CHAIN),
    ):
        got = toys.answer(target, sights.drafter(method, net, **options), inputs, 24)
        assert got.rows == want
        accepted.append(got.accepted)
    assert accepted[0].count(0) > 0.5 * len(accepted[0])
    assert {0, 1} <= set(accepted[1])
    assert accepted[2].count(3) > 0.4 * len(accepted[2])


@pytest.mark.parametrize("method", METHODS)
def test_sampled_answers_depend_on_the_seed_alone(method: str) -> None:
    target, inputs, want, _, _ = lesson(1.0)
    sampling = Sampling(temperature=1.0, seed=5)
    for net in (sights.network(method, target), learnt(method, 0.0, 100)):
        got = toys.answer(target, sights.drafter(method, net, depth=4), inputs, 24, sampling)
        assert got.rows == want
    assert max(got.accepted) >= 1


@pytest.mark.parametrize("family", test_families.CHOSEN)
def test_every_family_says_what_it_says_alone(family: str) -> None:
    """Pictures of several sizes, several pictures, none; greedy as transformers or sampled as our AR loop."""
    base = test_families.plain(family)
    for method, options, want in test_families.in_turns(family, METHODS):
        made = sights.drafter(method, sights.network(method, base.target), depth=3, total=8)
        told = {"max_new_tokens": test_families.BUDGET, **options}
        said = base.with_drafter(made, "own")(test_families.PICTURES, test_families.TEXTS, **told)
        assert [one.token_ids for one in said] == want, method


# What carries a method


def spoil(method: str, net: Any) -> None:
    with torch.no_grad():
        if method == "vispec":
            net.adaptor.out.weight.zero_()
            net.inject.weight[:, 32:] = 0
        elif method == "dream":
            net.across.attention_gate.zero_()
        elif method == "hivis":
            net.corrections.zero_()
        net.fc.weight.zero_() if method in ("msd", "hivis", "specvlm") else None


@pytest.mark.parametrize("method", METHODS)
def test_without_what_makes_the_method_less_is_accepted(method: str) -> None:
    target, inputs, want, _, _ = lesson(0.0)
    net = copy.deepcopy(learnt(method, 0.0, 100))
    whole = toys.answer(target, sights.drafter(method, net, **CHAIN), inputs, 24)
    spoil(method, net)
    spoilt = toys.answer(target, sights.drafter(method, net, **CHAIN), inputs, 24)
    assert spoilt.rows == whole.rows == want
    assert sum(spoilt.accepted) < sum(whole.accepted) - 2


def test_only_a_drafter_that_reads_the_picture_learns_what_it_decides() -> None:
    """Two texts of the same words and features whose next words differ by their pictures alone. Each method's ablation
    stands beside it: no adaptor and no g, no image slots kept, no image slots at all."""
    base = test_families.plain("smolvlm")
    target = sights.Single(base.target)
    slot, size = base.target.placeholders[0], base.target.hidden_size
    torch.manual_seed(0)
    shared, pictures, goals = torch.randn(9, size), torch.randn(2, 4, size), 2 * torch.randn(2, size)
    rows = [Answered(index, [7, *[slot] * 4, 40, 41], [50, 52], 0.0) for index in range(2)]
    states, known = {}, {}
    for index in range(2):
        embeddings, features = shared.clone(), shared.clone()
        embeddings[1:5] = pictures[index]
        features[7] = goals[index]  # of the first word of the answer: the target's law behind it is what is learnt
        states[index] = torch.stack([embeddings, features], 1)
        known[index] = Insight(torch.rand(9), 1, features)

    def loss_after(method: str, **changes: Any) -> float:
        recipe = sights.recipe_of(method, unroll=1, noise=0.0, feature_weight=0.0, **changes)
        net = recipe.build(base.target)
        loss = sights.loss_of(recipe, net, target, taught.Given(states, (0, 2)), known)
        optimizer = build_optimizer(net, 0.02)
        for _ in range(60):
            value = loss(position=torch.tensor([10**6]), rows=rows)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        laws = target.head(torch.stack([states[index][7:8, 1] for index in range(2)])).softmax(-1)
        entropy = -(laws * laws.log()).sum(-1).mean()
        return float(value.detach() - entropy)

    blind = loss_after("hivis")
    assert blind > 0.3  # the words alone fit a mean of two laws
    assert loss_after("vispec", queries=0) > 0.3
    assert loss_after("dream", keep=0.0, middle_weight=0.0) > 0.3
    for method, changes in {
        "msd": {},
        "vispec": {},
        "dream": {"middle_weight": 0.0},
    }.items():
        assert loss_after(method, **changes) < blind / 2, method
    assert loss_after("vispec", queries=1) < blind / 2  # g alone
    assert loss_after("vispec", queries=2, global_feature=False) < blind / 2  # the vector in the prompt alone


def test_a_picture_is_replaced_by_as_many_vectors_as_there_are_queries() -> None:
    """Several pictures in a row of slots: places, positions, and the g of the last picture before."""
    target = test_families.plain("smolvlm").target
    net = sights.network("vispec", target, queries=3)
    image = torch.tensor([[0, 1, 1, 1, 0, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0, 0, 1]]).bool()
    assert [part.tolist() for part in runs(image)] == [[0, 0, 1, 1], [1, 6, 0, 8], [4, 8, 1, 9]]
    torch.manual_seed(0)
    embeddings, features = torch.randn(2, 2, 9, 32, dtype=torch.float64)
    with torch.no_grad():
        seen = net.see(Sight(embeddings, features, image, torch.tensor([9, 9])))
        assert seen.kept[0].tolist() == [True, False, True, True, True, True, True, True, True]
        assert seen.kept[1].all()  # pictures of one slot have no room for two vectors: the last one stands
        real = torch.ones(1, 3, dtype=torch.bool)
        first = net.adaptor(embeddings[:1, 1:4], real)[0]
        second = net.adaptor(embeddings[:1, 6:8], real[:, :2])[0]
        none = torch.zeros(32, dtype=torch.float64)
        assert torch.allclose(seen.content[0, 2:4], first[:2])
        for slot, said, told in ((0, embeddings[0, 0], none), (5, embeddings[0, 5], first[2])):
            want = net.content(said[None, None], features[:1, slot : slot + 1], told[None, None])
            assert torch.allclose(seen.content[0, slot], want[0, 0])
        assert seen.context is not None
        assert torch.allclose(seen.context[0, 0], second[2])
        alone = net.adaptor(embeddings[1:, 8:], real[:, :1])[0]
        assert torch.allclose(seen.context[1, 0], alone[2])
        net.settings["direct"] = False  # vectors go through the fc as words do, and are told of the picture before
        seen = net.see(Sight(embeddings, features, image, torch.tensor([9, 9])))
        for slot, vector, told in ((3, first[1], none), (7, second[1], first[2])):
            want = net.content(vector[None, None], features[:1, slot : slot + 1], told[None, None])
            assert torch.allclose(seen.content[0, slot], want[0, 0])


def test_the_slots_that_are_looked_at_most_are_kept() -> None:
    focus = torch.tensor([[0.9, 0.1, 0.3, 0.2, 0.3, 0.8], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
    image = torch.tensor([[0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]]).bool()
    for share, kept in ((0.0, []), (0.25, [2]), (0.5, [2, 4]), (0.6, [2, 3, 4]), (1.0, [1, 2, 3, 4])):
        chosen = most(focus, image, share)
        assert chosen[0].nonzero()[:, 0].tolist() == kept
        assert not chosen[1].any()


# Attention


@pytest.mark.parametrize("family", test_families.CHOSEN)
def test_attention_is_seen_as_eager_attention_shows_it(family: str) -> None:
    """All layers, in a batch, under sdpa; what the model says is the same as without anybody looking."""
    base = test_families.plain(family)
    model = base.target.model
    inputs = base.prepare(test_families.PICTURES, test_families.TEXTS)
    rows, found = unpad(inputs), {}
    with torch.no_grad():
        _, plain = base.target.read(inputs, rows)
        with watching(model, range(base.target.num_layers), lambda layer, weights: found.update({layer: weights})):
            _, heard = base.target.read(inputs, rows)
        assert torch.equal(plain.logits, heard.logits)
        for row, ids in enumerate(rows):
            single = test_families.plain(family, "eager")
            alone = single.prepare(test_families.PICTURES[row], test_families.TEXTS[row])
            told = single.target.model(**alone, output_attentions=True).attentions[-1]
            got = found[base.target.num_layers - 1][row, :, : len(ids), : len(ids)]
            assert (got - told[0]).abs().max() < 1e-5  # softmax is of float32 there, of large scores in Gemma 4
    found.clear()
    base.target.read(inputs, rows)
    assert not found  # the hooks are gone


@pytest.mark.parametrize("family", test_families.CHOSEN)
def test_attention_is_told_a_few_positions_at_a_time(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of it is ever written down; together it is the whole, in every piece of a prompt."""
    base = test_families.plain(family)
    inputs = base.prepare(test_families.PICTURES, test_families.TEXTS)
    rows = unpad(inputs)
    told: dict[int, list[Tensor]] = {4096: [], 5: []}
    for count, here in told.items():
        monkeypatch.setattr("mmspec.focus.AT_ONCE", count)
        monkeypatch.setattr(base.target, "piece_size", 12)
        with torch.no_grad(), watching(base.target.model, [0], lambda layer, weights, here=here: here.append(weights)):
            base.target.read(inputs, rows)
    assert len(told[4096]) > 1
    assert max(part.shape[2] for part in told[5]) == 5
    parts = iter(told[5])
    for piece in told[4096]:
        few: list[Tensor] = []
        while sum(part.shape[2] for part in few) < piece.shape[2]:
            few.append(next(parts))
        assert (torch.cat(few, 2) - piece).abs().max() < 1e-6
    assert next(parts, None) is None


def test_attention_of_a_class_of_one_s_own_is_seen_by_the_rule_that_it_inherits() -> None:
    model, ids = toys.llama(), torch.tensor([[5, 6, 7]])
    found: list[Tensor] = []
    with watching(model, [0], lambda layer, weights: found.append(weights)):
        model(ids)
        model.model.layers[0].self_attn.__class__ = type("Mine", (LlamaAttention,), {"__module__": __name__})
        model(ids)
        assert torch.equal(*found)
        model.model.layers[0].self_attn.__class__ = type(
            "Other", (torch.nn.Module,), {"forward": LlamaAttention.forward}
        )
        with pytest.raises(UnsupportedError, match="Other has no eager attention"):
            model(ids)


def test_attention_of_other_threads_is_not_seen() -> None:
    _, target = test_equality.make("llama")
    ids, found = torch.tensor([[5, 6, 7]]), []
    with watching(target.model, [0], lambda layer, weights: found.append(weights.shape[2])):
        other = Thread(target=lambda: target.model(torch.tensor([[5, 6, 7, 8]])))
        other.start()
        other.join()
        target.model(ids)
    assert found == [3]


def test_focus_of_a_prompt_read_in_pieces_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    _, target = test_equality.make("llama")
    inputs = {**toys.prompts(*LENGTHS), "max_new_tokens": 4}
    states = []
    for size, count in ((4096, 256), (5, 256), (4096, 3), (5, 3)):
        target.piece_size = size
        monkeypatch.setattr("mmspec.focus.AT_ONCE", count)
        sampler = Sampler(Sampling(), 3, torch.device("cpu"))
        with torch.inference_mode():
            states.append(target.prefill(inputs, Needs(focus=True, taps=(1,)), sampler))
    whole, *others = (state.prompt_focus for state in states)
    assert all(torch.allclose(whole, pieces, atol=1e-6) for pieces in others)
    assert torch.allclose(whole.sum(1), torch.ones(3), atol=1e-5)
    assert whole[1, LENGTHS[1] :].abs().max() == 0  # nobody looks behind the end of a row
    with torch.inference_mode():
        plain = target.prefill(inputs, Needs(), Sampler(Sampling(), 3, torch.device("cpu")))
    assert plain.prompt_focus is None


# Saving, loading, misfits


@pytest.mark.parametrize("method", METHODS)
def test_a_drafter_comes_back_as_it_was(method: str, pipe: mmspec.Pipeline, tmp_path: Path) -> None:
    changes = {"vispec": {"queries": 3}, "dream": {"keep": 0.5}}.get(method, {})
    made = sights.drafter(method, sights.network(method, pipe.target, **changes), depth=3, total=7)
    folder = save_drafter(made, tmp_path / "drafter", pipe.target)
    loaded = load_drafter(folder, pipe.target)
    assert type(loaded) is type(made)
    assert loaded.net.settings == made.net.settings
    assert loaded.needs == pipe.with_drafter(made).drafter.needs
    weights = loaded.net.state_dict()
    for name, weight in made.net.state_dict().items():
        assert torch.equal(weights[name], weight)
        assert pipe.target.vocab_size not in weight.shape  # neither embeddings nor the target's head are stored
    said = [
        drafting(test_families.RED, "what is it?", max_new_tokens=10)
        for drafting in (pipe.with_drafter(made, "own"), pipe.with_drafter(folder, "own"))
    ]
    assert said[0].stats.accept_lengths == said[1].stats.accept_lengths


def test_targets_that_do_not_see_are_refused(pipe: mmspec.Pipeline) -> None:
    blind = CausalTarget(toys.llama())
    for method in METHODS:
        net = sights.network(method, pipe.target)
        with pytest.raises(MismatchError, match="no image slots"):
            sights.drafter(method, net).bind(blind)
        with pytest.raises(MismatchError, match="no image slots"):  # before anything is answered for it
            find_recipe(method, "vlm")().check(blind)
        with pytest.raises(MismatchError, match=f"{method} is trained for vlm models, not for text models"):
            find_recipe(method, "text")


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("dream", {"keep": 1.5}, "a share"),
        ("dream", {"middle_weight": -1.0}, "0 or more"),
        ("vispec", {"queries": -1}, "0 to 64"),
        ("vispec", {"queries": 1, "global_feature": False}, "queries=0"),
        ("msd", {"text_share": 2.0}, "a share"),
        ("specvlm", {"ratio": 0}, "a ratio of 1 to 1024, got 0"),
        ("specvlm", {"queries": 65}, "queries of 1 to 64, got 65"),
    ],
)
def test_settings_out_of_range_are_refused(method: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sights.recipe_of(method, **changes)
