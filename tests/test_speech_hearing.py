"""Language models that hear, on their stock classes: texts equal those of transformers, with every kind of drafter."""

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_commit
import test_drafters
import tiny_hearing as hearing
import tiny_speech
import torch
import toys
from fixed import static_caches
from one_drafter import train_drafter
from test_families import Oracle, hf
from tiny_hearing import HIGH, LONG, LOW, RATE, SOUNDS, WINDOW_S
from torch import Tensor
from torchaudio.functional import resample
from typer.testing import CliRunner

import mmspec
from mmspec import registry
from mmspec.benchmarks.cli import app
from mmspec.contract import Needs
from mmspec.demos.app import studio_of
from mmspec.drafters.eagle import Eagle
from mmspec.errors import InputError, MismatchError, UnsupportedError
from mmspec.loading import find_family
from mmspec.prompts import read_prompts
from mmspec.sampling import Sampler, Sampling
from mmspec.speech.audio import LONGEST_S, Audio
from mmspec.training.answers import AnswerOptions
from mmspec.training.course import Course
from mmspec.training.drafter import find_recipe

FAMILIES = list(hearing.MAKERS)
CUT = [family for family in FAMILIES if family != "qwen2-audio"]
"""Those that hear more than a window."""
PROMPTS = ["what is said?", "write down what is said", "why"]
REQUESTS = ["transcribe en", "transcribe de", "transcribe"]
BUDGET = 14
SAMPLED = {"temperature": 0.9, "seed": 3}


def prompts(family: str) -> list[str]:
    """A recogniser takes no words."""
    return REQUESTS if family == "qwen3-asr" else PROMPTS


@cache
def plain(family: str) -> mmspec.Pipeline:
    """The family on our AR loop."""
    model, processor = hearing.build(family)
    return mmspec.load(model, "none", processor=processor)


@cache
def greedy(family: str, budget: int = BUDGET) -> list[list[int]]:
    """What transformers says to each prompt alone."""
    pipe = plain(family)
    asked = zip(prompts(family), SOUNDS, strict=True)
    return [hf(pipe.target.model, pipe.prepare(None, text, voice=sound), budget)[0] for text, sound in asked]


@cache
def sampled(family: str) -> list[list[int]]:
    """What our AR loop says to each prompt alone, at the seed that its row has in a batch."""
    return [
        plain(family)(prompt=text, voice=sound, max_new_tokens=BUDGET, **{**SAMPLED, "seed": 3 + row}).token_ids
        for row, (text, sound) in enumerate(zip(prompts(family), SOUNDS, strict=True))
    ]


DRAFTERS: dict[str, Callable[[mmspec.Pipeline, list[list[int]]], Any]] = {
    "prompt-lookup": lambda pipe, want: "prompt-lookup",
    "suffix": lambda pipe, want: "suffix",
    "recycling": lambda pipe, want: "recycling",
    "eagle2": lambda pipe, want: Eagle(toys.eagle_head(pipe.target.model), depth=3, width=2, top_k=3, total=8),
    "oracle": lambda pipe, want: Oracle(want, pipe.target.vocab_size),
}
"""`oracle` knows the answers, so that deep and sparse paths of a tree are accepted."""


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_output_is_that_of_autoregressive_decoding(family: str, name: str) -> None:
    """Alone, and in a left-padded batch of unequal recordings. Greedy: as transformers. Sampled: as our AR loop."""
    base = plain(family)
    for options, want in ({"temperature": 0}, greedy(family)), (SAMPLED, sampled(family)):
        drafter = DRAFTERS[name](base, want)
        pipe = base.with_drafter(drafter, "own")
        batch = pipe(prompt=prompts(family), voice=SOUNDS, max_new_tokens=BUDGET, **options)
        assert [answer.token_ids for answer in batch] == want
        if name == "oracle":
            drafter.answers = want[:1]
            assert max(n for answer in batch for n in answer.stats.accept_lengths) >= 3
        alone = pipe(prompt=prompts(family)[0], voice=LOW, max_new_tokens=BUDGET, **options)
        assert alone.token_ids == want[0]
    assert len({tuple(answer) for answer in greedy(family)}) == 3


