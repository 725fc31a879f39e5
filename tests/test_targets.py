"""What a causal target gives a drafter from the prompt, and what it refuses."""

from typing import Any

import pytest
import test_equality
import tiny_families
import torch
import toys
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Cohere2ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoXConfig,
    GraniteForCausalLM,
    HyperCLOVAXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    Phi3Config,
    Phi3ForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
)

import mmspec
from mmspec.causal_lm import CausalLM
from mmspec.contract import Needs
from mmspec.decoder import Decoder, context_of
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.independent import Independent
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.vocabulary import NarrowHead
from mmspec.errors import InputError, MismatchError, NumericalError, UnsupportedError
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget, check_finite
from mmspec.tree import chain


@pytest.mark.parametrize("name", ["llama", "smolvlm"])
def test_a_drafter_gets_what_it_needs_of_the_prompt(name: str) -> None:
    """Hidden states, embeddings with the picture in place: those of the plain model, row by row."""
    model, target = test_equality.make(name, "eager")
    inputs = test_equality.inputs_for(target, 17, 9)
    sampler = Sampler(Sampling(), 2, torch.device("cpu"))
    with torch.inference_mode():
        needs = Needs(taps=(1, 2), embeddings=True)
        state = target.prefill({**inputs, "max_new_tokens": 9}, needs, sampler)
        assert state.prompt_embeddings is not None
        for row, n in enumerate((17, 9)):
            out = model(**toys.row_of(inputs, row), output_hidden_states=True)
            assert torch.allclose(state.prompt_embeddings[row, :n], out.hidden_states[0][0], atol=1e-6)
            for tap in (1, 2):
                assert torch.allclose(state.prompt_taps[tap][row, :n], out.hidden_states[tap][0], atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_damaged_weights_are_an_error_that_names_the_place(value: float) -> None:
    """In the prompt, and later; never an answer that repeats one token for ever."""
    model = toys.llama()
    want = toys.answer(CausalTarget(model), NoDrafter(), toys.prompts(9), 4).rows[0]
    weight = model.model.embed_tokens.weight if value != float("-inf") else model.lm_head.weight
    with torch.no_grad():
        weight[:] = value
    with pytest.raises(NumericalError, match="not finite at the prompt"):
        toys.answer(CausalTarget(model), NoDrafter(), toys.prompts(9), 4)

    if value != float("-inf"):
        model = toys.llama()
        with torch.no_grad():
            model.model.embed_tokens.weight[want[1]] = value
        assert want[1] not in [*toys.prompts(9)["input_ids"][0].tolist(), want[0]]
        with pytest.raises(NumericalError, match="not finite at output position 2"):
            toys.answer(CausalTarget(model), NoDrafter(), toys.prompts(9), 4)


def test_ruled_out_tokens_are_no_damage() -> None:
    logits = torch.randn(2, 3, 5)
    logits[..., 2] = -torch.inf
    check_finite(logits, "here")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_node_at_which_nothing_is_left_to_say_is_damage(value: float) -> None:
    logits = torch.randn(1, 2, 5)
    logits[0, 1] = value
    with pytest.raises(NumericalError, match="not finite at here"):
        check_finite(logits, "here")


@pytest.mark.parametrize("length", [24, 40])
def test_a_prompt_that_fills_the_context_is_refused(length: int) -> None:
    target = CausalTarget(toys.llama(max_position_embeddings=24))
    with pytest.raises(InputError, match=rf"the prompt has {length} tokens, the model's context is 24"):
        toys.answer(target, NoDrafter(), toys.prompts(length, 5))
    assert len(toys.answer(target, NoDrafter(), toys.prompts(23)).rows[0]) == 1


@pytest.mark.parametrize("mask", [torch.zeros(1, 4), torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 0]])])
def test_an_empty_prompt_is_refused(mask: Any) -> None:
    inputs = {"input_ids": torch.ones_like(mask, dtype=torch.long), "attention_mask": mask}
    with pytest.raises(InputError, match="a prompt is empty"):
        toys.answer(CausalTarget(toys.llama()), NoDrafter(), inputs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BloomForCausalLM(BloomConfig(vocab_size=97, hidden_size=16, n_layer=1, n_head=2)),
        lambda: FalconForCausalLM(
            FalconConfig(vocab_size=97, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, alibi=True)
        ),
    ],
)
def test_models_that_count_positions_themselves_are_refused(make: Any) -> None:
    """Siblings in a tree share a position; a model that cannot be told would be silently wrong."""
    with pytest.raises(UnsupportedError, match="takes positions from the order of its inputs"):
        Decoder(make())


def test_a_model_that_keeps_no_cache_is_refused() -> None:
    """Later tokens would be read without the prompt."""
    model = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=97, n_positions=64, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(UnsupportedError, match="keeps no keys and values of what it reads"):
        toys.answer(CausalTarget(model), NoDrafter(), toys.prompts(9))


