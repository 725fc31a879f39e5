"""Block verification: its law by enumeration and through the loop, and that it accepts no less of a chain than ratio.

The statistical checks draw 40 000 answers and fail at a chi-square p-value under 1e-6; wrong rules must fail them.
"""

from collections import Counter
from itertools import product
from typing import Any

import pytest
import tables
import test_law
import torch
import toys
from test_law import FALSE_ALARM, SAMPLINGS, TREES, draw, p_value, sampler_for
from torch import Tensor

from mmspec import noise
from mmspec.acceptance import block
from mmspec.acceptance.block import Block, chances, children_first, refused
from mmspec.acceptance.ratio import Ratio
from mmspec.contract import Draft, Shape
from mmspec.control import Fixed
from mmspec.decode import choose_kind
from mmspec.drafters.eagle import Eagle, Eagle1
from mmspec.drafters.independent import Independent
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.errors import MismatchError
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget
from mmspec.tree import chain

FORKS = {
    "two children": (-1, 0, 0),
    "all children": (-1, 0, 0, 0),
    "a chain beside a leaf": (-1, 0, 0, 1, 3),
    "forks below a first child": (-1, 0, 0, 1, 1, 3),
    "forks below both": (-1, 0, 0, 1, 1, 2, 2),
    "forks below the second": (-1, 0, 0, 2, 2),
}
"""Parents of the nodes of small trees."""


def random_laws(seed: int, vocab: int, depth: int, spread: float) -> Tensor:
    """[V ** depth, depth + 1, V] float64: a law after every prefix of every sequence, in the order of `product`."""
    generator = torch.Generator().manual_seed(seed)
    laws = torch.empty(vocab**depth, depth + 1, vocab, dtype=torch.float64)
    for length in range(depth + 1):
        after = (spread * torch.randn(vocab**length, vocab, generator=generator, dtype=torch.float64)).softmax(-1)
        laws[:, length] = after.repeat_interleave(vocab ** (depth - length), 0)
    return laws


def zeroed(laws: Tensor, token: int) -> Tensor:
    """The laws with one token ruled out."""
    laws = laws.clone()
    laws[..., token] = 0
    return laws / laws.sum(-1, keepdim=True)


def cases(vocab: int, depth: int) -> list[tuple[Tensor, Tensor]]:
    """Pairs (p, q): alike, unlike, equal, with zeros in either, disjoint in places."""
    pairs = [
        (random_laws(seed, vocab, depth, spread), random_laws(seed + 50, vocab, depth, spread))
        for seed, spread in enumerate((0.3, 1.0, 2.0, 4.0))
    ]
    p, q = pairs[2]
    sure = torch.zeros_like(p)
    sure[..., 1] = 1
    return [*pairs, (p, p), (zeroed(p, 0), q), (p, zeroed(q, 1)), (zeroed(p, 2), zeroed(q, 0)), (sure, q), (p, sure)]


def sequences(vocab: int, depth: int) -> Tensor:
    """[V ** depth, depth + 1] all drafts, a pending token first."""
    return torch.tensor([(0, *tokens) for tokens in product(range(vocab), repeat=depth)])


def chains(tokens: Tensor, q: Tensor, length: int) -> Draft:
    """Rows of chains [S, N] that were drawn from q [S, N, V] and end after `length` drafted tokens."""
    draft = chain(tokens, "sampled", q)
    draft.valid = draft.depth <= length
    return draft


