"""The VALL-E-type model: what it says equals, token for token, what it says one token at a time, with every drafter."""

import itertools
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_speech as tiny
import torch
import toys

import mmspec
from mmspec.drafters.independent import Independent
from mmspec.drafters.none import NoDrafter
from mmspec.drafters.prompt_lookup import PromptLookup
from mmspec.errors import CheckpointError, Error, InputError, UnknownNameError
from mmspec.sampling import Sampling
from mmspec.speech.audio import Audio
from mmspec.speech.codec import MelCodec
from mmspec.speech.valle import Valle
from mmspec.speech.valle_target import ValleTarget

LIKE_THE_FIELD = {"temperature": 0.9, "top_p": 0.8, "top_k": 25, "ras_window": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_valle(tmp_path_factory.mktemp("speech") / "valle")


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Any:
    return mmspec.load(folder, drafter="none", dtype="float64")


def inputs_of(pipe: Any, *texts: str) -> dict[str, Any]:
    return pipe.prepare(None, list(texts))


def drafters(model: Valle) -> dict[str, Any]:
    return {
        "copy": Independent(model, length=4),
        "perturbed": Independent(toys.perturbed(model, 0.1), length=3),
        "random": Independent(toys.perturbed(model, 3.0), length=3),
        "prompt-lookup": PromptLookup(length=5),
        "eagle": toys.Eagle(toys.eagle_head(model), depth=3, width=2, top_k=3, total=8),
    }


@pytest.mark.parametrize("name", ["copy", "perturbed", "random", "prompt-lookup", "eagle"])
@pytest.mark.parametrize("options", [{}, LIKE_THE_FIELD, {"temperature": 1.0, "repetition_penalty": 1.3}])
def test_every_drafter_gives_the_codes_and_the_sound_of_the_loop(pipe: Any, name: str, options: Any) -> None:
    texts = ["two red circles", "is it nine?"]
    want = pipe(prompt=texts, max_new_tokens=24, seed=3, **options)
    got = pipe.with_drafter(drafters(pipe.target.model)[name])(prompt=texts, max_new_tokens=24, seed=3, **options)
    for one, other in zip(got, want, strict=True):
        assert one.token_ids == other.token_ids
        assert np.array_equal(one.audio.samples, other.audio.samples)
        assert one.stats.lossless
    accepted = sum(sum(one.stats.accept_lengths) for one in got)
    emitted = sum(len(one.token_ids) for one in got)
    if name == "copy":
        assert accepted > 0.7 * emitted
    if name == "perturbed":
        assert 0 < accepted < 0.7 * emitted


def test_greedy_codes_equal_those_of_transformers(pipe: Any) -> None:
    inputs = inputs_of(pipe, "two red circles")
    want = pipe.target.model.generate(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], do_sample=False, max_new_tokens=24
    )[0, inputs["input_ids"].shape[1] :].tolist()
    fast = pipe.with_drafter(drafters(pipe.target.model)["perturbed"])
    assert fast.generate(**inputs, max_new_tokens=24, temperature=0).token_ids == want


def test_a_batch_equals_single_calls(pipe: Any) -> None:
    texts, voices = ["two red circles", "a", "is the blue bar taller?"], ["low", "high", "low"]
    together = pipe(prompt=texts, voice=voices, max_new_tokens=20, temperature=1.0, seed=5)
    for row, (text, voice) in enumerate(zip(texts, voices, strict=True)):
        alone = pipe(prompt=text, voice=voice, max_new_tokens=20, temperature=1.0, seed=5 + row)
        assert alone.token_ids == together[row].token_ids
        assert np.array_equal(alone.audio.samples, together[row].audio.samples)


def test_only_codes_and_the_end_are_ever_emitted(pipe: Any) -> None:
    first = pipe.target.model.config.first_code
    for seed in range(5):
        out = pipe(prompt="what is it?", temperature=2.0, max_new_tokens=60, seed=seed)
        assert min(out.token_ids) >= first - 1
        assert (out.token_ids[-1] == first - 1) == (out.finish == "stop")
        assert first - 1 not in out.token_ids[:-1]


