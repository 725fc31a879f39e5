"""Models whose layers keep a running state: after any rejected draft it is what reading the text afresh would leave."""

import copy
from functools import cache
from typing import Any

import pytest
import test_commit
import test_families
import tiny_running
import torch
import toys
from test_families import PICTURES, TEXTS, Oracle, greedy, plain
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    DynamicCache,
    GraniteMoeHybridConfig,
    JambaConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    OlmoHybridConfig,
    PreTrainedModel,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from mmspec.contract import Accepted, Draft, Drafter, Drafting, Kind, Needs, State, Verified
from mmspec.drafters.independent import Independent
from mmspec.drafters.kangaroo import check_layers
from mmspec.drafters.lookahead import Lookahead
from mmspec.drafters.none import NoDrafter
from mmspec.errors import MismatchError, UnsupportedError
from mmspec.running import Running
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget
from mmspec.tree import chain, is_chain, trunk
from mmspec.vlm.drafters.branching import SpecLlava
from mmspec.vlm.drafters.eyes import OwnEyes

DELTA = ["linear_attention", "linear_attention", "full_attention"]
CONV = ["conv", "full_attention", "conv"]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 16}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
CONFIGS: dict[str, Any] = {
    "qwen3.5": lambda: Qwen3_5TextConfig(**SHAPE, **tiny_running.DELTA, layer_types=DELTA),
    "qwen3.5-moe": lambda: Qwen3_5MoeTextConfig(**SHAPE, **tiny_running.DELTA, **SHARED, layer_types=DELTA),
    "qwen3-next": lambda: Qwen3NextConfig(**SHAPE, **tiny_running.DELTA, **SHARED, layer_types=DELTA),
    "olmo-hybrid": lambda: OlmoHybridConfig(**SHAPE, **tiny_running.DELTA, layer_types=DELTA),
    "bamba": lambda: BambaConfig(**SHAPE, **MAMBA, attn_layer_indices=[2]),
    "granite": lambda: GraniteMoeHybridConfig(
        **SHAPE,
        **MAMBA,
        layer_types=["mamba", "attention", "mamba"],
        num_local_experts=2,
        num_experts_per_tok=1,
        shared_intermediate_size=16,
    ),
    "lfm2": lambda: Lfm2Config(**SHAPE, conv_L_cache=3, layer_types=CONV, block_multiple_of=8),
    "lfm2-moe": lambda: Lfm2MoeConfig(**SHAPE, **EXPERTS, conv_L_cache=3, layer_types=CONV, num_dense_layers=1),
}
BUDGET = 24
CLOSE = 1e-4
"""Linear attention sums up in float32, whatever the dtype of a model."""


@cache
def model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    made: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIGS[name]()).double().eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.3)
    if made.get_experts_implementation():
        made.set_experts_implementation("eager")
    made.generation_config.eos_token_id = None
    made.generation_config.pad_token_id = 0
    return made


def hf(name: str, inputs: dict[str, Tensor], row: int) -> list[int]:
    alone = toys.row_of(inputs, row)
    with torch.no_grad():
        out = model(name).generate(**alone, max_new_tokens=BUDGET, do_sample=False)
    found: list[int] = out[0, alone["input_ids"].shape[1] :].tolist()
    return found