@pytest.mark.dynamic("runs them already")
@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_rounds_say_the_same(family: str) -> None:
    """On caches of fixed size, as on a GPU."""
    want = greedy(family)
    with static_caches():
        pipe = mmspec.load(plain(family).target.model, "none", processor=plain(family).processor)
        for name in ("recycling", "eagle2"):
            drafting = pipe.with_drafter(DRAFTERS[name](pipe, want), "own")
            answers = drafting(prompt=prompts(family), voice=SOUNDS, max_new_tokens=BUDGET)
            assert [answer.token_ids for answer in answers] == want


def made(family: str, sounds: list[Audio]) -> dict[str, Tensor]:
    """A batch as the stock processor makes it. What mistral-common makes for Voxtral has a test of its own."""
    processor = hearing.build(family)[1]
    texts, given = prompts(family)[: len(sounds)], [sound.samples for sound in sounds]
    if family == "qwen3-asr":
        return dict(processor.apply_transcription_request(given, language=["en", "German", None][: len(sounds)]))
    if family == "qwen2-audio":
        chats = [[{"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": text}]}] for text in texts]
        asked = processor.apply_chat_template(chats, add_generation_prompt=True)
        return dict(processor(text=asked, audio=given, sampling_rate=RATE, padding=True, return_tensors="pt"))
    if family == "voxtral":
        return plain(family).prepare(None, texts, voice=sounds)
    return dict(processor.apply_transcription_request(given, prompt=texts))


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_of_the_processor_are_what_generate_takes(family: str) -> None:
    pipe = plain(family).with_drafter("recycling")
    for sounds in ([LONG], SOUNDS):
        inputs = made(family, sounds)
        answers = pipe.generate(**inputs, temperature=0, max_new_tokens=BUDGET)
        answers = answers if isinstance(answers, list) else [answers]
        assert [answer.token_ids for answer in answers] == hf(pipe.target.model, inputs)
        ours = pipe.prepare(None, prompts(family)[: len(sounds)], voice=sounds)
        assert ours["input_ids"].tolist() == inputs["input_ids"].tolist()
    own = pipe.target.model.generation_config.max_new_tokens
    assert pipe.target.budget == (own or 5 * LONGEST_S)


def followed(sound: Audio, end: Audio) -> Audio:
    return Audio(np.concatenate([sound.samples, end.samples]), RATE)


@pytest.mark.parametrize("family", CUT)
def test_recordings_longer_than_a_window_are_heard_to_their_end(family: str) -> None:
    pipe, answers = plain(family), []
    for end in (LOW, HIGH, Audio(LONG.samples * 0.01, RATE)):
        long = followed(LONG, end)
        inputs = made(family, [long])
        answers.append(pipe(prompt=prompts(family)[0], voice=long, temperature=0, max_new_tokens=BUDGET).token_ids)
        assert answers[-1] == hf(pipe.target.model, inputs)[0]
    assert len({tuple(answer) for answer in answers}) > 1


@pytest.mark.parametrize("family", ["voxtral", "qwen2-audio"])
def test_a_prompt_with_several_recordings(family: str) -> None:
    """Tensors of a talk with two of them, in a batch whose other row has none."""
    pipe = plain(family)
    one, two = (pipe.prepare(None, "why", voice=sound) for sound in (LOW, HIGH))
    ids = torch.cat([one["input_ids"], two["input_ids"]], 1)
    written = torch.zeros_like(ids)
    written[:, -6:] = torch.arange(60, 66)
    inputs = {
        "input_ids": torch.cat([written, ids]),
        "attention_mask": torch.cat([written > 0, ids > 0]).long(),
        **{name: torch.cat([one[name], two[name]]) for name in pipe.target.extra_inputs},
    }
    answers = pipe.with_drafter("recycling").generate(**inputs, temperature=0, max_new_tokens=BUDGET)
    assert [answer.token_ids for answer in answers] == hf(pipe.target.model, inputs)


