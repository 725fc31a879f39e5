"""Typical acceptance: what it keeps, that it always goes on, and that it is lossy and says so."""

import math
from pathlib import Path

import pytest
import tiny
import torch
import toys
from test_law import FALSE_ALARM, SAMPLINGS, TREES, draw, p_value, sampler_for

import mmspec
from mmspec.acceptance.typical import Typical
from mmspec.contract import Draft
from mmspec.errors import InputError
from mmspec.sampling import Sampling
from mmspec.targets import CausalTarget
from mmspec.tree import chain

ONE = torch.ones(1, dtype=torch.long)


def laws(*rows: list[float]) -> torch.Tensor:
    """[1, N, V] log-scores."""
    return torch.tensor([rows]).log()


def kept(draft: Draft, scores: torch.Tensor, rule: Typical | None = None) -> list[int]:
    accepted = (rule or Typical())(draft, scores, sampler_for(1), ONE)
    return accepted.path[0, : int(accepted.count)].tolist()


def test_a_token_passes_where_its_probability_is_above_both_bounds() -> None:
    """Where the target is sure the bound is epsilon, where it is not delta * exp(-entropy)."""
    sure, unsure = [0.9, 0.08, 0.02], [1 / 3] * 3
    for law in (sure, unsure):
        entropy = -sum(p * math.log(p) for p in law)
        for token, p in enumerate(law):
            draft = chain(torch.tensor([[0, token]]))
            for epsilon, delta in ((0.09, 0.3), (0.05, 0.3), (0.5, 0.9), (0.5, 1.1)):
                passes = p > min(epsilon, delta * math.exp(-entropy))
                got = kept(draft, laws(law, law), Typical(epsilon, delta))
                assert got == ([0, 1] if passes else [0]), (law, token, epsilon, delta)


def test_the_entropy_is_that_of_the_law_that_the_token_was_drawn_under() -> None:
    sure, unsure, bounds = [0.9, 0.08, 0.02], [1 / 3] * 3, Typical(0.5, 0.3)
    draft = chain(torch.tensor([[0, 1]]))  # 0.3 * exp(-H): 0.21 under `sure`, 0.1 under `unsure`
    assert kept(draft, laws([0.85, 0.15, 1e-9], unsure), bounds) == [0]
    assert kept(draft, laws(unsure, sure), bounds) == [0, 1]


def test_a_token_behind_one_that_fails_is_not_kept() -> None:
    law = [0.9, 0.08, 0.02]
    assert kept(chain(torch.tensor([[0, 2, 0]])), laws(law, law, law)) == [0]
    assert kept(chain(torch.tensor([[0, 0, 2]])), laws(law, law, law)) == [0, 1]


def test_the_deepest_path_wins_and_the_likelier_one_of_equals() -> None:
    #      0 -> 1 (token 0), 2 (token 1);  1 -> 3 (token 0);  2 -> 4 (token 1)
    tokens, parents = torch.tensor([[3, 0, 1, 0, 1]]), torch.tensor([[-1, 0, 0, 1, 2]])
    draft = Draft(tokens, parents, torch.tensor([[0, 1, 1, 2, 2]]))
    even, zero, one = [0.4, 0.4, 0.1, 0.1], [0.97, 0.01, 0.01, 0.01], [0.01, 0.97, 0.01, 0.01]
    leaf = even
    assert kept(draft, laws(even, one, one, leaf, leaf)) == [0, 2, 4]
    assert kept(draft, laws(even, zero, zero, leaf, leaf)) == [0, 1, 3]
    assert kept(draft, laws([0.3, 0.5, 0.1, 0.1], zero, one, leaf, leaf)) == [0, 2, 4]
    assert kept(draft, laws([0.5, 0.3, 0.1, 0.1], zero, one, leaf, leaf)) == [0, 1, 3]


def test_padding_is_never_kept() -> None:
    law = [0.5, 0.5]
    draft = chain(torch.tensor([[0, 1, 1]]))
    draft.valid = torch.tensor([[True, True, False]])
    assert kept(draft, laws(law, law, law)) == [0, 1]


def test_every_round_emits_a_token_of_the_targets_own() -> None:
    """With a drafter that is never right the output is the autoregressive one, with one token per round."""
    model = toys.llama()
    target, sampling = CausalTarget(model), Sampling(temperature=0.3, seed=2)
    strict = Typical(epsilon=1.0, delta=1e9)  # nothing is above 1
    got = toys.answer(target, toys.DRAFTERS["spd-copy"](model), toys.prompts(9, 6), 16, sampling, strict)
    assert got.rows == toys.answer(target, toys.DRAFTERS["none"](model), toys.prompts(9, 6), 16, sampling).rows
    assert got.accepted == [0] * 30


def test_greedy_typical_is_the_greedy_comparison() -> None:
    model = toys.llama()
    target, inputs = CausalTarget(model), toys.prompts(9, 6)
    want = toys.answer(target, toys.DRAFTERS["none"](model), inputs, 16).rows
    for name in ("spd-perturbed", "eagle-copying", "prompt-lookup"):
        assert toys.answer(target, toys.DRAFTERS[name](model), inputs, 16, rule=Typical()).rows == want


def test_the_law_is_not_kept() -> None:
    assert not Typical.lossless
    assert p_value(draw(TREES["tree"], Typical(), SAMPLINGS["plain"]), SAMPLINGS["plain"]) < FALSE_ALARM


def test_it_is_chosen_by_name_only_and_the_answer_says_that_it_is_lossy(tmp_path: Path) -> None:
    folder = str(tiny.tiny_llama(tmp_path))
    pipe = mmspec.load(folder, "prompt-lookup", "typical")
    assert pipe(None, "red red red red", max_new_tokens=4, temperature=1.0).stats.lossless is False
    assert mmspec.load(folder, "prompt-lookup")(None, "red", max_new_tokens=4).stats.lossless is True


@pytest.mark.parametrize("bounds", [(0.0, 0.3), (1.5, 0.3), (0.09, 0.0), (float("nan"), 0.3), (0.09, float("nan"))])
def test_bounds_that_cannot_be_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(InputError, match=r"epsilon in \(0, 1\] and a positive delta"):
        Typical(*bounds)
