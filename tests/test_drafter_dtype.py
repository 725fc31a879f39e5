"""Drafters with rounded weights: what rounding may change (how often a draft is right), what it may not (outputs, the
target, what lies on the disk), and that q says which law was drawn from."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sights
import taught
import test_drafters
import test_engine
import test_equality
import test_image_eagle
import test_speech_whisper
import tiny
import tiny_images
import tiny_mar
import tiny_musicgen
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from made import Made
from taught import METHODS
from test_drafters import Watched
from torch import Tensor, nn
from torch.nn.functional import linear

import mmspec
from mmspec import cli
from mmspec.acceptance.ratio import Ratio, without
from mmspec.benchmarks import memory
from mmspec.benchmarks.methods import methods
from mmspec.benchmarks.rows import in_dtype, row
from mmspec.checkpoints import load_drafter, save_drafter
from mmspec.contract import Draft, State
from mmspec.drafters import precision
from mmspec.drafters.eagle import Eagle
from mmspec.drafters.hybrid import Hybrid
from mmspec.drafters.independent import Independent
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.precision import (
    FORMATS,
    CastLinear,
    Int8Linear,
    convert,
    is_lowered,
    lower,
    read_format,
    weight_bytes,
)
from mmspec.drafters.vocabulary import WordRows
from mmspec.errors import CheckpointError, InputError, MismatchError
from mmspec.image_ar.continuous import Conditioned
from mmspec.image_ar.eagle_window import EagleSharing
from mmspec.image_ar.mar import MarTarget
from mmspec.image_ar.mar_drafter import MarDrafter
from mmspec.sampling import Sampler, Sampling
from mmspec.speech.small_musicgen import SmallMusicgen
from mmspec.speech.specasr import SpecASR
from mmspec.speech.ssd import SSD, own_weights, shortened
from mmspec.targets import CausalTarget

LENGTHS = (17, 9, 14)
WARM = Sampling(temperature=1.0, seed=5)
HALF = [torch.int8, torch.bfloat16]


def drafter_of(method: str, target: CausalTarget, **options: Any) -> Any:
    """A random drafter of a method, float64, bound."""
    found = sights if method in sights.METHODS else taught
    made: Any = found.drafter(method, found.network(method, target), **options)
    made.bind(target)
    return made


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of three values instead of 255, so that the rounded network says something else."""
    monkeypatch.setattr(precision, "MOST", 1)


# One layer


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 6),
    columns=st.integers(1, 40),
    size=st.sampled_from([1e-6, 0.03, 1.0, 3e4]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
def test_a_weight_is_half_a_step_off_at_most(
    seed: int, rows: int, columns: int, size: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    weight = (size * torch.rand(rows, columns, dtype=torch.float64) * 2 - size).to(dtype)
    layer = Int8Linear(weight, None)
    assert layer.weight.dtype == torch.int8
    assert layer.weight.abs().max() <= 127
    off = (weight.double() - layer.weight.double() * layer.scale.double()).abs()
    assert (off <= layer.scale.double() / 2 * (1 + 1e-4)).all()
    assert torch.allclose(layer.scale[:, 0].double() * 127, weight.double().abs().amax(1), rtol=1e-6)


def test_rows_of_zeros_stay_zeros() -> None:
    weight = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5]])
    layer = Int8Linear(weight, nn.Parameter(torch.tensor([3.0, 4.0])))
    assert layer.weight.tolist() == [[0, 0, 0], [64, -127, 32]]
    assert torch.equal(layer(torch.ones(2, 3))[:, 0], torch.full((2,), 3.0))