@pytest.mark.parametrize("family", FAMILIES)
def test_commit_then_continue_equals_a_fresh_prefill(family: str) -> None:
    """Random trees, in which every row accepts another random path; nodes against the plain model on the whole text."""
    pipe = plain(family)
    target: Any = pipe.target
    singles = [pipe.prepare(None, text, voice=sound) for text, sound in zip(prompts(family), SOUNDS, strict=True)]
    sampler = Sampler(Sampling(), 3, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)

    def fresh(row: int, ids: list[int]) -> Tensor:
        heard = {name: singles[row][name] for name in target.extra_inputs}
        heard = {name: value.double() if value.is_floating_point() else value for name, value in heard.items()}
        logits: Tensor = target.model(input_ids=torch.tensor([ids]), **heard).logits
        return logits[0, -1]

    with torch.inference_mode():
        inputs = {**pipe.prepare(None, prompts(family), voice=SOUNDS), "max_new_tokens": 100}
        state = target.prefill(inputs, Needs(), sampler)
        for row, first in enumerate(state.pending.tolist()):
            state.ids[row].append(first)
        for _ in range(2):
            draft = test_commit.random_tree(3, 7, generator)
            draft.tokens[:, 0] = state.pending
            verified = target.verify(state, draft)
            test_commit.check_nodes(draft, verified, state.ids, fresh, test_commit.close_of("sdpa"))
            last = torch.randint(0, 7, (3,), generator=generator)
            accepted = test_commit.path_to(draft, last, torch.randint(40, 90, (3,), generator=generator))
            test_commit.take(state.ids, draft, accepted)
            target.commit(state, draft, accepted)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_recording_is_encoded_once_and_a_prompt_read_in_pieces(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = plain(family)
    heard: list[int] = []
    with_hook = base.target.model.model.audio_tower.register_forward_hook(lambda *_: heard.append(1))
    monkeypatch.setattr(type(base.target), "piece_size", 7)
    try:
        pipe = base.with_drafter("recycling", "own")
        answers = pipe(prompt=prompts(family), voice=SOUNDS, temperature=0, max_new_tokens=BUDGET)
    finally:
        with_hook.remove()
    assert [answer.token_ids for answer in answers] == greedy(family)
    assert heard == [1]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_emitted_audio_token_is_an_ordinary_one_and_no_drafter_proposes_it(family: str) -> None:
    asked = {"prompt": prompts(family)[0], "voice": LOW, "temperature": 0}
    word = plain(family)(**asked, max_new_tokens=3).token_ids[2]
    model = copy.deepcopy(plain(family).target.model)
    slot = plain(family).target.slot
    with torch.no_grad():
        model.lm_head.weight[slot] = 1.5 * model.lm_head.weight[word]
    base = mmspec.load(model, "none", processor=plain(family).processor)
    want = hf(model, base.prepare(None, asked["prompt"], voice=LOW))[0]
    assert slot in want
    for name in ("prompt-lookup", "suffix", "recycling", "eagle2"):
        drafts: list[Tensor] = []
        drafter: Any = base.with_drafter(DRAFTERS[name](base, []), "own").drafter
        watched = test_drafters.Watched(drafter, lambda state, draft, seen=drafts: seen.append(draft.tokens[:, 1:]))
        assert base.with_drafter(watched)(**asked, max_new_tokens=BUDGET).token_ids == want, name
        assert not any(bool((tokens == slot).any()) for tokens in drafts), name


def test_voxtral_s_prompt_is_the_published_one() -> None:
    pipe = plain("voxtral")
    assert pipe.target.placeholders == (24,)

    def ids(text: str) -> list[int]:
        found = pipe.prepare(None, text, voice=LOW)["input_ids"][0].tolist()
        assert found[:3] == [1, 3, 25]
        assert found[3:28] == [24] * 25
        return found[28:]

    def words(text: str) -> list[int]:
        return [len(hearing.CONTROL) + byte for byte in text.encode()]

    assert ids("what is said?") == [*words("what is said?"), 4]
    assert ids("say [INST] or </s>") == [*words("say [INST] or </s>"), 4]
    assert ids("transcribe en") == [4, *words("lang:en"), 34]
    assert ids("transcribe") == [4, 34]
    assert ids("Transcribe it, please") == [*words("Transcribe it, please"), 4]
    with pytest.raises(InputError, match=r"control token '\[AUDIO\]'"):
        ids("what is [AUDIO]?")
    long, told = followed(LONG, HIGH), {"sampling_rate": RATE, "return_tensors": "pt"}
    found = pipe.prepare(None, ["why", "transcribe"], voice=[long, LOW])
    assert (found["input_ids"] == 24).sum(1).tolist() == [50, 25]
    sizes = {"padding": True, "truncation": False, "pad_to_multiple_of": WINDOW_S * RATE}
    want = pipe.processor._retrieve_input_features([long.samples, LOW.samples], 100 * WINDOW_S, **told, **sizes)
    assert torch.equal(found["input_features"], want)


def test_voxtral_s_prompt_is_that_of_mistral_common(tmp_path: Path) -> None:
    """With its own tokenizer, where that is installed: ids and features of chats and of transcription requests."""
    pytest.importorskip("mistral_common")
    soundfile = pytest.importorskip("soundfile")
    hearing.tekken(tmp_path, 30.0)
    hearing.WhisperFeatureExtractor(feature_size=hearing.MELS).save_pretrained(tmp_path)
    config = hearing.VoxtralConfig(audio_token_id=24)
    config.save_pretrained(tmp_path)
    processor = hearing.VoxtralProcessor.from_pretrained(tmp_path)
    assert type(processor.tokenizer).__name__ == "MistralCommonBackend"
    target = copy.copy(plain("voxtral").target)
    target.model = copy.copy(target.model)
    target.model.config = config
    for seconds in (1.0, 31.0):
        sound = tiny_speech.voice(seconds, rate=RATE)
        file = tmp_path / "sound.wav"
        soundfile.write(file, sound.samples, RATE)
        heard = mmspec.speech.audio.read_audio(file)  # 16 bits of it
        talk = [{"type": "audio", "path": str(file)}, {"type": "text", "text": "say [INST] or </s>"}]
        asked = {
            "say [INST] or </s>": processor.apply_chat_template([[{"role": "user", "content": talk}]]),
            "transcribe en": processor.apply_transcription_request(str(file), model_id="x", language="en"),
            "transcribe": processor.apply_transcription_request(str(file), model_id="x"),
        }
        for text, want in asked.items():
            found = target.encode(processor, [text], [[]], voice=heard)
            assert found["input_ids"].tolist() == want["input_ids"].tolist()
            assert torch.equal(found["input_features"], want["input_features"])
    with pytest.raises(InputError, match="control token"):
        target.encode(processor, ["[AUDIO]"], [[]], voice=heard)
    part = {"type": "audio", "path": str(file)}
    talk = [{"type": "text", "text": "say"}, part, part, {"type": "text", "text": "so"}, {"type": "text", "text": "it"}]
    said = {"role": "assistant", "content": "a [/INST] "}
    for turns in ([{"role": "user", "content": [part]}], [{"role": "system", "content": "be brief"}]):
        last = talk if turns[0]["role"] == "user" else "why?"
        chat = [*turns, *[said] * (last is talk), {"role": "user", "content": last}]
        want = processor.apply_chat_template([chat], tokenize=True)
        found = target.encode(processor, *read_prompts(chat, None))
        assert found["input_ids"].tolist() == want["input_ids"].tolist()
        assert all(torch.equal(found[name], want[name]) for name in want.keys() & {"input_features"})


def test_requests_are_those_of_whisper_where_a_family_knows_them() -> None:
    def asked(family: str, text: str) -> str:
        pipe = plain(family)
        ids = pipe.prepare(None, text, voice=LOW)["input_ids"][0].tolist()
        return pipe.processor.tokenizer.decode([i for i in ids if i != pipe.target.slot])

    assert asked("qwen3-asr", "transcribe en").endswith("Assistant:language English<asr_text>")
    assert asked("qwen3-asr", "transcribe german").endswith("Assistant:language German<asr_text>")
    assert asked("qwen3-asr", "transcribe").endswith("Assistant:")
    for family in ("audio-flamingo-3", "glm-asr"):
        assert plain(family).processor.default_transcription_prompt in asked(family, "transcribe")
        assert "transcribe what you hear" in asked(family, "transcribe what you hear")
    assert "\ntranscribe" in asked("qwen2-audio", "transcribe")
    with pytest.raises(InputError, match="ask 'transcribe' or in words, as in"):
        asked("glm-asr", "transcribe en")
    with pytest.raises(InputError, match="ask 'transcribe' or in words, as in"):
        asked("qwen2-audio", "transcribe en")
    with pytest.raises(InputError, match="two letters tell it a language"):
        asked("voxtral", "transcribe klingon")
    with pytest.raises(InputError, match="ask 'transcribe' or 'transcribe en' or in words"):
        asked("voxtral", "translate de")
    with pytest.raises(InputError, match="ask 'transcribe' or 'transcribe en'$"):
        asked("qwen3-asr", "what is said?")
    with pytest.raises(InputError, match="'klingon'"):
        asked("qwen3-asr", "transcribe klingon")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "qwen3-asr"])
