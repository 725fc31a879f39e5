"""Drafters that are trained: what they draft with their caches is what they would draft without, and what comes out is
what the target says alone, whether their drafts are rejected, kept in part or kept whole.
"""

import copy
import itertools
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import taught
import test_control
import test_drafters
import test_equality
import test_families
import torch
import toys
from taught import METHODS
from test_drafters import Watched
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PhiConfig, PhiForCausalLM

import mmspec
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.ratio import Ratio, without
from mmspec.cache import RowCache
from mmspec.checkpoints import load_drafter, save_drafter
from mmspec.contract import Draft, Kind, Shape, State
from mmspec.control import NO_DRAFT, Fixed
from mmspec.drafters.children import Judged
from mmspec.drafters.dflash import spread_taps
from mmspec.drafters.dspark import DSpark
from mmspec.drafters.eagle3 import usual_taps
from mmspec.drafters.independent import Independent, Writing
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.on_slots import OnSlots, SlotDrafter
from mmspec.drafters.slots import Last, Slots
from mmspec.drafters.static import TYPICAL, Node, best_tree, checked
from mmspec.errors import CheckpointError, InputError, MismatchError
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget
from mmspec.training.kangaroo import KangarooRecipe
from mmspec.tree import chain

GREEDY, WARM = Sampling(), Sampling(temperature=1.0, seed=5)
LENGTHS = (17, 9, 14)


# What is drafted


@pytest.mark.parametrize("name", ["qwen2", "smolvlm"])
@pytest.mark.parametrize("method", METHODS)
def test_drafting_with_a_cache_equals_a_full_forward(method: str, name: str) -> None:
    """Static trees by the laws that they declare, in a batch whose rows accept different lengths."""
    model, target = test_equality.make(name)
    net = taught.network(method, target)
    inputs = test_equality.inputs_for(target, *LENGTHS)
    sampler = Sampler(test_drafters.SAMPLING, 3, torch.device("cpu"))
    looked, counts = 0, set()

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        for row in range(3):
            if state.done[row] or draft.q is None or looked > 60:
                continue
            for node in test_drafters.parents_in(draft):
                path = draft.tokens[row, draft.ancestors[row, node].nonzero()[1:, 0]].tolist()
                logits = taught.expected(method, net, target, toys.row_of(inputs, row), state.ids[row], path)
                q = test_drafters.law_of(sampler, target, logits)
                assert (draft.q[row, node] - q).abs().max() < 1e-5
                looked += 1

    drafter = Watched(taught.drafter(method, net, depth=3, total=9), look)
    result = toys.answer(target, drafter, inputs, 16, test_drafters.SAMPLING, Ratio())
    counts = {tuple(r.drafted) for r in result.rounds[1:]}
    assert looked > 60
    assert any(len(set(drafted)) > 1 for drafted in counts)


def test_first_layers_draft_at_the_positions_of_the_target() -> None:
    """Pictures of Qwen2.5-VL take fewer positions than slots."""
    pipe = test_families.plain("qwen2.5-vl")
    target, net = pipe.target, taught.network("kangaroo", pipe.target)
    prompts = test_families.PICTURES, test_families.TEXTS
    singles = [pipe.prepare(*prompt) for prompt in zip(*prompts, strict=True)]
    sampler = Sampler(test_drafters.SAMPLING, 3, torch.device("cpu"))
    looked: list[int] = []

    def look(state: State, draft: Draft) -> None:
        for row, single in enumerate(singles):
            if state.done[row] or draft.q is None:
                continue
            for node in test_drafters.parents_in(draft):
                path = draft.tokens[row, draft.ancestors[row, node].nonzero()[1:, 0]].tolist()
                text = test_families.texts_of(target, single, state.ids[row] + path)
                with torch.no_grad():
                    states = target.model(**text, output_hidden_states=True).hidden_states
                    shallow = states[net.settings["exit_layer"]]
                    logits = target.head(net(shallow, torch.arange(shallow.shape[1])[None], None)[0, -1])
                q = test_drafters.law_of(sampler, target, logits)
                assert (draft.q[row, node] - q).abs().max() < 1e-5
                looked.append(row)

    drafter = Watched(taught.drafter("kangaroo", net, depth=3, total=6), look)
    toys.answer(target, drafter, pipe.prepare(*prompts), 4, test_drafters.SAMPLING, Ratio())
    assert set(looked) == {0, 1, 2}


