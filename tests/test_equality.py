"""The output is that of autoregressive decoding, whatever the drafter, and greedy output is that of transformers."""

from typing import Any

import pytest
import tiny
import torch
import toys
from torch import Tensor

from mmspec.acceptance.exact import Exact
from mmspec.acceptance.match import Match
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.independent import Independent
from mmspec.drafters.none import NoDrafter
from mmspec.grouped import NAME as GROUPED
from mmspec.sampling import Sampling
from mmspec.targets import CausalTarget

MODELS = [*toys.TEXT_MODELS, "simple", "smolvlm"]
SAMPLINGS = {
    "plain": Sampling(temperature=1.0, seed=5),
    "cool": Sampling(temperature=0.6, seed=6),
    "top-k": Sampling(temperature=1.0, top_k=5, seed=7),
    "top-p": Sampling(temperature=0.9, top_p=0.7, seed=8),
    "min-p": Sampling(temperature=1.3, min_p=0.1, seed=9),
    "penalty": Sampling(temperature=0.8, repetition_penalty=1.4, seed=10),
    "all": Sampling(0.7, 20, 0.9, 0.02, repetition_penalty=1.2, suppress_tokens=range(0, toys.VOCAB, 3), seed=-11),
}


def make(name: str, attention: str = "sdpa") -> tuple[Any, CausalTarget]:
    """A model and its target."""
    if name == "smolvlm":
        from mmspec.vlm.smolvlm import SmolVLM

        model = tiny.smolvlm_model().double()
        model.set_attn_implementation(attention)
        return model, SmolVLM(model)
    model = toys.simple_llama(0.3) if name == "simple" else toys.TEXT_MODELS[name](attention)
    return model, CausalTarget(model)


def inputs_for(target: CausalTarget, *lengths: int) -> dict[str, Tensor]:
    """Left-padded prompts, with a picture each where the target sees."""
    inputs = toys.prompts(*lengths)
    if target.placeholders:
        first = inputs["attention_mask"].argmax(1)
        places = first[:, None] + 1 + torch.arange(tiny.IMAGE_TOKENS)
        inputs["input_ids"].scatter_(1, places, target.placeholders[0])
        torch.manual_seed(2)
        inputs["pixel_values"] = torch.randn(len(lengths), 1, 3, tiny.IMAGE_SIZE, tiny.IMAGE_SIZE, dtype=torch.float64)
    return inputs


def hf(model: Any, inputs: dict[str, Tensor], budget: int, **options: Any) -> list[int]:
    """What transformers generates for a single prompt."""
    options = {"pad_token_id": 0, "do_sample": False, **options}
    options.setdefault("eos_token_id", None)
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=budget, **options)
    return out[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("attention", ["sdpa", "eager", GROUPED])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_equals_generate_whatever_the_drafter(name: str, attention: str) -> None:
    model, target = make(name, attention)
    inputs = inputs_for(target, 17)
    want = hf(model, inputs, 20)
    assert len(want) == 20
    for drafter in toys.DRAFTERS if attention == "sdpa" else ("none", "spd-perturbed", "eagle-copying"):
        assert toys.answer(target, toys.DRAFTERS[drafter](model), inputs).rows == [want], drafter


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rejected_partial_and_full_acceptance_all_occur(temperature: float) -> None:
    model, target = make("llama")
    inputs = inputs_for(target, 17)
    sampling = Sampling(temperature=temperature, seed=1)

    def accepted(drafter: Any) -> list[int]:
        return toys.answer(target, drafter, inputs, budget=60, sampling=sampling).accepted

    random = accepted(toys.DRAFTERS["spd-random"](model))
    assert random.count(0) > 0.8 * len(random)
    assert set(accepted(Independent(toys.perturbed(model, 0.06), length=3))) == {0, 1, 2, 3}
    assert set(accepted(Independent(model, length=4))[:-1]) == {4}

    model, target = make("simple")
    assert {0, 1} <= set(accepted(Eagle(toys.copying_head(model, 0.1), depth=3, width=3, top_k=4, total=12)))
    target = CausalTarget(toys.simple_llama())
    knowing = Eagle(toys.copying_head(target.model), depth=3, width=1, top_k=1, total=4)
    knowing.trust = 1.0  # its law is the target's
    assert set(accepted(knowing)[:-1]) == {3}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(("simple", how) for how in SAMPLINGS),
        *((n, how) for n in ("llama", "qwen2", "smolvlm") for how in ("plain", "all")),
    ],
)
def test_sampled_output_depends_on_the_seed_alone(name: str, how: str) -> None:
    model, target = make(name)
    inputs = inputs_for(target, 15)
    want = toys.answer(target, NoDrafter(), inputs, sampling=SAMPLINGS[how])
    assert len(want.rows[0]) == 20
    for drafter, maker in toys.DRAFTERS.items():
        for rule in (Exact(), Match()) if (name, how) in (("simple", "plain"), ("simple", "all")) else (Exact(),):
            got = toys.answer(target, maker(model), inputs, sampling=SAMPLINGS[how], rule=rule)
            assert got.rows == want.rows, (drafter, type(rule))


