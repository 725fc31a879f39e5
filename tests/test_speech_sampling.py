"""Repetition-aware sampling and the repetition penalty: one law per step, the same for every node of a draft.

The references here are slow and literal: they draw, look, and draw again, by enumeration instead of by chance.
"""

from collections import Counter
from typing import Any

import pytest
import tables
import torch
import toys
from torch import Tensor

from mmspec import sampling as module
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.match import Match
from mmspec.acceptance.ratio import Ratio
from mmspec.contract import Accepted, Draft, Needs, State
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.independent import Independent
from mmspec.drafters.none import NoDrafter
from mmspec.errors import InputError
from mmspec.sampling import Sampler, Sampling, repetition_aware, warp
from mmspec.targets import CausalTarget
from mmspec.tree import chain

CPU = torch.device("cpu")
FALSE_ALARM = 1e-6


def literal(n: list[float], p: list[float], repeated: set[int]) -> list[float]:
    """Draw u from n; if it is repeated, draw again from p without u."""
    law = [0.0] * len(n)
    for u, mass in enumerate(n):
        if u not in repeated or p[u] >= 1:
            law[u] += mass
            continue
        for t, other in enumerate(p):
            if t != u:
                law[t] += mass * other / (1 - p[u])
    return law


@pytest.mark.parametrize("repeated", [set(), {0}, {2, 4}, {0, 1, 2, 3, 4, 5}])
@pytest.mark.parametrize("top_p", [1.0, 0.7, 0.05])
def test_the_formula_is_the_law_of_drawing_again(repeated: set[int], top_p: float) -> None:
    scores = 2 * torch.randn(6, generator=torch.Generator().manual_seed(3)).double()
    warped = warp(scores, Sampling(temperature=1.0, top_p=top_p))
    mask = torch.tensor([token in repeated for token in range(6)])
    law = repetition_aware(warped, scores, mask).exp()
    want = torch.tensor(literal(warped.softmax(-1).tolist(), scores.softmax(-1).tolist(), repeated)).double()
    assert torch.allclose(law, want, atol=1e-6)
    assert torch.allclose(law.sum(), torch.tensor(1.0).double())


def test_a_token_that_has_all_the_mass_stays() -> None:
    scores = torch.tensor([0.0, -torch.inf, -torch.inf])
    law = repetition_aware(scores, scores, torch.tensor([True, True, False])).exp()
    assert law.tolist() == [1.0, 0.0, 0.0]


def literal_window(history: list[int], path: list[int], window: int, share: float) -> set[int]:
    last = (history + path)[-window:]
    return {token for token, count in Counter(last).items() if count >= max(1.0, window * share)}


@pytest.mark.parametrize(("window", "share"), [(1, 0.1), (3, 0.1), (4, 0.5), (10, 0.2)])
@pytest.mark.parametrize("emitted", [0, 2, 7])
def test_every_node_sees_what_was_emitted_and_its_own_path(window: int, share: float, emitted: int) -> None:
    generator = torch.Generator().manual_seed(window + emitted)
    sampler = Sampler(Sampling(temperature=1.0, ras_window=window, ras_share=share), 2, CPU)
    sampler.see([[1, 2, 3], [4, 4, 4]], prompt=True)
    history = torch.randint(0, 6, (2, emitted), generator=generator).tolist()
    for step in range(emitted):
        sampler.see([row[step : step + 1] for row in history])
    parents = torch.tensor([[-1, 0, 0, 1, 1, 2, 3, 6]]).expand(2, -1)
    tokens = torch.randint(0, 6, (2, 8), generator=generator)
    if emitted:
        tokens[:, 0] = torch.tensor([row[-1] for row in history])
    found = sampler.repeated(Draft(tokens, parents, torch.zeros_like(parents)), 6)
    for row in range(2):
        for node in range(8):
            path, at = [], node
            while at > 0:
                path.insert(0, int(tokens[row, at]))
                at = int(parents[row, at])
            want = literal_window(history[row], path, window, share)
            assert set(found[row, node].nonzero()[:, 0].tolist()) == want