@pytest.mark.dynamic("compiled steps read a prompt in widths of their own")
@pytest.mark.parametrize("method", METHODS)
def test_a_prompt_read_in_portions_is_read_whole(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Slots.read

    def shortly(slots: Slots, forward: Any) -> Tensor:
        slots.most = 3
        return read(slots, forward)

    monkeypatch.setattr(Slots, "read", shortly)
    test_drafting_with_a_cache_equals_a_full_forward(method, "simple")


class Blurting(OnSlots):
    """Guesses one token."""

    def propose(self, state: State) -> Draft:
        assert state.pending is not None
        told = torch.cat([self.slots.read(self.forwards[0]), self.drafter.target.embed(state.pending)], -1)
        token = self.drafter.head(self.drafter.net.heads[0](told)).argmax(-1)
        return chain(torch.stack([state.pending, token], 1))


class Blurt(SlotDrafter):
    """One head of another method's network."""

    noun = "blurting"
    text = Last
    drafting = Blurting

    def taps(self, target: Any) -> tuple[int, ...]:
        return (target.num_layers,)


class BlurtAll(Blurt):
    """The same, told the whole text."""

    text = Slots


@pytest.mark.parametrize(("kind", "method"), [(Blurt, "hydra"), (BlurtAll, "hydra++")])
def test_a_new_head_says_how_it_drafts_and_hears_the_text_without_more(kind: type[Blurt], method: str) -> None:
    target, inputs = CausalTarget(toys.llama()), toys.prompts(*LENGTHS)
    net, looked = taught.network(method, target), set()

    def look(state: State, draft: Draft) -> None:
        for row, ids in enumerate(state.ids):
            if not state.done[row]:
                logits = taught.expected(method, net, target, toys.row_of(inputs, row), ids, [])
                assert draft.tokens[row].tolist() == [ids[-1], int(logits.argmax())]
                looked.add((row, len(ids)))

    want = toys.answer(target, NoDrafter(), inputs, 16).rows
    assert toys.answer(target, Watched(kind(net), look), inputs, 16).rows == want
    assert len(looked) > 24


def masks_of(target: CausalTarget, made: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Tensor]]:
    """A greedy answer's rounds, and the masks that were written down while it was drafted."""
    mask, tree, found = RowCache.mask, made.tree, []

    def noted(cache: RowCache, *given: Any) -> Tensor:
        found.append(mask(cache, *given))
        return found[-1]

    def watched(*given: Any, **named: Any) -> Draft:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RowCache, "mask", noted)
            return tree(*given, **named)

    monkeypatch.setattr(made, "tree", watched)
    return toys.answer(target, made, toys.prompts(*LENGTHS), 12), found