def test_another_seed_gives_another_output() -> None:
    model, target = make("llama")
    outputs = [toys.answer(target, NoDrafter(), toys.prompts(9), sampling=Sampling(1.0, seed=s)).rows for s in range(3)]
    assert outputs[0] != outputs[1] != outputs[2]


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1.0, repetition_penalty=1.3, seed=21)], ids=["T0", "T1"]
)
@pytest.mark.parametrize("name", ["simple", "mistral", "smolvlm"])
def test_rows_of_a_batch_equal_single_calls(name: str, sampling: Sampling) -> None:
    model, target = make(name)
    inputs = inputs_for(target, 17, 9, 14, 11)
    singles = []
    for row in range(4):
        seeded = Sampling(**{**vars(sampling), "seed": sampling.seed + row})
        singles += toys.answer(target, NoDrafter(), toys.row_of(inputs, row), sampling=seeded).rows
    for drafter in ("none", "prompt-lookup", "spd-perturbed", "eagle-copying"):
        assert toys.answer(target, toys.DRAFTERS[drafter](model), inputs, sampling=sampling).rows == singles, drafter


def test_rows_of_a_batch_accept_different_lengths_and_end_at_different_rounds() -> None:
    model, target = make("simple")
    inputs = inputs_for(target, 17, 9, 14, 11)
    drafter = toys.DRAFTERS["eagle-copying"](model)
    free = toys.answer(target, drafter, inputs)
    assert any(len(set(r.drafted)) > 1 for r in free.rounds)
    eos = [free.rows[1][4], free.rows[2][9]]
    batch = toys.answer(target, drafter, inputs, eos=eos)
    singles = [toys.answer(target, drafter, toys.row_of(inputs, row), eos=eos) for row in range(4)]
    assert batch.rows == [single.rows[0] for single in singles]
    assert batch.finish == [single.finish[0] for single in singles]
    assert len({len(row) for row in batch.rows}) > 1


@pytest.mark.parametrize("drafter", toys.DRAFTERS)
def test_every_budget_is_met_exactly(drafter: str) -> None:
    model, target = make("simple")
    inputs = inputs_for(target, 12)
    want = hf(model, inputs, 12)
    for budget in (1, 2, 3, 4, 5, 8, 11):
        got = toys.answer(target, toys.DRAFTERS[drafter](model), inputs, budget=budget)
        assert got.rows == [want[:budget]]
        assert got.finish == ["length"]


@pytest.mark.parametrize("name", ["simple", "llama", "smolvlm"])
def test_end_of_sequence_inside_an_accepted_run(name: str) -> None:
    model, target = make(name)
    inputs = inputs_for(target, 12)
    free = hf(model, inputs, 16)
    cut_inside = 0
    for position in (2, 5, 6, 11):
        eos = [free[position], toys.VOCAB - 1]
        want = hf(model, inputs, 16, eos_token_id=eos)
        for maker in toys.DRAFTERS.values():
            got = toys.answer(target, maker(model), inputs, budget=16, eos=eos)
            assert got.rows == [want]
            assert got.finish == ["stop"]
            cut_inside += len(got.rounds) > 1 and got.rounds[-1].drafted[0] == len(got.rounds[-1].tokens[0])
    assert cut_inside > 0


