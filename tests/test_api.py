"""The public face on tiny random checkpoints: what `load` takes, what a `Pipeline` gives back."""

import copy
import gc
import logging
import math
import os
import time
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_families
import tiny_images
import torch
import toys
from PIL import Image
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, PreTrainedTokenizerFast

import mmspec
from mmspec import api, loading, one_call
from mmspec.acceptance.exact import Exact
from mmspec.acceptance.typical import Typical
from mmspec.checkpoints import JUDGED, save_drafter
from mmspec.drafters.eagle import Eagle, EagleHead
from mmspec.drafters.independent import Independent
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.errors import Error, InputError, MismatchError, OutOfMemoryError, UnknownNameError, UnsupportedError
from mmspec.named import made
from mmspec.options import MAX_NEW_TOKENS
from mmspec.targets import CausalTarget
from mmspec.templates import check_plain
from mmspec.text import TextStream

RED = Image.new("RGB", (50, 40), "red")
QUESTION = "what is the value of the red bar?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_smolvlm(tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def pipe(folder: Path) -> mmspec.Pipeline:
    return mmspec.load(folder, dtype="float64")


def eagle(target: object, seed: int = 0) -> Eagle:
    torch.manual_seed(seed)
    head = EagleHead(LlamaConfig(**{**tiny.text_config(), "num_hidden_layers": 1}))
    return Eagle(head.to(target.model.dtype))


def test_generate_is_load_and_call_and_keeps_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = mmspec.load(folder)(RED, QUESTION, max_new_tokens=5).token_ids
    load, loads = one_call.load, []
    monkeypatch.setattr(one_call, "load", lambda *parts, **rest: loads.append(parts) or load(*parts, **rest))
    for drafter in (None, None, "none", "suffix", "prompt-lookup"):
        assert mmspec.generate(RED, QUESTION, model=folder, drafter=drafter, max_new_tokens=5).token_ids == expected
    assert len(loads) == 1  # all drafters share the model


def test_an_answer_has_text_tokens_and_statistics(pipe: mmspec.Pipeline) -> None:
    answer = pipe(RED, QUESTION, max_new_tokens=9)
    stats = answer.stats
    assert answer.text == pipe.processor.decode(answer.token_ids, skip_special_tokens=True)
    assert answer.prompt_tokens == pipe.prepare(RED, QUESTION)["input_ids"].shape[1]
    assert answer.finish == "length"
    assert len(answer.token_ids) == stats.new_tokens == 9
    assert stats.tau == 8 / len(stats.accept_lengths)
    assert sum(stats.accept_lengths) + len(stats.accept_lengths) + 1 == 9
    assert stats.target_calls == 1 + len(stats.accept_lengths)
    assert stats.seconds == stats.prefill_seconds + stats.decode_seconds
    assert stats.lossless
    assert math.isnan(pipe(RED, QUESTION, max_new_tokens=1).stats.tau)


@pytest.mark.parametrize("acceptance", ["exact", "match"])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 3}])
def test_every_drafter_gives_the_same_tokens(
    pipe: mmspec.Pipeline, folder: Path, language_model: Path, acceptance: str, options: dict
) -> None:
    plain = mmspec.load(folder, "none", acceptance, dtype="float64")
    expected = plain(RED, QUESTION, max_new_tokens=24, **options)
    for drafter in ("prompt-lookup", language_model, eagle(plain.target)):
        for shape in ("auto", "own"):
            drafted = plain.with_drafter(drafter, shape)(RED, QUESTION, max_new_tokens=24, **options)
            assert drafted.token_ids == expected.token_ids


