"""The law of what is emitted: on table targets whose every outcome can be enumerated.

A statistical check draws 40 000 answers through the whole loop and fails at a chi-square p-value under 1e-6. That it
can fail is checked, too: deliberately wrong rules must.
"""

from collections import Counter
from itertools import permutations
from typing import Any

import pytest
import tables
import torch
import toys
from torch import Tensor

from mmspec import noise
from mmspec.acceptance import ratio
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.match import Match
from mmspec.acceptance.ratio import Ratio, residual, without
from mmspec.contract import Draft
from mmspec.decode import choose_kind
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.errors import MismatchError
from mmspec.sampling import Sampler, Sampling
from mmspec.tree import chain

VOCAB, BUDGET, ROWS = 4, 3, 40_000
FALSE_ALARM = 1e-6
TARGET = tables.TableTarget(tables.random_table(VOCAB, 1))
OTHER = tables.random_table(VOCAB, 2)
PROMPTS = {"input_ids": torch.tensor([[1, 2]]).repeat(ROWS, 1)}
SAMPLINGS = {
    "plain": Sampling(temperature=1.0, seed=100),
    "warped": Sampling(temperature=0.8, top_k=3, min_p=0.05, seed=7),
    "top-p": Sampling(temperature=1.2, top_p=0.8, seed=2**40),
}
TREES = {
    "none": NoDrafter(),
    "chain": tables.TableDrafter(OTHER, (1, 1)),
    "long-chain": tables.TableDrafter(OTHER, (1, 1, 1, 1)),
    "tree": tables.TableDrafter(OTHER, (2, 2)),
    "wide": tables.TableDrafter(OTHER, (4, 1)),  # under top-k 3 the fourth child has no mass
    "good": tables.TableDrafter(TARGET.table, (2, 1)),
}


def draw(drafter: Any, rule: Any, sampling: Sampling, rows: int = ROWS) -> list[list[int]]:
    prompts = {"input_ids": PROMPTS["input_ids"][:rows]}
    return toys.answer(TARGET, drafter, prompts, BUDGET, sampling, rule, eos=[tables.END]).rows


def p_value(rows: list[list[int]], sampling: Sampling) -> float:
    return tables.p_value(Counter(map(tuple, rows)), tables.outcomes(TARGET.table, sampling, BUDGET))


@pytest.mark.parametrize("how", SAMPLINGS)
def test_the_autoregressive_loop_samples_the_targets_law(how: str) -> None:
    assert p_value(draw(NoDrafter(), Exact(), SAMPLINGS[how]), SAMPLINGS[how]) > FALSE_ALARM


@pytest.mark.parametrize("kind", ["point", "sampled", "coupled"])
def test_exact_and_match_emit_what_the_autoregressive_loop_emits(kind: str) -> None:
    sampling = SAMPLINGS["plain"]
    want = draw(NoDrafter(), Exact(), sampling, 4000)
    for rule in (Exact(), Match()):
        if kind in rule.takes:
            rule.takes = (kind,)
            for name in ("long-chain", "tree"):
                assert draw(TREES[name], rule, sampling, 4000) == want


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("shape", TREES)
def test_ratio_keeps_the_targets_law(shape: str, how: str) -> None:
    rows = draw(TREES[shape], Ratio(), SAMPLINGS[how])
    assert p_value(rows, SAMPLINGS[how]) > FALSE_ALARM


WRONG = {
    "resamples from p after a rejection": ("residual", lambda p, q: p),
    "residual of the raw difference": ("residual", lambda p, q: (p - q).abs() / (p - q).abs().sum(-1, keepdim=True)),
    "keeps the tried child in q": ("without", lambda q, token: q),
    "does not normalise q again": ("without", lambda q, token: q.scatter(-1, token[:, None], 0.0)),
}


@pytest.mark.parametrize("how", WRONG)
def test_the_check_finds_a_wrong_ratio_rule(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratio, *WRONG[how])
    rows = draw(TREES["tree"], Ratio(), SAMPLINGS["plain"])
    assert p_value(rows, SAMPLINGS["plain"]) < FALSE_ALARM


