"""Published drafters that see: what they say about a prompt with a picture is what their tensors say."""

from pathlib import Path
from typing import Any

import published
import pytest
import taught
import tiny
import torch
import toys
from PIL import Image
from published import Sample, Text, attended, gated, normed
from test_drafters import Watched
from test_interchange import heard_after
from torch import Tensor
from torch.nn.functional import linear

import mmspec
from mmspec import registry
from mmspec.contract import Draft, State
from mmspec.drafters.none import NoDrafter
from mmspec.errors import CheckpointError, MismatchError
from mmspec.interchange.export import export

QUERIES = 3


@pytest.fixture(scope="module")
def pipe() -> Any:
    return mmspec.load(tiny.smolvlm_model(layers=3).double(), drafter="none", processor=tiny.processor())


@pytest.fixture(scope="module")
def inputs(pipe: Any) -> dict[str, Tensor]:
    """Two pictures, with words before, between and behind them."""
    pictures = [Image.new("RGB", (32, 32), color) for color in ("red", "blue")]
    return pipe.prepare([pictures], ["what has changed?"])


def slots(text: Text, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Of all slots but the pending token's: embeddings [T, H] of x_{t+1}, features f_t, and which are image slots."""
    seen = {name: value for name, value in inputs.items() if name != "attention_mask"}
    out = text.target.model(**{**seen, "input_ids": torch.tensor([text.ids[:-1]])}, output_hidden_states=True)
    image = torch.tensor([token in text.target.placeholders for token in text.ids[1:-1]])
    return out.hidden_states[0][0, 1:], out.hidden_states[-1][0], image


def layer(w: published.Tensors, x: Tensor, places: Tensor) -> Tensor:
    x = x + attended(w, "layers.0.self_attn", x, places=places)
    return x + gated(w, "layers.0.mlp", normed(x, w["layers.0.post_attention_layernorm.weight"]))


def msd_says(text: Text, w: published.Tensors, inputs: dict[str, Tensor]) -> Tensor:
    embeddings, features, image = slots(text, inputs)
    words = linear(torch.cat([embeddings, features[:-1]], -1), w["fc.weight"], w["fc.bias"])
    x = torch.where(image[:, None], embeddings, words)
    feature = features[-1:]
    for token in [text.ids[-1], *text.path]:
        said = linear(torch.cat([text.embed(token), feature], -1), w["fc.weight"], w["fc.bias"])
        x = torch.cat([x, said])
        feature = layer(w, x, torch.arange(len(x)))[-1:]
    return text.head(feature[0])


def vispec_says(text: Text, w: published.Tensors, inputs: dict[str, Tensor]) -> Tensor:
    """As the published program walks a prompt: up to the end of a picture, then the picture, then on."""
    embeddings, features, image = slots(text, inputs)
    told = torch.zeros(1, published.H, dtype=features.dtype)

    def words(embedded: Tensor, heard: Tensor) -> Tensor:
        hidden = linear(torch.cat([heard, told.expand_as(heard)], -1), w["img_fc.weight"], w["img_fc.bias"])
        return linear(torch.cat([embedded, hidden], -1), w["fc.weight"], w["fc.bias"])

    def adapted(picture: Tensor) -> Tensor:
        keys, values = (
            linear(picture, w[f"imadpt.{part}_proj.weight"], w.get(f"imadpt.{part}_proj.bias")) for part in "kv"
        )
        keys, values = (one.view(len(picture), published.HEADS, published.SIZE) for one in (keys, values))
        weights = (torch.einsum("qhd,khd->hqk", w["imadpt.q"], keys) / published.SIZE**0.5).softmax(-1)
        return linear(torch.einsum("hqk,khd->qhd", weights, values).flatten(1), w["imadpt.o_proj.weight"])

    x, places, start = [], [], 0
    ends = [at + 1 for at in range(len(image)) if image[at] and (at + 1 == len(image) or not image[at + 1])]
    assert len(ends) == 2
    for end in ends:
        here = torch.arange(start, end)
        spoken = here[~image[start:end]]
        x.append(words(embeddings[spoken], features[spoken]))
        vectors = adapted(embeddings[here[image[start:end]]])
        x.append(vectors[:-1])
        places += [spoken, torch.arange(end - len(vectors) + 1, end)]
        told, start = vectors[-1:], end
    rest = torch.arange(start, len(image))
    x.append(words(embeddings[rest], features[rest]))
    stream, where, feature = torch.cat(x), torch.cat([*places, rest]), features[-1:]
    for token in [text.ids[-1], *text.path]:
        stream = torch.cat([stream, words(text.embed(token), feature)])
        where = torch.cat([where, where[-1:] + 1])
        feature = layer(w, stream, where)[-1:]
    return text.head(feature[0])


def dream_says(text: Text, w: published.Tensors, inputs: dict[str, Tensor]) -> Tensor:
    """As the published program does: a slot per token, each looking at the features before its token's; the first one,
    which has none before it, looks at all of the prompt alike."""
    seen = {name: value for name, value in inputs.items() if name != "attention_mask"}
    out = text.target.model(**{**seen, "input_ids": torch.tensor([text.ids[:-1]])}, output_hidden_states=True)
    features = out.hidden_states[-1][0]
    prompt, tokens = inputs["input_ids"].shape[1], [text.ids[-1], *text.path]

    def heads(of: Tensor, which: str) -> Tensor:
        made = linear(of, w[f"layers.1.cross_attn.{which}_proj.weight"]).view(len(of), -1, published.SIZE)
        made = made if which == "v" else normed(made, w[f"layers.1.cross_attn.{which}_norm.weight"])
        return made.repeat_interleave(published.HEADS // made.shape[1], 1)

    def across(x: Tensor) -> Tensor:
        q = heads(normed(x, w["layers.1.input_layernorm.weight"]), "q")
        k, v = heads(features, "k"), heads(features, "v")
        scores = torch.einsum("thd,shd->hts", q, k) / published.SIZE**0.5
        scores = scores.masked_fill(torch.ones(len(x), len(features)).triu(0).bool(), -torch.inf)
        weights = scores[:, 1:].softmax(-1)
        alike = torch.zeros(len(weights), 1, len(features), dtype=weights.dtype)
        alike[..., :prompt] = 1 / prompt
        mixed = torch.einsum("hts,shd->thd", torch.cat([alike, weights], 1), v).flatten(1)
        x = x + w["layers.1.cross_attn_attn_gate"].tanh() * linear(mixed, w["layers.1.cross_attn.o_proj.weight"])
        more = gated(w, "layers.1.mlp", normed(x, w["layers.1.post_attention_layernorm.weight"]))
        return x + w["layers.1.cross_attn_mlp_gate"].tanh() * more

    for count in range(1, len(tokens) + 1):
        x = torch.cat([out.hidden_states[0][0], text.embed(*tokens[:count])])
        x = across(layer(w, x, torch.arange(len(x))))
        x = x + attended(w, "layers.2.self_attn", normed(x, w["layers.2.input_layernorm.weight"]))
        x = x + gated(w, "layers.2.mlp", normed(x, w["layers.2.post_attention_layernorm.weight"]))
        features = torch.cat([features, normed(x[-1:], w["norm.weight"])])
    return text.head(features[-1])


def msd(target: Any) -> Sample:
    made = published.eagle(target)
    return Sample("msd", {**made.config, "mm_vision_tower": "clip"}, made.tensors, msd_says)


def vispec(target: Any, qkv: bool = False) -> Sample:
    made = published.eagle(target, qkv=qkv)
    h = published.H
    shapes = {f"imadpt.{part}_proj.weight": (h, h) for part in "kvo"}
    shapes |= {"imadpt.q": (QUERIES, published.HEADS, published.SIZE), "img_fc.weight": (h, 2 * h), "img_fc.bias": (h,)}
    shapes |= {f"imadpt.{part}_proj.bias": (h,) for part in "kv"} if qkv else {}
    return Sample("vispec", made.config, {**made.tensors, **published.randomly(9, shapes)}, vispec_says)


def dream(target: Any) -> Sample:
    h = published.H
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (h,), "layers.2.input_layernorm.weight": (h,)}
    for name, block in (("layers.0", "self_attn"), ("layers.1", "cross_attn"), ("layers.2", "self_attn")):
        shapes |= published.attention(f"{name}.{block}") | published.mlp(f"{name}.mlp")
        shapes[f"{name}.post_attention_layernorm.weight"] = (h,)
    shapes |= {f"layers.1.cross_attn.{part}_norm.weight": (published.SIZE,) for part in "qk"}
    shapes |= {f"layers.1.cross_attn_{part}_gate": (1,) for part in ("attn", "mlp")}
    shapes["layers.1.input_layernorm.weight"] = (h,)
    config = {**published.SHAPE, "vocab_size": target.vocab_size, "num_hidden_layers": 3}
    return Sample("dream", config, published.randomly(11, shapes), dream_says)


SAMPLES = {
    "msd": msd,
    "vispec": vispec,
    "vispec of qwen": lambda target: vispec(target, qkv=True),
    "dream": dream,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_published_drafter_that_sees_says_what_its_tensors_say(
    name: str, pipe: Any, inputs: dict[str, Tensor], tmp_path: Path
) -> None:
    sample = SAMPLES[name](pipe.target)
    drafter = pipe.with_drafter(sample.write(tmp_path / "published")).drafter
    assert drafter.method == sample.method
    ids, path, seen = heard_after(pipe, drafter, inputs)
    assert len(seen) == published.LEVELS
    weights = {name: tensor.double() for name, tensor in sample.tensors.items()}
    for level, logits in enumerate(seen):
        with torch.no_grad():
            expected = sample.says(Text(pipe.target, ids, path[:level]), weights, inputs)
        torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SAMPLES)
def test_it_does_so_in_every_round_and_changes_no_answer(
    name: str, pipe: Any, inputs: dict[str, Tensor], tmp_path: Path
) -> None:
    sample = SAMPLES[name](pipe.target)
    drafter = pipe.with_drafter(sample.write(tmp_path / "published")).drafter
    drafter.depth, drafter.width, drafter.top_k, drafter.total = 2, 1, 1, 3
    weights = {name: tensor.double() for name, tensor in sample.tensors.items()}
    looked = 0

    def look(state: State, draft: Draft) -> None:
        nonlocal looked
        path = draft.tokens[0, 1:].tolist()
        for level, token in enumerate(path):
            says = sample.says(Text(pipe.target, state.ids[0], path[:level]), weights, inputs)
            says[list(pipe.target.placeholders)] = -torch.inf
            assert int(says.argmax()) == token
            looked += 1

    got = toys.answer(pipe.target, Watched(drafter, look), inputs, 8)
    assert got.rows == toys.answer(pipe.target, NoDrafter(), inputs, 8).rows
    assert looked > 8


def test_layouts_that_see_are_told_apart(pipe: Any, tmp_path: Path) -> None:
    eagle = published.eagle(pipe.target)
    assert pipe.with_drafter(eagle.write(tmp_path / "eagle")).drafter.method == "eagle2"
    layouts: dict[str, Any] = {
        key: registry.resolve("layouts", key.partition("/")[2], key.partition("/")[0])
        for key in registry.entries("layouts")
    }
    for sample in (eagle, *(make(pipe.target) for make in SAMPLES.values())):
        found = [key for key, layout in layouts.items() if layout.recognises(sample.config, set(sample.tensors))]
        assert len(found) == 1, found


def test_what_sees_needs_a_target_that_sees(tmp_path: Path) -> None:
    text = mmspec.load(tiny.llama_model(), drafter="none", processor=tiny.tokenizer())
    with pytest.raises(MismatchError, match="has no image slots"):
        text.with_drafter(msd(text.target).write(tmp_path / "msd"))
    lacking = dream(text.target)
    lacking.tensors.pop("layers.1.cross_attn.k_norm.weight")
    with pytest.raises(CheckpointError, match=r"lacks the tensor layers.1.cross_attn.k_norm.weight"):
        text.with_drafter(lacking.write(tmp_path / "lacking"))
    wide = dream(text.target).but(layers__1__cross_attn__k_proj__weight=torch.zeros(32, 32))
    with pytest.raises(MismatchError, match=r"cross_attn.k_proj.*\[32, 32\].*\[16, 32\]"):
        text.with_drafter(wide.write(tmp_path / "wide"))
    shape = vispec(text.target).but(imadpt__q=torch.zeros(2, 2, 8))
    with pytest.raises(MismatchError, match=r"imadpt.q .*\[2, 2, 8\].*\[2, 4, 8\]"):
        text.with_drafter(shape.write(tmp_path / "vispec"))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
        {"rope_scaling": {"type": "default", "mrope_section": [1, 1, 2]}},
        {"rope_parameters": {"rope_type": "mrope"}},
    ],
)
def test_image_slots_on_three_axes_are_refused(rope: dict[str, Any], pipe: Any, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="places image slots on three axes"):
        pipe.with_drafter(msd(pipe.target).write(tmp_path / "msd", **rope))
    assert pipe.with_drafter(vispec(pipe.target).write(tmp_path / "vispec", **rope)).drafter.method == "vispec"


