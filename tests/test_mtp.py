"""MTP, the layer that a checkpoint brings for drafting: it says what the stock layer says, behind pictures, too; it
changes no answer; and it is found where it lies."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_families
import torch
import toys
from fixed import static_caches
from safetensors.torch import load_file, save_file
from test_drafters import Watched
from test_interchange_pictures import Seen
from tiny_vision import PICTURES, TEXTS, finish
from torch import Tensor, nn
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

import mmspec
from mmspec.checkpoints import drafters_of, load_drafter, save_drafter
from mmspec.contract import Draft, State
from mmspec.drafters.children import Choice
from mmspec.drafters.eagle import Eagle
from mmspec.errors import CheckpointError, MismatchError
from mmspec.mtp_weights import find_layer, named
from mmspec.registry import name_of

WEIGHTS = "model.safetensors"
LEVELS, BUDGET, QUIET, NOISE = 2, 16, 0.03, 0.02
QWEN = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
DEEPSEEK = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
LINEAR, FULL = "linear_attention", "full_attention"


@dataclass
class Checkpoint:
    """A folder whose target lacks the last layer of `whole`, which is its MTP layer.

    fc [H, 2H], enorm, hnorm, norm [H]: what is around that.
    """

    folder: Path
    whole: PreTrainedModel
    parts: tuple[Tensor, Tensor, Tensor, Tensor]

    def estimates(self, held: Tensor, features: Tensor, places: Tensor) -> Tensor:
        """[N, H] of slots that hold embeddings [N, H] and features [N, H] at places [3, N]: by the stock layer, all at
        once."""
        decoder: Any = self.whole.get_decoder()
        fc, enorm, hnorm, norm = self.parts
        hidden = torch.cat([self.normed(held, enorm), self.normed(features, hnorm)], -1) @ fc.T
        later = torch.ones(len(held), len(held)).triu(1).double()
        turns = decoder.rotary_emb(hidden[None], places[:, None] if decoder.rotary_emb.mrope_section else places[:1])
        out = decoder.layers[-1](
            hidden[None], position_embeddings=turns, attention_mask=-1e9 * later[None, None], past_key_values=None
        )
        return self.normed(out[0], norm)

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """Qwen's norm adds one to its weight."""
        eps, one = self.whole.config.get_text_config().rms_norm_eps, self.folder.name.startswith("qwen")
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (weight + one)


def write(folder: Path, model: PreTrainedModel, processor: Any, names: tuple[str, ...], mtp: bool = True) -> Checkpoint:
    """Save a model of N + 1 layers as one of N with an MTP layer, whose other parts have these names.

    Layers say little, and fc passes on the embedding: the next token hangs mostly on the last, drafts are often right.
    """
    text, size = model.config.get_text_config(), model.config.get_text_config().hidden_size
    with torch.no_grad():
        for name, weight in model.get_decoder().layers.named_parameters():
            if re.search(r"o_proj|out_proj|down_proj|post_self_attn|post_mlp", name):
                weight *= QUIET
        model.get_output_embeddings().weight[getattr(model.config, "image_token_id", 0)] = 0  # it writes no picture
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    own = settings.get("text_config", settings)
    own["num_hidden_layers"] -= 1
    if own.get("layer_types"):
        own["layer_types"].pop()
    (folder / "config.json").write_text(json.dumps(settings))

    tensors = load_file(folder / WEIGHTS)
    last = f"layers.{text.num_hidden_layers - 1}."
    (start,) = {name[: name.index(last)] + last for name in tensors if last in name and "visual" not in name}
    torch.manual_seed(5)
    base: Tensor = model.get_decoder().norm.weight.detach()
    fc = (
        torch.cat([torch.eye(size), torch.zeros(size, size)], 1).double() + NOISE * torch.randn(size, 2 * size).double()
    )
    norms = [base + NOISE * torch.randn_like(base) for _ in range(3)]
    layer = {name.removeprefix(start): tensors.pop(name) for name in list(tensors) if name.startswith(start)}
    if mtp and names == QWEN:
        start, layer = "mtp.", {f"layers.0.{name}": tensor for name, tensor in layer.items()}
    if mtp:
        around = dict(zip((f"{name}.weight" for name in names), (fc, *norms), strict=True))
        copies = {part: fc.clone() for part in ("embed_tokens.weight", "shared_head.head.weight") if names == DEEPSEEK}
        tensors |= {start + name: tensor for name, tensor in {**layer, **around, **copies}.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return Checkpoint(folder, model, (fc, *norms))


def qwen(folder: Path, family: str = "qwen3.5", **how: Any) -> Checkpoint:
    kinds = [LINEAR, FULL, LINEAR, FULL]
    return write(folder, *tiny_families.EVERY[family](1, num_hidden_layers=4, layer_types=kinds), QWEN, **how)


def glm(folder: Path, family: str = "glm-ocr", **how: Any) -> Checkpoint:
    return write(folder, *tiny_families.EVERY[family](1, num_hidden_layers=3), DEEPSEEK, **how)


def glm_text(folder: Path) -> Checkpoint:
    """Of a family that transformers' `MtpModel` serves, with experts of which each is a file's own tensor."""
    experts = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "head_dim": 8}
    sizes = {**tiny.text_config(3), "moe_intermediate_size": 16, "first_k_dense_replace": 1, **experts}
    sizes.pop("model_type")
    model = finish(Glm4MoeForCausalLM, Glm4MoeConfig(**sizes), 1)
    model.set_experts_implementation("eager")
    return write(folder, model, tiny.tokenizer(), DEEPSEEK)


