"""Published drafters come in and say what a reference forward on their tensors says; ours go out and come back."""

import copy
import json
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import published
import pytest
import taught
import tiny
import tiny_families
import torch
from published import Sample, Text
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import mmspec
from mmspec import cli, registry
from mmspec.checkpoints import load_drafter, save_drafter
from mmspec.drafters.children import Choice
from mmspec.drafters.static import best_tree
from mmspec.errors import CheckpointError, Error, InputError, MismatchError, UnsupportedError
from mmspec.interchange import export as exporting
from mmspec.interchange.export import export
from mmspec.interchange.pickles import convert
from mmspec.interchange.published import tensor_names
from mmspec.safe_files import read_json
from mmspec.sampling import Sampler, Sampling
from mmspec.targets import CausalTarget
from mmspec.training.start import shaped

PROMPT = "what is the value of the red bar?"
SAMPLES: dict[str, Callable[[CausalTarget], Sample]] = {
    "eagle": published.eagle,
    "eagle without bias": lambda target: published.eagle(target, biased=False),
    "eagle of qwen": lambda target: published.eagle(target, qkv=True),
    "eagle3": published.eagle3,
    "eagle3, all words": lambda target: published.eagle3(target, whole=True),
    "eagle3 of speculators": lambda target: published.eagle3(target, speculators=True),
    "medusa": published.medusa,
    "hydra": published.hydra,
    "hydra++": lambda target: published.hydra(target, plus=True),
    "kangaroo": published.kangaroo,
    "dflash": published.dflash,
    "dflash of speculators": lambda target: published.dflash(target, speculators=True),
}


@pytest.fixture(scope="module")
def pipe() -> Any:
    model = tiny.llama_model(layers=8).double()
    return mmspec.load(model, drafter="none", processor=tiny.tokenizer())


def heard(pipe: Any, drafter: Any) -> tuple[list[int], list[int], list[Tensor]]:
    """The text and a drafted chain after a prompt, and the logits [V] of each of its levels."""
    return heard_after(pipe, drafter, pipe.prepare(None, [PROMPT]))


def heard_after(pipe: Any, drafter: Any, inputs: Any) -> tuple[list[int], list[int], list[Tensor]]:
    """The same for a prompt's model inputs."""
    seen: list[Tensor] = []

    class Recorded(Choice):
        def standings(self, logits: Tensor, *others: Any) -> Any:
            seen.append(logits[0, 0].clone())
            return super().standings(logits, *others)

        def children_of_levels(self, logits: Tensor, *others: Any) -> Any:
            seen.extend(logits[0].clone())
            return super().children_of_levels(logits, *others)

    drafter.depth, drafter.width, drafter.top_k, drafter.total = published.LEVELS, 1, 1, 1 + published.LEVELS
    drafter.choice = lambda sampler, kind: Recorded(sampler, kind, pipe.target.placeholders)
    sampler = Sampler(Sampling(), 1, pipe.target.model.device)
    with torch.inference_mode():
        state = pipe.target.prefill({**inputs, "max_new_tokens": 20}, drafter.needs, sampler)
        state.ids[0].append(int(state.pending))
        draft = drafter.begin(state, sampler, "point").propose(state)
    return state.ids[0], draft.tokens[0, 1:].tolist(), seen


def double(tensors: published.Tensors) -> published.Tensors:
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_published_drafter_says_what_its_tensors_say(name: str, pipe: Any, tmp_path: Path) -> None:
    """All levels of a chain, the first on true features, the others on the drafter's own."""
    sample = SAMPLES[name](pipe.target)
    drafter = pipe.with_drafter(sample.write(tmp_path / "published")).drafter
    assert drafter.method == sample.method
    ids, path, seen = heard(pipe, drafter)
    assert len(seen) == len(path) == published.LEVELS
    assert not torch.allclose(seen[0], seen[1])
    for level, logits in enumerate(seen):
        with torch.no_grad():
            expected = sample.says(Text(pipe.target, ids, path[:level]), double(sample.tensors), sample.config)
        torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
        assert int(logits.argmax()) == path[level]