def test_control_tokens_of_a_text_stay_text(family: str) -> None:
    pipe, end = plain(family), "<end_of_utterance>" if family != "voxtral" else "[/INST]"
    tokenizer = pipe.processor.tokenizer
    once, plain_text = (
        pipe.prepare(None, text, voice=LOW)["input_ids"][0].tolist() for text in (f"what is {end}?", "what is it?")
    )
    place = tokenizer.convert_tokens_to_ids(end)
    assert once.count(place) == plain_text.count(place)
    assert end in tokenizer.decode(once[-40:])
    with pytest.raises(InputError, match="control token"):
        pipe.prepare(None, tokenizer.convert_ids_to_tokens(pipe.target.slot), voice=LOW)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_cannot_be_heard_is_told(family: str, tmp_path: Path) -> None:
    pipe, text = plain(family), prompts(family)[0]
    file = LOW.save(tmp_path / "low.wav")
    few = {"temperature": 0, "max_new_tokens": 4}
    want = pipe(prompt=text, voice=str(file), **few).token_ids
    assert pipe(prompt=text, voice=file.read_bytes(), **few).token_ids == want
    two = pipe(prompt=[text] * 2, voice=str(file), **few)
    assert [answer.token_ids for answer in two] == [want] * 2
    assert [answer.token_ids for answer in pipe(prompt=text, voice=str(file), n=2, **few)] == [want] * 2
    slow = Audio(resample(torch.from_numpy(LOW.samples), RATE, 8000).numpy(), 8000)
    back = Audio(resample(torch.from_numpy(slow.samples), 8000, RATE).numpy(), RATE)
    features = [pipe.prepare(None, text, voice=sound)["input_features"] for sound in (slow, back)]
    assert torch.equal(*features)
    longest = int({"qwen2-audio": WINDOW_S, "audio-flamingo-3": 4, "glm-asr": 4}.get(family, LONGEST_S))
    for wrong, what in (
        (None, "pass voice="),
        ("nowhere.wav", "no audio file"),
        (b"RIFF", "not a WAV file"),
        ([LOW, HIGH], "1 prompts came with 2 voices"),
        (Audio(np.zeros((longest + 1) * 4000, np.float32), 4000), "heard at most|at most 600 s are read"),
    ):
        with pytest.raises(InputError, match=what):
            pipe(prompt=text, voice=wrong)
    inputs = pipe.prepare(None, text, voice=LOW)
    name = pipe.target.extra_inputs[-1]
    with pytest.raises(InputError, match=f"audio slots and comes without {pipe.target.extra_inputs[0]}"):
        pipe.generate(input_ids=inputs["input_ids"])
    with pytest.raises(InputError, match=f"{name} must be a tensor, not list"):
        pipe.generate(**{**inputs, name: inputs[name].tolist()})
    with pytest.raises(InputError, match="cannot read recordings of these shapes"):
        pipe.generate(**{**inputs, "input_features": inputs["input_features"].repeat(1, 2, 1)})
    ids = inputs["input_ids"][0]
    fewer = torch.cat([ids[ids != pipe.target.slot], ids[ids == pipe.target.slot][1:]])
    with pytest.raises(InputError, match="do not fit the prompt's audio slots"):
        pipe.generate(**{**inputs, "input_ids": fewer[None], "attention_mask": None})
    with pytest.raises(InputError, match="cannot read speech: .* needs a"):
        mmspec.load(pipe.target.model, "none", processor=pipe.processor.tokenizer)
    assert pipe.generate(input_ids=torch.tensor([[40, 50, 60]]), **few).token_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_loaded_with_its_own_classes(family: str, tmp_path: Path) -> None:
    base = plain(family)
    base.target.model.save_pretrained(tmp_path)
    base.processor.save_pretrained(tmp_path)
    pipe = mmspec.load(tmp_path, dtype="float64")
    assert type(pipe.target) is type(base.target)
    assert type(pipe.processor) is type(base.processor)
    assert pipe.names[0] == "prompt-lookup"
    assert pipe(prompt=prompts(family)[0], voice=LOW, max_new_tokens=BUDGET).token_ids == greedy(family)[0]
    with pytest.raises(UnsupportedError, match="listens, and no tab shows that"):
        studio_of(str(tmp_path))
    serving = [
        name
        for name in registry.names("targets", "speech")
        if registry.resolve("targets", name, "speech").serves(base.target.model.config)  # type: ignore[attr-defined]
    ]
    assert serving == [family]