def test_a_row_does_not_spoil_another() -> None:
    """One scale for all would leave nothing of the first row."""
    weight = torch.tensor([[0.001, -0.002], [1000.0, 500.0]])
    layer = Int8Linear(weight, None)
    assert torch.allclose(layer.weight * layer.scale, weight, rtol=0.01)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_an_int8_layer_is_that_of_the_rounded_weights(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    full, x = nn.Linear(48, 20, bias=bias, dtype=dtype), torch.randn(2, 3, 48, dtype=dtype)
    layer = Int8Linear(full.weight, full.bias)
    out, exact = layer(x), full(x).double()
    assert out.dtype == dtype
    room = x.double().abs().sum(-1, keepdim=True) * layer.scale[:, 0].double() / 2
    rounding = 4 * torch.finfo(dtype).eps * (x.double().abs() @ full.weight.double().abs().T + 1)
    assert ((out.double() - exact).abs() <= room + rounding).all()
    if dtype == torch.float64:
        assert torch.allclose(out, linear(x, layer.weight * layer.scale, full.bias), rtol=1e-12, atol=1e-12)
        assert not torch.allclose(out, exact, rtol=1e-4)


def test_the_product_is_scaled_and_not_the_matrix() -> None:
    """Of the matrix there is one copy, in the dtype of the input, and not a scaled one."""
    layer, x = Int8Linear(torch.randn(20, 48), nn.Parameter(torch.randn(20))), torch.randn(3, 48)
    with Made() as made:
        layer(x)
    assert [name for name, size in made.made if size == 20 * 48] == ["aten::_to_copy"]


@pytest.mark.parametrize("size", [1e-4, 30.0, 5000.0])
def test_large_and_small_inputs_fit_into_float16(size: float) -> None:
    """Sums of whole numbers alone would not: 127 a thousand times is more than the largest one."""
    weight = torch.full((2, 1024), 0.01, dtype=torch.float16)
    out = Int8Linear(weight, None)(torch.full((1, 1024), size, dtype=torch.float16))
    assert torch.allclose(out.float(), torch.tensor(size * 0.01 * 1024), rtol=0.01)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inside", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_cast_layer_takes_and_gives_the_dtype_of_its_input(
    dtype: torch.dtype, inside: torch.dtype, bias: bool
) -> None:
    torch.manual_seed(0)
    full, x = nn.Linear(48, 20, bias=bias, dtype=dtype), torch.randn(2, 3, 48, dtype=dtype)
    layer = CastLinear(full.weight, full.bias, inside)
    out = layer(x)
    assert (out.dtype, layer.weight.dtype) == (dtype, inside)
    eps = max(torch.finfo(inside).eps, torch.finfo(dtype).eps)
    assert torch.allclose(out.double(), full(x).double(), atol=8 * eps, rtol=8 * eps)


# A network


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16])
@pytest.mark.parametrize("method", [*METHODS, *sights.METHODS])
def test_every_own_layer_is_converted_and_nothing_of_the_target(method: str, dtype: torch.dtype) -> None:
    _, target = test_equality.make("smolvlm")
    before = {name: weight.clone() for name, weight in target.model.state_dict().items()}
    made = drafter_of(method, target)
    rest = {
        name: value.clone()
        for module, part in made.net.named_modules()
        if not isinstance(part, nn.Linear | WordRows)
        for name, value in ((f"{module}.{own}", value) for own, value in part.named_parameters(recurse=False))
    }
    bytes_before = weight_bytes(made.net)
    lower(made, target, dtype)
    kinds = {type(part) for part in made.net.modules()}
    assert (Int8Linear if dtype == torch.int8 else CastLinear) in kinds
    assert not kinds & {nn.Linear, WordRows}
    assert is_lowered(made)
    assert weight_bytes(made.net) < bytes_before * (0.25 if dtype == torch.int8 else 0.4)  # from eight bytes each
    after = dict(made.net.named_parameters())
    assert all(torch.equal(after[name.removeprefix(".")], value) for name, value in rest.items())
    assert type(target.head) is nn.Linear
    assert before.keys() == target.model.state_dict().keys()
    assert all(torch.equal(before[name], weight) for name, weight in target.model.state_dict().items())


def test_a_layer_in_two_places_stays_one() -> None:
    shared = nn.Linear(8, 8)
    net = nn.ModuleDict({"one": shared, "two": nn.Sequential(shared, nn.Linear(8, 3))})
    assert convert(net, torch.int8) == 2
    assert net["one"] is net["two"][0]
    assert weight_bytes(net) == 8 * 8 + 3 * 8 + 2 * 4 * (8 + 3)  # weights, then scales and biases


def test_weights_that_are_the_targets_stay() -> None:
    """A shortened target drafts: its upper layers are the target's own tensors."""
    speaker = tiny.llama_model()
    made = SSD(shortened(speaker, own=1, shared=[1]))
    lower(made, SimpleNamespace(model=speaker), torch.int8)
    kinds = {
        name.split(".")[2]: type(layer)
        for name, layer in made.net.named_modules()
        if name.startswith("model.layers.") and name.endswith("_proj")
    }
    assert kinds == {"0": Int8Linear, "1": nn.Linear}
    assert type(made.net.lm_head) is Int8Linear
    assert own_weights(made.net).keys().isdisjoint(speaker.state_dict().keys() - made.net.state_dict().keys())


