"""Block verification: its law by enumeration and through the loop, and that it accepts no less than ratio.

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
from mmspec.acceptance.block import Block, block_chances
from mmspec.acceptance.ratio import Ratio, residual
from mmspec.contract import Shape
from mmspec.control import Fixed
from mmspec.decode import choose_kind
from mmspec.drafters.eagle import Eagle, Eagle1
from mmspec.drafters.independent import Independent
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.errors import MismatchError
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget
from mmspec.tree import chain

CHAINS = ("none", "chain", "long-chain")


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


def ends(p: Tensor, q: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Chance of every draft [S], chance that it is kept up to each node [S, N], and the weights."""
    depth = tokens.shape[1] - 1
    drawn = q[:, :-1].gather(2, tokens[:, 1:, None])[..., 0].prod(-1)
    weight, chance = block_chances(p, q, tokens, torch.full((len(tokens),), depth))
    longer_fail = torch.cat([(1 - chance[:, 1:]).flip(1).cumprod(1).flip(1), torch.ones_like(chance[:, :1])], 1)
    return drawn, chance * longer_fail, weight


def law_of_block(p: Tensor, q: Tensor, vocab: int, depth: int) -> Tensor:
    """[V ** (depth + 1)] exact law of the next depth + 1 tokens, where the target goes on after the round."""
    drafts = sequences(vocab, depth)
    drawn, ended, weight = ends(p, q, drafts)
    law = torch.zeros([vocab] * (depth + 1), dtype=torch.float64)
    of_prefix = {tuple(draft[1:].tolist()): row for row, draft in enumerate(drafts)}
    for row, draft in enumerate(drafts[:, 1:].tolist()):
        for last in range(depth + 1):
            after = p[row, last]
            if last < depth:
                after = residual(weight[row, last] * after, q[row, last])
            for rest in product(range(vocab), repeat=depth + 1 - last):
                full = (*draft[:last], *rest)
                chance = drawn[row] * ended[row, last] * after[rest[0]]
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
        weight, chance = block_chances(p[7:8], q[7:8], tokens, torch.tensor([length]))
        draft = chain(tokens.repeat(rows, 1), "sampled", q[7:8].repeat(rows, 1, 1))
        draft.valid = (draft.depth <= length).clone()
        accepted = Block()(draft, p[7:8].log().repeat(rows, 1, 1), sampler_for(rows), torch.ones(rows).long())
        expected = chance[0] * torch.cat([(1 - chance[0, 1:]).flip(0).cumprod(0).flip(0), torch.ones(1)])
        seen = torch.bincount(accepted.count - 1, minlength=4) / rows
        assert torch.allclose(seen, expected, atol=0.01)
        assert int(accepted.count.max()) <= length + 1
        for last in range(length + 1):  # the law after the last token of a chain is p, whatever q says there
            law = p[7, last] if last == length else residual(weight[0, last] * p[7, last], q[7, last])
            next_tokens = accepted.next[accepted.count == last + 1]
            if len(next_tokens) > 2000:
                assert torch.allclose(torch.bincount(next_tokens, minlength=3) / len(next_tokens), law, atol=0.05)
                seen_lengths.add((length, last))
    assert {(1, 1), (3, 3)} <= seen_lengths


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("shape", CHAINS)
def test_the_loop_keeps_the_targets_law(shape: str, how: str) -> None:
    assert p_value(draw(TREES[shape], Block(), SAMPLINGS[how]), SAMPLINGS[how]) > FALSE_ALARM


def wrong_chances(p: Tensor, q: Tensor, tokens: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Keeps a prefix whenever its weight says so, as the last token of a chain does."""
    weight, _ = block_chances(p, q, tokens, length)
    return weight, weight


@pytest.mark.parametrize("rule", [Block(), Ratio()], ids=["block", "ratio"])
def test_a_draft_whose_law_is_not_finite_in_places_keeps_the_targets_law(rule: Any) -> None:
    """A drafter that overflows after one of the tokens; 8000 answers."""
    broken = test_law.OTHER.clone()
    broken[:, 2] = torch.nan
    prompts = {"input_ids": test_law.PROMPTS["input_ids"][:8000]}
    drafter, sampling = tables.TableDrafter(broken, (1, 1, 1)), SAMPLINGS["plain"]
    rows = toys.answer(test_law.TARGET, drafter, prompts, test_law.BUDGET, sampling, rule, [tables.END]).rows
    assert p_value(rows, sampling) > FALSE_ALARM


WRONG = {
    "resamples from p": ("residual", lambda p, q: p),
    "forgets the weight in the residual": ("residual", lambda p, q: residual(p / p.sum(-1, keepdim=True), q)),
    "wrong chance of a prefix": ("block_chances", wrong_chances),
}


def law_holds(rule: Any) -> bool:
    """On laws without memory that differ much, chains of two, answers of up to four tokens."""
    shape = (test_law.VOCAB,) * 3
    p, q = (torch.tensor(law).log().expand(shape) for law in ([0.05, 0.35, 0.25, 0.35], [0.1, 0.7, 0.15, 0.05]))
    drafter, sampling, budget = tables.TableDrafter(q, (1, 1)), Sampling(temperature=1.0, seed=3), 4
    rows = toys.answer(tables.TableTarget(p), drafter, test_law.PROMPTS, budget, sampling, rule, [tables.END]).rows
    return tables.p_value(Counter(map(tuple, rows)), tables.outcomes(p, sampling, budget)) > FALSE_ALARM


def test_the_loop_keeps_a_law_that_is_far_from_the_drafters() -> None:
    assert law_holds(Block())


@pytest.mark.parametrize("how", WRONG)
def test_the_check_finds_a_wrong_block_rule(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, *WRONG[how])
    assert not law_holds(Block())


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
    _, chance = block_chances(p, p, sequences(3, 3), torch.full((27,), 3))
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


def test_block_refuses_trees_and_drafts_without_a_law() -> None:
    with pytest.raises(MismatchError, match=r"'block' takes .*sampled.*'prompt-lookup' makes point.*'exact'"):
        choose_kind(Block(), PromptLookup())
    with pytest.raises(MismatchError, match="kind 'point'"):
        Block()(chain(torch.tensor([[1, 2]])), torch.zeros(1, 2, 4), sampler_for(1), torch.ones(1).long())
    with pytest.raises(MismatchError, match=r"needs chains.*shape=Shape\(depth\)"):
        draw(tables.TableDrafter(test_law.OTHER, (2, 1)), Block(), SAMPLINGS["plain"])


@pytest.mark.parametrize("drafter", [Eagle, Eagle1])
def test_a_tree_drafter_makes_chains_for_it(drafter: Any) -> None:
    """As deep as its own trees, or as the wanted shape; greedy requests keep their trees."""
    model = toys.simple_llama(0.3)
    target, head = CausalTarget(model), drafter(toys.copying_head(model, 0.1))

    def answered(shape: Shape | None, temperature: float = 0.7) -> toys.Answer:
        sampling = Sampling(temperature=temperature, seed=2)
        return toys.answer(target, head, toys.prompts(9, 6), 30, sampling, Block(), control=Fixed(shape))

    for shape, depth in ((None, 5), (Shape(3, 2, 6), 3)):
        got, want = answered(shape), answered(Shape(depth))
        assert max(got.accepted) in range(1, depth + 1)
        assert [done.proposed for done in got.rounds[1:4]] == [depth] * 3
        assert got.rows == want.rows
    assert max(done.proposed for done in answered(None, 0.0).rounds) == 15
