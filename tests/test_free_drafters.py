"""Drafters that need no training: what they look up is right, what they remember is bounded, what is emitted is never
theirs to decide."""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tables
import test_equality
import tiny
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from made import Made
from PIL import Image
from safetensors.numpy import save_file
from test_drafters import Watched
from transformers import AutoModelForImageTextToText

import mmspec
from mmspec import cli
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.match import Match
from mmspec.best import MANY
from mmspec.checkpoints import save_drafter
from mmspec.compare import compare
from mmspec.contract import Draft, Kind, Shape, State
from mmspec.control import OWN, Auto, Fixed, control_for
from mmspec.drafters.datastore import SEPARATOR, Datastore, suffix_order
from mmspec.drafters.datastore_cli import build
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.history import END, History
from mmspec.drafters.host import HostTree, commonest, plant
from mmspec.drafters.hybrid import Hybrid, mixed
from mmspec.drafters.independent import Independent
from mmspec.drafters.lookahead import Lookahead, Trajectories
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.recycling import SHARES, Recycled, Recycling, best_words
from mmspec.drafters.retrieval import Retrieval
from mmspec.drafters.static import best_tree
from mmspec.drafters.suffix import Suffix, SuffixStore
from mmspec.errors import CheckpointError, InputError, MismatchError
from mmspec.sampling import Sampler, Sampling
from mmspec.tree import chain

CPU = torch.device("cpu")


