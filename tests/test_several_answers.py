"""Several answers to one prompt: it is read once, and they are those of as many rows that were read one by one."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import sights
import taught
import test_engine_matrix
import test_equality
import test_families
import test_image_glm
import test_speech_whisper
import tiny_families
import tiny_musicgen
import torch
import toys
from fixed import static_caches
from made import Made
from tiny_vision import BLUE, RED

import mmspec
from mmspec.cache import spread
from mmspec.contract import Needs
from mmspec.decoder import Decoder
from mmspec.drafters.none import NoDrafter
from mmspec.engine.cache import StaticRows
from mmspec.sampling import Sampler, Sampling
from mmspec.vlm.small_vlm import SmallVLM

N = 3
SAMPLED = Sampling(temperature=0.9, seed=3)


def repeated(inputs: dict[str, Any]) -> dict[str, Any]:
    """The first row of a batch, N times."""
    return test_engine_matrix.doubled(inputs, [0] * N)


def counted(target: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every forward of a target's decoder, from now on."""
    forward, rows = target.decoder._forward, []

    def noted(inputs: dict[str, Any], *more: Any, **extra: Any) -> Any:
        rows.append(len(next(inputs[name] for name in ("input_ids", "inputs_embeds") if name in inputs)))
        return forward(inputs, *more, **extra)

    monkeypatch.setattr(target.decoder, "_forward", noted)
    return rows


def prefilled(target: Any, inputs: dict[str, Any]) -> Any:
    """The state after the prompt, for N answers."""
    sampler = Sampler(SAMPLED, N, torch.device("cpu"))
    with torch.inference_mode():
        return target.prefill({**inputs, "max_new_tokens": 9, "n": N}, Needs(), sampler)


def check_read_once(target: Any, inputs: dict[str, Any], budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy and sampled, with drafts that are kept in part; inputs: of N equal rows."""
    for sampling in Sampling(), SAMPLED:
        want = toys.answer(target, NoDrafter(), inputs, budget, sampling).rows
        drafter = test_engine_matrix.Branches(want, target.vocab_size)
        apart = toys.answer(target, drafter, inputs, budget, sampling)
        with monkeypatch.context() as patch:
            rows = counted(target, patch)
            got = toys.answer(target, drafter, {**inputs, "n": N}, budget, sampling)
        assert got.rows == want
        assert [done.drafted for done in got.rounds] == [done.drafted for done in apart.rounds]
        assert sum(got.accepted) > 0
        pairs = rows[0]  # of a guided picture
        assert pairs in (1, 2)
        assert set(rows[1:]) == {N * pairs}
    assert len({tuple(row) for row in want}) > 1  # each row has noise of its own


@pytest.mark.dynamic("compares both paths")
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", [name for name in test_engine_matrix.CASES if name not in tiny_families.EVERY])
def test_a_prompt_is_read_once(name: str, static: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, pictures with guidance and without, speech; Mistral and Qwen2 get past their windows."""
    case = test_engine_matrix.CASES[name]()
    with static_caches() if static else nullcontext():
        target = case.make()
    check_read_once(target, repeated(case.inputs), case.budget, monkeypatch)


def test_a_prompt_of_two_grids_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    target = test_image_glm.GlmImage(test_image_glm.glm_model())
    one = test_image_glm.request(5)
    inputs = {name: torch.cat([value] * N) for name, value in one.items()}
    check_read_once(target, inputs, target.layout_of(one).length, monkeypatch)


def test_speech_is_heard_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the decoder looks at in it is there for all rows."""
    target = test_speech_whisper.Whisper(test_speech_whisper.whisper())
    inputs = test_speech_whisper.inputs_of(test_speech_whisper.speech().expand(N, -1, -1))
    check_read_once(target, inputs, 12, monkeypatch)
    encoded: list[int] = []
    target.model.get_encoder().register_forward_pre_hook(lambda module, given: encoded.append(len(given[0])))
    heard, cross = prefilled(target, inputs).cache.beside
    assert encoded == [1]
    assert {len(states) for layer in cross.layers for states in (heard, layer.keys, layer.values)} == {N}


def check_seen_once(pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the vision tower, one row of a forward; the answers are those of rows that were given as tensors."""
    budget = {"max_new_tokens": 14, **test_families.SAMPLED}
    want = pipe.generate(**pipe.prepare([RED, BLUE], "why", n=N), **budget)
    looked, look = [], pipe.target.model.get_image_features
    monkeypatch.setattr(
        pipe.target.model, "get_image_features", lambda *given, **told: looked.append(1) or look(*given, **told)
    )
    rows = counted(pipe.target, monkeypatch)
    got = pipe([RED, BLUE], "why", n=N, **budget)
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in want]
    assert [answer.prompt_tokens for answer in got] == [answer.prompt_tokens for answer in want]
    assert len(looked) == rows[0] == 1
    assert set(rows[1:]) == {N}


