"""Drafters: what they propose with their caches is what they would propose without, and q is the law they draw from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import test_equality
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mmspec.acceptance.exact import Exact, choices
from mmspec.acceptance.match import Match
from mmspec.acceptance.ratio import Ratio, without
from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, State, Verified
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.hybrid import Hybrid
from mmspec.drafters.independent import Independent, Writing
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.drafters.recycling import Recycling
from mmspec.drafters.suffix import Suffix
from mmspec.errors import InputError, MismatchError
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget

SAMPLING = Sampling(temperature=0.9, top_k=40, seed=3)


class Watched(Drafter):
    """A drafter whose every draft is looked at before it is verified."""

    def __init__(self, inner: Drafter, look: Callable[[State, Draft], None]) -> None:
        self.inner, self.look, self.kinds = inner, look, inner.kinds

    def bind(self, target: Any) -> None:
        self.inner.bind(target)
        self.needs = self.inner.needs

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> "Watching":
        return Watching(self, self.inner.begin(state, sampler, kind))


@dataclass
class Watching(Drafting):
    drafter: Watched
    inner: Drafting

    def propose(self, state: State) -> Draft:
        draft = self.inner.propose(state)
        self.drafter.look(state, draft)
        return draft

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        self.inner.observe(state, draft, verified, accepted)


def parents_in(draft: Draft) -> list[int]:
    """Nodes that have children in every row's tree (the shape of a sampled tree is the same for all rows)."""
    assert bool((draft.parents == draft.parents[:1]).all())
    return sorted(set(draft.parents[0, 1:].tolist()))


def paths_of(draft: Draft) -> list[list[tuple[int, ...]]]:
    """The trees, whatever the order of their nodes: of each row, the tokens on the path to every node, sorted."""
    found = []
    for row, tokens in enumerate(draft.tokens.tolist()):
        real = range(draft.size) if draft.valid is None else draft.valid[row].nonzero()[:, 0].tolist()
        above = [draft.ancestors[row, node].nonzero()[:, 0].tolist() for node in real]
        found.append(sorted(tuple(tokens[node] for node in path) for path in above))
    return found


def law_of(sampler: Sampler, target: CausalTarget, logits: Tensor) -> Tensor:
    """The warped law over everything but placeholders."""
    logits = logits.clone()
    logits[..., list(target.placeholders)] = -torch.inf
    return sampler.shape(logits).softmax(-1)


@pytest.mark.parametrize("name", ["llama", "qwen2", "smolvlm"])
def test_independent_drafting_with_a_cache_equals_a_full_forward(name: str) -> None:
    """The laws that the drafter declares, in a batch whose rows accept different lengths, against a plain forward."""
    model, target = test_equality.make(name)
    net = toys.perturbed(toys.language_part(model), 0.05)
    sampler = Sampler(SAMPLING, 3, torch.device("cpu"))
    looked, lengths = 0, (17, 9, 14)

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        for row in range(3):
            if state.done[row] or draft.q is None:
                continue
            prompt, answer = state.ids[row][: lengths[row]], state.ids[row][lengths[row] :]
            text = [token for token in prompt if token not in target.placeholders]  # emitted ones are ordinary tokens
            text += answer + draft.tokens[row, 1:-1].tolist()
            logits = net(torch.tensor([text])).logits[0, 1 - draft.size :]
            assert (draft.q[row, :-1] - law_of(sampler, target, logits)).abs().max() < 1e-5
            looked += 1

    inputs = test_equality.inputs_for(target, *lengths)
    result = toys.answer(target, Watched(Independent(net, 4), look), inputs, 30, SAMPLING, Ratio())
    assert looked > 20
    assert any(len(set(r.drafted)) > 1 for r in result.rounds)


@pytest.mark.parametrize("keeps", [True, False])
def test_rows_that_catch_up_get_logits_behind_their_last_tokens_alone(keeps: bool) -> None:
    """After rounds that others drafted: of all that waits, V numbers per token would be hundreds of megabytes."""
    model, target = test_equality.make("llama")
    drafter = Independent(toys.perturbed(model, 0.05))
    drafter.bind(target)
    drafter.decoder.keeps_logits = keeps  # some models cannot leave logits out
    texts = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
    unread = [list(range(20, 43)), [50, 51], []]
    ids = torch.tensor([text + [0] * (4 - len(text)) for text in texts])
    cache, _ = drafter.decoder.read([{"input_ids": ids}], [len(text) for text in texts])
    waits = Writing(drafter, Sampler(Sampling(), 3, torch.device("cpu")), "point", cache, [*unread])
    judged: list[int] = []
    head: Any = drafter.decoder.model.get_output_embeddings()
    hook = head.register_forward_hook(lambda module, given, out: judged.append(out.shape[1]))
    logits = waits._catch_up()
    hook.remove()
    for row in (0, 1):
        full = drafter.decoder.model(torch.tensor([texts[row] + unread[row]])).logits[0, -1]
        assert torch.allclose(logits[row], full, atol=1e-6)
    assert waits.cache.lengths == [27, 4, 3]
    assert judged == ([3] if keeps else [23])