def test_later_tokens_go_on_from_the_positions_of_the_prompt_as_in_generate() -> None:
    """A RoBERTa that is told none counts those of a prompt from its padding id on."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = RobertaConfig(
        **sizes,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.3,
        is_decoder=True,
        eos_token_id=None,
    )
    model = RobertaForCausalLM(config).double().eval()
    target, inputs = CausalTarget(model), toys.prompts(17)
    with torch.no_grad():
        want = model.generate(**inputs, do_sample=False, max_new_tokens=12)[0, 17:].tolist()
    for drafter in (NoDrafter(), Independent(toys.perturbed(model, 0.1))):
        assert toys.answer(target, drafter, inputs, 12).rows == [want]


def test_local_attention_by_place_is_refused() -> None:
    config = GPTNeoConfig(
        vocab_size=97, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]]
    )
    with pytest.raises(UnsupportedError, match="layers of type .*local"):
        Decoder(GPTNeoForCausalLM(config))


def test_longrope_is_served_up_to_where_it_changes_its_frequencies() -> None:
    """A draft reaches the change before a single token does, and transformers reads the prompt again there."""
    torch.manual_seed(0)
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 1e4}
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    lengths = {"max_position_embeddings": 256, "original_max_position_embeddings": 24}
    config = Phi3Config(**sizes, **heads, **ends, **lengths, rope_parameters=rope, initializer_range=0.3)
    model = Phi3ForCausalLM(config).double().eval()
    target, inputs = CausalTarget(model), toys.prompts(17)
    with torch.no_grad():
        want = model.generate(**inputs, do_sample=False, max_new_tokens=7)[0, 17:].tolist()
    for drafter in (NoDrafter(), Independent(toys.perturbed(model, 0.1)), toys.DRAFTERS["eagle-random"](model)):
        assert toys.answer(target, drafter, inputs, 50).rows == [want]
    with pytest.raises(InputError, match="the prompt has 30 tokens, the model's context is 24"):
        toys.answer(target, NoDrafter(), toys.prompts(30))


@pytest.mark.parametrize(
    "rope", [{"rope_type": "yarn", "original_max_position_embeddings": 32}, {"rope_type": "linear"}]
)
def test_stretched_frequencies_are_served_as_far_as_they_reach_as_in_generate(rope: dict[str, Any]) -> None:
    """Configurations often state no longer context beside the factor, as that of Qwen3 with YaRN."""
    model = toys.llama(max_position_embeddings=40, rope_parameters={**rope, "factor": 2.5, "rope_theta": 1e4})
    target, inputs = CausalTarget(model), toys.prompts(50)
    end = 80 if rope["rope_type"] == "yarn" else 100
    with torch.no_grad():
        want = model.generate(**inputs, do_sample=False, max_new_tokens=end - 50)[0, 50:].tolist()
    for drafter in (NoDrafter(), Independent(toys.perturbed(model, 0.1))):
        assert toys.answer(target, drafter, inputs, 99).rows == [want]
    with pytest.raises(InputError, match=f"the prompt has {end} tokens, the model's context is {end}"):
        toys.answer(target, NoDrafter(), toys.prompts(end))


def test_a_factor_that_the_context_has_in_it_counts_once() -> None:
    """Gemma3 stretches some layers alone; the others reach as far as it says. NTK changes with the length."""
    ropes: dict[str, Any] = {kind: {"rope_type": kind, "factor": 8.0} for kind in ("linear", "yarn", "dynamic")}
    assert context_of(Gemma3TextConfig(max_position_embeddings=64, rope_scaling=ropes["linear"])) == 64
    assert context_of(LlamaConfig(max_position_embeddings=64, rope_scaling=ropes["dynamic"])) == 64
    ropes["yarn"]["original_max_position_embeddings"] = 8
    assert context_of(LlamaConfig(max_position_embeddings=64, rope_scaling=ropes["yarn"])) == 64


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="LlamaModel has no language-model head.*AutoModelForCausalLM"):
        CausalTarget(toys.llama().model)


def test_flash_attention_is_refused() -> None:
    """It takes no mask of its own, so that branches of a tree would see each other."""
    model = toys.llama()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UnsupportedError, match="flash_attention_2 cannot attend along the branches.*'sdpa' or 'eager'"):
        Decoder(model)


def test_learned_positions_work_up_to_the_end_of_the_context() -> None:
    """A tree there reaches beyond the last position, which such a model does not have."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=24, initializer_range=0.3, eos_token_id=None
    )
    model = GPT2LMHeadModel(config).double().eval()
    target, inputs = CausalTarget(model), toys.prompts(17, 12)
    plain = toys.answer(target, NoDrafter(), inputs, 50)
    assert [len(row) for row in plain.rows] == [7, 12]
    for drafter in (Independent(toys.perturbed(model, 0.1)), toys.DRAFTERS["eagle-random"](model)):
        assert toys.answer(target, drafter, inputs, 50).rows == plain.rows


def test_padding_may_stand_on_either_side() -> None:
    target = CausalTarget(toys.llama())
    left = toys.prompts(9, 5)
    right = {name: value.clone() for name, value in left.items()}
    right["input_ids"][1], right["attention_mask"][1] = (
        left["input_ids"][1].roll(-4),
        left["attention_mask"][1].roll(-4),
    )
    assert toys.answer(target, NoDrafter(), left).rows == toys.answer(target, NoDrafter(), right).rows