@pytest.mark.parametrize(
    "options",
    [{"repetition_penalty": 1.5}, {"suppress_tokens": [*range(0, toys.VOCAB, 2), 1000]}],
    ids=lambda one: [*one][0],
)
def test_a_greedy_choice_among_others_equals_generate(options: dict[str, Any]) -> None:
    for name in ("llama", "simple", "smolvlm"):
        model, target = make(name)
        inputs = inputs_for(target, 17)
        want = hf(model, inputs, 25, **options)
        assert want != hf(model, inputs, 25)
        for drafter, maker in toys.DRAFTERS.items():
            got = toys.answer(target, maker(model), inputs, 25, sampling=Sampling(**options))
            assert got.rows == [want], drafter


def test_stop_strings_equal_generate() -> None:
    """For substrings of the answer's text: short and long, inside a token, across tokens and rounds."""
    tokenizer = tiny.tokenizer()
    model = tiny.llama_model().double()
    with torch.no_grad():
        odd = [
            i
            for i in range(len(tokenizer))
            if not tokenizer.decode([i]).isprintable() or tokenizer.decode([i]) == "\ufffd"
        ]
        model.lm_head.weight[odd + tokenizer.all_special_ids] = 0  # some other logit is above zero
    target = CausalTarget(model)
    inputs = toys.prompts(12, vocab=200)
    text = tokenizer.decode(hf(model, inputs, 14))
    drafters = [NoDrafter(), Independent(model, length=5), toys.DRAFTERS["spd-perturbed"](model)]
    cases = [text[start : start + size] for size in (1, 3, 8) for start in range(0, len(text) - size, 4)]
    ended = 0
    prompt = tokenizer.decode(inputs["input_ids"][0])
    for stop in [*cases, prompt[-2:] + text[:2], prompt[-3:]]:
        want = hf(model, inputs, 14, stop_strings=[stop, "never this"], tokenizer=tokenizer)
        ended += len(want) < 14
        for drafter in drafters:
            got = toys.answer(target, drafter, inputs, 14, strings=[stop, "never this"], text_of=tokenizer.decode)
            assert got.rows == [want], (stop, type(drafter))
    assert ended > len(cases) / 2


def test_top_p_top_k_and_min_p_do_not_touch_greedy_output() -> None:
    model, target = make("llama")
    inputs = inputs_for(target, 12)
    shaped = Sampling(top_k=3, top_p=0.5, min_p=0.3)
    assert toys.answer(target, NoDrafter(), inputs, sampling=shaped).rows == [hf(model, inputs, 20)]


@pytest.mark.parametrize("drafter", toys.DRAFTERS)
def test_the_answer_ends_where_the_context_does(drafter: str) -> None:
    model = toys.llama(max_position_embeddings=24)
    target = CausalTarget(model)
    inputs = toys.prompts(17, 12)
    want = [hf(model, toys.row_of(inputs, row), budget) for row, budget in enumerate((7, 12))]
    got = toys.answer(target, toys.DRAFTERS[drafter](model), inputs, budget=50)
    assert got.rows == want
    assert got.finish == ["length", "length"]


def test_stopping_a_stream_early_leaves_the_target_usable() -> None:
    model, target = make("llama")
    inputs = inputs_for(target, 12)
    from mmspec.decode import decode
    from mmspec.sampling import Sampler
    from mmspec.stopping import Stop

    drafter = toys.DRAFTERS["eagle-copying"](model)
    drafter.bind(target)
    sampler = Sampler(Sampling(), 1, torch.device("cpu"))
    rounds = decode(target, drafter, Exact(), {**inputs, "max_new_tokens": 20}, sampler, Stop([], 20))
    next(rounds)
    next(rounds)
    rounds.close()
    assert not torch.is_inference_mode_enabled()
    assert toys.answer(target, drafter, inputs).rows == [hf(model, inputs, 20)]