def test_the_dtype_that_it_has_already_changes_nothing() -> None:
    _, target = test_equality.make("simple")
    made = drafter_of("eagle2", target)
    made.net.float()
    layers = list(made.net.modules())
    lower(made, target, torch.float32)
    assert list(made.net.modules()) == layers
    assert not is_lowered(made)


# What comes out


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("method", [*METHODS, *sights.METHODS, "spd", "hybrid"])
def test_the_output_is_that_of_the_loop(method: str, dtype: torch.dtype) -> None:
    """Greedy and sampled at one seed, in a batch whose rows have pictures."""
    model, target = test_equality.make("smolvlm")
    inputs = test_equality.inputs_for(target, *LENGTHS)
    if method in ("spd", "hybrid"):
        made: Any = Independent(toys.perturbed(toys.language_part(model), 0.05), length=3)
        made = Hybrid(made) if method == "hybrid" else made
        made.bind(target)
    else:
        made = drafter_of(method, target, depth=3, total=8)
    lower(made, target, dtype)
    for sampling in (Sampling(), WARM):
        want = toys.answer(target, NoDrafter(), inputs, 10, sampling).rows
        assert toys.answer(target, made, inputs, 10, sampling).rows == want


@pytest.mark.parametrize("dtype", [*HALF, torch.float16, torch.float32])
@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["T0", "T1"])
def test_drafts_are_rejected_kept_in_part_and_kept_whole(sampling: Sampling, dtype: torch.dtype) -> None:
    """Chains of a head that is always right, trees of one that errs."""
    inputs = toys.prompts(17, 9, 14, 11)
    accepted = []
    for strength, noise, sizes in (
        (0.0, 0.0, {"depth": 3, "width": 1, "top_k": 1, "total": 4}),
        (0.3, 0.1, {"depth": 3, "width": 3, "top_k": 4, "total": 12}),
    ):
        target = CausalTarget(toys.simple_llama(strength))
        want = toys.answer(target, NoDrafter(), inputs, 24, sampling).rows
        made = Eagle(toys.copying_head(target.model, noise), **sizes)
        made.trust = 1.0  # its law is the target's
        made.bind(target)
        lower(made, target, dtype)
        got = toys.answer(target, made, inputs, 24, sampling)
        assert got.rows == want
        accepted.append(got.accepted)
    assert accepted[0].count(3) > 0.7 * len(accepted[0])
    assert {0, 1} <= set(accepted[1])


def test_rounding_costs_acceptance_and_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a drafter that is the target's copy: 255 values keep nearly everything, three far less."""
    model, target = test_equality.make("qwen2")
    inputs = toys.prompts(17, 9, 14, 11)
    want = toys.answer(target, NoDrafter(), inputs, 24, WARM).rows
    kept = []
    for most in (127, 1):
        monkeypatch.setattr(precision, "MOST", most)
        made = Independent(copy.deepcopy(model), 3)
        made.bind(target)
        lower(made, target, torch.int8)
        got = toys.answer(target, made, inputs, 24, WARM)
        assert got.rows == want
        kept.append(sum(got.accepted) / len(got.accepted))
    assert kept[0] > 2 > kept[1]


@pytest.mark.parametrize(("method", "dtype"), [("eagle2", torch.int8), ("eagle3", torch.bfloat16)])
@pytest.mark.dynamic("compiles")
def test_compiled_targets_and_drafters_say_the_same(method: str, dtype: torch.dtype) -> None:
    _, target = test_equality.make("qwen2")
    inputs = toys.prompts(*LENGTHS)
    want = [toys.answer(target, NoDrafter(), inputs, 8, sampling).rows for sampling in (Sampling(), WARM)]
    target = test_engine.static(target, sizes=(1, 8), backend="eager")
    made = drafter_of(method, target, depth=3, total=8)
    lower(made, target, dtype)
    assert [toys.answer(target, made, inputs, 8, sampling).rows for sampling in (Sampling(), WARM)] == want


def sounds(dtype: torch.dtype) -> list[Any]:
    """Columns of a MusicGen, alone and drafted for."""
    model = tiny_musicgen.musicgen()
    found: list[Any] = []
    for drafter in ("none", SmallMusicgen(toys.perturbed(model, 0.3), length=3)):
        pipe = mmspec.load(model, drafter, processor=tiny_musicgen.tokenizer())
        if found:
            lower(pipe.drafter, pipe.target, dtype)
        out = pipe(prompt="loud drums", temperature=1.0, seed=7, max_new_tokens=12)
        found.append(out.token_ids)
    return found