def random_documents(seed: int = 1, count: int = 30, length: int = 60, vocab: int = toys.VOCAB) -> list[list[int]]:
    """Texts over a few ids, so that endings occur often."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(30, vocab, (count, length), generator=generator).tolist()


def answers_of(model: Any, target: Any) -> list[list[int]]:
    """What the target says to some prompts: texts in which its answers can be found."""
    inputs = test_equality.inputs_for(target, 17, 12, 9)
    return toys.answer(target, NoDrafter(), inputs, 24).rows


FREE: dict[str, Callable[[Any, Any], Any]] = {
    "suffix": lambda model, target: Suffix(length=5),
    "suffix-store": lambda model, target: Suffix(length=5, store=SuffixStore(500)),
    "recycling": lambda model, target: Recycling(total=12, depth=4, width=3),
    "lookahead": lambda model, target: Lookahead(window=3, ngram=3, branches=3),
    "retrieval": lambda model, target: Retrieval(
        Datastore.build(answers_of(model, target) + random_documents()), length=5, total=10, shortest=1
    ),
    "hybrid": lambda model, target: Hybrid(Recycling(total=8, depth=3, width=2), least=2),
    "hybrid-spd": lambda model, target: Hybrid(toys.DRAFTERS["spd-perturbed"](model), least=3),
    "hybrid-eagle": lambda model, target: Hybrid(toys.DRAFTERS["eagle-copying"](model), least=3),
    "hybrid-lookahead": lambda model, target: Hybrid(Lookahead(window=3, ngram=3, branches=2), least=3),
}


def made(name: str, model: Any, target: Any) -> Any:
    return FREE[name](model, target)


# The output ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3", "simple", "smolvlm"])
def test_greedy_equals_generate(name: str) -> None:
    model, target = test_equality.make(name)
    inputs = test_equality.inputs_for(target, 17)
    want = test_equality.hf(model, inputs, 30)
    for drafter in FREE:
        again = made(drafter, model, target)
        assert toys.answer(target, again, inputs, 30).rows == [want], drafter
        assert toys.answer(target, again, inputs, 30).rows == [want], (drafter, "with a memory")


@pytest.mark.parametrize("rule", [Exact(), Match()], ids=["exact", "match"])
@pytest.mark.parametrize("how", ["cool", "all"])
@pytest.mark.parametrize("name", ["simple", "smolvlm"])
def test_sampled_rows_of_a_batch_depend_on_the_seed_alone(name: str, how: str, rule: Any) -> None:
    model, target = test_equality.make(name)
    inputs = test_equality.inputs_for(target, 17, 9, 12)
    sampling = test_equality.SAMPLINGS[how]
    want = toys.answer(target, NoDrafter(), inputs, sampling=sampling).rows
    for drafter in FREE:
        got = toys.answer(target, made(drafter, model, target), inputs, sampling=sampling, rule=rule)
        assert got.rows == want, drafter


def test_rows_end_at_different_rounds_and_budgets_are_met() -> None:
    model, target = test_equality.make("simple")
    drafters = {name: partial(made, name, model, target) for name in FREE}
    toys.check_endings(target, test_equality.inputs_for(target, 17, 9, 14), drafters)


@cache
def repeating(strength: float) -> tuple[Any, Any, list[tuple[Sampling, list[list[int]]]]]:
    """A model that repeats itself less the larger the strength, its target, and what it says, greedy and sampled."""
    model = toys.simple_llama(strength)
    target = toys.target_of(model)
    ways = Sampling(), Sampling(temperature=0.4, seed=2)
    said = [(sampling, toys.answer(target, NoDrafter(), toys.prompts(12, 9), 60, sampling).rows) for sampling in ways]
    return model, target, said


@pytest.mark.parametrize("drafter", ["suffix", "recycling", "lookahead", "retrieval", "hybrid", "hybrid-spd"])
def test_rejected_partial_and_full_acceptance_all_occur(drafter: str) -> None:
    """A target that repeats itself exactly, one that does so at times, one that hardly does."""
    seen: Counter[str] = Counter()
    for strength in (0.0, 0.25, 0.6):
        model, target, said = repeating(strength)
        for sampling, want in said:
            drafts: list[Draft] = []
            watched = Watched(made(drafter, model, target), lambda state, draft: drafts.append(draft))  # noqa: B023
            got = toys.answer(target, watched, toys.prompts(12, 9), 60, sampling)
            assert got.rows == want
            for draft, played in zip(drafts, got.rounds[1:], strict=True):
                real = torch.ones_like(draft.depth) if draft.valid is None else draft.valid.long()
                deepest = (draft.depth * real).amax(1).tolist()
                for kept, emitted, depth in zip(played.drafted, played.tokens, deepest, strict=True):
                    if emitted and depth > 1:
                        seen["none" if not kept else "all" if kept == depth else "some"] += 1
    assert min(seen["none"], seen["some"], seen["all"]) > 0, seen


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_joint_law_of_a_table_target_is_kept(temperature: float) -> None:
    """Tokens of 1500 rows at once, drafted from a matrix that all rows feed, against the loop without a drafter."""
    target = tables.TableTarget(tables.random_table(6, 3))
    inputs = {"input_ids": torch.tensor([[1, 2]]).repeat(1500, 1)}
    sampling = Sampling(temperature=temperature, seed=8)
    want = toys.answer(target, NoDrafter(), inputs, 4, sampling, eos=[tables.END])
    got = toys.answer(target, Recycling(total=8, depth=3, width=3), inputs, 4, sampling, eos=[tables.END])
    assert got.rows == want.rows
    assert len(got.rounds) <= len(want.rounds)
    if temperature:
        counts = Counter(map(tuple, got.rows))
        assert tables.p_value(counts, tables.outcomes(target.table, sampling, 4)) > 1e-6


# What is proposed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", FREE)
def test_no_image_placeholder_is_ever_proposed(drafter: str) -> None:
    model, target = test_equality.make("smolvlm")
    image = target.placeholders[0]
    with torch.no_grad():
        model.lm_head.weight[image] = 4 * model.lm_head.weight[60]
    inputs = test_equality.inputs_for(target, 14)
    drafts: list[Draft] = []
    inner = made(drafter, model, target)
    watched = Watched(inner, lambda state, draft: drafts.append(draft))
    for seed in (4, 5):
        got = toys.answer(target, watched, inputs, 40, Sampling(temperature=0.5, seed=seed))
        assert image in got.rows[0]
    assert not any(bool((draft.tokens[:, 1:] == image).any()) for draft in drafts)
    assert any(draft.size > 1 for draft in drafts)


@pytest.mark.parametrize("shape", [None, Shape(1), Shape(2, 2, 5), Shape(3, 4, 9)], ids=str)
@pytest.mark.parametrize("drafter", FREE)
def test_drafts_are_trees_of_the_wanted_size_without_twins(drafter: str, shape: Shape | None) -> None:
    model, target = test_equality.make("simple")
    inner = made(drafter, model, target)
    nodes = 0

    def look(state: State, draft: Draft) -> None:
        nonlocal nodes
        for row in range(len(state.ids)):
            real = [i for i in range(draft.size) if draft.valid is None or draft.valid[row, i]]
            pairs = [(int(draft.parents[row, i]), int(draft.tokens[row, i])) for i in real]
            assert len(set(pairs)) == len(pairs)
            assert all(above < node for node, (above, _) in zip(real, pairs, strict=True))
            assert all(
                int(draft.depth[row, node]) == (int(draft.depth[row, above]) + 1 if node else 0)
                for node, (above, _) in zip(real, pairs, strict=True)
            )
            nodes += len(real) - 1
        assert int(draft.depth.max()) <= max(state.room, 0)
        if shape is not None and "lookahead" not in drafter:  # which makes its own draft or none
            assert draft.size <= shape.total

    toys.answer(target, Watched(inner, look), toys.prompts(12, 9), 16, control=Fixed(shape))
    assert nodes > 0


def test_planted_rows_are_padded_with_invalid_nodes() -> None:
    one, other = HostTree(5), HostTree(6)
    one.add([7, 8])
    one.add([7, 9])
    draft = plant([one, other], CPU)
    assert draft.tokens.tolist() == [[5, 7, 8, 9], [6, 6, 6, 6]]
    assert draft.parents.tolist() == [[-1, 0, 1, 1], [-1, 0, 0, 0]]
    assert draft.depth[0].tolist() == [0, 1, 2, 2]
    assert draft.valid is not None
    assert draft.valid.tolist() == [[True] * 4, [True, False, False, False]]
    assert plant([one, one], CPU).valid is None


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=12), st.integers(2, 8))
def test_the_likeliest_tree_holds_the_most_frequent_beginnings(runs: list[list[int]], total: int) -> None:
    counts = Counter(tuple(run[:size]) for run in runs for size in range(1, len(run) + 1))
    tree = commonest(9, runs, total)
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        paths.append((*paths[parent], token))
    assert (
        sorted((counts[path] for path in paths[1:]), reverse=True) == sorted(counts.values(), reverse=True)[: total - 1]
    )
    common = commonest(9, runs, 1 + len(counts), share=0.5)
    assert len(common.tokens) - 1 == sum(2 * count >= len(runs) for count in counts.values())


# Suffix decoding ----------------------------------------------------------------------------------------------------


def longest_match(texts: list[list[int]], ending: list[int], most: int) -> tuple[int, list[list[int]]]:
    """By search: the longest ending that something follows, and what follows its occurrences, newest first."""
    best: tuple[int, list[list[int]]] = (0, [])
    for text in reversed(texts):
        for end in range(len(text) - 1, 0, -1):
            length = 0
            while length < min(end, len(ending)) and text[end - 1 - length] == ending[-1 - length]:
                length += 1
            if length >= max(1, best[0]):
                best = (length, best[1] if length == best[0] else [])
                best[1].append(text[end : end + most])
    return best


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=4),
    st.lists(st.integers(0, 2), max_size=6),
    st.integers(1, 4),
)
def test_a_history_finds_what_a_search_finds(texts: list[list[int]], ending: list[int], most: int) -> None:
    history = History(100)
    for text in texts:
        history.extend([*text, END])
    assert history.find(ending, most, 50, 1000) == longest_match(texts, ending, most)


@given(st.lists(st.integers(0, 2), min_size=5, max_size=40), st.integers(2, 12))
def test_a_full_history_finds_what_its_newest_tokens_hold(text: list[int], capacity: int) -> None:
    history = History(capacity)
    size = history.nbytes
    history.extend(text)
    assert history.find(text, 3, 50, 1000) == longest_match([text[-capacity:]], text, 3)
    assert history.nbytes == size


def test_a_store_keeps_its_size_through_ten_thousand_requests() -> None:
    store = SuffixStore(2000)
    assert store.nbytes <= 28 * 2000
    size = store.nbytes
    generator = torch.Generator().manual_seed(0)
    answers = torch.randint(0, 50, (10_000, 12), generator=generator).tolist()
    for answer in answers:
        store.add(answer)
    assert store.nbytes == size
    assert store.history.find(answers[-1][:6], 6, 32, 64) == (6, [answers[-1][6:]])
    assert store.history.find(answers[0][:6], 6, 32, 10_000)[0] < 6
    unsaid = [run for _, runs in (store.history.find(a[:2], 20, 32, 64) for a in answers[-50:]) for run in runs]
    assert all(len(run) <= 10 for run in unsaid)  # no continuation goes on into the next answer


def test_answers_are_found_again_only_through_a_store_that_was_passed() -> None:
    model = toys.llama()
    target = toys.target_of(model)
    inputs = {"input_ids": torch.tensor([[3, 50, 31, 77, 40]])}  # nothing in it repeats
    store = SuffixStore(1000)

    def rounds(drafter: Any) -> int:
        return len(toys.answer(target, drafter, inputs, 40).rounds)

    alone, remembering = Suffix(), Suffix(store=store)
    first = rounds(remembering)
    assert rounds(alone) == rounds(alone) == first  # nothing is kept
    assert rounds(remembering) < 0.5 * first
    assert rounds(Suffix(store=store)) < 0.5 * first  # the user shared it
    assert rounds(Suffix(store=SuffixStore(1000))) == first


def test_a_store_gets_whole_answers_and_nothing_of_the_prompts() -> None:
    target, store = toys.target_of(toys.llama()), SuffixStore(1000)
    rows = toys.answer(target, Suffix(store=store), toys.prompts(12, 9), 10).rows
    assert len(store.history) == sum(len(row) + 1 for row in rows)
    for row in rows:
        assert store.history.find(row[:-1], 1, 99, 99) == (9, [row[-1:]])


def test_a_store_holds_one_vocabulary() -> None:
    store = SuffixStore(100)
    Suffix(store=store).bind(toys.target_of(toys.llama()))
    with pytest.raises(MismatchError, match="97 ids, the target's has 50"):
        Suffix(store=store).bind(toys.target_of(toys.llama(vocab_size=50)))


@pytest.mark.parametrize(
    "make",
    [lambda store: Suffix(store=store), lambda store: Hybrid("recycling", copier=Suffix(store=store))],
    ids=["suffix", "hybrid"],
)
def test_a_comparison_neither_meets_its_own_reply_in_a_store_nor_leaves_it_there(
    make: Callable[[SuffixStore], Any], pipe: mmspec.Pipeline
) -> None:
    prompt = "what is the value?"
    asked: Any = {"max_new_tokens": 24, "temperature": 0.0}
    new, store = SuffixStore(1000), SuffixStore(1000)
    for each in (new, store):
        each.add([60, 61, 62])
    fresh = pipe.with_drafter(make(new))(None, prompt, **asked)
    drafting = pipe.with_drafter(make(store))
    compared: Any = compare(drafting, None, prompt, **asked).speculative
    assert compared.stats.accept_lengths == fresh.stats.accept_lengths
    assert len(store.history) == 4  # what was there, and its end
    drafting(None, prompt, **asked)
    assert len(store.history) > 4


def test_a_copy_ends_before_an_image_slot_and_no_match_goes_across_one() -> None:
    def drafted(factor: float, *ids: int) -> list[int]:
        text = [*range(40, 44), 9, *range(44, 48), *ids]
        state = State([text], [False], torch.ones(1), torch.ones(1), [99], torch.tensor(text[-1:]), room=99)
        drafter = Suffix(length=8, factor=factor)
        drafter.placeholders = frozenset({9})
        return drafter.begin(state, Sampler(Sampling(), 1, CPU), "point").propose(state).tokens[0].tolist()

    assert drafted(8.0, 40, 41) == [41, 42, 43]
    assert drafted(8.0, 42, 43) == [43]
    assert drafted(8.0, 43, 9, 44, 45) == [45, 46, 47, 43]
    assert drafted(1.0, 43, 9, 44, 45) == [45, 46, 47]  # two tokens match, not four


def test_a_longer_match_earns_a_deeper_draft() -> None:
    def drafted(ids: list[int], factor: float) -> list[int]:
        state = State([ids], [False], torch.ones(1), torch.ones(1), [99], torch.tensor(ids[-1:]), room=99)
        drafter = Suffix(length=8, factor=factor)
        return drafter.begin(state, Sampler(Sampling(), 1, CPU), "point").propose(state).tokens[0].tolist()

    text = list(range(40, 60))
    assert drafted([*text, 40, 41], 1.0) == [41, 42, 43]
    assert drafted([*text, 40, 41, 42, 43], 1.0) == [43, 44, 45, 46, 47]
    assert drafted([*text, 40, 41], 2.0) == [41, 42, 43, 44, 45]
    assert drafted([*text, 41], 1.0) == [41, 42]
    assert drafted([*text, 90], 1.0) == [90]


# Token recycling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "depth", "width"), [(2, 1, 1), (10, 3, 2), (16, 4, 8), (40, 4, 3)])
def test_a_template_holds_the_heaviest_paths_level_by_level(total: int, depth: int, width: int) -> None:
    nodes = [(-1, 0, 0), *best_tree((SHARES,), total, depth, width)]
    assert [node[2] for node in nodes] == sorted(node[2] for node in nodes)

    def weights(level: int, weight: float) -> list[float]:
        below = [weights(level + 1, weight * share) for share in SHARES[:width]] if level < depth else []
        return [weight, *(w for some in below for w in some)]

    mine = [1.0]
    for parent, rank, level in nodes[1:]:
        assert nodes[parent][2] == level - 1
        mine.append(mine[parent] * SHARES[rank])
    assert sum(mine) == pytest.approx(sum(sorted(weights(0, 1.0), reverse=True)[:total]))


def test_successors_are_those_of_the_last_verification_rejected_nodes_included() -> None:
    model, target = test_equality.make("llama")
    drafter = Recycling(total=8, depth=2, width=3)
    drafts, verified = [], []
    inner = target.verify

    class Told(type(target)):
        def verify(self, state: State, draft: Draft) -> Any:
            said = inner(state, draft)
            drafts.append(draft)
            verified.append(said.logits)
            return said

    telling = Told(model)
    got = toys.answer(telling, drafter, toys.prompts(12, 9), 30)
    expected: dict[int, list[int]] = {}
    for draft, logits in zip(drafts, verified, strict=True):
        best = logits.topk(3).indices
        for row in range(2):
            for node in range(draft.size):
                if draft.valid is None or draft.valid[row, node]:
                    expected[int(draft.tokens[row, node])] = best[row, node].tolist()
    assert drafter.successors is not None
    known = {token: row for token, row in enumerate(drafter.successors[:-1].tolist()) if row[0] >= 0}
    assert known == expected
    assert len(known) > len({token for row in got.rows for token in row})
    assert drafter.successors.numel() == 3 * (toys.VOCAB + 1)
    assert drafts[0].size == 1  # nothing is known yet, so nothing is verified in vain
    assert max(draft.size for draft in drafts) == 8


def test_nothing_stands_below_an_unknown_successor() -> None:
    drafter = Recycling(total=5, depth=4, width=1)
    drafter.bind(toys.target_of(toys.llama()))
    state = State([[5]], [False], torch.ones(1), torch.ones(1), [99], torch.tensor([5]), room=9)
    recycled = drafter.begin(state, Sampler(Sampling(), 1, CPU), "point")
    recycled.successors[[0, 5, 7]] = torch.tensor([[3], [7], [8]], dtype=torch.int32)  # of 8 nothing is known
    valid = recycled.propose(state).valid
    assert valid is not None
    assert valid.tolist() == [[True, True, True, False, False]]


def test_a_request_goes_on_with_what_it_learned_when_its_drafter_forgets() -> None:
    class Forgotten(Recycled):
        def propose(self, state: State) -> Draft:
            self.drafter.forget()
            return super().propose(state)

    class Forgetful(Recycling):
        def begin(self, state: State, sampler: Sampler, kind: Kind) -> Recycled:
            return Forgotten(self, super().begin(state, sampler, kind).successors)

    target = test_equality.make("llama")[1]
    want = toys.answer(target, NoDrafter(), toys.prompts(12, 9), 30).rows
    got = toys.answer(target, Forgetful(total=8, depth=2, width=3), toys.prompts(12, 9), 30)
    assert got.rows == want
    assert max(got.accepted) > 0


def test_successors_are_words_and_to_find_them_copies_no_scores() -> None:
    size, slots = 2 * MANY, (7, 40, 4001)
    logits = torch.randn(2, 3, size, generator=torch.Generator().manual_seed(4))
    logits[:, :2, slots] += 20  # the best of two nodes, and nowhere near it in the third
    made = Made()
    with made:
        found = best_words(logits, 5, slots)
    assert max(made.sizes) < logits.numel()
    assert torch.equal(found, logits.index_fill(-1, torch.tensor(slots), -torch.inf).topk(5).indices)
    assert torch.equal(best_words(logits, 5, ()), logits.topk(5).indices)
    few = logits[..., :6].contiguous()  # hardly more than are looked for
    assert best_words(few, 4, (0, 1)).sort().values.eq(torch.tensor([2, 3, 4, 5])).all()


# Lookahead ----------------------------------------------------------------------------------------------------------


def test_columns_of_the_window_are_jacobi_trajectories() -> None:
    """What a column's newest token is followed by, against a plain forward of text, chain and column."""
    model, target = test_equality.make("llama")
    drafter = Lookahead(window=3, ngram=4, branches=2)
    looked = 0

    class Checked(Watched):
        def begin(self, state: State, sampler: Sampler, kind: Any) -> Any:
            watching = super().begin(state, sampler, kind)
            self.rows = watching.inner.rows
            return watching

    before: list[list[list[list[int]]]] = []

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        now = [[list(level) for level in row.levels] for row in checked.rows]
        if before:
            for row, (old, new) in enumerate(zip(before[-1], now, strict=True)):
                if state.done[row] or state.room < 4 + 3 or len(old) > len(new) or old == new:
                    continue
                text = texts[-1][row]
                for column in range(3):
                    path = [*old[0][: column + 1], *(level[column] for level in old[1:])]
                    with torch.no_grad():
                        said = int(model(torch.tensor([text + path])).logits[0, -1].argmax())
                    assert new[-1][column] == said
                    looked += 1
        before.append(now)
        texts.append([list(ids) for ids in state.ids])

    texts: list[list[list[int]]] = []
    checked = Checked(drafter, look)
    toys.answer(target, checked, toys.prompts(12, 9), 30)
    assert looked > 60