@dataclass
class Words:
    """A tokenizer, as far as drafters look at one."""

    size: int
    word: str = "w"
    controls: tuple[int, ...] = ()

    def get_vocab(self) -> dict[str, int]:
        return {f"{self.word}{index}": index for index in range(self.size)}

    @property
    def added_tokens_decoder(self) -> dict[int, str]:
        return dict.fromkeys(self.controls, "")


def with_words(model: Any, size: int, length: int = 3) -> Independent:
    """A drafter like `model`, of another vocabulary: without its last words, or with more of them."""
    net = toys.perturbed(model, 0.05)
    net.resize_token_embeddings(size, mean_resizing=False)
    return Independent(net.double(), length, Words(size))


@pytest.mark.parametrize("size", [70, 120])
def test_a_vocabulary_may_differ_at_its_end(size: int) -> None:
    """The target knows 97 ids: outputs stay the same, and q is the drafter's law over what both know."""
    model, target = test_equality.make("llama")
    target.tokenizer = Words(toys.VOCAB)
    drafter, inputs = with_words(model, size), test_equality.inputs_for(target, 17, 9)
    for sampling in (Sampling(), SAMPLING):
        want = toys.answer(target, NoDrafter(), inputs, 30, sampling).rows
        got = toys.answer(target, drafter, inputs, 30, sampling, Exact())
        assert got.rows == want
        assert {0, 3} <= set(got.accepted)
        assert max(max(row) for row in want) >= 70
    sampler = Sampler(SAMPLING, 2, torch.device("cpu"))
    looked = 0

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        for row in range(2):
            if state.done[row] or draft.q is None:
                continue
            length = int(state.prompt_length[row])
            prompt = [token for token in state.ids[row][:length] if token < size]
            answer = [token if token < size else 0 for token in state.ids[row][length:]]
            text = prompt + answer + draft.tokens[row, 1:-1].tolist()
            own = drafter.net(torch.tensor([text])).logits[0, 1 - draft.size :, : toys.VOCAB]
            logits = own.new_full((len(own), toys.VOCAB), -torch.inf)
            logits[:, : own.shape[-1]] = own
            assert (draft.q[row, :-1] - law_of(sampler, target, logits)).abs().max() < 1e-5
            looked += 1

    toys.answer(target, Watched(drafter, look), inputs, 30, SAMPLING, Ratio())
    assert looked > 10