def heard(dtype: torch.dtype) -> list[Any]:
    """What a Whisper writes, alone and drafted for."""
    model = test_speech_whisper.whisper()
    found: list[Any] = []
    for drafter in ("none", SpecASR(toys.perturbed(model, 0.15), threshold=0.2)):
        pipe = mmspec.load(model, drafter)
        if found:
            lower(pipe.drafter, pipe.target, dtype)
        inputs = test_speech_whisper.inputs_of(test_speech_whisper.speech())
        found.append(pipe.generate(**inputs, temperature=0, max_new_tokens=20).token_ids)
    return found


def drawn(dtype: torch.dtype) -> list[Any]:
    """Codes of a Janus, alone and from a Jacobi window that a head fills."""
    made = test_image_eagle.target()
    window = EagleSharing(test_image_eagle.network(made), 6)
    lower(window, made, dtype)
    inputs = tiny_images.prompts(5, 3)
    return [test_image_eagle.draw(one, inputs, WARM).rows for one in (NoDrafter(), window)]


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("made", [sounds, heard, drawn])
def test_pictures_and_sounds_are_those_of_the_loop(made: Any, dtype: torch.dtype) -> None:
    alone, drafted = made(dtype)
    assert len(alone) > 0
    assert drafted == alone


@pytest.mark.parametrize("dtype", HALF)
def test_continuous_drafts_of_rounded_weights_are_judged_as_others(dtype: torch.dtype) -> None:
    """A MAR's copy, rounded: its groups are kept, and the picture is nearly the same."""
    made = tiny_mar.model()
    helper = MarDrafter(copy.deepcopy(made), 3, alone=0.0)
    lower(helper, MarTarget(made), dtype)
    alone, plain = tiny_mar.draw(MarTarget(made), NoDrafter(), Conditioned(), 2, seed=4)
    canvas, rounds = tiny_mar.draw(MarTarget(made), helper, Conditioned(), 2, seed=4)
    assert len(rounds) < len(plain)
    assert torch.allclose(canvas.values, alone.values, atol=0.5)
    assert not torch.equal(canvas.values, alone.values)


# What is declared


@pytest.mark.parametrize("method", METHODS)
def test_the_declared_law_is_that_of_the_rounded_network(method: str) -> None:
    """Of static trees, from scratch, in a batch whose rows accept different lengths; that of the whole weights is
    another one."""
    _, target = test_equality.make("qwen2")
    made, inputs = drafter_of(method, target, depth=3, total=9), toys.prompts(*LENGTHS)
    whole = copy.deepcopy(made.net)
    lower(made, target, torch.int8)
    sampler = Sampler(test_drafters.SAMPLING, 3, torch.device("cpu"))
    looked, apart = 0, 0.0

    def look(state: State, draft: Draft) -> None:
        nonlocal looked, apart
        for index in range(3):
            if state.done[index] or draft.q is None or looked > 30:
                continue
            for node in test_drafters.parents_in(draft):
                path = draft.tokens[index, draft.ancestors[index, node].nonzero()[1:, 0]].tolist()
                single, ids = toys.row_of(inputs, index), state.ids[index]
                q, other = (
                    test_drafters.law_of(sampler, target, taught.expected(method, net, target, single, ids, path))
                    for net in (made.net, whole)
                )
                assert (draft.q[index, node] - q).abs().max() < 1e-5
                apart = max(apart, float((draft.q[index, node] - other).abs().max()))
                looked += 1

    toys.answer(target, Watched(made, look), inputs, 16, test_drafters.SAMPLING, Ratio())
    assert looked > 30
    assert apart > 1e-3


@pytest.mark.parametrize("method", ["eagle2", "medusa", "dflash"])
@pytest.mark.parametrize("dtype", HALF)
def test_children_are_drawn_from_the_declared_law(method: str, dtype: torch.dtype, coarse: None) -> None:
    """2000 rows; every child of every node, given those before it; six standard errors. The law of the whole weights is
    found to be another one."""
    target = CausalTarget(toys.llama())
    made = drafter_of(method, target, depth=3, total=8)
    full, _, _ = test_drafters.first_draft(made, target, 2000, "sampled")
    lower(made, target, dtype)
    draft, _, _ = test_drafters.first_draft(made, target, 2000, "sampled")
    assert draft.q is not None
    for node in test_drafters.parents_in(draft):
        left = draft.q[:, node]
        for child in (draft.parents[0] == node).nonzero()[:, 0]:
            assert test_drafters.surprise(draft.tokens[:, child], left) < 6
            left = without(left, draft.tokens[:, child])
    if dtype == torch.int8:
        assert test_drafters.surprise(draft.tokens[:, 1], full.q[:, 0]) > 6