def test_a_full_window_fills_the_pool_and_old_grams_make_room() -> None:
    row = Trajectories(Lookahead(window=2, ngram=3, branches=2), [1, 2, 3])
    assert row.levels == [[2, 3]]
    assert row.pool == {1: {(2, 3): None}}
    row.advance([10, 20])
    assert row.levels == [[2, 3], [10, 20]]
    row.advance([11, 21])
    assert row.levels == [[10, 20], [11, 21]]
    assert list(row.pool[2]) == [(10, 11)]
    assert list(row.pool[3]) == [(20, 21)]
    for gram in ([2, 5, 6], [2, 10, 11], [2, 7, 8]):
        row.keep(gram)
    assert list(row.pool[2]) == [(10, 11), (7, 8)]
    tree, newest = row.tree(2, 3)
    assert (tree.tokens, tree.parents, newest) == (
        [2, 10, 11, 20, 21, 7, 8],
        [-1, 0, 1, 1, 3, 0, 5],
        [2, 4],
    )
    assert row.tree(2, 2)[1] == []  # the window does not fit, the n-grams do


# Retrieval ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 1), max_size=25), min_size=1, max_size=5))
def test_suffixes_are_sorted(documents: list[list[int]]) -> None:
    stream = [token for document in documents for token in [*document, SEPARATOR]]
    order = suffix_order(torch.tensor(stream, dtype=torch.int32).numpy()).tolist()
    keys = [stream[place : place + 16] for place in order]
    assert sorted(order) == list(range(len(stream)))
    assert keys == sorted(keys)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=4),
    st.lists(st.integers(0, 2), max_size=6),
    st.integers(1, 5),
)
def test_a_datastore_finds_what_a_search_finds(documents: list[list[int]], text: list[int], most: int) -> None:
    found, runs = Datastore.build(documents).find(text, most, 16, 1000)
    length = max(
        n
        for n in range(len(text) + 1)
        if any(text[len(text) - n :] == d[i : i + n] for d in documents for i in range(len(d) - n + 1))
    )
    assert found == length
    if length:
        ending = text[len(text) - length :]
        places = [(d, i + length) for d in documents for i in range(len(d)) if d[i : i + length] == ending]
        assert sorted(runs) == sorted(d[end : end + most] for d, end in places if end < len(d))


