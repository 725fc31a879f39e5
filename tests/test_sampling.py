"""The law that tokens are drawn from is transformers' own, node by node, and values that make no law are refused."""

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import tables
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mmspec import sampling
from mmspec.acceptance.exact import choices
from mmspec.best import MANY
from mmspec.contract import Draft
from mmspec.drafters.none import NoDrafter
from mmspec.errors import InputError
from mmspec.sampling import COLDEST, Sampler, Sampling, nucleus, path_tokens, penalise, warp
from mmspec.targets import CausalTarget
from mmspec.tree import chain

CPU = torch.device("cpu")


def hf_processors(sampling: Sampling) -> LogitsProcessorList:
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature != 1:
        processors.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        processors.append(MinPLogitsWarper(sampling.min_p))
    return processors


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([1.0, 0.3, 0.7, 1.9]),
    top_k=st.sampled_from([0, 1, 2, 5, 11, 50]),
    top_p=st.sampled_from([1.0, 0.05, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.5]),
)


@given(samplings, st.integers(0, 10_000), st.booleans())
def test_warped_scores_equal_those_of_transformers(sampling: Sampling, seed: int, tied: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, 11, generator=generator)
    logits = logits.round() if tied else logits  # ties at the edge of top-k and top-p
    ids = torch.randint(0, 11, (2, 4), generator=generator)
    scores = penalise(logits, ids, sampling.repetition_penalty)
    want = hf_processors(sampling)(ids, logits.clone())
    got = warp(scores, sampling)
    if tied:  # of tokens with one score at the edge of top-p transformers keeps some, we keep all
        least = want.masked_fill(want.isinf(), torch.inf).amin(-1, keepdim=True)
        want = torch.where(scores / sampling.temperature == least, least, want)
    assert torch.equal(got.isinf(), want.isinf())
    assert torch.allclose(got.softmax(-1), want.softmax(-1), atol=1e-6)