def test_pictures_come_in_every_form(pipe: mmspec.Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    RED.save(path)
    expected = pipe(RED, QUESTION, max_new_tokens=6).token_ids
    for image in (path, str(path), path.read_bytes(), np.asarray(RED), [RED], (str(path),)):
        assert pipe(image, QUESTION, max_new_tokens=6).token_ids == expected


def test_a_list_of_prompts_gives_a_list_of_answers(pipe: mmspec.Pipeline) -> None:
    one = pipe(prompt=["why"], max_new_tokens=4)
    assert isinstance(one, list)
    assert one[0].token_ids == pipe(prompt="why", max_new_tokens=4).token_ids
    pieces = next(pipe.stream([RED, None], ["why", QUESTION], max_new_tokens=4))
    assert [len(piece.tokens) for piece in pieces] == [1, 1]


def test_prompts_of_several_threads_are_read_one_at_a_time(
    pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer remembers how it was last asked to pad: another thread's batch would come out ragged."""
    inside, most, encode = [], [], pipe.target.encode

    def watched(*arguments: Any, **options: Any) -> Any:
        inside.append(1)
        time.sleep(0.005)
        most.append(len(inside))
        found = encode(*arguments, **options)
        inside.pop()
        return found

    monkeypatch.setattr(pipe.target, "encode", watched)
    pipes = [pipe, pipe.with_drafter("none")] * 3
    with ThreadPoolExecutor(len(pipes)) as pool:
        found = list(pool.map(lambda each: each.prepare(None, ["hi", "hello there"]), pipes))
    assert max(most) == 1
    assert all(len(one["input_ids"]) == 2 for one in found)


def test_pieces_put_together_are_the_answer(pipe: mmspec.Pipeline, language_model: Path) -> None:
    for seed in range(4):
        options = {"max_new_tokens": 40, "temperature": 1.0, "seed": seed}
        same = pipe.with_drafter("prompt-lookup", "own")  # `auto` may accept other lengths in another run
        answer = same(RED, QUESTION, **options)
        stream = same.stream(RED, QUESTION, **options)
        pieces = list(stream)
        assert "".join(piece.text for piece in pieces) == answer.text
        assert [token for piece in pieces for token in piece.tokens] == answer.token_ids
        assert [piece.drafted for piece in pieces][1:] == answer.stats.accept_lengths
        assert stream.finish().text == answer.text


def test_a_character_is_shown_once_all_its_bytes_are_there() -> None:
    text = "Ünïcode 中文 \U0001f642 — the bar"
    ids = tiny.tokenizer()(text)["input_ids"]
    assert len(ids) > len(text)
    stream = TextStream(tiny.tokenizer())
    pieces = [stream.add([token]) for token in ids]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_never_become_a_character_are_shown_at_the_end() -> None:
    half = tiny.tokenizer()("中")["input_ids"][:1]
    stream = TextStream(tiny.tokenizer())
    assert stream.add(half) == ""
    assert stream.add([], last=True) == tiny.tokenizer().decode(half)


def test_bytes_that_are_spelled_out_are_shown_with_those_that_they_hang_on() -> None:
    """What is a newline alone is none beside half a character."""
    words = {**{f"<0x{byte:02X}>": byte for byte in range(256)}, "\u2581a": 256, "b": 257}
    model = Tokenizer(models.BPE(words, [], byte_fallback=True))
    model.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)
    whole = [256, 10, *"\u00e9".encode(), 257, 10]
    for ids in ([*whole, 257, *"\U0001f642".encode()], [*whole, 0xF0, 0x9F], [*whole, 0xF0, 257]):
        stream = TextStream(tokenizer)
        pieces = [stream.add([token], last=place == len(ids) - 1) for place, token in enumerate(ids)]
        assert "".join(pieces) == tokenizer.decode(ids)
        assert pieces[:5] == [" a", "", "", "", "\n\u00e9b"]


def test_rows_that_are_over_are_not_decoded_again() -> None:
    read: list[int] = []
    tokenizer = SimpleNamespace(
        decode=lambda ids, **more: read.append(len(ids)) or "x" * len(ids), convert_ids_to_tokens=str
    )
    stream = TextStream(tokenizer)
    assert [stream.add([1, 2]), stream.add([3], last=True), stream.add([], last=True)] == ["xx", "x", ""]
    assert read == [2, 3]


def test_a_stop_string_ends_the_answer_as_in_generate(pipe: mmspec.Pipeline) -> None:
    free = pipe(RED, QUESTION, max_new_tokens=30)
    stop = next(char for char in free.text[8:] if char.isalnum() and char.isascii())
    answer = pipe(RED, QUESTION, max_new_tokens=30, stop=stop)
    assert answer.finish == "stop"
    assert stop in answer.text
    assert answer.token_ids == free.token_ids[: len(answer.token_ids)]
    assert len(answer.token_ids) < 30
    inputs = pipe.prepare(RED, QUESTION)
    out = pipe.target.model.generate(
        **{**inputs, "pixel_values": inputs["pixel_values"].double()},
        max_new_tokens=30,
        do_sample=False,
        stop_strings=[stop],
        tokenizer=pipe.processor.tokenizer,
    )
    assert out[0, inputs["input_ids"].shape[1] :].tolist() == answer.token_ids
    assert pipe(RED, QUESTION, max_new_tokens=30, stop=["never", stop]).token_ids == answer.token_ids


def test_the_generation_config_gives_the_defaults(folder: Path) -> None:
    model = tiny.smolvlm_model().double()
    pipe = mmspec.load(model, "none", processor=tiny.processor())
    greedy = pipe(RED, QUESTION, max_new_tokens=12).token_ids
    sampled = pipe(RED, QUESTION, max_new_tokens=12, temperature=1.3, top_k=7, repetition_penalty=1.2).token_ids
    config = model.generation_config
    config.do_sample, config.temperature, config.top_k, config.repetition_penalty = True, 1.3, 7, 1.2
    assert pipe(RED, QUESTION, max_new_tokens=12).token_ids == sampled != greedy
    penalised = pipe(RED, QUESTION, max_new_tokens=12, temperature=0)
    assert penalised.token_ids == pipe(RED, QUESTION, max_new_tokens=12, temperature=0, top_k=3).token_ids
    config.temperature = 1e-6  # as of Qwen2.5-VL
    assert pipe.target.sampling({}).temperature == 0
    assert pipe(RED, QUESTION, max_new_tokens=12).token_ids == penalised.token_ids
    config.eos_token_id = [config.eos_token_id, greedy[3]]
    answer = pipe(RED, QUESTION, max_new_tokens=12, temperature=0, repetition_penalty=1.0)
    assert answer.token_ids == greedy[: greedy.index(greedy[3]) + 1]
    assert answer.finish == "stop"
    config.eos_token_id, config.max_new_tokens = None, 9
    assert len(pipe(RED, QUESTION).token_ids) == 9
    config.max_new_tokens = None
    assert len(pipe(RED, QUESTION).token_ids) == MAX_NEW_TOKENS


@pytest.mark.parametrize("told", [True, False])
def test_suppressed_tokens_are_those_of_generate(told: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Of the call, or else of the checkpoint, as `google/gemma-4-12B` has them."""
    model, processor = tiny.smolvlm_model().double(), tiny.processor()
    pipe = mmspec.load(model, "none", processor=processor)
    free = pipe(RED, QUESTION, max_new_tokens=12).token_ids
    never = [*{*free[:4]}, 10**6]
    inputs = pipe.prepare(RED, QUESTION)
    model.generation_config.suppress_tokens = None if told else never
    asked: dict[str, Any] = {"max_new_tokens": 12, **({"suppress_tokens": never[:-1]} if told else {})}
    with torch.no_grad():
        out = model.generate(**{**inputs, "pixel_values": inputs["pixel_values"].double()}, do_sample=False, **asked)
    want = out[0, inputs["input_ids"].shape[1] :].tolist()
    assert not {*want} & {*never}
    with caplog.at_level(logging.WARNING):
        drafting = mmspec.load(model, "recycling", processor=processor)
    assert not caplog.records
    warm = {"temperature": 1.0, "seed": 3, "top_k": 8, **asked}
    for each in (pipe, drafting, pipe.with_drafter(Eagle(toys.eagle_head(model), depth=3))):
        answer = each(RED, QUESTION, **asked)
        assert answer.token_ids == want
        assert answer.stats.lossless
        assert [one.token_ids for one in each([None, RED], ["why", QUESTION], **asked)][1] == want
        assert each(RED, QUESTION, **warm).token_ids == pipe(RED, QUESTION, **warm).token_ids
    assert pipe(RED, QUESTION, **{**asked, "suppress_tokens": []}).token_ids == free


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ("<image>", "'<image>' is not valid: a list of ids is needed"),
        ([-1], " holds -1; the model knows ids 0 to 96"),
        ([3, 97], " holds 97; the model knows ids 0 to 96"),
        (range(97), " holds all ids of the model: leave it one to emit"),
    ],
)
def test_ids_that_cannot_be_suppressed_are_refused(ids: Any, why: str) -> None:
    pipe = mmspec.load(toys.llama(), "none")
    with pytest.raises(InputError, match=f"suppress_tokens=?{why}"):
        pipe.generate(**toys.prompts(5), suppress_tokens=ids)


def test_codes_are_not_numbered_as_suppressed_tokens_are(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_images.janus_model()
    model.generation_config.suppress_tokens = [1]
    with caplog.at_level(logging.WARNING):
        pipe = mmspec.load(model, "none", processor=tiny_images.janus_processor())
    assert "suppress_tokens" in caplog.text
    assert pipe.target.sampling({}).suppress_tokens == ()
    with pytest.raises(InputError, match="suppress_tokens is not an option of Janus"):
        pipe(prompt="a red circle", suppress_tokens=[1])


def test_settings_that_are_not_applied_are_named(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny.llama_model()
    with caplog.at_level(logging.WARNING):
        mmspec.load(model)
    assert not caplog.records
    named = {
        "no_repeat_ngram_size": 1,
        "min_new_tokens": 1,
        "forced_eos_token_id": 1,
        "stop_strings": ["a"],
        "top_h": 0.5,
        "encoder_no_repeat_ngram_size": 2,
        "num_return_sequences": 2,
        "max_time": 1.0,
    }
    for name, value in named.items():
        setattr(model.generation_config, name, value)
    with caplog.at_level(logging.WARNING):
        mmspec.load(model)
    assert all(name in caplog.text for name in named)


def test_what_goes_along_with_ids_has_their_shape() -> None:
    pipe = mmspec.load(tiny_families.build("gemma3")[0], "none")
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "token_type_ids": torch.tensor([[0, 0]])}
    for wrong in (inputs, {**inputs, "token_type_ids": [[0, 0, 0]]}):
        with pytest.raises(InputError, match="token_type_ids must be a tensor of the shape of input_ids"):
            pipe.generate(**wrong, max_new_tokens=2)


def test_the_context_bounds_the_answer() -> None:
    model = tiny.smolvlm_model().double()
    model.generation_config.eos_token_id = None
    answer = mmspec.load(model, processor=tiny.processor())(RED, "a " * 90, max_new_tokens=500)
    assert answer.prompt_tokens + len(answer.token_ids) == tiny.CONTEXT
    assert answer.finish == "length"


def test_generate_takes_the_tensors_that_hf_generate_takes(pipe: mmspec.Pipeline) -> None:
    inputs = pipe.prepare(RED, QUESTION)
    answer = pipe(RED, QUESTION, max_new_tokens=7).token_ids
    assert pipe.generate(**inputs, max_new_tokens=7).token_ids == answer
    assert pipe.generate(inputs.pop("input_ids"), **inputs, max_new_tokens=7).token_ids == answer  # as HF takes it
    batch = pipe.generate(**pipe.prepare([RED, None], [QUESTION, "why"]), max_new_tokens=7)
    assert [len(answer.token_ids) for answer in batch] == [7, 7]


def test_padding_without_a_mask_is_left_out_as_in_generate() -> None:
    """Where the generation config names it, and it ends no answer."""
    model = toys.llama()
    pipe, inputs = mmspec.load(model, "none"), toys.prompts(9, 5)
    masked = [answer.token_ids for answer in pipe.generate(**inputs, max_new_tokens=6)]
    for ends, told in ((None, True), (7, True), ([7, 0], False)):
        model.generation_config.eos_token_id = ends
        with torch.no_grad():
            want = model.generate(inputs["input_ids"], do_sample=False, min_new_tokens=6, max_new_tokens=6)[:, 9:]
        answers = pipe.generate(inputs["input_ids"], max_new_tokens=6)
        assert [answer.token_ids for answer in answers] == want.tolist()
        assert (want.tolist() == masked) == told
        assert [answer.prompt_tokens for answer in answers] == ([9, 5] if told else [9, 9])


class Made:
    """Stands in for a pipeline: answers nothing."""

    def with_drafter(self, *given: Any) -> "Made":
        return self

    def __call__(self, *given: Any) -> None:
        """Answers nothing."""


def test_only_the_last_two_models_stay_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one was asked for again in between."""
    read: list[str] = []
    monkeypatch.setattr(one_call, "load", lambda model, *given, **more: read.append(model) or Made())
    monkeypatch.setattr(one_call, "_checked", lambda *given: CausalTarget)
    monkeypatch.setattr(one_call, "_pipelines", lru_cache(maxsize=2)(one_call._pipelines.__wrapped__))  # of its own
    for model in ("a", "b", "a", "c", "a"):
        one_call.generate(None, "one", model=model)
    assert read == ["a", "b", "c"]
    one_call.generate(None, "one", model="b")
    assert read == ["a", "b", "c", "b"]
    one_call.generate(None, "one", model="b", drafter=PromptLookup())
    assert read == ["a", "b", "c", "b"]  # a drafter of one's own is no reason to read a model anew


@pytest.mark.parametrize("error", [OutOfMemoryError, torch.OutOfMemoryError])
def test_models_that_stay_loaded_make_room_for_another(
    error: type[RuntimeError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that holds one model, and none that is too large. That a drafter does not fit, torch itself says."""
    read: list[str] = []
    held: list[weakref.ref[Made]] = []

    def load(model: str, *given: Any, **more: Any) -> Made:
        read.append(model)
        if model == "broken":
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        if model == "large" or any(one() for one in held):
            raise error("the device has too little free memory")
        pipe = Made()
        held.append(weakref.ref(pipe))
        return pipe

    monkeypatch.setattr(one_call, "load", load)
    monkeypatch.setattr(one_call, "_checked", lambda *given: CausalTarget)
    monkeypatch.setattr(one_call, "_pipelines", lru_cache(maxsize=2)(one_call._pipelines.__wrapped__))  # of its own
    for model in ("a", "b", "b"):
        one_call.generate(None, "one", model=model)
    assert read == ["a", "b", "b"]  # b in vain, then alone; then it stays
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        one_call.generate(None, "one", model="broken")
    one_call.generate(None, "one", model="b")
    assert read[3:] == ["broken"]  # another error is no reason to let go of anything
    for _ in range(2):
        with pytest.raises(error, match="too little free memory"):
            one_call.generate(None, "one", model="large")
    assert read[4:] == ["large"] * 3  # once more only where there was something to let go of


def test_generate_knows_a_folder_by_its_place_and_by_when_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> list[int]:
        return mmspec.generate(None, "why", model="model", drafter="none", max_new_tokens=8).token_ids

    answers = []
    for seed, place in enumerate(("here", "there")):
        model = tiny.tiny_llama(tmp_path / place / "model", seed)
        monkeypatch.chdir(tmp_path / place)
        assert ask() == mmspec.load(model, "none")(None, "why", max_new_tokens=8).token_ids
        answers.append(ask())
    assert answers[0] != answers[1]
    tiny.tiny_llama(tmp_path / "there" / "model", seed=0)
    assert ask() == answers[0]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match="unknown model 'model'"):
        ask()


@pytest.mark.parametrize("beside", [True, False])
def test_generate_reads_a_drafter_anew_once_it_was_trained_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    folder = tiny.tiny_smolvlm(tmp_path / "model")
    target = mmspec.load(folder, "none").target
    place = folder / "drafters" / "eagle2" if beside else tmp_path / "mine"
    load, load_drafter = one_call.load, loading.load_drafter
    models: list[Any] = []
    drafters: list[Any] = []
    monkeypatch.setattr(one_call, "load", lambda *given, **more: models.append(given) or load(*given, **more))
    monkeypatch.setattr(loading, "load_drafter", lambda *given: drafters.append(given) or load_drafter(*given))
    for seed in range(2):
        save_drafter(eagle(target, seed), place, target)
        for _ in range(2):
            mmspec.generate(RED, QUESTION, model=folder, drafter="eagle2" if beside else place, max_new_tokens=4)
        assert (len(models), len(drafters)) == (1, seed + 1)  # the model is not read anew
    (folder / "notes.md").write_text("nobody reads them")
    mmspec.generate(RED, QUESTION, model=folder, drafter="eagle2" if beside else place, max_new_tokens=4)
    assert len(models) == 1
    os.utime(folder / "tokenizer.json")
    mmspec.generate(RED, QUESTION, model=folder, drafter="eagle2" if beside else place, max_new_tokens=4)
    assert len(models) == 2


@pytest.mark.parametrize("wrong", [{"drafter": "eagl2"}, {"acceptance": "exat"}, {"drafter": "./nowhere"}])
def test_wrong_names_are_told_before_a_model_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str]
) -> None:
    monkeypatch.setattr(api, "read_target", lambda *given: pytest.fail("the model was read"))
    with pytest.raises(UnknownNameError, match=r"did you mean|no such folder"):
        mmspec.load(folder, **wrong)
    with pytest.raises(UnknownNameError, match=r"did you mean|no such folder"):
        mmspec.generate(RED, QUESTION, model=folder, **wrong)


def test_a_hub_s_model_is_judged_before_its_weights_are_fetched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fetched: list[list[str]] = []

    def snapshot(name: str, repo_type: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        fetched.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with pytest.raises(UnknownNameError, match="did you mean 'eagle2'"):
        mmspec.load("some/model", "eagl2")
    assert fetched[0] == JUDGED
    assert not any(fnmatch("model.safetensors", pattern) for patterns in fetched for pattern in patterns)
    mmspec.load("some/model", "none")
    assert any(fnmatch("model.safetensors", pattern) for pattern in fetched[-1])


def test_auto_is_the_drafter_that_none_is(folder: Path) -> None:
    assert mmspec.load(folder, "auto").names == mmspec.load(folder).names == ("prompt-lookup", "exact")
    assert mmspec.load("smolvlm-mini", "none").with_drafter("auto").names == ("dspark", "exact")


def test_a_method_s_name_that_is_a_folder_s_too_is_told_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    pipe = mmspec.load(folder.resolve(), "suffix")
    assert not caplog.records
    (tmp_path / "suffix").mkdir()
    assert pipe.with_drafter("suffix").names[0] == "suffix"
    assert "the drafter that is known by this name; the folder here is ./suffix" in caplog.text


def test_generate_of_a_pipeline_tells_who_asks_with_words_where_to_ask(pipe: mmspec.Pipeline) -> None:
    for wrong in ((RED, QUESTION), ()):
        with pytest.raises(InputError, match=r"takes tensors, .*: ask with pipe\(image, prompt\)"):
            pipe.generate(*wrong, **({} if wrong else {"prompt": QUESTION}))


def test_a_stream_that_is_left_lets_go_of_its_request(pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    prefill = type(pipe.target).prefill

    def watched(target: Any, *given: Any) -> Any:
        state = prefill(target, *given)
        kept.append(weakref.ref(state))
        return state

    monkeypatch.setattr(type(pipe.target), "prefill", watched)
    with pipe.stream(RED, QUESTION, max_new_tokens=9) as stream:
        first = next(stream)
    assert len(first.tokens) == 1
    monkeypatch.setattr(type(pipe.rule), "__call__", lambda *given: 1 / 0)
    with suppress(ZeroDivisionError), pipe.stream(RED, QUESTION, max_new_tokens=9) as broken:
        list(broken)
    gc.collect()
    assert [state() for state in kept] == [None, None]
    assert list(stream) == []
    assert stream.finish().token_ids == first.tokens


def test_the_answer_of_a_stream_that_was_closed_says_so(pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, left = (pipe.stream(RED, QUESTION, max_new_tokens=3) for _ in range(2))
    list(whole)
    first = next(left)
    for stream in (whole, left):
        stream.close()
    assert whole.finish().finish == "length"
    answer = left.finish()
    assert (answer.token_ids, answer.finish) == (first.tokens, "closed")
    monkeypatch.setattr(type(pipe.target), "product_of", lambda *given: pytest.fail("something was made of nothing"))
    unread = pipe.stream([RED, None], [QUESTION, "why"], max_new_tokens=3)
    unread.close()
    assert [(answer.text, answer.token_ids, answer.finish) for answer in unread.finish()] == [("", [], "closed")] * 2


def held(pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Prefills from now on set `entered` and wait for `go`; `states` refers to what they made."""
    gate = SimpleNamespace(entered=Event(), go=Event(), states=[])
    prefill = type(pipe.target).prefill

    def waiting(target: Any, *given: Any) -> Any:
        gate.entered.set()
        assert gate.go.wait(60)
        state = prefill(target, *given)
        gate.states.append(weakref.ref(state))
        return state

    monkeypatch.setattr(type(pipe.target), "prefill", waiting)
    return gate


def test_a_stream_that_is_closed_while_another_thread_steps_it_ends_after_that_step(
    pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = held(pipe, monkeypatch)
    stream = pipe.stream(RED, QUESTION, max_new_tokens=9)
    with ThreadPoolExecutor(1) as pool:
        pieces = pool.submit(list, stream)
        assert gate.entered.wait(60)
        try:
            stream.close()
        finally:
            gate.go.set()
        (piece,) = pieces.result()
    answer = stream.finish()
    assert (answer.token_ids, answer.finish) == (piece.tokens, "closed")
    gc.collect()
    assert [state() for state in gate.states] == [None]


def test_threads_that_step_one_stream_take_turns(pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pipe(RED, QUESTION, max_new_tokens=9).token_ids
    gate = held(pipe, monkeypatch)
    stream = pipe.stream(RED, QUESTION, max_new_tokens=9)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(next, stream)
        assert gate.entered.wait(60)
        second = pool.submit(next, stream)
        wait([second], timeout=0.5)  # in vain, unless it fails
        gate.go.set()
        pieces = [first.result(), second.result(), *stream]
    assert [token for piece in pieces for token in piece.tokens] == expected


def test_an_answer_that_is_over_at_once_is_not_drafted_for(
    pipe: mmspec.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(pipe.drafter), "begin", lambda *given: pytest.fail("the prompt was read"))
    assert len(pipe(RED, QUESTION, max_new_tokens=1).token_ids) == 1


def test_a_loaded_model_is_taken_as_it_is(folder: Path) -> None:
    model = tiny.smolvlm_model().double()
    pipe = mmspec.load(model.train(), processor=tiny.processor())
    assert pipe.target.model is model
    assert not model.training
    expected = mmspec.load(folder, dtype="float64")(RED, QUESTION, max_new_tokens=6)
    assert pipe(RED, QUESTION, max_new_tokens=6).token_ids == expected.token_ids
    with pytest.raises(InputError, match="dtype and device"):
        mmspec.load(model, dtype="float32")
    with pytest.raises(InputError, match="no processor"):
        mmspec.load(model)(RED, QUESTION)


def test_a_loaded_model_finds_its_processor_in_its_folder(folder: Path) -> None:
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert mmspec.load(model)(RED, QUESTION, max_new_tokens=2).token_ids


def test_attention_that_takes_no_tree_masks_is_refused() -> None:
    model = tiny.llama_model()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UnsupportedError, match="flash_attention_2"):
        mmspec.load(model)


def test_text_models_answer_text(language_model: Path) -> None:
    pipe = mmspec.load(language_model, dtype="float64")
    answer = pipe(prompt="the red bar is", max_new_tokens=12)
    ids = pipe.processor("the red bar is", return_tensors="pt")["input_ids"]
    out = pipe.target.model.generate(ids, max_new_tokens=12, do_sample=False)
    assert answer.token_ids == out[0, ids.shape[1] :].tolist()
    texts = ["the red bar is", "why"]
    alone = [pipe(prompt=text, max_new_tokens=12).token_ids for text in texts]
    assert [answer.token_ids for answer in pipe(prompt=texts, max_new_tokens=12)] == alone
    with pytest.raises(InputError, match="LlamaForCausalLM does not see here: leave image out"):
        pipe(RED, "why")


def test_text_models_use_their_chat_template(language_model: Path) -> None:
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = "{% for m in messages %}User: {{ m['content'] }}{% endfor %} Assistant:"
    pipe = mmspec.load(language_model, processor=tokenizer)
    assert tokenizer.decode(pipe.prepare(None, "why")["input_ids"][0]) == "User: why Assistant:"
    held = pipe.prepare(None, "an <image>")["input_ids"][0].tolist()
    assert tokenizer.decode(held) == "User: an <image> Assistant:"
    assert not set(held) & set(tokenizer.all_special_ids)


def test_control_tokens_are_listed_once_and_anew_where_one_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, listings = copy.deepcopy(tiny.tokenizer()), []
    listed = type(tokenizer).added_tokens_decoder

    def noted(self: Any) -> Any:
        listings.append(self)
        return listed.fget(self)

    monkeypatch.setattr(type(tokenizer), "added_tokens_decoder", property(noted))
    for _ in range(3):
        check_plain(["a <late> word"], tokenizer)
        with pytest.raises(InputError, match="control token '<image>'"):
            check_plain(["an <image>"], tokenizer)
    assert len(listings) == 1
    tokenizer.add_tokens(["<late>"], special_tokens=True)
    for _ in range(2):
        with pytest.raises(InputError, match="control token '<late>'"):
            check_plain(["a <late> word"], tokenizer)
    assert len([one for one in listings if one is tokenizer]) >= 2


def test_text_models_take_the_tokenizer_and_the_template_of_a_processor(language_model: Path) -> None:
    """As `AutoProcessor` reads one for the text model of a family that sees."""
    pipe = mmspec.load(language_model, processor=tiny.processor())
    inputs = pipe.prepare(None, ["why", "what is the value?"])
    asked = tiny.processor().decode(inputs["input_ids"][0], skip_special_tokens=True)
    assert asked == "User: why\nAssistant:"
    held = pipe.prepare(None, "an <image>")["input_ids"][0].tolist()
    assert "an <image>" in tiny.tokenizer().decode(held, skip_special_tokens=True)


TEMPLATES = {
    "wrong type": "{{ messages[0]['content'] + 3 }}",
    "raised": "{{ raise_exception('no roles') }}",
    "unknown": "{{ tools.first.name }}",
    "damaged": "{% if messages %}",
    "no default": {"tool_use": "{{ messages }}"},
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_what_a_chat_template_stumbles_over_is_one_error(template: Any, pipe: mmspec.Pipeline) -> None:
    tokenizer, processor = copy.deepcopy(tiny.tokenizer()), copy.deepcopy(tiny.processor())
    tokenizer.chat_template = processor.chat_template = template
    for model, one in ((tiny.llama_model(), tokenizer), (pipe.target.model, processor)):
        with pytest.raises(InputError, match=f"{type(one).__name__} refuses the prompt: .") as caught:
            mmspec.load(model, "none", processor=one).prepare(None, "why")
        assert "\n" not in str(caught.value)


def test_the_best_drafter_beside_the_model_is_the_default(tmp_path: Path) -> None:
    folder = tiny.tiny_smolvlm(tmp_path / "model")
    plain = mmspec.load(folder, "none")
    assert isinstance(mmspec.load(folder).drafter, PromptLookup)
    save_drafter(Independent(tiny.llama_model(1), length=3), folder / "drafters" / "spd", plain.target)
    assert isinstance(mmspec.load(folder).drafter, Independent)
    save_drafter(eagle(plain.target), folder / "drafters" / "eagle2", plain.target)
    assert isinstance(mmspec.load(folder).drafter, Eagle)
    assert isinstance(mmspec.load(folder, "spd").drafter, Independent)
    assert isinstance(plain.with_drafter(None).drafter, Eagle)
    assert isinstance(plain.with_drafter("none").drafter, NoDrafter)
    assert plain.with_drafter("spd").target is plain.target


def test_rules_come_by_name_or_as_objects(folder: Path) -> None:
    assert isinstance(mmspec.load(folder, acceptance=Exact()).rule, Exact)
    with pytest.raises(InputError, match="acceptance must be"):
        mmspec.load(folder, acceptance=Exact)
    with pytest.raises(UnknownNameError, match="did you mean 'exact'"):
        mmspec.load(folder, acceptance="exakt")
    with pytest.raises(MismatchError, match="'exact' takes every kind"):
        mmspec.load(folder, "prompt-lookup", "ratio")


def test_rules_are_set_behind_their_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe: Any = mmspec.load(folder, acceptance="typical=0.2")
    assert (pipe.rule.epsilon, pipe.rule.delta) == (0.2, Typical().delta)
    pipe = pipe.with_drafter("none", acceptance="typical:delta=0.5")
    assert (pipe.rule.epsilon, pipe.rule.delta) == (Typical().epsilon, 0.5)
    monkeypatch.setattr(api, "read_target", lambda *given: pytest.fail("the model was read"))
    told = {
        "typical=": "write it as in tolerance=4",
        "typical=0.2:epsilon=0.3": "each setting once",
        "typical=7": "epsilon in",
        "typical:dleta=1": "did you mean 'delta'",
        "exact=2": "has no settings",
    }
    for wrong, problem in told.items():
        with pytest.raises(Error, match=problem):
            mmspec.load(folder, acceptance=wrong)


@pytest.mark.parametrize(
    ("kind", "name", "setting", "modality", "known"),
    [
        ("rule", "lantern", "neighbours", "image", "delta, k, plain, residual, unit"),
        ("rule", "pcg", "groups", "speech", "size"),
        ("drafter", "suffix", "store", "vlm", "factor, length, longest, share, total, tries"),
        ("drafter", "hybrid", "copier", "vlm", "least, other"),
    ],
)
def test_a_setting_that_no_text_can_give_is_not_known_behind_a_name(
    kind: str, name: str, setting: str, modality: str, known: str
) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown setting of the {kind} {name} .{setting}.*known: {known}$"):
        made(kind, name, {setting: "3"}, modality)


def test_a_setting_that_is_usually_none_is_known_behind_a_name() -> None:
    assert made("drafter", "sjd", {"window": 5}, "image").window == 5
    assert made("drafter", "hybrid", {"other": "suffix"}, "vlm").given == "suffix"


@pytest.mark.parametrize("dtype", ["float32", torch.float32, None])
def test_the_dtype_on_a_cpu(folder: Path, dtype: object) -> None:
    assert mmspec.load(folder, dtype=dtype, device="cpu").target.model.dtype == torch.float32


def test_the_printed_form_names_the_parts(pipe: mmspec.Pipeline) -> None:
    assert repr(pipe) == "Pipeline(SmolVLMForConditionalGeneration, prompt-lookup, exact)"