def test_continuations_of_frequent_endings_are_sampled_evenly() -> None:
    store = Datastore.build([[1, 2 + index] for index in range(100)])
    length, runs = store.find([1], 3, 16, 10)
    assert length == 1
    assert len(runs) == 10
    assert [run[0] for run in runs][::9] == [2, 101]


# The hybrid ---------------------------------------------------------------------------------------------------------


def test_rows_of_two_drafts_are_mixed() -> None:
    copy, none = HostTree(5), HostTree(6)
    copy.add([7, 8, 9])
    other = chain(torch.tensor([[5, 1], [6, 2]]), "coupled")
    draft = mixed(plant([copy, none], CPU), other, torch.tensor([True, False]))
    assert draft.tokens.tolist() == [[5, 7, 8, 9], [6, 2, 0, 0]]
    assert draft.parents.tolist() == [[-1, 0, 1, 2], [-1, 0, 0, 0]]
    assert draft.depth.tolist() == [[0, 1, 2, 3], [0, 1, 1, 1]]
    assert draft.valid is not None
    assert draft.valid.tolist() == [[True] * 4, [True, True, False, False]]
    assert draft.kind == "coupled"
    short = mixed(plant([none, none], CPU), other, torch.tensor([True, False]))
    assert short.valid is not None
    assert short.valid.tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize(
    ("mine", "stored", "copied"), [(3, 7, [90, 91]), (3, 9, [80, 81]), (0, 7, []), (0, 8, [80, 81])]
)
def test_a_match_in_a_store_counts_five_tokens_less_in_a_hybrid(mine: int, stored: int, copied: list[int]) -> None:
    """Ends of 12 tokens, of which the last few stand in the row's own text or in the store."""
    ending = list(range(50, 62))
    ids = [*ending[12 - mine :], 90, 91, 20, *ending]
    store = SuffixStore(100)
    store.add([*ending[12 - stored :], 80, 81])
    copier = Suffix(store=store)
    hybrid = Hybrid(NoDrafter(), least=3, copier=copier)
    hybrid.bind(toys.target_of(toys.llama()))
    for drafter, expected in ((hybrid, copied), (copier, [80, 81])):
        state = State([ids], [False], torch.ones(1), torch.ones(1), [99], torch.tensor(ids[-1:]), room=99)
        draft = drafter.begin(state, Sampler(Sampling(), 1, CPU), "point").propose(state)
        assert draft.tokens[0, 1:3].tolist() == expected