SAMPLINGS = {
    "ras": Sampling(temperature=1.1, top_p=0.8, top_k=25, ras_window=10, seed=4),
    "ras over few": Sampling(temperature=0.9, top_k=8, ras_window=3, ras_share=0.5, seed=5),
    "penalty": Sampling(temperature=1.0, repetition_penalty=1.4, seed=6),
    "both": Sampling(temperature=1.3, top_p=0.7, repetition_penalty=1.2, ras_window=6, seed=7),
}


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("drafter", ["spd-copy", "spd-perturbed", "eagle-random", "prompt-lookup"])
def test_drafting_changes_no_token_whatever_the_history_does(drafter: str, how: str) -> None:
    model = toys.llama()
    inputs = toys.prompts(9, 12)
    want = toys.answer(toys.target_of(model), NoDrafter(), inputs, sampling=SAMPLINGS[how])
    got = toys.answer(toys.target_of(model), toys.DRAFTERS[drafter](model), inputs, sampling=SAMPLINGS[how])
    assert got.rows == want.rows
    if drafter == "spd-copy":  # its law is the target's, history included, so everything is accepted
        assert sum(got.accepted) >= 0.95 * sum(min(r.proposed, 5) for r in got.rounds[1:]) * 2 - 10


def test_a_drafter_draws_with_the_drafted_history() -> None:
    """The same model drafts for itself: with the same warpers, history and noise every token must be accepted."""
    model = toys.llama()
    sampling = Sampling(temperature=1.0, top_p=0.6, repetition_penalty=1.5, ras_window=8, seed=1)
    found = toys.answer(toys.target_of(model), Independent(model, length=4), toys.prompts(8), 21, sampling)
    assert found.accepted == [4, 4, 4, 4]


class Checked(CausalTarget):
    """Compares the laws that drafts declare with its own: for a drafter that knows them."""

    count = 0

    def verify(self, state: Any, draft: Draft) -> Any:
        verified = super().verify(state, draft)
        if draft.q is not None:
            inner = sorted(set(draft.parents[0, 1:].tolist()))
            law = state.sampler.warp(draft, verified.logits).softmax(-1)
            torch.testing.assert_close(draft.q[:, inner], law[:, inner])
            self.count += len(inner)
        return verified


@pytest.mark.parametrize("rule", [Exact, Match, Ratio])
@pytest.mark.parametrize("how", ["greedy", *SAMPLINGS])
def test_a_tree_is_drafted_with_the_history_of_every_path(how: str, rule: Any) -> None:
    """The head's law is the target's, and the tree is never pruned: all is accepted down to its depth."""
    sampling = SAMPLINGS.get(how, Sampling(repetition_penalty=1.6))
    target = Checked(toys.simple_llama())
    head = Eagle(toys.copying_head(target.model), depth=3, width=16, top_k=4, total=85)
    head.trust = 1.0
    found = toys.answer(target, head, toys.prompts(8, 11), 21, sampling, rule())
    if rule is not Match or how == "greedy":  # its drafts know nothing of the noise
        assert found.accepted == [3] * 10
    assert (target.count > 0) == (rule is Ratio and how != "greedy")


class Remembering(tables.TableTarget):
    """A table target that tells its sampler what was emitted, as real targets do."""

    def prefill(self, inputs: dict[str, Any], needs: Needs, sampler: Sampler) -> tables.TableState:
        sampler.see(inputs["input_ids"].tolist(), prompt=True)
        state = super().prefill(inputs, needs, sampler)
        self.sampler = sampler
        assert state.pending is not None
        sampler.see(state.pending[:, None].tolist())
        return state

    def commit(self, state: State, draft: Draft, accepted: Accepted) -> None:
        super().commit(state, draft, accepted)
        self.sampler.see(accepted.emitted)


def literal_law(logits: Tensor, prompt: list[int], emitted: list[int], sampling: Sampling) -> list[float]:
    """What follows a prompt and what was emitted."""
    logits = logits.clone()
    for token in {*prompt, *emitted}:
        logits[token] *= sampling.repetition_penalty if logits[token] < 0 else 1 / sampling.repetition_penalty
    n, p = warp(logits, sampling).softmax(-1), (logits / sampling.temperature).softmax(-1)
    window = sampling.ras_window
    repeated = literal_window(emitted, [], window, sampling.ras_share) if window else set()
    return literal(n.tolist(), p.tolist(), repeated)


def test_what_is_drawn_again_has_the_penalty_and_the_temperature_and_is_not_cut() -> None:
    """The laws of a node and of its child, in rows of other logits."""
    sampling = Sampling(temperature=0.6, top_k=3, repetition_penalty=1.5, ras_window=4)
    logits = 2 * torch.randn(20, 2, 6, generator=torch.Generator().manual_seed(1))
    sampler = Sampler(sampling, 20, CPU)
    sampler.see([[0, 5]] * 20, prompt=True)
    sampler.see([[2]] * 20)
    laws = sampler.warp(chain(torch.tensor([[2, 4]] * 20)), logits).exp()
    want = [
        [literal_law(node, [0, 5], path, sampling) for node, path in zip(row, ([2], [2, 4]), strict=True)]
        for row in logits
    ]
    assert torch.allclose(laws, torch.tensor(want), atol=1e-6)