@pytest.mark.dynamic("masks of compiled steps have one size")
@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_a_step_that_looks_at_no_slots_gets_no_mask_of_the_context(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long prompt it would be as large as its square; the block alone has one."""
    _, target = test_equality.make("simple")
    made = taught.drafter(method, taught.network(method, target))
    _, masks = masks_of(target, made, monkeypatch)
    block = made.net.settings["block"]
    assert len(masks) > 2
    assert {mask.shape[2] for mask in masks} == {block}


@pytest.mark.dynamic("compiled steps read a prompt in widths of their own")
@pytest.mark.parametrize("method", ["eagle2", "eagle3"])
def test_the_mask_of_a_prompt_does_not_grow_with_the_batch(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are the same, whatever is read at once."""
    _, target = test_equality.make("simple")
    net = taught.network(method, target)
    whole, masks = masks_of(target, taught.drafter(method, net), monkeypatch)
    assert max(mask.shape[2] for mask in masks) == max(LENGTHS)
    monkeypatch.setattr("mmspec.drafters.slots.AT_ONCE", 15)
    for least, most in ((1, 5), (7, 7)):
        monkeypatch.setattr("mmspec.drafters.slots.LEAST_AT_ONCE", least)
        few, masks = masks_of(target, taught.drafter(method, net), monkeypatch)
        assert max(mask.shape[2] for mask in masks) == most
        assert [(done.tokens, done.drafted) for done in few.rounds] == [
            (done.tokens, done.drafted) for done in whole.rounds
        ]


@pytest.mark.parametrize("method", METHODS)
def test_a_tree_holds_the_best_children_of_its_nodes(method: str) -> None:
    """Dynamic trees and static ones, greedy: the children of a node are its first ranks, from scratch."""
    model, target = test_equality.make("simple")
    net = taught.network(method, target)
    inputs = toys.prompts(*LENGTHS)
    looked = 0

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        for row, node in itertools.product(range(3), range(draft.size)):
            below = draft.tokens[row, draft.parents[row] == node].tolist()
            if state.done[row] or not below or looked > 60:
                continue
            path = draft.tokens[row, draft.ancestors[row, node].nonzero()[1:, 0]].tolist()
            logits = taught.expected(method, net, target, toys.row_of(inputs, row), state.ids[row], path)
            assert sorted(below) == sorted(logits.topk(len(below)).indices.tolist())
            looked += 1

    toys.answer(target, Watched(taught.drafter(method, net, depth=4, width=3, top_k=3, total=9), look), inputs, 12)
    assert looked > 60


def test_a_head_says_of_every_node_what_its_law_is_worth() -> None:
    """Where a tree grows at temperature 1: laws and their factors from scratch, each told the path of its own node."""
    model, target = test_equality.make("simple")
    net = taught.network("dspark", target)
    calls: list[tuple[Tensor, Tensor, Judged]] = []

    class Heard(DSpark):
        def laws(self, hidden: Any) -> Any:
            expand = super().laws(hidden)

            def heard(level: int, tokens: Tensor, origin: Tensor, above: Any) -> Judged:
                calls.append((tokens, origin, expand(level, tokens, origin, above)))
                return calls[-1][2]

            return heard

    looked: set[float] = set()
    inputs = toys.prompts(*LENGTHS)

    def look(state: State, draft: Draft) -> None:
        for row in range(3):
            paths: list[list[int]] = [[]]
            for level, (tokens, origin, judged) in enumerate(calls[: 0 if state.done[row] else None]):
                if level:
                    above = zip(origin[row].tolist(), tokens[row].tolist(), strict=True)
                    paths = [[*paths[parent], token] for parent, token in above]
                for node, path in enumerate(paths if len(looked) < 60 else []):
                    given = net, target, toys.row_of(inputs, row), state.ids[row], path
                    torch.testing.assert_close(judged.logits[row, node], taught.expected("dspark", *given))
                    factors = torch.cat(judged[1:], -1)[row, node]
                    torch.testing.assert_close(factors, taught.told(*given)[1])
                    looked.add(float(factors[0]))
        calls.clear()

    made = Watched(Heard(net, depth=4, width=3, top_k=3, total=9), look)
    toys.answer(target, made, inputs, 12, WARM)
    assert len(looked) >= 60


@pytest.mark.parametrize("method", ["eagle3", "medusa", "hydra", "kangaroo", "dflash"])
def test_the_declared_q_is_the_law_that_children_are_drawn_from(method: str) -> None:
    """2000 rows; every child of every node, given those before it; six standard errors."""
    target = CausalTarget(toys.llama())
    made = taught.drafter(method, taught.network(method, target), depth=3, total=8)
    draft = test_drafters.first_draft(made, target, 2000, "sampled")[0]
    assert draft.q is not None
    children = 0
    for node in test_drafters.parents_in(draft):
        left = draft.q[:, node]
        for child in (draft.parents[0] == node).nonzero()[:, 0]:
            assert test_drafters.surprise(draft.tokens[:, child], left) < 6
            left = without(left, draft.tokens[:, child])
            children += 1
    assert children == draft.size - 1 == 7
    wrong = draft.q[:, 0].square() / draft.q[:, 0].square().sum(-1, keepdim=True)
    assert test_drafters.surprise(draft.tokens[:, 1], wrong) > 6


@pytest.mark.parametrize("kind", ["point", "coupled", "sampled"])
@pytest.mark.parametrize("method", METHODS)
def test_a_tree_has_its_size_and_no_twins(method: str, kind: Kind) -> None:
    target = CausalTarget(toys.llama())
    made = taught.drafter(method, taught.network(method, target), depth=4, width=3, top_k=4, total=14)
    draft = test_drafters.first_draft(made, target, 4, kind)[0]
    assert draft.tokens.shape == (4, 14)
    for row in range(4):
        pairs = list(zip(draft.parents[row].tolist(), draft.tokens[row].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        assert all(above < node for node, (above, _) in enumerate(pairs))
        assert draft.depth[row].tolist() == [0] + [1 + int(draft.depth[row, above]) for above, _ in pairs[1:]]
    if made.static or kind == "sampled":
        shape = [(-1, 0), *((node.parent, node.level) for node in best_tree(TYPICAL, 14, 4, 4))]
        assert list(zip(draft.parents[0].tolist(), draft.depth[0].tolist(), strict=True)) == shape


@pytest.mark.dynamic("counts the slots of dynamic caches")
@pytest.mark.parametrize("method", METHODS)
def test_between_rounds_caches_hold_what_is_true_and_nothing_else(method: str, monkeypatch: Any) -> None:
    """The drafter's own cache, and every layer of the target's, which Kangaroo borrows."""
    target = CausalTarget(toys.llama())
    made = taught.drafter(method, taught.network(method, target), depth=3, total=8)
    begin, begun, widths = made.begin, [], []

    def noted(*arguments: Any) -> Any:
        begun.append((arguments[0], begin(*arguments)))
        return begun[-1][1]

    def look(state: State, draft: Draft) -> None:
        drafting = begun[-1][1]
        own = [part.cache for part in vars(drafting).values() if isinstance(part, Slots)]
        for each in (begun[-1][0].cache, *own):
            widths.append({layer.get_seq_length() for layer in each.hf.layers} == {max(each.lengths)})

    monkeypatch.setattr(made, "begin", noted)
    toys.answer(target, Watched(made, look), toys.prompts(*LENGTHS), 20)
    assert all(widths)
    assert len(widths) > 8


@pytest.mark.parametrize("method", ["spd", "eagle2", "hydra++", "kangaroo", "dflash"])
def test_a_row_that_is_done_stands_still_in_the_drafters_cache(method: str, monkeypatch: Any) -> None:
    target = CausalTarget(toys.llama())
    inputs = toys.prompts(*LENGTHS)
    eos = toys.answer(target, NoDrafter(), inputs, 30).rows[1][4:5]
    want = toys.answer(target, NoDrafter(), inputs, 30, eos=eos).rows
    made: Any = Independent(toys.perturbed(target.model, 0.1), length=3)
    if method != "spd":
        made = taught.drafter(method, taught.network(method, target), depth=3, total=8)
    begin, begun, lengths = made.begin, [], []
    monkeypatch.setattr(made, "begin", lambda *given: begun.append(begin(*given)) or begun[-1])

    def look(state: State, draft: Draft) -> None:
        if state.done[1] and draft.size > 2:
            parts = [begun[-1], *vars(begun[-1]).values()]
            own = next(part.cache for part in parts if isinstance(part, Writing | Slots))
            lengths.append(own.lengths[1] - (draft.size - 2 if method == "spd" else 0))  # but for what was drafted now

    assert toys.answer(target, Watched(made, look), inputs, 30, eos=eos).rows == want
    assert len(lengths) > 4
    assert len(set(lengths)) == 1


@pytest.mark.dynamic("compiled rounds are counted otherwise")
def test_a_coupled_chain_and_its_rule_share_the_noise_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    target, inputs = CausalTarget(toys.llama()), toys.prompts(*LENGTHS)
    want = toys.answer(target, NoDrafter(), inputs, 20, WARM).rows
    made, noise = [], Sampler.target_noise

    def counted(sampler: Sampler, positions: Tensor, vocab_size: int) -> Tensor:
        made.append(positions.shape[1])
        return noise(sampler, positions, vocab_size)

    monkeypatch.setattr(Sampler, "target_noise", counted)
    said = toys.answer(target, Independent(toys.perturbed(target.model, 0.1), length=3), inputs, 20, WARM)
    assert said.rows == want
    assert len(made) == len(said.rounds)
    assert made[:2] == [1, 4]


# What comes out


@cache
def lesson(temperature: float) -> tuple[CausalTarget, dict[str, Tensor], list[list[int]], Any, Any]:
    """A target, prompts, its answers to them, and what there is to learn from these."""
    _, target = test_equality.make("llama")
    inputs = toys.prompts(*LENGTHS)
    sampling = Sampling(temperature=temperature, seed=5)
    answers = toys.answer(target, NoDrafter(), inputs, 24, sampling).rows
    return target, inputs, answers, *taught.studied(target, inputs, answers)


@cache
def learnt(method: str, temperature: float, steps: int) -> Any:
    target, _, _, rows, features = lesson(temperature)
    return taught.taught(method, target, rows, features, steps * (3 if method == "medusa" else 1))


@pytest.mark.parametrize("method", METHODS)
def test_rejected_partial_and_full_acceptance_give_the_same_answer(method: str) -> None:
    """Trees of a random network and of one that learnt for a while, chains of one that knows the answers by heart."""
    target, inputs, want, _, _ = lesson(0.0)
    chain = {"depth": 3, "width": 1, "top_k": 1, "total": 4}
    accepted = []
    for net, options in (
        (taught.network(method, target), {"depth": 4}),
        (learnt(method, 0.0, 12), {"depth": 4}),
        (learnt(method, 0.0, 60), chain),
    ):
        got = toys.answer(target, taught.drafter(method, net, **options), inputs, 24)
        assert got.rows == want
        accepted.append(got.accepted)
    assert 0 in accepted[0]
    assert set(accepted[1]) & {1, 2, 3}
    assert accepted[2].count(3) >= 3


@pytest.mark.dynamic("compiled ones have trees of one size")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("method", "least"), [("dspark", 0.3), ("eagle2", 0.05)])
def test_trees_without_what_is_hardly_taken_give_the_same_answer(method: str, least: float, temperature: float) -> None:
    """Rows of a round have trees of different sizes."""
    target, inputs, want, _, _ = lesson(temperature)
    made = taught.drafter(method, learnt(method, temperature, 25))
    control = Fixed(Shape(5, 4, 20, least=least))
    sizes: list[list[int]] = []

    def look(state: State, draft: Draft) -> None:
        real = torch.ones_like(draft.tokens, dtype=torch.bool) if draft.valid is None else draft.valid
        sizes.append(real.sum(-1).tolist())

    got = toys.answer(
        target, Watched(made, look), inputs, 24, Sampling(temperature=temperature, seed=5), control=control
    )
    assert got.rows == want
    assert 0 in got.accepted
    assert set(got.accepted) & {1, 2, 3, 4}
    assert any(len(set(row)) > 1 for row in sizes)
    assert max(map(max, sizes)) < 20


@pytest.mark.parametrize("method", METHODS)
def test_sampled_output_depends_on_the_seed_alone(method: str) -> None:
    target, inputs, want, _, _ = lesson(1.0)
    for net in (taught.network(method, target), learnt(method, 1.0, 40)):
        got = toys.answer(target, taught.drafter(method, net, depth=4), inputs, 24, WARM)
        assert got.rows == want
    assert max(got.accepted) >= 2
    assert sum(got.accepted) > 0.8 * len(got.accepted)


@pytest.mark.parametrize("family", test_families.CHOSEN)
def test_every_family_with_every_method(family: str) -> None:
    """Greedy as transformers or sampled as our AR loop, in a left-padded batch with and without pictures."""
    base = test_families.plain(family)
    for method, options, want in test_families.in_turns(family, METHODS):
        made = taught.drafter(method, taught.network(method, base.target), depth=3, total=8)
        if method == "kangaroo" and family == "gemma3n":  # of whose first layers several streams come
            with pytest.raises(MismatchError, match="Kangaroo cannot run the first layers"):
                base.with_drafter(made)
            continue
        told = {"max_new_tokens": test_families.BUDGET, **options}
        said = base.with_drafter(made)(test_families.PICTURES, test_families.TEXTS, **told)
        assert [one.token_ids for one in said] == want, method


@pytest.mark.parametrize("method", METHODS)
def test_after_a_rest_drafts_are_those_of_a_drafter_that_never_rested(method: str) -> None:
    """Catching up on many tokens at once, in rows that accepted different lengths before."""
    model, target = test_equality.make("simple")
    inputs, shape = toys.prompts(17, 9, 12), Shape(3, 3, 9)
    drafts: list[dict[tuple[int, int], list[int]]] = []

    def run(control: Any, rule: Any) -> list[Any]:
        drafts.append({})

        def look(state: State, draft: Draft) -> None:
            for row, ids in enumerate(state.ids):
                if not state.done[row] and state.shape == shape and state.room >= shape.depth:
                    drafts[-1][row, len(ids)] = [*draft.tokens[row].tolist(), *draft.parents[row].tolist()]

        made = Watched(taught.drafter(method, taught.network(method, target)), look)
        return toys.answer(target, made, inputs, 40, rule=rule, control=control).rows

    always = run(Fixed(shape), test_control.Refusing())
    script = test_control.Script([shape] * 4 + [NO_DRAFT] * 9 + [shape] * 2 + [NO_DRAFT] * 2 + [shape])
    assert run(script, Exact()) == always
    shared = drafts[0].keys() & drafts[1].keys()
    assert len(shared) > 5
    assert [drafts[1][key] for key in shared] == [drafts[0][key] for key in shared]


SPOILT = {
    "eagle": ["fc.weight"],
    "eagle2": ["fc.weight"],
    "hass": ["fc.weight"],
    "eagle3": ["fc.weight"],
    "hydra++": ["layer.self_attn.v_proj.weight", "heads.1.0.skip.weight", "heads.1.0.linear.weight"],
    "hydra": ["heads.1.0.skip.weight", "heads.1.0.linear.weight"],
    "kangaroo": ["attention.o_proj.weight"],
    "dflash": ["fc.weight"],
    "dspark": ["pull.weight"],
}
"""What carries the method: fusion of features, a head's knowledge of the tokens before it, attention."""


@pytest.mark.parametrize("method", METHODS)
def test_without_what_makes_the_method_less_is_accepted(method: str) -> None:
    target, inputs, want, _, _ = lesson(0.0)
    net = copy.deepcopy(learnt(method, 0.0, 60))
    chains = {"depth": 4, "width": 1, "top_k": 1}  # siblings would make up for what is missing
    whole = toys.answer(target, taught.drafter(method, net, **chains), inputs, 24)
    with torch.no_grad():
        for name in SPOILT.get(method, []):
            net.get_parameter(name).zero_()
        if method == "medusa":
            net.heads = torch.nn.ModuleList(reversed(net.heads))
    spoilt = toys.answer(target, taught.drafter(method, net, **chains), inputs, 24)
    assert spoilt.rows == whole.rows == want
    assert len(spoilt.rounds) > 2 + len(whole.rounds)


# Static trees


def expected_tokens(shares: Any, tree: Any) -> float:
    """Tokens per round that a tree emits if the shares hold, the target's own included."""
    weights = [1.0]
    for node in tree:
        weights.append(weights[node.parent] * shares[min(node.level, len(shares)) - 1][node.rank])
    return math.fsum(weights)


def most_tokens(shares: Any, nodes: int, depth: int, level: int = 0) -> float:
    """Sequoia's dynamic programme: the best value of a tree of that many nodes."""

    @cache
    def tree(size: int, below: int) -> float:
        if size == 0:
            return 0.0
        return 1.0 + (children(size - 1, 0, below) if below < depth else 0.0)

    @cache
    def children(size: int, rank: int, below: int) -> float:
        row = shares[min(below, len(shares) - 1)]
        if size == 0 or rank == len(row):
            return 0.0
        return max(
            (row[rank] * tree(own, below + 1) if own else 0.0) + children(size - own, rank + 1, below)
            for own in range(size + 1)
        )

    return tree(nodes, level)


def test_static_trees_are_those_of_the_dynamic_programme() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        levels, ranks, depth, total = (int(torch.randint(1, most, (1,), generator=generator)) for most in (4, 5, 6, 14))
        laws = torch.rand(levels, ranks + 1, generator=generator)
        shares = checked((laws / laws.sum(-1, keepdim=True))[:, :ranks].tolist())
        tree = best_tree(shares, total, depth, ranks)
        assert expected_tokens(shares, tree) == pytest.approx(most_tokens(shares, total, depth))
        assert len(tree) < total
        for node in range(len(tree) + 1):
            below = [child.rank for child in tree if child.parent == node]
            assert below == list(range(len(below)))  # siblings are the first ranks
        assert all(child.parent <= place for place, child in enumerate(tree))


def test_values_of_known_trees() -> None:
    shares = checked([[0.65, 0.2, 0.1, 0.05]])
    values = [expected_tokens(shares, best_tree(shares, total, 10, 4)) for total in (2, 4, 8, 16, 32)]
    assert [round(value, 2) for value in values] == [1.65, 2.35, 2.99, 3.66, 4.36]
    assert best_tree(shares, 4, 1, 2) == (Node(0, 0, 1), Node(0, 1, 1))
    deep = checked([[0.9, 0.05], [0.1, 0.08]])  # later levels are worse than the first
    assert best_tree(deep, 4, 3, 2) == (Node(0, 0, 1), Node(1, 0, 2), Node(1, 1, 2))


@pytest.mark.parametrize("shares", [[], [[]], [[0.5, 1.2]], [[-0.1]], [[float("nan")]]])
def test_shares_that_are_none_are_refused(shares: Any) -> None:
    with pytest.raises(InputError, match=r"numbers in \[0, 1\]"):
        checked(shares)


def test_a_static_drafter_drafts_the_tree_that_its_shares_say() -> None:
    target = CausalTarget(toys.llama())
    net = taught.network("medusa", target)
    for shares in ([[0.9, 0.01]], [[0.3, 0.29, 0.28, 0.1]]):
        made = taught.drafter("medusa", net, depth=4, total=5, shares=shares)
        draft = test_drafters.first_draft(made, target, 2, "coupled")[0]
        assert draft.parents[0, 1:].tolist() == [node.parent for node in best_tree(checked(shares), 5, 4, 4)]


# Saving, loading, misfits


@pytest.mark.parametrize("method", METHODS)
def test_a_drafter_comes_back_as_it_was(method: str, pipe: mmspec.Pipeline, tmp_path: Path) -> None:
    shares = [[0.6, 0.2], [0.5, 0.1]]
    made = taught.drafter(method, taught.network(method, pipe.target), depth=3, total=7, sharpness=0.5, shares=shares)
    folder = save_drafter(made, tmp_path / "drafter", pipe.target)
    assert json.loads((folder / "drafter.json").read_text())["method"] == method
    loaded = load_drafter(folder, pipe.target)
    assert type(loaded) is type(made)
    assert (loaded.depth, loaded.total, loaded.sharpness, loaded.shares) == (3, 7, 0.5, checked(shares))
    assert loaded.net.settings == made.net.settings
    assert loaded.needs == pipe.with_drafter(made).drafter.needs
    weights = loaded.net.state_dict()
    for name, weight in made.net.state_dict().items():
        assert torch.equal(weights[name], weight)
    borrowed = [weight for weight in weights.values() if pipe.target.vocab_size in weight.shape]
    assert method == "eagle3" or not borrowed  # neither embeddings nor the target's head are stored
    said = [
        drafting(None, "what is it?", max_new_tokens=10)
        for drafting in (pipe.with_drafter(made), pipe.with_drafter(folder, "own"))
    ]
    assert said[0].stats.accept_lengths == said[1].stats.accept_lengths


@pytest.mark.parametrize("method", METHODS)
def test_damaged_or_foreign_drafters_are_refused(method: str, pipe: mmspec.Pipeline, tmp_path: Path) -> None:
    made = taught.drafter(method, taught.network(method, pipe.target))
    with torch.no_grad():
        next(made.net.parameters()).view(-1)[0] = float("nan")
    folder = save_drafter(made, tmp_path / "drafter", pipe.target)
    with pytest.raises(CheckpointError, match="is not finite"):
        load_drafter(folder, pipe.target)
    wide = CausalTarget(toys.llama(hidden_size=64))
    with pytest.raises(MismatchError, match="features of size 32, the target has 64"):
        taught.drafter(method, taught.network(method, pipe.target)).bind(wide)
    for options in ({"depth": 0}, {"total": 1}, {"top_k": 0}, {"shares": [[2.0]]}):
        with pytest.raises(InputError):
            taught.drafter(method, made.net, **options)


@pytest.mark.parametrize("method", ["eagle3", "kangaroo", "dflash"])
def test_taps_that_the_target_lacks_are_refused(method: str, pipe: mmspec.Pipeline) -> None:
    deep = CausalTarget(toys.llama(num_hidden_layers=12))
    changes = {"exit_layer": 5} if method == "kangaroo" else {}
    net = taught.recipe_of(method, **changes).build(deep)
    with pytest.raises(MismatchError, match="2 layers"):
        taught.drafter(method, net).bind(pipe.target)
    assert taught.drafter(method, net).needs.taps == ()
    fitting = taught.drafter(method, net)
    fitting.bind(deep)
    assert max(fitting.needs.taps) > 2


GPT2 = GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, eos_token_id=None)
PHI = PhiConfig(vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)


@pytest.mark.parametrize("make", [lambda: GPT2LMHeadModel(GPT2), lambda: PhiForCausalLM(PHI)])
def test_kangaroo_is_refused_where_the_first_layers_do_not_run_alone(make: Any) -> None:
    """Phi would draft from normed features after it has learnt from others: exact, and slow."""
    target = CausalTarget(make().double())
    with pytest.raises(MismatchError, match="cannot run the first layers of (GPT2|Phi)Model alone"):
        KangarooRecipe().check(target)
    net = KangarooRecipe().build(CausalTarget(toys.llama()))
    with pytest.raises(MismatchError, match="cannot run the first layers"):
        taught.drafter("kangaroo", net).bind(target)


@pytest.mark.parametrize("method", ["eagle2", "dflash"])
def test_heads_for_models_that_name_no_width_of_their_mlps(method: str) -> None:
    target = CausalTarget(GPT2LMHeadModel(GPT2).double().eval())
    made = taught.drafter(method, taught.network(method, target))
    assert made.net.config.intermediate_size == 4 * 32
    plain = toys.answer(target, NoDrafter(), toys.prompts(9, 12), 10)
    assert toys.answer(target, made, toys.prompts(9, 12), 10).rows == plain.rows


def test_kangaroo_leaves_between_the_first_layer_and_the_last() -> None:
    target = CausalTarget(toys.llama())
    for wrong in (0, 2, 3):
        with pytest.raises(InputError, match="cannot leave after"):
            KangarooRecipe(exit_layer=wrong).check(target)


def test_taps_are_spread_over_the_target() -> None:
    assert usual_taps(32) == (2, 16, 29)
    assert spread_taps(36, 5) == (2, 10, 18, 26, 34)  # ids 1, 9, 17, 25, 33 in the papers' count of layers left
    assert spread_taps(36, 1) == (19,)
    for layers in range(1, 12):
        assert all(0 <= tap <= layers for tap in (*usual_taps(layers), *spread_taps(layers, 5)))


def test_draft_vocabulary_rules_out_the_rest() -> None:
    target = CausalTarget(toys.llama())
    recipe = taught.recipe_of("eagle3", words=20)
    net = recipe.build(target).double()
    net.ids.copy_(torch.arange(40, 60))
    for kind in ("point", "coupled", "sampled"):
        draft = test_drafters.first_draft(taught.drafter("eagle3", net), target, 6, kind)[0]
        assert bool(((draft.tokens[:, 1:] >= 40) & (draft.tokens[:, 1:] < 60)).all())


@pytest.mark.parametrize("method", ["medusa", "hydra", "hydra++", "dflash"])
def test_no_shape_is_deeper_than_the_network(method: str) -> None:
    target = CausalTarget(toys.llama())
    made = taught.drafter(method, taught.network(method, target))
    made.bind(target)
    assert max(shape.depth for shape in made.shapes) == made.most == 5
    inputs = toys.prompts(*LENGTHS)
    want = toys.answer(target, NoDrafter(), inputs).rows
    got = toys.answer(target, made, inputs, control=Fixed(Shape(8, 4, 32)))
    assert got.rows == want
    assert max(done.proposed for done in got.rounds) > 5