@pytest.mark.parametrize("name", ["mistral", "qwen2", "gemma3"])
def test_nodes_see_no_node_that_has_left_the_window(name: str) -> None:
    """A draft may be deeper than a window is wide: in every place the plain model says the same."""
    model, target = test_equality.make(name)
    inputs = toys.prompts(17)
    with torch.inference_mode():
        state = target.prefill({**inputs, "max_new_tokens": 20}, Needs(), Sampler(Sampling(), 1, torch.device("cpu")))
        draft = chain(torch.arange(40, 40 + 2 * toys.WINDOW)[None])
        verified = target.verify(state, draft).logits
        whole = model(torch.cat([inputs["input_ids"], draft.tokens], 1)).logits[:, 17:]
    assert torch.allclose(verified, whole, atol=1e-6)


SHAPED: dict[str, tuple[Any, dict[str, float]]] = {
    "plain": (LlamaForCausalLM, {}),
    "divided": (GraniteForCausalLM, {"logits_scaling": 4.0}),
    "multiplied": (Cohere2ForCausalLM, {"logit_scale": 0.25}),
    "multiplied, under the name of what divides": (HyperCLOVAXForCausalLM, {"logits_scaling": 0.25}),
    "capped": (Gemma2ForCausalLM, {"final_logit_softcapping": 1.5}),
    "capped where asked for": (Gemma3ForCausalLM, {"final_logit_softcapping": 1.5}),
}


@pytest.mark.parametrize("name", SHAPED)
def test_the_head_says_what_the_model_says_of_all_words_and_of_some(name: str) -> None:
    kind, changes = SHAPED[name]
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "initializer_range": 0.3, "pad_token_id": 0}
    torch.manual_seed(0)
    model = kind(kind.config_class(**sizes, **heads, **changes)).double().eval()
    target, own, words = CausalTarget(model), model.get_output_embeddings(), torch.tensor([3, 8, 41, 90])
    with torch.inference_mode():
        out = model(torch.arange(10, 20)[None], output_hidden_states=True)
        feature, law = out.hidden_states[-1], out.logits.softmax(-1)
        torch.testing.assert_close(target.head(feature).softmax(-1), law)
        among = law[..., words] / law[..., words].sum(-1, keepdim=True)
        torch.testing.assert_close(NarrowHead(target.head, words)(feature).softmax(-1)[..., words], among)
        assert torch.allclose(own(feature).softmax(-1), law) == (not changes)
    assert target.head.weight is own.weight
    assert (target.head is own) == (not changes)


@pytest.mark.parametrize("told", [False, True])
def test_a_mixture_of_experts_says_what_generate_says(told: bool) -> None:
    """In float64, which the usual product of all experts does not take; also where its router is to be told of, for a
    loss that knows no trees."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3, "pad_token_id": 0}
    config = MixtralConfig(**sizes, **heads, num_local_experts=4, eos_token_id=None, output_router_logits=told)
    model = MixtralForCausalLM(config).double().eval()
    pipe = mmspec.load(model, "none")
    asked = {"input_ids": torch.arange(10, 20)[None]}
    with torch.no_grad():
        want = model.generate(**asked, max_new_tokens=20, do_sample=False)[0, 10:].tolist()
    for drafter in ("none", "recycling"):
        found = pipe.with_drafter(drafter, "own").generate(**asked, max_new_tokens=20, temperature=0)
        assert found.token_ids == want
    assert any(found.stats.accept_lengths)


def test_what_a_class_passes_over_is_not_applied() -> None:
    model, _ = tiny_families.gemma3(0, final_logit_softcapping=1.5)
    assert CausalTarget(model).head is model.get_output_embeddings()


def test_encoders_are_no_language_models() -> None:
    """Their padding would be read, so a row of a batch would say something else than alone."""
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    for decoder in (False, True):
        config = RobertaConfig(**sizes, num_attention_heads=4, max_position_embeddings=64, is_decoder=decoder)
        assert CausalLM.serves(config) is decoder
    assert CausalLM.serves(GPTNeoXConfig())  # says that it is none, and is one
    with pytest.raises(UnsupportedError, match="no target serves a model of type RobertaForCausalLM"):
        mmspec.load(
            RobertaForCausalLM(RobertaConfig(**sizes, num_attention_heads=4, architectures=["RobertaForCausalLM"]))
        )


def test_a_model_with_more_than_a_head_takes_no_drafter_on_features() -> None:
    config = ModernBertDecoderConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, pad_token_id=0
    )
    target = CausalLM(ModernBertDecoderForCausalLM(config))
    with pytest.raises(MismatchError, match="has more than a head behind its last hidden state"):
        _ = target.head
    with pytest.raises(MismatchError, match="no drafter on features fits"):
        Eagle(toys.eagle_head(toys.llama())).bind(target)