def test_an_aligner_is_no_recogniser() -> None:
    config = hearing.Qwen3ASRConfig(architectures=["Qwen3ASRForTokenClassification"])
    with pytest.raises(UnsupportedError, match="no target serves a model of type Qwen3ASRForTokenClassification"):
        find_family(config)


@pytest.fixture
def recordings(tmp_path: Path) -> Iterator[Path]:
    """A folder of five recordings with a prompt for each."""
    lines = [{"prompt": "transcribe", "voice": f"{i}.wav"} for i in range(5)]
    for i, line in enumerate(lines):
        tiny_speech.voice(0.9, rate=RATE, pitch=90.0 + 20 * i).save(tmp_path / line["voice"])
    (tmp_path / "speech.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_it_is_measured_on_speech_of_one_s_own(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model")
    model, processor = hearing.MAKERS["qwen3-asr"](0)
    model.float().save_pretrained(folder)
    processor.save_pretrained(folder)
    told = ["--model", str(folder), "--drafters", "none,recycling", "--no-memory", "--json", "--data", str(recordings)]
    sizes = ["--max-new-tokens", "12", "--min-tokens", "2", "--questions", "2", "--repeats", "1"]
    done = CliRunner().invoke(app, [*told, *sizes])
    assert done.exit_code == 0, repr(done.exception)
    found = json.loads(done.stdout)
    assert {each["method"] for each in found["figures"]} == {"hf", "none", "recycling"}
    assert {each["equal_ours"] for each in found["figures"] if each["method"] == "recycling"} == {1}
    assert all(each["speedup"] > 0 for each in found["figures"])


def test_drafters_are_trained_for_it(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("accelerate")
    out = tmp_path_factory.mktemp("drafter")
    model, processor = hearing.MAKERS["voxtral"](0)
    pipe = mmspec.load(model.float(), "none", processor=processor)
    recipe: Any = find_recipe("eagle2")(steps=2, batch=2)
    course = Course(data=str(recordings), questions=3, held_out=2, answers=AnswerOptions(max_new_tokens=12, batch=4))
    figures = train_drafter(pipe, recipe, course, out / "out", out / "run", "tiny")
    assert figures["tau_t1"] >= 1
    asked = {"prompt": "transcribe", "voice": str(recordings / "0.wav"), "max_new_tokens": 12}
    assert pipe.with_drafter(out / "out")(**asked).token_ids == pipe(**asked).token_ids


def test_a_smaller_model_that_hears_is_no_drafter(tmp_path: Path) -> None:
    base = plain("glm-asr")
    base.target.model.save_pretrained(tmp_path)
    with pytest.raises(MismatchError, match="holds a glmasr model, which hears, and drafts for no other"):
        base.with_drafter(tmp_path)
