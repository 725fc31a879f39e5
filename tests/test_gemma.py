"""What is special about Gemma 4 and Gemma 3n: windows, slots that see each other, shared keys, two head sizes, caps.

What holds for every family is tested in `test_families.py`.
"""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny_gemma
import torch
import toys
from test_families import Oracle, hf
from tiny_vision import PICTURES, RED, TEXTS, finish
from transformers import Gemma3nForCausalLM, Gemma4ForCausalLM, PreTrainedModel

import mmspec
from mmspec.causal_lm import CausalLM
from mmspec.drafters.kangaroo import check_layers, first_layers
from mmspec.errors import InputError, MismatchError
from mmspec.focus import Focus, watching
from mmspec.grouped import NAME as GROUPED
from mmspec.registry import resolve
from mmspec.vlm.small_vlm import SmallVLM

FAMILIES = list(tiny_gemma.MAKERS)
GEMMA4 = ["gemma4", "gemma4-unified"]
LONG = 3 * tiny_gemma.WINDOW
OWN = {"num_kv_shared_layers": 0, "use_double_wide_mlp": False}
"""Every layer has keys of its own."""
EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "small": ("gemma4", {"use_bidirectional_attention": None, "attention_k_eq_v": False, "use_double_wide_mlp": False}),
    "large": ("gemma4", {**OWN, "hidden_size_per_layer_input": 0, "final_logit_softcapping": None}),
    "experts": ("gemma4", {**OWN, **EXPERTS, "hidden_size_per_layer_input": 0}),
    "unified": ("gemma4-unified", OWN),
}
"""What published checkpoints differ in from the tiny models, which have all of it but experts."""


@cache
def plain(family: str, kind: str = "") -> mmspec.Pipeline:
    model, processor = tiny_gemma.MAKERS[family](0, **(KINDS[kind][1] if kind else {}))
    if kind == "experts":
        model.set_experts_implementation("batched_mm")  # the usual product of all experts at once takes no float64
    return mmspec.load(model, "none", processor=processor)


def greedy(pipe: mmspec.Pipeline, budget: int = LONG) -> list[list[int]]:
    """What transformers says to each prompt alone."""
    return [hf(pipe.target.model, pipe.prepare(*prompt), budget)[0] for prompt in zip(PICTURES, TEXTS, strict=True)]


def says_the_same(base: mmspec.Pipeline, *drafters: Any) -> None:
    want = greedy(base)
    for drafter in (Oracle(want, base.target.vocab_size), *drafters):
        answers = base.with_drafter(drafter, "own")(PICTURES, TEXTS, max_new_tokens=LONG)
        assert [answer.token_ids for answer in answers] == want


@pytest.mark.parametrize("family", FAMILIES)
def test_past_several_windows(family: str) -> None:
    """Transformers drops what has left the window, we mask it. A drafter on features has the first layer's shape."""
    base = plain(family)
    recipe: Any = resolve("recipes", "eagle2", "vlm")
    net = recipe().build(base.target).double()
    assert (net.config.head_dim, net.config.intermediate_size) == (8, 64)
    says_the_same(base, SmallVLM(toys.perturbed(base.target.model, 0.03), length=3), recipe().drafter(net))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_checkpoint(kind: str) -> None:
    says_the_same(plain(KINDS[kind][0], kind))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_pieces_is_read_as_a_whole(family: str) -> None:
    """Slots stay together and see each other, each piece knows where all so far are; layers that share keep none."""
    pipe = plain(family)
    pieces = copy.copy(pipe.target)
    pieces.piece_size = 7
    inputs = pipe.prepare(PICTURES[0], TEXTS[0])
    rows = inputs["input_ids"].tolist()
    with torch.inference_mode():
        (cache, whole), (_, cut) = (target.read(inputs, rows) for target in (pipe.target, pieces))
        assert len(cache.hf.layers) == pipe.target.num_layers - 2
        torch.testing.assert_close(cut.logits, whole.logits)