def literal_outcomes(table: Tensor, sampling: Sampling, budget: int) -> dict[tuple[int, ...], float]:
    """Every answer to the prompt (1, 2), and its probability."""
    found: dict[tuple[int, ...], float] = {}

    def grow(pair: tuple[int, int], path: tuple[int, ...], mass: float) -> None:
        if path and (path[-1] == tables.END or len(path) == budget):
            found[path] = found.get(path, 0.0) + mass
            return
        for token, chance in enumerate(literal_law(table[pair], [1, 2], list(path), sampling)):
            if chance:
                grow((pair[1], token), (*path, token), mass * chance)

    grow((1, 2), (), 1.0)
    return found


RAS = Sampling(temperature=1.0, top_k=3, ras_window=4, ras_share=0.25, seed=11)
PENALTY = Sampling(temperature=1.0, top_k=5, repetition_penalty=1.8, seed=12)
TABLE, OTHER = tables.random_table(4, 1), tables.random_table(4, 2)
WIDE, OTHER_WIDE = tables.random_table(6, 1), tables.random_table(6, 2)  # four tokens that no prompt has
PROMPTS = {"input_ids": torch.tensor([[1, 2]]).repeat(20_000, 1)}


def chance_of(rows: list[list[int]], sampling: Sampling = RAS, table: Tensor = TABLE) -> float:
    return tables.p_value(Counter(map(tuple, rows)), literal_outcomes(table, sampling, 4))


@pytest.mark.parametrize(
    ("sampling", "table", "other"), [(RAS, TABLE, OTHER), (PENALTY, WIDE, OTHER_WIDE)], ids=["ras", "penalty"]
)
@pytest.mark.parametrize("rule", [Exact, Ratio])
def test_speculative_sampling_keeps_laws_that_look_back(
    rule: Any, sampling: Sampling, table: Tensor, other: Tensor
) -> None:
    drafter = tables.TableDrafter(other, (2, 1, 1))
    rows = toys.answer(Remembering(table), drafter, PROMPTS, 4, sampling, rule(), eos=[tables.END]).rows
    assert chance_of(rows, sampling, table) > FALSE_ALARM


def test_the_check_finds_a_penalty_that_does_not_see_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(sampler: Sampler, draft: Draft, logits: Tensor) -> Tensor:
        return warped(sampler, chain(draft.tokens[:, :1].expand_as(draft.tokens)), logits)

    warped = Sampler.warp
    monkeypatch.setattr(Sampler, "warp", blind)
    drafter = tables.TableDrafter(WIDE, (1, 1, 1))
    rows = toys.answer(Remembering(WIDE), drafter, PROMPTS, 4, PENALTY, Ratio(), eos=[tables.END]).rows
    assert chance_of(rows, PENALTY, WIDE) < FALSE_ALARM


def forgets_the_draft(sampler: Sampler, draft: Draft, vocab: int) -> Tensor:
    """Wrong: all nodes of a draft get the history of node 0."""
    first = chain(draft.tokens[:, :1])
    return right(sampler, first, vocab).expand(-1, draft.tokens.shape[1], -1)


right = Sampler.repeated


def test_the_check_finds_a_history_without_the_drafted_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "repeated", forgets_the_draft)
    rows = toys.answer(
        Remembering(TABLE), tables.TableDrafter(TABLE, (1, 1, 1)), PROMPTS, 4, RAS, Ratio(), eos=[0]
    ).rows
    assert chance_of(rows) < FALSE_ALARM


def test_the_check_finds_a_second_draw_that_may_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(warped: Tensor, scores: Tensor, repeated: Tensor) -> Tensor:
        n, p = warped.softmax(-1), scores.softmax(-1)
        return (torch.where(repeated, 0.0, n) + p * (n * repeated).sum(-1, keepdim=True)).log()

    monkeypatch.setattr(module, "repetition_aware", wrong)
    rows = toys.answer(Remembering(TABLE), NoDrafter(), PROMPTS, 4, RAS, Exact(), eos=[0]).rows
    assert chance_of(rows) < FALSE_ALARM


@pytest.mark.parametrize(
    "values", [{"ras_window": -1}, {"ras_window": 1.5}, {"ras_window": True}, {"ras_share": 0.0}, {"ras_share": 2.0}]
)
def test_values_that_make_no_law_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(values))):
        Sampling(temperature=1.0, **values)