def test_a_language_model_in_a_hybrid_drafts_what_it_would_draft_alone() -> None:
    """In a batch, asked in some rounds only and taken in some rows only: always the argmax after the whole text."""
    model = toys.simple_llama(0.2)
    target = toys.target_of(model)
    net = toys.perturbed(model, 0.1)
    asked = [0]
    rounds = [0]

    def look(state: State, draft: Draft) -> None:
        asked[0] += 1
        for row, ids in enumerate(state.ids):
            if not state.done[row]:
                text = ids + draft.tokens[row, 1:].tolist()
                with torch.no_grad():
                    said = net(torch.tensor([text[:-1]])).logits[0, len(ids) - 1 :].argmax(-1)
                assert said.tolist() == text[len(ids) :]

    hybrid = Hybrid(Watched(Independent(net, 4), look), least=2)
    watched = Watched(hybrid, lambda state, draft: rounds.__setitem__(0, rounds[0] + 1))
    for sampling in (Sampling(), Sampling(temperature=0.5, seed=3)):
        want = toys.answer(target, NoDrafter(), toys.prompts(12, 9), 50, sampling).rows
        got = toys.answer(target, watched, toys.prompts(12, 9), 50, sampling, Match())
        assert got.rows == want
    assert 10 < asked[0] < rounds[0]