class Line(Oracle):
    """Chains of which all are right, none, or half."""

    def propose(self, state: State) -> Draft:
        levels, rows = max(0, min(4, state.room)), []
        for row, answer in enumerate(self.answers):
            start = int(state.emitted[row])
            told = (answer[start:] + [40] * levels)[:levels]
            right = (4, 0, 2)[start // 2 % 3]
            rows.append([state.ids[row][-1], *told[:right], *((token + 7) % self.vocabulary for token in told[right:])])
        return chain(torch.tensor(rows))


PROMPTS = (9, 2, 14)
"""One is shorter than the convolutions reach."""


@pytest.mark.parametrize("name", CONFIGS)
def test_any_kept_drafts_give_what_generate_gives(name: str) -> None:
    """In a batch of unlike lengths, whose rows keep none, a part and all of what is drafted, in chains, or in trees of
    which the longest path is verified."""
    inputs = toys.prompts(*PROMPTS)
    want = [hf(name, inputs, row) for row in range(len(PROMPTS))]
    target = CausalTarget(model(name))
    for drafter, kept in (Oracle(want, 97), {0, 1, 3}), (Line(want, 97), {0, 2, 4}):
        got = toys.answer(target, drafter, inputs, BUDGET)
        assert got.rows == want
        assert kept <= set(got.accepted)
    assert toys.answer(target, NoDrafter(), inputs, BUDGET).rows == want


@pytest.mark.parametrize("name", CONFIGS)
def test_states_are_those_of_a_fresh_prefill(name: str) -> None:
    """After every round; rows keep another number of tokens each, or nothing once they are done."""
    target = CausalTarget(model(name))
    inputs = toys.prompts(*PROMPTS)
    texts = [toys.row_of(inputs, row)["input_ids"][0].tolist() for row in range(len(PROMPTS))]
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        state = target.prefill({**inputs, "max_new_tokens": 99}, Needs(), Sampler(Sampling(), 3, torch.device("cpu")))
        for step in range(4):
            for row, text in enumerate(texts):
                fresh, _ = target.decoder.read([{"input_ids": torch.tensor([text])}], [len(text)])
                for mine, its in zip(state.cache.hf.layers, fresh.hf.layers, strict=True):
                    if isinstance(its, Running):
                        for one, other in zip(mine.states, its.states, strict=True):
                            assert torch.allclose(one[row], other[0], rtol=CLOSE, atol=CLOSE)
            draft = chain(torch.randint(30, 90, (3, 6), generator=generator))
            draft.tokens[:, 0] = state.pending
            target.verify(state, draft)
            last = torch.tensor([step, 5, 0]).roll(step)
            accepted = test_commit.path_to(draft, last, torch.randint(30, 90, (3,), generator=generator))
            test_commit.take([[], [], []], draft, accepted)
            state.done[1] = step == 2
            target.commit(state, draft, accepted)
            for row, path in enumerate(accepted.paths):
                texts[row] += [] if state.done[row] else draft.tokens[row, path].tolist()


@pytest.mark.parametrize("name", ["qwen3.5", "lfm2"])
def test_a_long_prompt_is_read_in_pieces_of_which_rows_end_in_different_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = toys.prompts(11, 3, 7)
    target = CausalTarget(model(name))
    want = toys.answer(target, NoDrafter(), inputs, 8).rows
    monkeypatch.setattr(CausalTarget, "piece_size", 4)
    assert toys.answer(target, NoDrafter(), inputs, 8).rows == want == [hf(name, inputs, row)[:8] for row in range(3)]


@pytest.mark.parametrize("name", CONFIGS)
def test_several_answers_go_on_from_one_prompt(name: str) -> None:
    target = CausalTarget(model(name))
    (ids,), n = toys.prompts(9)["input_ids"].tolist(), 3
    inputs = {"input_ids": torch.tensor([ids] * n), "attention_mask": torch.ones(n, 9, dtype=torch.long)}
    sampling = Sampling(temperature=1.0, seed=5)
    want = toys.answer(target, NoDrafter(), inputs, 12, sampling).rows
    for drafter in (NoDrafter(), Oracle(want, 97)):
        assert toys.answer(target, drafter, {**inputs, "n": n}, 12, sampling).rows == want
    assert len({*map(tuple, want)}) > 1


class Noted(Drafter, Drafting):
    """A drafter whose drafts are noted: texts, and what was drafted to follow them."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.kinds, self.made = inner, inner.kinds, list[tuple[list[int], list[int]]]()

    def bind(self, target: Any) -> None:
        self.inner.bind(target)

    def begin(self, state: State, sampler: Sampler, kind: Kind) -> "Noted":
        self.work = self.inner.begin(state, sampler, kind)
        return self

    def propose(self, state: State) -> Draft:
        draft = self.work.propose(state)
        self.made += [
            ([*ids], tokens)
            for ids, tokens, done in zip(state.ids, draft.tokens[:, 1:].tolist(), state.done, strict=True)
            if not done
        ]
        return draft

    def observe(self, state: State, draft: Draft, verified: Verified, accepted: Accepted) -> None:
        self.work.observe(state, draft, verified, accepted)


@pytest.mark.parametrize("name", CONFIGS)
def test_as_a_drafter_it_goes_back_to_what_was_kept(name: str) -> None:
    """Its drafts are what it would say after the text, whatever was kept of earlier ones."""
    small = toys.perturbed(model(name), 0.05)
    target, inputs = CausalTarget(model(name)), toys.prompts(9, 4)
    noted = Noted(Independent(small, length=3))
    got = toys.answer(target, noted, inputs, BUDGET)
    assert got.rows == [hf(name, inputs, row) for row in range(2)]
    assert len({*got.accepted}) > 1
    for text, tokens in noted.made:
        with torch.no_grad():
            logits = small(input_ids=torch.tensor([text + tokens])).logits[0, len(text) - 1 : -1]
        assert tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize("family", tiny_running.MAKERS)
def test_a_head_drafts_chains(family: str) -> None:
    base = plain(family)
    seen: list[Draft] = []

    target = base.target
    verify = target.verify

    def watch(state: State, draft: Draft) -> Verified:
        seen.append(draft)
        return verify(state, draft)

    target.verify = watch
    try:
        drafting = test_families.drafting_with(base, "eagle2", family)
        answers = drafting(PICTURES, TEXTS, max_new_tokens=test_families.BUDGET)
    finally:
        del target.verify
    assert [answer.token_ids for answer in answers] == greedy(family)
    assert all(is_chain(draft) for draft in seen)
    assert max(draft.size for draft in seen) == 4


def test_the_trunk_is_the_deepest_path_of_every_row() -> None:
    parents = torch.tensor([[-1, 0, 0, 1, 2, 4], [-1, 0, 0, 1, 1, 2]])
    depth = torch.tensor([[0, 1, 1, 2, 2, 3], [0, 1, 1, 2, 2, 2]])
    tokens = torch.arange(12).reshape(2, 6)
    line = trunk(Draft(tokens, parents, depth))
    assert is_chain(line)
    assert line.tokens[0].tolist() == [0, 2, 4, 5]
    assert line.tokens[1, :3].tolist() == [6, 7, 9]
    assert line.valid is not None
    assert line.valid.tolist() == [[True] * 4, [True] * 3 + [False]]
    valid = torch.tensor([[True] * 5 + [False], [True] * 6])
    assert trunk(Draft(tokens, parents, depth, valid=valid)).tokens[0, :3].tolist() == [0, 1, 3]
    assert trunk(line) is line


def test_other_caches_of_the_model_are_left_alone() -> None:
    """Who asks the same model by himself gets what he would."""
    ids = toys.prompts(9)["input_ids"]
    target = CausalTarget(model("qwen3.5"))
    cache_of_his_own = DynamicCache(config=target.model.config)
    with torch.no_grad():
        target.model(input_ids=ids[:, :5], past_key_values=cache_of_his_own)
        parts = target.model(input_ids=ids[:, 5:], past_key_values=cache_of_his_own).logits[:, -1]
        assert torch.allclose(parts, target.model(input_ids=ids).logits[:, -1], atol=CLOSE)
    copied = copy.deepcopy(target.model)
    for each in (model("qwen3.5"), copied):
        CausalTarget(each)
        assert sum(len(module._forward_pre_hooks) for module in each.modules()) == 2


def test_states_that_cannot_be_taken_back_and_what_needs_more_are_refused() -> None:
    config = JambaConfig(**SHAPE, attn_layer_offset=1, attn_layer_period=2, num_experts=2, mamba_dt_rank=4)
    with pytest.raises(UnsupportedError, match="whose cache can be rolled back"):
        CausalTarget(AutoModelForCausalLM.from_config(config))
    target = plain("lfm2-vl").target
    with pytest.raises(MismatchError, match="Kangaroo cannot run the first layers of Lfm2Model alone"):
        check_layers(target)
    with pytest.raises(MismatchError, match="lookahead needs branches, and Lfm2Vl"):
        Lookahead().bind(target)
    with pytest.raises(UnsupportedError, match="some of its layers keep a running state"):
        target.compile()


def test_a_model_that_drafts_trees_drafts_chains_here() -> None:
    """It is the target itself: all is kept."""
    base = plain("lfm2-vl")
    drafting = base.with_drafter(SpecLlava(OwnEyes(base.target.model), depth=3), "own")
    answer = drafting(PICTURES[0], TEXTS[0], max_new_tokens=13)
    assert answer.token_ids == greedy("lfm2-vl", budget=13)[0]
    assert answer.stats.accept_lengths == [3, 3, 3]


def test_the_last_layer_with_attention_tells_where_it_looks() -> None:
    target = plain("lfm2-vl").target
    inputs = {**plain("lfm2-vl").prepare(PICTURES[0], TEXTS[0]), "max_new_tokens": 4}
    sampler = Sampler(Sampling(), 1, torch.device("cpu"))
    with torch.inference_mode():
        focus = target.prefill(inputs, Needs(focus=True), sampler).prompt_focus
    assert focus.shape == inputs["input_ids"].shape
    assert focus.sum() > 0