@pytest.mark.parametrize("rule", [Exact(), Match()], ids=["exact", "match"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_head_that_is_not_finite_in_places_changes_no_output(temperature: float, rule: Any) -> None:
    """Levels in which some nodes have no law: their children must not be kept in the place of their parents."""
    mixed = 0

    class Breaking(Eagle):
        def bind(self, target: Any) -> None:
            super().bind(target)
            head = self.head

            def broken(features: Tensor) -> Tensor:
                nonlocal mixed
                whole = features.sum(-1, keepdim=True) > 0
                mixed += int(whole.any(1).sum() > whole.all(1).sum())
                return torch.where(whole, head(features), torch.nan)

            self.head = broken

    def look(state: State, draft: Draft) -> None:
        assert torch.equal(draft.depth[:, 1:], draft.depth.gather(1, draft.parents[:, 1:]) + 1)

    model, target = test_equality.make("simple")
    sampling, inputs = Sampling(temperature=temperature, seed=2), toys.prompts(17, 9)
    drafter = Breaking(toys.copying_head(model, 0.2), depth=4, width=3, top_k=3, total=6)
    got = toys.answer(target, Watched(drafter, look), inputs, 30, sampling, rule)
    assert got.rows == toys.answer(target, NoDrafter(), inputs, 30, sampling).rows
    assert mixed > 5


@pytest.mark.parametrize("name", ["simple", "qwen2", "smolvlm"])
def test_eagle_drafting_with_a_cache_equals_a_full_forward(name: str) -> None:
    """Against the layer without a cache over the whole text: true features up to the pending token, then estimates."""
    model, target = test_equality.make(name)
    net = toys.copying_head(model, 0.2)
    sampler = Sampler(SAMPLING, 3, torch.device("cpu"))
    looked = 0
    inputs = test_equality.inputs_for(target, 17, 9, 14)

    def estimates(row: int, ids: list[int], below: list[int]) -> Tensor:
        """[H] the estimate at the last of the drafted tokens `below` (or at the pending token)."""
        single = toys.row_of(inputs, row)
        hidden = model(**{**single, "input_ids": torch.tensor([ids[:-1]])}, output_hidden_states=True).hidden_states
        tokens, features = torch.tensor([ids[1:] + below]), hidden[target.num_layers]
        for length in range(len(ids) - 1, tokens.shape[1] + 1):
            positions = torch.arange(length)[None]
            out = net(target.embed(tokens[:, :length]), features, positions, None)
            features = torch.cat([features, out[:, -1:]], 1)
        return out[0, -1]

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        for row in range(3):
            if state.done[row] or draft.q is None or looked > 90:
                continue
            for node in parents_in(draft):
                above = draft.ancestors[row, node].nonzero()[1:, 0]
                feature = estimates(row, state.ids[row], draft.tokens[row, above].tolist())
                q = law_of(sampler, target, target.head(feature))
                assert (draft.q[row, node] - q).abs().max() < 1e-5
                looked += 1

    drafter = Watched(Eagle(net, depth=3, width=4, top_k=3, total=10), look)
    result = toys.answer(target, drafter, inputs, 24, SAMPLING, Ratio())
    assert looked > 90
    assert any(len(set(r.drafted)) > 1 for r in result.rounds)


SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "spd": lambda model: Independent(toys.perturbed(model, 0.05), length=3),
    "spd-fewer-words": lambda model: with_words(model, 70),
    "spd-more-words": lambda model: with_words(model, 120),
    "eagle2": lambda model: Eagle(toys.eagle_head(model), depth=3, width=2, top_k=3, total=9),
}


def first_draft(drafter: Any, target: CausalTarget, rows: int, kind: Kind) -> tuple[Draft, State, Sampler]:
    """The first draft of many rows with the same prompt and different seeds."""
    drafter.bind(target)
    sampler = Sampler(Sampling(temperature=1.0, top_k=12, seed=1), rows, torch.device("cpu"))
    inputs = {"input_ids": toys.prompts(6)["input_ids"].repeat(rows, 1), "max_new_tokens": 50}
    with torch.inference_mode():
        state = target.prefill(inputs, drafter.needs, sampler)
        for ids, token in zip(state.ids, state.pending.tolist(), strict=True):
            ids.append(token)
        state.emitted = torch.ones_like(state.pending)
        return drafter.begin(state, sampler, kind).propose(state), state, sampler


def surprise(tokens: Tensor, q: Tensor) -> float:
    """The largest deviation, in standard errors, of a token's frequency from what laws q [B, V] of rows expect."""
    seen = torch.nn.functional.one_hot(tokens, q.shape[-1]).sum(0)
    expected, variance = q.double().sum(0), (q.double() * (1 - q.double())).sum(0)
    return float(((seen - expected) / variance.sqrt())[expected > 20].abs().max())


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_declared_q_is_the_law_that_children_are_drawn_from(name: str) -> None:
    """12 000 rows; every child of every node, given those before it; six standard errors, also where the target's own
    choice is known (the draft's noise must not be the target's)."""
    model = toys.llama()
    target: Any = CausalTarget(model)
    target.tokenizer = Words(toys.VOCAB)
    draft, state, sampler = first_draft(SAMPLERS[name](model), target, 12_000, "sampled")
    assert draft.q is not None
    checked = 0
    for node in parents_in(draft):
        left = draft.q[:, node]
        assert torch.allclose(left.sum(-1), torch.ones(12_000), atol=1e-5)
        for child in (draft.parents[0] == node).nonzero()[:, 0]:
            tokens = draft.tokens[:, child]
            assert surprise(tokens, left) < 6
            left = without(left, tokens)
            checked += 1
    assert checked == draft.size - 1
    wrong = draft.q[:, 0].square() / draft.q[:, 0].square().sum(-1, keepdim=True)
    assert surprise(draft.tokens[:, 1], wrong) > 6

    with torch.inference_mode():
        verified = target.verify(state, draft)
        chosen = choices(draft, sampler.warp(draft, verified.logits), sampler, state.emitted)[:, 0]
    drawn = draft.q[:, 0].gather(1, chosen[:, None])[:, 0] > 0  # what the drafter has no words for tells it nothing
    known = chosen == chosen[drawn].mode().values
    assert surprise(draft.tokens[known, 1], draft.q[known, 0]) < 6
    coupled = first_draft(SAMPLERS[name](model), target, 12_000, "coupled")[0]
    assert surprise(coupled.tokens[known, 1], draft.q[known, 0]) > 6


PAIRS = [(name, Exact()) for name in ("prompt-lookup", "spd-copy", "spd-random", "eagle-copying")]
PAIRS += [(name, Ratio()) for name in ("spd-copy", "spd-random", "eagle-copying")]


@pytest.mark.parametrize(
    ("name", "rule"), PAIRS, ids=lambda value: value if isinstance(value, str) else type(value).__name__
)
def test_no_drafter_proposes_a_placeholder(name: str, rule: Any) -> None:
    """Even if it is the most likely token, to the drafter and to the target, which may emit it like any other."""
    model, target = test_equality.make("smolvlm")
    inputs = test_equality.inputs_for(target, 14)
    image = target.placeholders[0]
    with torch.no_grad():
        model.lm_head.weight[image] = 4 * model.lm_head.weight[60]
    drafts = []
    drafter = Watched(toys.DRAFTERS[name](model), lambda state, draft: drafts.append(draft))
    sampling = Sampling(temperature=1.0, seed=4)
    got = toys.answer(target, drafter, inputs, 24, sampling, rule)
    assert image in got.rows[0]
    assert not any(bool((draft.tokens[:, 1:] == image).any()) for draft in drafts)


@pytest.mark.parametrize("name", [name for name in toys.DRAFTERS if name != "none"])
def test_drafts_are_no_deeper_than_may_be_useful(name: str) -> None:
    model, target = test_equality.make("simple")
    seen = []
    drafter = Watched(
        toys.DRAFTERS[name](model), lambda state, draft: seen.append((int(draft.depth.max()), state.room))
    )
    toys.answer(target, drafter, toys.prompts(12, 9), budget=9)
    assert all(depth <= max(room, 0) for depth, room in seen)
    assert any(depth > 0 for depth, _ in seen)


def full_of_words(*lengths: int) -> dict[str, Tensor]:
    """Left-padded prompts in which every word occurs, so that whatever is said can be copied."""
    ids, mask = torch.zeros(2, len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, -length:] = (torch.arange(length) + 7 * row) % toys.VOCAB
        mask[row, -length:] = 1
    return {"input_ids": ids, "attention_mask": mask}


COPIERS: dict[str, Callable[[], Drafter]] = {
    "prompt-lookup": lambda: PromptLookup(length=20),
    "suffix": lambda: Suffix(length=20, total=21, factor=20),
    "hybrid": lambda: Hybrid(Recycling(), least=1, copier=Suffix(length=20, total=21, factor=20)),
}


@pytest.mark.parametrize("budget", [7, 9, 50])
@pytest.mark.parametrize("name", COPIERS)
def test_a_draft_reaches_as_far_as_the_row_with_the_most_left(name: str, budget: int) -> None:
    """Rows with unequal rests of the context."""
    lengths, seen = (117, 120), []

    def look(state: State, draft: Draft) -> None:
        left = [
            min(budget, 128 - length) - (len(ids) - length)
            for ids, length, done in zip(state.ids, lengths, state.done, strict=True)
            if not done
        ]
        assert state.room == max(left) - 1
        seen.append((int(draft.depth.max()), state.room))

    toys.answer(CausalTarget(toys.llama()), Watched(COPIERS[name](), look), full_of_words(*lengths), budget)
    assert all(depth <= room for depth, room in seen)
    assert seen[0] == (min(budget, 11) - 2,) * 2


@pytest.mark.parametrize("kind", ["point", "coupled", "sampled"])
def test_an_eagle_tree_has_its_size_and_no_twins(kind: Kind) -> None:
    model, target = test_equality.make("llama")
    drafter = Eagle(toys.eagle_head(model), depth=4, width=3, top_k=4, total=14)
    draft, _, _ = first_draft(drafter, target, 5, kind)
    assert draft.tokens.shape == (5, 14)
    for row in range(5):
        pairs = list(zip(draft.parents[row].tolist(), draft.tokens[row].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        assert all(above < node for node, (above, _) in enumerate(pairs))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=14), st.integers(1, 4), st.integers(1, 4), st.integers(1, 13))
def test_prompt_lookup_copies_what_followed_the_longest_latest_match(
    ids: list[int], length: int, ngram: int, cut: int
) -> None:
    """Against a search through the whole text. 0 is a placeholder."""

    def search() -> list[int]:
        for n in range(min(ngram, len(ids)), 0, -1):
            for end in range(len(ids) - 1, n - 1, -1):
                if ids[end - n : end] == ids[-n:]:
                    copy = ids[end : end + length]
                    return copy[: copy.index(0)] if 0 in copy else copy
        return []

    drafter = PromptLookup(length, ngram)
    drafter.placeholders = frozenset({0})
    known = ids[: min(cut, len(ids))]  # the text grows between two calls
    state = State([known], [False], torch.ones(1), torch.ones(1), [99], torch.tensor([known[-1]]), room=99)
    copying = drafter.begin(state, Sampler(Sampling(), 1, torch.device("cpu")), "point")
    copying.propose(state)
    state.ids, state.pending = [ids], torch.tensor([ids[-1]])
    draft = copying.propose(state)
    assert draft.tokens[0].tolist() == [ids[-1], *search()]


def test_rows_with_shorter_copies_are_padded_with_invalid_nodes() -> None:
    drafter = PromptLookup(3, 2)
    ids = [[5, 6, 7, 8, 5], [1, 2, 3, 4, 9], [1, 1]]
    state = State(ids, [False] * 3, torch.ones(3), torch.ones(3), [99] * 3, torch.tensor([5, 9, 1]), room=9)
    draft = drafter.begin(state, Sampler(Sampling(), 3, torch.device("cpu")), "point").propose(state)
    assert draft.tokens[0].tolist() == [5, 6, 7, 8]
    assert draft.valid is not None
    assert draft.valid.tolist() == [[True] * 4, [True, False, False, False], [True, True, False, False]]


def test_a_drafter_for_another_target_is_refused() -> None:
    target: Any = CausalTarget(toys.llama())
    with pytest.raises(MismatchError, match="vocabulary of 50 ids, the target one of 97"):
        Independent(toys.llama(vocab_size=50)).bind(target)
    target.tokenizer = Words(97)
    with pytest.raises(MismatchError, match="vocabulary of 50 ids, .* one of 97, and without both tokenizers"):
        Independent(toys.llama(vocab_size=50)).bind(target)
    with pytest.raises(MismatchError, match="vocabulary of 50 ids, .* and the id 0 is one word to the drafter's"):
        Independent(toys.llama(vocab_size=50), tokenizer=Words(50, "v")).bind(target)
    wide = toys.llama(hidden_size=64)
    with pytest.raises(MismatchError, match="features of size 64, the target has 32"):
        Eagle(toys.eagle_head(wide)).bind(target)


def test_vocabularies_of_one_size_must_hold_the_same_words() -> None:
    """Not seen by their sizes: drafts in another language would be verified in vain for ever."""
    target: Any = CausalTarget(toys.llama())
    target.tokenizer = Words(toys.VOCAB)
    Independent(toys.llama(), tokenizer=Words(toys.VOCAB)).bind(target)
    Independent(toys.llama()).bind(target)  # nobody says what its ids mean
    with pytest.raises(MismatchError, match="97 ids, the target one of 97, and the id 0 is one word to the drafter's"):
        Independent(toys.llama(), tokenizer=Words(toys.VOCAB, "v")).bind(target)
    target.tokenizer = Words(toys.VOCAB, controls=tuple(range(9)))
    with pytest.raises(MismatchError, match="the id 9 is one word"):
        Independent(toys.llama(), tokenizer=Words(toys.VOCAB, "v", controls=tuple(range(5)))).bind(target)
    Independent(toys.llama(), tokenizer=Words(toys.VOCAB, "v", controls=tuple(range(5, toys.VOCAB)))).bind(target)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: Independent(model, length=0),
        lambda model: PromptLookup(length=0),
        lambda model: PromptLookup(ngram=0),
        lambda model: Eagle(toys.eagle_head(model), depth=0),
        lambda model: Eagle(toys.eagle_head(model), total=1),
    ],
)
def test_options_without_a_draft_are_refused(make: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match=">= 1"):
        make(toys.llama())


def test_a_prompt_beyond_the_drafters_context_is_refused() -> None:
    drafter = Independent(toys.llama(max_position_embeddings=8))
    with pytest.raises(InputError, match=r"12 text tokens, the drafter's context is 8"):
        toys.answer(CausalTarget(toys.llama()), drafter, toys.prompts(12))