def test_text_and_voice_both_change_what_is_said(pipe: Any) -> None:
    laws = []
    for text in ("one", "two"):
        for voice in ("low", "high"):
            ids = pipe.prepare(None, text, voice)["input_ids"]
            laws.append(pipe.target.model(input_ids=ids).logits[0, -1].detach().softmax(-1))
    for one, other in itertools.combinations(laws, 2):
        assert float((one - other).abs().sum()) > 1e-3


def test_the_sound_lasts_as_long_as_its_codes(pipe: Any) -> None:
    out = pipe(prompt="two red circles", max_new_tokens=20)
    codec = pipe.processor.codec
    codes = [token for token in out.token_ids if token >= pipe.target.model.config.first_code]
    assert out.audio.rate == tiny.RATE
    assert len(out.audio.samples) == len(codes) * codec.samples_per_frame
    assert np.isfinite(out.audio.samples).all()
    assert np.abs(out.audio.samples).max() <= 1


def test_nothing_but_the_end_makes_no_sound(pipe: Any) -> None:
    end = pipe.target.model.config.first_code - 1
    inputs = inputs_of(pipe, "one")
    assert pipe.target.product_of(inputs, 0, [end]) == {"audio": None}


def test_every_codebook_depends_on_those_before_it(pipe: Any) -> None:
    model, inputs = pipe.target.model, inputs_of(pipe, "two red circles")
    prompt, voice = inputs["input_ids"][0].tolist(), inputs["voice_codes"][0]
    codes = pipe.target.complete(prompt, voice, [1, 2, 3, 4, 5, 6])
    assert codes.shape == (tiny.CODEBOOKS, 6)
    assert codes[0].tolist() == [1, 2, 3, 4, 5, 6]
    for k in range(1, tiny.CODEBOOKS):
        text = torch.tensor(prompt[1 : prompt.index(model.config.voice_token_id)])
        logits = model.refiner(text[None], voice[None], codes[None], k)
        assert pipe.processor.codec.middle(k, logits.softmax(-1))[0].tolist() == codes[k].tolist()
    other = pipe.target.complete(prompt, voice, [1, 2, 3, 4, 5, 7])
    assert other[1, :5].tolist() != codes[1, :5].tolist()  # later frames are seen, too


def test_frames_that_are_settled_stay(pipe: Any) -> None:
    inputs = inputs_of(pipe, "two red circles")
    prompt, voice = inputs["input_ids"][0].tolist(), inputs["voice_codes"][0]
    known = pipe.target.complete(prompt, voice, [1, 2, 3])
    codes = pipe.target.complete(prompt, voice, [1, 2, 3, 4, 5], known)
    assert torch.equal(codes[:, :3], known)


def test_a_folder_gives_back_what_was_saved(folder: Path) -> None:
    saved, read = tiny.valle(), mmspec.load(folder)
    assert isinstance(read.target, ValleTarget)
    for name, weight in saved.state_dict().items():
        assert torch.equal(weight, read.target.model.state_dict()[name]), name
    codec = tiny.processor().codec
    samples = torch.from_numpy(tiny.voice().samples)[None]
    assert torch.equal(codec.encode(samples), read.processor.codec.encode(samples))
    assert sorted(read.processor.voices) == ["high", "low"]
    ids = torch.randint(tiny.valle_config().first_code, 60, (1, 9))
    assert torch.equal(saved(ids).logits, read.target.model(ids).logits)