def test_the_check_finds_a_bonus_drawn_from_the_unwarped_law() -> None:
    class Unwarped(Ratio):
        def __call__(self, draft: Draft, scores: Tensor, sampler: Sampler, emitted: Tensor) -> Any:
            accepted = super().__call__(draft, scores, sampler, emitted)
            last = accepted.path.gather(1, accepted.count[:, None] - 1)[:, 0]
            free = self.raw[torch.arange(len(last)), last].float()
            token = sampler.draw(free[:, None], (emitted + accepted.count)[:, None])[:, 0]
            full = accepted.count == draft.depth.max() + 1
            accepted.next = torch.where(full, token, accepted.next)
            return accepted

    rule, one_level = Unwarped(), tables.TableDrafter(TARGET.table, (2,))

    class Leaky(tables.TableTarget):
        def verify(self, state: Any, draft: Draft) -> Any:
            verified = super().verify(state, draft)
            rule.raw = verified.logits
            return verified

    rows = toys.answer(Leaky(TARGET.table), one_level, PROMPTS, BUDGET, SAMPLINGS["warped"], rule, eos=[0]).rows
    assert p_value(rows, SAMPLINGS["warped"]) < FALSE_ALARM


def test_the_check_finds_draft_noise_that_is_the_targets_own() -> None:
    """Why a rule that lets drafts decide may not take coupled proposals."""

    class Coupled(tables.TableDrafting):
        def _children(self, scores: Tensor, emitted: Tensor, level: int, width: int) -> tuple[Tensor, Tensor]:
            g = self.sampler.target_noise(emitted[:, None] + level, scores.shape[-1])
            confidence, tokens = (scores + g).log_softmax(-1).topk(width, dim=-1)
            return tokens, confidence

    class Drafter(tables.TableDrafter):
        def begin(self, state: Any, sampler: Sampler, kind: Any) -> Coupled:
            return Coupled(self, sampler, kind)

    p, q = (
        torch.tensor(law).log().expand(VOCAB, VOCAB, VOCAB) for law in ([0.05, 0.15, 0.3, 0.5], [0.6, 0.28, 0.02, 0.1])
    )
    sampling = SAMPLINGS["plain"]
    law = tables.outcomes(p, sampling, BUDGET)
    for drafter, right in ((tables.TableDrafter(q, (1, 1)), True), (Drafter(q, (1, 1)), False)):
        rows = toys.answer(tables.TableTarget(p), drafter, PROMPTS, BUDGET, sampling, Ratio(), eos=[tables.END]).rows
        assert (tables.p_value(Counter(map(tuple, rows)), law) > FALSE_ALARM) == right


UNIFORM = noise.uniform
COINS: dict[str, tuple[list[float], list[float], Any]] = {
    "one for all siblings": (
        [0.05, 0.35, 0.25, 0.35],
        [0.1, 0.7, 0.15, 0.05],
        lambda seeds, positions, width: UNIFORM(seeds, noise.ACCEPT, positions, 1).expand(-1, -1, width),
    ),
    "the noise of the target's tokens": (
        [0.3, 0.4, 0.2, 0.1],
        [0.1, 0.1, 0.3, 0.5],
        lambda seeds, positions, width: UNIFORM(seeds, noise.TARGET, positions, width),
    ),
}