@pytest.mark.parametrize("declared", ["rounded", "whole"])
def test_the_ratio_rule_emits_the_targets_law(declared: str, coarse: None) -> None:
    """4000 rows, their first round; if the law of the whole weights is declared for a draft of the rounded ones, the
    check finds it."""
    target = CausalTarget(toys.llama())
    made = drafter_of("eagle2", target, depth=1, total=4)
    whole, _, _ = test_drafters.first_draft(made, target, 4000, "sampled")
    lower(made, target, torch.int8)
    draft, state, sampler = test_drafters.first_draft(made, target, 4000, "sampled")
    if declared == "whole":
        draft.q = whole.q
    with torch.inference_mode():
        scores = sampler.warp(draft, target.verify(state, draft).logits)
    accepted = Ratio()(draft, scores, sampler, state.emitted)
    kept = accepted.count > 1
    emitted = torch.where(kept, draft.tokens.gather(1, accepted.path[:, 1:2])[:, 0], accepted.next)
    assert declared == "whole" or 0.02 < kept.double().mean() < 0.98
    assert (test_drafters.surprise(emitted, scores[:, 0].softmax(-1)) < 6) == (declared == "rounded")


# Loading and saving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with two drafters beside it."""
    made = tiny.tiny_smolvlm(tmp_path_factory.mktemp("dtype") / "model")
    target = mmspec.load(made, "none").target
    eagle = taught.drafter("eagle2", taught.network("eagle2", target).float(), depth=3, total=8)
    for drafter in (eagle, Independent(tiny.llama_model(1))):
        drafter.bind(target)
        save_drafter(drafter, made / "drafters" / drafter.method, target)
    return made


