"""Published drafters that see: what they say about a prompt with a picture is what their tensors say."""

from pathlib import Path
from typing import Any

import published
import pytest
import tiny
import torch
from PIL import Image
from published import Sample, Text, attended, gated, normed
from test_interchange import heard_after
from torch import Tensor
from torch.nn.functional import linear

import mmspec
from mmspec import registry
from mmspec.errors import MismatchError, UnsupportedError

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


SAMPLES = {"msd": msd, "vispec": vispec, "vispec of qwen": lambda target: vispec(target, qkv=True)}


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


def test_layouts_that_see_are_told_apart(pipe: Any, tmp_path: Path) -> None:
    eagle = published.eagle(pipe.target)
    assert pipe.with_drafter(eagle.write(tmp_path / "eagle")).drafter.method == "eagle2"
    gate = torch.zeros(1)
    dream = eagle.but(layers__1__cross_attn_attn_gate=gate)
    with pytest.raises(UnsupportedError, match="a published DREAM drafter"):
        pipe.with_drafter(dream.write(tmp_path / "dream"))
    layouts: dict[str, Any] = {
        key: registry.resolve("layouts", key.partition("/")[2], key.partition("/")[0])
        for key in registry.entries("layouts")
    }
    for sample in (eagle, dream, *(make(pipe.target) for make in SAMPLES.values())):
        found = [key for key, layout in layouts.items() if layout.recognises(sample.config, set(sample.tensors))]
        assert len(found) == 1, found


def test_what_sees_needs_a_target_that_sees(tmp_path: Path) -> None:
    text = mmspec.load(tiny.llama_model(), drafter="none", processor=tiny.tokenizer())
    with pytest.raises(MismatchError, match="has no image slots"):
        text.with_drafter(msd(text.target).write(tmp_path / "msd"))
    shape = vispec(text.target).but(imadpt__q=torch.zeros(2, 2, 8))
    with pytest.raises(MismatchError, match=r"imadpt.q .*\[2, 2, 8\].*\[2, 4, 8\]"):
        text.with_drafter(shape.write(tmp_path / "vispec"))