MAKERS: dict[str, Callable[..., Checkpoint]] = {
    "qwen3.5": qwen,
    "qwen3.5-moe": lambda folder: qwen(folder, "qwen3.5-moe"),
    "glm-ocr": glm,
    "glm4v-moe": lambda folder: glm(folder, "glm4v-moe"),
    "glm4-moe": glm_text,
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Written when they are asked for first."""
    made: dict[str, Checkpoint] = {}

    def checkpoint(name: str) -> Checkpoint:
        if name not in made:
            made[name] = MAKERS[name](tmp_path_factory.mktemp("checkpoints") / name)
        return made[name]

    return checkpoint


def load(checkpoint: Checkpoint, drafter: Any = "mtp", shape: Any = "own") -> mmspec.Pipeline:
    return mmspec.load(checkpoint.folder, drafter, dtype="float64", shape=shape)


def recorded(pipe: mmspec.Pipeline, levels: int = LEVELS) -> list[Tensor]:
    """Let the drafter draft chains; the list is filled with the logits [B, V] of every level."""
    drafter, said = pipe.drafter, []

    class Recorded(Choice):
        def standings(self, logits: Any, *others: Any) -> Any:
            said.append(logits[:, 0].clone())
            return super().standings(logits, *others)

    drafter.depth, drafter.width, drafter.top_k, drafter.total = levels, 1, 1, 1 + levels
    drafter.choice = lambda sampler, kind: Recorded(sampler, kind, pipe.target.placeholders)
    return said


# What it says


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5-moe", "glm-ocr", "glm4v-moe"])
def test_it_says_what_the_stock_layer_says_behind_pictures_in_every_round(
    name: str, checkpoints: Callable[[str], Checkpoint]
) -> None:
    """Rows with other pictures, and one with none, after rounds that kept nothing, some, or all of a draft."""
    checkpoint = checkpoints(name)
    pipe = load(checkpoint)
    target, said = pipe.target, recorded(pipe)
    rows = [pipe.prepare(*asked) for asked in zip(PICTURES, TEXTS, strict=True)]
    looked = 0

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        for row in (row for row, done in enumerate(state.done) if not done):
            path = draft.tokens[row, 1:].tolist()
            text = Seen(target, state.ids[row], path, rows[row], pictures=True)
            with torch.no_grad():
                features = text.read[0][-1]
                for level, logits in enumerate(said):
                    held = text.held(level)
                    found = checkpoint.estimates(held, features, text.on_axes(len(held)))
                    torch.testing.assert_close(logits[row], target.head(found[-1]), rtol=1e-5, atol=1e-5)
                    features = torch.cat([features, found[-1:]])
                    looked += 1
        said.clear()

    got = toys.answer(target, Watched(pipe.drafter, look), pipe.prepare(PICTURES, TEXTS), BUDGET)
    assert looked > LEVELS * len(TEXTS)
    assert {0, 1, 2} <= set(got.accepted)


def test_it_says_what_the_model_of_transformers_says(checkpoints: Callable[[str], Checkpoint]) -> None:
    """Whose positions are later by one, which in a text makes no difference."""
    pipe = load(checkpoints("glm4-moe"))
    target, said = pipe.target, recorded(pipe)
    target.model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2\..*"]  # its class knows those of true sizes
    theirs = MtpModel.from_pretrained(target.model).double()
    theirs.tie_with_main_model(target.model)
    ids = tiny.tokenizer()("the red bar is taller")["input_ids"]
    looked = 0

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        tokens = torch.tensor([state.ids[0] + draft.tokens[0, 1:].tolist()])
        size = len(state.ids[0]) - 1
        with torch.no_grad():
            features = target.model(tokens[:, :size], output_hidden_states=True).hidden_states[-1]
            for level, logits in enumerate(said):
                cache = MtpCache(config=target.model.config.get_mtp_config())
                places = torch.arange(1, size + level + 1)[None]
                found = theirs.forward_layer(0, features, places, cache, input_ids=tokens[:, 1 : size + level + 1])
                torch.testing.assert_close(logits[0], target.head(found[0, -1]), rtol=1e-6, atol=1e-6)
                features = torch.cat([features, found[:, -1:]], 1)
                looked += 1
        said.clear()

    toys.answer(target, Watched(pipe.drafter, look), {"input_ids": torch.tensor([ids])}, BUDGET)
    assert looked > LEVELS


# What comes of it


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("name", ["qwen3.5", "glm-ocr"])
def test_answers_are_those_without_drafts(
    name: str, temperature: float, checkpoints: Callable[[str], Checkpoint]
) -> None:
    """Alone and in a batch, from chains (Qwen3.5) and trees (GLM), of which some, all or nothing is kept."""
    pipe, kept = load(checkpoints(name)), set()
    plain = pipe.with_drafter("none")
    how = {"max_new_tokens": BUDGET, "temperature": temperature, "seed": 3}
    got, want = (one(PICTURES, TEXTS, **how) for one in (pipe, plain))
    assert [out.text for out in got] == [out.text for out in want]
    for asked, out in zip(zip(PICTURES, TEXTS, strict=True), want, strict=True):
        alone = pipe(*asked, **how)
        kept |= set(alone.stats.accept_lengths)
        assert alone.text == out.text or temperature
    assert len(kept) > 2


@pytest.mark.parametrize("name", ["qwen3.5", "glm-ocr"])
def test_what_is_kept_hangs_on_what_it_says(name: str, checkpoints: Callable[[str], Checkpoint]) -> None:
    pipe = load(checkpoints(name))
    tau = pipe(PICTURES[0], TEXTS[0], max_new_tokens=BUDGET, temperature=0.0).stats.tau
    head = nn.Linear(*reversed(pipe.drafter.head.weight.shape), bias=False).double()
    head.weight.data = pipe.drafter.head.weight.roll(7, 0)
    pipe.drafter.head = head
    assert tau > 1.5 > 1.1 > pipe(PICTURES[0], TEXTS[0], max_new_tokens=BUDGET, temperature=0.0).stats.tau


@pytest.mark.dynamic("it compares both")
@pytest.mark.parametrize("shape", ["own", "auto"])
def test_whole_drafts_on_static_caches_are_the_same(shape: str, checkpoints: Callable[[str], Checkpoint]) -> None:
    pipe = load(checkpoints("glm-ocr"))
    with static_caches():
        static = load(checkpoints("glm-ocr"), shape=shape)
    assert static.drafter.steps
    for temperature in (0.0, 0.7):
        how = {"max_new_tokens": BUDGET, "temperature": temperature}
        got, want = (one(PICTURES, TEXTS, **how) for one in (static, pipe))
        assert [out.text for out in got] == [out.text for out in want]
        kept = [[out.stats.accept_lengths[:-1] for out in rows] for rows in (got, want)]  # the last are cut elsewhere
        assert shape == "auto" or kept[0] == kept[1]


def test_a_prompt_may_be_a_single_token(checkpoints: Callable[[str], Checkpoint]) -> None:
    pipe = load(checkpoints("qwen3.5"))
    asked = {"input_ids": torch.tensor([[40]]), "max_new_tokens": BUDGET, "temperature": 0.0}
    assert pipe.generate(**asked).text == pipe.with_drafter("none").generate(**asked).text


# Where it lies


def test_it_is_taken_where_nobody_names_one_unless_a_trained_one_lies_beside(
    tmp_path: Path, checkpoints: Callable[[str], Checkpoint]
) -> None:
    assert load(checkpoints("qwen3.5"), None).names == ("mtp", "exact")
    checkpoint = glm(tmp_path / "glm-ocr")
    pipe = load(checkpoint, None)
    assert list(drafters_of(checkpoint.folder)) == ["mtp"]
    save_drafter(Eagle(toys.eagle_head(pipe.target.model)), checkpoint.folder / "drafters" / "eagle2", pipe.target)
    assert list(drafters_of(checkpoint.folder)) == ["eagle2", "mtp"]
    assert load(checkpoint, None).names[0] == "eagle2"
    assert load(checkpoint, "mtp").names[0] == "mtp"
    pipe.folder = None  # as of a model that was made by hand
    assert pipe.with_drafter(checkpoint.folder / "drafters" / "eagle2").names[0] == "eagle2"


def test_it_is_found_in_parts_of_a_model_and_drafts_for_one_that_was_loaded(
    tmp_path: Path, checkpoints: Callable[[str], Checkpoint]
) -> None:
    pipe = load(checkpoints("glm-ocr"), "none")
    tensors = load_file(checkpoints("glm-ocr").folder / WEIGHTS)
    folder = qwen(tmp_path / "other").folder  # for the processor's files
    pipe.processor.save_pretrained(folder)
    pipe.target.model.config.save_pretrained(folder)
    (folder / WEIGHTS).unlink()
    files = {name: f"model-{number % 3:05}.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        part = {name: tensors[name] for name in tensors if files[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": files}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))

    model = type(pipe.target.model).from_pretrained(folder, dtype=torch.float64)
    own = mmspec.load(model, "mtp", shape="own").drafter.net.state_dict()
    want = load(checkpoints("glm-ocr")).drafter.net.state_dict()
    assert own.keys() == want.keys()
    assert all(own[name].equal(want[name]) for name in own)


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_its_layers_may_be_of_another_format(precision: str, checkpoints: Callable[[str], Checkpoint]) -> None:
    pipe = load(checkpoints("qwen3.5"))
    low = pipe.with_drafter("mtp", "own", drafter_dtype=precision)
    got, want = (one(PICTURES[0], TEXTS[0], max_new_tokens=8, temperature=0.0).text for one in (low, pipe))
    assert got == want


def test_names_of_both_forms() -> None:
    block = ["self_attn.q_proj.weight", "mlp.up_proj.weight"]
    qwen_form = [*(f"mtp.{part}.weight" for part in QWEN), *(f"mtp.layers.0.{name}" for name in block)]
    own = set(named(qwen_form))
    assert named(qwen_form)["feature_norm.weight"] == "mtp.pre_fc_norm_hidden.weight"
    for start in ("model.layers.9.", "model.language_model.layers.16."):
        form = [*(f"{start}{part}.weight" for part in DEEPSEEK), *(start + name for name in block)]
        more = [name.replace("layers.9", "layers.10").replace("layers.16", "layers.17") for name in form]
        found = named([*more, *form, f"{start}embed_tokens.weight", f"{start}shared_head.head.weight"])
        assert set(found) == own
        assert all(name.startswith(start) for name in found.values())
        assert not named(form[1:])  # one part is missing
        assert not named(form[: len(DEEPSEEK)])  # the layer is
    assert not named(qwen_form[1:])
    assert not named(["model.layers.0.mlp.up_proj.weight", "model.norm.weight"])


# Mistakes


def test_a_checkpoint_without_one_is_told_so(tmp_path: Path) -> None:
    bare = glm(tmp_path / "bare", mtp=False)
    assert not find_layer(bare.folder)
    assert load(bare, None).names[0] == "prompt-lookup"
    with pytest.raises(MismatchError, match=f"'mtp' is a layer for multi-token prediction .* none in {bare.folder}$"):
        load(bare)
    model, processor = tiny_families.build("qwen3.5")
    with pytest.raises(MismatchError, match="none in this model, whose folder is not known: load it by"):
        mmspec.load(model, "mtp", processor=processor)


def test_files_that_cannot_be_read_hold_none(tmp_path: Path) -> None:
    assert not find_layer(tmp_path / "nothing")
    (tmp_path / WEIGHTS).write_bytes(b"damaged")
    assert not find_layer(tmp_path)
    for index in ("{", "[]", '{"weight_map": []}', "{}", '{"weight_map": {"mtp.fc.weight": 3}}'):
        (tmp_path / f"{WEIGHTS}.index.json").write_text(index)
        assert not find_layer(tmp_path)


def test_a_layer_of_another_kind_is_refused_and_left_where_nobody_named_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = qwen(tmp_path / "qwen3.5")
    tensors = load_file(checkpoint.folder / WEIGHTS)
    gone = tensors.pop("mtp.layers.0.mlp.up_proj.weight")

    def refused(kind: type[Exception], match: str, **more: Tensor) -> None:
        save_file(
            {**tensors, **{name: one.clone() for name, one in more.items()}},
            checkpoint.folder / WEIGHTS,
            metadata={"format": "pt"},
        )
        with pytest.raises(kind, match=match):
            load(checkpoint)
        caplog.clear()
        assert mmspec.load(checkpoint.folder).names[0] == "prompt-lookup"
        assert "prompt-lookup drafts, since the layer that the checkpoint has for it does not fit" in caplog.text

    refused(MismatchError, "no layer of Qwen3_5TextModel: layers.0.mlp.up_proj.weight is among its missing weights")
    tensors["mtp.layers.0.mlp.up_proj.weight"] = gone
    strange = {"mtp.layers.0.mlp.gate.weight": gone}
    refused(MismatchError, "layers.0.mlp.gate.weight is among its unexpected weights", **strange)
    refused(CheckpointError, "cannot be loaded: .*fc.weight", **{"mtp.fc.weight": gone})
    refused(CheckpointError, "is not finite", **{"mtp.fc.weight": torch.full_like(tensors["mtp.fc.weight"], torch.nan)})


def test_it_is_saved_with_its_model_alone(tmp_path: Path, checkpoints: Callable[[str], Checkpoint]) -> None:
    pipe = load(checkpoints("qwen3.5"))
    with pytest.raises(CheckpointError, match="'mtp' are part of the model's own checkpoint: pass its name"):
        save_drafter(pipe.drafter, tmp_path / "saved", pipe.target)
    assert not (tmp_path / "saved").exists()
    assert name_of("drafters", load_drafter(checkpoints("qwen3.5").folder, pipe.target, "mtp")) == "mtp"


def test_lists_say_that_it_needs_no_training() -> None:
    from mmspec.inventory import drafters

    (entry,) = [entry for entry in drafters() if entry["name"] == "mtp"]
    assert (entry["takes"], entry["trained"], entry["modalities"]) == ("nothing", False, ["any"])