def ends(p: Tensor, q: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Chance of every draft [S], chance that it is kept up to each node [S, N], and the laws of what follows then."""
    depth = tokens.shape[1] - 1
    drawn = q[:, :-1].gather(2, tokens[:, 1:, None])[..., 0].prod(-1)
    chance, left = chances(chains(tokens, q, depth), p, q)
    longer_fail = torch.cat([(1 - chance[:, 1:]).flip(1).cumprod(1).flip(1), torch.ones_like(chance[:, :1])], 1)
    return drawn, chance * longer_fail, left


def law_of_block(p: Tensor, q: Tensor, vocab: int, depth: int) -> Tensor:
    """[V ** (depth + 1)] exact law of the next depth + 1 tokens, where the target goes on after the round."""
    drafts = sequences(vocab, depth)
    drawn, ended, left = ends(p, q, drafts)
    law = torch.zeros([vocab] * (depth + 1), dtype=torch.float64)
    of_prefix = {tuple(draft[1:].tolist()): row for row, draft in enumerate(drafts)}
    for row, draft in enumerate(drafts[:, 1:].tolist()):
        for last in range(depth + 1):
            for rest in product(range(vocab), repeat=depth + 1 - last):
                full = (*draft[:last], *rest)
                chance = drawn[row] * ended[row, last] * left[row, last, rest[0]]
                own = of_prefix[full[:depth]]
                for place in range(last + 1, depth + 1):
                    chance = chance * p[own, place, full[place]]
                law[full] += chance
    return law.flatten()


def target_law(p: Tensor, vocab: int, depth: int) -> Tensor:
    """[V ** (depth + 1)] the target's own law of that many tokens."""
    return torch.cat(
        [
            p[row, :depth].gather(1, torch.tensor(draft)[:, None]).prod() * p[row, depth]
            for row, draft in enumerate(product(range(vocab), repeat=depth))
        ]
    )


@pytest.mark.parametrize(("vocab", "depth"), [(3, 1), (3, 2), (2, 3)])
def test_block_keeps_the_targets_law_exactly(vocab: int, depth: int) -> None:
    """By enumeration of all drafts, lengths and residual tokens; zeros, equal and disjoint laws included."""
    for p, q in [(p[..., :vocab], q[..., :vocab]) for p, q in cases(max(vocab, 3), depth) if vocab == 3] or [
        (random_laws(seed, 2, depth, 2.0), random_laws(seed + 9, 2, depth, 2.0)) for seed in range(6)
    ]:
        assert torch.allclose(law_of_block(p, q, vocab, depth), target_law(p, vocab, depth), atol=1e-12)


class Tables:
    """Laws after every path of tokens, made when asked for. after: what follows a path, [V] float64."""

    def __init__(self, seed: int, spread: float, vocab: int = 3) -> None:
        self.generator, self.spread, self.vocab = torch.Generator().manual_seed(seed), spread, vocab
        self.known: dict[tuple[int, ...], Tensor] = {}

    def after(self, path: tuple[int, ...]) -> Tensor:
        if path not in self.known:
            scores = torch.randn(self.vocab, generator=self.generator, dtype=torch.float64)
            self.known[path] = (self.spread * scores).softmax(-1)
        return self.known[path]

    def on(self, path: tuple[int, ...], depth: int, chance: float) -> dict[tuple[int, ...], float]:
        """How likely sequences of `depth` tokens are that begin with a path of that chance."""
        if len(path) == depth:
            return {path: chance}
        found = {}
        for token, p in enumerate(self.after(path).tolist()):
            found |= self.on((*path, token), depth, chance * p)
        return found


def drawn_trees(parents: tuple[int, ...], q: Tables) -> list[tuple[list[tuple[int, ...]], float]]:
    """The paths of all nodes of every tree of that form, children drawn without replacement, and how likely it is."""
    trees: list[tuple[list[tuple[int, ...]], float]] = [([()], 1.0)]
    for parent in parents[1:]:
        grown = []
        for paths, chance in trees:
            law = q.after(paths[parent]).clone()
            for path in paths[1:]:
                if path[:-1] == paths[parent]:
                    law[path[-1]] = 0
            for token, part in enumerate((law / law.sum()).tolist()):
                if part:
                    grown.append(([*paths, (*paths[parent], token)], chance * part))
        trees = grown
    return trees


@pytest.mark.parametrize("form", FORKS)
@pytest.mark.parametrize(("ours", "theirs"), [(0.5, 0.5), (2.0, 1.5), (4.0, 1.0)])
def test_trees_keep_the_targets_law_exactly(form: str, ours: float, theirs: float) -> None:
    """By enumeration of all draws of all nodes, ends and tokens that follow."""
    parents, p, q = FORKS[form], Tables(1, ours), Tables(2, theirs)
    trees = drawn_trees(parents, q)
    deepest = 1 + max(len(path) for path in trees[0][0])
    draft = Draft(
        torch.tensor([[path[-1] if path else 0 for path in paths] for paths, _ in trees]),
        torch.tensor(parents).expand(len(trees), -1),
        torch.tensor([len(path) for path in trees[0][0]]).expand(len(trees), -1),
        "sampled",
    )
    laws = [torch.stack([torch.stack([law.after(path) for path in paths]) for paths, _ in trees]) for law in (p, q)]
    chance, left = chances(draft, *laws)
    law = dict.fromkeys(p.on((), deepest, 1.0), 0.0)
    for row, (paths, remains) in enumerate(trees):
        for node in children_first(draft)[row].argsort().tolist():
            ended = remains * float(chance[row, node])
            remains -= ended
            for token, part in enumerate(left[row, node].tolist()):
                for full, each in p.on((*paths[node], token), deepest, ended * part).items():
                    law[full] += each
        assert remains == pytest.approx(0, abs=1e-15)
    assert law == pytest.approx(p.on((), deepest, 1.0), abs=1e-12)


def test_what_hangs_from_a_node_is_tried_before_it() -> None:
    #         0
    #      1     2
    #    3   4   5
    #    6
    parents = torch.tensor([[-1, 0, 0, 1, 1, 2, 3]])
    draft = Draft(torch.zeros_like(parents), parents, torch.tensor([[0, 1, 1, 2, 2, 2, 3]]))
    assert children_first(draft)[0].argsort().tolist() == [6, 3, 4, 1, 5, 2, 0]


def kept_by_ratio(p: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
    """Expected accepted length of the ratio rule: sum over tokens of the chance that they and all before pass."""
    above, below = (law[:, :-1].gather(2, tokens[:, 1:, None])[..., 0] for law in (p, q))
    passes = torch.where(below > 0, (above / below.clamp(min=1e-300)).clamp(max=1), 0.0).cumprod(1).sum(1)
    return (below.prod(1) * passes).sum()


def test_block_accepts_no_less_than_ratio_and_more_in_most_cases() -> None:
    more = 0
    for vocab, depth in ((3, 1), (3, 2), (3, 4), (4, 3)):
        tokens = sequences(vocab, depth)
        for p, q in cases(vocab, depth):
            drawn, ended, _ = ends(p, q, tokens)
            length = (drawn[:, None] * ended * torch.arange(depth + 1)).sum()
            ratio = kept_by_ratio(p, q, tokens)
            assert length > ratio - 1e-12, (vocab, depth)
            more += bool(length > ratio + 1e-3) and depth > 1
    assert more > 10


def test_rows_keep_what_enumeration_expects() -> None:
    """The rule itself on many rows: how often each length is kept, chains of different lengths in one batch."""
    p, q = (law.float() for law in (random_laws(3, 3, 3, 1.5), random_laws(4, 3, 3, 1.5)))
    rows, tokens, seen_lengths = 60_000, sequences(3, 3)[7:8], set()
    for length in (1, 3):
        chance, left = (each[0] for each in chances(chains(tokens, q[7:8], length), p[7:8], q[7:8]))
        draft = chains(tokens.repeat(rows, 1), q[7:8].repeat(rows, 1, 1), length)
        accepted = Block()(draft, p[7:8].log().repeat(rows, 1, 1), sampler_for(rows), torch.ones(rows).long())
        expected = chance * torch.cat([(1 - chance[1:]).flip(0).cumprod(0).flip(0), torch.ones(1)])
        seen = torch.bincount(accepted.count - 1, minlength=4) / rows
        assert torch.allclose(seen, expected, atol=0.01)
        assert int(accepted.count.max()) <= length + 1
        assert torch.equal(left[length], p[7, length])  # after the last token of a chain, whatever q says there
        for last in range(length + 1):
            next_tokens = accepted.next[accepted.count == last + 1]
            if len(next_tokens) > 2000:
                seen = torch.bincount(next_tokens, minlength=3) / len(next_tokens)
                assert torch.allclose(seen, left[last], atol=0.05)
                seen_lengths.add((length, last))
    assert {(1, 1), (3, 3)} <= seen_lengths


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("shape", TREES)
def test_the_loop_keeps_the_targets_law(shape: str, how: str) -> None:
    assert p_value(draw(TREES[shape], Block(), SAMPLINGS[how]), SAMPLINGS[how]) > FALSE_ALARM


def as_leaves(draft: Draft, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Keeps every node of a chain with the weight that it has before anything below it is tried."""
    _, left = chances(draft, p, q)
    weight = [torch.ones_like(p[:, 0, 0])]
    for node in range(1, draft.size):
        token = draft.tokens[:, node, None]
        gain = p[:, node - 1].gather(1, token) / q[:, node - 1].gather(1, token)
        weight.append((weight[-1] * gain[:, 0]).clamp(max=1))
    return torch.stack(weight, 1), left


@pytest.mark.parametrize("rule", [Block(), Ratio()], ids=["block", "ratio"])
def test_a_draft_whose_law_is_not_finite_in_places_keeps_the_targets_law(rule: Any) -> None:
    """A drafter that overflows after one of the tokens; 8000 answers."""
    broken = test_law.OTHER.clone()
    broken[:, 2] = torch.nan
    prompts = {"input_ids": test_law.PROMPTS["input_ids"][:8000]}
    drafter, sampling = tables.TableDrafter(broken, (1, 1, 1)), SAMPLINGS["plain"]
    rows = toys.answer(test_law.TARGET, drafter, prompts, test_law.BUDGET, sampling, rule, [tables.END]).rows
    assert p_value(rows, sampling) > FALSE_ALARM


WRONG: dict[str, tuple[str, Any]] = {
    "resamples from p": ("refused", lambda weight, p, q: (refused(weight, p, q)[0], p)),
    "forgets the weight in the residual": (
        "refused",
        lambda weight, p, q: (refused(weight, p, q)[0], refused(torch.ones_like(weight), p, q)[1]),
    ),
    "wrong chance of a prefix": ("chances", as_leaves),
}
WRONG_ON_TREES: dict[str, tuple[str, Any]] = {
    "resamples from p": ("refused", lambda weight, p, q: (refused(weight, p, q)[0], p)),
    "keeps its weight": ("refused", lambda weight, p, q: (weight, refused(weight, p, q)[1])),
    "keeps the tried child in q": ("without", lambda q, token: q),
    "does not normalise q again": ("without", lambda q, token: q.scatter(-1, token[:, None], 0.0)),
    "parents before children": ("children_first", lambda draft: draft.depth),
    "last children first": (
        "children_first",
        lambda draft: torch.arange(draft.size).flip(0).expand(len(draft.tokens), -1),
    ),
    "no child is elder": ("elder", lambda draft: torch.zeros_like(draft.ancestors)),
}


def law_holds(rule: Any, branching: tuple[int, ...] = (1, 1)) -> bool:
    """On laws without memory that differ much, trees two deep, answers of up to four tokens."""
    shape = (test_law.VOCAB,) * 3
    p, q = (torch.tensor(law).log().expand(shape) for law in ([0.05, 0.35, 0.25, 0.35], [0.1, 0.7, 0.15, 0.05]))
    drafter, sampling, budget = tables.TableDrafter(q, branching), Sampling(temperature=1.0, seed=3), 4
    rows = toys.answer(tables.TableTarget(p), drafter, test_law.PROMPTS, budget, sampling, rule, [tables.END]).rows
    return tables.p_value(Counter(map(tuple, rows)), tables.outcomes(p, sampling, budget)) > FALSE_ALARM


@pytest.mark.parametrize("branching", [(1, 1), (2, 2)])
def test_the_loop_keeps_a_law_that_is_far_from_the_drafters(branching: tuple[int, ...]) -> None:
    assert law_holds(Block(), branching)


@pytest.mark.parametrize("how", WRONG)
def test_the_check_finds_a_wrong_block_rule(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, *WRONG[how])
    assert not law_holds(Block())


@pytest.mark.parametrize("how", WRONG_ON_TREES)
def test_the_check_finds_a_wrong_rule_for_trees(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, *WRONG_ON_TREES[how])
    assert not law_holds(Block(), (2, 2))


@pytest.mark.parametrize("stale", ["draft", "coins"])
def test_the_check_finds_noise_that_a_later_round_uses_again(stale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why noise belongs to a round and not to a position: what was rejected has been looked at."""

    def draft_noise(self: Sampler, emitted: Tensor, level: int, lanes: int, vocab_size: int) -> Tensor:
        return noise.gumbel(self.seeds, noise.DRAFT, emitted[:, None] + level, vocab_size)

    def uniform(seeds: Tensor, stream: int, positions: Tensor, width: int) -> Tensor:
        if stream != noise.ACCEPT:
            return fresh(seeds, stream, positions, width)
        return fresh(seeds, stream, positions + torch.arange(-1, width - 1), 1).transpose(1, 2)

    fresh = noise.uniform
    if stale == "draft":
        monkeypatch.setattr(Sampler, "draft_noise", draft_noise)
        assert law_holds(Ratio())  # which never looks past what it rejects
    else:
        monkeypatch.setattr(noise, "uniform", uniform)
    assert not law_holds(Block())


def test_equal_laws_keep_the_whole_chain() -> None:
    p = random_laws(5, 3, 3, 1.0)
    chance, _ = chances(chains(sequences(3, 3), p, 3), p, p)
    assert torch.equal(chance, torch.ones_like(chance))


def test_greedy_block_is_the_greedy_comparison_also_on_trees() -> None:
    model = toys.llama()
    target, inputs = CausalTarget(model), toys.prompts(12, 7)
    want = toys.answer(target, toys.DRAFTERS["none"](model), inputs).rows
    for name in ("spd-perturbed", "eagle-copying"):
        assert toys.answer(target, toys.DRAFTERS[name](model), inputs, rule=Block()).rows == want


def test_block_runs_on_models_in_batches_and_accepts_at_every_length() -> None:
    model = toys.llama()
    drafter = Independent(toys.perturbed(model, 0.06), length=3)
    sampling = Sampling(temperature=1.0, seed=4)
    got = toys.answer(CausalTarget(model), drafter, toys.prompts(12, 7, 9), 40, sampling, Block())
    assert {0, 1, 2, 3} <= set(got.accepted)
    assert [len(row) for row in got.rows] == [40, 40, 40]


def test_block_refuses_drafts_without_a_law() -> None:
    with pytest.raises(MismatchError, match=r"'block' takes .*sampled.*'prompt-lookup' makes point.*'exact'"):
        choose_kind(Block(), PromptLookup())
    with pytest.raises(MismatchError, match="kind 'point'"):
        Block()(chain(torch.tensor([[1, 2]])), torch.zeros(1, 2, 4), sampler_for(1), torch.ones(1).long())


class OfChains(Block):
    """One that takes chains alone."""

    chains = True


@pytest.mark.parametrize("drafter", [Eagle, Eagle1])
def test_a_tree_drafter_makes_chains_for_rules_that_take_no_trees(drafter: Any) -> None:
    """As deep as its own trees, or as the wanted shape; greedy requests keep their trees."""
    model = toys.simple_llama(0.3)
    target, head = CausalTarget(model), drafter(toys.copying_head(model, 0.1))

    def answered(shape: Shape | None, temperature: float = 0.7) -> toys.Answer:
        sampling = Sampling(temperature=temperature, seed=2)
        return toys.answer(target, head, toys.prompts(9, 6), 30, sampling, OfChains(), control=Fixed(shape))

    for shape, depth in ((None, 5), (Shape(3, 2, 6), 3)):
        got, want = answered(shape), answered(Shape(depth))
        assert max(got.accepted) in range(1, depth + 1)
        assert [done.proposed for done in got.rounds[1:4]] == [depth] * 3
        assert got.rows == want.rows
    assert max(done.proposed for done in answered(None, 0.0).rounds) == 15


@pytest.mark.parametrize("drafter", [Eagle, Eagle1])
def test_block_keeps_more_of_drawn_trees_than_ratio(drafter: Any) -> None:
    model = toys.simple_llama(0.3)
    target, head = CausalTarget(model), drafter(toys.copying_head(model, 0.1))
    kept: dict[str, float] = {}
    for name, rule in (("block", Block()), ("ratio", Ratio())):
        sampling = Sampling(temperature=1.0, seed=2)
        got = toys.answer(target, head, toys.prompts(*[9] * 24), 60, sampling, rule)
        assert max(done.proposed for done in got.rounds) == 15
        kept[name] = sum(got.accepted) / len(got.accepted)
    assert min(kept.values()) > 0.3
    assert kept["block"] > kept["ratio"]