@pytest.mark.parametrize("branching", [(1, 1), (2, 2)])
@pytest.mark.parametrize("how", COINS)
def test_the_check_finds_coins_that_are_not_independent(
    how: str, branching: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under laws at which the right rule passes; most laws show neither."""
    *laws, coins = COINS[how]
    p, q = (torch.tensor(law).log().expand(VOCAB, VOCAB, VOCAB) for law in laws)
    sampling, prompts = Sampling(temperature=1.0, seed=3), {"input_ids": PROMPTS["input_ids"][:20_000]}
    law = tables.outcomes(p, sampling, BUDGET)

    def passes() -> bool:
        rows = toys.answer(
            tables.TableTarget(p), tables.TableDrafter(q, branching), prompts, BUDGET, sampling, Ratio(), [tables.END]
        ).rows
        return tables.p_value(Counter(map(tuple, rows)), law) > FALSE_ALARM

    def wrong(seeds: Tensor, stream: int, positions: Tensor, width: int) -> Tensor:
        if stream == noise.ACCEPT:
            return coins(seeds, positions, width)
        return UNIFORM(seeds, stream, positions, width)

    assert passes()
    monkeypatch.setattr(noise, "uniform", wrong)
    assert passes() == (how == "one for all siblings" and branching == (1, 1))  # an only child has one coin


def law_of_one_step(p: Tensor, q: Tensor, count: int) -> Tensor:
    """The exact law of the token after one node with `count` children drawn from q without replacement."""
    law = torch.zeros_like(p)
    for order in permutations(range(len(p)), count):
        weight, left, rest = 1.0, q, p
        reach = 1.0
        for token in order:
            weight *= float(q[token]) / max(1e-300, 1 - float(sum(q[t] for t in order[: order.index(token)])))
        if weight == 0:
            continue
        for token in order:
            if left[token] == 0:
                break
            accept = min(1.0, float(rest[token] / left[token]))
            law[token] += weight * reach * accept
            reach *= 1 - accept
            if reach <= 0:
                break
            rest = residual(rest[None], left[None])[0]
            left = without(left[None], torch.tensor([token]))[0]
        law += weight * max(reach, 0.0) * rest
    return law


def laws() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    smooth = [torch.rand(4, generator=generator, dtype=torch.float64) + 0.01 for _ in range(6)]
    sharp = [
        torch.tensor(x, dtype=torch.float64)
        for x in ([1, 0, 0, 0], [0, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1])
    ]
    return [law / law.sum() for law in smooth + sharp]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_residuals_give_the_targets_law_exactly(count: int) -> None:
    """By enumeration of all children and decisions: zeros, p = q, disjoint supports, point masses."""
    for p in laws():
        for q in laws():
            if int((q > 0).sum()) >= count:
                assert torch.allclose(law_of_one_step(p, q, count), p, atol=1e-12), (p, q)


def test_enumeration_finds_a_wrong_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = laws()[:2]
    monkeypatch.setitem(globals(), "residual", lambda p, q: p)
    assert not torch.allclose(law_of_one_step(p, q, 2), p, atol=1e-3)


def sampler_for(rows: int, seed: int = 0) -> Sampler:
    return Sampler(Sampling(temperature=1.0, seed=seed), rows, torch.device("cpu"))


def one_step(p: Tensor, q: Tensor, token: int, rows: int = 50_000) -> tuple[Counter[tuple[int, ...]], float]:
    """The first token that ratio emits when `token` is drafted from q, and how often it was the draft's."""
    draft = chain(torch.tensor([[0, token]]).repeat(rows, 1), "sampled", q.float().repeat(rows, 2, 1))
    scores = p.float().log().repeat(rows, 2, 1)
    accepted = Ratio()(draft, scores, sampler_for(rows), torch.ones(rows, dtype=torch.long))
    first = torch.where(accepted.count > 1, token, accepted.next)
    return Counter((t,) for t in first.tolist()), float((accepted.count > 1).float().mean())


def test_a_point_mass_is_accepted_with_its_probability() -> None:
    p, q = laws()[0], laws()[6]
    counts, rate = one_step(p, q, 0)
    assert tables.p_value(counts, {(t,): float(x) for t, x in enumerate(p)}) > FALSE_ALARM
    assert abs(rate - float(p[0])) < 0.02


def test_equal_laws_never_reject() -> None:
    p = laws()[2]
    assert one_step(p, p, 1)[1] == 1.0
    assert torch.equal(residual(p, p), p)


def test_a_child_without_mass_is_never_accepted() -> None:
    p, q = laws()[0], laws()[7]
    counts, rate = one_step(p, q, 0)
    assert rate == 0.0
    assert tables.p_value(counts, {(t,): float(x) for t, x in enumerate(p)}) > FALSE_ALARM


def test_disjoint_laws_always_reject_and_never_emit_the_draft() -> None:
    p, q = laws()[8], laws()[9]
    counts, rate = one_step(p, q, 2)
    assert rate == 0.0
    assert set(counts) == {(0,), (1,)}


def test_ties_go_to_the_lowest_id() -> None:
    scores = torch.tensor([[[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]]])
    greedy = Sampler(Sampling(), 1, torch.device("cpu"))
    draft = chain(torch.tensor([[3, 1]]))
    for rule in (Exact(), Match(), Ratio()):
        accepted = rule(draft, scores, greedy, torch.ones(1, dtype=torch.long))
        assert accepted.count.tolist() == [2]
        assert accepted.next.tolist() == [0]


def test_ratio_refuses_drafts_without_a_law() -> None:
    with pytest.raises(MismatchError, match=r"'ratio' takes .*sampled.*'prompt-lookup' makes point.*'exact'"):
        choose_kind(Ratio(), PromptLookup())
    draft = chain(torch.tensor([[1, 2]]))
    with pytest.raises(MismatchError, match="kind 'point'"):
        Ratio()(draft, torch.zeros(1, 2, 4), sampler_for(1), torch.ones(1, dtype=torch.long))


def test_match_refuses_coupled_drafts() -> None:
    class Coupled(NoDrafter):
        kinds = frozenset({"coupled"})

    assert choose_kind(Exact(), Coupled()) == "coupled"
    with pytest.raises(MismatchError):
        choose_kind(Match(), Coupled())