@pytest.mark.parametrize("name", ["eagle3", "hydra++", "medusa"])
def test_a_published_drafter_drafts_losslessly(name: str, pipe: Any, tmp_path: Path) -> None:
    fast = pipe.with_drafter(SAMPLES[name](pipe.target).write(tmp_path / "published"), shape="own")
    for temperature in (0.0, 1.0):
        options = {"max_new_tokens": 12, "temperature": temperature}
        assert fast(prompt=PROMPT, **options).token_ids == pipe(prompt=PROMPT, **options).token_ids


@pytest.mark.parametrize("name", SAMPLES)
def test_a_published_drafter_learns_on(name: str, pipe: Any, tmp_path: Path) -> None:
    """All of its weights, in the form that it was published in; the recipe's settings are none of its own."""
    sample, target = SAMPLES[name](pipe.target), pipe.target
    start = load_drafter(sample.write(tmp_path / "published"), target)
    whole = set(start.net.state_dict())
    net = taught.recipe_of(sample.method).begin(start, target)
    recipe = shaped(taught.recipe_of(sample.method), net)
    rows, features = taught.studied(target, pipe.prepare(None, [PROMPT] * 2), [[*range(20, 32)], [*range(40, 52)]])
    loss = recipe.loss(net, taught.Single(target.head, target.embed), features)
    optimizer, seen = torch.optim.Adam(net.parameters(), 0.01), []
    for _ in range(6):
        value = loss(position=torch.zeros(1), rows=rows)
        optimizer.zero_grad()
        value.backward()
        assert all(weight.grad is not None and weight.grad.any() for weight in net.parameters())
        optimizer.step()
        seen.append(value.item())
    assert seen[-1] < seen[0]
    save_drafter(recipe.drafter(net), tmp_path / "learnt", target)
    assert set(load_drafter(tmp_path / "learnt", target).net.state_dict()) == whole


def test_one_layout_at_most_knows_a_folder(pipe: Any) -> None:
    layouts: dict[str, Any] = {
        key: registry.resolve("layouts", key.partition("/")[2], key.partition("/")[0])
        for key in registry.entries("layouts")
    }
    models = [({"model_type": "llama"}, set(pipe.target.model.state_dict())), ({}, set())]
    for make in SAMPLES.values():
        sample = make(pipe.target)
        found = [key for key, layout in layouts.items() if layout.recognises(sample.config, set(sample.tensors))]
        assert len(found) == 1, found
    for config, names in models:
        assert not any(layout.recognises(config, names) for layout in layouts.values())


def test_without_a_layout_a_model_s_folder_is_an_independent_drafter(pipe: Any, tmp_path: Path) -> None:
    assert pipe.with_drafter(tiny.tiny_llama(tmp_path / "small")).drafter.method == "spd"


# What does not fit


def other(width: int) -> Tensor:
    return torch.zeros(width, width)