def shallow_dflash(target: Any) -> Sample:
    sample = published.dflash(target)
    sample.config["dflash_config"]["target_layer_ids"] = [0, 1]
    return sample


@pytest.mark.parametrize("make", [published.eagle, published.eagle3, shallow_dflash])
def test_where_image_slots_on_three_axes_are_read_one_by_one_a_warning_says_so(
    make: Any, pipe: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(target: Any, **rope: Any) -> int:
        caplog.clear()
        folder = make(target.target).write(tmp_path / "published", **rope)
        target.with_drafter(folder)
        return sum("places image slots on three axes" in text for text in caplog.messages)

    axes = {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    text = mmspec.load(tiny.llama_model(), drafter="none", processor=tiny.tokenizer())
    assert [warned(pipe), warned(pipe, **axes), warned(text, **axes)] == [0, 1, 0]


def test_image_slots_that_hold_the_image_token_are_told_but_for_our_own_heads(
    pipe: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(target: Any, folder: Path) -> int:
        caplog.clear()
        target.with_drafter(folder)
        return sum("does not say what it read in image slots" in text for text in caplog.messages)

    text = mmspec.load(tiny.llama_model(), drafter="none", processor=tiny.tokenizer())
    folder = published.eagle(pipe.target).write(tmp_path / "published")
    assert [warned(pipe, folder), warned(pipe, msd(pipe.target).write(tmp_path / "msd"))] == [1, 0]
    assert warned(text, published.eagle(text.target).write(tmp_path / "text")) == 0
    net = taught.network("eagle2", pipe.target)
    own = taught.drafter("eagle2", net)
    own.bind(pipe.target)
    assert warned(pipe, export(own, pipe.target, "some/target", "eagle", tmp_path / "own")) == 0
    own.bind(text.target)
    blind = export(own, text.target, "some/target", "eagle", tmp_path / "blind")
    assert "image_slots_hold_tokens" not in (blind / "config.json").read_text()