def test_the_codec_of_a_folder_goes_where_the_model_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no card here, so the model says that it lies on the meta device."""
    model = Valle.from_pretrained(str(folder))
    monkeypatch.setattr(Valle, "device", torch.device("meta"))
    assert mmspec.load(model, "none").processor.codec.device.type == "meta"


def test_generate_speaks_in_one_call(folder: Path, tmp_path: Path) -> None:
    out = mmspec.generate(prompt="two red circles", model=str(folder), voice="high", max_new_tokens=24)
    assert out.audio.seconds > 1
    path = out.audio.save(tmp_path / "speech.wav")
    assert mmspec.generate(prompt="one", model=str(folder), voice=path, max_new_tokens=4).audio.rate == tiny.RATE
    assert "audio" not in out.as_dict()


def test_a_model_in_memory_speaks_with_its_processor() -> None:
    pipe = mmspec.load(tiny.valle(), drafter="none", processor=tiny.processor())
    assert pipe(prompt="one", max_new_tokens=5).audio.seconds > 0
    with pytest.raises(InputError, match="no processor"):
        mmspec.load(tiny.valle(), drafter="none")(prompt="one")


def test_the_default_bound_is_thirty_seconds(pipe: Any) -> None:
    assert pipe.target.budget == int(30 * pipe.processor.codec.frames_per_second)


@pytest.mark.parametrize("context", [tiny.CONTEXT, 600])
def test_an_utterance_without_end_is_cut_at_the_stated_bound_and_says_so(context: int) -> None:
    """The bound is what the context has left, thirty seconds at most."""
    config = tiny.valle_config()
    config.text_config.max_position_embeddings = context
    torch.manual_seed(0)
    model = Valle(config).eval()
    model.generation_config.eos_token_id = 0  # a character, which is never said: nothing ends it
    endless = mmspec.load(model, "none", processor=tiny.processor())
    out = endless(prompt="one", temperature=1.0, seed=1)
    prompt = inputs_of(endless, "one")["input_ids"].shape[1]
    budget = int(30 * endless.processor.frames_per_second)
    assert len(out.token_ids) == min(budget, context - prompt)
    assert (len(out.token_ids) == budget) == (context == 600)
    assert out.finish == "length"
    assert out.audio.seconds <= 30


def test_speaking_needs_no_other_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """espeak-ng speaks for the training alone."""

    def refused(*arguments: Any, **more: Any) -> Any:
        raise AssertionError(arguments)

    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(subprocess, "Popen", refused)
    assert mmspec.load(folder, "none")(prompt="two", max_new_tokens=6, seed=1).audio.seconds > 0


BAD: list[tuple[dict[str, Any], type[Error], str]] = [
    ({"prompt": ""}, InputError, "empty"),
    ({"prompt": "!?"}, InputError, "nothing to pronounce"),
    ({"prompt": "\u6f22\u5b57"}, InputError, "cannot pronounce"),
    ({"prompt": "a" * 400}, InputError, "context is 192"),
    ({"prompt": "one", "voice": "nobody"}, UnknownNameError, "unknown voice 'nobody'.*high, low"),
    ({"prompt": "one", "voice": 7}, InputError, "not int"),
    ({"prompt": "one", "voice": b"RIFFnothing"}, InputError, "not a WAV file"),
    ({"prompt": "one", "voice": tiny.voice(0.3)}, InputError, "a second of speech is needed"),
    ({"prompt": "one", "voice": tiny.voice(31.0)}, InputError, "30 s at most"),
    ({"prompt": "one", "voice": Audio(np.zeros(8000, np.float32), 4000)}, InputError, "silent"),
    ({"prompt": "one", "voice": Audio(np.ones(8000, np.float32), 50)}, InputError, "50 samples per second"),
    ({"prompt": "one", "voice": Audio(np.full(8000, np.nan, np.float32), 4000)}, InputError, "not finite"),
    ({"prompt": ["one", "two"], "voice": ["low"]}, InputError, "2 prompts came with 1 voices"),
    ({"prompt": ["one", "two"], "voice": ["low"], "n": 2}, InputError, "2 prompts came with 1 voices"),
    ({"image": np.zeros((8, 8, 3), np.uint8), "prompt": "one"}, InputError, "does not see"),
]


def test_a_voice_of_nearly_a_second_has_as_many_frames_as_others(pipe: Any) -> None:
    out = pipe(prompt=["one", "two"], voice=["low", tiny.voice(0.91)], max_new_tokens=4, seed=1)
    assert len(out) == 2
    whole, short = (pipe.processor.voice(tiny.voice(seconds)) for seconds in (2.0, 0.91))
    assert whole.shape == short.shape


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for _, _, message in BAD])
def test_a_mistake_ends_in_one_clear_error(pipe: Any, call: Any, error: type[Error], message: str) -> None:
    with pytest.raises(error, match=message):
        pipe(**call)


def test_voices_may_stand_in_a_tuple_and_are_repeated_with_their_prompts(pipe: Any) -> None:
    asked = {"prompt": ["one", "two"], "n": 2, "max_new_tokens": 4, "seed": 1}
    said = [pipe(voice=kind(["low", "high"]), **asked) for kind in (list, tuple)]
    assert [len(group) for group in said[0]] == [2, 2]
    assert [[one.token_ids for one in group] for group in said[0]] == [
        [one.token_ids for one in group] for group in said[1]
    ]


def test_codes_of_a_voice_need_a_place_in_the_prompt(pipe: Any) -> None:
    inputs = pipe.prepare(None, "one")
    ids = inputs["input_ids"]
    wanting = inputs | {"input_ids": torch.where(ids == pipe.target.model.config.voice_token_id, 5, ids)}
    with pytest.raises(InputError, match="hold no voice"):
        pipe.generate(**wanting, max_new_tokens=4)


def test_codes_of_a_voice_are_those_of_the_codec(pipe: Any) -> None:
    inputs = pipe.prepare(None, "one")
    codes = inputs["voice_codes"]
    shape = r"voice_codes are whole numbers \[1, 3, frames\]"
    for wrong, told in (
        (codes[:, :1], shape), (codes[0], shape), (codes.tolist(), shape), (codes.float(), shape),
        (codes.expand(2, -1, -1), shape), (codes[..., :0], shape),
        (codes + tiny.CODES, "numbers below 24"), (codes - tiny.CODES, "numbers below 24"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=told):
            pipe.generate(**inputs | {"voice_codes": wrong}, max_new_tokens=4)


def test_a_tokenizer_alone_has_no_codec() -> None:
    with pytest.raises(InputError, match="has no codec: pass a SpeechProcessor"):
        mmspec.load(tiny.valle(), "none", processor=tiny.processor().tokenizer)


def test_a_voice_is_refused_by_a_model_that_does_not_speak() -> None:
    import tiny as vision

    pipe = mmspec.load(vision.llama_model(), drafter="none", processor=vision.tokenizer())
    with pytest.raises(InputError, match="voice is not an option of LlamaForCausalLM: leave it out"):
        pipe(prompt="one", voice="low")


def test_a_folder_without_its_codec_is_refused(tmp_path: Path) -> None:
    tiny.valle().save_pretrained(tmp_path / "m")
    tiny.processor().tokenizer.save_pretrained(tmp_path / "m")
    with pytest.raises(CheckpointError, match="no codec"):
        mmspec.load(tmp_path / "m")


def test_a_codec_of_another_size_is_refused(tmp_path: Path) -> None:
    folder = tiny.tiny_valle(tmp_path / "m")
    config = tiny.processor().codec.config.to_dict() | {"codebooks": 2}
    MelCodec(type(tiny.processor().codec.config)(**config)).save_pretrained(folder / "codec")
    with pytest.raises(CheckpointError, match="2 codebooks"):
        mmspec.load(folder)


def test_the_loop_itself_agrees_with_the_pipeline(pipe: Any) -> None:
    """The target on the bare loop, without the face around it."""
    inputs = inputs_of(pipe, "two red circles")
    want = pipe(prompt="two red circles", max_new_tokens=15, temperature=1.0, seed=2).token_ids
    found = toys.answer(pipe.target, NoDrafter(), inputs, 15, Sampling(temperature=1.0, seed=2), eos=pipe.target.ends())
    assert found.rows == [want]


def test_a_draft_may_hold_codes_and_the_end_and_nothing_else(pipe: Any) -> None:
    said = set(range(pipe.target.vocab_size)) - set(pipe.target.unsaid)
    assert said == {*pipe.target.code_ids(), *pipe.target.ends()}


def test_a_stream_plays_every_code_once_and_never_takes_sound_back(pipe: Any) -> None:
    fast = pipe.with_drafter(drafters(pipe.target.model)["perturbed"])
    options = {"max_new_tokens": 90, "temperature": 1.0}
    lengths = (len(pipe(prompt="two red circles", seed=seed, **options).token_ids) for seed in range(20))
    options["seed"] = next(seed for seed, length in enumerate(lengths) if length > 50)  # others end too soon
    stream, chunks, emitted = fast.stream(prompt="two red circles", **options), [], 0
    frame = pipe.processor.codec.samples_per_frame
    for piece in stream:
        emitted += sum(token >= pipe.target.model.config.first_code for token in piece.tokens)
        if piece.audio is not None:
            chunks.append(piece.audio)
            assert sum(len(chunk.samples) for chunk in chunks) <= emitted * frame
            assert np.isfinite(piece.audio.samples).all()
    whole = stream.finish()
    assert whole.token_ids == pipe(prompt="two red circles", **options).token_ids
    assert emitted > 40
    assert len(chunks) >= 2
    assert sum(len(chunk.samples) for chunk in chunks) == len(whole.audio.samples) == emitted * frame
    assert stream.first_audio_seconds > 0
    assert len(chunks[0].samples) < len(whole.audio.samples) / 2


def test_the_first_sound_does_not_wait_for_who_takes_the_pieces(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, away = time.perf_counter, [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + sum(away))
    stream = pipe.stream(prompt="two red circles", max_new_tokens=90, temperature=1.0)
    for piece in stream:
        if piece.audio is not None:
            break
        away.append(1000.0)
    assert len(away) > 2
    assert 0 < stream.first_audio_seconds < 1000


@pytest.mark.parametrize("length", [3, 11, 40, 70])
def test_the_same_codes_give_the_same_sound_whatever_the_rounds(pipe: Any, length: int) -> None:
    inputs, first = inputs_of(pipe, "two red circles"), pipe.target.model.config.first_code
    rng = np.random.default_rng(length)
    ids = (first + rng.integers(tiny.CODES, size=length)).tolist()

    def played(cuts: list[int]) -> list[np.ndarray]:
        """cuts: where rounds end, beside the last one, with which the end of speech comes."""
        chunks, ends = pipe.target.sounding(inputs, 0), [*cuts, length]
        rounds = [ids[start:end] for start, end in itertools.pairwise([0, *ends])]
        rounds[-1] = [*rounds[-1], first - 1]
        made = [chunks.add(each, last=place == len(ends)) for place, each in enumerate(rounds, 1)]
        return [audio.samples for audio in made if audio is not None]

    single = played(list(range(1, length + 1)))  # a code in each round, and the end by itself
    frame, ends = pipe.processor.codec.samples_per_frame, [end for end in (8, 32, 56) if end + 3 <= length]
    assert [len(chunk) for chunk in single] == [frame * (b - a) for a, b in itertools.pairwise([0, *ends, length])]
    for count in (0, 1, 2, 5, length - 1):
        cuts = sorted(rng.choice(np.arange(1, length), min(count, length - 1), replace=False).tolist())
        assert np.array_equal(np.concatenate(played(cuts)), np.concatenate(single))


def test_the_only_chunk_of_a_short_utterance_is_its_sound(pipe: Any) -> None:
    stream = pipe.stream(prompt="one", max_new_tokens=6)
    chunks = [piece.audio for piece in stream if piece.audio is not None]
    assert len(chunks) == 1
    assert np.array_equal(chunks[0].samples, stream.finish().audio.samples)


def test_a_streamed_batch_plays_each_row_by_itself(pipe: Any) -> None:
    texts = ["two red circles", "one"]
    stream = pipe.stream(prompt=texts, max_new_tokens=40, temperature=1.0, seed=8)
    played: list[list[np.ndarray]] = [[], []]
    for pieces in stream:
        for row, piece in enumerate(pieces):
            if piece.audio is not None:
                played[row].append(piece.audio.samples)
    for row, whole in enumerate(stream.finish()):
        assert sum(map(len, played[row])) == (0 if whole.audio is None else len(whole.audio.samples))
        single = pipe.stream(prompt=texts[row], max_new_tokens=40, temperature=1.0, seed=8 + row)
        alone = [piece.audio.samples for piece in single if piece.audio is not None]
        assert [len(one) for one in alone] == [len(one) for one in played[row]]