REFUSED: dict[str, tuple[Callable[[CausalTarget], Sample], dict[str, Any], dict[str, Any], type[Error], str]] = {
    "features of another size": (published.eagle, {}, {"hidden_size": 64}, MismatchError, "size 64, the target has 32"),
    "no size": (published.eagle, {}, {"intermediate_size": None}, CheckpointError, "does not state intermediate_size"),
    "biases without tensors": (
        published.eagle3,
        {},
        {"attention_bias": True},
        CheckpointError,
        r"config.json asks for attention.k_proj.bias, of which its layout knows no tensor",
    ),
    "another width": (published.eagle, {}, {"intermediate_size": 40}, MismatchError, r"\[48, 32\].*need \[40, 32\]"),
    "more heads": (published.eagle, {}, {"num_key_value_heads": 4}, MismatchError, r"k_proj.*\[16, 32\].*\[32, 32\]"),
    "another vocabulary": (
        published.eagle,
        {"embed_tokens__weight": None},
        {"vocab_size": 31999},
        MismatchError,
        "vocabulary of 31999, the target has 300",
    ),
    "other embeddings": (
        published.eagle,
        {"embed_tokens__weight": torch.ones(300, 32)},
        {},
        MismatchError,
        "embed_tokens.weight .* is not the target's",
    ),
    "narrow embeddings": (
        published.eagle,
        {"embed_tokens__weight": torch.ones(300, 16)},
        {},
        MismatchError,
        r"\[300, 16\], the target's \[300, 32\]",
    ),
    "two layers": (published.eagle, {}, {"num_hidden_layers": 2}, MismatchError, "num_hidden_layers = 2; only 1"),
    "positions of a kind of their own": (
        published.eagle,
        {},
        {"rope_scaling": {"type": "spiral"}},
        MismatchError,
        "positions of type 'spiral'",
    ),
    "another activation": (published.eagle, {}, {"hidden_act": "gelu"}, MismatchError, "'gelu': only 'silu'"),
    "not finite": (published.eagle, {"fc__bias": torch.full((32,), torch.nan)}, {}, CheckpointError, "fc.bias is not"),
    "a tensor more": (
        published.eagle3,
        {"fc_norm__0__weight": other(32)},
        {},
        CheckpointError,
        "fc_norm.0.weight among",
    ),
    "a tensor less": (published.eagle3, {"norm__weight": None}, {}, CheckpointError, "lacks the tensor norm.weight"),
    "no head": (published.eagle3, {"lm_head__weight": None}, {}, CheckpointError, "lacks the tensor lm_head.weight"),
    "a norm before fc": (published.eagle3, {}, {"norm_before_fc": True}, MismatchError, "norm_before_fc = True; only"),
    "a normed state fed back, or an old file": (
        published.eagle3,
        {},
        {"norm_output": True},
        MismatchError,
        r"norm_output = True; only False .* EAGLE-3\.1 .* SpecForge .* before September 2026 .* set it to false",
    ),
    "a normed state fed back": (
        lambda target: published.eagle3(target, speculators=True),
        {},
        {"norm_output": True},
        MismatchError,
        "norm_output = True; only False",
    ),
    "words that are not stated": (
        published.eagle3,
        {},
        {"draft_vocab_size": 64},
        MismatchError,
        "of 64, .* has 60 rows",
    ),
    "words of no id": (
        published.eagle3,
        {"d2t": None, "t2d": None},
        {},
        MismatchError,
        "vocabulary of 60 and no d2t; the target has 300",
    ),
    "words twice": (published.eagle3, {"d2t": -torch.arange(60), "t2d": None}, {}, MismatchError, "ids from 0 to 0"),
    "two vocabularies": (published.eagle3, {"t2d": torch.zeros(300).bool()}, {}, CheckpointError, "d2t and t2d"),
    "no such layer": (
        published.eagle3,
        {},
        {"eagle_aux_hidden_state_layer_ids": [2, 3, 9]},
        MismatchError,
        r"\[2, 3, 9\], the target has 8 layers",
    ),
    "heads that see no draft": (
        published.hydra,
        {},
        {"grounded_heads": False},
        MismatchError,
        "grounded_heads = False",
    ),
    "an earlier feature": (published.hydra, {}, {"hidden_state_offset": 1}, MismatchError, "hidden_state_offset = 1"),
    "another kind of head": (published.hydra, {}, {"hydra_head_arch": "cross-attn"}, CheckpointError, "'cross-attn'"),
    "a projection of another vocabulary": (
        published.medusa,
        {"1__2__weight": torch.zeros(280, 32)},
        {},
        MismatchError,
        r"1.2.weight .*\[280, 32\].*\[300, 32\]",
    ),
    "no exit layer": (published.kangaroo, {}, {"exit_layer": None}, CheckpointError, 'add "exit_layer"'),
    "no mask": (
        published.dflash,
        {},
        {"dflash_config": {"target_layer_ids": [1], "block_size": 4}},
        CheckpointError,
        "mask_t",
    ),
    "another output head": (
        lambda target: published.dflash(target, speculators=True),
        {"lm_head__weight": torch.ones(60, 32)},
        {},
        MismatchError,
        "lm_head.weight .* is not the target's",
    ),
    "sliding windows": (
        published.dflash,
        {},
        {"layer_types": ["sliding_attention", "full_attention"]},
        MismatchError,
        "sliding_attention; only",
    ),
    "attention that looks back only": (
        published.dflash,
        {},
        {"dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 7, "block_size": 5, "causal": True}},
        MismatchError,
        "causal = True; drafters without it",
    ),
    "attention sinks": (
        published.dflash,
        {},
        {"dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 7, "block_size": 5, "attention_sink_bias": 1}},
        MismatchError,
        "attention_sink_bias = 1; drafters",
    ),
    "windows of the block": (
        published.dflash,
        {},
        {"dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 7, "block_size": 5, "use_swa": True}},
        MismatchError,
        "use_swa = True; drafters",
    ),
    "windows that layers do not name": (
        published.dflash,
        {},
        {"use_sliding_window": True},
        MismatchError,
        "use_sliding_window = True; drafters",
    ),
    "every slot drafts": (
        lambda target: published.dflash(target, speculators=True),
        {},
        {"sample_from_anchor": True},
        MismatchError,
        "sample_from_anchor = True",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_both_values(case: str, pipe: Any, tmp_path: Path) -> None:
    make, tensors, config, kind, words = REFUSED[case]
    folder = make(pipe.target).but(**tensors).write(tmp_path / "published", **config)
    with pytest.raises(kind, match=words) as caught:
        pipe.with_drafter(folder)
    assert type(caught.value) is kind


def test_weights_too_large_for_the_target_s_numbers_are_refused(pipe: Any, tmp_path: Path) -> None:
    half = mmspec.load(copy.deepcopy(pipe.target.model).half(), "none", processor=pipe.processor)
    folder = published.eagle(pipe.target).but(fc__bias=torch.full((32,), 1e6)).write(tmp_path / "published")
    with pytest.raises(CheckpointError, match=r"too large for torch.float16: fc.bias is not finite"):
        half.with_drafter(folder)


def test_a_published_configuration_that_makes_no_sense_is_one_clear_error(pipe: Any, tmp_path: Path) -> None:
    folder = published.dflash(pipe.target).write(tmp_path / "published", dflash_config=["of", "another", "shape"])
    with pytest.raises(CheckpointError, match="the drafter in .*published cannot be loaded"):
        pipe.with_drafter(folder)


def test_what_dflash_does_not_ask_for_is_no_mismatch(pipe: Any, tmp_path: Path) -> None:
    sample = published.dflash(pipe.target)
    own = {**sample.config["dflash_config"], "causal": False, "use_swa": False, "attention_sink_bias": None}
    folder = sample.write(tmp_path / "published", dflash_config=own, use_sliding_window=False)
    assert pipe.with_drafter(folder).drafter.method == "dflash"


@pytest.mark.parametrize("stated", [{"type": "mrope"}, {"rope_type": "mrope"}, {"rope_type": "default"}])
@pytest.mark.parametrize("make", [published.eagle, published.eagle3])
def test_positions_on_three_axes_are_plain_where_text_is_drafted(
    make: Any, stated: dict[str, str], pipe: Any, tmp_path: Path
) -> None:
    sample = make(pipe.target)
    plain = pipe.with_drafter(sample.write(tmp_path / "plain")).drafter
    folder = sample.write(tmp_path / "axes", rope_scaling={**stated, "mrope_section": [1, 1, 2]})
    for one, other in zip(heard(pipe, plain), heard(pipe, pipe.with_drafter(folder).drafter), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_layers_in_eagle_config_are_those_that_a_state_leaves_if_they_begin_with_1(pipe: Any, tmp_path: Path) -> None:
    """Others, and all in the field of vLLM and speculators, are those that a state enters."""
    sample, name = published.eagle3(pipe.target), "eagle_aux_hidden_state_layer_ids"
    entered = pipe.with_drafter(sample.write(tmp_path / "entered", **{name: [2, 4, 7]})).drafter
    left = pipe.with_drafter(sample.write(tmp_path / "left", eagle_config={name: [1, 3, 6]})).drafter
    within = pipe.with_drafter(sample.write(tmp_path / "within", eagle_config={name: [2, 4, 7]})).drafter
    assert left.net.settings["taps"] == within.net.settings["taps"] == entered.net.settings["taps"] == [2, 4, 7]
    for one, other in zip(heard(pipe, entered), heard(pipe, left), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    outside = pipe.with_drafter(sample.write(tmp_path / "outside", **{name: [1, 3, 6]})).drafter
    assert outside.net.settings["taps"] == [1, 3, 6]
    for config in ({name: []}, {"use_aux_hidden_state": True}, None):
        drafter = pipe.with_drafter(sample.write(tmp_path / "silent", eagle_config=config)).drafter
        assert drafter.net.settings["taps"] == [2, 4, 5]


@pytest.mark.parametrize("speculators", [False, True])
def test_a_head_whose_state_is_fed_back_as_it_is_may_say_so(speculators: bool, pipe: Any, tmp_path: Path) -> None:
    sample = published.eagle3(pipe.target, speculators)
    sample.config.pop("norm_output", None)
    silent = pipe.with_drafter(sample.write(tmp_path / "silent")).drafter
    told = pipe.with_drafter(sample.write(tmp_path / "told", norm_output=False)).drafter
    for one, other in zip(heard(pipe, silent), heard(pipe, told), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("make", [published.medusa, published.hydra])
def test_published_heads_start_with_a_tree_like_the_published_one(make: Any, pipe: Any, tmp_path: Path) -> None:
    """In nodes by level, which shares that are alike on all levels would put on the last one."""
    shares = pipe.with_drafter(make(pipe.target).write(tmp_path / "published")).drafter.shares
    counts = Counter(node.level for node in best_tree(shares, 64, 4, 10))
    found = [counts[level] for level in range(1, 5)]
    assert sum(abs(ours - theirs) for ours, theirs in zip(found, (10, 28, 23, 2), strict=True)) <= 4


def test_padding_of_the_vocabulary_is_no_mismatch(pipe: Any, tmp_path: Path) -> None:
    sample = published.eagle(pipe.target)
    table = sample.tensors["embed_tokens.weight"]
    folder = sample.but(embed_tokens__weight=table[:290].clone()).write(tmp_path / "fewer", vocab_size=290)
    assert pipe.with_drafter(folder).drafter.method == "eagle2"
    rounded = sample.but(embed_tokens__weight=table.bfloat16())
    assert pipe.with_drafter(rounded.write(tmp_path / "rounded")).drafter.method == "eagle2"


# Pickles


def test_pickled_weights_are_converted_under_their_names(pipe: Any, tmp_path: Path) -> None:
    sample = published.medusa(pipe.target)
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text(json.dumps(sample.config))
    torch.save(sample.tensors, tmp_path / "pickled" / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match="for a drafter, mmspec convert"):
        pipe.with_drafter(tmp_path / "pickled")
    folder = convert(tmp_path / "pickled", tmp_path / "safe")
    assert tensor_names(folder) == set(sample.tensors)
    assert json.loads((folder / "config.json").read_text()) == sample.config
    assert heard(pipe, pipe.with_drafter(folder).drafter)[0]
    with pytest.raises(CheckpointError, match="nothing to convert"):
        convert(folder, tmp_path / "again")


class Evil:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('code ran')",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (Evil(), "holds more than tensors"),
        ([1, 2], "no table of named tensors"),
        ({"a": {"b": 1}}, "no table of named"),
    ],
)
def test_a_pickle_of_anything_but_tensors_is_refused(content: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=words):
        convert(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps("x", protocol=2)[:-3])
    with pytest.raises(CheckpointError):
        convert(tmp_path, tmp_path / "out")


# Export


def trained(method: str, pipe: Any) -> Any:
    drafter = taught.drafter(method, taught.network(method, pipe.target))
    drafter.bind(pipe.target)
    return drafter


def common(kind: str, name: str, tokens: int) -> dict[str, Any]:
    """What every configuration of speculators says."""
    return {
        "architectures": [name],
        "speculators_model_type": kind,
        "speculators_version": exporting.VERSION,
        "tie_word_embeddings": False,
        "target_hidden_size": None,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
        },
    }


def written(folder: Path) -> tuple[dict[str, Any], dict[str, list[int]]]:
    config = json.loads((folder / "config.json").read_text())
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return config, {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


LAYER = {
    "layers.0.self_attn.o_proj.weight": [32, 32],
    "layers.0.post_attention_layernorm.weight": [32],
    "layers.0.mlp.gate_proj.weight": [64, 32],
    "layers.0.mlp.up_proj.weight": [64, 32],
    "layers.0.mlp.down_proj.weight": [32, 64],
}


def test_an_export_of_eagle3_is_what_speculators_expects(pipe: Any, tmp_path: Path) -> None:
    recipe = taught.recipe_of("eagle3", words=40, seed=3)
    drafter = taught.drafter("eagle3", recipe.build(pipe.target).double())
    drafter.bind(pipe.target)
    config, shapes = written(export(drafter, pipe.target, "some/target", "speculators", tmp_path / "out"))
    layer = config.pop("transformer_layer_config")
    assert config.pop("transformers_version")
    assert config == common("eagle3", "Eagle3Speculator", 5) | {
        "draft_vocab_size": 40,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "embed_requires_grad": False,
        "fc_norm": False,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": False,
    }
    assert (layer["model_type"], layer["num_hidden_layers"]) == ("llama", 1)
    assert (layer["vocab_size"], layer["hidden_size"], layer["head_dim"]) == (300, 32, 8)
    assert shapes == LAYER | {
        "fc.weight": [32, 96],
        "norm.weight": [32],
        "lm_head.weight": [40, 32],
        "d2t": [40],
        "t2d": [300],
        "layers.0.hidden_norm.weight": [32],
        "layers.0.input_layernorm.weight": [32],
        "layers.0.self_attn.q_proj.weight": [32, 64],
        "layers.0.self_attn.k_proj.weight": [16, 64],
        "layers.0.self_attn.v_proj.weight": [16, 64],
    }
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert (weights["d2t"].dtype, weights["t2d"].dtype) == (torch.int64, torch.bool)
    assert (torch.arange(40) + weights["d2t"]).tolist() == weights["t2d"].nonzero()[:, 0].tolist()


def test_an_export_of_dflash_is_what_speculators_expects(pipe: Any, tmp_path: Path, caplog: Any) -> None:
    drafter = trained("dflash", pipe)
    taps = drafter.net.settings["taps"]
    config, shapes = written(export(drafter, pipe.target, "some/target", "speculators", tmp_path / "out"))
    assert config.pop("transformer_layer_config")["model_type"] == "qwen3"
    assert config.pop("transformers_version")
    mask = tiny.tokenizer().pad_token_id
    assert config == common("dflash", "DFlashSpeculator", 5) | {
        "aux_hidden_state_layer_ids": taps,
        "block_size": 6,
        "draft_vocab_size": 300,
        "mask_token_id": mask,
        "sample_from_anchor": False,
        "sliding_window_non_causal": False,
    }
    assert shapes == LAYER | {
        "fc.weight": [32, 32 * len(taps)],
        "hidden_norm.weight": [32],
        "norm.weight": [32],
        "layers.0.input_layernorm.weight": [32],
        "layers.0.self_attn.q_proj.weight": [32, 32],
        "layers.0.self_attn.k_proj.weight": [16, 32],
        "layers.0.self_attn.v_proj.weight": [16, 32],
        "layers.0.self_attn.q_norm.weight": [8],
        "layers.0.self_attn.k_norm.weight": [8],
        "embed_tokens.weight": [300, 32],
        "lm_head.weight": [300, 32],
    }
    assert f"puts the embedding of token {mask} there, and drafts worse" in caplog.text
    caplog.clear()
    frozen = trained("dflash", pipe)
    with torch.no_grad():
        frozen.net.mask.copy_(pipe.target.embed.weight[mask])
    export(frozen, pipe.target, "some/target", "speculators", tmp_path / "frozen")
    assert not caplog.records  # what stands in a masked slot is in everybody's table
    table = load_file(tmp_path / "out" / "model.safetensors")["embed_tokens.weight"]
    torch.testing.assert_close(table[mask], drafter.net.mask.detach())
    table[mask] = pipe.target.embed.weight[mask]
    torch.testing.assert_close(table, pipe.target.embed.weight.detach())


@pytest.mark.parametrize(
    ("method", "form"),
    [
        ("eagle3", "speculators"),
        ("dflash", "speculators"),
        ("eagle3", "eagle"),
        ("eagle2", "eagle"),
        ("eagle", "eagle"),
    ],
)
def test_what_goes_out_comes_back_the_same(method: str, form: str, pipe: Any, tmp_path: Path) -> None:
    drafter = trained(method, pipe)
    if method == "eagle":  # its own tree is static: compare the network alone
        drafter = taught.drafter("eagle2", drafter.net)
        drafter.bind(pipe.target)
    folder = export(drafter, pipe.target, "some/target", form, tmp_path / "out")
    back = pipe.with_drafter(folder).drafter
    for one, other in zip(heard(pipe, drafter), heard(pipe, back), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["eagle2", "eagle3"])
@pytest.mark.parametrize("scaled", [False, True])
def test_positions_go_out_under_the_names_that_eagle_s_own_programs_know(
    method: str, scaled: bool, pipe: Any, tmp_path: Path
) -> None:
    drafter, scaling = trained(method, pipe), {"rope_type": "linear", "factor": 4.0} if scaled else None
    drafter.net.config.rope_parameters = {**(scaling or {"rope_type": "default"}), "rope_theta": 5e5}
    folder = export(drafter, pipe.target, "some/target", "eagle", tmp_path / "out")
    config = read_json(folder / "config.json")
    assert (config["rope_theta"], config["rope_scaling"]) == (5e5, scaling)
    del config["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(config))
    read = pipe.with_drafter(folder).drafter.net.config.rope_parameters
    assert read == drafter.net.config.rope_parameters


@pytest.fixture(scope="module")
def scaling() -> Any:
    """A target that multiplies what it looks up."""
    model, processor = tiny_families.gemma3(0, num_hidden_layers=8, layer_types=["full_attention"] * 8)
    return mmspec.load(model, drafter="none", processor=processor)


SCALED = [("eagle2", "eagle"), ("eagle3", "eagle"), ("eagle3", "speculators"), ("dflash", "speculators")]


@pytest.mark.parametrize(("method", "form"), SCALED)
def test_embeddings_go_out_as_they_are_read_and_come_back_so_or_bare(
    method: str, form: str, scaling: Any, tmp_path: Path, caplog: Any
) -> None:
    drafter, embed, name = trained(method, scaling), scaling.target.embed, "embed_tokens.weight"
    folder = export(drafter, scaling.target, "some/target", form, tmp_path / "out")
    tensors, mask = load_file(folder / "model.safetensors"), written(folder)[0].get("mask_token_id", 0)
    with torch.no_grad():
        rest = torch.arange(len(embed.weight)) != mask
        torch.testing.assert_close(tensors[name][rest], embed(rest.nonzero()[:, 0]))
    caplog.clear()
    said = heard(scaling, drafter)
    for one, other in zip(said, heard(scaling, scaling.with_drafter(folder).drafter), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert not caplog.records

    save_file({**tensors, name: tensors[name] / 32**0.5}, folder / "model.safetensors")
    for one, other in zip(said, heard(scaling, scaling.with_drafter(folder).drafter), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)  # the scale is measured
    assert "which the target multiplies by 5.657" in caplog.text
    save_file({**tensors, name: tensors[name] / 2}, folder / "model.safetensors")
    with pytest.raises(MismatchError, match="is not the target's"):
        scaling.with_drafter(folder)


def test_a_bias_that_others_do_not_read_is_told(pipe: Any, tmp_path: Path, caplog: Any) -> None:
    drafter = trained("eagle2", pipe)
    drafter.net.fc.bias.data.zero_()
    assert "eagle_fc_bias" not in written(export(drafter, pipe.target, "it", "eagle", tmp_path / "none"))[0]
    assert not caplog.records
    drafter.net.fc.bias.data += 1
    assert written(export(drafter, pipe.target, "it", "eagle", tmp_path / "some"))[0]["eagle_fc_bias"] is True
    assert len(caplog.records) == 1
    assert "a bias behind fc" in caplog.text


def test_biases_go_out_and_come_back(pipe: Any, tmp_path: Path) -> None:
    drafter = pipe.with_drafter(published.eagle(pipe.target, qkv=True).write(tmp_path / "published")).drafter
    back = pipe.with_drafter(export(drafter, pipe.target, "it", "eagle", tmp_path / "out")).drafter
    for one, other in zip(heard(pipe, drafter), heard(pipe, back), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    drafter.net.layer.self_attn.o_proj.bias.data += 1
    with pytest.raises(MismatchError, match="a bias behind its attention"):
        export(drafter, pipe.target, "it", "eagle", tmp_path / "out")


def test_what_a_format_cannot_say_is_refused(pipe: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'medusa' cannot be written in the format 'speculators'"):
        export(trained("medusa", pipe), pipe.target, "it", "speculators", tmp_path / "out")
    with pytest.raises(UnsupportedError, match="format 'gguf'; there are speculators: eagle3, dflash; eagle:"):
        export(trained("eagle3", pipe), pipe.target, "it", "gguf", tmp_path / "out")
    middling = mmspec.load(tiny.llama_model(layers=6).double(), drafter="none", processor=tiny.tokenizer())
    with pytest.raises(MismatchError, match=r"\[2, 3, 3\]; this format wants different ones"):
        export(trained("eagle3", middling), middling.target, "it", "speculators", tmp_path / "out")
    with pytest.raises(UnsupportedError, match="'medusa' cannot be written for other programs; there are speculators:"):
        export(trained("medusa", pipe), pipe.target, "it", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_the_refusal_of_a_shallow_target_s_drafter_names_works(tmp_path: Path) -> None:
    shallow = mmspec.load(tiny.llama_model().double(), drafter="none", processor=tiny.tokenizer())
    drafter = trained("eagle3", shallow)
    told = r"\[2, 1, 0\]; the last one, 2, .* too few layers .*: --format int8"
    with pytest.raises(MismatchError, match=told):
        export(drafter, shallow.target, "it", "speculators", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    packed = export(drafter, shallow.target, "it", "int8", tmp_path / "out")
    assert shallow.with_drafter(packed).drafter.net.settings["taps"] == [2, 1, 0]


def test_a_drafter_goes_out_in_the_first_format_that_has_it(pipe: Any, tmp_path: Path) -> None:
    drafter = pipe.with_drafter(published.eagle(pipe.target).write(tmp_path / "published")).drafter
    for form in (None, "eagle"):
        export(drafter, pipe.target, "it", form, tmp_path / f"out-{form}")
    one, other = ((tmp_path / f"out-{form}" / "config.json").read_text() for form in (None, "eagle"))
    assert one == other


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["mmspec", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_the_commands_convert_and_export(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    tiny.llama_model(layers=8).save_pretrained(target)
    tiny.tokenizer().save_pretrained(target)
    sample = published.kangaroo(pipe.target)
    (tmp_path / "pickled").mkdir()
    config = {name: value for name, value in sample.config.items() if name != "exit_layer"}
    (tmp_path / "pickled" / "config.json").write_text(json.dumps(config))
    torch.save(sample.tensors, tmp_path / "pickled" / "pytorch_model.bin")
    assert command(monkeypatch, "convert", tmp_path / "pickled", "--out", tmp_path / "safe", "--exit-layer", 2) == 0
    assert mmspec.load(target, drafter=tmp_path / "safe").drafter.net.settings["exit_layer"] == 2
    head = published.eagle3(pipe.target).write(tmp_path / "head")
    assert command(monkeypatch, "export", head, "--target", target, "--out", tmp_path / "out", "--verifier", "a/b") == 0
    assert written(tmp_path / "out")[0]["speculators_config"]["verifier"]["name_or_path"] == "a/b"
    capfd.readouterr()
    assert command(monkeypatch, "export", tmp_path / "safe", "--target", target, "--out", tmp_path / "no") == 2
    assert "'kangaroo' cannot be written" in capfd.readouterr().err


def test_a_hub_id_is_downloaded_with_its_pickles_only_to_convert(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[str]] = []

    def snapshot(name: str, repo_type: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert any(fnmatch("consolidated.safetensors", pattern) for pattern in ignore_patterns)
        assert repo_type == "model"
        asked.append(allow_patterns)
        (tmp_path / "config.json").write_text("{}")
        torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    convert("some/drafter", tmp_path / "out")
    assert "*.bin" in asked[0]
    mmspec.checkpoints.locate("drafter", "some/drafter", [])
    assert not any(pattern.endswith((".bin", ".pt")) for pattern in asked[1])
    with pytest.raises(InputError, match="is a file"):
        convert(tmp_path / "config.json", tmp_path / "out")


def test_drafters_of_models_that_make_no_text_are_not_for_other_programs(tmp_path: Path) -> None:
    target = SimpleNamespace(makes="picture", model=object())
    with pytest.raises(UnsupportedError, match="makes a picture: there is int8 alone"):
        export(object(), target, "janus", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()