def test_an_eagle_head_in_a_hybrid_drafts_what_it_would_draft_alone() -> None:
    model = toys.simple_llama(0.2)
    target = toys.target_of(model)
    head = toys.eagle_head(model)
    asked = [0]
    rounds = [0]

    def look(state: State, draft: Draft) -> None:
        asked[0] += 1
        for row, ids in enumerate(state.ids):
            if state.done[row] or draft.size == 1:
                continue
            with torch.no_grad():
                hidden = model(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states[target.num_layers]
                out = head(target.embed(torch.tensor([ids[1:]])), hidden, torch.arange(len(ids) - 1)[None], None)
                best = target.head(out[0, -1]).topk(2).indices.tolist()
            first = draft.tokens[row][draft.depth[row] == 1].tolist()
            assert set(first) <= set(best)
            assert best[0] in first

    hybrid = Hybrid(Watched(Eagle(head, depth=3, width=2, top_k=2, total=7), look), least=2)
    watched = Watched(hybrid, lambda state, draft: rounds.__setitem__(0, rounds[0] + 1))
    want = toys.answer(target, NoDrafter(), toys.prompts(12, 9), 60).rows
    assert toys.answer(target, watched, toys.prompts(12, 9), 60).rows == want
    assert 5 < asked[0] < rounds[0]


def test_a_hybrid_takes_what_its_other_drafter_can_but_no_sampled_children() -> None:
    from mmspec.acceptance.ratio import Ratio
    from mmspec.decode import choose_kind

    model = toys.llama()
    target = toys.target_of(model)
    hybrid = Hybrid(toys.DRAFTERS["eagle-copying"](model))
    hybrid.bind(target)
    assert choose_kind(Exact(), hybrid) == "coupled"
    assert choose_kind(Match(), hybrid) == "point"
    assert hybrid.needs.taps == (target.num_layers,)
    with pytest.raises(MismatchError, match="takes proposals of kind sampled"):
        choose_kind(Ratio(), hybrid)
    plain = Hybrid()
    plain.bind(target)
    assert isinstance(plain.other, Recycling)
    assert isinstance(control_for("auto", plain), Auto)
    plain.other.reuses = True
    again = Hybrid(plain.other)
    again.bind(target)
    assert control_for("auto", again) == OWN


# The small VLM ------------------------------------------------------------------------------------------------------


def seeing(seed: int = 0, layers: int = 2) -> Any:
    return tiny.smolvlm_model(seed, layers).double()


def plain_spoken() -> tuple[Any, Any]:
    """A model and its target, which never says the image token: plain forwards take it for a picture."""
    model, target = test_equality.make("smolvlm")
    with torch.no_grad():
        model.lm_head.weight[target.slot] = 0
    return model, target


def with_vision_of(model: Any, other: Any) -> Any:
    """`model` with vision tower and connector of `other`."""
    model.model.vision_model.load_state_dict(other.model.vision_model.state_dict())
    model.model.connector.load_state_dict(other.model.connector.state_dict())
    return model


@pytest.fixture
def pictures_encoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every model that encodes pictures, in order."""
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMModel

    calls: list[Any] = []
    inner = SmolVLMModel.get_image_features

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return inner(self, *args, **kwargs)

    monkeypatch.setattr(SmolVLMModel, "get_image_features", counted)
    return calls


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_small_vlm_sees_the_pictures(temperature: float, pictures_encoded: list[Any]) -> None:
    """The target's own weights accept everything, which needs the pictures; other weights change nothing but time."""
    from mmspec.vlm.small_vlm import SmallVLM

    model, target = plain_spoken()
    inputs = test_equality.inputs_for(target, 17, 11)
    sampling = Sampling(temperature=temperature, seed=5)
    want = toys.answer(target, NoDrafter(), inputs, 24, sampling).rows
    blind = toys.answer(target, toys.DRAFTERS["spd-copy"](model), inputs, 24, sampling)
    pictures_encoded.clear()
    cases = {
        "same": (plain_spoken()[0], True),
        "shared": (with_vision_of(seeing(7, layers=1), model), True),
        "own": (seeing(7, layers=1), False),
        "near": (toys.perturbed(model, 0.02), False),
    }
    for name, (small, shares) in cases.items():
        drafter = SmallVLM(small, length=3)
        got = toys.answer(target, drafter, inputs, 24, sampling)
        assert got.rows == want, name
        assert drafter.shares_vision == shares, name
        assert len(pictures_encoded) == 2 - shares, name
        pictures_encoded.clear()
        if name == "same":
            assert set(got.accepted[:-2]) == {3}
            assert 0 in blind.accepted


def test_a_small_vlm_with_other_ids_at_its_end_drafts_if_its_tokenizer_shows_it(tmp_path: Path) -> None:
    from mmspec.vlm.small_vlm import SmallVLM

    pipe = mmspec.load(tiny.tiny_smolvlm(tmp_path / "model"), "none", dtype="float64")
    small = AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    words = small.get_output_embeddings().weight.shape[0]
    small.resize_token_embeddings(words + 3)
    small.config.text_config.vocab_size = words + 3
    for name in ("more", "bare"):
        small.save_pretrained(tmp_path / name)
    pipe.processor.save_pretrained(tmp_path / "more")
    with pytest.raises(MismatchError, match="without both tokenizers"):
        pipe.with_drafter(str(tmp_path / "bare"))
    drafting = pipe.with_drafter(str(tmp_path / "more"))
    assert isinstance(drafting.drafter, SmallVLM)
    assert drafting.drafter.gap == -3
    picture = Image.new("RGB", (8, 8), "red")
    asked = {"max_new_tokens": 12, "temperature": 0.0}
    got = drafting(picture, "why", **asked)
    assert got.token_ids == pipe(picture, "why", **asked).token_ids
    assert sum(got.stats.accept_lengths) > 0


def test_a_small_vlm_drafts_from_its_own_pictures_what_a_plain_forward_says() -> None:
    from mmspec.vlm.small_vlm import SmallVLM

    model, target = plain_spoken()
    inputs = test_equality.inputs_for(target, 17, 11)
    looked = 0
    for small in (seeing(7, layers=1), with_vision_of(seeing(7, layers=1), model)):

        def look(state: State, draft: Draft, small: Any = small) -> None:
            nonlocal looked
            for row, ids in enumerate(state.ids):
                if not state.done[row] and draft.size > 1:
                    single = toys.row_of(inputs, row)
                    text = torch.tensor([ids + draft.tokens[row, 1:-1].tolist()])
                    with torch.no_grad():
                        logits = small(**{**single, "input_ids": text}).logits[0, len(ids) - 1 :]
                    logits[:, list(target.placeholders)] = -torch.inf
                    assert logits.argmax(-1).tolist() == draft.tokens[row, 1:].tolist()
                    looked += 1

        toys.answer(target, Watched(SmallVLM(small, 3), look), inputs, 16)
    assert looked > 20


def test_a_small_vlm_that_does_not_fit_is_refused() -> None:
    from mmspec.vlm.small_vlm import SmallVLM

    _, target = test_equality.make("smolvlm")
    with pytest.raises(MismatchError, match="a CausalLM, the target a SmolVLM"):
        SmallVLM(tiny.llama_model()).bind(target)
    with pytest.raises(MismatchError, match="vocabulary of 97 ids"):
        SmallVLM(toys.llama()).bind(target)
    small = seeing(7)
    small.config.text_config.max_position_embeddings = 8
    with pytest.raises(InputError, match="the drafter's context is 8"):
        toys.answer(target, SmallVLM(small), test_equality.inputs_for(target, 17))


def test_a_small_vlm_with_other_image_slots_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.vlm.small_vlm import SmallVLM

    _, target = test_equality.make("smolvlm")
    monkeypatch.setattr(tiny, "SCALE", 1)
    with pytest.raises(MismatchError, match="cannot read the target's pictures.*fill 16, the prompt has 4"):
        toys.answer(target, SmallVLM(seeing(7)), test_equality.inputs_for(target, 17))


# Options ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Suffix(length=0),
        lambda: Suffix(total=1),
        lambda: Suffix(share=1.5),
        lambda: Suffix(longest=0),
        lambda: SuffixStore(1),
        lambda: Recycling(total=1),
        lambda: Recycling(depth=0),
        lambda: Recycling(width=9),
        lambda: Lookahead(window=0),
        lambda: Lookahead(ngram=1),
        lambda: Lookahead(branches=0),
        lambda: Retrieval(Datastore.build([[1, 2]]), length=0),
        lambda: Retrieval(Datastore.build([[1, 2]]), longest=17),
        lambda: Retrieval(Datastore.build([[1, 2]]), shortest=9, longest=8),
        lambda: Hybrid(least=0),
        lambda: Datastore.build([[], []]),
    ],
)
def test_options_without_a_draft_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match="needs"):
        make()