@pytest.mark.parametrize("flatness", [[0.1], [4.0], [4.0, 0.1]])
def test_a_part_of_a_large_vocabulary_in_order_is_enough_for_top_p(
    monkeypatch: pytest.MonkeyPatch, flatness: list[float]
) -> None:
    """And where it is not, all of it is put in order, of the flat laws alone."""
    spread = torch.tensor(flatness).repeat(6 // len(flatness))[:, None]
    logits = spread * torch.randn(6, 3 * sampling.FIRST, generator=torch.Generator().manual_seed(2))
    settings = Sampling(temperature=1.0, top_p=0.9)
    sorts, sort = [], torch.Tensor.sort
    monkeypatch.setattr(
        torch.Tensor, "sort", lambda self, *how, **more: sorts.append(len(self)) or sort(self, *how, **more)
    )
    got = warp(logits, settings)
    assert sum(sorts) == int((spread < 1).sum())
    monkeypatch.setattr(sampling, "FIRST", logits.shape[-1])
    assert torch.equal(got, warp(logits, settings))
    assert got.isinf().any(-1).all()
    assert sorts[-1] == len(logits)
    assert torch.equal(got, warp(logits[:, None], settings)[:, 0])


def test_a_nucleus_that_has_its_share_takes_no_more() -> None:
    assert nucleus(torch.tensor([0.5, 0.25, 0.25]), 0.5).tolist() == [True, False, False]


@pytest.mark.parametrize("top_k", [0, 20])
def test_no_order_of_equal_tokens_decides_what_top_p_keeps(top_k: int) -> None:
    """Logits of a bfloat16 model: many are equal, and a forward of many nodes may be sorted in another way than one."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(64, 200, generator=generator).to(torch.bfloat16).float()
    sampling = Sampling(temperature=1.0, top_k=top_k, top_p=0.6)
    order = torch.randperm(200, generator=generator)
    kept, shuffled = (warp(some, sampling).isfinite() for some in (logits, logits[:, order]))
    assert torch.equal(kept[:, order], shuffled)
    edge = logits.masked_fill(~kept, torch.inf).amin(-1, keepdim=True)
    assert ((logits == edge).sum(-1) > 1).any()  # there were some to tell apart


@pytest.mark.parametrize(("level", "lanes"), [(0, 257), (256, 1)])
def test_no_two_nodes_of_a_drawn_tree_share_their_noise(level: int, lanes: int) -> None:
    sampler, emitted = Sampler(Sampling(), 1, torch.device("cpu")), torch.tensor([7])
    known = torch.cat([sampler.draft_noise(emitted, each, 256, 3)[0, :, 0] for each in range(3)])
    assert len(known.unique()) == len(known)
    with pytest.raises(InputError, match="smaller shape"):
        sampler.draft_noise(emitted, level, lanes, 3)


@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.4, "suppress_tokens": [*range(40, 90)]}])
def test_every_step_of_generate_has_the_law_of_our_nodes(more: dict[str, Any]) -> None:
    """transformers reports the warped scores of each step of its own sampling loop."""
    model = toys.llama()
    ids = toys.prompts(12)["input_ids"]
    sampling = Sampling(temperature=0.8, top_k=30, top_p=0.9, min_p=0.01, **more)
    torch.manual_seed(3)
    with torch.no_grad():
        out = model.generate(
            ids,
            do_sample=True,
            max_new_tokens=9,
            output_scores=True,
            output_logits=True,
            return_dict_in_generate=True,
            temperature=0.8,
            top_k=30,
            top_p=0.9,
            min_p=0.01,
            **more,
        )
    answer = out.sequences[:, ids.shape[1] :]
    sampler = Sampler(sampling, 1, CPU)
    sampler.see(ids.tolist())
    draft = chain(answer[:, :-1])  # node t has emitted answer[: t + 1]
    got = sampler.warp(draft, torch.stack(out.logits[1:], 1))
    want = torch.stack(out.scores[1:], 1)
    assert torch.equal(got.isinf(), want.isinf())
    assert torch.allclose(got.softmax(-1), want.softmax(-1), atol=1e-6)


def test_the_first_tokens_of_the_loop_follow_that_law() -> None:
    """20 000 rows of one prompt; chi-square, fails at p < 1e-6."""
    model = toys.llama()
    ids = toys.prompts(5)["input_ids"]
    sampling = Sampling(temperature=1.5, top_k=8, top_p=0.95, seed=1)
    with torch.no_grad():
        scores = hf_processors(sampling)(ids, model(ids).logits[:, -1].float())
    law = {(token,): p for token, p in enumerate(scores.softmax(-1)[0].tolist()) if p > 0}
    got = toys.answer(CausalTarget(model), NoDrafter(), {"input_ids": ids.repeat(20_000, 1)}, 1, sampling).rows
    assert tables.p_value(Counter(map(tuple, got)), law) > 1e-6
    shifted = {token: p for token, p in zip(law, [*law.values()][1:] + [*law.values()][:1], strict=True)}
    assert tables.p_value(Counter(map(tuple, got)), shifted) < 1e-6


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_law_after_a_chain_is_that_of_its_last_node(temperature: float) -> None:
    """A drafter asks for that one alone."""
    sampling = Sampling(temperature=temperature, top_k=5 if temperature else 0, repetition_penalty=1.4)
    generator = torch.Generator().manual_seed(0)
    sampler, path = Sampler(sampling, 3, CPU), torch.randint(0, 11, (3, 4), generator=generator)
    sampler.see([[1, 2], [3], [4, 5, 6]])
    logits = torch.randn(3, 11, generator=generator)
    whole = sampler.warp(chain(path), logits[:, None].expand(-1, 4, -1))
    assert torch.equal(sampler.after(path, logits), whole[:, -1])
    assert not torch.equal(sampler.after(path, logits), whole[:, 0])


@pytest.mark.parametrize(
    "ids", [[5, 1, 99, -1], (1, 5), range(1, 6, 4), np.array([5, 1])], ids=lambda ids: type(ids).__name__
)
@pytest.mark.parametrize("warm", [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 10}])
def test_no_law_has_a_suppressed_token(ids: Any, warm: dict[str, Any]) -> None:
    """Neither the target's nor a drafter's."""
    sampler, path = Sampler(Sampling(**warm, suppress_tokens=ids), 1, CPU), torch.tensor([[1, 2]])
    free, logits = Sampler(Sampling(**warm), 1, CPU), torch.arange(11.0)[None]
    laws = sampler.warp(chain(path), logits[:, None].expand(-1, 2, -1))[:, 1], sampler.after(path, logits)
    want = free.shape(logits).isfinite()
    want[:, [1, 5]] = False
    if "top_k" in warm:
        want[:, 0] = True  # moves up among the ten
        scores, tokens = sampler.likeliest(logits)
        laws = *laws, torch.full((1, 11), -torch.inf).scatter(1, tokens, scores)
    for law in (*laws, sampler.shape(logits)):
        assert torch.equal(law.isfinite(), want)


def test_the_penalty_sees_a_nodes_own_path_and_no_sibling() -> None:
    draft = chain(torch.tensor([[4, 5, 6, 5]]))
    draft.parents = torch.tensor([[-1, 0, 0, 2]])
    draft._ancestors = None
    assert [sorted(set(row)) for row in path_tokens(draft)[0].tolist()] == [[4], [4, 5], [4, 6], [4, 5, 6]]


def test_row_i_of_a_batch_draws_like_a_single_call_with_the_seed_plus_i() -> None:
    positions = torch.arange(3)[None]
    batch = Sampler(Sampling(temperature=1.0, seed=2**63 - 2), 4, CPU).target_noise(positions.repeat(4, 1), 7)
    for row in range(4):
        single = Sampler(Sampling(temperature=1.0, seed=2**63 - 2 + row), 1, CPU).target_noise(positions, 7)
        assert torch.equal(batch[row], single[0])


@pytest.mark.parametrize("seed", [-1, 0, 2**62, 2**63, -(2**63), 2**70])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert Sampler(Sampling(seed=seed), 2, CPU).seeds.shape == (2,)


def test_the_best_token_stays_however_small_top_p_is() -> None:
    assert warp(torch.tensor([1.0, 3.0, 2.0]), Sampling(temperature=1.0, top_p=1e-60)).isfinite().tolist() == [
        False,
        True,
        False,
    ]


def test_the_coldest_temperature_leaves_scores_finite() -> None:
    assert warp(torch.tensor([-7e4, 7e4, 6e4]), Sampling(temperature=COLDEST)).isfinite().all()


BAD = [
    {"temperature": -0.1},
    {"temperature": 1e-38},
    {"temperature": float("nan")},
    {"temperature": float("inf")},
    {"temperature": "hot"},
    {"temperature": None},
    {"temperature": True},
    {"top_k": -1},
    {"top_k": 2.5},
    {"top_k": True},
    {"top_p": 0.0},
    {"top_p": 1.1},
    {"top_p": float("nan")},
    {"min_p": -0.2},
    {"min_p": 1.5},
    {"repetition_penalty": 0.0},
    {"repetition_penalty": -1.0},
    {"repetition_penalty": float("inf")},
    {"suppress_tokens": 5},
    {"suppress_tokens": ["a"]},
    {"suppress_tokens": [1.5]},
    {"seed": 1.5},
    {"seed": None},
]


@pytest.mark.parametrize("options", BAD, ids=str)
def test_values_that_make_no_law_are_refused_by_name(options: dict[str, Any]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(InputError, match=f"{name}={re.escape(repr(value))} is not valid: "):
        Sampling(**options)


def test_noise_made_ahead_is_the_noise_of_each_place_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(Sampling(temperature=1.0, seed=3), 2, CPU)
    emitted = torch.tensor([4, 9])
    made: list[int] = []
    whole = sampler.target_noise(emitted[:, None] + torch.arange(6), 7)
    plain = Sampler.target_noise

    def counted(self: Sampler, positions: Tensor, vocab_size: int) -> Tensor:
        made.append(positions.shape[1])
        return plain(self, positions, vocab_size)

    monkeypatch.setattr(Sampler, "target_noise", counted)
    for count in (1, 2, 2, 6, 3):
        assert torch.equal(sampler.noise_ahead(emitted, count, 7), whole[:, :count])
    assert made == [1, 1, 4]
    later = emitted + 1
    assert torch.equal(sampler.noise_ahead(later, 5, 7), whole[:, 1:])
    assert torch.equal(sampler.noise_ahead(later, 2, 5), whole[:, 1:3, :5])  # of another vocabulary
    assert torch.equal(sampler.noise_ahead(emitted, 6, 7), whole)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("penalty", [1.0, 1.4])
@pytest.mark.parametrize("more", [{}, {"top_p": 0.8}, {"min_p": 0.02}, {"top_p": 0.9, "min_p": 0.01}], ids=str)
def test_noise_of_the_few_tokens_that_top_k_leaves_draws_the_same(
    more: dict[str, float], penalty: float, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a whole vocabulary, of which all scores were searched; tokens that tie with the last one stay in."""
    vocab_size, made, plain = 2 * MANY + 5, [], Sampler.target_noise

    def noted(sampler: Sampler, positions: Tensor, tokens: int | Tensor) -> Tensor:
        made.append(isinstance(tokens, int))
        return plain(sampler, positions, tokens)

    def drawn(seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        logits = 3 * torch.randn(2, 4, vocab_size, generator=generator)
        logits = logits.to(torch.bfloat16).float() if tied else logits
        tokens = torch.randint(0, vocab_size, (2, 4), generator=generator)
        draft = Draft(tokens, torch.tensor([[-1, 0, 0, 1]] * 2), torch.tensor([[0, 1, 1, 2]] * 2))
        settings = Sampling(temperature=0.8, top_k=20, repetition_penalty=penalty, seed=seed, **more)
        sampler, emitted = Sampler(settings, 2, CPU), torch.tensor([3, 70])
        sampler.see(logits[:, 0].topk(9).indices.tolist(), prompt=True)
        scores = sampler.warp(draft, logits)
        return [scores, choices(draft, scores, sampler, emitted), sampler.draw(scores, emitted[:, None] + draft.depth)]

    monkeypatch.setattr(Sampler, "target_noise", noted)
    few = [drawn(seed) for seed in range(20)]
    assert tied or not any(made)
    assert any(made) or not tied or more  # more tokens were left than top-k says
    monkeypatch.setattr(sampling, "in_parts", lambda size, k: False)
    monkeypatch.setattr(sampling, "best_of_many", lambda scores, k: scores.topk(k))
    made.clear()
    for seed, found in enumerate(few):
        for one, other in zip(found, drawn(seed), strict=True):
            assert torch.equal(one, other)
    assert all(made)


def test_of_equal_sums_the_first_token_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `argmax` over the vocabulary takes it, wherever a search puts it."""
    logits = torch.zeros(1, 1, MANY)
    logits[..., [7, 4000, 8000]] = torch.tensor([5.0, 6.0, 7.0])
    level = torch.tensor([2.0, 1.0, 0.0])

    def noise(sampler: Sampler, positions: Tensor, tokens: int | Tensor) -> Tensor:
        whole = torch.zeros(1, 1, MANY)
        whole[..., [7, 4000, 8000]] = level
        return whole if isinstance(tokens, int) else whole.gather(-1, tokens)

    monkeypatch.setattr(Sampler, "target_noise", noise)
    sampler = Sampler(Sampling(temperature=1.0, top_k=3), 1, CPU)
    scores = sampler.warp(chain(torch.zeros(1, 1, dtype=torch.long)), logits)
    assert sampler.draw(scores, torch.zeros(1, 1, dtype=torch.long)).item() == 7