@pytest.mark.parametrize("family", test_families.CHOSEN)
def test_pictures_are_seen_once(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_seen_once(test_families.plain(family), monkeypatch)


@pytest.mark.dynamic("compares both paths")
@pytest.mark.parametrize("family", ["gemma3", "qwen2.5-vl"])
def test_pictures_are_seen_once_on_static_caches(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = test_families.plain(family)
    with static_caches():
        pipe = mmspec.load(plain.target.model, "none", processor=plain.processor)
    assert pipe.target.compiled
    check_seen_once(pipe, monkeypatch)


def test_a_drafter_that_reads_the_pictures_itself_finds_those_of_all_rows() -> None:
    """Here it takes the features that the target made of them."""
    base = test_families.plain("qwen2.5-vl")
    pipe = base.with_drafter(SmallVLM(base.target.model, length=3), "own")
    want = pipe.generate(**pipe.prepare([RED, BLUE], "why", n=N), max_new_tokens=14)
    got = pipe([RED, BLUE], "why", n=N, max_new_tokens=14)
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in want]
    assert [answer.stats.accept_lengths for answer in got] == [answer.stats.accept_lengths for answer in want]
    assert got[0].stats.accept_lengths[:3] == [3] * 3


DRAFTERS: dict[str, Callable[[Any], Any]] = {
    **{
        name: lambda target, name=name: taught.drafter(name, taught.network(name, target), depth=3, total=9)
        for name in taught.METHODS
    },
    **{
        name: lambda target, name=name: sights.drafter(name, sights.network(name, target, 3), depth=3, total=7)
        for name in sights.METHODS
    },
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_begins_with_what_rows_of_their_own_would_give_it(name: str) -> None:
    """Features, embeddings, focus: it drafts the same."""
    _, target = test_equality.make("smolvlm")
    inputs, drafter = repeated(test_equality.inputs_for(target, 17)), DRAFTERS[name](target)
    want = toys.answer(target, drafter, inputs, 12, SAMPLED)
    got = toys.answer(target, drafter, {**inputs, "n": N}, 12, SAMPLED)
    assert got.rows == want.rows
    assert [done.drafted for done in got.rounds] == [done.drafted for done in want.rounds]


def test_a_target_that_does_not_read_from_left_to_right_reads_every_row() -> None:
    pipe = mmspec.load(tiny_musicgen.musicgen(), "none", processor=tiny_musicgen.tokenizer())
    budget = {"max_new_tokens": 9, "temperature": 1.0, "seed": 3}
    want = pipe.generate(**pipe.prepare(None, "two", n=N), **budget)
    assert [answer.token_ids for answer in pipe(prompt="two", n=N, **budget)] == [answer.token_ids for answer in want]


def test_rows_are_spread_in_order_and_a_single_one_without_a_copy() -> None:
    two = torch.arange(6).view(2, 3)
    assert spread(two, 2).tolist() == [[0, 1, 2]] * 2 + [[3, 4, 5]] * 2
    decoder = Decoder(toys.llama())
    with torch.inference_mode():
        cache, heard = decoder.read([{"input_ids": torch.arange(30, 39)[None]}], [9], (1,))
        with Made() as noted:
            cache.spread(N)
            heard.spread(N)
        assert not noted.made
    assert cache.lengths == [9] * N
    assert {len(states) for layer in cache.hf.layers for states in (layer.keys, layer.values)} == {N}
    assert len(heard.logits) == len(heard.taps[1]) == len(cache.shift) == N


@pytest.mark.dynamic("switches static caches on itself")
def test_a_static_cache_has_a_row_for_each_answer() -> None:
    with static_caches():
        target = toys.target_of(toys.llama())
    cache = prefilled(target, repeated(toys.prompts(9))).cache
    assert isinstance(cache, StaticRows)
    assert cache.slab.form.rows == N