# The datastore command ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, texts, and a datastore of them."""
    place = tmp_path_factory.mktemp("retrieval")
    tiny.tiny_smolvlm(place / "model")
    texts = place / "texts" / "deep"
    texts.mkdir(parents=True)
    for index, text in enumerate(tiny.TEXTS):
        (texts.parent / f"{index}.txt").write_text(text, encoding="utf-8")
    (texts / "more.md").write_text("the blue bar is <image> at 40, über alles", encoding="utf-8")
    (texts / "picture.png").write_bytes(b"\x89PNG")
    build(place / "texts", out=place / "store", model=str(place / "model"))
    return place


def test_a_folder_of_texts_becomes_a_drafter(folder: Path) -> None:
    pipe = mmspec.load(folder / "model", drafter=folder / "store")
    drafter: Any = pipe.drafter
    tokenizer = pipe.target.tokenizer
    ends = (drafter.datastore.tokens == SEPARATOR).nonzero()[0].tolist()
    starts = [0, *(end + 1 for end in ends[:-1])]
    texts = [tokenizer.decode(drafter.datastore.tokens[a:b]) for a, b in zip(starts, ends, strict=True)]
    assert texts == [*tiny.TEXTS, "the blue bar is <image> at 40, über alles"]
    assert not set(pipe.target.placeholders) & set(drafter.datastore.tokens.tolist())
    answer = pipe(None, "what is the value?", max_new_tokens=16)
    assert answer.token_ids == pipe.with_drafter("none")(None, "what is the value?", max_new_tokens=16).token_ids
    ending = tokenizer("there are four bars: 12, 4", add_special_tokens=False)["input_ids"]
    _, runs = drafter.datastore.find(ending, 4, 16, 10)
    assert tokenizer.decode(runs[0]).startswith("0, 7")