@pytest.mark.parametrize("method", ["eagle2", "spd"])
@pytest.mark.parametrize("dtype", [*FORMATS, torch.int8, torch.bfloat16])
def test_loading_converts_and_the_folder_stays(method: str, dtype: Any, folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*.safetensors")}
    plain = mmspec.load(folder, method, shape="own")
    pipe = mmspec.load(folder, method, shape="own", drafter_dtype=dtype)
    assert is_lowered(pipe.drafter) == (read_format(dtype) != torch.float32)
    assert pipe.target.model.dtype == torch.float32
    assert pipe.drafter.net is not plain.drafter.net
    said = [one(None, "what is it?", max_new_tokens=12, temperature=t) for one in (plain, pipe) for t in (0, 1)]
    assert [one.token_ids for one in said[:2]] == [one.token_ids for one in said[2:]]
    assert before == {path: path.read_bytes() for path in folder.rglob("*.safetensors")}


def test_rounded_weights_are_not_saved(folder: Path, tmp_path: Path) -> None:
    pipe = mmspec.load(folder, "eagle2", drafter_dtype="int8")
    with pytest.raises(CheckpointError, match="load it without drafter_dtype to save it"):
        save_drafter(pipe.drafter, tmp_path / "mine", pipe.target)
    assert not (tmp_path / "mine").exists()
    again = load_drafter(folder / "drafters" / "eagle2", pipe.target)
    assert save_drafter(again, tmp_path / "mine", pipe.target).exists()


def test_a_bfloat16_target_gets_an_int8_drafter(folder: Path) -> None:
    pipe = mmspec.load(folder, "eagle2", shape="own", dtype="bfloat16", drafter_dtype="int8")
    assert pipe.target.model.dtype == torch.bfloat16
    want = pipe.with_drafter("none")(None, "what is it?", max_new_tokens=12).token_ids
    said = pipe(None, "what is it?", max_new_tokens=12)
    assert len(said.token_ids) == len(want)
    assert pipe.drafter.net.fc.scale.dtype == torch.float32


def test_rotary_frequencies_stay_exact_in_half_precision(folder: Path) -> None:
    exact, half = (mmspec.load(folder, "eagle2", dtype=dtype).drafter.net for dtype in ("float32", "bfloat16"))
    assert half.fc.weight.dtype == torch.bfloat16
    found = [name for name, _ in exact.named_buffers() if name.endswith("inv_freq")]
    assert found
    for name in found:
        assert torch.equal(half.get_buffer(name), exact.get_buffer(name))


def test_what_does_not_fit_is_one_clear_error(folder: Path) -> None:
    for wrong in ("int4", torch.int16, 8, True, ""):
        with pytest.raises(InputError, match="drafter_dtype=.* is not valid: int8, bfloat16, float16, float32"):
            mmspec.load(folder, "eagle2", drafter_dtype=wrong)
    pipe = mmspec.load(folder, "none")
    for name in ("none", "prompt-lookup", "suffix", "recycling", "lookahead"):
        with pytest.raises(MismatchError, match="has no linear layers of its own"):
            pipe.with_drafter(name, drafter_dtype="int8")
    with pytest.raises(InputError, match="drafter_dtype is for drafters that load"):
        pipe.with_drafter(Independent(tiny.llama_model(1)), drafter_dtype="int8")


def test_the_command_line_takes_it(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    said = []
    for more in ([], ["--drafter-dtype", "int8"]):
        arguments = [
            "generate",
            "what is it?",
            "--model",
            str(folder),
            "--drafter",
            "eagle2",
            "--shape",
            "own",
            "--json",
        ]
        monkeypatch.setattr("sys.argv", ["mmspec", *arguments, "--max-new-tokens", "8", *more])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
        said.append(json.loads(capsys.readouterr().out))
    assert said[0]["text"] == said[1]["text"]
    monkeypatch.setattr("sys.argv", ["mmspec", "generate", "hello", "--model", str(folder), "--drafter-dtype", "int7"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "error: drafter_dtype='int7' is not valid" in capsys.readouterr().err


def test_one_call_takes_it(folder: Path) -> None:
    said = [
        mmspec.generate(None, "what is it?", model=folder, drafter="eagle2", drafter_dtype=dtype, max_new_tokens=8).text
        for dtype in (None, "int8", torch.int8)
    ]
    assert said[0] == said[1] == said[2]


# Benchmarks


def test_a_benchmark_has_one_drafter_in_several_formats(folder: Path) -> None:
    pipe = mmspec.load(folder, "none")
    names = ["none", "eagle2", "eagle2:dtype=int8", "eagle2:dtype=bfloat16"]
    found = methods(pipe, names, "3x2x8")
    assert [name for name in found if name != "hf"] == names
    kinds = [{type(part) for part in (found[name].pipe.drafter.net or nn.Identity()).modules()} for name in names]
    assert [(Int8Linear in kind, CastLinear in kind) for kind in kinds] == [(False, False)] * 2 + [
        (True, False),
        (False, True),
    ]
    inputs = pipe.prepare(None, "what is it?")
    tokens = [found[name](inputs, 8, 1.0, 3).tokens for name in names]
    assert tokens[1:] == tokens[:1] * 3
    sizes = memory.draft_weights(pipe, names)
    assert list(sizes) == names[1:]
    assert sizes[names[2]] < sizes[names[3]] < sizes[names[1]]
    with pytest.raises(InputError, match="drafter_dtype='int4' is not valid"):
        methods(pipe, ["eagle2:dtype=int4"])


def test_rows_take_a_format_beside_a_rule(folder: Path) -> None:
    pipe = mmspec.load(folder, "none")
    made = row(pipe, "eagle2:dtype=int8:shape=3x2x8@ratio")
    assert is_lowered(made.drafter)
    assert isinstance(made.rule, Ratio)
    assert not is_lowered(row(pipe, "eagle2@ratio").drafter)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("eagle2", ("eagle2", None)),
        ("eagle2:dtype=int8", ("eagle2", "int8")),
        ("C:\\models\\head", ("C:\\models\\head", None)),
        ("C:\\models\\head:dtype=float16", ("C:\\models\\head", "float16")),
        ("owner/name:dtype=", ("owner/name", "")),
    ],
)
def test_a_name_says_its_format(text: str, read: tuple[str, str | None]) -> None:
    assert in_dtype(text) == read


def test_a_table_of_words_is_a_head() -> None:
    rows = WordRows(12, 8)
    features = torch.randn(2, 8)
    assert torch.equal(rows(features), features @ rows.weight.T)
    net = nn.Sequential(rows)
    assert convert(net, torch.int8) == 1
    off: Tensor = (net(features) - rows(features)).abs()
    assert 0 < off.max() < 0.2