@pytest.mark.parametrize("family", GEMMA4)
def test_the_slots_of_a_picture_see_each_other(family: str) -> None:
    """What tells where they are is read; without it they are causal, as in transformers."""
    pipe = plain(family)
    inputs = pipe.prepare(PICTURES[0], TEXTS[0])
    told = pipe.generate(**inputs, max_new_tokens=6).token_ids
    del inputs["mm_token_type_ids"]
    untold = pipe.generate(**inputs, max_new_tokens=6).token_ids
    assert untold == hf(pipe.target.model, inputs, 6)[0] != told


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_that_drafters_borrow_caps_as_the_model_does(family: str) -> None:
    """What enters it is the last tap, in Gemma 3n made of all streams."""
    target = plain(family).target
    inputs = plain(family).prepare(PICTURES[0], TEXTS[0])
    with torch.no_grad():
        heard = target.read(inputs, inputs["input_ids"].tolist(), (target.num_layers,))[1]
        logits = target.head(heard.taps[target.num_layers][:, -1:])
    assert torch.equal(logits, heard.logits)
    assert 1.5 < logits.abs().max() < 3.0


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_seen_where_a_layer_has_no_keys_of_its_own(family: str) -> None:
    """Against the weights that the eager model returns."""
    model, processor = tiny_gemma.MAKERS[family](0)
    model.set_attn_implementation("eager")
    pipe = mmspec.load(model, "none", processor=processor)
    inputs = pipe.prepare(PICTURES[0], TEXTS[0])
    rows = inputs["input_ids"].tolist()
    focus = Focus([len(rows[0])])
    with torch.no_grad(), watching(model, [pipe.target.num_layers - 1], focus.note):
        pipe.target.read(inputs, rows)
    with torch.no_grad():
        seen = model(**{**inputs, "pixel_values": inputs["pixel_values"].double()}, output_attentions=True).attentions
    want = seen[-1].float().mean(1).mean(1)
    torch.testing.assert_close(focus.mean(), want)


@pytest.mark.parametrize(("family", "kind"), [("gemma4", Gemma4ForCausalLM), ("gemma3n", Gemma3nForCausalLM)])
def test_the_decoder_alone_is_a_text_model(family: str, kind: type[PreTrainedModel], tmp_path: Path) -> None:
    """Also read from a folder, where the sizes of the heads decide how attention is computed."""
    seeing = plain(family)
    made = finish(kind, copy.deepcopy(seeing.target.decoder.config), 0)
    made.save_pretrained(tmp_path)
    seeing.target.tokenizer.save_pretrained(tmp_path)
    pipe = mmspec.load(tmp_path, "recycling", dtype="float64")
    assert type(pipe.target) is CausalLM
    assert pipe.target.decoder.config._attn_implementation == GROUPED
    assert pipe(prompt=TEXTS[0], max_new_tokens=LONG).token_ids == hf(made, pipe.prepare(None, TEXTS[0]), LONG)[0]
    if family == "gemma3n":  # whose class says of its streams what the head reads nowhere
        recipe: Any = resolve("recipes", "eagle2", "vlm")
        with pytest.raises(MismatchError, match="Gemma3nForCausalLM has more than a head behind its last hidden state"):
            recipe().check(pipe.target)


@pytest.mark.parametrize("family", GEMMA4)
@pytest.mark.parametrize("count", [2, 4])
def test_first_layers_say_what_they_say_in_the_whole_decoder(family: str, count: int) -> None:
    """Vectors per layer are made for all layers; the fourth reads the second one's keys."""
    decoder = plain(family).target.model.get_decoder()
    ids = torch.arange(10, 30)[None]
    with torch.no_grad():
        states = first_layers(decoder, count)(ids).last_hidden_state
        assert torch.equal(states, decoder(ids, output_hidden_states=True).hidden_states[count])
    assert len(decoder.layers) == 5


def test_first_layers_of_several_streams_are_refused() -> None:
    with pytest.raises(MismatchError, match="Kangaroo cannot run the first layers of Gemma3nTextModel alone"):
        check_layers(plain("gemma3n").target)


@pytest.mark.parametrize("family", FAMILIES)
def test_sound_is_refused_and_not_drafted(family: str) -> None:
    pipe = plain(family)
    assert pipe.target.model.config.audio_token_id in pipe.target.placeholders
    with pytest.raises(InputError, match="is served without input_features: leave it out"):
        pipe.generate(**pipe.prepare(RED, "why"), input_features=torch.zeros(1, 4, 128))
    with pytest.raises(InputError, match="the prompt holds the control token '<|audio|>'"):
        pipe(RED, "what does <|audio|> say?")