def test_a_datastore_of_another_tokenizer_or_a_damaged_one_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="mmspec datastore build"):
        mmspec.load(folder / "model", drafter="retrieval")
    description = json.loads((folder / "store" / "drafter.json").read_text(encoding="utf-8"))
    other = copied(folder / "store", tmp_path / "other")
    description["target"]["tokenizer"] = "0" * 64
    (other / "drafter.json").write_text(json.dumps(description), encoding="utf-8")
    with pytest.raises(MismatchError, match="vocabulary"):
        mmspec.load(folder / "model", drafter=other)
    tokens = np.array([1, 2, SEPARATOR], dtype=np.int32)
    for name, parts, error, words in (
        ("lengths", {"tokens": tokens, "order": tokens[:2]}, CheckpointError, "int32 lists of one length"),
        ("kinds", {"tokens": tokens.astype(np.int64), "order": tokens}, CheckpointError, "int32 lists"),
        ("outside", {"tokens": tokens, "order": tokens + 5}, CheckpointError, "points outside"),
        ("none", {"tokens": tokens}, CheckpointError, "int32 lists"),
        ("ids", {"tokens": tokens + 10**6, "order": tokens * 0}, MismatchError, "the target knows ids 0 to"),
    ):
        damaged = copied(folder / "store", tmp_path / name)
        save_file(parts, damaged / "datastore.safetensors")
        with pytest.raises(error, match=words):
            mmspec.load(folder / "model", drafter=damaged)
    cut = copied(folder / "store", tmp_path / "cut")
    (cut / "datastore.safetensors").write_bytes((cut / "datastore.safetensors").read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        mmspec.load(folder / "model", drafter=cut)


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


def test_texts_that_cannot_be_used_are_named_and_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    model = str(folder / "model")
    out = copied(folder / "store", tmp_path / "store")
    kept = (out / "datastore.safetensors").read_bytes()
    empty, latin = tmp_path / "empty", tmp_path / "latin"
    for place in (empty, latin):
        place.mkdir()
    (latin / "a.txt").write_bytes("caf\xe9".encode("latin-1"))
    for source, options, words in (
        (tmp_path / "nowhere", {}, "is not a folder"),
        (empty, {}, "holds no text: .txt or .md"),
        (latin, {}, "a.txt cannot be read as UTF-8"),
        (folder / "texts", {"max_tokens": 20}, "--max-tokens is 20"),
    ):
        with pytest.raises(InputError, match=words):
            build(source, out=out, model=model, **options)
    (empty / "blank.txt").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="not one token"):
        build(empty, out=out, model=model)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        build(folder / "texts", out=latin, model=model)
    assert (out / "datastore.safetensors").read_bytes() == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "latin", "store"]


def test_the_command_line_builds_and_uses_a_datastore(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mmspec", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return (caught.value.code, *capsys.readouterr())

    status, out, err = run("datastore", "build", folder / "texts", "--model", folder / "model", "--out", folder / "two")
    assert (status, out) == (0, "")
    assert "tokens of 4 files" in err
    assert (folder / "two" / "datastore.safetensors").read_bytes() == (
        folder / "store" / "datastore.safetensors"
    ).read_bytes()
    status, out, err = run("datastore", "build", folder / "nowhere", "--out", folder / "three")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "is not a folder" in err


# Found by name ------------------------------------------------------------------------------------------------------


def test_drafters_are_found_by_name(folder: Path) -> None:
    from mmspec.loading import find_drafter

    pipe = mmspec.load(folder / "model", drafter="none")
    want = pipe(None, "what is the value?", max_new_tokens=12).token_ids
    for name in ("suffix", "recycling", "lookahead", "hybrid"):
        assert pipe.with_drafter(name)(None, "what is the value?", max_new_tokens=12).token_ids == want
    with pytest.raises(CheckpointError, match="folder or hub id of a small model"):
        find_drafter("small-vlm", pipe.target, pipe.folder)


def test_a_folder_with_a_vlm_is_a_small_vlm_and_one_with_a_language_model_is_not(folder: Path, tmp_path: Path) -> None:
    from mmspec.vlm.small_vlm import SmallVLM

    pipe = mmspec.load(folder / "model", drafter=folder / "model")
    assert isinstance(pipe.drafter, SmallVLM)
    assert pipe.drafter.shares_vision
    for model in (pipe.target.model, pipe.drafter.decoder.model):  # so that the target never says the image token
        with torch.no_grad():
            model.lm_head.weight[pipe.target.slot] = 0
    image = Image.new("RGB", (40, 30), "red")
    answer = pipe.with_drafter(SmallVLM(pipe.drafter.decoder.model, 3))(image, "what?", max_new_tokens=14)
    assert set(answer.stats.accept_lengths[:-1]) == {3}
    text = mmspec.load(folder / "model", drafter=tiny.tiny_llama(tmp_path / "text")).drafter
    assert type(text) is Independent
    saved = save_drafter(pipe.drafter, tmp_path / "saved", pipe.target)
    assert isinstance(mmspec.load(folder / "model", drafter=saved).drafter, SmallVLM)


def test_a_hybrid_takes_the_trained_drafter_that_lies_beside_the_model(folder: Path, tmp_path: Path) -> None:
    place = copied(folder / "model", tmp_path / "model")
    save_drafter(
        Independent(tiny.llama_model(1), length=2), place / "drafters" / "spd", mmspec.load(place, "none").target
    )
    pipe = mmspec.load(place, drafter="hybrid")
    drafter: Any = pipe.drafter
    assert isinstance(drafter.other, Independent)
    assert isinstance(pipe.with_drafter(Hybrid("recycling")).drafter.other, Recycling)  # type: ignore[attr-defined]
    (place / "drafters" / "spd").rename(place / "drafters" / "mine")  # none of the preferred methods
    drafter = pipe.with_drafter("hybrid").drafter
    assert isinstance(drafter.other, Independent)
